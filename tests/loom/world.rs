//! The parts of the models: small shards, endpoints, and a reader that gives up instead of spinning.

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::model::Builder;
use slackline::internals::mem::{
    Access, DeviceKeys, HostMemory, LocalSlice, MemoryRegion, RemoteKey, RemoteSlice,
};
use slackline::internals::param::{
    ControlLayout, FrameGeometry, FrameSource, Frames, Pull, PullOptions, Pulled,
};
use slackline::internals::transport::{Endpoint, LocalEndpoint};
use slackline::{Version, scheme::Bound};

pub(crate) const EPOCH: u64 = 77;

/// Keys under which regions are granted, in the order of a handshake.
pub(crate) const CONTROL: RemoteKey = RemoteKey(1);
pub(crate) const FRAMES: RemoteKey = RemoteKey(2);
pub(crate) const PAGE: RemoteKey = RemoteKey(3);
pub(crate) const SLOTS: RemoteKey = RemoteKey(4);

/// Runs `model` in every order with at most so many preemptions. `accepted` says how often it came to something.
pub(crate) fn explore(preemptions: usize, model: impl Fn(&AtomicUsize) + Send + Sync + 'static) {
    let counts: &'static [AtomicUsize; 2] = Box::leak(Box::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        counts[0].fetch_add(1, Ordering::Relaxed);
        model(&counts[1]);
    });
    let [runs, accepted] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{runs} executions, {accepted} accepted");
    assert!(accepted > 0, "a model that accepts nothing proves nothing");
}

pub(crate) fn region(bytes: usize) -> MemoryRegion {
    MemoryRegion::new(HostMemory::anonymous(bytes).unwrap(), Access::LOCAL, DeviceKeys::NONE, ())
}

pub(crate) fn remote(key: RemoteKey, region: &MemoryRegion) -> RemoteSlice {
    RemoteSlice { key, offset: 0, len: region.len() as u64 }
}

/// Stores `value` into the words of `memory` at these indices.
pub(crate) fn fill(memory: &LocalSlice, words: &[usize], value: u64) {
    for word in words {
        memory.as_volatile().store(word * 8, value, Ordering::Relaxed);
    }
}

/// The words of `memory` at these indices, as some reader without any ordering of its own finds them.
pub(crate) fn words<const N: usize>(memory: &LocalSlice, words: [usize; N]) -> [u64; N] {
    words.map(|word| memory.as_volatile().load(word * 8, Ordering::Relaxed))
}

pub(crate) fn shard(frames: u8, payload_bytes: u64) -> (Frames, FrameSource) {
    let layout = ControlLayout { peers: 1, frames };
    let geometry = FrameGeometry { frames, payload_bytes, chunk_bytes: 64 };
    let control = region(layout.bytes());
    let payload = region(geometry.bytes() as usize);
    let source = FrameSource {
        control: remote(CONTROL, &control),
        frames: remote(FRAMES, &payload),
        layout,
        geometry,
        epoch: EPOCH,
    };
    (Frames::new(control, payload, layout, geometry, EPOCH), source)
}

/// An endpoint that reaches control page and frames.
pub(crate) fn endpoint_to(frames: &Frames, access: Access) -> LocalEndpoint {
    let mut endpoint = LocalEndpoint::new(16);
    endpoint.attach(CONTROL, frames.control().clone(), access);
    endpoint.attach(FRAMES, frames.memory().host().unwrap().clone(), access);
    endpoint
}

/// The ways in which a reader is made: one that asks for everything, and one that loads what is mapped.
pub(crate) const READERS: [fn(FrameSource, LocalEndpoint) -> Reader<LocalEndpoint>; 2] =
    [Reader::new, Reader::mapped];

/// A reader with memory of its own.
pub(crate) struct Reader<E> {
    pub(crate) endpoint: E,
    pub(crate) pull: Pull,
    pub(crate) into: MemoryRegion,
}

impl<E: Endpoint> Reader<E> {
    pub(crate) fn new(source: FrameSource, endpoint: E) -> Reader<E> {
        let pull = Pull::new(source, &region(Pull::SCRATCH_BYTES)).unwrap();
        Reader { endpoint, pull, into: region(source.geometry.payload_bytes as usize) }
    }

    /// One that loads what the endpoint has mapped.
    pub(crate) fn mapped(source: FrameSource, endpoint: E) -> Reader<E> {
        let mut reader = Reader::new(source, endpoint);
        reader.pull.map(&reader.endpoint);
        reader
    }

    /// One attempt at a pull, `None` if it came to nothing. Under loom no thread may wait.
    pub(crate) fn attempt(&mut self) -> Option<Pulled> {
        self.pull.start(Bound::NONE, self.into.whole(), PullOptions::default()).unwrap();
        loop {
            let posted = self.advance();
            if let Some(pulled) = self.pull.take() {
                return Some(pulled);
            }
            if !posted {
                self.pull.cancel();
                return None;
            }
        }
    }

    /// Follows the frame that will be `version`, for so many steps.
    pub(crate) fn follow(&mut self, version: u64, steps: usize) -> Option<Pulled> {
        let bound = Bound { version: Version::new(version), ..Bound::NONE };
        let options = PullOptions { follow: true, ..PullOptions::default() };
        self.pull.start(bound, self.into.whole(), options).unwrap();
        for _ in 0..steps {
            self.advance();
            if let Some(pulled) = self.pull.take() {
                return Some(pulled);
            }
        }
        self.pull.cancel();
        None
    }

    /// One step. True if it posted requests, false if an attempt is at its end.
    fn advance(&mut self) -> bool {
        self.pull.advance(&mut self.endpoint).unwrap();
        let mut posted = false;
        while let Some(completion) = self.endpoint.poll() {
            self.pull.complete(completion);
            posted = true;
        }
        posted
    }
}
