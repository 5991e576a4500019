//! Effects that other threads and processes may see, and their order.

use std::sync::atomic::{AtomicBool, Ordering};

use slackline::Transport;
use slackline::internals::mem::{Access, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{AtomicDomain, Endpoint, Inline, Operation, WorkRequest};

use super::fixture::{Fixture, PATIENCE, completion, now, post, read, run, wait_for, wait_until_gone, write};
use super::process::{Second, connect_to, second_process};
use super::service::{Caller, Service};

const PAYLOAD_WORDS: usize = 96;
const PAYLOAD_BYTES: usize = PAYLOAD_WORDS * 8;
/// The offset of the announcing word: on a page of its own.
const WORD_AT: usize = 4096;
/// The offset at which the watcher notes what it saw.
const SEEN_AT: usize = 6144;
const TARGET_BYTES: usize = 8192;
/// Rounds that the writer may be ahead of the watcher: without a limit, a watcher that gets no processor sees little.
const AHEAD: u64 = 256;

/// Writes payloads and announces each.
fn announce<F: Fixture>(transport: &F::Transport, endpoint: &mut impl Endpoint, remote: RemoteSlice) {
    let local = transport.allocate(PAYLOAD_BYTES, Access::LOCAL).unwrap();
    let seen = transport.allocate(8, Access::LOCAL).unwrap().slice(0, 8).unwrap();
    let payload = remote.slice(0, PAYLOAD_BYTES as u64).unwrap();
    let word = remote.slice(WORD_AT as u64, 8).unwrap();
    for round in 1..=F::ROUNDS {
        for index in 0..PAYLOAD_WORDS {
            local.as_volatile().store_u64(index * 8, round);
        }
        // The announcement is signalled: once it is complete the payload's memory may be used again.
        let announcement = Operation::WriteInline { data: Inline::word(round), remote: word };
        let batch = [
            WorkRequest::unsignalled(0, write(local.whole(), payload)),
            WorkRequest::signalled(round, announcement),
        ];
        post(endpoint, &batch);
        completion(endpoint).result.expect("a request failed");
        if round.is_multiple_of(AHEAD) {
            wait_for("the watcher to follow", || {
                run(endpoint, read(seen.clone(), remote.slice(SEEN_AT as u64, 8).unwrap())).unwrap();
                (seen.as_volatile().load_u64(0) + AHEAD > round).then_some(())
            });
        }
    }
}

/// In the server's process: polls the announcing word and checks what it announces, until the last round. Tells how
/// many it saw.
pub(crate) fn watch<F: Fixture>(region: &MemoryRegion) -> u64 {
    let memory = region.as_volatile();
    let (mut last, mut seen) = (0, 0);
    let mut deadline = now() + PATIENCE;
    while last < F::ROUNDS {
        let announced = memory.load_u64(WORD_AT);
        assert!(announced >= last, "announcements go back from {last} to {announced}");
        if announced == last {
            assert!(now() < deadline, "waited in vain for an announcement after {last}");
            std::hint::spin_loop();
            continue;
        }
        for index in 0..PAYLOAD_WORDS {
            let word = memory.load_u64(index * 8);
            assert!(word >= announced, "word {index} of the payload is {word}, {announced} was announced");
        }
        (last, seen) = (announced, seen + 1);
        deadline = now() + PATIENCE;
        memory.store_u64(SEEN_AT, announced);
    }
    seen
}

const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub(crate) fn a_word_never_announces_a_payload_that_is_not_there<F: Fixture>() {
    let service = Service::<F>::new(TARGET_BYTES, RIGHTS);
    let Caller { mut endpoint, remote, server: _server } = service.caller();
    service.memory.watch();
    announce::<F>(&service.transport, &mut endpoint, remote);
    let seen = service.memory.seen();
    assert!(seen >= F::ROUNDS / AHEAD, "{seen} announcements prove little");
}

pub(crate) fn a_word_never_announces_a_payload_that_is_not_there_across_processes<F: Fixture>() {
    let transport = F::transport();
    if let Some(address) = second_process() {
        let (mut endpoint, received) = connect_to::<F>(&transport, &address);
        announce::<F>(&transport, &mut endpoint, received.grants[0]);
        return wait_until_gone(&mut endpoint);
    }
    let service = Service::<F>::new(TARGET_BYTES, RIGHTS);
    let claim = "a_word_never_announces_a_payload_that_is_not_there_across_processes";
    let mut second = Second::start::<F>(claim, &service.listening.address);
    let accepted = service.accept();
    service.memory.watch();
    let seen = service.memory.seen();
    assert!(seen >= F::ROUNDS / AHEAD, "{seen} announcements prove little");
    drop(accepted);
    second.wait();
}

fn add<F: Fixture>(transport: &F::Transport, endpoint: &mut impl Endpoint, remote: RemoteSlice) {
    let local = transport.allocate(8, Access::LOCAL).unwrap().slice(0, 8).unwrap();
    let remote = remote.slice(8, 8).unwrap();
    let mut last = None;
    for id in 0..F::ADDS {
        let operation = Operation::FetchAdd { local: local.clone(), remote, add: 3 };
        post(endpoint, &[WorkRequest::signalled(id, operation)]);
        completion(endpoint).result.expect("an atomic failed");
        let before = local.as_volatile().load_u64(0);
        assert!(last.is_none_or(|last| before >= last + 3), "the word grew by what was added");
        last = Some(before);
    }
}

pub(crate) fn concurrent_adds_from_two_endpoints_sum_up<F: Fixture>() {
    if F::transport().capabilities().atomics == AtomicDomain::None {
        return;
    }
    let service = Service::<F>::new(4096, RIGHTS | Access::REMOTE_ATOMIC);
    let mut callers = [service.caller(), service.caller()];
    let go = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (transport, go) = (&service.transport, &go);
        for Caller { endpoint, remote, .. } in &mut callers {
            scope.spawn(move || {
                wait_for("the start", || go.load(Ordering::Relaxed).then_some(()));
                add::<F>(transport, endpoint, *remote);
            });
        }
        go.store(true, Ordering::Relaxed);
    });
    assert_eq!(service.memory.load(8), 2 * F::ADDS * 3);
}

pub(crate) fn concurrent_adds_from_two_processes_sum_up<F: Fixture>() {
    let transport = F::transport();
    if transport.capabilities().atomics == AtomicDomain::None {
        return;
    }
    if let Some(address) = second_process() {
        let (mut endpoint, received) = connect_to::<F>(&transport, &address);
        return add::<F>(&transport, &mut endpoint, received.grants[0]);
    }
    let service = Service::<F>::new(4096, RIGHTS | Access::REMOTE_ATOMIC);
    let mut caller = service.caller();
    let claim = "concurrent_adds_from_two_processes_sum_up";
    let mut second = Second::start::<F>(claim, &service.listening.address);
    let _accepted = service.accept();
    add::<F>(&service.transport, &mut caller.endpoint, caller.remote);
    second.wait();
    assert_eq!(service.memory.load(8), 2 * F::ADDS * 3);
}

pub(crate) fn a_killed_process_is_noticed<F: Fixture>() {
    let transport = F::transport();
    if let Some(address) = second_process() {
        let (mut endpoint, received) = connect_to::<F>(&transport, &address);
        let mut heartbeat_word = endpoint.heartbeat_word(&received.grants[0].slice(0, 8).unwrap()).unwrap();
        heartbeat_word.set(1).unwrap();
        return wait_until_gone(&mut endpoint);
    }
    let service = Service::<F>::new(4096, RIGHTS);
    let mut bystander = service.caller();
    let mut second = Second::start::<F>("a_killed_process_is_noticed", &service.listening.address);
    let accepted = service.accept();
    wait_for("a heartbeat", || (service.memory.load(0) == 1).then_some(()));
    assert!(accepted.is_connected(), "it is alive");
    second.0.kill().unwrap();
    accepted.wait_until_gone();
    bystander.endpoint.check().expect("others go on");
}
