//! Registering, listening, connecting, being refused, going away.

use slackline::internals::mem::{Access, RemoteSlice};
use slackline::internals::transport::{Connecting, Endpoint, MAX_MESSAGE_BYTES, Offer};
use slackline::{ConnectError, Transport};

use super::fixture::{
    Fixture, bytes_of, connect_error, noise, now, payload, read, run, wait_for, wait_until_gone,
};
use super::payloads::Payloads;
use super::server::{Listening, Server};
use super::service::{Joined, join};

/// A server that listens, and the clients' transport.
fn listening<F: Fixture>() -> (F::Transport, Server<F>, Listening<F>) {
    let transport = F::transport();
    let server = Server::new(&transport);
    let listening = server.listen();
    (transport, server, listening)
}

/// Connects, and neither side has anything to say.
fn join_silently<F: Fixture>(transport: &F::Transport, listening: &Listening<F>) -> Joined<F> {
    join(transport, listening, Offer::default(), &[], &[])
}

pub(crate) fn messages_of_every_size_arrive_intact_both_ways<F: Fixture>() {
    let (transport, _server, listening) = listening::<F>();
    for len in [0, 1, 4095, 1 << 20] {
        let offer = Offer { message: noise(1, len), grants: Vec::new() };
        let joined = join(&transport, &listening, offer, &noise(2, len), &[]);
        assert!(joined.at_server.message == noise(1, len), "{len} bytes to the server");
        assert!(joined.at_client.message == noise(2, len), "{len} bytes to the client");
    }
}

pub(crate) fn the_longest_message_arrives_and_one_byte_more_is_refused<F: Fixture>() {
    let (transport, _server, listening) = listening::<F>();
    let offer = |len| Offer { message: noise(3, len), grants: Vec::new() };
    let longest = offer(MAX_MESSAGE_BYTES);
    let joined = join(&transport, &listening, longest, &noise(3, MAX_MESSAGE_BYTES), &[]);
    assert!(joined.at_server.message == joined.at_client.message);
    let error = transport.connect(&listening.address, offer(MAX_MESSAGE_BYTES + 1)).err().unwrap();
    assert!(matches!(error, ConnectError::Offer { .. }), "{error}");
}

pub(crate) fn grants_arrive_in_order_and_reach_the_memory_they_name<F: Fixture>() {
    let (transport, server, listening) = listening::<F>();
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    // Each side has bytes of its own, for two regions.
    type Bytes = (Vec<u8>, Vec<u8>);
    let [there, here] = [[1, 2], [3, 4]].map(|[one, two]| (noise(one, 8192), noise(two, 4096)));
    let checks = |grants: &[RemoteSlice], of: &Bytes, read: &mut dyn FnMut(RemoteSlice) -> Vec<u8>| {
        let expected = [&of.0[17..1017], &of.1[..], &of.0[4096..8192]];
        assert_eq!(grants.len(), expected.len());
        for (grant, expected) in grants.iter().zip(expected) {
            assert_eq!(grant.len, expected.len() as u64);
            assert!(read(*grant) == expected);
        }
    };

    let far = [server.allocate_words(8192, rights), server.allocate(4096, Access::REMOTE_READ)];
    far[0].write(0, &there.0);
    far[1].write(0, &there.1);
    let far = [far[0].part(17..1017), far[1].whole(), far[0].part(4096..8192)];
    let near = [(8192, rights), (4096, Access::REMOTE_READ)]
        .map(|(len, rights)| transport.allocate(len, rights).unwrap());
    near[0].as_volatile().write(&here.0);
    near[1].as_volatile().write(&here.1);
    let near = vec![near[0].slice(17, 1000).unwrap(), near[1].whole(), near[0].slice(4096, 4096).unwrap()];

    let mut joined = join(&transport, &listening, Offer { message: b"x".to_vec(), grants: near }, b"x", &far);
    checks(&joined.at_client.grants, &there, &mut |remote| {
        let into = payload::<F>(&transport, &vec![0; remote.len as usize]);
        run(&mut joined.client, read(into.clone(), remote)).unwrap();
        F::Payloads::bytes(&into)
    });
    checks(&joined.at_server.grants, &here, &mut |remote| joined.server.fetch(remote));
}

pub(crate) fn a_refused_peer_reads_the_reason<F: Fixture>() {
    let (transport, _server, listening) = listening::<F>();
    let offer = Offer { message: b"let me in".to_vec(), grants: Vec::new() };
    let connecting = transport.connect(&listening.address, offer).unwrap();
    let error = connect_error::<F>(connecting, || {
        if let Some(arrived) = listening.poll() {
            assert_eq!(arrived.received.message, b"let me in");
            arrived.refuse("another job: the model has 7 parameters, yours 8");
        }
    });
    let ConnectError::Refused { reason, .. } = error else { panic!("{error}") };
    assert_eq!(reason, "another job: the model has 7 parameters, yours 8");
    // The listener goes on.
    let _joined = join_silently(&transport, &listening);
}

pub(crate) fn nothing_listens_at_an_address_that_nobody_took<F: Fixture>() {
    let transport = F::transport();
    let error = match transport.connect(&F::address(), Offer::default()) {
        Err(error) => error,
        Ok(connecting) => connect_error::<F>(connecting, || {}),
    };
    assert!(matches!(error, ConnectError::System { .. } | ConnectError::Closed { .. }), "{error}");
    assert!(error.to_string().contains("listen"), "tells what to do: {error}");
}

pub(crate) fn an_address_can_be_listened_at_only_once_at_a_time<F: Fixture>() {
    let (_transport, server, listening) = listening::<F>();
    let taken = listening.address.clone();
    assert!(server.try_listen(Some(&taken)).is_err());
    drop(listening);
    server.try_listen(Some(&taken)).expect("free again");
}

pub(crate) fn a_peer_that_leaves_before_the_answer_is_an_error_and_no_more<F: Fixture>() {
    let (transport, _server, listening) = listening::<F>();
    let mut connecting = transport.connect(&listening.address, Offer::default()).unwrap();
    let arrived = wait_for("a peer", || {
        let _pending = connecting.poll(now());
        listening.poll()
    });
    drop(connecting);
    match arrived.accept(&[], &[]) {
        Ok(accepted) => accepted.wait_until_gone(),
        Err(error) => assert!(error.starts_with("Closed"), "{error}"),
    }
    let _joined = join_silently(&transport, &listening);
}

pub(crate) fn memory_without_rights_cannot_be_granted<F: Fixture>() {
    let (transport, server, listening) = listening::<F>();
    let region = transport.allocate(4096, Access::LOCAL).unwrap();
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let error = transport.connect(&listening.address, offer).err().unwrap();
    assert!(matches!(error, ConnectError::Offer { .. }), "{error}");
    let memory = server.allocate(4096, Access::LOCAL);
    let mut connecting = transport.connect(&listening.address, Offer::default()).unwrap();
    let arrived = wait_for("a peer", || {
        let _pending = connecting.poll(now());
        listening.poll()
    });
    let error = arrived.accept(&[], &[memory.whole()]).err().unwrap();
    assert!(error.starts_with("Offer"), "{error}");
}

pub(crate) fn registered_memory_has_the_rights_asked_for_and_is_zero<F: Fixture>() {
    let transport = F::transport();
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for access in [Access::LOCAL, Access::REMOTE_READ, Access::REMOTE_WRITE, all] {
        let region = transport.allocate(10_000, access).unwrap();
        assert_eq!(region.access(), access);
        assert!(region.len() >= 10_000);
        assert!(bytes_of(&region.whole()).iter().all(|byte| *byte == 0));
    }
    let memory = slackline::internals::mem::HostMemory::shared(4096).unwrap();
    assert_eq!(transport.register(memory, all).unwrap().access(), all);
    let memory = slackline::internals::mem::HostMemory::anonymous(4096).unwrap();
    assert_eq!(transport.register(memory, Access::LOCAL).unwrap().len(), 4096);
}

pub(crate) fn each_side_notices_that_the_other_is_gone<F: Fixture>() {
    let (transport, _server, listening) = listening::<F>();
    let Joined { mut client, server, .. } = join_silently(&transport, &listening);
    client.check().unwrap();
    drop(server);
    wait_until_gone(&mut client);
    assert!(client.check().is_err(), "it stays gone");
    assert!(client.post(&[]).is_err(), "and says so when asked to post");

    let Joined { client, server, .. } = join_silently(&transport, &listening);
    drop(client);
    server.wait_until_gone();
}

pub(crate) fn many_peers_are_connected_at_once<F: Fixture>() {
    let (transport, _server, listening) = listening::<F>();
    let mut all: Vec<Joined<F>> = (0..32).map(|_| join_silently(&transport, &listening)).collect();
    drop(all.swap_remove(7));
    for joined in &mut all {
        joined.client.check().unwrap();
        assert!(joined.server.is_connected());
    }
}
