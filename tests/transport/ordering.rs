//! Effects that other threads and processes may see, and their order.

use std::sync::atomic::{AtomicBool, Ordering};

use slackline::Transport;
use slackline::internals::mem::{Access, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{
    AtomicDomain, Endpoint, Inline, Operation, PayloadMemory, WorkRequest,
};

use super::fixture::{Fixture, PATIENCE, completion, now, post, read, run, wait_for, wait_until_gone, write};
use super::payloads::Payloads;
use super::process::{Second, connect_to, second_process};
use super::service::{Caller, Service, granted};

const PAYLOAD_WORDS: usize = 96;
const PAYLOAD_BYTES: usize = PAYLOAD_WORDS * 8;
/// The offset of the announcing word: on a page of its own.
const WORD_AT: usize = 4096;
/// The offset at which the watcher notes what it saw.
const SEEN_AT: usize = 6144;
const TARGET_BYTES: usize = 8192;

/// Writes payloads and announces each by a word.
fn announce<F: Fixture>(
    transport: &F::Transport,
    endpoint: &mut impl Endpoint,
    [payloads, words]: [RemoteSlice; 2],
) {
    let local = F::Payloads::own(transport, PAYLOAD_BYTES).slice(0, PAYLOAD_BYTES).unwrap();
    let seen = transport.allocate(8, Access::LOCAL).unwrap().slice(0, 8).unwrap();
    let payload = payloads.slice(0, PAYLOAD_BYTES as u64).unwrap();
    let word = words.slice(WORD_AT as u64, 8).unwrap();
    for round in 1..=F::ROUNDS {
        F::Payloads::set(&local, &round.to_ne_bytes().repeat(PAYLOAD_WORDS));
        // The announcement is signalled: once it is complete the payload's memory may be used again.
        let announcement = Operation::WriteInline { data: Inline::word(round), remote: word };
        let batch = [
            WorkRequest::unsignalled(0, write(local.clone(), payload)),
            WorkRequest::signalled(round, announcement),
        ];
        post(endpoint, &batch);
        completion(endpoint).result.expect("a request failed");
        // After the last round the server may be gone.
        if round.is_multiple_of(F::AHEAD) && round < F::ROUNDS {
            wait_for("the watcher to follow", || {
                run(endpoint, read(seen.clone(), words.slice(SEEN_AT as u64, 8).unwrap())).unwrap();
                (seen.as_volatile().load_u64(0) + F::AHEAD > round).then_some(())
            });
        }
    }
}

/// In the server's process: polls the announcing word and checks what it announces, until the last round. Tells how
/// many it saw.
pub(crate) fn watch<F: Fixture>(
    transport: &F::Transport,
    payloads: &PayloadMemory,
    words: &MemoryRegion,
) -> u64 {
    let (payload, words) = (payloads.slice(0, PAYLOAD_BYTES).unwrap(), words.as_volatile());
    let (mut last, mut seen) = (0, 0);
    let mut deadline = now() + PATIENCE;
    while last < F::ROUNDS {
        let announced = words.load_u64(WORD_AT);
        assert!(announced >= last, "announcements go back from {last} to {announced}");
        if announced == last {
            assert!(now() < deadline, "waited in vain for an announcement after {last}");
            std::hint::spin_loop();
            continue;
        }
        F::Payloads::see(transport);
        for (index, word) in F::Payloads::bytes(&payload).chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            assert!(word >= announced, "word {index} of the payload is {word}, {announced} was announced");
        }
        (last, seen) = (announced, seen + 1);
        deadline = now() + PATIENCE;
        words.store_u64(SEEN_AT, announced);
    }
    seen
}

const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub(crate) fn a_word_never_announces_a_payload_that_is_not_there<F: Fixture>() {
    let service = Service::<F>::new(TARGET_BYTES, RIGHTS);
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    service.memory.watch(&service.words);
    announce::<F>(&service.transport, &mut endpoint, [remote, words]);
    let seen = service.memory.seen();
    assert!(seen >= F::ROUNDS / F::AHEAD, "{seen} announcements prove little");
}

pub(crate) fn a_word_never_announces_a_payload_that_is_not_there_across_processes<F: Fixture>() {
    let transport = F::transport();
    if let Some(address) = second_process() {
        let (mut endpoint, received) = connect_to::<F>(&transport, &address);
        announce::<F>(&transport, &mut endpoint, granted(&received));
        return wait_until_gone(&mut endpoint);
    }
    let service = Service::<F>::new(TARGET_BYTES, RIGHTS);
    let claim = "a_word_never_announces_a_payload_that_is_not_there_across_processes";
    let mut second = Second::start::<F>(claim, &service.listening.address);
    let accepted = service.accept();
    service.memory.watch(&service.words);
    let seen = service.memory.seen();
    assert!(seen >= F::ROUNDS / F::AHEAD, "{seen} announcements prove little");
    drop(accepted);
    second.wait();
}

fn add<F: Fixture>(transport: &F::Transport, endpoint: &mut impl Endpoint, words: RemoteSlice) {
    let local = transport.allocate(8, Access::LOCAL).unwrap().slice(0, 8).unwrap();
    let remote = words.slice(8, 8).unwrap();
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
        for Caller { endpoint, words, .. } in &mut callers {
            scope.spawn(move || {
                wait_for("the start", || go.load(Ordering::Relaxed).then_some(()));
                add::<F>(transport, endpoint, *words);
            });
        }
        go.store(true, Ordering::Relaxed);
    });
    assert_eq!(service.words.load(8), 2 * F::ADDS * 3);
}

pub(crate) fn concurrent_adds_from_two_processes_sum_up<F: Fixture>() {
    let transport = F::transport();
    if transport.capabilities().atomics == AtomicDomain::None {
        return;
    }
    if let Some(address) = second_process() {
        let (mut endpoint, received) = connect_to::<F>(&transport, &address);
        return add::<F>(&transport, &mut endpoint, granted(&received)[1]);
    }
    let service = Service::<F>::new(4096, RIGHTS | Access::REMOTE_ATOMIC);
    let mut caller = service.caller();
    let claim = "concurrent_adds_from_two_processes_sum_up";
    let mut second = Second::start::<F>(claim, &service.listening.address);
    let _accepted = service.accept();
    add::<F>(&service.transport, &mut caller.endpoint, caller.words);
    second.wait();
    assert_eq!(service.words.load(8), 2 * F::ADDS * 3);
}

pub(crate) fn a_killed_process_is_noticed<F: Fixture>() {
    let transport = F::transport();
    if let Some(address) = second_process() {
        let (mut endpoint, received) = connect_to::<F>(&transport, &address);
        let mut heartbeat_word =
            endpoint.heartbeat_word(&granted(&received)[1].slice(0, 8).unwrap()).unwrap();
        heartbeat_word.set(1).unwrap();
        return wait_until_gone(&mut endpoint);
    }
    let service = Service::<F>::new(4096, RIGHTS);
    let mut bystander = service.caller();
    let mut second = Second::start::<F>("a_killed_process_is_noticed", &service.listening.address);
    let accepted = service.accept();
    wait_for("a heartbeat", || (service.words.load(0) == 1).then_some(()));
    assert!(accepted.is_connected(), "it is alive");
    second.0.kill().unwrap();
    accepted.wait_until_gone();
    bystander.endpoint.check().expect("others go on");
}
