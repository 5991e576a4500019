//! Access that was not granted is refused, and only the peer that tried suffers.

use slackline::Transport;
use slackline::internals::mem::{Access, RemoteKey, RemoteSlice};
use slackline::internals::transport::{
    AtomicDomain, CompletionError, Endpoint, Inline, Offer, Operation, PostError, WorkRequest,
};

use super::fixture::{Fixture, completion, read, run, wait_for, wait_until_gone, write};
use super::payloads::Payloads;
use super::service::{Caller, Service, join};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// What a peer posts, to memory of payloads and to that of words.
type Post<F> = fn(&Service<F>, &Caller<F>) -> Operation;

/// A peer that is granted `access` carries `offence` out; another, with the same rights, does what is `allowed`.
fn only_the_offender_suffers<F: Fixture>(
    access: Access,
    offence: impl Fn(&Service<F>, &Caller<F>) -> Operation,
    allowed: Post<F>,
) {
    let service = Service::<F>::new(4096, access);
    let (mut offender, mut bystander) = (service.caller(), service.caller());
    // What is allowed changes nothing, whenever it gets into memory.
    let before = [[7; 8], [1; 8]].concat();
    service.memory.write(0, &before);
    service.words.write(0, &before);
    let operation = allowed(&service, &offender);
    run(&mut offender.endpoint, operation).expect("allowed before");

    let operation = offence(&service, &offender);
    let result = run(&mut offender.endpoint, operation);
    assert_eq!(result, Err(CompletionError::RemoteAccess));
    assert_eq!(service.memory.bytes(0..16), before, "the memory is as it was");
    assert_eq!(service.words.bytes(0..16), before, "the memory is as it was");
    wait_until_gone(&mut offender.endpoint);
    if F::ACCESS_VIOLATIONS_ARE_COUNTED {
        offender.server.wait_until_gone();
        assert_eq!(service.server.access_violations(), 1);
    }
    let request = WorkRequest::signalled(1, allowed(&service, &offender));
    let error = offender.endpoint.post(&[request]).unwrap_err();
    assert!(matches!(error, PostError::Disconnected(_)), "{error}");

    bystander.endpoint.check().expect("no other peer notices");
    assert!(bystander.server.is_connected(), "no other peer notices");
    let operation = allowed(&service, &bystander);
    run(&mut bystander.endpoint, operation).expect("allowed after");
    let mut newcomer = service.caller();
    let operation = allowed(&service, &newcomer);
    run(&mut newcomer.endpoint, operation).expect("others still get in");
}

fn a_write<F: Fixture>(service: &Service<F>, caller: &Caller<F>) -> Operation {
    write(service.payload(&[1; 8]), caller.remote.slice(0, 8).unwrap())
}

fn an_allowed_write<F: Fixture>(service: &Service<F>, caller: &Caller<F>) -> Operation {
    write(service.payload(&[1; 8]), caller.remote.slice(8, 8).unwrap())
}

fn a_read<F: Fixture>(service: &Service<F>, caller: &Caller<F>) -> Operation {
    read(service.payload(&[0; 8]), caller.remote.slice(0, 8).unwrap())
}

fn a_word(remote: RemoteSlice) -> Operation {
    Operation::WriteInline { data: Inline::word(1), remote: remote.slice(0, 8).unwrap() }
}

fn an_add<F: Fixture>(service: &Service<F>, remote: RemoteSlice) -> Operation {
    Operation::FetchAdd { local: service.local(&[0; 8]), remote: remote.slice(0, 8).unwrap(), add: 1 }
}

fn a_forged_write<F: Fixture>(service: &Service<F>, remote: RemoteSlice) -> Operation {
    write(service.payload(&vec![1; remote.len as usize]), remote)
}

pub(crate) fn a_write_to_a_read_only_grant_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    only_the_offender_suffers::<F>(Access::REMOTE_READ, a_write, a_read);
    only_the_offender_suffers::<F>(Access::REMOTE_READ, |_, caller| a_word(caller.words), a_read);
    only_the_offender_suffers::<F>(Access::REMOTE_READ, |_, caller| a_word(caller.remote), a_read);
}

pub(crate) fn a_read_of_a_write_only_grant_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    if !(F::Payloads::ARE_GRANTED_ON_A_GPU && F::WRITTEN_MAY_BE_READ) {
        only_the_offender_suffers::<F>(Access::REMOTE_WRITE, a_read, an_allowed_write);
    }
    let of_words = |service: &Service<F>, caller: &Caller<F>| {
        read(service.payload(&[0; 8]), caller.words.slice(0, 8).unwrap())
    };
    only_the_offender_suffers::<F>(Access::REMOTE_WRITE, of_words, an_allowed_write);
}

pub(crate) fn an_atomic_without_the_right_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    if F::transport().capabilities().atomics != AtomicDomain::None {
        only_the_offender_suffers::<F>(ALL, |service, caller| an_add(service, caller.words), a_read);
    }
}

/// Words that are counted are never on a GPU, whatever was granted.
pub(crate) fn an_atomic_on_a_gpu_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    if !F::Payloads::ARE_GRANTED_ON_A_GPU {
        return;
    }
    let cas = |service: &Service<F>, caller: &Caller<F>| {
        let (local, remote) = (service.local(&[0; 8]), caller.remote.slice(0, 8).unwrap());
        Operation::CompareSwap { local, remote, compare: 0x0707_0707_0707_0707, swap: 0 }
    };
    let all = ALL | Access::REMOTE_ATOMIC;
    only_the_offender_suffers::<F>(all, |service, caller| an_add(service, caller.remote), a_read);
    only_the_offender_suffers::<F>(all, cas, a_read);
}

/// The protocol has no words there; what a program writes so is a short payload, in order with others.
pub(crate) fn a_word_on_a_gpu_arrives_as_a_payload_does<F: Fixture>() {
    if !F::Payloads::ARE_GRANTED_ON_A_GPU {
        return;
    }
    let service = Service::<F>::new(4096, ALL);
    let mut caller = service.caller();
    let line = Inline::line([2; 8]);
    let batch = [
        WorkRequest::unsignalled(1, write(service.payload(&[7; 4096]), caller.remote)),
        WorkRequest::unsignalled(2, a_word(caller.remote)),
        WorkRequest::unsignalled(
            3,
            Operation::WriteInline { data: line, remote: caller.remote.slice(64, 64).unwrap() },
        ),
        WorkRequest::signalled(4, a_word(caller.words)),
    ];
    caller.endpoint.post(&batch).unwrap();
    let mut told = None;
    wait_for("the word that announces the others", || {
        told = told.or_else(|| caller.endpoint.poll());
        (service.words.load(0) == 1).then_some(())
    });
    let (one, line) = (1u64.to_le_bytes(), [2u64.to_le_bytes(); 8].concat());
    let expected = [&one[..], &[7; 56], &line[..], &[7; 3968]].concat();
    assert_eq!(service.memory.bytes(0..4096), expected);
    let told = told.unwrap_or_else(|| completion(&mut caller.endpoint));
    assert_eq!((told.id.0, told.result), (4, Ok(())));
}

pub(crate) fn an_unknown_key_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    let forged = |service: &Service<F>, caller: &Caller<F>| {
        let key = RemoteKey(caller.remote.key.0 ^ 0x5A5A);
        a_forged_write(service, RemoteSlice { key, offset: 0, len: 8 })
    };
    only_the_offender_suffers::<F>(ALL, forged, an_allowed_write);
}

pub(crate) fn a_range_past_the_end_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    for (behind, len) in [(-1i64, 8u64), (0, 1), (4096, 8), (-8, 9)] {
        let forged = move |service: &Service<F>, caller: &Caller<F>| {
            let offset = (service.memory.len as i64 + behind) as u64;
            a_forged_write(service, RemoteSlice { offset, len, ..caller.remote })
        };
        only_the_offender_suffers::<F>(ALL, forged, an_allowed_write);
    }
}

/// A part of a page: a device may know memory by pages, and grants none of their rest.
pub(crate) fn a_part_that_is_granted_opens_nothing_beside_it<F: Fixture>() {
    const PART: std::ops::Range<usize> = 17..1017;
    if !F::GRANTS_END_WITH_THEIR_PART {
        return;
    }
    let service = Service::<F>::new(4096, ALL);
    let join = || {
        let grants = [service.memory.part(PART)];
        join(&service.transport, &service.listening, Offer::default(), &[], &grants)
    };
    let mut bystander = join();
    let granted = bystander.at_client.grants[0];
    for (before, behind) in [(1, 0), (0, 1), (17, 3079)] {
        let mut offender = join();
        let part = offender.at_client.grants[0];
        let remote =
            RemoteSlice { offset: part.offset.wrapping_sub(before), len: part.len + before + behind, ..part };
        let refused = run(&mut offender.client, a_forged_write(&service, remote));
        assert_eq!(refused, Err(CompletionError::RemoteAccess), "{before} bytes before, {behind} behind");
    }
    let is_untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    assert!(is_untouched(&service.memory.bytes(0..17)) && is_untouched(&service.memory.bytes(1017..4096)));
    run(&mut bystander.client, write(service.payload(&[1; 1000]), granted)).expect("all of the part");
    run(&mut bystander.client, read(service.payload(&[0; 1000]), granted)).expect("and read");
    assert_eq!(service.memory.bytes(16..1018)[..], [&[0][..], &[1; 1000], &[0]].concat());
}

pub(crate) fn an_offset_that_overflows_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    for offset in [u64::MAX, u64::MAX - 7, u64::MAX - 8, 1 << 63] {
        let forged = move |service: &Service<F>, caller: &Caller<F>| {
            a_forged_write(service, RemoteSlice { offset, len: 8, ..caller.remote })
        };
        only_the_offender_suffers::<F>(ALL, forged, an_allowed_write);
    }
}

pub(crate) fn requests_behind_a_refused_one_are_flushed_in_order<F: Fixture>() {
    fn beyond(remote: RemoteSlice, len: u64) -> RemoteSlice {
        RemoteSlice { offset: 1 << 40, len, ..remote }
    }
    let offences: [Post<F>; 2] = [
        |_, caller| a_word(beyond(caller.words, 8)),
        |service, caller| write(service.payload(&[1; 100]), beyond(caller.remote, 100)),
    ];
    for offence in offences {
        let service = Service::<F>::new(4096, ALL);
        let mut caller = service.caller();
        let word = |at, value| Operation::WriteInline {
            data: Inline::word(value),
            remote: caller.words.slice(at, 8).unwrap(),
        };
        let payload = |at, byte| write(service.payload(&[byte; 100]), caller.remote.slice(at, 100).unwrap());
        let batch = [
            WorkRequest::signalled(1, word(0, 1)),
            WorkRequest::unsignalled(2, payload(100, 2)),
            WorkRequest::unsignalled(3, offence(&service, &caller)),
            WorkRequest::unsignalled(4, payload(200, 4)),
            WorkRequest::signalled(5, word(24, 5)),
        ];
        caller.endpoint.post(&batch).unwrap();
        let mut next = || {
            let completion = completion(&mut caller.endpoint);
            (completion.id.0, completion.result)
        };
        assert_eq!(next(), (1, Ok(())));
        assert_eq!(next(), (3, Err(CompletionError::RemoteAccess)), "unsignalled, and heard of as it failed");
        assert_eq!(next(), (4, Err(CompletionError::Flushed)));
        assert_eq!(next(), (5, Err(CompletionError::Flushed)));
        wait_for("what was before it", || {
            let is_there = service.words.load(0) == 1 && service.memory.bytes(100..200) == [2; 100];
            is_there.then_some(())
        });
        assert_eq!(service.words.load(24), 0);
        assert_eq!(service.memory.bytes(200..300), [0; 100]);
        wait_until_gone(&mut caller.endpoint);
        assert_eq!(caller.endpoint.poll(), None);
    }
}

pub(crate) fn keys_of_one_connection_do_not_open_another<F: Fixture>() {
    let one = Service::<F>::new(4096, ALL);
    let two = Service::<F>::new(4096, ALL);
    let (of_one, mut of_two) = (one.caller(), two.caller());
    if F::KEYS_ARE_OF_ONE_CONNECTION {
        let result = run(&mut of_two.endpoint, a_write(&two, &of_one));
        assert_eq!(result, Err(CompletionError::RemoteAccess));
    }
}
