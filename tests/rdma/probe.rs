//! Atomics that a device says it has, and that fail when they are tried.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use slackline::internals::mem::Access;
use slackline::internals::transport::{
    AtomicDomain, CompletionError, Endpoint, Inline, Offer, Operation, PostError, WorkRequest,
};
use slackline::{Transport, VerbsOptions};

use super::ends::{Pair, connect, prove};
use super::log::Log;
use super::sides;
use crate::VerbsFixture;
use crate::transport::fixture::{bytes_of, noise, read, run, write};

const BYTES: usize = 4096;

/// Until this is dropped, the limit on locked memory holds for this thread, even if it is root's. What it opens must be
/// gone by then: the kernel lets no process use a device with other rights than those with which it was opened.
struct Unprivileged(CapabilitySets);

impl Unprivileged {
    fn new() -> Unprivileged {
        let before = capabilities(None).unwrap();
        let effective = before.effective.difference(CapabilitySet::IPC_LOCK);
        set_capabilities(None, CapabilitySets { effective, ..before }).unwrap();
        Unprivileged(before)
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        set_capabilities(None, self.0).unwrap();
    }
}

/// Until this is dropped no memory can be locked, and so none registered.
struct Unlockable(Rlimit);

impl Unlockable {
    fn new() -> Unlockable {
        let before = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current: Some(0), ..before }).unwrap();
        Unlockable(before)
    }
}

impl Drop for Unlockable {
    fn drop(&mut self) {
        setrlimit(Resource::Memlock, self.0).unwrap();
    }
}

#[test]
fn where_trying_atomics_fails_there_are_none_and_all_else_works() {
    let (log, _unprivileged) = (Log::of_this_thread(), Unprivileged::new());
    let unlockable = Unlockable::new();
    let verbs = sides::open(VerbsOptions::default());
    drop(unlockable);
    if verbs.info().limits.atomics == AtomicDomain::None {
        // There is nothing to try.
        return;
    }
    assert_eq!(verbs.capabilities().atomics, AtomicDomain::None);
    let fault = verbs.atomics_fault().expect("what happened");
    let warnings = log.with("atomics of this device do not work");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(verbs.device()) && warnings[0].contains(fault), "{warnings:?}");

    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let (region, local) =
        (verbs.allocate(BYTES, all).unwrap(), verbs.allocate(BYTES, Access::LOCAL).unwrap());
    let mut listener = verbs.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let mut pair: Pair<VerbsFixture> = connect(&verbs, &mut listener, Offer::default(), offer);
    let remote = pair.at_client.grants[0];
    let (old, word) = (local.slice(0, 8).unwrap(), remote.slice(0, 8).unwrap());
    for atomic in [
        Operation::FetchAdd { local: old.clone(), remote: word, add: 1 },
        Operation::CompareSwap { local: old, remote: word, compare: 0, swap: 1 },
    ] {
        let before = Operation::WriteInline { data: Inline::word(7), remote: word };
        let batch = [WorkRequest::signalled(1, before), WorkRequest::signalled(2, atomic)];
        let error = pair.client.post(&batch).unwrap_err();
        assert!(matches!(error, PostError::Malformed { index: 1, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("no atomics that work; ask Transport::capabilities first"), "{text}");
    }
    assert_eq!(pair.client.poll(), None, "nothing of the batches was posted");
    assert_eq!(region.as_volatile().load_u64(0), 0);

    let new = noise(1, BYTES);
    local.as_volatile().write(&new);
    run(&mut pair.client, write(local.whole(), remote)).unwrap();
    prove(&verbs, &mut pair.client, remote);
    assert!(bytes_of(&region.whole()) == new);
    region.as_volatile().write(&noise(2, BYTES));
    run(&mut pair.client, read(local.whole(), remote)).unwrap();
    assert!(bytes_of(&local.whole()) == noise(2, BYTES));
    assert_eq!((pair.client.check(), pair.server.check()), (Ok(()), Ok(())));

    // A peer whose own atomics work is refused: it is unknown what this side's device would do with them.
    let other = sides::open(VerbsOptions::default());
    assert_ne!(other.capabilities().atomics, AtomicDomain::None);
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let mut pair: Pair<VerbsFixture> = connect(&other, &mut listener, Offer::default(), offer);
    let word = pair.at_client.grants[0].slice(0, 8).unwrap();
    run(&mut pair.client, Operation::WriteInline { data: Inline::word(7), remote: word }).unwrap();
    let old = other.allocate(8, Access::LOCAL).unwrap().slice(0, 8).unwrap();
    let result = run(&mut pair.client, Operation::FetchAdd { local: old, remote: word, add: 1 });
    assert_eq!(result, Err(CompletionError::RemoteAccess));
    assert_eq!(region.as_volatile().load_u64(0), 7);
}
