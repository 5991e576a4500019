//! Memory that peers only read: registered once for all of them, and lost to those that are let go.

use std::io::Write;
use std::time::{Duration, Instant};

use slackline::internals::mem::{Access, MemoryRegion, RemoteSlice};
use slackline::internals::transport::{CompletionError, Endpoint, Offer, Operation, Received, WorkRequest};
use slackline::{Transport, Verbs};

use super::ends::{Pair, connect};
use crate::VerbsFixture;
use crate::host_job::sums_of_integers_are_those_of_the_job_without_proxies;
use crate::memory::a_worker_computes_in_memory_of_the_caller;
use crate::traces::a_run_is_accepted_and_each_read_verified;
use crate::transport::fixture::{
    EndpointOf, Fixture, bytes_of, noise, read, run, wait_for, wait_until_gone, write,
};

const WRITABLE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// What a server grants to each of its peers: memory that all read, and memory that one writes.
struct Served {
    transport: Verbs,
    readable: MemoryRegion,
    slot_bytes: usize,
}

/// Both ends of a connection, the grants, and memory of the client to read into.
struct Reader {
    client: EndpointOf<VerbsFixture>,
    server: EndpointOf<VerbsFixture>,
    readable: RemoteSlice,
    slot: RemoteSlice,
    local: MemoryRegion,
}

impl Served {
    fn new(bytes: usize, slot_bytes: usize) -> Served {
        let transport = VerbsFixture::transport();
        let readable = transport.allocate(bytes, Access::REMOTE_READ).unwrap();
        Served { transport, readable, slot_bytes }
    }

    fn reader(&self) -> Reader {
        let mut listener = self.transport.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
        let slot = self.transport.allocate(self.slot_bytes, WRITABLE).unwrap();
        let offer = Offer { message: Vec::new(), grants: vec![self.readable.whole(), slot.whole()] };
        let pair: Pair<VerbsFixture> = connect(&self.transport, &mut listener, Offer::default(), offer);
        let Pair { client, server, at_client: Received { grants, .. }, .. } = pair;
        let local = self.transport.allocate(4096, Access::LOCAL).unwrap();
        Reader { client, server, readable: grants[0], slot: grants[1], local }
    }
}

impl Reader {
    /// Reads the first 4096 bytes of what all may read.
    fn read(&mut self) -> Operation {
        read(self.local.whole(), self.readable.slice(0, 4096).unwrap())
    }
}

/// Bytes of this process that the kernel keeps in memory for devices, each as often as it was registered.
fn pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("the kernel counts them");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
}

#[test]
fn joining_registers_what_one_peer_writes_and_not_what_all_read() {
    let (readable, slot) = (256 << 20, 1 << 20);
    let served = Served::new(readable, slot);
    let mut readers = Vec::new();
    let (before, mut slowest) = (pinned_bytes(), Duration::ZERO);
    assert!(before >= readable as u64, "the kernel counts what is registered: {before} bytes");
    for peers in [1, 16, 64] {
        let (joined, begin) = (readers.len(), Instant::now());
        while readers.len() < peers {
            let begin = Instant::now();
            readers.push(served.reader());
            slowest = slowest.max(begin.elapsed());
        }
        let each = (pinned_bytes() - before) / peers as u64;
        // For the table of `cargo xtask softroce`: libtest keeps what `println!` says of a test that passes.
        writeln!(
            std::io::stdout(),
            "\nMEASURED {peers} peers read {} MiB: {} KiB registered for each, both sides counted; the last {} of them \
             joined in {:?}, the slowest of all in {slowest:?}",
            readable >> 20,
            each >> 10,
            readers.len() - joined,
            begin.elapsed(),
        )
        .unwrap();
        // The slot twice, for its owner's requests and for the peer's, and the queues of both sides.
        assert!(each < 8 * slot as u64, "{each} bytes");
    }
    for reader in &mut readers {
        let operation = reader.read();
        run(&mut reader.client, operation).unwrap();
    }
}

#[test]
fn a_worker_computes_in_memory_of_the_caller_by_rdma() {
    a_worker_computes_in_memory_of_the_caller(VerbsFixture::transport(), &VerbsFixture::address());
}

#[test]
fn proxies_of_hosts_sum_for_a_server_by_rdma() {
    let at = VerbsFixture::address().to_string();
    sums_of_integers_are_those_of_the_job_without_proxies(VerbsFixture::transport(), &at);
}

#[test]
fn a_run_by_rdma_is_accepted_and_each_read_verified() {
    a_run_is_accepted_and_each_read_verified(VerbsFixture::transport(), &VerbsFixture::address());
}

#[test]
fn who_is_let_go_reads_no_more_though_the_key_is_that_of_all() {
    let served = Served::new(8192, 4096);
    let bytes = noise(1, 8192);
    served.readable.as_volatile().write(&bytes);
    let (mut gone, mut stays) = (served.reader(), served.reader());
    assert_eq!(gone.readable.key, stays.readable.key, "what all read is registered once");
    let (first, second) = (gone.read(), gone.read());
    run(&mut gone.client, first).unwrap();
    assert_eq!(bytes_of(&gone.local.whole()), bytes[..4096]);

    gone.local.as_volatile().write(&[0; 4096]);
    drop(gone.server);
    // It may have heard of that, or hears of it by this request.
    if gone.client.post(&[WorkRequest::signalled(1, second)]).is_ok() {
        let completion = wait_for("a completion", || gone.client.poll());
        assert!(completion.result.is_err(), "the owner let it go");
    }
    assert_eq!(bytes_of(&gone.local.whole()), [0; 4096], "nothing came");
    let operation = stays.read();
    run(&mut stays.client, operation).unwrap();
}

#[test]
fn what_may_only_be_read_is_not_written_by_any_of_the_queue_pairs() {
    let served = Served::new(4096, 4096);
    let mut writer = served.reader();
    let source = served.transport.allocate(4096, Access::LOCAL).unwrap();
    source.as_volatile().write(&[1; 4096]);
    run(&mut writer.client, write(source.whole(), writer.slot)).unwrap();
    let forbidden = write(source.whole(), writer.readable);
    assert_eq!(run(&mut writer.client, forbidden), Err(CompletionError::RemoteAccess));
    wait_until_gone(&mut writer.server);
    assert_eq!(bytes_of(&served.readable.whole()), [0; 4096]);
}
