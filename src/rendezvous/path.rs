//! Which way to take to a peer.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Host, Member};
use crate::transport::Address;

/// A way to reach a peer, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Shared memory.
    Shm,
    /// RDMA.
    Verbs,
    /// TCP.
    Tcp,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Path::Shm => "shm",
            Path::Verbs => "verbs",
            Path::Tcp => "tcp",
        })
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Path, String> {
        match text {
            "shm" => Ok(Path::Shm),
            "verbs" => Ok(Path::Verbs),
            "tcp" => Ok(Path::Tcp),
            _ => Err(format!("`{text}` is no path: use shm, verbs or tcp")),
        }
    }
}

/// A way that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which way.
    pub path: Path,
    /// Where to connect.
    pub address: Address,
    /// Why this one and none before it, for people.
    pub reason: String,
}

/// There is no way, or not the one that was required.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach the {role} {place} on {host} {how}: {reason}", role = .member.role, place = .member.place,
    host = .member.host, how = how(.required))]
pub struct PathError {
    member: Box<Member>,
    required: Option<Path>,
    reason: String,
}

fn how(required: &Option<Path>) -> String {
    required.map_or("at all".into(), |path| format!("over {path}, which is required"))
}

/// The best way from a process on `own` to `member`: shared memory on one host, RDMA where both have it, TCP
/// otherwise. With `required`, that one or an error.
///
/// The order is the order of cost: no copy through a kernel at all, none through a CPU, one at each end.
pub fn choose(own: &Host, member: &Member, required: Option<Path>) -> Result<Choice, PathError> {
    let mut passed_over = Vec::new();
    for path in [Path::Shm, Path::Verbs, Path::Tcp] {
        match way(path, own, member) {
            Ok((address, why)) if required.is_none_or(|required| required == path) => {
                let because = match required {
                    Some(_) => "it is required".into(),
                    None if passed_over.is_empty() => why.into(),
                    None => format!("{why}; {}", passed_over.join("; ")),
                };
                return Ok(Choice { path, address, reason: because });
            }
            Ok(_) => {}
            Err(why) if required.is_none_or(|required| required == path) => {
                passed_over.push(format!("no {path}: {why}"));
            }
            Err(_) => {}
        }
    }
    Err(PathError { member: Box::new(member.clone()), required, reason: passed_over.join("; ") })
}

/// The address of `member` on this path and what speaks for it, or what speaks against it.
fn way(path: Path, own: &Host, member: &Member) -> Result<(Address, &'static str), String> {
    let find =
        |wanted: fn(&Address) -> bool| member.addresses.iter().find(|address| wanted(address)).cloned();
    match path {
        Path::Shm if !own.shares_memory_with(&member.host) && own.name == member.host.name => {
            Err(format!("two hosts are called {own}: they are not one host (kernel, network and user)"))
        }
        Path::Shm if !own.shares_memory_with(&member.host) => {
            Err(format!("{own} and {} are not one host (kernel, network and user)", member.host))
        }
        Path::Shm => find(|address| matches!(address, Address::Abstract(_) | Address::Path(_)))
            .map(|address| (address, "both are on one host"))
            .ok_or("it listens at no socket".into()),
        Path::Verbs => Err("this build has no RDMA transport".into()),
        Path::Tcp => find(|address| matches!(address, Address::Tcp(_)))
            .map(|address| (address, "it listens at a port"))
            .ok_or("it listens at no port".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemberId, Role};
    use super::*;

    fn member(host: &str, addresses: &[&str]) -> Member {
        Member {
            id: MemberId(1),
            role: Role::Server,
            place: 0,
            generation: 0,
            rank: None,
            host: Host::named(host),
            process: 1,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn the_best_way_is_chosen_and_says_why() {
        let near = member("here", &["10.0.0.1:7", "@x"]);
        let here = Host::named("here");
        let choice = choose(&here, &near, None).unwrap();
        assert_eq!((choice.path, choice.address.to_string()), (Path::Shm, "@x".into()));
        assert_eq!(choice.reason, "both are on one host");
        let choice = choose(&Host::named("there"), &near, None).unwrap();
        assert_eq!((choice.path, choice.address.to_string()), (Path::Tcp, "10.0.0.1:7".into()));
        assert!(choice.reason.contains("no shm: there and here are not one host"), "{}", choice.reason);
        assert!(choice.reason.contains("no verbs"), "{}", choice.reason);
    }

    #[test]
    fn what_is_required_is_taken_or_is_an_error() {
        let near = member("here", &["10.0.0.1:7", "@x"]);
        let here = Host::named("here");
        assert_eq!(choose(&here, &near, Some(Path::Tcp)).unwrap().path, Path::Tcp);
        let error = choose(&Host::named("there"), &near, Some(Path::Shm)).unwrap_err().to_string();
        assert!(error.contains("cannot reach the server 0 on here over shm, which is required"), "{error}");
        assert!(choose(&here, &near, Some(Path::Verbs)).unwrap_err().to_string().contains("no verbs"));
        let error = choose(&Host::named("there"), &member("here", &["@x"]), None).unwrap_err().to_string();
        assert!(error.contains("at all") && error.contains("it listens at no port"), "{error}");
    }
}
