//! What the processes of a job talk over, and where they listen.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use slackline::channel::Secret;
use slackline::rendezvous::Path;
use slackline::transport::Address;
use slackline::transport::mixed::Mixed;
use slackline::transport::shm::Shm;
use slackline::transport::tcp::Tcp;
use slackline::transport::verbs::{Verbs, VerbsOptions};

/// Shared memory, RDMA and TCP, whichever fits a pair of processes.
pub(super) type Fabric = Mixed;

/// What one process of a job has to talk over.
pub(super) struct Ways {
    secret: Option<Secret>,
    /// This host's address as others see it, and which of the job's processes on it this one is.
    here: (Option<IpAddr>, usize),
    /// RDMA, opened once somebody needs it; or why there is none.
    rdma: OnceLock<Result<Verbs, String>>,
}

impl Ways {
    pub(super) fn new(secret: Option<Secret>, ip: Option<IpAddr>, place: usize) -> Ways {
        Ways { secret, here: (ip, place), rdma: OnceLock::new() }
    }

    /// Whether this process has RDMA, and if not, why.
    pub(super) fn rdma(&self) -> Result<(), String> {
        let open = || {
            let options = options_from(&|name| std::env::var(name).ok())?;
            let (peer, place) = self.here;
            let options = VerbsOptions { peer, place, secret: self.secret.clone(), ..options };
            Verbs::open(options).map_err(|error| error.to_string())
        };
        self.rdma.get_or_init(open).as_ref().map(|_| ()).map_err(String::clone)
    }

    /// All that was needed so far.
    pub(super) fn fabric(&self) -> Fabric {
        let tcp = self.secret.as_ref().map_or_else(Tcp::new, |secret| Tcp::with_secret(secret.clone()));
        let mixed = Mixed::new(Shm::new(), tcp);
        match self.rdma.get() {
            Some(Ok(verbs)) => mixed.with_verbs(verbs.clone()),
            _ => mixed,
        }
    }

    /// Where a server listens that is to be reached over `paths`. RDMA is left out where there is none, unless there is
    /// no other path.
    pub(super) fn listen_at(&self, paths: &[Path]) -> Result<Address, String> {
        let socket = SocketAddr::new(self.here.0.unwrap_or(std::net::Ipv4Addr::LOCALHOST.into()), 0);
        let mut addresses = Vec::new();
        for path in paths {
            match path {
                Path::Shm => addresses.push(Address::random()),
                Path::Tcp => addresses.push(Address::Tcp(socket)),
                Path::Verbs => match self.rdma() {
                    Ok(()) => addresses.push(Address::Verbs(socket)),
                    Err(error) if paths.len() == 1 => return Err(error),
                    Err(error) => tracing::info!(error, "not reached by RDMA"),
                },
            }
        }
        Ok(if addresses.len() == 1 { addresses.remove(0) } else { Address::Several(addresses) })
    }
}

/// What the environment says of this host's RDMA.
fn options_from(variable: &dyn Fn(&str) -> Option<String>) -> Result<VerbsOptions, String> {
    fn number<N: std::str::FromStr>(name: &str, text: Option<String>) -> Result<Option<N>, String> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| format!("{name} is `{text}`, which is no such number; mend or unset it"))
    }
    const PORT: &str = "SLACKLINE_RDMA_PORT";
    const GID_INDEX: &str = "SLACKLINE_RDMA_GID_INDEX";
    const MTU: &str = "SLACKLINE_RDMA_MTU";
    Ok(VerbsOptions {
        devices: device_list(&variable("SLACKLINE_RDMA_DEVICE").unwrap_or_default()),
        port: number(PORT, variable(PORT))?,
        gid_index: number(GID_INDEX, variable(GID_INDEX))?,
        mtu: number(MTU, variable(MTU))?,
        ..VerbsOptions::default()
    })
}

/// The names in a list with commas.
fn device_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The addresses that a listener told, one by one.
pub(super) fn flatten(address: Address) -> Vec<Address> {
    match address {
        Address::Several(addresses) => addresses,
        one => vec![one],
    }
}

/// The path that a transport of this name takes.
pub(super) fn path_of(transport: &str) -> Path {
    transport.parse().unwrap_or(Path::Shm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrules_what_is_chosen_and_nonsense_in_it_is_named() {
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
        let error = options_from(&|name| (name == "SLACKLINE_RDMA_MTU").then(|| "big".into())).unwrap_err();
        assert_eq!(error, "SLACKLINE_RDMA_MTU is `big`, which is no such number; mend or unset it");
    }

    #[test]
    fn rdma_that_is_required_and_missing_is_an_error_and_otherwise_left_out() {
        let ways = Ways::new(None, None, 0);
        if ways.rdma().is_err() {
            assert!(ways.listen_at(&[Path::Verbs]).is_err());
            let Ok(Address::Several(addresses)) = ways.listen_at(&[Path::Shm, Path::Verbs, Path::Tcp]) else {
                panic!("two addresses")
            };
            assert_eq!(addresses.len(), 2);
        }
    }
}
