//! The cost of idle peers, in calls of the library and of the system.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::grants::GrantedMemory;
use super::hello::{PortAddress, Ports, RailPorts, Terms};
use super::pairs::Responder;
use super::waker::{Waker, wait};
use super::{Access, VerbsEndpoint, VerbsShared, scripted, tests};
use crate::channel::{Channel, ChannelTerms, Purpose};
use crate::transport::{Endpoint, Transport};

/// A peer that was admitted over the scripted device, and the socket of its conversation.
fn peer(
    shared: &Arc<VerbsShared>,
    waker: &Arc<Waker>,
    page: crate::mem::LocalSlice,
    link: OwnedFd,
) -> VerbsEndpoint {
    let link = Channel::silent(TcpStream::from(link), &ChannelTerms::new(Purpose::Verbs));
    let responder = Responder::new(shared, &[0], 1, vec![GrantedMemory::Host(page)], Some(waker)).unwrap();
    let address = PortAddress {
        is_infiniband: false,
        lid: 0,
        gid: [0; 16],
        is_routed: true,
        needs_global_route: false,
        mtu: 1024,
        reads_served: 1,
        reads_posted: 1,
    };
    let rails = vec![RailPorts { index: 0, address, requester: None, responder: None }];
    let theirs = Terms { grants: Vec::new(), blob: Ports { rails, receives: 0 } };
    VerbsEndpoint::new(Arc::clone(shared), link, None, responder, theirs, true)
}

/// An end of a conversation that does not block.
fn silent(end: &UnixStream) -> OwnedFd {
    end.set_nonblocking(true).unwrap();
    end.try_clone().unwrap().into()
}

#[test]
fn ten_thousand_idle_peers_cost_a_fifth_of_a_call_a_second_each_at_most() {
    const PEERS: usize = 10_000;
    /// An owner checks its peers every 20 ms.
    const LOOKS: usize = 50;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let verbs = tests::verbs_of_an_adapter();
    let (shared, device) = (&verbs.shared, &verbs.shared.first().device);
    let waker = Waker::new(device, u32::MAX).unwrap();
    let page = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    // Each conversation has its own descriptor, and a hundred conversations share one peer, which lives.
    let ends: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
    let links = (0..PEERS).map(|index| silent(&ends[index % ends.len()].0));
    let mut peers: Vec<_> = links.map(|link| peer(shared, &waker, page.whole(), link)).collect();
    assert!(peers.iter_mut().all(|peer| peer.check().is_ok()), "they are let in");

    let calls = || scripted::take_calls() + shared.hearing.asked.swap(0, Ordering::Relaxed);
    calls();
    let begun = Instant::now();
    for _ in 0..LOOKS {
        wait(std::slice::from_ref(&waker), &[], Duration::ZERO);
        assert!(peers.iter_mut().all(|peer| peer.check().is_ok()));
    }
    let seconds = begun.elapsed().as_secs_f64().max(LOOKS as f64 * 0.02);
    // Each wait of the owner is also a system call.
    let each = (calls() + LOOKS as u64) as f64 / PEERS as f64 / seconds;
    assert!(each <= 0.2, "{each}");

    // A peer with an event costs calls for itself, and no calls for the others.
    let ringing = scripted::pairs();
    scripted::take_posted();
    scripted::notice(ringing[2 * 7]);
    wait(std::slice::from_ref(&waker), &[], Duration::from_secs(60));
    assert!(calls() + 1 < 20);
    let posted = scripted::take_posted();
    assert_eq!(posted, [], "receives are posted again once that is worth a message");
}

#[test]
fn the_end_of_one_of_many_peers_is_noticed_at_the_next_look() {
    let verbs = tests::verbs_of_an_adapter();
    let waker = Waker::new(&verbs.shared.first().device, u32::MAX).unwrap();
    let page = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    let (mut ends, mut peers): (Vec<_>, Vec<_>) = (0..100)
        .map(|_| {
            let (own, end) = UnixStream::pair().unwrap();
            (end, peer(&verbs.shared, &waker, page.whole(), silent(&own)))
        })
        .unzip();
    assert!(peers.iter_mut().all(|peer| peer.check().is_ok()));
    drop(ends.remove(42));
    verbs.shared.hearing.hurry();
    let gone: Vec<usize> = (0..100).filter(|index| peers[*index].check().is_err()).collect();
    assert_eq!(gone, [42]);
}

#[test]
fn a_pair_gets_its_own_receives_back_whoever_had_its_number_before() {
    let verbs = tests::verbs_of_an_adapter();
    let waker = Waker::new(&verbs.shared.first().device, u32::MAX).unwrap();
    let page = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    let responder = || {
        Responder::new(&verbs.shared, &[0], 1, vec![GrantedMemory::Host(page.whole())], Some(&waker))
            .unwrap()
            .unwrap()
    };
    let first = scripted::pairs().len();
    let all: Vec<_> = (0..100).map(|_| responder()).collect();
    let data = |index: usize| scripted::pairs()[first + 2 * index];
    scripted::take_posted();
    // A quarter of the receives is not enough for a message.
    for (index, times) in [(3, 512), (70, 256), (99, 300), (50, 128)] {
        (0..times).for_each(|_| scripted::notice(data(index)));
    }
    wait(std::slice::from_ref(&waker), &[], Duration::ZERO);
    assert_eq!(scripted::take_posted(), [], "no peer was told of more");
    let told: Vec<_> = (0..100).filter_map(|index| Some((index, all[index].renew_receives()?))).collect();
    assert_eq!(told, [(3, 512), (70, 256), (99, 300)]);
    let posted = scripted::take_posted();
    let count = |index: usize| {
        let number = all[index].number();
        posted.iter().filter(|(of, _)| *of == number).map(|(_, count)| count).sum::<usize>()
    };
    assert_eq!([3, 70, 99, 50].map(count), [512, 256, 300, 0], "as many as it is told of");

    // Completions that are left from a destroyed pair do not count for the next pair with its number.
    let mut all = all;
    let last = all.pop().unwrap();
    let number = last.number();
    let old = scripted::pairs()[first + 2 * 99];
    (0..512).for_each(|_| scripted::notice(old));
    drop(last);
    let next = responder();
    assert_eq!(next.number(), number);
    wait(std::slice::from_ref(&waker), &[], Duration::ZERO);
    assert_eq!(next.renew_receives(), None);
}

#[test]
fn receives_that_the_device_refuses_are_posted_later_and_told_then() {
    let verbs = tests::verbs_of_an_adapter();
    let waker = Waker::new(&verbs.shared.first().device, u32::MAX).unwrap();
    let page = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    let granted = vec![GrantedMemory::Host(page.whole())];
    let before = scripted::pairs().len();
    let peer = Responder::new(&verbs.shared, &[0], 1, granted, Some(&waker)).unwrap().unwrap();
    (0..512).for_each(|_| scripted::notice(scripted::pairs()[before]));
    wait(std::slice::from_ref(&waker), &[], Duration::ZERO);
    let renew = |receives| {
        scripted::take_posted();
        scripted::receive_only(receives);
        let told = peer.renew_receives();
        (told, scripted::take_posted().iter().map(|(_, count)| count).sum::<usize>())
    };
    assert_eq!(renew(0), (None, 0));
    assert_eq!(renew(100), (Some(100), 100), "in the middle of a chain");
    assert_eq!(renew(usize::MAX), (Some(412), 412), "none is lost");
    assert_eq!(renew(usize::MAX), (None, 0));
}

#[test]
fn a_peer_that_goes_on_sending_holds_no_owner_that_wakes_up() {
    let verbs = tests::verbs_of_an_adapter();
    let waker = Waker::new(&verbs.shared.first().device, u32::MAX).unwrap();
    let page = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    let before = scripted::pairs().len();
    let granted = || vec![GrantedMemory::Host(page.whole())];
    let join = || Responder::new(&verbs.shared, &[0], 1, granted(), Some(&waker)).unwrap().unwrap();
    let peers = [(); 2].map(|()| join());
    scripted::take_armings();
    scripted::stream(10_000);
    scripted::notice(scripted::pairs()[before]);
    wait(std::slice::from_ref(&waker), &[], Duration::ZERO);
    let armings = scripted::take_armings();
    scripted::stream(0);
    assert!((1..=peers.len()).contains(&armings), "{armings}");
}

#[test]
fn what_wakes_an_owner_does_so_though_a_joining_peer_takes_it_first() {
    let verbs = tests::verbs_of_an_adapter();
    let waker = Waker::new(&verbs.shared.first().device, u32::MAX).unwrap();
    let page = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    let granted = || vec![GrantedMemory::Host(page.whole())];
    let join = || Responder::new(&verbs.shared, &[0], 1, granted(), Some(&waker)).unwrap().unwrap();
    let before = scripted::pairs().len();
    let _peers = {
        let first = join();
        scripted::notice(scripted::pairs()[before]);
        [first, join()]
    };
    let begun = Instant::now();
    wait(std::slice::from_ref(&waker), &[], Duration::from_secs(60));
    assert!(begun.elapsed() < Duration::from_secs(30), "it slept on");
}
