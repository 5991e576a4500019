//! Access that was not granted is refused, and only the peer that tried suffers.

use slackline::Transport;
use slackline::internals::mem::{Access, RemoteKey, RemoteSlice};
use slackline::internals::transport::{
    AtomicDomain, CompletionError, Endpoint, Inline, Offer, Operation, PostError, WorkRequest,
};

use super::fixture::{Fixture, completion, read, run, wait_until_gone, write};
use super::service::{Caller, Service, join};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A peer grants `access` and carries `offence` out; another, with the same rights, does what is `allowed`.
fn only_the_offender_suffers<F: Fixture>(
    access: Access,
    offence: impl Fn(&Service<F>, RemoteSlice) -> Operation,
    allowed: impl Fn(&Service<F>, RemoteSlice) -> Operation,
) {
    let service = Service::<F>::new(4096, access);
    let (mut offender, mut bystander) = (service.caller(), service.caller());
    run(&mut offender.endpoint, allowed(&service, offender.remote)).expect("allowed before");
    service.memory.store(0, 77);
    service.memory.store(8, 88);

    let result = run(&mut offender.endpoint, offence(&service, offender.remote));
    assert_eq!(result, Err(CompletionError::RemoteAccess));
    assert_eq!(service.memory.load(0), 77, "the memory is as it was");
    assert_eq!(service.memory.load(8), 88);
    wait_until_gone(&mut offender.endpoint);
    if F::ACCESS_VIOLATIONS_ARE_COUNTED {
        offender.server.wait_until_gone();
        assert_eq!(service.server.access_violations(), 1);
    }
    let request = WorkRequest::signalled(1, allowed(&service, offender.remote));
    let error = offender.endpoint.post(&[request]).unwrap_err();
    assert!(matches!(error, PostError::Disconnected(_)), "{error}");

    bystander.endpoint.check().expect("no other peer notices");
    assert!(bystander.server.is_connected(), "no other peer notices");
    run(&mut bystander.endpoint, allowed(&service, bystander.remote)).expect("allowed after");
    let mut newcomer = service.caller();
    run(&mut newcomer.endpoint, allowed(&service, newcomer.remote)).expect("others still get in");
}

fn a_write<F: Fixture>(service: &Service<F>, remote: RemoteSlice) -> Operation {
    write(service.local(&[1; 8]), remote.slice(0, 8).unwrap())
}

fn a_read<F: Fixture>(service: &Service<F>, remote: RemoteSlice) -> Operation {
    read(service.local(&[0; 8]), remote.slice(0, 8).unwrap())
}

fn an_add<F: Fixture>(service: &Service<F>, remote: RemoteSlice) -> Operation {
    Operation::FetchAdd { local: service.local(&[0; 8]), remote: remote.slice(0, 8).unwrap(), add: 1 }
}

fn a_forged_write<F: Fixture>(service: &Service<F>, remote: RemoteSlice) -> Operation {
    write(service.local(&vec![1; remote.len as usize]), remote)
}

pub(crate) fn a_write_to_a_read_only_grant_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    only_the_offender_suffers::<F>(Access::REMOTE_READ, a_write, a_read);
    let inline = |_: &Service<F>, remote: RemoteSlice| Operation::WriteInline {
        data: Inline::word(1),
        remote: remote.slice(0, 8).unwrap(),
    };
    only_the_offender_suffers::<F>(Access::REMOTE_READ, inline, a_read);
}

pub(crate) fn a_read_of_a_write_only_grant_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    only_the_offender_suffers::<F>(Access::REMOTE_WRITE, a_read, a_write);
}

pub(crate) fn an_atomic_without_the_right_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    if F::transport().capabilities().atomics != AtomicDomain::None {
        only_the_offender_suffers::<F>(ALL, an_add, a_read);
    }
}

pub(crate) fn an_unknown_key_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    let forged = |service: &Service<F>, remote: RemoteSlice| {
        let key = RemoteKey(remote.key.0 ^ 0x5A5A);
        a_forged_write(service, RemoteSlice { key, offset: 0, len: 8 })
    };
    only_the_offender_suffers::<F>(ALL, forged, a_write);
}

pub(crate) fn a_range_past_the_end_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    for (behind, len) in [(-1i64, 8u64), (0, 1), (4096, 8), (-8, 9)] {
        let forged = move |service: &Service<F>, remote: RemoteSlice| {
            let offset = (service.memory.len as i64 + behind) as u64;
            a_forged_write(service, RemoteSlice { offset, len, ..remote })
        };
        only_the_offender_suffers::<F>(ALL, forged, a_write);
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
    run(&mut bystander.client, write(service.local(&[1; 1000]), granted)).expect("all of the part");
    run(&mut bystander.client, read(service.local(&[0; 1000]), granted)).expect("and read");
    assert_eq!(service.memory.bytes(16..1018)[..], [&[0][..], &[1; 1000], &[0]].concat());
}

pub(crate) fn an_offset_that_overflows_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    for offset in [u64::MAX, u64::MAX - 7, u64::MAX - 8, 1 << 63] {
        let forged = move |service: &Service<F>, remote: RemoteSlice| {
            a_forged_write(service, RemoteSlice { offset, len: 8, ..remote })
        };
        only_the_offender_suffers::<F>(ALL, forged, a_write);
    }
}

pub(crate) fn requests_behind_a_refused_one_are_flushed_in_order<F: Fixture>() {
    let service = Service::<F>::new(4096, ALL);
    let Caller { mut endpoint, remote, server: _server } = service.caller();
    let word = |at, value| Operation::WriteInline {
        data: Inline::word(value),
        remote: RemoteSlice { offset: at, len: 8, ..remote },
    };
    let batch = [
        WorkRequest::signalled(1, word(0, 1)),
        WorkRequest::unsignalled(2, word(8, 2)),
        WorkRequest::unsignalled(3, word(1 << 40, 3)),
        WorkRequest::unsignalled(4, word(16, 4)),
        WorkRequest::signalled(5, word(24, 5)),
    ];
    endpoint.post(&batch).unwrap();
    let mut next = || {
        let completion = completion(&mut endpoint);
        (completion.id.0, completion.result)
    };
    assert_eq!(next(), (1, Ok(())));
    assert_eq!(next(), (3, Err(CompletionError::RemoteAccess)), "unsignalled, and heard of as it failed");
    assert_eq!(next(), (4, Err(CompletionError::Flushed)));
    assert_eq!(next(), (5, Err(CompletionError::Flushed)));
    let words = [0, 8, 16, 24].map(|at| service.memory.load(at));
    assert_eq!(words, [1, 2, 0, 0]);
    wait_until_gone(&mut endpoint);
    assert_eq!(endpoint.poll(), None);
}

pub(crate) fn keys_of_one_connection_do_not_open_another<F: Fixture>() {
    let one = Service::<F>::new(4096, ALL);
    let two = Service::<F>::new(4096, ALL);
    let (of_one, mut of_two) = (one.caller(), two.caller());
    if F::KEYS_ARE_OF_ONE_CONNECTION {
        let result = run(&mut of_two.endpoint, a_write(&two, of_one.remote));
        assert_eq!(result, Err(CompletionError::RemoteAccess));
    }
}
