//! Tests of the calls of a device, and of the reactions to its events.

use super::device::{Device, DeviceInfo, QueuePairError};
use super::endpoint::WAKES_AT_ONCE;
use super::hello::Pair;
use super::open::OpenedDevice;
use super::queue_pair::QueuePair;
use super::region::{ProtectionDomain, Registered};
use super::scripted::{self, device, gid, info};
use super::shared::remedy_within;
use super::*;
use crate::mem::{Buffer, RemoteKey, RemoteSlice, Streaming, alone};
use crate::transport::doorbell::Doorbell;
use crate::transport::{Connecting, Endpoint, GpuGrant, Incoming, Listener, Operation, WorkRequest};
use std::io;
use std::net::Ipv4Addr;
use std::task::Poll;

/// A rail over a device that answers so many READs and atomics at once, and can have so many under way.
fn rail(reads_served: u8, reads_posted: u8, read_depth: u8) -> Rail {
    let mut info = info("scripted0", true, vec![gid()]);
    info.limits = Limits { reads_served, reads_posted, ..info.limits };
    rail_of(info, VerbsOptions { read_depth: Some(read_depth), ..VerbsOptions::default() })
}

/// A rail over the only port of a device.
fn rail_of(info: DeviceInfo, options: VerbsOptions) -> Rail {
    let (device, port, reason) = (device(), info.ports[0].clone(), String::new());
    Rail::new(OpenedDevice { device, info, port, reason }, &options).unwrap()
}

#[test]
fn a_device_that_takes_less_inline_data_is_given_what_it_takes() {
    let rail = rail(1, 1, 1);
    for (limit, taken) in [(64, 64), (63, 32), (16, 16), (15, 8), (7, 0)] {
        scripted::take_inline(limit);
        assert_eq!(QueuePair::to_post(&rail.domain, 4, 64, None).unwrap().inline_bytes, taken);
    }
}

/// The device may write answers to READs in any order, and peers' writes in the order of their requests.
#[test]
fn only_what_this_process_asked_for_is_written_in_relaxed_order() {
    let verbs = verbs(None);
    let relaxed = |access| {
        scripted::take_flags();
        drop(verbs.allocate(64, access).unwrap());
        let flags = scripted::take_flags();
        flags.iter().map(|flags| flags & sys::IBV_ACCESS_RELAXED_ORDERING != 0).collect::<Vec<_>>()
    };
    assert_eq!(relaxed(Access::LOCAL), [true]);
    // For its own requests, and for the requests of all readers.
    assert_eq!(relaxed(Access::REMOTE_READ), [true, false]);
    // Memory that one peer may write is registered again, once this peer exists.
    assert_eq!(relaxed(Access::REMOTE_WRITE), [true]);

    let options = VerbsOptions { relaxed_ordering: false, ..VerbsOptions::default() };
    let rail = rail_of(info("scripted0", true, vec![gid()]), options);
    let memory = HostMemory::anonymous(64).unwrap();
    scripted::take_flags();
    for domain in [rail.domain.clone(), rail.peer_domain().unwrap()] {
        drop(Registered::new(&domain, memory.as_volatile(), 0, Access::RELAXED).unwrap());
    }
    assert!(scripted::take_flags().iter().all(|flags| flags & sys::IBV_ACCESS_RELAXED_ORDERING == 0));
}

#[test]
fn memory_that_a_device_does_not_take_names_that_device() {
    let mut verbs = verbs(None);
    let rails = &mut Arc::get_mut(&mut verbs.shared).expect("no other handle exists yet").rails;
    rails.push(rail_of(info("scripted1", true, vec![gid()]), VerbsOptions::default()));
    for (regions, access, name) in [
        (0, Access::LOCAL, "scripted0"),
        (1, Access::LOCAL, "scripted1"),
        (2, Access::REMOTE_READ, "scripted0"),
        (3, Access::REMOTE_READ, "scripted1"),
    ] {
        scripted::register_only(regions);
        let error = verbs.allocate(64, access).expect_err("refused");
        scripted::register_only(usize::MAX);
        let RegisterError::Device { device, .. } = &error else { panic!("{error}") };
        assert_eq!(device, name, "{error}");
    }
}

#[test]
fn a_full_device_is_not_taken_for_a_limit_on_locked_memory() {
    let full = io::Error::from_raw_os_error(libc::ENOMEM);
    let remedy = remedy_within(Some(64 << 10), &full);
    assert!(remedy.contains("locked memory is 64 KiB: raise it"), "{remedy}");
    let remedy = remedy_within(None, &full);
    assert!(remedy.contains("no room for more registrations") && !remedy.contains("raise"), "{remedy}");
}

#[test]
fn a_gid_that_was_asked_for_and_is_gone_is_named_with_who_asks() {
    let text = |options: VerbsOptions| {
        let rail = rail_of(info("scripted0", true, vec![gid()]), options);
        scripted::set_port(0, 3, Ipv4Addr::new(10, 0, 0, 3));
        scripted::tell_of_port(sys::IBV_EVENT_GID_CHANGE);
        let at = Address::Verbs(([127, 0, 0, 1], 0).into());
        let error = rail.gid_towards(None, &at).unwrap_err();
        let ConnectError::System { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::AddrNotAvailable);
        error.to_string()
    };
    let of =
        |variable| VerbsOptions { gid_index: Some(1), gid_index_from: variable, ..VerbsOptions::default() };
    for (variable, asked) in
        [(None, "`VerbsOptions::gid_index`"), (Some("UCX_IB_GID_INDEX"), "UCX_IB_GID_INDEX")]
    {
        let text = text(of(variable));
        assert!(
            text.contains(&format!("no entry 1 in its GID table any more, for which {asked} asks")),
            "{text}"
        );
        assert!(!text.contains("IP address"), "{text}");
    }
}

/// Returns the numbers that the device gets: READs and atomics that one side's pair has under way, and that the other
/// side's pair answers.
fn agreed(poster: &Rail, server: &Rail) -> (u8, u8) {
    let (posts, serves) = (poster.choose_gid(None).unwrap(), server.choose_gid(None).unwrap());
    let (at_poster, at_server) = (poster.port_address(&posts.gid), server.port_address(&serves.gid));
    let peer = Pair { number: 7, first_packet: 0 };
    let asked = |field: sys::ibv_qp_attr_mask| {
        let modified = scripted::take_modified();
        let mut asked =
            modified.iter().filter(|(mask, _)| mask & field != 0).map(|(_, attributes)| *attributes);
        let only = asked.next().expect("it is asked for");
        assert!(asked.next().is_none(), "and once");
        only
    };

    let pair = QueuePair::to_post(&poster.domain, 4, 0, None).unwrap();
    pair.connect(&poster.path(&posts, &at_poster, &at_server).unwrap(), &peer).unwrap();
    let posted = asked(sys::IBV_QP_MAX_QP_RD_ATOMIC).max_rd_atomic;
    let pair = QueuePair::to_serve(&server.domain, None).unwrap();
    pair.serve(&server.path(&serves, &at_server, &at_poster).unwrap(), &peer, Access::REMOTE_READ).unwrap();
    (posted, asked(sys::IBV_QP_MAX_DEST_RD_ATOMIC).max_dest_rd_atomic)
}

#[test]
fn no_side_has_more_reads_under_way_than_the_other_answers_whoever_has_less() {
    let most = u8::MAX;
    for (one, other, from_one, from_other) in [
        // Each of the four in turn is the lowest.
        (rail(16, 16, 16), rail(2, 8, 16), 2, 8),
        (rail(16, 16, 16), rail(8, 2, 16), 8, 2),
        (rail(2, 8, 16), rail(16, 16, 16), 8, 2),
        (rail(8, 2, 16), rail(16, 16, 16), 2, 8),
        // A requested number on one side or the other, and numbers that a device rounds up.
        (rail(most, most, 1), rail(most, most, 16), 1, 1),
        (rail(most, most, 16), rail(most, most, 4), 4, 4),
        (rail(most, most, 16), rail(7, 3, 16), 4, 2),
        (rail(most, most, most), rail(most, most, most), 128, 128),
    ] {
        assert_eq!(agreed(&one, &other), (from_one, from_one));
        assert_eq!(agreed(&other, &one), (from_other, from_other));
    }
}

/// Returns the attributes of the last requests to make a pair ready, from its first state on: for the partition, the
/// address and the retries.
fn asked_of(poster: &Rail, server: &Rail) -> (u16, sys::ibv_ah_attr, u8, u8) {
    let (posts, serves) = (poster.choose_gid(None).unwrap(), server.choose_gid(None).unwrap());
    let (at_poster, at_server) = (poster.port_address(&posts.gid), server.port_address(&serves.gid));
    let path = poster.path(&posts, &at_poster, &at_server).unwrap();
    let pair = QueuePair::to_post(&poster.domain, 4, 0, None).unwrap();
    scripted::take_modified();
    pair.connect(&path, &Pair { number: 7, first_packet: 0 }).unwrap();
    let modified = scripted::take_modified();
    let of = |field: sys::ibv_qp_attr_mask| {
        modified.iter().find(|(mask, _)| mask & field != 0).map(|(_, attributes)| *attributes).unwrap()
    };
    let sent = of(sys::IBV_QP_TIMEOUT);
    (of(sys::IBV_QP_PKEY_INDEX).pkey_index, of(sys::IBV_QP_AV).ah_attr, sent.timeout, sent.retry_cnt)
}

#[test]
fn queue_pairs_have_the_service_level_class_partition_and_retries_asked_for() {
    let asked = |options: VerbsOptions| {
        let mut info = info("scripted0", true, vec![gid()]);
        info.ports[0].partition_keys = vec![0xFFFF, 0, 0, 0x8012];
        let rail = rail_of(info, options);
        let (pkey, address, timeout, retries) = asked_of(&rail, &rail);
        (pkey, address.sl, address.grh.traffic_class, timeout, retries)
    };
    let plain = VerbsOptions::default();
    assert_eq!(asked(plain.clone()), (0, 0, 0, 16, 6));
    let (service_level, traffic_class, partition_key) = (5, 106, Some(0x12));
    let (timeout, retries) = (Some(20), Some(4));
    let options = VerbsOptions { service_level, traffic_class, partition_key, timeout, retries, ..plain };
    assert_eq!(asked(options), (3, 5, 106, 20, 4));
}

#[test]
fn infiniband_goes_by_a_global_route_between_subnets_or_where_a_port_asks() {
    let infiniband = |subnet: u8, needs_global_route| {
        let mut info = info("scripted0", true, vec![gid()]);
        let port = &mut info.ports[0];
        (port.is_infiniband, port.lid, port.needs_global_route) = (true, 9, needs_global_route);
        port.gids[0].bytes[..8].copy_from_slice(&[0xFE, 0x80, 0, 0, 0, 0, 0, subnet]);
        rail_of(info, VerbsOptions::default())
    };
    for (one, other, is_global) in [
        (infiniband(1, false), infiniband(1, false), 0),
        (infiniband(1, false), infiniband(2, false), 1),
        (infiniband(1, true), infiniband(1, false), 1),
        (infiniband(1, false), infiniband(1, true), 1),
    ] {
        let (_, address, ..) = asked_of(&one, &other);
        assert_eq!((address.is_global, address.dlid), (is_global, 9));
    }
    let roce = asked_of(&rail(16, 16, 16), &rail(16, 16, 16)).1;
    assert_eq!(roce.is_global, 1, "RoCE has no other addresses");
}

#[test]
fn new_connections_go_by_the_addresses_that_a_port_has_now() {
    let rail = rail(16, 16, 16);
    let now = || {
        let from = rail.choose_gid(None).expect("it has an address");
        (from.gid.index, from.gid.address(), rail.port_address(&from.gid).lid)
    };
    assert_eq!(now(), (1, Ipv4Addr::new(10, 0, 0, 1).into(), 0));
    for (event, lid, index) in [
        (sys::IBV_EVENT_GID_CHANGE, 0, 3),
        (sys::IBV_EVENT_LID_CHANGE, 9, 3),
        (sys::IBV_EVENT_CLIENT_REREGISTER, 11, 5),
        (sys::IBV_EVENT_PORT_ACTIVE, 12, 2),
    ] {
        let address = Ipv4Addr::new(10, 0, 0, index as u8);
        scripted::set_port(lid, index, address);
        scripted::tell_of_port(event);
        assert_eq!(now(), (index, address.into(), lid));
    }
    // While the device reports no change, it is not queried.
    scripted::take_calls();
    now();
    assert!(scripted::take_calls() <= 4, "it looks for events");
}

#[test]
fn a_port_that_has_left_the_partition_makes_no_connection_in_another() {
    let mut info = info("scripted0", true, vec![gid()]);
    info.ports[0].partition_keys = vec![0x8012];
    let rail = rail_of(info, VerbsOptions { partition_key: Some(0x8012), ..VerbsOptions::default() });
    let path = || {
        let from = rail.choose_gid(None).expect("it has an address");
        let address = rail.port_address(&from.gid);
        rail.path(&from, &address, &address).map(|path| path.settings.pkey_index)
    };
    assert_eq!(path(), Ok(0));
    for (key, index) in [(0x8055, None), (0x8012, Some(0))] {
        scripted::set_partition(key);
        scripted::tell_of_port(sys::IBV_EVENT_PKEY_CHANGE);
        assert_eq!(path().ok(), index);
    }
}

/// The transport over the device, which reports all events of its queue pairs, as adapters do.
pub(super) fn verbs_of_an_adapter() -> Verbs {
    let mut verbs = verbs(None);
    let shared = Arc::get_mut(&mut verbs.shared).expect("no other handle exists yet");
    let info = &mut shared.rails[0].info;
    (info.is_soft_roce, info.breaks_silently) = (false, false);
    (info.limits.queue_depth, info.limits.completions) = (1 << 15, 1 << 22);
    shared.rails[0].in_order = Some(true);
    verbs
}

/// The transport over the device.
pub(super) fn verbs(secret: Option<Secret>) -> Verbs {
    let rail = rail(16, 16, 16);
    #[cfg(feature = "cuda")]
    let serial = rail.domain.serial;
    Verbs::new(VerbsShared {
        rails: vec![rail],
        queue_depth: 4,
        inline_bytes: 64,
        first_packet: None,
        atomics: AtomicDomain::None,
        atomics_fault: None,
        secret,
        access_violations: AtomicU64::new(0),
        rails_lost: AtomicU64::new(0),
        unanswered: UnansweredWays::default(),
        hearing: Hearing::new().unwrap(),
        #[cfg(feature = "cuda")]
        on_gpus: crate::cuda::RegisteredMemory::new(serial),
    })
}

#[test]
fn without_a_secret_nothing_listens_beyond_loopback() {
    let everywhere = Address::Verbs(([0, 0, 0, 0], 0).into());
    let error = verbs(None).listen(&everywhere).err().expect("refused");
    assert!(matches!(error, ConnectError::NeedsSecret { .. }), "{error}");
    assert!(error.to_string().contains("SLACKLINE_SECRET_FILE"), "{error}");
    verbs(Some(Secret::random().unwrap())).listen(&everywhere).unwrap();
}

/// Both ends of a new connection, the connector's first, and the grants to each. Both make the same offer.
pub(super) fn connect(
    verbs: &Verbs,
    offer: impl Fn() -> Offer,
) -> ([VerbsEndpoint; 2], [Vec<RemoteSlice>; 2]) {
    connect_granting(verbs, offer, Vec::new())
}

/// The same, but the listener's side also grants memory of a GPU.
pub(super) fn connect_granting(
    verbs: &Verbs,
    offer: impl Fn() -> Offer,
    on_gpu: Vec<GpuGrant>,
) -> ([VerbsEndpoint; 2], [Vec<RemoteSlice>; 2]) {
    let mut listener = verbs.listen(&Address::Verbs(([127, 0, 0, 1], 0).into())).unwrap();
    connect_to(verbs, &mut listener, offer, on_gpu)
}

/// The same through an existing listener.
pub(super) fn connect_to(
    verbs: &Verbs,
    listener: &mut VerbsListener,
    offer: impl Fn() -> Offer,
    on_gpu: Vec<GpuGrant>,
) -> ([VerbsEndpoint; 2], [Vec<RemoteSlice>; 2]) {
    let mut connecting = verbs.connect(&listener.address(), offer()).unwrap();
    let (mut server, begin) = (None, std::time::Instant::now());
    let wait = || assert!(begin.elapsed().as_secs() < 60, "waited in vain for a connection");
    let (mut client, received) = loop {
        wait();
        let now = crate::time::Instant::from_nanos(begin.elapsed().as_nanos() as u64);
        if let Some(mut incoming) = listener.poll(now) {
            if !on_gpu.is_empty() {
                incoming.grant_gpu(on_gpu.clone()).unwrap();
            }
            let grants = incoming.received().grants.clone();
            server = Some((incoming.accept(offer()).unwrap(), grants));
        }
        if let Poll::Ready(connected) = connecting.poll(now) {
            break connected.unwrap();
        }
    };
    let (mut server, granted) = server.unwrap();
    // The listener's side learns that the connector is ready.
    for end in [&mut client, &mut server] {
        while end.post(&[]).is_err() {
            wait();
        }
    }
    ([client, server], [received.grants, granted])
}

/// Both ends of a new connection through the device, each of which grants memory.
fn connection(verbs: &Verbs) -> [VerbsEndpoint; 2] {
    let region = verbs.allocate(64, Access::REMOTE_WRITE).unwrap();
    connect(verbs, || Offer { message: Vec::new(), grants: vec![region.whole()] }).0
}

#[test]
fn wake_ups_that_come_all_at_once_end_no_connection() {
    let verbs = verbs(None);
    let [mut client, mut server] = connection(&verbs);
    let doorbell = Doorbell::new(&Address::random()).unwrap();
    client.set_doorbell(doorbell.clone());
    (0..3 * WAKES_AT_ONCE + 1).for_each(|_| server.wake());
    verbs.shared.hearing.hurry();
    client.check().unwrap();
    assert!(doorbell.wait(&[], std::time::Duration::ZERO));
    drop(server);
    // The end arrives after all wake-ups.
    let begun = std::time::Instant::now();
    let over = loop {
        verbs.shared.hearing.hurry();
        match client.check() {
            Ok(()) => assert!(begun.elapsed().as_secs() < 60, "not all of them were heard"),
            Err(over) => break over,
        }
    };
    assert!(over.reason.contains("the peer process ended"), "{over}");
}

#[test]
fn an_event_of_any_pair_ends_the_connection_that_it_belongs_to_and_no_other() {
    let verbs = verbs(None);
    let mut others = connection(&verbs);
    let first = scripted::pairs().len();
    let access_violation = "the peer reached for memory that it was not granted";
    let failed = "the RDMA device of this host could not go on with this connection";
    for (event, serves, posts) in [
        // Devices also report this for a pair that posts, when its peer does not answer: there was no access
        // violation.
        (sys::IBV_EVENT_QP_ACCESS_ERR, access_violation, failed),
        (sys::IBV_EVENT_QP_REQ_ERR, access_violation, failed),
        (sys::IBV_EVENT_QP_FATAL, failed, failed),
        (sys::IBV_EVENT_CQ_ERR, failed, failed),
    ] {
        let (mut ended, mut reasons) = ([0; 2], Vec::new());
        // Each end has two pairs that post, and two that serve.
        for index in 0..8 {
            let (mut ends, before) = (connection(&verbs), verbs.access_violations());
            let pairs = scripted::pairs();
            assert_eq!(pairs.len(), first + 8);
            scripted::tell(event, pairs[first + index]);
            verbs.shared.hearing.hurry();
            // The first endpoint that checks takes the events of the device for all.
            assert!(others.iter_mut().all(|end| end.check().is_ok()));
            // The other end may learn that its peer is gone.
            let own = |reason: &&str| [access_violation, failed].contains(reason);
            let told = ends.each_mut().map(|end| end.check().err().map(|over| over.reason).filter(own));
            let [client, server] = told;
            assert!(client.is_some() != server.is_some(), "one end has the pair: {told:?}");
            ended[usize::from(server.is_some())] += 1;
            reasons.extend(client.or(server));
            assert_eq!(
                verbs.access_violations() - before,
                u64::from(reasons.last() == Some(&access_violation))
            );
        }
        assert_eq!(ended, [4, 4]);
        reasons.sort_unstable();
        let mut expected = [[serves; 4], [posts; 4]].concat();
        expected.sort_unstable();
        assert_eq!(reasons, expected);
    }
    assert!(others.iter_mut().all(|end| end.check().is_ok()));
    assert_eq!(scripted::pending_events(), (0, 0));
}

#[test]
fn a_pair_whose_state_cannot_be_asked_for_ends_its_connection() {
    let verbs = verbs(None);
    let [mut client, mut server] = connection(&verbs);
    scripted::ask_with(libc::EIO);
    // Longer than the time after which the device is queried.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let failed = "the RDMA device of this host could not go on with this connection";
    assert_eq!(client.check().unwrap_err().reason, failed);
    assert!(server.check().is_err(), "its device cannot say either, or it hears that its peer is gone");
    assert_eq!(verbs.access_violations(), 0, "the peer has broken no rule");
}

/// Pairs of the device that serve, and one that posts.
fn pairs(device: &Arc<Device>) -> [QueuePair; 3] {
    let domain = ProtectionDomain::new(device, true).unwrap();
    let responder = || QueuePair::to_serve(&domain, None).unwrap();
    [responder(), responder(), QueuePair::to_post(&domain, 4, 0, None).unwrap()]
}

fn ends(event: sys::ibv_event_type) -> Option<QueuePairError> {
    match event {
        sys::IBV_EVENT_QP_ACCESS_ERR | sys::IBV_EVENT_QP_REQ_ERR => Some(QueuePairError::Refused),
        sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_CQ_ERR => Some(QueuePairError::Failed),
        _ => None,
    }
}

const OF_PAIRS: [sys::ibv_event_type; 9] = [
    sys::IBV_EVENT_CQ_ERR,
    sys::IBV_EVENT_QP_FATAL,
    sys::IBV_EVENT_QP_REQ_ERR,
    sys::IBV_EVENT_QP_ACCESS_ERR,
    sys::IBV_EVENT_COMM_EST,
    sys::IBV_EVENT_SQ_DRAINED,
    sys::IBV_EVENT_PATH_MIG,
    sys::IBV_EVENT_PATH_MIG_ERR,
    sys::IBV_EVENT_QP_LAST_WQE_REACHED,
];

#[test]
fn an_event_ends_the_pair_that_it_names_and_no_other_and_is_told_once() {
    let device = device();
    let pairs = pairs(&device);
    for event in OF_PAIRS {
        for named in &pairs {
            // The device may report it several times.
            for _ in 0..3 {
                scripted::tell(event, named.serial());
            }
            device.take_events();
            assert!(!device.is_gone(), "the device goes on");
            for pair in &pairs {
                let is_named = pair.serial() == named.serial();
                assert_eq!(pair.take_broken(), ends(event).filter(|_| is_named), "event {event}");
                assert_eq!(pair.take_broken(), None);
            }
        }
    }
    scripted::tell(sys::IBV_EVENT_QP_ACCESS_ERR, pairs[0].serial());
    scripted::tell(sys::IBV_EVENT_QP_FATAL, pairs[0].serial());
    device.take_events();
    assert_eq!(pairs[0].take_broken(), Some(QueuePairError::Refused), "what the peer did is what matters");
}

#[test]
fn every_event_is_acknowledged_and_nothing_stays_behind_of_a_destroyed_pair() {
    let device = device();
    let [first, second, requester] = pairs(&device);
    for _ in 0..500 {
        OF_PAIRS.iter().for_each(|event| scripted::tell(*event, first.serial()));
        [sys::IBV_EVENT_PORT_ERR, sys::IBV_EVENT_PORT_ACTIVE, sys::IBV_EVENT_GID_CHANGE, u32::MAX]
            .into_iter()
            .for_each(scripted::tell_of_port);
    }
    device.take_events();
    // The destruction of a pair would wait without end for its events.
    assert_eq!(scripted::pending_events(), (0, 0));
    let serial = first.serial();
    drop(first);
    assert_eq!(device.take_broken(serial), None);
    assert_eq!((second.take_broken(), requester.take_broken()), (None, None));
}

#[test]
fn a_forked_child_lets_go_of_pairs_whatever_its_parent_had_locked() {
    if !alone("transport::verbs::tests::a_forked_child_lets_go_of_pairs_whatever_its_parent_had_locked") {
        return;
    }
    let device = device();
    let pairs = pairs(&device);
    scripted::tell(sys::IBV_EVENT_QP_FATAL, pairs[0].serial());
    device.take_events();
    let held = device.hold_told();
    // SAFETY: no other thread was running; the child drops the pairs and leaves by `_exit`, or by the alarm.
    let status = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(10);
            drop(pairs);
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    };
    assert_eq!(status, 0, "it waits for a thread that the child has not");
    drop(held);
    assert_eq!(pairs[0].take_broken(), Some(QueuePairError::Failed));
}

#[test]
fn a_device_that_says_it_is_gone_stays_gone() {
    let device = device();
    scripted::tell_of_port(sys::IBV_EVENT_PORT_ERR);
    device.take_events();
    assert!(!device.is_gone(), "a port that is down comes back");
    scripted::tell_of_port(sys::IBV_EVENT_DEVICE_FATAL);
    scripted::tell_of_port(sys::IBV_EVENT_PORT_ACTIVE);
    device.take_events();
    assert!(device.is_gone());
    assert_eq!(scripted::pending_events(), (0, 0));
    device.take_events();
    assert!(device.is_gone());
}

#[test]
fn what_a_queue_pair_that_is_not_destroyed_may_write_is_never_lent_again() {
    for (errno, is_lent) in [(0, true), (libc::EBUSY, false)] {
        let shared = verbs(None).shared;
        let memory = HostMemory::anonymous(64).unwrap();
        let mut buffer = Buffer::new(shared.register(memory, Access::LOCAL).unwrap()).unwrap();
        let mut initiator = shared.initiator(0, 4, 8).unwrap();
        let remote = RemoteSlice { key: RemoteKey(7), offset: 0, len: 8 };
        let read = |buffer: &mut Buffer| {
            let local = buffer.slice(0, 8).unwrap();
            Operation::Read { local, remote, streaming: Streaming::Never }
        };
        for request in 0..2 {
            initiator.post(&[WorkRequest::signalled(request, read(&mut buffer))]).unwrap();
        }
        assert!(buffer.bytes().is_none(), "its requests are under way");
        scripted::destroy_with(errno);
        drop(initiator);
        assert_eq!(buffer.bytes().is_some(), is_lent);
    }
}
