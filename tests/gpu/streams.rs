//! Streams of the program that are busy, kernels of it that fault, and memory that it lets go of.

use std::time::Instant;

use slackline::gpu::{Gpu, GpuMemory};
use slackline::internals::cuda::{BareGpu, GpuFold, GpuKernels};
use slackline::internals::kernel::Optimizer;
use slackline::scheme::Bound;
use slackline::weights::{BackgroundPublisher, Publisher, PublisherOptions, Wanted};
use slackline::{Address, ElementType, Encoding, Shm, Table, Tcp, Version, VersionTag};

use super::claims::{BYTES, Scene, connect, expect_pulled, pull};
use super::peer::{Outcome, PATIENCE, Peer, fill_of, number_of};

const SGD: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };

/// A publisher of frames in host memory.
fn publisher(bytes: usize) -> Outcome<BackgroundPublisher<Shm>> {
    let table = Table::flat(bytes as u64, ElementType::U8)?;
    let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
    Ok(publisher.into_background()?)
}

/// Folds that keep a stream busy.
struct Busywork {
    kernels: GpuKernels,
    from: GpuMemory,
    gradients: Vec<GpuMemory>,
    to: GpuMemory,
}

impl Busywork {
    fn new(gpu: &Gpu, elements: usize) -> Outcome<Busywork> {
        let large = || GpuMemory::allocate(gpu, elements * 4);
        let gradients = (0..4).map(|_| large()).collect::<Result<_, _>>()?;
        Ok(Busywork { kernels: GpuKernels::load(gpu, &SGD)?, from: large()?, gradients, to: large()? })
    }

    fn launch(&self, stream: &mut BareGpu, folds: usize) -> Outcome<()> {
        for _ in 0..folds {
            stream.launch(&self.kernels, fold(&self.from, &self.gradients, &self.to))?;
        }
        Ok(())
    }
}

/// `from` less a quarter of the sum of the gradients, into `to`.
fn fold(from: &GpuMemory, gradients: &[GpuMemory], to: &GpuMemory) -> GpuFold {
    GpuFold {
        optimizer: SGD,
        learning_rate: 0.25,
        step: 1,
        encoding: Encoding::F32,
        gradients: gradients.iter().map(|gradient| (gradient.whole(), 1.0)).collect(),
        arrays: [(from.whole(), to.whole())].into_iter().collect(),
        elements: 0..from.bytes() / 4,
    }
}

fn filled(gpu: &Gpu, bare: &mut BareGpu, elements: usize, value: f32) -> Outcome<GpuMemory> {
    let memory = GpuMemory::allocate(gpu, elements * 4)?;
    bare.write(&memory.whole(), &value.to_le_bytes().repeat(elements))?;
    Ok(memory)
}

pub(crate) fn what_a_busy_stream_writes_is_published_and_no_call_waits(scene: &Scene) -> Outcome<()> {
    const ELEMENTS: usize = 10_000;
    let gpu = &scene.gpu;
    let mut stream = BareGpu::new(gpu, ELEMENTS * 4)?;
    let mut other = BareGpu::on_another_stream(gpu, 1)?;
    let publisher = publisher(ELEMENTS * 4)?;
    let mut reader = connect(Shm::new(), &publisher.address())?;
    let parameters = filled(gpu, &mut stream, ELEMENTS, 1.0)?;
    let gradient = [filled(gpu, &mut stream, ELEMENTS, 2.0)?];
    let weights = filled(gpu, &mut stream, ELEMENTS, -1.0)?;
    let (elements, folds) = scene.busy;
    let work = Busywork::new(gpu, elements)?;
    // The first version locks the memory of its frame, which takes its time.
    for _ in 0..8 {
        let mut draft = publisher.draft(PATIENCE)?;
        draft.copy_from_gpu(0, &weights.whole(), &stream.stream()?)?;
        draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)?;
    }

    let busy = Instant::now();
    work.launch(&mut stream, folds)?;
    stream.launch(&work.kernels, fold(&parameters, &gradient, &weights))?;
    let begun = Instant::now();
    let mut draft = publisher.draft(PATIENCE)?;
    draft.copy_from_gpu(0, &weights.whole(), &stream.stream()?)?;
    let mut publishing = draft.commit_when_copied(VersionTag::default());
    let call = begun.elapsed();
    // A kernel of another stream of the program.
    let result = GpuMemory::allocate(gpu, ELEMENTS * 4)?;
    other.launch(&work.kernels, fold(&parameters, &gradient, &result))?;
    other.finish()?;
    let (beside, told) = (busy.elapsed(), publishing.poll()?);
    stream.finish()?;
    let busy = busy.elapsed();
    println!(
        "note: the calls took {call:.0?}; a kernel of another stream was done after {beside:.0?}, and the busy stream \
         after {busy:.0?}"
    );
    if let Some(longest) = scene.call {
        assert!(call < longest, "the calls took {call:?}");
        assert!(told.is_none(), "the version was published before the kernels were done");
    }
    let version = told.map_or_else(|| publishing.wait(PATIENCE), Ok)?;
    let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE)?;
    let (published, _) = snapshot.bytes().as_chunks();
    let is_last = published.iter().all(|bytes| f32::from_le_bytes(*bytes) == 0.5);
    assert!(is_last, "not what the last kernel has written");
    Ok(())
}

/// Folds that take some milliseconds, of those that take a second.
fn short(folds: usize) -> usize {
    folds.div_ceil(200)
}

pub(crate) fn memory_that_is_dropped_while_it_is_copied_is_copied_whole(scene: &Scene) -> Outcome<()> {
    let (gpu, (elements, folds)) = (&scene.gpu, scene.busy);
    let bytes = elements.min(64 << 20);
    let (publisher, work) = (publisher(bytes)?, Busywork::new(gpu, elements)?);
    let (mut stream, mut other) = (BareGpu::new(gpu, 1)?, BareGpu::on_another_stream(gpu, bytes)?);
    let mut reader = connect(Shm::new(), &publisher.address())?;
    for round in 1..=8_u8 {
        let weights = GpuMemory::allocate(gpu, bytes)?;
        other.write(&weights.whole(), &vec![round; bytes])?;
        // The copy begins later than the memory is dropped.
        work.launch(&mut stream, short(folds))?;
        let mut draft = publisher.draft(PATIENCE)?;
        draft.copy_from_gpu(0, &weights.whole(), &stream.stream()?)?;
        let mut publishing = draft.commit_when_copied(VersionTag::default());
        drop(weights);
        // What is allocated now may lie where that did.
        let next = GpuMemory::allocate(gpu, bytes)?;
        other.write(&next.whole(), &vec![100 + round; bytes])?;
        let version = publishing.wait(PATIENCE)?;
        let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE)?;
        assert!(snapshot.bytes().iter().all(|byte| *byte == round), "round {round}: other bytes were copied");
    }
    Ok(())
}

pub(crate) fn what_is_pulled_behind_a_busy_stream_is_one_version(scene: &Scene) -> Outcome<()> {
    let (gpu, (elements, folds)) = (&scene.gpu, scene.busy);
    let mut peer = Peer::start((scene.peer)(), "publish", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let work = Busywork::new(gpu, elements)?;
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    peer.publish()?;
    peer.ask("run")?;
    for _ in 0..200 {
        // By the time of the copy the publisher has gone through all of its frames.
        work.launch(&mut bare, short(folds))?;
        let (version, seen) = pull(&mut reader, &mut bare, &into)?;
        let is_whole = seen.iter().all(|byte| *byte == fill_of(Version::new(version)));
        assert!(is_whole, "a mixture, or not version {version}");
    }
    peer.ask("stop")?;
    Ok(())
}

pub(crate) fn what_a_busy_stream_reads_of_a_pinned_version_is_that_version(scene: &Scene) -> Outcome<()> {
    let (gpu, (elements, folds)) = (&scene.gpu, scene.busy);
    let mut peer = Peer::start((scene.peer)(), "publish", BYTES)?;
    let (mut bare, work) = (BareGpu::new(gpu, BYTES)?, Busywork::new(gpu, elements)?);
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    peer.publish()?;
    peer.ask("run")?;
    for _ in 0..200 {
        let pinned = reader.pin(Bound::NONE, PATIENCE)?;
        let memory = GpuMemory::try_from(&pinned)?;
        // By the time of the read the publisher would have gone through all of its frames.
        work.launch(&mut bare, short(folds))?;
        let (version, seen) = (pinned.version(), bare.read(&memory.whole())?);
        assert!(pinned.is_intact(), "the pin is lost");
        let is_whole = seen.iter().all(|byte| *byte == fill_of(version));
        assert!(is_whole, "a mixture, or not version {}", version.get());
    }
    peer.ask("stop")?;
    Ok(())
}

pub(crate) fn over_tcp_no_block_is_used_again_before_its_copy(scene: &Scene) -> Outcome<()> {
    let (gpu, (elements, folds)) = (&scene.gpu, scene.busy);
    // More than the blocks of a connection hold.
    let bytes = elements.min(48 << 20);
    let mut peer = Peer::start((scene.peer)(), "publish-tcp", bytes)?;
    let (mut bare, into) = (BareGpu::new(gpu, bytes)?, GpuMemory::allocate(gpu, bytes)?);
    let work = Busywork::new(gpu, elements)?;
    let mut reader = connect(Tcp::new().with_gpu(gpu), peer.address()?)?;
    peer.ask("numbered")?;
    for _ in 0..3 {
        work.launch(&mut bare, short(folds))?;
        let (_, seen) = pull(&mut reader, &mut bare, &into)?;
        let other = seen.iter().enumerate().position(|(at, byte)| *byte != number_of(at));
        assert_eq!(other, None, "the first byte from elsewhere");
    }
    Ok(())
}

pub(crate) fn a_fault_is_an_error_and_other_processes_go_on(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut peer = Peer::start((scene.peer)(), "publish", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    let version = peer.publish()?;
    let told = peer.ask("fault")?;
    assert!(told.contains("work of this process on GPU 0 failed with CUDA error"), "{told}");
    // The version before the fault is still whole, and this process's GPU works. It has the same bytes as the first.
    let (last, seen) = pull(&mut reader, &mut bare, &into)?;
    assert!(
        last >= version.get() && seen.iter().all(|byte| *byte == fill_of(version)),
        "version {last} is lost"
    );
    println!("note: {told}");
    drop(peer);
    let mut next = Peer::start((scene.peer)(), "publish", BYTES)?;
    let version = next.publish()?;
    let mut reader = connect(Shm::new().with_gpu(gpu), next.address()?)?;
    expect_pulled(&mut reader, &mut bare, &into, version)?;
    Ok(())
}
