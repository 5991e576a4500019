//! Hazards that only RDMA has: keys, packet numbers, messages that are too long, objects of the device.

use std::process::Command;

use slackline::internals::channel::{Channel, ChannelTerms, Purpose};
use slackline::internals::mem::{Access, HostMemory};
use slackline::internals::transport::{
    AtomicDomain, CompletionError, Endpoint, Inline, Listener, Offer, Operation, PostError, WorkRequest,
};
use slackline::{Secret, Shm, Transport, VerbsOptions};

use super::ends::{Pair, connect, prove};
use super::sides;
use super::target::{Client, Target};
use crate::VerbsFixture;
use crate::transport::fixture::{Fixture, bytes_of, noise, now, read, run, wait_for, wait_until_gone, write};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

#[test]
fn a_key_of_an_earlier_connection_opens_nothing_and_who_tries_is_counted() {
    let mut target = Target::<VerbsFixture>::new(4096, ALL);
    let Client { endpoint, remote: stale, mut server } = target.client();
    drop(endpoint);
    wait_until_gone(&mut server);
    drop(server);
    let mut bystander = target.client();
    let before = target.transport.access_violations();
    for (tries, offence) in [
        |stale, _| write_word(stale),
        |_, own: slackline::internals::mem::RemoteSlice| {
            write_word(slackline::internals::mem::RemoteSlice { offset: 4092, ..own })
        },
    ]
    .into_iter()
    .enumerate()
    {
        let Client { mut endpoint, remote, mut server } = target.client();
        assert_ne!(remote.key, stale.key, "keys are made for each connection");
        assert_eq!(run(&mut endpoint, offence(stale, remote)), Err(CompletionError::RemoteAccess));
        wait_until_gone(&mut endpoint);
        wait_until_gone(&mut server);
        assert_eq!(target.transport.access_violations(), before + 1 + tries as u64);
    }
    assert_eq!(target.region.as_volatile().load_u64(0), 0);
    run(&mut bystander.endpoint, write_word(bystander.remote)).expect("others go on");
    // An honest end is no access violation.
    drop(bystander.endpoint);
    wait_until_gone(&mut bystander.server);
    assert_eq!(target.transport.access_violations(), before + 2);
}

#[test]
fn a_peer_that_access_violations_and_never_polls_is_found_out_all_the_same() {
    let mut target = Target::<VerbsFixture>::new(4096, ALL);
    let Client { mut endpoint, remote, mut server } = target.client();
    let beyond = slackline::internals::mem::RemoteSlice { offset: 1 << 40, ..remote };
    endpoint.post(&[WorkRequest::unsignalled(1, write_word(beyond))]).unwrap();
    wait_until_gone(&mut server);
    assert_eq!(target.transport.access_violations(), 1);
    // Until here the offender's side has said nothing.
    assert_eq!(endpoint.poll().unwrap().result, Err(CompletionError::RemoteAccess));
}

#[test]
fn a_whole_queue_that_fails_comes_back_whole_though_nobody_polled() {
    let mut target = Target::<VerbsFixture>::new(4096, ALL);
    let depth = target.transport.capabilities().queue_depth;
    let Client { mut endpoint, remote, server: _server } = target.client();
    let beyond = write_word(slackline::internals::mem::RemoteSlice { offset: 1 << 40, ..remote });
    let first = WorkRequest::unsignalled(0, beyond);
    let rest = (1..depth as u64).map(|id| WorkRequest::unsignalled(id, write_word(remote)));
    let batch: Vec<WorkRequest> = std::iter::once(first).chain(rest).collect();
    endpoint.post(&batch).unwrap();
    // Time for all of them to fail: completions that no thread takes must not overrun their queue.
    std::thread::sleep(std::time::Duration::from_secs(1));
    for id in 0..depth as u64 {
        let completion = wait_for("a completion", || endpoint.poll());
        let expected = if id == 0 { CompletionError::RemoteAccess } else { CompletionError::Flushed };
        assert_eq!((completion.id.0, completion.result), (id, Err(expected)));
    }
    assert_eq!(endpoint.poll(), None);
}

#[test]
fn a_batch_as_long_as_the_queue_fits_once_what_nobody_hears_of_is_done() {
    let options = VerbsOptions { queue_depth: Some(8), ..VerbsOptions::default() };
    let transport = sides::open(options);
    let mut listener = transport.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
    let region = transport.allocate(4096, ALL).unwrap();
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let mut pair: Pair<VerbsFixture> = connect(&transport, &mut listener, Offer::default(), offer);
    let word = |id| WorkRequest::unsignalled(id, write_word(pair.at_client.grants[0]));
    pair.client.post(&[word(1)]).unwrap();
    let batch: Vec<WorkRequest> = (2..10).map(word).collect();
    wait_for("the whole queue to be free", || match pair.client.post(&batch) {
        Ok(()) => Some(()),
        Err(PostError::QueueFull { .. }) => {
            assert_eq!(pair.client.poll(), None, "no caller is to hear of it");
            None
        }
        Err(error) => panic!("{error}"),
    });
}

#[test]
fn connections_that_say_next_to_nothing_keep_no_peer_out() {
    let mut target = Target::<VerbsFixture>::new(4096, ALL);
    let slackline::Address::Verbs(address) = target.listener.address() else { panic!("an address") };
    let begin = |_| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut stream, b"s").unwrap();
        stream
    };
    let unauthenticated_peers: Vec<_> = (0..100).map(begin).collect();
    for _ in 0..3 {
        drop(target.client());
    }
    drop(unauthenticated_peers);
}

#[test]
fn atomics_that_the_device_says_it_has_work() {
    let verbs = VerbsFixture::transport();
    let said = verbs.info().limits.atomics;
    assert_eq!(verbs.capabilities().atomics, said, "{:?}", verbs.atomics_fault());
    // Claims about atomics are about nothing on a device without any, so they have to be made on one that has them.
    assert!(!verbs.info().is_soft_roce || said != AtomicDomain::None);
}

fn write_word(remote: slackline::internals::mem::RemoteSlice) -> Operation {
    let remote = slackline::internals::mem::RemoteSlice { len: 8, ..remote };
    Operation::WriteInline { data: Inline::word(7), remote }
}

#[test]
fn packet_numbers_wrap_around_in_both_directions() {
    let options = || VerbsOptions { first_packet: Some(0xFF_FFFC), ..VerbsOptions::default() };
    let transport = sides::open(options());
    let mut listener = transport.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
    let region = transport.allocate(1 << 20, ALL).unwrap();
    let offer = || Offer { message: Vec::new(), grants: vec![region.whole()] };
    let mut pair: Pair<VerbsFixture> = connect(&transport, &mut listener, offer(), offer());
    let local = transport.allocate(1 << 20, Access::LOCAL).unwrap().whole();
    for (endpoint, remote, seed) in
        [(&mut pair.client, pair.at_client.grants[0], 1), (&mut pair.server, pair.at_server.grants[0], 2)]
    {
        local.as_volatile().write(&noise(seed, 1 << 20));
        run(endpoint, write(local.clone(), remote)).unwrap();
        prove(&transport, endpoint, remote);
        assert!(bytes_of(&region.whole()) == noise(seed, 1 << 20));
        local.as_volatile().write(&vec![0; 1 << 20]);
        run(endpoint, read(local.clone(), remote)).unwrap();
        assert!(bytes_of(&local) == noise(seed, 1 << 20));
    }
}

#[test]
fn requests_longer_than_the_device_takes_are_carried_out_in_parts() {
    let longest = VerbsFixture::transport().port().message_bytes as usize;
    if longest > 64 << 20 {
        // Nothing that fits this test is too long for it.
        return;
    }
    let bytes = 2 * longest + 4096;
    let mut target = Target::<VerbsFixture>::new(bytes, ALL);
    let Client { mut endpoint, remote, server: _server } = target.client();
    let new = noise(3, bytes);
    run(&mut endpoint, write(target.local(&new), remote)).unwrap();
    prove(&target.transport, &mut endpoint, remote);
    assert!(bytes_of(&target.region.whole()) == new);
    let back = target.local(&vec![0; bytes]);
    run(&mut endpoint, read(back.clone(), remote)).unwrap();
    assert!(bytes_of(&back) == new);
    // A part that is refused is told once, by the name of the whole.
    let request = read(back, slackline::internals::mem::RemoteSlice { offset: 4096, ..remote });
    let behind = Operation::WriteInline { data: Inline::word(1), remote: remote.slice(0, 8).unwrap() };
    endpoint.post(&[WorkRequest::unsignalled(5, request), WorkRequest::unsignalled(6, behind)]).unwrap();
    let mut next = || wait_for("a completion", || endpoint.poll());
    let first = next();
    assert_eq!((first.id.0, first.result), (5, Err(CompletionError::RemoteAccess)));
    assert_eq!(next().id.0, 6);
    assert_eq!(endpoint.poll(), None);
}

#[test]
fn a_request_with_memory_of_another_transport_is_malformed_before_posting() {
    let mut target = Target::<VerbsFixture>::new(4096, ALL);
    let Client { mut endpoint, remote, server: _server } = target.client();
    let foreign = Shm::new().allocate(8, Access::LOCAL).unwrap().slice(0, 8).unwrap();
    let other = VerbsFixture::transport().register(HostMemory::anonymous(4096).unwrap(), Access::LOCAL);
    for memory in [foreign, other.unwrap().slice(0, 8).unwrap()] {
        let request = WorkRequest::signalled(1, write(memory, remote.slice(0, 8).unwrap()));
        let error = endpoint.post(&[request]).unwrap_err();
        assert!(matches!(error, PostError::Malformed { index: 0, .. }), "{error}");
        assert!(error.to_string().contains("not registered with this transport"), "{error}");
    }
    run(&mut endpoint, write_word(remote)).expect("the endpoint goes on");
}

/// Of this host.
fn objects() -> Vec<u64> {
    super::objects::objects(&mut Command::new("rdma"))
}

#[test]
fn a_hundred_rounds_of_connecting_over_rdma_leave_no_device_object_behind() {
    let mut target = Target::<VerbsFixture>::new(4096, ALL);
    drop(target.client());
    let before = objects();
    for round in 0..100 {
        let Client { mut endpoint, remote, mut server } = target.client();
        run(&mut endpoint, write_word(remote)).unwrap();
        assert!(objects()[0] > before[0], "queue pairs are counted");
        match round % 3 {
            0 => drop(endpoint),
            1 => drop(server),
            _ => {
                assert!(
                    run(
                        &mut endpoint,
                        write_word(slackline::internals::mem::RemoteSlice { offset: 1 << 40, ..remote })
                    )
                    .is_err()
                );
                wait_until_gone(&mut server);
            }
        }
    }
    assert_eq!(objects(), before);
}

#[test]
fn a_peer_of_another_version_is_told_both_versions() {
    let target = Target::<VerbsFixture>::new(4096, ALL);
    let mut listener = target.listener;
    let slackline::Address::Verbs(address) = listener.address() else { panic!("an address") };
    let secret = Secret::from_text("both processes know this", "this test").unwrap();
    let terms = ChannelTerms { secret: Some(secret), ..ChannelTerms::new(Purpose::Verbs) };
    let mut channel = Channel::connect(address, &terms).unwrap();
    channel.send(&[200, 0, 0, 0, 1, 2, 3]).unwrap();
    let answer = wait_for("a refusal", || {
        assert!(listener.poll(now()).is_none());
        channel.poll().expect("it is told before the connection ends")
    });
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("version 200") && text.contains("same slackline version"), "{text}");
}
