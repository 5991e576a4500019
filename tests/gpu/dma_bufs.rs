//! Memory of a GPU as dma-bufs, the form in which RDMA devices take it. No device is needed for that.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use slackline::gpu::GpuMemory;
use slackline::internals::cuda::{BareGpu, GpuWindow};

use super::claims::Scene;
use super::peer::Outcome;

/// Exports of one range, one after the other: each takes a window of the device's address space while it lives.
const EXPORTS: usize = 500;

/// Bytes of the window that the driver, or another process, may take meanwhile: far less than the exports would.
const SLACK: u64 = 64 << 20;

/// The bytes that a dma-buf has.
fn bytes_of(buffer: std::os::fd::OwnedFd, is_scripted: bool) -> Outcome<usize> {
    let mut file = File::from(buffer);
    // A file stands for the buffer there, from where it stands on.
    let begin = if is_scripted { file.stream_position()? } else { 0 };
    Ok((file.seek(SeekFrom::End(0))? - begin) as usize)
}

pub(crate) fn dma_bufs_have_the_whole_of_what_they_are_of_and_are_given_back(scene: &Scene) -> Outcome<()> {
    let bare = BareGpu::new(&scene.gpu, 4096)?;
    let is_scripted = scene.call.is_none();
    let properties = scene.gpu.properties()?;
    // A claim that was not run counts as failed.
    assert!(
        properties.has_dma_bufs,
        "NOT RUN: the driver exports no dma-bufs of this GPU: use its open kernel modules and Linux 5.12 or later"
    );
    let address = properties.pci_address;
    let before = GpuWindow::of(&address);
    for bytes in [1, 40_001, 3 << 20] {
        let own = GpuMemory::allocate(&scene.gpu, bytes)?;
        let (buffer, length) = bare.dma_buf(&own)?;
        let found = bytes_of(buffer, is_scripted)?;
        assert!(found == length && length >= bytes, "{bytes} bytes: {found} of {length}");
        if bytes > 1000 {
            // A tensor at an odd offset is exported with the allocation that it is in.
            let tensor = bare.imported(&own, 13, bytes - 13)?;
            let (buffer, whole) = bare.dma_buf(&tensor)?;
            let found = bytes_of(buffer, is_scripted)?;
            assert!(found == whole && whole >= bytes, "{bytes} bytes: {found} of {whole}");
        }
        for _ in 0..EXPORTS {
            drop(bare.dma_buf(&own)?);
        }
    }
    match (before, GpuWindow::of(&address)) {
        (Ok(before), Ok(after)) => {
            let [before, after] = [before, after].map(|window| window.free);
            assert!(after + SLACK >= before, "{before} bytes of BAR1 were free before, and {after} after");
            println!("note: of BAR1 {before} bytes were free before, and {after} after");
        }
        (Err(error), _) | (_, Err(error)) => println!("note: what is free of BAR1 is NOT KNOWN: {error}"),
    }
    Ok(())
}
