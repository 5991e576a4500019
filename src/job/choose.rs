//! The choice of the transport between two processes.

use std::borrow::Cow;

use super::rendezvous::{Host, Member};
use crate::diagnostic::Diagnostic;
use crate::transport::{Address, TransportKind};

/// The transport that was chosen for a pair of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportChoice {
    /// The transport.
    pub kind: TransportKind,
    /// The address to connect to.
    pub address: Address,
    /// The reason for this transport and against each cheaper one, for people.
    pub reason: String,
}

/// No transport reaches a member, or the required one does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach the {role} {role_rank} on {host} {how}: {reason}", role = .member.role,
    role_rank = .member.role_rank, host = .member.host, how = how(.required))]
pub struct PathError {
    member: Box<Member>,
    required: Option<TransportKind>,
    reason: String,
}

impl Diagnostic for PathError {
    fn operation(&self) -> &'static str {
        "reaching the other processes"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        None
    }
}

fn how(required: &Option<TransportKind>) -> String {
    required.map_or("at all".into(), |path| format!("over {path}, which is required"))
}

/// Chooses the best transport from a process on `own` to `member`: shared memory on one host, RDMA where both have it,
/// TCP otherwise. With `required`, that one or an error.
///
/// `rdma` is asked whether this process has RDMA and, as far as is known, a path by it to `member`, and if not, why; it
/// is asked only where `member` has RDMA. `gpu` is asked whether this process maps memory of the GPU of a UUID; it is
/// asked only where `member` serves payloads from one.
///
/// The order is the order of cost: no copy through a kernel at all, none through a CPU, one at each end.
pub fn choose(
    own: &Host,
    member: &Member,
    required: Option<TransportKind>,
    rdma: &dyn Fn() -> Result<(), String>,
    gpu: &dyn Fn(&[u8; 16]) -> Result<(), String>,
) -> Result<TransportChoice, PathError> {
    let mut passed_over = Vec::new();
    for path in TransportKind::ALL {
        match way(path, own, member, rdma, gpu) {
            Ok((address, why)) if required.is_none_or(|required| required == path) => {
                let because = match required {
                    Some(_) => "it is required".into(),
                    None if passed_over.is_empty() => why.into(),
                    None => format!("{why}; {}", passed_over.join("; ")),
                };
                return Ok(TransportChoice { kind: path, address, reason: because });
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

/// Finds the address of `member` for a transport with the reason for it, or the reason against it.
fn way(
    path: TransportKind,
    own: &Host,
    member: &Member,
    rdma: &dyn Fn() -> Result<(), String>,
    gpu: &dyn Fn(&[u8; 16]) -> Result<(), String>,
) -> Result<(Address, &'static str), String> {
    let find =
        |wanted: fn(&Address) -> bool| member.addresses.iter().find(|address| wanted(address)).cloned();
    match path {
        TransportKind::Shm if !own.shares_memory_with(&member.host) && own.name == member.host.name => {
            Err(format!("two hosts are called {own}: they are not one host (kernel, network and user)"))
        }
        TransportKind::Shm if !own.shares_memory_with(&member.host) => {
            Err(format!("{own} and {} are not one host (kernel, network and user)", member.host))
        }
        TransportKind::Shm => {
            let address = find(|address| matches!(address, Address::Abstract(_) | Address::Path(_)));
            let address = address.ok_or("it listens at no socket")?;
            member.gpu.as_ref().map_or(Ok(()), gpu).map(|()| (address, "both are on one host"))
        }
        TransportKind::Verbs => {
            let address = find(|address| matches!(address, Address::Verbs(_)));
            let address = address.ok_or("it has no RDMA, or does not offer it")?;
            rdma().map(|()| (address, "both have RDMA"))
        }
        TransportKind::Tcp => {
            let address = find(|address| matches!(address, Address::Tcp(_)));
            let address = address.ok_or("it listens at no port")?;
            path.check_built().map_err(|error| error.to_string())?;
            Ok((address, "it listens at a port"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rendezvous::{MemberId, MemberRole};
    use super::*;

    fn no_rdma() -> Result<(), String> {
        Err("this host has no RDMA device".into())
    }

    fn no_gpu(_: &[u8; 16]) -> Result<(), String> {
        Err("its payloads are on a GPU that this process does not see".into())
    }

    fn member(host: &str, addresses: &[&str]) -> Member {
        Member {
            id: MemberId(1),
            role: MemberRole::Server,
            role_rank: 0,
            generation: 0,
            rank: None,
            host: Host::named(host),
            process: 1,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            gpu: None,
        }
    }

    #[test]
    fn the_best_way_is_chosen_and_says_why() {
        let near = member("here", &["10.0.0.1:7", "@x"]);
        let here = Host::named("here");
        let choice = choose(&here, &near, None, &no_rdma, &no_gpu).unwrap();
        assert_eq!((choice.kind, choice.address.to_string()), (TransportKind::Shm, "@x".into()));
        assert_eq!(choice.reason, "both are on one host");
        let choice = choose(&Host::named("there"), &near, None, &no_rdma, &no_gpu).unwrap();
        assert_eq!((choice.kind, choice.address.to_string()), (TransportKind::Tcp, "10.0.0.1:7".into()));
        assert!(choice.reason.contains("no shm: there and here are not one host"), "{}", choice.reason);
        assert!(choice.reason.contains("no verbs"), "{}", choice.reason);
    }

    #[test]
    fn rdma_is_taken_between_hosts_that_both_have_it_and_comes_before_tcp() {
        let far = member("there", &["10.0.0.1:7", "verbs:10.0.0.1:8", "@x"]);
        let here = Host::named("here");
        let choice = choose(&here, &far, None, &|| Ok(()), &no_gpu).unwrap();
        assert_eq!(
            (choice.kind, choice.address.to_string()),
            (TransportKind::Verbs, "verbs:10.0.0.1:8".into())
        );
        assert!(choice.reason.starts_with("both have RDMA; no shm:"), "{}", choice.reason);
        let choice = choose(&here, &far, None, &no_rdma, &no_gpu).unwrap();
        assert_eq!(choice.kind, TransportKind::Tcp);
        assert!(choice.reason.contains("no verbs: this host has no RDMA device"), "{}", choice.reason);
        let near =
            choose(&Host::named("there"), &far, Some(TransportKind::Verbs), &|| Ok(()), &no_gpu).unwrap();
        assert_eq!(near.kind, TransportKind::Verbs, "on one host, too, if it is required");
        let error =
            choose(&here, &far, Some(TransportKind::Verbs), &no_rdma, &no_gpu).unwrap_err().to_string();
        assert!(
            error.ends_with("over verbs, which is required: no verbs: this host has no RDMA device"),
            "{error}"
        );
        let asked = || -> Result<(), String> { panic!("asked in vain") };
        choose(&here, &member("there", &["10.0.0.1:7"]), None, &asked, &no_gpu).unwrap();
    }

    #[test]
    fn payloads_on_a_gpu_are_mapped_by_those_alone_that_see_it() {
        let served = Member { gpu: Some([7; 16]), ..member("here", &["10.0.0.1:7", "@x"]) };
        let here = Host::named("here");
        let choice = choose(&here, &served, None, &no_rdma, &no_gpu).unwrap();
        assert_eq!(choice.kind, TransportKind::Tcp);
        assert!(choice.reason.contains("no shm: its payloads are on a GPU"), "{}", choice.reason);
        let sees = |uuid: &[u8; 16]| (*uuid == [7; 16]).then_some(()).ok_or("another".into());
        let choice = choose(&here, &served, None, &no_rdma, &sees).unwrap();
        assert_eq!(choice.kind, TransportKind::Shm);
        let required = choose(&here, &served, Some(TransportKind::Shm), &no_rdma, &no_gpu);
        let error = required.unwrap_err().to_string();
        assert!(error.contains("over shm, which is required: no shm: its payloads are on a GPU"), "{error}");
    }

    #[test]
    fn what_is_required_is_taken_or_is_an_error() {
        let near = member("here", &["10.0.0.1:7", "@x"]);
        let here = Host::named("here");
        assert_eq!(
            choose(&here, &near, Some(TransportKind::Tcp), &no_rdma, &no_gpu).unwrap().kind,
            TransportKind::Tcp
        );
        let error = choose(&Host::named("there"), &near, Some(TransportKind::Shm), &no_rdma, &no_gpu)
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot reach the server 0 on here over shm, which is required"), "{error}");
        let error =
            choose(&here, &near, Some(TransportKind::Verbs), &no_rdma, &no_gpu).unwrap_err().to_string();
        assert!(error.contains("over verbs, which is required: no verbs: it has no RDMA"), "{error}");
        let error = choose(&Host::named("there"), &member("here", &["@x"]), None, &no_rdma, &no_gpu)
            .unwrap_err()
            .to_string();
        assert!(error.contains("at all") && error.contains("it listens at no port"), "{error}");
    }
}
