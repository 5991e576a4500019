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
    litmus(scene, "publish", |reader, expect| {
        let (version, seen) = pull(reader, &mut bare, &into)?;
        expect(version, &seen);
        Ok(version)
    })
}

pub(crate) fn no_version_is_torn_from_gpu_to_host(scene: &Scene) -> Outcome<()> {
    litmus(scene, "publish", |reader, expect| {
        let snapshot = reader.snapshot(Wanted::newest(), PATIENCE)?;
        expect(snapshot.fresh().version.get(), snapshot.bytes());
        Ok(snapshot.fresh().version.get())
    })
}

pub(crate) fn no_version_is_torn_from_host_to_gpu(scene: &Scene) -> Outcome<()> {
    let (mut bare, into) = (BareGpu::new(&scene.gpu, BYTES)?, GpuMemory::allocate(&scene.gpu, BYTES)?);
    litmus(scene, "publish-host", |reader, expect| {
        let (version, seen) = pull(reader, &mut bare, &into)?;
        expect(version, &seen);
        Ok(version)
    })
}

/// Reads with `read`, which shows each version and its bytes to the function that it is given.
fn litmus(
    scene: &Scene,
    role: &str,
    mut read: impl FnMut(&mut Reader<Shm>, &dyn Fn(u64, &[u8])) -> Outcome<u64>,
) -> Outcome<()> {
    let mut peer = Peer::start((scene.peer)(), role, BYTES)?;
    let mut reader = connect(Shm::new().with_gpu(&scene.gpu), peer.address()?)?;
    peer.publish()?;
    peer.ask("run")?;
    let ((fewest, shortest, longest), begun) = (scene.reads, Instant::now());
    let (mut reads, mut versions, mut last) = (0_u64, 0_u64, 0);
    let is_enough = |reads| begun.elapsed() >= shortest && reads >= fewest;
    while !is_enough(reads) && begun.elapsed() < longest {
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
