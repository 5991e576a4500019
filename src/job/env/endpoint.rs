//! The rendezvous of a job's processes, when neither a flag nor a variable of ours names one.
//!
//! The host: this one, by its loopback address, if all processes are here; else `MASTER_ADDR`; else the first host of
//! Slurm's list, where Slurm puts rank 0 unless told otherwise.
//!
//! The port is one of [`PORTS`], derived from the variables that tell the job from other jobs on its hosts, so that all
//! ranks choose the same port and two jobs seldom do. It is never `MASTER_PORT` itself, where torchrun's agent listens
//! already, nor a port next to it, where the next job's agent tends to listen.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::ops::Range;
use std::str::FromStr;

use super::claims::{Claim, number};
use super::slurm::first_host;
use super::{LaunchError, Source};
use crate::diagnostic::{Diagnostic, remedy_of};

/// The range of the derived rendezvous ports: below the ports that Linux gives to clients (from 32768), away from
/// Slurm's own (6817 and 6818, srun's 60001 on) and from torchrun's usual 29400 and 29500.
pub const PORTS: Range<u16> = 20480..24576;

/// The address at which rank 0 can be met.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RendezvousEndpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// A port on it.
    pub port: u16,
}

/// A text that is no address of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {}", remedy_of(self))]
#[non_exhaustive]
pub struct RendezvousEndpointError {
    /// The fault of the text.
    pub reason: &'static str,
}

/// How the address of a rendezvous is written.
pub(super) const REMEDY: &str = "give a name or address and a port, such as node1:29400 or [fd00::1]:29400";

const LINK_LOCAL: &str = "other hosts do not reach an address that holds on one link alone";

impl Diagnostic for RendezvousEndpointError {
    fn operation(&self) -> &'static str {
        "reading the address of a rendezvous"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(REMEDY.into())
    }
}

impl FromStr for RendezvousEndpoint {
    type Err = RendezvousEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = |reason| RendezvousEndpointError { reason };
        let (host, port) = text.trim().rsplit_once(':').ok_or(fault("there is no port"))?;
        let port = match port.parse() {
            Ok(0) => return Err(fault("no process can be met at port 0")),
            Ok(port) => port,
            Err(_) => return Err(fault("the port is no number up to 65535")),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        match inner {
            Some(inner) if inner.contains('%') => return Err(fault(LINK_LOCAL)),
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_unicast_link_local()) => {
                return Err(fault(LINK_LOCAL));
            }
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => {}
            Some(_) => return Err(fault("there is no IPv6 address between the brackets")),
            None if host.is_empty() => return Err(fault("there is no host")),
            None if host.contains(':') => return Err(fault("an IPv6 address needs brackets")),
            None if !host.chars().all(is_name) => return Err(fault("that is no name of a host")),
            None => {}
        }
        Ok(RendezvousEndpoint { host: inner.unwrap_or(host).to_owned(), port })
    }
}

impl RendezvousEndpoint {
    /// A port of [`PORTS`] on `host`, an address of this host, at which no process listens now. They are not among the
    /// ports that the system gives to outgoing connections, so that no such connection takes it before rank 0 does.
    ///
    /// # Errors
    /// The address is not of this host, or a hundred ports were taken.
    #[doc(hidden)]
    pub fn free(host: IpAddr) -> io::Result<RendezvousEndpoint> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..100 {
            let mut random = [0; 2];
            getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
            let port = PORTS.start + u16::from_le_bytes(random) % PORTS.len() as u16;
            match TcpListener::bind((host, port)) {
                Ok(_) => return Ok(RendezvousEndpoint { host: host.to_string(), port }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl fmt::Display for RendezvousEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RendezvousEndpoint { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Derives the rendezvous of a job of more than one process.
pub(super) fn find(
    claim: &Claim,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<RendezvousEndpoint, LaunchError> {
    if claim.source == Source::Dmlc {
        return super::dmlc::rendezvous(env);
    }
    Ok(RendezvousEndpoint { host: host(claim, env)?, port: port(claim, env)? })
}

fn host(claim: &Claim, env: &impl Fn(&str) -> Option<String>) -> Result<String, LaunchError> {
    if claim.local_world == Some(claim.world) {
        return Ok("127.0.0.1".into());
    }
    if claim.source != Source::Flags {
        if let Some(host) = env("MASTER_ADDR") {
            return Ok(host);
        }
        for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
            if let Some(value) = env(name) {
                return first_host(&value).ok_or(LaunchError::HostList { name, value });
            }
        }
    }
    let (what, remedy) = match claim.source {
        Source::Torchrun => ("where rank 0 is", "set MASTER_ADDR and MASTER_PORT, or --rendezvous HOST:PORT"),
        _ => (
            "where rank 0 is",
            "set --rendezvous or SLACKLINE_RENDEZVOUS to HOST:PORT of rank 0, the same for all ranks",
        ),
    };
    Err(LaunchError::NoRendezvous { launcher: claim.source, what, remedy })
}

fn port(claim: &Claim, env: &impl Fn(&str) -> Option<String>) -> Result<u16, LaunchError> {
    let slurm_step = || -> Result<Option<u64>, LaunchError> {
        let ids = (number("SLURM_JOB_ID", env)?, number("SLURM_STEP_ID", env)?);
        // Neighbours in the list of jobs are the likeliest to share a host, and so get ports of their own.
        Ok(if let (Some(job), Some(step)) = ids { Some(u64::from(job) * 16 + u64::from(step)) } else { None })
    };
    let named = |name: &str| env(name).map(|id| hash(&id));
    let identity = match named("SLACKLINE_JOB_ID") {
        Some(id) => Some(id),
        None => match claim.source {
            Source::Flags | Source::Kubernetes | Source::Dmlc => None,
            Source::Torchrun => number("MASTER_PORT", env)?.map(u64::from),
            Source::Slurm => slurm_step()?,
            Source::OpenMpi => named("PMIX_NAMESPACE").or_else(|| named("OMPI_MCA_ess_base_jobid")),
            Source::Pmi => match named("HYDRA_CONTROL_PORT").or_else(|| named("PMI_JOBID")) {
                Some(id) => Some(id),
                // Hydra starts its proxies as one step where it finds a Slurm.
                None => slurm_step()?,
            },
            Source::Pmix => named("PMIX_NAMESPACE"),
        },
    };
    let identity = identity.ok_or(match claim.source {
        Source::Torchrun => LaunchError::NoRendezvous {
            launcher: claim.source,
            what: "which port to derive ours from",
            remedy: "set MASTER_ADDR and MASTER_PORT, or --rendezvous HOST:PORT",
        },
        launcher => LaunchError::NoRendezvous {
            launcher,
            what: "what sets this job apart",
            remedy: "set SLACKLINE_JOB_ID to anything that only this job's ranks share, or --rendezvous to HOST:PORT",
        },
    })?;
    Ok(PORTS.start + (identity % PORTS.len() as u64) as u16)
}

/// FNV-1a: the same on every host and in every version of this program.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
