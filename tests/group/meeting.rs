//! The meeting of members, and the newcomers that are refused.

use std::time::Duration;

use slackline::group::{GroupError, GroupListener, GroupMember, GroupOptions};
use slackline::internals::param::{PeerHello, PeerRole};
use slackline::internals::transport::Listener;
use slackline::{ConnectError, Error, Transport};

use super::fixture::{Fixture, PATIENCE, assert_mean, fill, listen, meet, turn, wait_for};
use super::raw::{answer, hello, patient, say};

const ELEMENTS: usize = 5000;

pub(crate) fn members_start_in_any_order<F: Fixture>() {
    // The highest rank dials all others, long before those look whether a connection is pending.
    let listeners: Vec<_> =
        (0..3).map(|rank| listen::<F>(rank, 3, ELEMENTS, GroupOptions::default())).collect();
    let addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    std::thread::scope(|scope| {
        let addresses = &addresses;
        for (turn, listener) in listeners.into_iter().rev().enumerate() {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(40) * turn as u32);
                let mut member = listener.connect(addresses, PATIENCE).unwrap();
                fill::<F>(&mut member);
                assert_eq!(member.average(0, &[0, 1, 2], PATIENCE).unwrap().members, 3);
                assert_mean(member.parameters().unwrap(), &[0, 1, 2]);
            });
        }
    });
}

pub(crate) fn who_does_not_come_is_named_at_the_deadline<F: Fixture>() {
    let listeners: Vec<_> =
        (0..3).map(|rank| listen::<F>(rank, 3, ELEMENTS, GroupOptions::default())).collect();
    let addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    let mut listeners = listeners.into_iter();
    let (_silent, second) = (listeners.next().unwrap(), listeners.next().unwrap());
    match second.connect(&addresses, Duration::from_millis(50)) {
        Err(Error::Group(GroupError::Absent { ranks, .. })) => assert_eq!(ranks, [0, 2]),
        other => panic!("{:?}", other.err()),
    }
}

/// Returns the reason for which `message` is refused.
fn refusal<F: Fixture>(address: &slackline::Address, message: Vec<u8>, elements: usize) -> String {
    let layout = slackline::internals::param::GroupLayout { elements: elements as u64 };
    match say::<F>(&F::transport(), address, message, layout) {
        Err(ConnectError::Refused { reason, .. }) => reason,
        other => panic!("{:?}", other.err()),
    }
}

pub(crate) fn unauthenticated_peers_are_told_why_and_others_meet<F: Fixture>() {
    let listeners: Vec<_> =
        (0..2).map(|rank| listen::<F>(rank, 2, ELEMENTS, GroupOptions::default())).collect();
    let addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    let right = hello(1, 2, ELEMENTS, GroupOptions::default());
    let mut listeners = listeners.into_iter();
    let (first, second) = (listeners.next().unwrap(), listeners.next().unwrap());
    std::thread::scope(|scope| {
        let addresses = &addresses;
        let connect = |listener: GroupListener<F::Transport>| {
            scope.spawn(move || {
                let mut member = listener.connect(addresses, PATIENCE).unwrap();
                assert_eq!(member.average(0, &[0, 1], PATIENCE).unwrap().members, 2);
            })
        };
        let first = connect(first);
        let run = GroupOptions { run: 9, ..GroupOptions::default() };
        let lease = GroupOptions { lease: Duration::from_secs(9), ..GroupOptions::default() };
        for (message, elements, word) in [
            (hello(1, 2, ELEMENTS, run).encode(), ELEMENTS, "run"),
            (
                hello(1, 2, ELEMENTS + 1, GroupOptions::default()).encode(),
                ELEMENTS + 1,
                "number of parameters",
            ),
            (hello(1, 3, ELEMENTS, GroupOptions::default()).encode(), ELEMENTS, "number of members"),
            (hello(0, 2, ELEMENTS, GroupOptions::default()).encode(), ELEMENTS, "rank 0"),
            (hello(1, 2, ELEMENTS, lease).encode(), ELEMENTS, "lease"),
            (right.encode(), ELEMENTS / 2, "too short"),
            (b"who knows".repeat(4), ELEMENTS, "not slackline's"),
            (PeerHello::from(PeerRole::Reader).encode(), ELEMENTS, "damaged"),
        ] {
            let reason = refusal::<F>(&addresses[0], message, elements);
            assert!(reason.contains(word), "{reason}");
        }
        let second = connect(second);
        first.join().unwrap();
        second.join().unwrap();
    });
}

pub(crate) fn who_claims_a_rank_that_is_taken_gets_it_as_soon_as_its_holder_is_gone<F: Fixture>() {
    let options = patient();
    let listener = listen::<F>(0, 3, ELEMENTS, options);
    let addresses = [listener.address(), F::address(1), F::address(2)];
    let transport = F::transport();
    let claim = |rank| {
        let hello = hello(rank, 3, ELEMENTS, options);
        say::<F>(&transport, &addresses[0], hello.encode(), hello.layout)
    };
    std::thread::scope(|scope| {
        let meeting = scope.spawn(|| listener.connect(&addresses, PATIENCE).unwrap());
        let holder = claim(1).unwrap();
        let successor = scope.spawn(|| claim(1));
        // It has been heard, most likely, while the holder was there.
        std::thread::sleep(Duration::from_millis(50));
        drop(holder);
        let _successor = successor.join().unwrap().unwrap();
        let _last = claim(2).unwrap();
        meeting.join().unwrap();
    });
}

pub(crate) fn who_claims_a_rank_whose_holder_lives_is_told_so_after_a_lease<F: Fixture>() {
    let options = GroupOptions { lease: Duration::from_millis(300), ..GroupOptions::default() };
    let listeners: Vec<_> = (0..2).map(|rank| listen::<F>(rank, 3, ELEMENTS, options)).collect();
    let mut addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    addresses.push(F::address(2));
    let transport = F::transport();
    let claim = |rank: usize, to: usize| {
        let hello = hello(rank, 3, ELEMENTS, options);
        say::<F>(&transport, &addresses[to], hello.encode(), hello.layout)
    };
    std::thread::scope(|scope| {
        let addresses = &addresses;
        let connect = |listener: GroupListener<F::Transport>| {
            scope.spawn(move || listener.connect(addresses, PATIENCE).unwrap())
        };
        let meeting: Vec<_> = listeners.into_iter().map(connect).collect();
        let reason = wait_for("the second member to be there", || match claim(1, 0) {
            // It is not there yet, and will find the rank free.
            Ok(_) => None,
            Err(ConnectError::Refused { reason, .. }) => Some(reason),
            Err(error) => panic!("{error}"),
        });
        assert!(reason.contains("rank 1 is taken"), "{reason}");
        let _third = [0, 1].map(|to| claim(2, to).unwrap());
        let _members: Vec<_> = meeting.into_iter().map(|member| member.join().unwrap()).collect();
    });
}

pub(crate) fn a_member_that_is_started_again_before_all_are_there_is_dialled_again<F: Fixture>() {
    let options = patient();
    let first = F::transport().listen(&F::address(0)).unwrap();
    let listeners = [1, 2].map(|rank| listen::<F>(rank, 3, ELEMENTS, options));
    let mut addresses = vec![first.address()];
    addresses.extend(listeners.iter().map(GroupListener::address));
    let [second, third] = listeners;
    std::thread::scope(|scope| {
        let addresses = &addresses;
        let connect = |listener: GroupListener<F::Transport>| {
            scope.spawn(move || listener.connect(addresses, PATIENCE).unwrap())
        };
        let second = connect(second);
        // The first incarnation of rank 0 takes rank 1 in and ends. Rank 1 looks every 20 ms whether it is there.
        let met = answer::<F>(first, hello(0, 3, ELEMENTS, options));
        std::thread::sleep(Duration::from_millis(100));
        drop(met);
        std::thread::sleep(Duration::from_millis(100));
        let again = GroupMember::listen(F::transport(), &addresses[0], 0, 3, ELEMENTS, options).unwrap();
        let _members = [connect(again), second, connect(third)].map(|member| member.join().unwrap());
    });
}

pub(crate) fn a_group_that_has_begun_takes_nobody_in<F: Fixture>() {
    let listener = listen::<F>(0, 1, ELEMENTS, GroupOptions::default());
    let address = listener.address();
    let mut alone = listener.connect(std::slice::from_ref(&address), PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let message = hello(1, 2, ELEMENTS, GroupOptions::default()).encode();
        let unauthenticated_peer = scope.spawn(|| refusal::<F>(&address, message, ELEMENTS));
        while !unauthenticated_peer.is_finished() {
            turn::<F>(&mut alone).unwrap();
        }
        let reason = unauthenticated_peer.join().unwrap();
        assert!(reason.contains("takes no member in"), "{reason}");
    });
    drop(meet::<F>(2, ELEMENTS, GroupOptions::default()));
}
