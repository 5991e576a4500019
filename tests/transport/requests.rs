//! Effects of requests, and the behaviour of the queue.

use std::time::{Duration, Instant};

use slackline::Transport;
use slackline::internals::mem::{Access, RemoteSlice};
use slackline::internals::transport::{
    AtomicDomain, Endpoint, Flags, Inline, Operation, PayloadSlice, PostError, WorkRequest,
};

use super::fixture::{EndpointOf, Fixture, completion, noise, post, read, run, wait_for, write};
use super::payloads::Payloads;
use super::service::{Caller, Service};

const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const SIZES: [usize; 8] = [0, 1, 8, 9, 64, 4096, 4097, (1 << 20) + 13];
const OFFSETS: [usize; 4] = [0, 1, 8, 4093];
const SPACE: usize = (1 << 20) + 8192;

/// Has the target's processor see what was written: a write may be complete before, and a READ behind it is not.
fn settle<F: Fixture>(service: &Service<F>, endpoint: &mut EndpointOf<F>, remote: RemoteSlice) {
    run(endpoint, read(service.local(&[0; 8]), remote.slice(0, 8).unwrap())).unwrap();
}

pub(crate) fn writes_of_every_size_arrive_at_odd_offsets<F: Fixture>() {
    let service = Service::<F>::new(SPACE, RIGHTS);
    let Caller { mut endpoint, remote, server: _server, .. } = service.caller();
    for (round, (len, offset)) in SIZES.iter().flat_map(|len| OFFSETS.map(|at| (*len, at))).enumerate() {
        let (before, new) = (noise(99, SPACE), noise(round as u64, len));
        service.memory.write(0, &before);
        run(&mut endpoint, write(service.payload(&new), remote.slice(offset as u64, len as u64).unwrap()))
            .unwrap();
        settle(&service, &mut endpoint, remote);
        let after = service.memory.bytes(0..SPACE);
        assert!(after[offset..offset + len] == new, "{len} bytes at {offset}");
        assert!(after[..offset] == before[..offset], "{len} bytes at {offset}: before it");
        assert!(after[offset + len..] == before[offset + len..], "{len} bytes at {offset}: behind it");
    }
}

pub(crate) fn reads_of_every_size_arrive_at_odd_offsets<F: Fixture>() {
    let service = Service::<F>::new(SPACE, RIGHTS);
    let Caller { mut endpoint, remote, server: _server, .. } = service.caller();
    let there = noise(5, SPACE);
    service.memory.write(0, &there);
    for len in SIZES {
        for offset in OFFSETS {
            let local = service.payload(&vec![0xEE; len]);
            run(&mut endpoint, read(local.clone(), remote.slice(offset as u64, len as u64).unwrap()))
                .unwrap();
            assert!(F::Payloads::bytes(&local) == there[offset..offset + len], "{len} bytes at {offset}");
        }
    }
}

pub(crate) fn inline_words_arrive_as_little_endian_words<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    let line = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
    let operation = Operation::WriteInline { data: Inline::line(line), remote: words.slice(64, 64).unwrap() };
    run(&mut endpoint, operation).unwrap();
    let word = Inline::word(0x0102_0304_0506_0708);
    run(&mut endpoint, Operation::WriteInline { data: word, remote: words.slice(128, 8).unwrap() }).unwrap();
    settle(&service, &mut endpoint, words);
    for (index, word) in line.iter().enumerate() {
        assert_eq!(service.words.load(64 + index * 8), *word);
    }
    assert_eq!(service.words.bytes(128..128 + 8), [8, 7, 6, 5, 4, 3, 2, 1]);
}

pub(crate) fn a_write_that_is_to_be_noticed_is_a_write_like_any_other<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    // No thread waits here: not where a write could wake it, and not where none could.
    service.listening.be_notified();
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    for word in 1..=200 {
        let data = Inline::word(word);
        let inline = Operation::WriteInline { data, remote: words.slice(8, 8).unwrap() };
        let long = write(service.payload(&noise(word, 4088)), remote.slice(8, 4088).unwrap());
        let mut batch = [WorkRequest::unsignalled(1, long), WorkRequest::signalled(2, inline)];
        batch.iter_mut().for_each(|request| request.flags |= Flags::NOTIFY);
        endpoint.post(&batch).unwrap();
        let done = completion(&mut endpoint);
        assert_eq!((done.id.0, done.result), (2, Ok(())));
        settle(&service, &mut endpoint, words);
        assert_eq!(service.words.load(8), word);
    }
    service.listening.wait(Duration::from_secs(1));
}

pub(crate) fn a_write_that_is_to_be_noticed_ends_a_wait<F: Fixture>() {
    const LONG: Duration = Duration::from_secs(20);
    let service = Service::<F>::new(4096, RIGHTS);
    if !service.listening.be_notified() {
        return;
    }
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    for word in 1..=3 {
        // What came before, this peer's arrival too, ends no later wait.
        service.listening.wait(Duration::ZERO);
        let data = Inline::word(word);
        let inline = Operation::WriteInline { data, remote: words.slice(8, 8).unwrap() };
        let mut request = WorkRequest::signalled(word, inline);
        request.flags |= Flags::NOTIFY;
        endpoint.post(&[request]).unwrap();
        completion(&mut endpoint).result.unwrap();
        let begun = Instant::now();
        service.listening.wait(LONG);
        assert!(begun.elapsed() < LONG, "write {word} woke nobody");
    }
}

pub(crate) fn atomics_do_what_they_say<F: Fixture>() {
    if F::transport().capabilities().atomics == AtomicDomain::None {
        return;
    }
    let service = Service::<F>::new(4096, RIGHTS | Access::REMOTE_ATOMIC);
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    let (local, word) = (service.local(&[0; 8]), words.slice(16, 8).unwrap());
    let there = || service.words.load(16);
    let mut step = |operation: &dyn Fn() -> Operation| {
        run(&mut endpoint, operation()).unwrap();
        local.as_volatile().load_u64(0)
    };
    let add = |add| Operation::FetchAdd { local: local.clone(), remote: word, add };
    let cas = |compare, swap| Operation::CompareSwap { local: local.clone(), remote: word, compare, swap };
    assert_eq!((step(&|| add(5)), there()), (0, 5));
    assert_eq!((step(&|| add(u64::MAX)), there()), (5, 4), "additions wrap");
    assert_eq!((step(&|| cas(3, 9)), there()), (4, 4), "no match, no store");
    assert_eq!((step(&|| cas(4, 9)), there()), (4, 9));
}

pub(crate) fn unsignalled_requests_stay_silent<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    let word =
        |value| Operation::WriteInline { data: Inline::word(value), remote: words.slice(0, 8).unwrap() };
    for value in 1..=10 {
        endpoint.post(&[WorkRequest::unsignalled(value, word(value))]).unwrap();
    }
    endpoint.post(&[WorkRequest::signalled(11, word(11))]).unwrap();
    assert_eq!(completion(&mut endpoint).id.0, 11, "the first that is heard of");
    assert_eq!(endpoint.poll(), None);
    settle(&service, &mut endpoint, words);
    assert_eq!(service.words.load(0), 11);
}

pub(crate) fn a_fenced_write_sends_what_the_request_before_it_has_brought<F: Fixture>() {
    let has_atomics = F::transport().capabilities().atomics != AtomicDomain::None;
    let rights = if has_atomics { RIGHTS | Access::REMOTE_ATOMIC } else { RIGHTS };
    let service = Service::<F>::new(2 * SPACE, rights);
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    let mut pass_on = |brings: Operation, sends: Operation| {
        let fenced =
            WorkRequest { flags: Flags::SIGNALLED | Flags::FENCE, ..WorkRequest::signalled(2, sends) };
        post(&mut endpoint, &[WorkRequest::unsignalled(1, brings), fenced]);
        let done = completion(&mut endpoint);
        assert_eq!((done.id.0, done.result), (2, Ok(())));
        settle(&service, &mut endpoint, remote);
        settle(&service, &mut endpoint, words);
    };
    for len in SIZES.into_iter().filter(|len| *len > 0) {
        let there = noise(len as u64, len);
        service.memory.write(0, &there);
        service.memory.write(SPACE, &vec![0; len]);
        let local = service.payload(&vec![0xEE; len]);
        let [from, to] = [0, SPACE as u64].map(|at| remote.slice(at, len as u64).unwrap());
        pass_on(read(local.clone(), from), write(local, to));
        assert!(service.memory.bytes(SPACE..SPACE + len) == there, "{len} bytes");
    }
    if has_atomics {
        let (local, [from, to]) =
            (service.local(&[0xEE; 8]), [64, 128].map(|at| words.slice(at, 8).unwrap()));
        service.words.store(64, 41);
        pass_on(Operation::FetchAdd { local: local.clone(), remote: from, add: 1 }, write(local, to));
        assert_eq!([64, 128].map(|at| service.words.load(at)), [42, 41]);
    }
}

/// In the thread that does it, with requests that the queue has room for.
pub(crate) fn posting_and_polling_allocate_nothing<F: Fixture>() {
    let service = Service::<F>::new(SPACE, RIGHTS | Access::REMOTE_ATOMIC);
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    let (long, short) = (service.payload(&noise(1, 100_000)), service.local(&[0; 8]));
    let (all_of_long, word) = (remote.slice(0, 100_000).unwrap(), words.slice(0, 8).unwrap());
    let mut batch = vec![
        WorkRequest::unsignalled(1, write(long.clone(), all_of_long)),
        WorkRequest::unsignalled(2, Operation::WriteInline { data: Inline::word(3), remote: word }),
        WorkRequest::unsignalled(3, read(long, all_of_long)),
        WorkRequest::signalled(4, read(short.clone(), word)),
    ];
    if service.transport.capabilities().atomics != AtomicDomain::None {
        batch.insert(
            3,
            WorkRequest::unsignalled(5, Operation::FetchAdd { local: short, remote: word, add: 1 }),
        );
    }
    let mut round = || {
        endpoint.post(&batch).unwrap();
        assert_eq!(completion(&mut endpoint).result, Ok(()));
    };
    // What grows once has grown by then.
    (0..10).for_each(|_| round());
    let allocated = allocation_counter::measure(|| (0..100).for_each(|_| round()));
    if F::ALLOCATES_NOTHING {
        assert_eq!(allocated.count_total, 0, "{allocated:?}");
    }
}

pub(crate) fn signalled_requests_complete_in_order<F: Fixture>() {
    let service = Service::<F>::new(SPACE, RIGHTS);
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    let long = service.payload(&noise(1, 100_000));
    let mut batch = Vec::new();
    for id in 0..30 {
        let operation = match id % 3 {
            0 => write(long.clone(), remote.slice(0, 100_000).unwrap()),
            1 => Operation::WriteInline { data: Inline::word(id), remote: words.slice(0, 8).unwrap() },
            _ => read(service.payload(&[0; 8]), words.slice(0, 8).unwrap()),
        };
        batch.push(WorkRequest::signalled(1000 + id, operation));
    }
    endpoint.post(&batch[..13]).unwrap();
    endpoint.post(&batch[13..]).unwrap();
    for id in 0..30 {
        let completion = completion(&mut endpoint);
        assert_eq!((completion.id.0, completion.result), (1000 + id, Ok(())));
    }
    assert_eq!(endpoint.poll(), None);
}

pub(crate) fn a_full_queue_posts_nothing_and_recovers_by_polling<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    let depth = service.transport.capabilities().queue_depth;
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    let word = |at, value| {
        let operation =
            Operation::WriteInline { data: Inline::word(value), remote: words.slice(at, 8).unwrap() };
        WorkRequest::signalled(value, operation)
    };
    for value in 0..depth as u64 {
        endpoint.post(&[word(0, value)]).expect("up to its depth, the queue takes requests");
    }
    let one_more = endpoint.post(&[word(8, 1)]);
    assert_eq!(one_more, Err(PostError::QueueFull { free: 0, batch: 1 }));
    for value in 0..3 {
        assert_eq!(completion(&mut endpoint).id.0, value);
    }
    let too_many: Vec<_> = (0..4).map(|_| word(8, 1)).collect();
    assert_eq!(endpoint.post(&too_many), Err(PostError::QueueFull { free: 3, batch: 4 }));
    assert_eq!(endpoint.check(), Ok(()), "full is not failed");
    endpoint.post(&too_many[..2]).expect("part of it fits");
    for value in (3..depth as u64).chain([1, 1]) {
        assert_eq!(completion(&mut endpoint).id.0, value);
    }
    assert_eq!(endpoint.poll(), None, "what did not fit was never posted");
}

pub(crate) fn a_batch_longer_than_the_queue_is_refused_for_good<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    let depth = service.transport.capabilities().queue_depth;
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    let remote = words.slice(0, 8).unwrap();
    let request = WorkRequest::signalled(1, Operation::WriteInline { data: Inline::word(9), remote });
    let batch = vec![request; depth + 1];
    assert_eq!(endpoint.post(&batch), Err(PostError::BatchTooLong { batch: depth + 1, depth }));
    assert_eq!(endpoint.poll(), None);
    assert_eq!(service.words.load(0), 0);
    endpoint.post(&batch[..depth]).expect("the longest that fits");
}

pub(crate) fn malformed_requests_are_named_and_nothing_is_posted<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS | Access::REMOTE_ATOMIC);
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    let (payload, local) = (service.payload(&[7; 64]), service.local(&[7; 64]));
    let good = Operation::WriteInline { data: Inline::word(1), remote: words.slice(0, 8).unwrap() };
    let [short, short_words] = [remote, words].map(|remote| remote.slice(64, 63).unwrap());
    let eight = |at| local.slice(at, 8).unwrap();
    let bad = [
        write(payload.clone(), short),
        read(payload.clone(), short),
        Operation::WriteInline { data: Inline::line([0; 8]), remote: short_words },
        Operation::FetchAdd { local: eight(0), remote: words.slice(4, 8).unwrap(), add: 1 },
        Operation::FetchAdd { local: eight(4), remote: words.slice(8, 8).unwrap(), add: 1 },
        Operation::CompareSwap {
            local: local.slice(0, 16).unwrap(),
            remote: words.slice(0, 16).unwrap(),
            compare: 0,
            swap: 1,
        },
    ];
    for operation in bad {
        let batch = [WorkRequest::signalled(1, good.clone()), WorkRequest::signalled(2, operation)];
        let error = endpoint.post(&batch).unwrap_err();
        assert!(matches!(error, PostError::Malformed { index: 1, .. }), "{error}");
        assert_eq!(endpoint.poll(), None);
    }
    assert_eq!(service.words.load(0), 0, "not even the good part");
    run(&mut endpoint, good).expect("the endpoint goes on");
}

pub(crate) fn an_endpoint_may_be_dropped_with_completions_not_polled<F: Fixture>() {
    let service = Service::<F>::new(SPACE, RIGHTS);
    for _ in 0..10 {
        let Caller { mut endpoint, remote, server, .. } = service.caller();
        for id in 0..20 {
            let local = F::Payloads::own(&service.transport, 1 << 20).slice(0, 1 << 20).unwrap();
            let request = WorkRequest::signalled(id, read(local, remote.slice(0, 1 << 20).unwrap()));
            endpoint.post(&[request]).unwrap();
        }
        drop(endpoint);
        server.wait_until_gone();
    }
}

pub(crate) fn memory_outlives_its_region_while_a_request_holds_it<F: Fixture>() {
    let service = Service::<F>::new(SPACE, RIGHTS);
    let Caller { mut endpoint, remote, server: _server, .. } = service.caller();
    let new = noise(8, 1 << 20);
    let request = WorkRequest::signalled(1, write(service.payload(&new), remote.slice(0, 1 << 20).unwrap()));
    endpoint.post(&[request]).unwrap();
    assert_eq!(completion(&mut endpoint).result, Ok(()));
    settle(&service, &mut endpoint, remote);
    assert!(service.memory.bytes(0..1 << 20) == new);
}

pub(crate) fn mapped_memory_is_the_peers_own_where_it_is_in_place<F: Fixture>() {
    let service = Service::<F>::new(8192, RIGHTS);
    let Caller { endpoint, words, server: _server, .. } = service.caller();
    let word = words.slice(4096, 8).unwrap();
    if !service.transport.capabilities().in_place {
        assert!(endpoint.map(&word).is_none());
        return;
    }
    let mapped = endpoint.map(&word).expect("granted");
    service.words.store(4096, 5);
    assert_eq!(mapped.as_volatile().load_u64(0), 5);
    mapped.as_volatile().store_u64(0, 6);
    assert_eq!(service.words.load(4096), 6);
    let len = service.words.len as u64;
    for offset in [len - 7, len, u64::MAX - 3] {
        assert!(endpoint.map(&RemoteSlice { offset, ..word }).is_none(), "offset {offset}");
    }
    drop(endpoint);
    assert_eq!(mapped.as_volatile().load_u64(0), 6, "a mapped slice keeps its memory");
}

pub(crate) fn a_read_into_memory_mapped_read_only_is_malformed<F: Fixture>() {
    let service = Service::<F>::new(4096, Access::REMOTE_READ);
    if !service.transport.capabilities().in_place {
        return;
    }
    let Caller { mut endpoint, remote, words, server: _server } = service.caller();
    let [payload, word] = [remote, words].map(|remote| remote.slice(0, 8).unwrap());
    let is_mapped = endpoint.map(&payload).is_some();
    assert_eq!(is_mapped, !F::Payloads::ARE_GRANTED_ON_A_GPU, "no processor reads a GPU");
    let on_host = endpoint.map(&word).map(PayloadSlice::from);
    let on_gpu = endpoint.map_on_gpu(&payload).map(PayloadSlice::from);
    for mapped in [Some(on_host.expect("granted")), on_gpu].into_iter().flatten() {
        let error = endpoint.post(&[WorkRequest::signalled(1, read(mapped, word))]).unwrap_err();
        assert!(matches!(error, PostError::Malformed { index: 0, .. }), "{error}");
    }
}

pub(crate) fn a_heartbeat_word_sets_its_word_from_another_thread<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    let mut heartbeat_word = endpoint.heartbeat_word(&words.slice(256, 8).unwrap()).unwrap();
    let beating = std::thread::spawn(move || {
        for value in 1..=1000 {
            heartbeat_word.set(value).expect("the connection stands");
        }
        heartbeat_word
    });
    for value in 0..100 {
        let remote = words.slice(0, 8).unwrap();
        run(&mut endpoint, Operation::WriteInline { data: Inline::word(value), remote }).unwrap();
    }
    let mut heartbeat_word = beating.join().unwrap();
    let word = || service.words.load(256);
    // A beat that finds no room is left out, since a later one does as well.
    wait_for("a later beat", || {
        heartbeat_word.set(1000).expect("the connection stands");
        (word() == 1000).then_some(())
    });
    drop(endpoint);
    wait_for("the heartbeat word to go out with its endpoint", || heartbeat_word.set(1001).err());
}

pub(crate) fn a_heartbeat_word_is_one_aligned_writable_word<F: Fixture>() {
    let service = Service::<F>::new(4096, RIGHTS);
    let Caller { mut endpoint, words, server: _server, .. } = service.caller();
    for (offset, len) in [(0, 16), (4, 8), (4096, 8), (0, 0)] {
        let wrong = endpoint.heartbeat_word(&RemoteSlice { key: words.key, offset, len });
        assert!(wrong.is_err(), "{len} bytes at {offset}");
    }
    endpoint.check().expect("asking for it does no harm");
    let service = Service::<F>::new(4096, Access::REMOTE_READ);
    let Caller { endpoint, words, server: _server, .. } = service.caller();
    assert!(endpoint.heartbeat_word(&words.slice(0, 8).unwrap()).is_err());
}
