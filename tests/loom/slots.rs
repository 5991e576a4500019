//! Gradients in slots: a worker publishes, the owner reads them where they lie.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use slackline::internals::mem::{Access, LocalSlice, MemoryRegion};
use slackline::internals::param::{
    Frames, GradientMetadata, GradientSource, PeerInbox, Publish, SlotGeometry, Welcome,
};
use slackline::internals::transport::{Endpoint, LocalEndpoint};
use slackline::{Clock, ElementType, Encoding, Table, Version};

use super::world::{CONTROL, EPOCH, FRAMES, PAGE, SLOTS, explore, fill, region, remote, shard, words};

/// One slot, two gradients. Without waiting for the first to be consumed (`credit`), without the order of writes
/// (`write_fence`), announced before it is there (`announce`), or looked at without acquiring what comes with the
/// announcement (`published_acquire`), the owner reads something else. Without the release store of the consumed clock
/// (`consumed_release`) the worker writes the slot before the owner has read it: no load of this model sees a later
/// store, so a word of the model's own says what the owner has read, and a worker that has written finds it.
#[test]
fn the_owner_reads_what_was_announced() {
    explore(3, |accepted| announced(accepted, 1, local));
}

/// As above, with a slot for each.
#[test]
fn the_owner_reads_what_was_announced_in_two_slots() {
    explore(3, |accepted| announced(accepted, 2, local));
}

/// The owner begins before the last byte. Counted before it is there (`landed_early`), or looked at without acquiring
/// what comes with the count (`landed_acquire`), a chunk is read too early; without the gradient's clock in the count
/// (`landed_attempt`), that of the last gradient is taken for this one's.
#[test]
fn a_chunk_that_has_landed_is_whole() {
    explore(3, |accepted| {
        let (frames, mut worker, inbox) = inbox(72, 1, &local);
        let gradients = [1, 2].map(|value| gradient(72, &[0, 8], value));
        let worker = thread::spawn(move || {
            for gradient in gradients {
                worker.publish(gradient);
            }
        });
        for clock in [0, 1].map(Clock::new) {
            let payload = inbox.payload(clock).unwrap().host().unwrap().clone();
            let (landed, value) = (inbox.landed(clock), clock.get() + 1);
            if landed >= 1 {
                assert_eq!(words(&payload, [0]), [value], "a chunk was read before it had landed");
                accepted.fetch_add(1, Relaxed);
            }
            if landed >= 2 {
                assert_eq!(words(&payload, [8]), [value], "the last chunk was read before it had landed");
            }
            await_announcement(&inbox, clock);
            assert_eq!(words(&payload, [0, 8]), [value; 2], "the gradient is not the one that was announced");
            frames.set_consumed(0, clock.next());
        }
        worker.join().unwrap();
    });
}

/// Publishes two gradients through the endpoint that `connect` makes.
pub(crate) fn announced<E: Endpoint + 'static>(
    accepted: &AtomicUsize,
    slots: u16,
    connect: impl Fn(&Grants) -> E,
) {
    let (frames, mut worker, inbox) = inbox(16, slots, &connect);
    let gradients = [1, 2].map(|value| gradient(16, &[0, 1], value));
    let read = Arc::new(AtomicU64::new(0));
    let read_by_owner = Arc::clone(&read);
    let worker = thread::spawn(move || {
        for (count, gradient) in (1..).zip(gradients) {
            worker.publish(gradient);
            let read = read_by_owner.load(Relaxed);
            assert!(read + u64::from(slots) >= count, "a slot was written before the owner had read it");
        }
    });
    for clock in [0, 1].map(Clock::new) {
        await_announcement(&inbox, clock);
        let header = inbox.header(clock, EPOCH).expect("an announced gradient has its header");
        assert_eq!(
            header.base,
            Version::new(clock.get()),
            "the header is not that of the gradient that was announced"
        );
        let words = words(inbox.payload(clock).unwrap().host().unwrap(), [0, 1]);
        assert_eq!(words, [clock.get() + 1; 2], "the gradient is not the one that was announced");
        read.store(clock.get() + 1, Relaxed);
        frames.set_consumed(0, clock.next());
        accepted.fetch_add(1, Relaxed);
    }
    worker.join().unwrap();
}

/// The memory that a worker is granted: control page, page, slots.
pub(crate) type Grants = [(slackline::internals::mem::RemoteKey, MemoryRegion, Access); 3];

fn local(grants: &Grants) -> LocalEndpoint {
    let mut endpoint = LocalEndpoint::new(16);
    for (key, region, access) in grants {
        endpoint.attach(*key, region.clone(), *access);
    }
    endpoint
}

struct Worker<E> {
    endpoint: E,
    publish: Publish,
}

impl<E: Endpoint> Worker<E> {
    fn publish(&mut self, gradient: LocalSlice) {
        let base = Version::new(self.publish.clock().get());
        self.publish.start(GradientSource::Memory(gradient), base, GradientMetadata::default()).unwrap();
        while !self.publish.take() {
            let mut moved = self.publish.advance(&mut self.endpoint).unwrap();
            while let Some(completion) = self.endpoint.poll() {
                self.publish.complete(completion);
                moved = true;
            }
            if !moved {
                thread::yield_now();
            }
        }
    }
}

fn inbox<E: Endpoint>(
    bytes: u64,
    slots: u16,
    connect: &impl Fn(&Grants) -> E,
) -> (Frames, Worker<E>, PeerInbox) {
    let (frames, source) = shard(2, bytes);
    let elements = bytes / 4;
    let geometry = SlotGeometry { slots, encoding: Encoding::F32, elements, chunk_elements: 16 };
    let (page, room) = (region(PeerInbox::page_bytes(slots)), region(geometry.bytes() as usize));
    let welcome = Welcome {
        epoch: EPOCH,
        peer: 0,
        generation: 0,
        clock: Clock::new(0),
        table: Table::flat(elements, ElementType::F32).unwrap(),
        shard: 0,
        shards: 1,
        layout: source.layout,
        geometry: source.geometry,
        slots: Some(geometry),
        lease_ns: 1,
        scheme: None,
        decided: None,
        deltas: None,
    };
    let grants = [
        remote(CONTROL, frames.control()),
        remote(FRAMES, frames.memory().host().unwrap()),
        remote(PAGE, &page),
    ];
    let grants = [&grants[..], &[remote(SLOTS, &room)]].concat();
    let endpoint = connect(&[
        (CONTROL, frames.control().clone(), Access::REMOTE_READ),
        (PAGE, page.clone(), Access::REMOTE_WRITE),
        (SLOTS, room.clone(), Access::REMOTE_WRITE),
    ]);
    let publish = Publish::new(&welcome, &grants, region(Publish::SCRATCH_BYTES).whole()).unwrap().unwrap();
    (frames, Worker { endpoint, publish }, PeerInbox::new(page, Some((room.into(), geometry)), Clock::new(0)))
}

fn gradient(bytes: usize, at: &[usize], value: u64) -> LocalSlice {
    let gradient = region(bytes).whole();
    fill(&gradient, at, value);
    gradient
}

fn await_announcement(inbox: &PeerInbox, clock: Clock) {
    while inbox.published() <= clock {
        thread::yield_now();
    }
}
