//! The variables of ps-lite, which MXNet, BytePS and the trackers of dmlc-core set.
//!
//! Servers have the first ranks and workers the rest. ps-lite's scheduler has no counterpart: the server of shard 0 is
//! rank 0, and keeps the rendezvous at the scheduler's address.

use super::claims::{Claim, number};
use super::{LaunchError, RendezvousEndpoint, RendezvousEndpointError, Source};

const HOST: &str = "DMLC_PS_ROOT_URI";
const PORT: &str = "DMLC_PS_ROOT_PORT";
const SERVERS: &str = "DMLC_NUM_SERVER";
const WORKERS: &str = "DMLC_NUM_WORKER";
const TASK: &str = "DMLC_TASK_ID";

/// The position of this process and the number of servers, if ps-lite's variables are there.
pub(super) fn claim(env: &impl Fn(&str) -> Option<String>) -> Result<Option<Claim>, LaunchError> {
    let Some(role) = env("DMLC_ROLE") else { return Ok(None) };
    let present = format!("DMLC_ROLE={role}");
    let is_server = match role.as_str() {
        "server" => true,
        "worker" => false,
        "scheduler" => {
            let reason = "the server of shard 0 keeps the rendezvous; start no scheduler, and that server on the \
                          host that DMLC_PS_ROOT_URI names";
            return Err(LaunchError::Unmapped { present, reason });
        }
        _ => {
            let reason = "a process is a server or a worker; set DMLC_ROLE to one of the two";
            return Err(LaunchError::Unmapped { present, reason });
        }
    };
    if let Some(local @ 2..) = number("BYTEPS_LOCAL_SIZE", env)? {
        let present = format!("BYTEPS_LOCAL_SIZE={local}");
        let reason = "servers are not told how many workers a host has; set it to 1 and DMLC_NUM_WORKER to all workers";
        return Err(LaunchError::Unmapped { present, reason });
    }
    let count = |name| {
        let missing = LaunchError::Partial { present: present.clone(), missing: name };
        number(name, env)?.ok_or(missing)
    };
    let (servers, workers) = (count(SERVERS)?, count(WORKERS)?);
    let (own, of) = if is_server { ("DMLC_SERVER_ID", servers) } else { ("DMLC_WORKER_ID", workers) };
    let (name, told) = match number(own, env)? {
        Some(told) => (own, Some(told)),
        None => (TASK, number(TASK, env)?),
    };
    let role_rank = match told {
        // Tasks are numbered over all processes, workers first.
        Some(task) if is_server && name == TASK => task.checked_sub(workers).unwrap_or(task),
        Some(role_rank) => role_rank,
        // The only one of its role needs no number.
        None if of == 1 => 0,
        None => return Err(LaunchError::Partial { present, missing: own }),
    };
    if role_rank >= of {
        let rank = format!("{name}={}", told.unwrap_or(role_rank));
        return Err(LaunchError::Rank { rank, world: format!("the number of its role, {of}") });
    }
    let rank = if is_server { role_rank } else { servers.saturating_add(role_rank) };
    let world = servers.saturating_add(workers);
    Ok(Some(Claim { rank, world, local_rank: None, local_world: None, source: Source::Dmlc }))
}

/// The number of servers, where these variables give the process its rank.
pub(super) fn servers(env: &impl Fn(&str) -> Option<String>) -> Result<Option<u32>, LaunchError> {
    number(SERVERS, env)
}

/// The rendezvous: the address that ps-lite's scheduler would have.
pub(super) fn rendezvous(env: &impl Fn(&str) -> Option<String>) -> Result<RendezvousEndpoint, LaunchError> {
    let (Some(host), Some(port)) = (env(HOST), env(PORT)) else {
        return Err(LaunchError::NoRendezvous {
            launcher: Source::Dmlc,
            what: "where the server of shard 0 is",
            remedy: "set DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT to its host and a free port on it",
        });
    };
    let value = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let parsed = value.parse();
    parsed.map_err(|RendezvousEndpointError { reason }| LaunchError::RendezvousEndpoint {
        name: HOST,
        value,
        reason,
    })
}
