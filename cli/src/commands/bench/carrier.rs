//! The transports that can be measured.

use std::net::{IpAddr, SocketAddr};

use slackline::{Address, Secret, Shm, Tcp, Transport, TransportKind, Verbs};

use super::error::BenchError;
use super::means::Means;
use super::report::Measured;
use crate::commands::doctor::settings;

/// A transport that can be measured between two processes.
pub(super) trait Carrier: Transport + Clone {
    /// As the command line spells it.
    const NAME: &'static str;
    /// Requests that are under way at once where bandwidth is measured; 1 where a request is done when it is posted.
    const WINDOW: u64;
    /// Of so many requests one is signalled where bandwidth is measured.
    const SIGNAL_EVERY: u64;
    /// Whether writes land without the other process's help, so that two sides can play ping-pong by spinning on their
    /// own memory.
    const PONGS: bool;

    fn open(means: &Means) -> Result<Self, BenchError>;

    /// Returns an address on this host at which a new listener can be opened.
    fn anywhere(host: IpAddr) -> Address;

    /// Adds what there is to tell of the way to the other side.
    fn describe(&self, _means: &Means, measured: Measured) -> Measured {
        measured
    }
}

/// Opens what can be missing, only to see whether it is.
pub(super) fn open(transport: TransportKind, means: &Means) -> Result<(), BenchError> {
    match transport {
        TransportKind::Verbs => <Verbs as Carrier>::open(means).map(drop),
        transport => means.memory.transport_gpu(transport == TransportKind::Shm).map(drop),
    }
}

/// The error of a transport that is none of these.
pub(super) fn not_measured(transport: TransportKind) -> BenchError {
    BenchError::usage(format!("--transport {transport} cannot be measured"), "use shm, tcp or verbs")
}

impl Carrier for Shm {
    const NAME: &'static str = "shm";
    const WINDOW: u64 = 1;
    const SIGNAL_EVERY: u64 = 1;
    const PONGS: bool = true;

    fn open(means: &Means) -> Result<Shm, BenchError> {
        let gpu = means.memory.transport_gpu(true)?;
        Ok(gpu.iter().fold(Shm::new(), Shm::with_gpu))
    }

    fn anywhere(_host: IpAddr) -> Address {
        Address::random()
    }
}

impl Carrier for Tcp {
    const NAME: &'static str = "tcp";
    const WINDOW: u64 = 16;
    const SIGNAL_EVERY: u64 = 1;
    const PONGS: bool = false;

    fn open(means: &Means) -> Result<Tcp, BenchError> {
        let (gpu, tcp) = (means.memory.transport_gpu(false)?, means.secret.clone());
        Ok(gpu.iter().fold(tcp.map_or_else(Tcp::new, Tcp::with_secret), Tcp::with_gpu))
    }

    fn anywhere(host: IpAddr) -> Address {
        Address::Tcp(SocketAddr::new(host, 0))
    }

    fn describe(&self, means: &Means, measured: Measured) -> Measured {
        match means.secret.as_ref().is_some_and(Secret::encrypts) {
            true => measured.with("encrypted", true).note("encrypted and authenticated".into()),
            false => measured,
        }
    }
}

impl Carrier for Verbs {
    const NAME: &'static str = "verbs";
    // Both as perftest has them, but that four signals are due in each queue.
    const WINDOW: u64 = 128;
    const SIGNAL_EVERY: u64 = 32;
    const PONGS: bool = true;

    fn open(means: &Means) -> Result<Verbs, BenchError> {
        let gpu = means.memory.transport_gpu(false)?;
        Ok(gpu.iter().fold(Verbs::open(means.verbs()?)?, Verbs::with_gpu))
    }

    fn anywhere(host: IpAddr) -> Address {
        Address::Verbs(SocketAddr::new(host, 0))
    }

    fn describe(&self, means: &Means, mut measured: Measured) -> Measured {
        // That of this side's device. Whether this side has proofs before its words is what the other side's says.
        if let Some(order) = means.order.of(self) {
            let (name, says) = (order.source.name(), order.source.text());
            let text = if order.in_order { "in order" } else { "in any order: words are proved by READs" };
            measured = measured.with("in_order", order.in_order).with("in_order_says", name);
            measured = measured.note(format!("{} applies writes {text} (says {says})", self.device()));
        }
        let gid = self.gid_towards(means.peer);
        if let Ok((options, from)) = means.settings() {
            let settings = settings::look(self, gid.as_ref(), &options, &from);
            measured = measured.with("settings", serde_json::to_value(settings).unwrap_or_default());
            let relaxed = options.relaxed_ordering;
            measured = measured.with("relaxed_ordering", relaxed);
            if !relaxed {
                measured = measured.note("relaxed ordering is off".into());
            }
        }
        let (device, port, mtu) = (self.device(), self.port().number, self.mtu());
        measured = measured.with("device", device).with("port", port).with("mtu", mtu);
        let rails: Vec<String> = self.rails().map(|(device, port)| format!("{device}:{port}")).collect();
        if rails.len() > 1 {
            // Only payloads are striped, and what single writes go to announces itself.
            let note =
                format!("reads, gradients and parameters over {}, else the first", rails.join(" and "));
            measured = measured.with("rails", rails.join(",")).note(note);
        }
        match gid {
            Some(choice) => {
                let (gid, index) = (choice.gid.to_string(), choice.gid.index);
                let note = format!("by port {port} of {device}, GID {index} ({gid}), packets of {mtu} bytes");
                measured.with("gid", gid).with("gid_index", index).note(note)
            }
            None => measured,
        }
    }
}
