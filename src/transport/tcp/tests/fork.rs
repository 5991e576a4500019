//! Forked children.
#![allow(unsafe_code)]

use super::*;
use crate::mem::{alone, true_in_a_forked_child};

#[test]
fn what_a_forked_child_inherits_is_dead_there_and_alive_here() {
    if !alone("transport::tcp::tests::fork::what_a_forked_child_inherits_is_dead_there_and_alive_here") {
        return;
    }
    let tcp = Tcp::new();
    let region = tcp.allocate(4096, ALL).unwrap();
    let mut listener = listen(&tcp);
    let (mut client, mut server, received) = pair(&tcp, &mut listener, offer(vec![region.whole()]));
    let word = received.grants[0].slice(0, 8).unwrap();
    let mut heartbeat_word = client.heartbeat_word(&word).unwrap();
    let write = |client: &mut TcpEndpoint, value| {
        let operation = Operation::WriteInline { data: Inline::word(value), remote: word };
        client.post(&[WorkRequest::signalled(1, operation)])
    };
    // SAFETY: the only other thread, which serves requests, sleeps and holds no lock that the child takes; the child
    // leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let dead = Err(crate::transport::Disconnected { reason: endpoint::FORKED });
        let posted = matches!(write(&mut client, 666), Err(PostError::Disconnected(gone)) if Err(gone.clone()) == dead);
        let all = posted
            && client.check() == dead
            && server.check() == dead
            && client.poll().is_none()
            && heartbeat_word.set(667) == dead
            && listener.poll(NOW).is_none();
        // Dropping the child's copies must neither end the parent's connection nor wait for the parent's thread.
        drop((client, server, listener, heartbeat_word, tcp));
        // SAFETY: ends this process without running what belongs to its parent.
        unsafe { libc::_exit(if all { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: the pid is that of our child; `status` is live.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "everything was dead in the child");
    assert_eq!(region.as_volatile().load_u64(0), 0);
    client.check().unwrap();
    server.check().unwrap();
    write(&mut client, 5).unwrap();
    assert_eq!(results(&mut client, 1), [Ok(())]);
    assert_eq!(region.as_volatile().load_u64(0), 5);
    heartbeat_word.set(6).unwrap();
    wait_for("the heartbeat word", || (region.as_volatile().load_u64(0) == 6).then_some(()));
    honest_peers_are_served(&tcp, &mut listener);
}

/// Runs `claim` while a forked child holds copies of all descriptors.
fn while_a_child_holds_copies(claim: impl FnOnce()) {
    // SAFETY: the child only sleeps in the kernel, until it is killed below.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; `alarm`, `pause` and `_exit` are async-signal-safe.
        unsafe {
            libc::alarm(120);
            libc::pause();
            libc::_exit(0);
        }
    }
    claim();
    // SAFETY: the pid is that of our child, not yet waited for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

#[test]
fn a_connection_ends_with_its_owner_even_if_a_forked_child_holds_a_copy() {
    let tcp = Tcp::new();
    let (client, mut server, _) = pair(&tcp, &mut listen(&tcp), Offer::default());
    while_a_child_holds_copies(|| {
        drop(client);
        wait_for("the server to notice", || server.check().err());
    });
}

#[test]
fn a_newcomer_that_is_dropped_hears_so_even_if_a_forked_child_holds_a_copy() {
    let tcp = Tcp::new();
    let listener = listen(&tcp);
    let mut newcomer = open_channel(&listener);
    while_a_child_holds_copies(|| {
        drop(listener);
        let error = wait_for("the end", || newcomer.poll().err());
        assert!(matches!(error, channel::ChannelError::Closed { .. }), "{error}");
    });
}

#[test]
fn a_forked_child_waits_for_no_lane_that_its_parent_had_locked() {
    if !alone("transport::tcp::tests::fork::a_forked_child_waits_for_no_lane_that_its_parent_had_locked") {
        return;
    }
    let tcp = Tcp::new();
    let region = tcp.allocate(4096, ALL).unwrap();
    let (mut client, _server, _) = pair(&tcp, &mut listen(&tcp), offer(vec![region.whole()]));
    let heartbeat = std::sync::Arc::clone(&client.heartbeat);
    let held = connection::lock(&heartbeat);
    assert!(true_in_a_forked_child(|| {
        // SAFETY: ends this child alone, where it waits for ever.
        unsafe { libc::alarm(20) };
        let lease = std::time::Duration::from_secs(10);
        client.hear_wake();
        client.allow_silence(lease);
        client.close_code().is_none()
    }));
    drop(held);
    client.check().unwrap();
}
