//! The costs of publishing, pulling and folding on a GPU, each beside a limit of the device that is measured by turns
//! with it. The library's unit tests run the same code over the scripted driver, where its figures mean nothing.

use std::cell::RefCell;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slackline::gpu::{Gpu, GpuError, GpuMemory, GpuStream};
use slackline::internals::cuda::{BareGpu, GpuFold, GpuKernels, Tickets};
use slackline::optim::{AdamParameters, Optimizer};
use slackline::scheme::SchemeConfig;
use slackline::weights::{BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{
    Address, ElementType, Encoding, OpenError, Shm, Table, Tcp, Transport, Verbs, VersionTag, Worker,
    WorkerOptions,
};

use super::peer::{Outcome, PATIENCE, Peer, fill_of, publish_filled};

/// How much is measured.
pub(crate) struct Sizes {
    /// Pairs of each row.
    pub(crate) pairs: usize,
    /// Parameters of a fold.
    pub(crate) elements: usize,
    /// Bytes of a version, by the name that the row has.
    pub(crate) versions: [(&'static str, usize); 2],
    /// Small versions that are published for one half of a pair.
    pub(crate) samples: usize,
    /// Folds that the caller's stream has at a time.
    pub(crate) busy: usize,
}

/// Measures on a GPU, with another process where a row takes one.
pub(crate) struct Rows<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) other_process: fn() -> Command,
    pub(crate) sizes: Sizes,
    pub(crate) rdma: Rdma,
}

/// The bound that our number, divided by the limit's, is to keep.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing is promised.
    Reported,
}

/// The longest time of a registration that is known, in ns.
const REGISTERED_AGAIN: f64 = 10_000.0;

/// After so long a server has folded a gradient.
const FOLDED: Duration = Duration::from_millis(50);

type Pairs = Vec<(f64, f64)>;

/// The pairs of a row, each side first every other time. Before them each side is done once: memory is locked, kernels
/// are compiled, and the device wakes.
fn pairs(
    count: usize,
    mut ours: impl FnMut() -> Outcome<f64>,
    mut limit: impl FnMut() -> Outcome<f64>,
) -> Outcome<Pairs> {
    ours()?;
    limit()?;
    let pair = |time: usize| -> Outcome<(f64, f64)> {
        if time.is_multiple_of(2) {
            return Ok((ours()?, limit()?));
        }
        let limit = limit()?;
        Ok((ours()?, limit))
    };
    (0..count).map(pair).collect()
}

/// Bytes per second.
fn rate(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64()
}

fn publisher<T: Transport + 'static>(transport: T, bytes: usize) -> Outcome<BackgroundPublisher<T>> {
    let table = Table::flat(bytes as u64, ElementType::U8)?;
    let publisher = Publisher::new(transport, &Address::random(), table, PublisherOptions::default())?;
    Ok(publisher.into_background()?)
}

/// Publishes out of the GPU; the time until the version is there.
fn publish<T: Transport>(
    publisher: &BackgroundPublisher<T>,
    weights: &GpuMemory,
    bare: &BareGpu,
) -> Outcome<Duration> {
    let stream = bare.stream()?;
    let begun = Instant::now();
    let mut draft = publisher.draft(PATIENCE)?;
    draft.copy_from_gpu(0, &weights.whole(), &stream)?;
    draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)?;
    Ok(begun.elapsed())
}

/// Pulls the newest version to the GPU; the time until it is accepted.
fn pull<T: Transport>(reader: &mut Reader<T>, into: &GpuMemory, bare: &BareGpu) -> Outcome<Duration> {
    let stream = bare.stream()?;
    let begun = Instant::now();
    reader.pull_to_gpu(Wanted::newest(), &into.whole(), &stream, PATIENCE)?;
    Ok(begun.elapsed())
}

/// Publishes a gradient of the next step; the time until the server has been told.
fn publish_gradient<T: Transport>(
    worker: &mut Worker<T>,
    gradient: &GpuMemory,
    stream: &GpuStream,
) -> Outcome<Duration> {
    let step = worker.step(PATIENCE)?;
    let begun = Instant::now();
    step.publish_from_gpu(&gradient.whole(), stream, None, PATIENCE)?;
    Ok(begun.elapsed())
}

fn expect_filled(bare: &mut BareGpu, memory: &GpuMemory, fill: u8) -> Outcome<()> {
    match bare.read(&memory.whole())?.iter().all(|byte| *byte == fill) {
        true => Ok(()),
        false => Err("other bytes have arrived than were published".into()),
    }
}

/// Parameters, gradients and states for folds.
struct Arrays {
    optimizer: Optimizer,
    encoding: Encoding,
    elements: usize,
    gradients: Vec<GpuMemory>,
    arrays: Vec<(GpuMemory, GpuMemory)>,
}

impl Arrays {
    fn new(gpu: &Gpu, elements: usize, optimizer: Optimizer, encoding: Encoding) -> Outcome<Arrays> {
        let allocate = |width| GpuMemory::allocate(gpu, elements * width);
        let gradients = (0..4).map(|_| allocate(encoding.bytes())).collect::<Result<_, _>>()?;
        let arrays = (0..=optimizer.states()).map(|_| Ok((allocate(4)?, allocate(4)?)));
        let arrays = arrays.collect::<Outcome<_>>()?;
        Ok(Arrays { optimizer, encoding, elements, gradients, arrays })
    }

    /// Bytes that a fold reads and writes.
    fn bytes(&self) -> usize {
        self.elements * (self.gradients.len() * self.encoding.bytes() + 8 * self.arrays.len())
    }

    fn fold(&self) -> GpuFold {
        GpuFold {
            optimizer: self.optimizer,
            learning_rate: 0.01,
            step: 1,
            encoding: self.encoding,
            gradients: self.gradients.iter().map(|gradient| (gradient.whole(), 0.25)).collect(),
            arrays: self.arrays.iter().map(|(from, to)| (from.whole(), to.whole())).collect(),
            elements: 0..self.elements,
        }
    }
}

/// Takes each row: its name, the name of its limit, the unit of both, the goal, and how it is measured.
type EachRow<'a> = dyn FnMut(&str, &str, &str, Goal, &dyn Fn(&Rows<'_>) -> Outcome<Pairs>) + 'a;

/// RDMA with a GPU whose memory its device carries, or the reason why there is none.
pub(crate) type Rdma = Result<Verbs, String>;

pub(crate) fn rdma_of(gpu: &Gpu, verbs: Result<Verbs, OpenError>) -> Rdma {
    let verbs = verbs.map_err(|error| format!("there is no RDMA device to measure: {error}"))?.with_gpu(gpu);
    let memory = GpuMemory::allocate(gpu, 1).map_err(|error| error.to_string())?;
    match (verbs.gpu(), verbs.register_tensor(&memory)) {
        (None, Err(reason)) => Err(format!("no RDMA device of this host reaches memory of a GPU: {reason}")),
        _ => Ok(verbs),
    }
}

impl Rows<'_> {
    /// The names of all rows, in the order in which they are measured.
    pub(crate) fn names(versions: [&str; 2]) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |name: &str, _: &str, _: &str, _: Goal, _: &dyn Fn(&Rows<'_>) -> Outcome<Pairs>| {
            names.push(name.to_owned());
        };
        Rows::each(versions, &mut add);
        Rows::each_of_rdma(versions, &mut add);
        names
    }

    /// Measures every row, and tells each as soon as it is measured.
    pub(crate) fn measure(&self, mut tell: impl FnMut(Value)) {
        let versions = self.sizes.versions.map(|(name, _)| name);
        let mut measure =
            |name: &str, against: &str, unit: &str, goal, row: &dyn Fn(&Rows<'_>) -> Outcome<Pairs>| {
                let outcome = row(self).map_err(|error| error.to_string());
                let (at_least, at_most) = match goal {
                    Goal::AtLeast(least) => (Some(least), None),
                    Goal::AtMost(most) => (None, Some(most)),
                    Goal::Reported => (None, None),
                };
                tell(json!({
                    "name": name, "against": against, "unit": unit, "at_least": at_least, "at_most": at_most,
                    "pairs": outcome.as_ref().ok(), "failure": outcome.as_ref().err(),
                }));
            };
        Rows::each(versions, &mut measure);
        match &self.rdma {
            Ok(_) => Rows::each_of_rdma(versions, &mut measure),
            Err(reason) => Rows::each_of_rdma(versions, &mut |name, _, _, _, _| {
                tell(json!({ "name": name, "missing": reason }));
            }),
        }
    }

    fn rdma(&self) -> Outcome<&Verbs> {
        Ok(self.rdma.as_ref().map_err(String::clone)?)
    }

    /// Gives each row that takes no RDMA device.
    fn each(versions: [&str; 2], row: &mut EachRow<'_>) {
        let (sgd, adamw) = (
            Optimizer::Sgd { weight_decay: 0.0 },
            Optimizer::AdamW(AdamParameters { weight_decay: 0.01, ..AdamParameters::default() }),
        );
        for (name, optimizer, encoding, least) in [
            ("fold k = 4, f32, SGD", sgd, Encoding::F32, 0.9),
            ("fold k = 4, f32, AdamW", adamw, Encoding::F32, 0.85),
            ("fold k = 4, bf16, SGD", sgd, Encoding::Bf16, 0.85),
            ("fold k = 4, bf16, AdamW", adamw, Encoding::Bf16, 0.85),
        ] {
            row(name, "device copy", "bytes_per_s", Goal::AtLeast(least), &|rows| {
                rows.fold(optimizer, encoding)
            });
        }
        for (name, encoding) in [
            ("measured fold k = 4, f32, SGD", Encoding::F32),
            ("measured fold k = 4, bf16, SGD", Encoding::Bf16),
        ] {
            row(name, "device copy", "bytes_per_s", Goal::Reported, &|rows| {
                rows.measured_fold(sgd, encoding)
            });
        }
        row("f32 converted to bf16", "device copy", "bytes_per_s", Goal::Reported, &|rows| rows.converted());
        for (size, least) in [(0, 0.95), (1, 0.95)] {
            let name = versions[size];
            let (pinned, goal) = ("pinned cuMemcpyAsync", Goal::AtLeast(least));
            row(&format!("publish {name} to host memory"), pinned, "bytes_per_s", goal, &|rows| {
                rows.publish_to_host(size)
            });
            row(&format!("pull {name} from host memory"), pinned, "bytes_per_s", goal, &|rows| {
                rows.pull_from_host(size)
            });
        }
        let host = "the same from host memory";
        let name = format!("staged publish of {} over TCP", versions[0]);
        row(&name, host, "bytes_per_s", Goal::AtLeast(0.9), &|rows| rows.staged());
        for (size, least) in [(0, 0.8), (1, 0.95)] {
            let name = versions[size];
            let goal = Goal::AtLeast(least);
            let between = "device to device between processes";
            row(&format!("publish {name} {between}"), "device copy", "bytes_per_s", goal, &|rows| {
                rows.publish_within(size)
            });
            row(
                &format!("publish a gradient of {name} {between}"),
                "device copy",
                "bytes_per_s",
                goal,
                &|rows| rows.gradient_within(size),
            );
            row(&format!("pull {name} {between}"), "device copy", "bytes_per_s", goal, &|rows| {
                rows.pull_within(size)
            });
        }
        for (size, bytes) in [("8 bytes", 8), ("4 KiB", 4096)] {
            for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
                let name = format!("publish {size} to host memory, {name}");
                row(&name, "bare copy and ticket", "ns", Goal::AtMost(2.0), &|rows| rows.small(bytes, part));
            }
        }
        let name = format!("folds of the caller's stream while {} are published", versions[1]);
        row(&name, "the same alone", "s", Goal::Reported, &|rows| rows.busy());
    }

    /// Gives each row that takes an RDMA device.
    fn each_of_rdma(versions: [&str; 2], row: &mut EachRow<'_>) {
        let (goal, host) = (Goal::AtLeast(0.95), "the same of host memory");
        let name = format!("WRITE of {} out of memory of a GPU by an RDMA device", versions[0]);
        row(&name, host, "bytes_per_s", goal, &|rows| rows.carried(true));
        let name = format!("READ of {} into memory of a GPU by an RDMA device", versions[0]);
        row(&name, host, "bytes_per_s", goal, &|rows| rows.carried(false));
        let name = format!("registering {}, second time from the cache", versions[1]);
        row(&name, "10 us", "ns", Goal::AtMost(1.0), &|rows| rows.registered_again());
    }

    fn version(&self, size: usize) -> usize {
        self.sizes.versions[size].1
    }

    fn fold(&self, optimizer: Optimizer, encoding: Encoding) -> Outcome<Pairs> {
        let kernels = GpuKernels::load(self.gpu, &optimizer)?;
        self.folds(optimizer, encoding, |fold, ticket| kernels.launch(fold, ticket))
    }

    fn measured_fold(&self, optimizer: Optimizer, encoding: Encoding) -> Outcome<Pairs> {
        let kernels = GpuKernels::load_measuring(self.gpu, &optimizer)?;
        self.folds(optimizer, encoding, |fold, ticket| kernels.launch_measured(fold, 0, ticket))
    }

    fn folds(
        &self,
        optimizer: Optimizer,
        encoding: Encoding,
        launch: impl Fn(GpuFold, &mut Tickets) -> Result<(), GpuError>,
    ) -> Outcome<Pairs> {
        let arrays = Arrays::new(self.gpu, self.sizes.elements, optimizer, encoding)?;
        let mut bare = BareGpu::new(self.gpu, 1)?;
        let ours = || {
            let (begun, mut ticket) = (Instant::now(), Tickets::default());
            launch(arrays.fold(), &mut ticket)?;
            while !ticket.are_done()? {
                std::hint::spin_loop();
            }
            Ok(rate(arrays.bytes(), begun.elapsed()))
        };
        let (from, to) = &arrays.arrays[0];
        // A copy reads and writes.
        let limit = || Ok(rate(2 * from.bytes(), bare.within(&from.whole(), &to.whole())?));
        pairs(self.sizes.pairs, ours, limit)
    }

    /// Of as many elements as a fold has: 4 bytes are read of each, and 2 written.
    fn converted(&self) -> Outcome<Pairs> {
        let elements = self.sizes.elements;
        let allocate = |width: usize| GpuMemory::allocate(self.gpu, elements * width);
        let (from, to, halves) = (allocate(4)?, allocate(4)?, allocate(2)?);
        let (bare, mut limit) = (BareGpu::new(self.gpu, 1)?, BareGpu::new(self.gpu, 1)?);
        let ours = || {
            let (begun, mut ticket) = (Instant::now(), Tickets::default());
            bare.encode(&from.whole(), &halves.whole(), Encoding::Bf16, &mut ticket)?;
            while !ticket.are_done()? {
                std::hint::spin_loop();
            }
            Ok(rate(6 * elements, begun.elapsed()))
        };
        let copy = || Ok(rate(2 * from.bytes(), limit.within(&from.whole(), &to.whole())?));
        pairs(self.sizes.pairs, ours, copy)
    }

    fn publish_to_host(&self, size: usize) -> Outcome<Pairs> {
        let bytes = self.version(size);
        let publisher = publisher(Shm::new(), bytes)?;
        let weights = GpuMemory::allocate(self.gpu, bytes)?;
        let (bare, mut limit) = (BareGpu::new(self.gpu, 1)?, BareGpu::new(self.gpu, bytes)?);
        let ours = || Ok(rate(bytes, publish(&publisher, &weights, &bare)?));
        pairs(self.sizes.pairs, ours, || Ok(rate(bytes, limit.to_host(&weights.whole())?)))
    }

    fn pull_from_host(&self, size: usize) -> Outcome<Pairs> {
        let bytes = self.version(size);
        let publisher = publisher(Shm::new(), bytes)?;
        let options = ReaderOptions::default();
        let transport = Shm::new().with_gpu(self.gpu);
        let mut reader = Reader::connect(transport, &publisher.address(), options, PATIENCE)?;
        let weights = GpuMemory::allocate(self.gpu, bytes)?;
        let (bare, mut limit) = (BareGpu::new(self.gpu, 1)?, BareGpu::new(self.gpu, bytes)?);
        let version = publish_filled(&publisher, &mut limit, &weights)?;
        let ours = || Ok(rate(bytes, pull(&mut reader, &weights, &bare)?));
        let other = GpuMemory::allocate(self.gpu, bytes)?;
        let measured = pairs(self.sizes.pairs, ours, || Ok(rate(bytes, limit.from_host(&other.whole())?)))?;
        expect_filled(&mut limit, &weights, fill_of(version))?;
        Ok(measured)
    }

    /// A worker's gradient to a server of another process: out of the GPU, and out of host memory.
    fn staged(&self) -> Outcome<Pairs> {
        let bytes = self.version(0);
        let peer = Peer::start((self.other_process)(), "serve-tcp", bytes)?;
        let transport = Tcp::new().with_gpu(self.gpu);
        let options = WorkerOptions::new(SchemeConfig::Bsp);
        let worker = Worker::connect(transport, &[peer.address()?.clone()], options, PATIENCE)?;
        let worker = RefCell::new(worker);
        let (mut bare, gradient) = (BareGpu::new(self.gpu, bytes)?, GpuMemory::allocate(self.gpu, bytes)?);
        bare.write(&gradient.whole(), &vec![0; bytes])?;
        let stream = bare.stream()?;
        let ours = || Ok(rate(bytes, publish_gradient(&mut worker.borrow_mut(), &gradient, &stream)?));
        let from_host = || {
            let mut worker = worker.borrow_mut();
            let mut step = worker.step(PATIENCE)?;
            step.gradient()?[0] = 0.0;
            let begun = Instant::now();
            step.publish(None, PATIENCE)?;
            Ok(rate(bytes, begun.elapsed()))
        };
        pairs(self.sizes.pairs, ours, from_host)
    }

    /// A gradient that goes into a slot on the GPU of a server in another process, which folds it before the next one.
    fn gradient_within(&self, size: usize) -> Outcome<Pairs> {
        let bytes = self.version(size);
        let peer = Peer::start((self.other_process)(), "serve", bytes)?;
        let transport = Shm::new().with_gpu(self.gpu);
        let options = WorkerOptions::new(SchemeConfig::Bsp);
        let mut worker = Worker::connect(transport, &[peer.address()?.clone()], options, PATIENCE)?;
        let allocate = || GpuMemory::allocate(self.gpu, bytes);
        let (gradient, other) = (allocate()?, allocate()?);
        let (mut bare, mut limit) = (BareGpu::new(self.gpu, bytes)?, BareGpu::new(self.gpu, 1)?);
        bare.write(&gradient.whole(), &vec![0; bytes])?;
        let stream = bare.stream()?;
        let ours = || Ok(rate(bytes, publish_gradient(&mut worker, &gradient, &stream)?));
        let copy = || {
            // The server folds what was published before, and the GPU would have both take turns.
            std::thread::sleep(FOLDED);
            Ok(rate(bytes, limit.within(&gradient.whole(), &other.whole())?))
        };
        pairs(self.sizes.pairs, ours, copy)
    }

    fn publish_within(&self, size: usize) -> Outcome<Pairs> {
        let bytes = self.version(size);
        let publisher = publisher(Shm::new().with_gpu(self.gpu), bytes)?;
        let (weights, other) = (GpuMemory::allocate(self.gpu, bytes)?, GpuMemory::allocate(self.gpu, bytes)?);
        let role = format!("read {}", publisher.address());
        let mut peer = Peer::start((self.other_process)(), &role, bytes)?;
        let (mut bare, mut limit) = (BareGpu::new(self.gpu, bytes)?, BareGpu::new(self.gpu, 1)?);
        let version = publish_filled(&publisher, &mut bare, &weights)?;
        let ours = || Ok(rate(bytes, publish(&publisher, &weights, &bare)?));
        let copy = || Ok(rate(bytes, limit.within(&weights.whole(), &other.whole())?));
        let measured = pairs(self.sizes.pairs, ours, copy)?;
        // All of them have published the bytes of the first one.
        let expected = format!("{} {}", publisher.version().get(), fill_of(version));
        match peer.ask("read")? {
            seen if seen == expected => Ok(measured),
            seen => Err(format!("the other process has read {seen} instead of {expected}").into()),
        }
    }

    fn pull_within(&self, size: usize) -> Outcome<Pairs> {
        let bytes = self.version(size);
        let mut peer = Peer::start((self.other_process)(), "publish", bytes)?;
        let options = ReaderOptions::default();
        let transport = Shm::new().with_gpu(self.gpu);
        let mut reader = Reader::connect(transport, peer.address()?, options, PATIENCE)?;
        let version = peer.publish()?;
        let allocate = || GpuMemory::allocate(self.gpu, bytes);
        let (weights, other, third) = (allocate()?, allocate()?, allocate()?);
        let (mut bare, mut limit) = (BareGpu::new(self.gpu, bytes)?, BareGpu::new(self.gpu, 1)?);
        let ours = || Ok(rate(bytes, pull(&mut reader, &weights, &bare)?));
        let copy = || Ok(rate(bytes, limit.within(&other.whole(), &third.whole())?));
        let measured = pairs(self.sizes.pairs, ours, copy)?;
        expect_filled(&mut bare, &weights, fill_of(version))?;
        Ok(measured)
    }

    /// The time of small versions of which `part` take less.
    fn small(&self, bytes: usize, part: f64) -> Outcome<Pairs> {
        let publisher = publisher(Shm::new(), bytes)?;
        let weights = GpuMemory::allocate(self.gpu, bytes)?;
        let (bare, mut limit) = (BareGpu::new(self.gpu, 1)?, BareGpu::new(self.gpu, bytes)?);
        let samples = self.sizes.samples;
        let of = |one: &mut dyn FnMut() -> Outcome<Duration>| {
            let mut times = (0..samples).map(|_| one()).collect::<Outcome<Vec<_>>>()?;
            times.sort();
            Ok(times[((samples - 1) as f64 * part) as usize].as_nanos() as f64)
        };
        let ours = || of(&mut || publish(&publisher, &weights, &bare));
        pairs(self.sizes.pairs, ours, || of(&mut || Ok(limit.to_host(&weights.whole())?)))
    }

    /// The seconds that the folds of the caller's stream take, with the larger version published meanwhile and without.
    fn busy(&self) -> Outcome<Pairs> {
        let bytes = self.version(1);
        let publisher = publisher(Shm::new(), bytes)?;
        let weights = GpuMemory::allocate(self.gpu, bytes)?;
        let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
        let arrays = Arrays::new(self.gpu, self.sizes.elements, optimizer, Encoding::F32)?;
        let kernels = GpuKernels::load(self.gpu, &optimizer)?;
        let count = self.sizes.busy;
        let folds = |publishes: bool| -> Outcome<f64> {
            let mut bare = BareGpu::new(self.gpu, 1)?;
            let begun = Instant::now();
            let mut draft = publisher.draft(PATIENCE)?;
            if publishes {
                draft.copy_from_gpu(0, &weights.whole(), &bare.stream()?)?;
            }
            for _ in 0..count {
                bare.launch(&kernels, arrays.fold())?;
            }
            bare.finish()?;
            let took = begun.elapsed();
            if publishes {
                draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)?;
            }
            Ok(took.as_secs_f64())
        };
        pairs(self.sizes.pairs, || folds(true), || folds(false))
    }

    /// Between a device and itself, with the memory at its other end on the host.
    fn carried(&self, is_write: bool) -> Outcome<Pairs> {
        let bytes = self.version(0);
        let memory = GpuMemory::allocate(self.gpu, bytes)?;
        let transfers = RefCell::new(self.rdma()?.transfers_to_measure(&memory)?);
        let carry = |is_on_gpu| Ok(rate(bytes, transfers.borrow_mut().carry(is_write, is_on_gpu)?));
        pairs(self.sizes.pairs, || carry(true), || carry(false))
    }

    /// The time until memory of the caller's that was registered before is registered under another name of it.
    fn registered_again(&self) -> Outcome<Pairs> {
        let bytes = self.version(1);
        let (memory, bare) = (GpuMemory::allocate(self.gpu, bytes)?, BareGpu::new(self.gpu, 1)?);
        let rdma = self.rdma()?;
        let again = || {
            let tensor = bare.imported(&memory, 0, bytes)?;
            let begun = Instant::now();
            rdma.register_tensor(&tensor)?;
            Ok(begun.elapsed().as_nanos() as f64)
        };
        pairs(self.sizes.pairs, again, || Ok(REGISTERED_AGAIN))
    }
}
