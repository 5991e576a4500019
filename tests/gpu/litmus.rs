//! A publisher that never pauses, and a reader in another process that checks every byte of each version.

use std::time::Instant;

use slackline::gpu::GpuMemory;
use slackline::internals::cuda::BareGpu;
use slackline::weights::{Reader, Wanted};
use slackline::{Shm, Version};

use super::claims::{BYTES, Scene, connect, pull};
use super::peer::{Outcome, PATIENCE, Peer, fill_of};

pub(crate) fn no_version_is_torn_from_gpu_to_gpu(scene: &Scene) -> Outcome<()> {
    let (mut bare, into) = (BareGpu::new(&scene.gpu, BYTES)?, GpuMemory::allocate(&scene.gpu, BYTES)?);
    litmus(scene, ("publish", "run", BYTES), scene.reads.0, |reader, expect| {
        let (version, seen) = pull(reader, &mut bare, &into)?;
        expect(version, &seen);
        Ok(version)
    })
}

/// A kernel publishes, and never ends by itself: no call of the owner's, and no processor, comes between two versions.
pub(crate) fn no_version_of_a_kernel_that_publishes_is_torn(scene: &Scene) -> Outcome<()> {
    // Whole words.
    const WHOLE: usize = BYTES / 8 * 8;
    // A copy within the GPU waits until the kernel is taken off it, and finds its frame overwritten. An engine of its
    // own copies to host memory.
    litmus(scene, ("publish", "run-kernel", WHOLE), (scene.reads.0 / 100).max(30), into_host_memory)
}

pub(crate) fn no_version_is_torn_from_gpu_to_host(scene: &Scene) -> Outcome<()> {
    litmus(scene, ("publish", "run", BYTES), scene.reads.0, into_host_memory)
}

/// Reads the newest version into host memory.
fn into_host_memory(reader: &mut Reader<Shm>, expect: &dyn Fn(u64, &[u8])) -> Outcome<u64> {
    let snapshot = reader.snapshot(Wanted::newest(), PATIENCE)?;
    expect(snapshot.fresh().version.get(), snapshot.bytes());
    Ok(snapshot.fresh().version.get())
}

pub(crate) fn no_version_is_torn_from_host_to_gpu(scene: &Scene) -> Outcome<()> {
    let (mut bare, into) = (BareGpu::new(&scene.gpu, BYTES)?, GpuMemory::allocate(&scene.gpu, BYTES)?);
    litmus(scene, ("publish-host", "run", BYTES), scene.reads.0, |reader, expect| {
        let (version, seen) = pull(reader, &mut bare, &into)?;
        expect(version, &seen);
        Ok(version)
    })
}

/// Reads with `read`, which shows each version and its bytes to the function that it is given. The other process has
/// this role, publishes at this line, and its versions have so many bytes. There are to be so many reads at least.
fn litmus(
    scene: &Scene,
    (role, run, bytes): (&str, &str, usize),
    fewest: u64,
    mut read: impl FnMut(&mut Reader<Shm>, &dyn Fn(u64, &[u8])) -> Outcome<u64>,
) -> Outcome<()> {
    let mut peer = Peer::start((scene.peer)(), role, bytes)?;
    let mut reader = connect(Shm::new().with_gpu(&scene.gpu), peer.address()?)?;
    peer.publish()?;
    peer.ask(run)?;
    let ((_, shortest, longest), begun) = (scene.reads, Instant::now());
    let (mut reads, mut versions, mut last) = (0_u64, 0_u64, 0);
    let is_enough = |reads, versions| begun.elapsed() >= shortest && reads >= fewest && versions > 1;
    while !is_enough(reads, versions) && begun.elapsed() < longest {
        let expect = |version: u64, seen: &[u8]| {
            let fill = fill_of(Version::new(version));
            let is_whole = seen.iter().fold(true, |is_whole, byte| is_whole & (*byte == fill));
            assert!(is_whole, "read {reads}: a mixture, or not version {version}");
        };
        let version = read(&mut reader, &expect)?;
        assert!(version >= last, "version {version} after {last}");
        (reads, versions, last) = (reads + 1, versions + u64::from(version > last), version);
    }
    let took = begun.elapsed();
    let published: u64 = peer.ask("stop")?.parse()?;
    println!("note: {reads} reads of {versions} versions, out of {published}, in {took:.0?}, none torn");
    assert!(versions > 1, "{reads} reads have seen {versions} of {published} versions");
    assert!(reads >= fewest, "{reads} reads are fewer than {fewest}");
    Ok(())
}
