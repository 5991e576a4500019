//! The transports of one process, and the addresses at which it listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use crate::channel::Secret;
use crate::transport::mixed::Mixed;
use crate::transport::shm::Shm;
use crate::transport::tcp::Tcp;
use crate::transport::verbs::{Verbs, VerbsOptions};
use crate::transport::{Address, TransportKind};

/// The transports of one process of a job. RDMA is opened when it is first needed.
pub struct Transports {
    secret: Option<Secret>,
    /// This host's address as the others see it.
    ip: Option<IpAddr>,
    /// The number of this process among those of the job, which spreads them over the devices of a host.
    index: usize,
    /// RDMA, or the reason why there is none.
    rdma: OnceLock<Result<Verbs, String>>,
}

impl Transports {
    /// The transports of process `index`, which others reach at `ip` (loopback if `None`).
    pub fn new(secret: Option<Secret>, ip: Option<IpAddr>, index: usize) -> Transports {
        Transports { secret, ip, index, rdma: OnceLock::new() }
    }

    /// Opens RDMA at the first call, with the settings of [`rdma_options`], and says why this process has none.
    pub fn rdma(&self) -> Result<(), String> {
        let open = || {
            let options = VerbsOptions {
                peer: self.ip,
                // A process does not know all others of its host: its rank in the job spreads them as well.
                local_rank: self.index,
                secret: self.secret.clone(),
                ..rdma_options()?
            };
            Verbs::open(options).map_err(|error| error.to_string())
        };
        self.rdma.get_or_init(open).as_ref().map(|_| ()).map_err(String::clone)
    }

    /// The transports that were opened so far, side by side.
    pub fn open(&self) -> Mixed {
        let tcp = self.secret.as_ref().map_or_else(Tcp::new, |secret| Tcp::with_secret(secret.clone()));
        let mixed = Mixed::new(Shm::new(), tcp);
        match self.rdma.get() {
            Some(Ok(verbs)) => mixed.with_verbs(verbs.clone()),
            _ => mixed,
        }
    }

    /// The address at which an owner listens that is reached over `kinds`. RDMA is left out where this process has
    /// none, unless it is the only one.
    pub fn listen_at(&self, kinds: &[TransportKind]) -> Result<Address, String> {
        let socket = SocketAddr::new(self.ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0);
        let mut addresses = Vec::new();
        for kind in kinds {
            match kind {
                TransportKind::Shm => addresses.push(Address::random()),
                TransportKind::Tcp => addresses.push(Address::Tcp(socket)),
                TransportKind::Verbs => match self.rdma() {
                    Ok(()) => addresses.push(Address::Verbs(socket)),
                    Err(error) if kinds.len() == 1 => return Err(error),
                    Err(error) => tracing::info!(error, "not reached by RDMA"),
                },
            }
        }
        Ok(if addresses.len() == 1 { addresses.remove(0) } else { Address::Several(addresses) })
    }
}

/// The settings of RDMA in the environment: `SLACKLINE_RDMA_DEVICE`, `_PORT`, `_GID_INDEX`, `_MTU` and `_ORDER`
/// override the choice of the device and its settings.
///
/// # Errors
/// The text names a variable whose value is not usable.
pub fn rdma_options() -> Result<VerbsOptions, String> {
    options_from(&|name| std::env::var(name).ok())
}

fn options_from(variable: &dyn Fn(&str) -> Option<String>) -> Result<VerbsOptions, String> {
    fn number<N: std::str::FromStr>(name: &str, text: Option<String>) -> Result<Option<N>, String> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| format!("{name} is `{text}`, which is no such number; correct or unset it"))
    }
    const PORT: &str = "SLACKLINE_RDMA_PORT";
    const GID_INDEX: &str = "SLACKLINE_RDMA_GID_INDEX";
    const MTU: &str = "SLACKLINE_RDMA_MTU";
    const ORDER: &str = "SLACKLINE_RDMA_ORDER";
    let in_order = match variable(ORDER).as_deref() {
        None | Some("" | "auto") => None,
        Some("in-order") => Some(true),
        Some("read") => Some(false),
        Some(text) => {
            return Err(format!("{ORDER} is `{text}`; say auto, in-order or read, or unset it"));
        }
    };
    Ok(VerbsOptions {
        devices: device_list(&variable("SLACKLINE_RDMA_DEVICE").unwrap_or_default()),
        port: number(PORT, variable(PORT))?,
        gid_index: number(GID_INDEX, variable(GID_INDEX))?,
        mtu: number(MTU, variable(MTU))?,
        in_order,
        ..VerbsOptions::default()
    })
}

/// The names in a list with commas.
fn device_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Lists the addresses of a listener, which may have one for each transport.
pub fn flatten(address: Address) -> Vec<Address> {
    match address {
        Address::Several(addresses) => addresses,
        one => vec![one],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrides_the_choice_and_errors_name_the_variable() {
        let set = |name: &str| match name {
            "SLACKLINE_RDMA_DEVICE" => Some("rxe0".to_owned()),
            "SLACKLINE_RDMA_GID_INDEX" => Some("3".to_owned()),
            "SLACKLINE_RDMA_PORT" => Some(String::new()),
            _ => None,
        };
        let options = options_from(&set).unwrap();
        assert_eq!(
            (options.devices, options.gid_index, options.port),
            (vec!["rxe0".to_owned()], Some(3), None)
        );
        let two = options_from(&|name| (name == "SLACKLINE_RDMA_DEVICE").then(|| "mlx5_0, mlx5_1:2".into()));
        assert_eq!(two.unwrap().devices, ["mlx5_0", "mlx5_1:2"]);
        let order = |text: &'static str| {
            options_from(&|name| (name == "SLACKLINE_RDMA_ORDER").then(|| text.into()))
                .map(|options| options.in_order)
        };
        let asked = ["", "auto", "in-order", "read"].map(order);
        assert_eq!(asked, [Ok(None), Ok(None), Ok(Some(true)), Ok(Some(false))]);
        let error = order("strict").unwrap_err();
        assert_eq!(error, "SLACKLINE_RDMA_ORDER is `strict`; say auto, in-order or read, or unset it");
        let error = options_from(&|name| (name == "SLACKLINE_RDMA_MTU").then(|| "big".into())).unwrap_err();
        assert_eq!(error, "SLACKLINE_RDMA_MTU is `big`, which is no such number; correct or unset it");
    }

    #[test]
    fn rdma_that_is_required_and_missing_is_an_error_and_otherwise_left_out() {
        let transports = Transports::new(None, None, 0);
        if transports.rdma().is_err() {
            assert!(transports.listen_at(&[TransportKind::Verbs]).is_err());
            let Ok(Address::Several(addresses)) = transports.listen_at(&TransportKind::ALL) else {
                panic!("two addresses")
            };
            assert_eq!(addresses.len(), 2);
        }
    }
}
