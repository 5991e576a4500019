//! Connections that are made while rails are down, and leave these rails out.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::tests::connect_to;
use super::lost_rails::{Scene, WORDS};
use super::*;
use crate::diagnostic::Diagnostic;
use crate::mem::{Access, MemoryRegion};
use crate::transport::verbs::VerbsListener;
use crate::transport::{
    Address, CompletionError, ConnectError, Connecting, Endpoint, Flags, Incoming, Inline, Listener, Offer,
    Operation, PostError, Transport, WorkRequest,
};

/// The transport over three ports of the device, from this one on.
fn verbs_from(device: &Unordered, first_port: u8) -> Verbs {
    device.verbs_on(false, first_port, &[1; 3], 8, None)
}

fn listen(verbs: &Verbs) -> VerbsListener {
    verbs.listen(&Address::Verbs(([127, 0, 0, 1], 0).into())).unwrap()
}

fn offer(region: &MemoryRegion) -> Offer {
    Offer { message: Vec::new(), grants: vec![region.whole()] }
}

/// Posts a write of the first word of the peer's grant, and returns its result.
fn post_word(
    device: &Unordered,
    poster: &mut impl Endpoint,
    remote: crate::mem::RemoteSlice,
    value: u64,
) -> Result<(), CompletionError> {
    let write = Operation::WriteInline { data: Inline::word(value), remote: remote.slice(0, 8).unwrap() };
    let mut request = WorkRequest::signalled(value, write);
    request.flags |= Flags::NOTIFY;
    poster.post(&[request]).unwrap();
    let completion = loop {
        device.step();
        if let Some(completion) = poster.poll() {
            break completion;
        }
    };
    while device.step() {}
    completion.result
}

/// Sets the first word of the peer's grant.
fn set_word(device: &Unordered, poster: &mut impl Endpoint, remote: crate::mem::RemoteSlice, value: u64) {
    assert_eq!(post_word(device, poster, remote, value), Ok(()));
}

/// Both sides' errors for a connection that is refused.
fn refused(from: &Verbs, listener: &mut VerbsListener, region: &MemoryRegion) -> [ConnectError; 2] {
    let mut connecting = from.connect(&listener.address(), offer(region)).unwrap();
    let (begun, mut at_listener) = (Instant::now(), None);
    loop {
        let now = crate::time::Instant::from_nanos(begun.elapsed().as_nanos() as u64);
        if let Some(mut incoming) = listener.poll(now) {
            incoming.prepare(&[region.whole()]);
            at_listener = incoming.accept(offer(region)).err();
        }
        if let Poll::Ready(connected) = connecting.poll(now) {
            return [connected.err().expect("it is refused"), at_listener.expect("it refuses")];
        }
        assert!(begun.elapsed().as_secs() < 60, "waited in vain for a refusal");
    }
}

#[test]
fn a_connection_is_over_the_rails_that_are_up_on_both_sides() {
    for tells in [false, true] {
        let device = Unordered::new(0, false);
        let (from, to) = (verbs_from(&device, 1), verbs_from(&device, 4));
        let mut listener = listen(&to);
        let region = to.allocate(64, WORDS).unwrap();
        let mut connect = || {
            let ([mut poster, target], [granted, _]) =
                connect_to(&from, &mut listener, || offer(&region), Vec::new());
            let ports = device.used_ports();
            set_word(&device, &mut poster, granted[0], u64::from(ports.iter().sum::<u8>()));
            assert_eq!(region.as_volatile().load_u64(0), u64::from(ports.iter().sum::<u8>()));
            drop((poster, target));
            ports
        };
        assert_eq!(connect(), HashSet::from([1, 2, 3, 4, 5, 6]));
        // The connector's first port, and the listener's second.
        for port in [1, 5] {
            device.take_down(port);
            if tells {
                device.tell_of_port(sys::IBV_EVENT_PORT_ERR, port);
            }
        }
        assert_eq!(connect(), HashSet::from([3, 6]));
        device.bring_up(5);
        assert_eq!(connect(), HashSet::from([2, 3, 5, 6]));
        device.bring_up(1);
        assert_eq!(connect(), HashSet::from([1, 2, 3, 4, 5, 6]));
    }
}

#[test]
fn without_a_rail_that_both_sides_have_up_a_connection_is_refused_for_now() {
    let device = Unordered::new(0, false);
    let (from, to) = (verbs_from(&device, 1), verbs_from(&device, 4));
    let mut listener = listen(&to);
    let region = to.allocate(64, WORDS).unwrap();
    [1, 5, 6].iter().for_each(|port| device.take_down(*port));
    let [client, server] = refused(&from, &mut listener, &region);
    assert!(matches!(client, ConnectError::NoPath { retry_after: Some(_), .. }), "{client}");
    assert!(server.to_string().contains("port 5 of the RDMA device unordered0 is down"), "{server}");

    // A listener with only its first device.
    let mut alone = listen(&device.verbs_on(false, 7, &[1], 8, None));
    let [client, server] = refused(&from, &mut alone, &region);
    assert!(matches!(client, ConnectError::NoPath { retry_after: Some(_), .. }), "{client}");
    assert!(server.to_string().contains("none has its link up on both"), "{server}");

    [2, 3].iter().for_each(|port| device.take_down(*port));
    let error = from.connect(&listener.address(), offer(&region)).err().expect("all of its ports are down");
    assert!(error.to_string().contains("port 1 of the RDMA device unordered0 is down"), "{error}");
    assert!(error.is_retryable());
}

#[test]
fn whichever_rail_leads_the_others_may_be_lost() {
    for seed in 0..8 {
        let device = Unordered::new(seed, false);
        let verbs = verbs_from(&device, 1);
        device.take_down(1);
        let mut scene = Scene::with_page(device, verbs, WORDS);
        scene.round(1);
        assert_eq!(scene.device.used_ports(), HashSet::from([2, 3]));
        let word = scene.granted[0].slice(64, 8).unwrap();
        scene.poster.heartbeat_word(&word).unwrap().set(7).unwrap();
        while scene.regions[0].as_volatile().load_u64(64) != 7 {
            scene.step(1);
        }
        scene.device.cut(3);
        (2..4).for_each(|round| scene.round(round));
        scene.wait_for_losses(1);
        assert_eq!(scene.device.used_ports(), HashSet::from([2]));
        // The loss of the leading rail ends the connection.
        scene.device.cut(2);
        assert!(scene.carry_out(scene.word(4), 4).is_err());
    }
}

/// The same scene with a new connection.
fn again(scene: Scene) -> Scene {
    let Scene { device, verbs, poster, target, .. } = scene;
    drop((poster, target));
    Scene::with_page(device, verbs, WORDS)
}

#[test]
fn a_connection_that_is_made_again_goes_on_over_the_rails_that_are_left() {
    let device = Unordered::new(0, false);
    let verbs = device.verbs_over(2, 8, None);
    let mut scene = Scene::with_page(device, verbs, WORDS);
    scene.round(1);
    scene.device.take_down(1);
    assert!(scene.carry_out(scene.word(2), 2).is_err());
    assert!(scene.poster.check().is_err());
    let mut scene = again(scene);
    assert_eq!(scene.device.used_ports(), HashSet::from([2]));
    (1..4).for_each(|round| scene.round(round));
    scene.device.bring_up(1);
    let mut scene = again(scene);
    assert_eq!(scene.device.used_ports(), HashSet::from([1, 2]));
    (1..4).for_each(|round| scene.round(round));
}

/// The port of this side is up all the time, so that only the requests show the fault. Either side may have posted
/// them: a connector knows the path by the address to which it connects, a listener by the address of the peer's
/// port.
#[test]
fn a_rail_on_which_the_peer_does_not_answer_is_left_out_next_time() {
    for poster in [0, 1] {
        let device = Unordered::new(0, false);
        let (from, to) = (verbs_from(&device, 1), verbs_from(&device, 4));
        let mut listener = listen(&to);
        let region = to.allocate(64, WORDS).unwrap();
        let connect =
            |listener: &mut VerbsListener| connect_to(&from, listener, || offer(&region), Vec::new());
        let (mut ends, granted) = connect(&mut listener);
        device.cut([1, 4][poster]);
        let told = post_word(&device, &mut ends[poster], granted[poster][0], 1);
        assert_eq!(told, Err(CompletionError::Unreachable));
        drop(ends);

        let (mut ends, granted) = connect(&mut listener);
        let ports = device.used_ports();
        assert!(!ports.contains(&1), "it goes over the rail on which the peer did not answer");
        assert_eq!(ports, HashSet::from([2, 3, 5, 6]));
        set_word(&device, &mut ends[poster], granted[poster][0], 2);
        drop(ends);

        // This side has no other port.
        [2, 3].iter().for_each(|port| device.take_down(*port));
        drop(connect(&mut listener));
        let ends = connect(&mut listener);
        assert_eq!(device.used_ports(), HashSet::from([1, 4]));
        drop(ends);

        // The other side has no other port, which a connector learns from a refusal.
        [2, 3].iter().for_each(|port| device.bring_up(*port));
        [5, 6].iter().for_each(|port| device.take_down(*port));
        if poster == 0 {
            let [client, _] = refused(&from, &mut listener, &region);
            assert!(matches!(client, ConnectError::NoPath { retry_after: Some(_), .. }), "{client}");
        }
        let _ends = connect(&mut listener);
        assert_eq!(device.used_ports(), HashSet::from([1, 4]));
    }
}

/// An adapter whose own port goes down also reports that the peer did not answer.
#[test]
fn a_rail_whose_port_was_down_is_used_again_as_soon_as_it_is_up() {
    let device = Unordered::new(0, false);
    let verbs = verbs_from(&device, 1);
    let mut listener = listen(&verbs);
    let region = verbs.allocate(64, WORDS).unwrap();
    let mut connect = || connect_to(&verbs, &mut listener, || offer(&region), Vec::new());
    let ([mut poster, target], [granted, _]) = connect();
    device.cut(1);
    let write = Operation::WriteInline { data: Inline::word(1), remote: granted[0].slice(0, 8).unwrap() };
    poster.post(&[WorkRequest::signalled(1, write)]).unwrap();
    while device.step() {}
    device.take_down(1);
    assert_eq!(poster.poll().map(|completion| completion.result), Some(Err(CompletionError::Unreachable)));
    drop((poster, target));
    device.bring_up(1);
    let _ends = connect();
    assert_eq!(device.used_ports(), HashSet::from([1, 2, 3]));
}

#[test]
fn a_rail_that_was_lost_while_its_port_was_up_is_left_out_next_time() {
    let device = Unordered::new(0, false);
    let verbs = verbs_from(&device, 1);
    let mut scene = Scene::with_page(device, verbs, WORDS);
    scene.round(1);
    scene.device.cut(3);
    (2..4).for_each(|round| scene.round(round));
    scene.wait_for_losses(1);
    let mut scene = again(scene);
    assert_eq!(scene.device.used_ports(), HashSet::from([1, 2]));
    scene.round(1);
    scene.device.take_down(2);
    (2..4).for_each(|round| scene.round(round));
    scene.wait_for_losses(2);
    scene.device.bring_up(2);
    let scene = again(scene);
    assert_eq!(scene.device.used_ports(), HashSet::from([1, 2]));
}

/// A device reports the end of a pair, and the request that failed, in either order.
#[test]
fn a_rail_is_left_out_next_time_though_its_event_came_before_its_completion() {
    for (port, others) in [(1, [2, 3]), (3, [1, 2])] {
        let device = Unordered::new(0, false);
        let verbs = verbs_from(&device, 1);
        let mut scene = Scene::with_page(device, verbs, WORDS);
        scene.round(1);
        scene.device.cut(port);
        scene.post_payload(2);
        scene.device.tell_of_posting(port);
        scene.look().unwrap();
        assert_eq!(scene.verbs.rails_lost(), 0, "why is not known yet");
        while scene.device.step() {}
        let _over = scene.look();
        let scene = again(scene);
        assert_eq!(scene.device.used_ports(), HashSet::from(others));
    }
}

/// Atomics of two devices are not atomic against each other, and other peers of the owner use its first device.
#[test]
fn no_atomic_goes_through_another_device_than_the_first() {
    let device = Unordered::new(0, false);
    let (from, to) = (verbs_from(&device, 1), verbs_from(&device, 4));
    let mut listener = listen(&to);
    let region = to.allocate(64, WORDS | Access::REMOTE_ATOMIC).unwrap();
    let atomic = |remote: crate::mem::RemoteSlice| {
        let (local, remote) = (from.allocate(8, Access::LOCAL).unwrap().whole(), remote.slice(0, 8).unwrap());
        [WorkRequest::signalled(1, Operation::FetchAdd { local, remote, add: 1 })]
    };
    let ([mut poster, _target], [granted, _]) =
        connect_to(&from, &mut listener, || offer(&region), Vec::new());
    poster.post(&atomic(granted[0])).unwrap();
    for port in [1, 4] {
        device.take_down(port);
        let [client, server] = refused(&from, &mut listener, &region);
        assert!(matches!(client, ConnectError::NoPath { retry_after: Some(_), .. }), "{client}");
        assert!(server.to_string().contains("it grants atomics"), "{server}");
        device.bring_up(port);
    }
    device.take_down(1);
    let region = to.allocate(64, WORDS).unwrap();
    let ([mut poster, _target], [granted, _]) =
        connect_to(&from, &mut listener, || offer(&region), Vec::new());
    let error = poster.post(&atomic(granted[0])).unwrap_err();
    assert!(matches!(error, PostError::Malformed { .. }), "{error}");
}

#[test]
fn an_owner_is_woken_by_peers_whichever_rail_leads() {
    let device = Unordered::new(0, false);
    let verbs = verbs_from(&device, 1);
    let mut listener = listen(&verbs);
    assert!(listener.be_notified().unwrap());
    let region = verbs.allocate(64, WORDS).unwrap();
    let mut connect = || connect_to(&verbs, &mut listener, || offer(&region), Vec::new());
    let mut ends = Vec::new();
    // The next rail leads each peer's connection.
    for port in 1..=3 {
        ends.push(connect());
        device.take_down(port);
    }
    (1..=3).for_each(|port| device.bring_up(port));
    for (round, ([poster, _target], [granted, _])) in (1..).zip(&mut ends) {
        set_word(&device, poster, granted[0], round);
        assert_eq!(region.as_volatile().load_u64(0), round);
        let begun = Instant::now();
        listener.wait(Duration::from_secs(60));
        assert!(begun.elapsed().as_secs() < 30, "it slept on, peer {round}");
    }
}
