//! How members meet, and who is turned away.

use std::time::Duration;

use slackline::Error;
use slackline::node::{GroupError, GroupListener, GroupOptions};
use slackline::param::{Hello, Role};
use slackline::transport::ConnectError;

use super::fixture::{Fixture, PATIENCE, assert_mean, fill, listen, meet, turn};
use super::raw::{hello, say};

const ELEMENTS: usize = 5000;

pub(crate) fn members_start_in_any_order<F: Fixture>() {
    // The highest rank dials everybody, long before the others look whether somebody is there.
    let listeners: Vec<_> =
        (0..3).map(|rank| listen::<F>(rank, 3, ELEMENTS, GroupOptions::default())).collect();
    let addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    std::thread::scope(|scope| {
        let addresses = &addresses;
        for (turn, listener) in listeners.into_iter().rev().enumerate() {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(40) * turn as u32);
                let mut member = listener.connect(addresses, PATIENCE).unwrap();
                assert_eq!(member.transports().count(), 2);
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

/// What `said` is answered with.
fn refusal<F: Fixture>(address: &slackline::transport::Address, message: Vec<u8>, elements: usize) -> String {
    let layout = slackline::param::GroupLayout { elements: elements as u64 };
    match say::<F>(&F::transport(), address, message, layout) {
        Err(ConnectError::Refused { reason, .. }) => reason,
        other => panic!("{:?}", other.err()),
    }
}

pub(crate) fn strangers_are_told_why_they_are_turned_away_while_others_meet<F: Fixture>() {
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
            (Hello { role: Role::Reader, push: None, resume: None }.encode(), ELEMENTS, "damaged"),
        ] {
            let reason = refusal::<F>(&addresses[0], message, elements);
            assert!(reason.contains(word), "{reason}");
        }
        let second = connect(second);
        first.join().unwrap();
        second.join().unwrap();
    });
}

pub(crate) fn a_group_that_has_begun_takes_nobody_in<F: Fixture>() {
    let listener = listen::<F>(0, 1, ELEMENTS, GroupOptions::default());
    let address = listener.address();
    let mut alone = listener.connect(std::slice::from_ref(&address), PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let message = hello(1, 2, ELEMENTS, GroupOptions::default()).encode();
        let stranger = scope.spawn(|| refusal::<F>(&address, message, ELEMENTS));
        while !stranger.is_finished() {
            turn::<F>(&mut alone).unwrap();
        }
        let reason = stranger.join().unwrap();
        assert!(reason.contains("takes nobody in"), "{reason}");
    });
    drop(meet::<F>(2, ELEMENTS, GroupOptions::default()));
}
