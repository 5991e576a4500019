//! The cost of posting one request and polling its completion over shared memory, both sides in this process. The cost
//! between two processes is what `slackline bench` measures.

mod pair;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slackline::internals::mem::Streaming;
use slackline::internals::transport::{Endpoint, Inline, Operation, WorkRequest};
use slackline::{Address, Shm};

use pair::Pair;

const BYTES: usize = 64 << 10;

fn post_and_poll(c: &mut Criterion) {
    let mut pair = Pair::connect(&Shm::new(), &Address::random(), BYTES);
    let local = |len| pair.local.slice(0, len).expect("inside");
    let remote = |len| pair.remote.slice(0, len).expect("inside");
    let streaming = Streaming::ByLength;
    let cases = [
        ("write inline", 8, Operation::WriteInline { data: Inline::word(7), remote: remote(8) }),
        ("read", 8, Operation::Read { local: local(8), remote: remote(8), streaming }),
        ("fetch-add", 8, Operation::FetchAdd { local: local(8), remote: remote(8), add: 1 }),
        ("write", BYTES, Operation::Write { local: local(BYTES), remote: remote(BYTES as u64), streaming }),
    ];
    let mut group = c.benchmark_group("shm");
    for (name, bytes, operation) in cases {
        let batch = [WorkRequest::signalled(1, operation)];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("{name}/{bytes}"), |b| {
            b.iter(|| {
                pair.client.post(black_box(&batch)).expect("a post");
                pair.client.poll().expect("a completion").result.expect("a success");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, post_and_poll);
criterion_main!(benches);
