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
/// otherwise. With `required`, that one or an error. `rdma` is asked whether this process has RDMA, and if not, why; it
/// is asked only where `member` has.
///
/// The order is the order of cost: no copy through a kernel at all, none through a CPU, one at each end.
pub fn choose(
    own: &Host,
    member: &Member,
    required: Option<Path>,
    rdma: &dyn Fn() -> Result<(), String>,
) -> Result<Choice, PathError> {
    let mut passed_over = Vec::new();
    for path in [Path::Shm, Path::Verbs, Path::Tcp] {
        match way(path, own, member, rdma) {
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
fn way(
    path: Path,
    own: &Host,
    member: &Member,
    rdma: &dyn Fn() -> Result<(), String>,
) -> Result<(Address, &'static str), String> {
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
        Path::Verbs => {
            let address = find(|address| matches!(address, Address::Verbs(_)));
            let address = address.ok_or("it has no RDMA, or does not offer it")?;
            rdma().map(|()| (address, "both have RDMA"))
        }
        Path::Tcp => find(|address| matches!(address, Address::Tcp(_)))
            .map(|address| (address, "it listens at a port"))
            .ok_or("it listens at no port".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemberId, Role};
    use super::*;

    fn no_rdma() -> Result<(), String> {
        Err("this host has no RDMA device".into())
    }

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
        let choice = choose(&here, &near, None, &no_rdma).unwrap();
        assert_eq!((choice.path, choice.address.to_string()), (Path::Shm, "@x".into()));
        assert_eq!(choice.reason, "both are on one host");
        let choice = choose(&Host::named("there"), &near, None, &no_rdma).unwrap();
        assert_eq!((choice.path, choice.address.to_string()), (Path::Tcp, "10.0.0.1:7".into()));
        assert!(choice.reason.contains("no shm: there and here are not one host"), "{}", choice.reason);
        assert!(choice.reason.contains("no verbs"), "{}", choice.reason);
    }

    #[test]
    fn rdma_is_taken_between_hosts_that_both_have_it_and_comes_before_tcp() {
        let far = member("there", &["10.0.0.1:7", "verbs:10.0.0.1:8", "@x"]);
        let here = Host::named("here");
        let choice = choose(&here, &far, None, &|| Ok(())).unwrap();
        assert_eq!((choice.path, choice.address.to_string()), (Path::Verbs, "verbs:10.0.0.1:8".into()));
        assert!(choice.reason.starts_with("both have RDMA; no shm:"), "{}", choice.reason);
        let choice = choose(&here, &far, None, &no_rdma).unwrap();
        assert_eq!(choice.path, Path::Tcp);
        assert!(choice.reason.contains("no verbs: this host has no RDMA device"), "{}", choice.reason);
        let near = choose(&Host::named("there"), &far, Some(Path::Verbs), &|| Ok(())).unwrap();
        assert_eq!(near.path, Path::Verbs, "on one host, too, if it is required");
        let error = choose(&here, &far, Some(Path::Verbs), &no_rdma).unwrap_err().to_string();
        assert!(
            error.ends_with("over verbs, which is required: no verbs: this host has no RDMA device"),
            "{error}"
        );
        let asked = || -> Result<(), String> { panic!("asked in vain") };
        choose(&here, &member("there", &["10.0.0.1:7"]), None, &asked).unwrap();
    }

    #[test]
    fn what_is_required_is_taken_or_is_an_error() {
        let near = member("here", &["10.0.0.1:7", "@x"]);
        let here = Host::named("here");
        assert_eq!(choose(&here, &near, Some(Path::Tcp), &no_rdma).unwrap().path, Path::Tcp);
        let error = choose(&Host::named("there"), &near, Some(Path::Shm), &no_rdma).unwrap_err().to_string();
        assert!(error.contains("cannot reach the server 0 on here over shm, which is required"), "{error}");
        let error = choose(&here, &near, Some(Path::Verbs), &no_rdma).unwrap_err().to_string();
        assert!(error.contains("over verbs, which is required: no verbs: it has no RDMA"), "{error}");
        let error =
            choose(&Host::named("there"), &member("here", &["@x"]), None, &no_rdma).unwrap_err().to_string();
        assert!(error.contains("at all") && error.contains("it listens at no port"), "{error}");
    }
}
