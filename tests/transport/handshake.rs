//! Registering, listening, connecting, being refused, going away.

use slackline::mem::{Access, RemoteSlice};
use slackline::transport::{ConnectError, Endpoint, Incoming, Listener, MAX_MESSAGE_BYTES, Offer, Transport};

use super::fixture::{
    Fixture, Pair, bytes_of, connect, connect_error, noise, now, read, run, wait_for, wait_until_gone,
};

pub(crate) fn messages_of_every_size_arrive_intact_both_ways<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    for len in [0, 1, 4095, 1 << 20] {
        let offer = |seed| Offer { message: noise(seed, len), grants: Vec::new() };
        let pair: Pair<F> = connect(&transport, &mut listener, offer(1), offer(2));
        assert!(pair.at_server.message == noise(1, len), "{len} bytes to the server");
        assert!(pair.at_client.message == noise(2, len), "{len} bytes to the client");
    }
}

pub(crate) fn the_longest_message_arrives_and_one_byte_more_is_refused<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    let offer = |len| Offer { message: noise(3, len), grants: Vec::new() };
    let pair: Pair<F> =
        connect(&transport, &mut listener, offer(MAX_MESSAGE_BYTES), offer(MAX_MESSAGE_BYTES));
    assert!(pair.at_server.message == pair.at_client.message);
    let error = transport.connect(&listener.address(), offer(MAX_MESSAGE_BYTES + 1)).err().unwrap();
    assert!(matches!(error, ConnectError::Offer { .. }), "{error}");
}

pub(crate) fn grants_arrive_in_order_and_reach_the_memory_they_name<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let one = transport.allocate(8192, rights).unwrap();
    let two = transport.allocate(4096, Access::REMOTE_READ).unwrap();
    one.as_volatile().write(&noise(1, 8192));
    two.as_volatile().write(&noise(2, 4096));
    let slices = [one.slice(17, 1000).unwrap(), two.whole(), one.slice(4096, 4096).unwrap()];
    let offer = || Offer { message: b"x".to_vec(), grants: slices.to_vec() };
    let mut pair: Pair<F> = connect(&transport, &mut listener, offer(), offer());
    assert_eq!((pair.at_client.grants.len(), pair.at_server.grants.len()), (3, 3));

    let check = |endpoint: &mut dyn FnMut(slackline::transport::Operation), grants: &[RemoteSlice]| {
        for (slice, remote) in slices.iter().zip(grants) {
            assert_eq!(remote.len, slice.len() as u64);
            let local = transport.allocate(slice.len(), Access::LOCAL).unwrap().whole();
            endpoint(read(local.clone(), *remote));
            assert_eq!(bytes_of(&local), bytes_of(slice));
        }
    };
    check(&mut |operation| run(&mut pair.client, operation).unwrap(), &pair.at_client.grants);
    check(&mut |operation| run(&mut pair.server, operation).unwrap(), &pair.at_server.grants);
}

pub(crate) fn a_refused_peer_reads_the_reason<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    let offer = Offer { message: b"let me in".to_vec(), grants: Vec::new() };
    let connecting = transport.connect(&listener.address(), offer).unwrap();
    let error = connect_error::<F>(connecting, || {
        if let Some(incoming) = listener.poll(now()) {
            assert_eq!(incoming.received().message, b"let me in");
            incoming.refuse("another job: the model has 7 parameters, yours 8");
        }
    });
    let ConnectError::Refused { reason, .. } = error else { panic!("{error}") };
    assert_eq!(reason, "another job: the model has 7 parameters, yours 8");
    // The listener goes on.
    let _pair: Pair<F> = connect(&transport, &mut listener, Offer::default(), Offer::default());
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
    let transport = F::transport();
    let address = F::address();
    let listener = transport.listen(&address).unwrap();
    let taken = listener.address();
    assert!(transport.listen(&taken).is_err());
    drop(listener);
    transport.listen(&taken).expect("free again");
}

pub(crate) fn a_peer_that_leaves_before_the_answer_is_an_error_and_no_more<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    let mut connecting = transport.connect(&listener.address(), Offer::default()).unwrap();
    let incoming = wait_for("a peer", || {
        let _pending = slackline::transport::Connecting::poll(&mut connecting, now());
        listener.poll(now())
    });
    drop(connecting);
    match incoming.accept(Offer::default()) {
        Ok(mut endpoint) => wait_until_gone(&mut endpoint),
        Err(error) => assert!(matches!(error, ConnectError::Closed { .. }), "{error}"),
    }
    let _pair: Pair<F> = connect(&transport, &mut listener, Offer::default(), Offer::default());
}

pub(crate) fn memory_without_rights_cannot_be_granted<F: Fixture>() {
    let transport = F::transport();
    let listener = transport.listen(&F::address()).unwrap();
    let region = transport.allocate(4096, Access::LOCAL).unwrap();
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let error = transport.connect(&listener.address(), offer).err().unwrap();
    assert!(matches!(error, ConnectError::Offer { .. }), "{error}");
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
    let memory = slackline::mem::HostMemory::shared(4096).unwrap();
    assert_eq!(transport.register(memory, all).unwrap().access(), all);
    let memory = slackline::mem::HostMemory::anonymous(4096).unwrap();
    assert_eq!(transport.register(memory, Access::LOCAL).unwrap().len(), 4096);
}

pub(crate) fn each_side_notices_that_the_other_is_gone<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    let mut pair: Pair<F> = connect(&transport, &mut listener, Offer::default(), Offer::default());
    pair.client.check().unwrap();
    drop(pair.server);
    wait_until_gone(&mut pair.client);
    assert!(pair.client.check().is_err(), "it stays gone");
    assert!(pair.client.post(&[]).is_err(), "and says so when asked to post");

    let mut pair: Pair<F> = connect(&transport, &mut listener, Offer::default(), Offer::default());
    drop(pair.client);
    wait_until_gone(&mut pair.server);
}

pub(crate) fn many_peers_are_connected_at_once<F: Fixture>() {
    let transport = F::transport();
    let mut listener = transport.listen(&F::address()).unwrap();
    let mut pairs: Vec<Pair<F>> =
        (0..32).map(|_| connect(&transport, &mut listener, Offer::default(), Offer::default())).collect();
    drop(pairs.swap_remove(7));
    for pair in &mut pairs {
        pair.client.check().unwrap();
        pair.server.check().unwrap();
    }
}
