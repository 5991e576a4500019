//! Waking a process that sleeps: WRITEs with immediate data.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slackline::internals::mem::{Access, RemoteSlice};
use slackline::internals::transport::{Endpoint, Flags, Inline, Listener, Operation, WorkRequest};

use super::ends::prove;
use super::objects::objects;
use super::target::{Client, Target};
use crate::VerbsFixture;
use crate::transport::fixture::{EndpointOf, PATIENCE, completion, now, wait_for, wait_until_gone};

type Sleeper = Target<VerbsFixture>;

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// More than are noticed of one peer before it is told that there is room again.
const MANY: u64 = 2000;

/// Time for which a process sleeps that is not woken.
const NAP: Duration = Duration::from_millis(400);

fn sleeper() -> Sleeper {
    let mut target = Sleeper::new(4096, ALL);
    assert!(target.listener.be_notified().expect("a completion channel"), "RDMA can");
    target
}

/// Writes the word and waits until that is complete.
fn write(endpoint: &mut EndpointOf<VerbsFixture>, remote: RemoteSlice, word: u64, flags: Flags) {
    let remote = remote.slice(0, 8).unwrap();
    let operation = Operation::WriteInline { data: Inline::word(word), remote };
    let mut request = WorkRequest::signalled(word, operation);
    request.flags |= flags;
    endpoint.post(&[request]).unwrap();
    assert_eq!(completion(endpoint).result, Ok(()));
}

/// Sleeps until the listener is woken or `at_most` is over, and returns how long that took.
fn sleep(target: &mut Sleeper, at_most: Duration) -> Duration {
    let begun = Instant::now();
    target.listener.wait(at_most);
    begun.elapsed()
}

/// Sleeps until nothing is left that would end a sleep at once.
fn settle(target: &mut Sleeper) {
    wait_for("a whole nap", || (sleep(target, NAP) >= NAP).then_some(()));
}

#[test]
fn who_sleeps_is_woken_by_a_write_that_is_to_be_noticed_and_by_no_other() {
    let mut target = sleeper();
    let Client { mut endpoint, remote, server: _server } = target.client();
    settle(&mut target);
    write(&mut endpoint, remote, 1, Flags::empty());
    assert!(sleep(&mut target, NAP) >= NAP, "a plain write wakes no process");
    assert_eq!(target.region.as_volatile().load_u64(0), 1);
    write(&mut endpoint, remote, 2, Flags::NOTIFY);
    assert!(sleep(&mut target, PATIENCE) < PATIENCE, "what came before it ends it at once");
    settle(&mut target);
    let writing = std::thread::spawn(move || {
        std::thread::sleep(NAP);
        write(&mut endpoint, remote, 3, Flags::NOTIFY);
        endpoint
    });
    while target.region.as_volatile().load_u64(0) != 3 {
        assert!(sleep(&mut target, PATIENCE) < PATIENCE, "it was not woken");
    }
    writing.join().unwrap();
}

#[test]
fn no_notice_is_lost_between_the_last_look_and_the_sleep() {
    const ROUNDS: u64 = 3000;
    let mut target = sleeper();
    let Client { mut endpoint, remote, mut server } = target.client();
    let seen = std::sync::Arc::new(AtomicU64::new(0));
    let acknowledged = std::sync::Arc::clone(&seen);
    let writing = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            // The second one at every moment of the other's way back into its sleep, which has to ask again for it.
            write(&mut endpoint, remote, 2 * round - 1, Flags::NOTIFY);
            for _ in 0..round % 101 * 10 {
                std::hint::spin_loop();
            }
            write(&mut endpoint, remote, 2 * round, Flags::NOTIFY);
            endpoint.check().unwrap();
            wait_for("the words to be seen", || {
                (acknowledged.load(Ordering::Acquire) == round).then_some(())
            });
        }
        endpoint
    });
    for round in 1..=ROUNDS {
        while target.region.as_volatile().load_u64(0) < 2 * round {
            assert!(sleep(&mut target, PATIENCE / 2) < PATIENCE / 2, "it was not woken in round {round}");
        }
        seen.store(round, Ordering::Release);
        server.check().unwrap();
    }
    writing.join().unwrap();
}

#[test]
fn a_newcomer_wakes_who_sleeps() {
    let mut target = sleeper();
    let slackline::Address::Verbs(address) = target.listener.address() else { panic!("an address") };
    let knocking = std::thread::spawn(move || {
        std::thread::sleep(NAP);
        std::net::TcpStream::connect(address).unwrap()
    });
    assert!(sleep(&mut target, PATIENCE) < PATIENCE, "it was not woken");
    knocking.join().unwrap();
}

#[test]
fn writes_past_the_room_for_notice_arrive_unnoticed_until_there_is_room() {
    let mut target = sleeper();
    let Client { mut endpoint, remote, mut server } = target.client();
    for word in 1..=MANY {
        write(&mut endpoint, remote, word, Flags::NOTIFY);
    }
    prove(&target.transport, &mut endpoint, remote);
    assert_eq!(target.region.as_volatile().load_u64(0), MANY);
    settle(&mut target);
    let mut word = MANY;
    wait_for("notice again", || {
        server.check().unwrap();
        endpoint.check().unwrap();
        word += 1;
        write(&mut endpoint, remote, word, Flags::NOTIFY);
        (sleep(&mut target, NAP) < NAP).then_some(())
    });
}

#[test]
fn a_peer_that_breaks_the_rules_takes_no_notice_from_the_others() {
    let mut target = sleeper();
    let (mut honest, mut offender) = (target.client(), target.client());
    let beyond = RemoteSlice { offset: 1 << 40, len: 8, ..offender.remote };
    let mut request =
        WorkRequest::signalled(1, Operation::WriteInline { data: Inline::word(9), remote: beyond });
    request.flags |= Flags::NOTIFY;
    offender.endpoint.post(&[request]).unwrap();
    wait_until_gone(&mut offender.server);
    drop(offender);
    settle(&mut target);
    for word in 1..=16 {
        write(&mut honest.endpoint, honest.remote, word, Flags::NOTIFY);
        assert!(sleep(&mut target, PATIENCE) < PATIENCE, "word {word} was not noticed");
    }
}

#[test]
fn nothing_of_the_device_stays_behind_of_those_who_wake_somebody() {
    let count = || objects(&mut Command::new("rdma"));
    let before = count();
    let mut target = sleeper();
    drop(target.client());
    let during = count();
    for _ in 0..20 {
        let Client { mut endpoint, remote, server } = target.client();
        write(&mut endpoint, remote, 1, Flags::NOTIFY);
        // Either may go first, and a notice that no process has taken goes with them.
        drop(server);
        drop(endpoint);
        assert!(target.listener.poll(now()).is_none());
    }
    wait_for("all but the target to be given back", || (count() == during).then_some(()));
    drop(target);
    wait_for("all to be given back", || (count() == before).then_some(()));
}
