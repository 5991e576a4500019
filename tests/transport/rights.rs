//! What was not granted is refused, and only the one who tried suffers.

use slackline::mem::{Access, RemoteKey, RemoteSlice};
use slackline::transport::{
    AtomicDomain, CompletionError, Endpoint, Inline, Operation, PostError, Transport, WorkRequest,
};

use super::fixture::{Client, Fixture, Target, completion, read, run, wait_until_gone, write};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A peer grants `access` and carries `offence` out; another, with the same rights, does what is `allowed`.
fn only_the_offender_suffers<F: Fixture>(
    access: Access,
    offence: impl Fn(&Target<F>, RemoteSlice) -> Operation,
    allowed: impl Fn(&Target<F>, RemoteSlice) -> Operation,
) {
    let mut target = Target::<F>::new(4096, access);
    let (mut offender, mut bystander) = (target.client(), target.client());
    run(&mut offender.endpoint, allowed(&target, offender.remote)).expect("allowed before");
    target.region.as_volatile().store_u64(0, 77);
    target.region.as_volatile().store_u64(8, 88);

    let result = run(&mut offender.endpoint, offence(&target, offender.remote));
    assert_eq!(result, Err(CompletionError::RemoteAccess));
    assert_eq!(target.region.as_volatile().load_u64(0), 77, "the memory is as it was");
    assert_eq!(target.region.as_volatile().load_u64(8), 88);
    wait_until_gone(&mut offender.endpoint);
    if F::TRESPASSES_ARE_COUNTED {
        wait_until_gone(&mut offender.server);
        assert_eq!(target.transport.trespasses(), 1);
    }
    let request = WorkRequest::signalled(1, allowed(&target, offender.remote));
    let error = offender.endpoint.post(&[request]).unwrap_err();
    assert!(matches!(error, PostError::Disconnected(_)), "{error}");

    bystander.endpoint.check().expect("nobody else notices");
    bystander.server.check().expect("nobody else notices");
    run(&mut bystander.endpoint, allowed(&target, bystander.remote)).expect("allowed after");
    let mut newcomer = target.client();
    run(&mut newcomer.endpoint, allowed(&target, newcomer.remote)).expect("others still get in");
}

fn a_write<F: Fixture>(target: &Target<F>, remote: RemoteSlice) -> Operation {
    write(target.local(&[1; 8]), remote.slice(0, 8).unwrap())
}

fn a_read<F: Fixture>(target: &Target<F>, remote: RemoteSlice) -> Operation {
    read(target.local(&[0; 8]), remote.slice(0, 8).unwrap())
}

fn an_add<F: Fixture>(target: &Target<F>, remote: RemoteSlice) -> Operation {
    Operation::FetchAdd { local: target.local(&[0; 8]), remote: remote.slice(0, 8).unwrap(), add: 1 }
}

fn a_forged_write<F: Fixture>(target: &Target<F>, remote: RemoteSlice) -> Operation {
    write(target.local(&vec![1; remote.len as usize]), remote)
}

pub(crate) fn a_write_to_a_read_only_grant_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    only_the_offender_suffers::<F>(Access::REMOTE_READ, a_write, a_read);
    let inline = |_: &Target<F>, remote: RemoteSlice| Operation::WriteInline {
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
    let forged = |target: &Target<F>, remote: RemoteSlice| {
        let key = RemoteKey(remote.key.0 ^ 0x5A5A);
        a_forged_write(target, RemoteSlice { key, offset: 0, len: 8 })
    };
    only_the_offender_suffers::<F>(ALL, forged, a_write);
}

pub(crate) fn a_range_past_the_end_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    for (behind, len) in [(-1i64, 8u64), (0, 1), (4096, 8), (-8, 9)] {
        let forged = move |target: &Target<F>, remote: RemoteSlice| {
            let offset = (target.region.len() as i64 + behind) as u64;
            a_forged_write(target, RemoteSlice { offset, len, ..remote })
        };
        only_the_offender_suffers::<F>(ALL, forged, a_write);
    }
}

pub(crate) fn an_offset_that_overflows_is_refused_and_only_the_offender_suffers<F: Fixture>() {
    for offset in [u64::MAX, u64::MAX - 7, u64::MAX - 8, 1 << 63] {
        let forged = move |target: &Target<F>, remote: RemoteSlice| {
            a_forged_write(target, RemoteSlice { offset, len: 8, ..remote })
        };
        only_the_offender_suffers::<F>(ALL, forged, a_write);
    }
}

pub(crate) fn requests_behind_a_refused_one_are_flushed_in_order<F: Fixture>() {
    let mut target = Target::<F>::new(4096, ALL);
    let Client { mut endpoint, remote, server: _server } = target.client();
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
    let words = [0, 8, 16, 24].map(|at| target.region.as_volatile().load_u64(at));
    assert_eq!(words, [1, 2, 0, 0]);
    wait_until_gone(&mut endpoint);
    assert_eq!(endpoint.poll(), None);
}

pub(crate) fn keys_of_one_connection_do_not_open_another<F: Fixture>() {
    let mut one = Target::<F>::new(4096, ALL);
    let mut two = Target::<F>::new(4096, ALL);
    let (of_one, mut of_two) = (one.client(), two.client());
    if F::KEYS_ARE_OF_ONE_CONNECTION {
        let result = run(&mut of_two.endpoint, a_write(&two, of_one.remote));
        assert_eq!(result, Err(CompletionError::RemoteAccess));
    }
}
