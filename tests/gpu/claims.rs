//! The claims that are tested on a GPU. The same run over the scripted driver in the library's unit tests, where they
//! show that the programs are right, and nothing of a GPU.

use std::process::Command;
use std::time::{Duration, Instant};

use slackline::gpu::{Gpu, GpuMemory};
use slackline::internals::cuda::BareGpu;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, ElementType, Shm, Table, Tcp, Transport, Version};

use super::peer::{Outcome, PATIENCE, Peer, fill_of, publish_filled};

/// A GPU, the program that is the other process, and how much is done.
pub(crate) struct Scene {
    pub(crate) gpu: Gpu,
    pub(crate) peer: fn() -> Command,
    /// Versions of a publisher that never pauses: the fewest that are read, the shortest time for them and the longest.
    pub(crate) reads: (u64, Duration, Duration),
    /// Folds of each rule and type.
    pub(crate) folds: usize,
    /// Parameters of a fold that keeps the GPU busy, and the folds.
    pub(crate) busy: (usize, usize),
    /// The longest time of a call that must not wait, where times mean something.
    pub(crate) call: Option<Duration>,
    /// Steps in which the digits are learnt.
    pub(crate) clocks: u64,
    /// What keeps the GPU going.
    pub(crate) _working: Box<dyn Send>,
}

/// Tests of all claims, each in a scene of its own.
macro_rules! tests_of_claims {
    ($scene:path) => {
        claims::tests_of_claims! {
            $scene;
            parts_at_odd_offsets_come_and_go_as_they_are,
            tensors_over_two_pieces_of_memory_come_and_go_as_they_are,
            a_version_goes_from_gpu_to_gpu_between_processes,
            a_version_on_a_gpu_is_read_into_host_memory_by_another_process,
            versions_in_memory_of_the_callers_are_read_by_another_process,
            a_version_in_host_memory_is_pulled_to_a_gpu_by_another_process,
            over_tcp_a_version_goes_by_way_of_host_memory_and_is_counted,
            no_version_is_torn_from_gpu_to_gpu,
            no_version_is_torn_from_gpu_to_host,
            no_version_is_torn_from_host_to_gpu,
            no_version_of_a_kernel_that_publishes_is_torn,
            after_a_publisher_is_killed_the_next_one_is_read,
            a_fault_is_an_error_and_other_processes_go_on,
            what_a_busy_stream_writes_is_published_and_no_call_waits,
            memory_that_is_dropped_while_it_is_copied_is_copied_whole,
            what_is_pulled_behind_a_busy_stream_is_one_version,
            what_a_busy_stream_reads_of_a_pinned_version_is_that_version,
            over_tcp_no_block_is_used_again_before_its_copy,
            folds_have_the_bits_that_processors_make,
            measured_folds_agree_with_sums_in_float64,
            folds_are_within_a_millionth_of_float64,
            halves_are_published_with_the_bits_that_processors_make,
            dma_bufs_have_the_whole_of_what_they_are_of_and_are_given_back,
            a_group_on_a_gpu_has_the_bits_of_processors,
            digits_folded_on_a_gpu_become_the_parameters_of_processors,
            digits_learnt_on_a_gpu_have_the_losses_of_processors,
        }
    };
    ($scene:path; $($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            claims::$name(&$scene()).unwrap();
        })*
    };
}
pub(crate) use tests_of_claims;

pub(crate) use super::digits::{
    digits_folded_on_a_gpu_become_the_parameters_of_processors,
    digits_learnt_on_a_gpu_have_the_losses_of_processors,
};
pub(crate) use super::dma_bufs::dma_bufs_have_the_whole_of_what_they_are_of_and_are_given_back;
pub(crate) use super::folds::folds_have_the_bits_that_processors_make;
pub(crate) use super::groups::a_group_on_a_gpu_has_the_bits_of_processors;
pub(crate) use super::litmus::{
    no_version_is_torn_from_gpu_to_gpu, no_version_is_torn_from_gpu_to_host,
    no_version_is_torn_from_host_to_gpu, no_version_of_a_kernel_that_publishes_is_torn,
};
pub(crate) use super::measures::{
    folds_are_within_a_millionth_of_float64, halves_are_published_with_the_bits_that_processors_make,
    measured_folds_agree_with_sums_in_float64,
};
pub(crate) use super::streams::{
    a_fault_is_an_error_and_other_processes_go_on, memory_that_is_dropped_while_it_is_copied_is_copied_whole,
    over_tcp_no_block_is_used_again_before_its_copy,
    what_a_busy_stream_reads_of_a_pinned_version_is_that_version,
    what_a_busy_stream_writes_is_published_and_no_call_waits,
    what_is_pulled_behind_a_busy_stream_is_one_version,
};

/// Odd, so that frames do not end where pages do.
pub(crate) const BYTES: usize = 40_001;

pub(crate) fn connect<T: Transport>(transport: T, address: &Address) -> Outcome<Reader<T>> {
    Ok(Reader::connect(transport, address, ReaderOptions::default(), PATIENCE)?)
}

/// A pull of the newest version into memory of the GPU: its number and what is there then.
pub(crate) fn pull<T: Transport>(
    reader: &mut Reader<T>,
    bare: &mut BareGpu,
    into: &GpuMemory,
) -> Outcome<(u64, Vec<u8>)> {
    let fresh = reader.pull_to_gpu(Wanted::newest(), &into.whole(), &bare.stream()?, PATIENCE)?;
    Ok((fresh.version.get(), bare.read(&into.whole())?))
}

/// Pulls the newest version, which is to be this one, and filled throughout with its byte.
pub(crate) fn expect_pulled<T: Transport>(
    reader: &mut Reader<T>,
    bare: &mut BareGpu,
    into: &GpuMemory,
    version: Version,
) -> Outcome<()> {
    let (number, seen) = pull(reader, bare, into)?;
    assert_eq!(number, version.get());
    assert!(seen.iter().all(|byte| *byte == fill_of(version)), "version {number} has other bytes");
    Ok(())
}

pub(crate) fn parts_at_odd_offsets_come_and_go_as_they_are(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut bare = BareGpu::new(gpu, BYTES)?;
    let table = Table::flat(BYTES as u64, ElementType::U8)?;
    let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
    let publisher = publisher.into_background()?;
    let mut reader = connect(Shm::new().with_gpu(gpu), &publisher.address())?;
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at * 7 % 253) as u8).collect();
    // Neither the caller's memory nor the parts of it begin or end where words do.
    let (own, back) = (GpuMemory::allocate(gpu, 2 * BYTES)?, GpuMemory::allocate(gpu, 2 * BYTES)?);
    let (weights, into) = (bare.imported(&own, 13, BYTES)?, bare.imported(&back, 5, BYTES)?);
    bare.write(&weights.whole(), &pattern)?;
    let mut draft = publisher.draft(PATIENCE)?;
    let cuts = [0, 1, 6, 4099, BYTES];
    for cut in cuts.windows(2) {
        let part = weights.slice(cut[0], cut[1] - cut[0])?;
        draft.copy_from_gpu(cut[0] as u64, &part, &bare.stream()?)?;
    }
    let version = draft.commit_when_copied(Default::default()).wait(PATIENCE)?;
    let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE)?;
    assert!(snapshot.bytes() == pattern, "it was published otherwise");
    drop(snapshot);
    assert!(pull(&mut reader, &mut bare, &into)?.1 == pattern, "it was pulled otherwise");
    Ok(())
}

pub(crate) fn tensors_over_two_pieces_of_memory_come_and_go_as_they_are(scene: &Scene) -> Outcome<()> {
    let (shm, tcp) = (|| Shm::new().with_gpu(&scene.gpu), || Tcp::new().with_gpu(&scene.gpu));
    over_two_pieces(scene, shm(), shm(), &Address::random())?;
    over_two_pieces(scene, Shm::new(), shm(), &Address::random())?;
    over_two_pieces(scene, tcp(), tcp(), &Address::Tcp(([127, 0, 0, 1], 0).into()))
}

/// The pieces are mapped one behind the other, as those of PyTorch's expandable segments are.
fn over_two_pieces<T: Transport + 'static, R: Transport>(
    scene: &Scene,
    owner: T,
    peer: R,
    address: &Address,
) -> Outcome<()> {
    let mut bare = BareGpu::new(&scene.gpu, BYTES)?;
    let table = Table::flat(BYTES as u64, ElementType::U8)?;
    let publisher = Publisher::new(owner, address, table, PublisherOptions::default())?.into_background()?;
    let mut reader = connect(peer, &publisher.address())?;
    let (from, to) = (bare.two_pieces(BYTES)?, bare.two_pieces(BYTES)?);
    for before in [BYTES / 2, 1, BYTES - 3] {
        let tensor = |memory: &GpuMemory| bare.imported(memory, memory.bytes() / 2 - before, BYTES);
        let (weights, into) = (tensor(&from)?, tensor(&to)?);
        let pattern: Vec<u8> = (0..BYTES).map(|at| ((at + before) * 7 % 253) as u8).collect();
        bare.write(&weights.whole(), &pattern)?;
        let mut draft = publisher.draft(PATIENCE)?;
        draft.copy_from_gpu(0, &weights.whole(), &bare.stream()?)?;
        draft.commit_when_copied(Default::default()).wait(PATIENCE)?;
        let pulled = pull(&mut reader, &mut bare, &into)?.1;
        assert!(pulled == pattern, "{before} bytes of it are in the first piece");
    }
    Ok(())
}

pub(crate) fn a_version_goes_from_gpu_to_gpu_between_processes(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut peer = Peer::start((scene.peer)(), "publish", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    for _ in 0..5 {
        let version = peer.publish()?;
        expect_pulled(&mut reader, &mut bare, &into, version)?;
    }
    assert_eq!(gpu.host_bytes_copied(), 0);
    Ok(())
}

pub(crate) fn a_version_on_a_gpu_is_read_into_host_memory_by_another_process(scene: &Scene) -> Outcome<()> {
    let mut peer = Peer::start((scene.peer)(), "publish", BYTES)?;
    let mut reader = connect(Shm::new().with_gpu(&scene.gpu), peer.address()?)?;
    for _ in 0..5 {
        let version = peer.publish()?;
        let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE)?;
        assert!(snapshot.bytes() == vec![fill_of(version); BYTES]);
    }
    Ok(())
}

pub(crate) fn versions_in_memory_of_the_callers_are_read_by_another_process(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut peer = Peer::start((scene.peer)(), "publish-lent", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    for _ in 0..5 {
        let version = peer.publish()?;
        expect_pulled(&mut reader, &mut bare, &into, version)?;
        assert_eq!(peer.ask("lent")?, "true", "the frames are elsewhere");
    }
    assert_eq!(gpu.host_bytes_copied(), 0);
    Ok(())
}

pub(crate) fn a_version_in_host_memory_is_pulled_to_a_gpu_by_another_process(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut peer = Peer::start((scene.peer)(), "publish-host", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    for _ in 0..5 {
        let version = peer.publish()?;
        expect_pulled(&mut reader, &mut bare, &into, version)?;
    }
    Ok(())
}

pub(crate) fn over_tcp_a_version_goes_by_way_of_host_memory_and_is_counted(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut peer = Peer::start((scene.peer)(), "publish-tcp", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let mut reader = connect(Tcp::new().with_gpu(gpu), peer.address()?)?;
    let before = gpu.host_bytes_copied();
    for _ in 0..5 {
        let version = peer.publish()?;
        expect_pulled(&mut reader, &mut bare, &into, version)?;
    }
    assert_eq!(gpu.host_bytes_copied() - before, 5 * BYTES as u64);
    Ok(())
}

pub(crate) fn after_a_publisher_is_killed_the_next_one_is_read(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    let mut peer = Peer::start((scene.peer)(), "publish", BYTES)?;
    let (mut bare, into) = (BareGpu::new(gpu, BYTES)?, GpuMemory::allocate(gpu, BYTES)?);
    let mut reader = connect(Shm::new().with_gpu(gpu), peer.address()?)?;
    peer.ask("run")?;
    pull(&mut reader, &mut bare, &into)?;
    peer.child.kill()?;
    peer.child.wait()?;
    let begun = Instant::now();
    while pull(&mut reader, &mut bare, &into).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "a publisher that is gone is still read");
    }
    let mut next = Peer::start((scene.peer)(), "publish", BYTES)?;
    let version = next.publish()?;
    let mut reader = connect(Shm::new().with_gpu(gpu), next.address()?)?;
    expect_pulled(&mut reader, &mut bare, &into, version)?;
    // What a second publisher of this process publishes is still its own.
    let table = Table::flat(BYTES as u64, ElementType::U8)?;
    let transport = Shm::new().with_gpu(gpu);
    let publisher = Publisher::new(transport, &Address::random(), table, PublisherOptions::default())?;
    let publisher = publisher.into_background()?;
    let version = publish_filled(&publisher, &mut bare, &into)?;
    let mut reader = connect(Shm::new().with_gpu(gpu), &publisher.address())?;
    expect_pulled(&mut reader, &mut bare, &into, version)?;
    Ok(())
}
