//! The cost of posting one request and polling its completion over shared memory, both sides in this process. The cost
//! between two processes is what `slackline bench` measures.

use std::hint::black_box;
use std::task::Poll;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slackline::internals::mem::{Access, LocalSlice, MemoryRegion, RemoteSlice, Streaming};
use slackline::internals::transport::shm::ShmEndpoint;
use slackline::internals::transport::{
    Connecting, Endpoint, Incoming, Inline, Listener, Offer, Operation, WorkRequest,
};
use slackline::{Address, Instant, Shm, Transport};

const BYTES: usize = 64 << 10;

/// A connected pair, and the memory that one side granted the other.
struct Pair {
    client: ShmEndpoint,
    remote: RemoteSlice,
    local: LocalSlice,
    _server: ShmEndpoint,
    _granted: MemoryRegion,
}

impl Pair {
    fn connect() -> Pair {
        let shm = Shm::new();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let granted = shm.allocate(BYTES, access).expect("memory");
        let local = shm.allocate(BYTES, Access::LOCAL).expect("memory").whole();
        // Every page is there.
        granted.as_volatile().write(&[1; BYTES]);
        local.as_volatile().write(&[1; BYTES]);
        let mut listener = shm.listen(&Address::random()).expect("a listener");
        let mut connecting = shm.connect(&listener.address(), Offer::default()).expect("a socket");
        let mut server = None;
        loop {
            if let Some(incoming) = listener.poll(Instant::ORIGIN) {
                let offer = Offer { message: Vec::new(), grants: vec![granted.whole()] };
                server = Some(incoming.accept(offer).expect("a peer"));
            }
            if let Poll::Ready(connected) = connecting.poll(Instant::ORIGIN) {
                let (client, received) = connected.expect("an answer");
                let server = server.expect("the side that answered");
                return Pair {
                    client,
                    remote: received.grants[0],
                    local,
                    _server: server,
                    _granted: granted,
                };
            }
        }
    }
}

fn post_and_poll(c: &mut Criterion) {
    let mut pair = Pair::connect();
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
