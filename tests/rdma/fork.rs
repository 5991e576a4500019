//! Forked children, which inherit memory that a device reads and writes, and the device's file.
#![allow(unsafe_code)]

use slackline::Transport;
use slackline::internals::mem::{Access, RemoteSlice};
use slackline::internals::transport::{Endpoint, Inline, Listener, Offer, Operation, PostError, WorkRequest};

use super::ends::prove;
use super::target::{Client, Target};
use crate::VerbsFixture;
use crate::transport::fixture::{Fixture, bytes_of, completion, noise, now, read, run, wait_for, write};

/// Far more than one page, and some milliseconds of the device's time.
const BYTES: usize = 1 << 20;

/// Everything of the device that a connection needs, dropped in the child in an order that asks every guard.
struct Inherited {
    client: Client<VerbsFixture>,
    target: Target<VerbsFixture>,
    local: slackline::internals::mem::LocalSlice,
}

/// The process id of a new child, or none in it.
fn fork() -> Option<libc::pid_t> {
    // SAFETY: rig and harness run one test at a time, so the only other thread is the harness's, if any, which waits
    // and holds no lock that the child takes; the child leaves by `leave`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    (pid > 0).then_some(pid)
}

/// Ends a child, with the number of the first claim that did not hold there, counted from 1.
fn leave(claims: &[bool]) -> ! {
    let failed = claims.iter().position(|holds| !holds).map_or(0, |index| index + 1);
    // SAFETY: ends this process without running what belongs to its parent.
    unsafe { libc::_exit(failed as i32) }
}

/// Waits for a child, all of whose claims must hold.
fn wait(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the pid is that of our child; `status` is live.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child ended by {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the claim that did not hold in the child");
}

fn word(value: u64, remote: RemoteSlice) -> Operation {
    Operation::WriteInline { data: Inline::word(value), remote: remote.slice(0, 8).unwrap() }
}

/// Claims that what was inherited is dead here.
fn claims(inherited: &mut Inherited) -> Vec<bool> {
    let Inherited { client: Client { endpoint, remote, server }, target, local } = inherited;
    let is_inherited = |said: &dyn std::fmt::Display| said.to_string().contains("forked");
    let posted = endpoint.post(&[WorkRequest::signalled(9, write(local.clone(), *remote))]);
    let address = target.listener.address();
    vec![
        matches!(&posted, Err(error @ PostError::Disconnected(_)) if is_inherited(error)),
        endpoint.poll().is_none(),
        endpoint.check().is_err_and(|error| is_inherited(&error)),
        server.check().is_err_and(|error| is_inherited(&error)),
        endpoint.heartbeat_word(&remote.slice(0, 8).unwrap()).is_err(),
        target.listener.poll(now()).is_none(),
        target.transport.allocate(4096, Access::LOCAL).is_err_and(|error| is_inherited(&error)),
        target.transport.listen(&VerbsFixture::address()).is_err_and(|error| is_inherited(&error)),
        target.transport.connect(&address, Offer::default()).is_err_and(|error| is_inherited(&error)),
    ]
}

#[test]
fn a_forked_child_neither_changes_nor_ends_what_its_parent_does_by_rdma() {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mut target = Target::<VerbsFixture>::new(BYTES, access);
    let client = target.client();
    let local = target.local(&noise(1, BYTES));
    let mut inherited = Inherited { client, target, local };
    let Inherited { client: Client { endpoint, remote, .. }, local, .. } = &mut inherited;
    let remote = *remote;
    // The device reads and writes while the process forks.
    endpoint.post(&[WorkRequest::signalled(1, write(local.clone(), remote))]).unwrap();
    let Some(pid) = fork() else {
        // Its copies: of what is to be sent, and of what was granted.
        inherited.local.as_volatile().write(&noise(666, BYTES));
        inherited.target.region.as_volatile().write(&noise(667, BYTES));
        let claims = claims(&mut inherited);
        let Inherited { client: Client { endpoint, server, .. }, target, local } = inherited;
        drop((endpoint, server, target, local));
        leave(&claims);
    };
    let Inherited { client: Client { endpoint, server, .. }, target, local } = &mut inherited;
    let done = completion(endpoint);
    assert_eq!((done.id.0, done.result), (1, Ok(())));
    prove(&target.transport, endpoint, remote);
    assert!(
        bytes_of(&target.region.whole()) == noise(1, BYTES),
        "what was under way, and nothing of the child"
    );
    wait(pid);

    // What the parent writes from here on is what the device reads, and what it writes the parent sees.
    endpoint.check().unwrap();
    server.check().unwrap();
    for seed in 2..4 {
        local.as_volatile().write(&noise(seed, BYTES));
        run(endpoint, write(local.clone(), remote)).unwrap();
        prove(&target.transport, endpoint, remote);
        assert!(bytes_of(&target.region.whole()) == noise(seed, BYTES), "the parent's bytes arrive");
        target.region.as_volatile().write(&noise(seed + 10, BYTES));
        run(endpoint, read(local.clone(), remote)).unwrap();
        assert!(bytes_of(local) == noise(seed + 10, BYTES), "a peer sees the parent's bytes");
    }
    let mut heartbeat_word = endpoint.heartbeat_word(&remote.slice(0, 8).unwrap()).unwrap();
    heartbeat_word.set(6).unwrap();
    wait_for("the heartbeat word", || (target.region.as_volatile().load_u64(0) == 6).then_some(()));
    // The device itself, the domain of local memory and the listener are whole.
    let Client { endpoint: mut other, remote, server: _server } = target.client();
    run(&mut other, word(7, remote)).unwrap();
    prove(&target.transport, &mut other, remote);
    assert_eq!(target.region.as_volatile().load_u64(0), 7);
}

#[test]
fn a_forked_child_opens_the_device_itself_and_talks_to_its_parent() {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mut target = Target::<VerbsFixture>::new(4096, access);
    let address = target.listener.address();
    let Some(pid) = fork() else {
        let own = VerbsFixture::transport();
        let (mut endpoint, received) = crate::transport::process::connect_to::<VerbsFixture>(&own, &address);
        let written = run(&mut endpoint, word(8, received.grants[0]));
        // The parent looks once this process has ended.
        prove(&own, &mut endpoint, received.grants[0]);
        leave(&[written.is_ok()]);
    };
    let offer = Offer { message: Vec::new(), grants: vec![target.region.whole()] };
    let _server = super::target::accept::<VerbsFixture>(&mut target.listener, offer);
    wait(pid);
    assert_eq!(target.region.as_volatile().load_u64(0), 8);
}
