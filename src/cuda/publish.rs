//! A kernel that publishes versions without a pause, for programs that test on a GPU.

use std::sync::atomic::Ordering::{Acquire, Release};

use smallvec::smallvec;

use super::copy::lock;
use super::driver::DevicePointer;
use super::kernels::{KernelParameter, Launch};
use super::queue::QueueKind;
use super::{BareGpu, GpuError, GpuSlice};
use crate::mem::MemoryRegion;

/// `struct slackline_publish` of `cuda/abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PublishParameters {
    pub(super) stop: DevicePointer,
    pub(super) latest: DevicePointer,
    pub(super) headers: DevicePointer,
    pub(super) frames: DevicePointer,
    pub(super) stride: u64,
    pub(super) words: u64,
    pub(super) version: u64,
    pub(super) frame: u32,
    pub(super) count: u32,
}

/// Frames on a GPU whose owner writes them no more, and the host's page that tells readers of them.
#[derive(Clone, Debug)]
pub struct GpuFrames {
    pub(crate) control: MemoryRegion,
    /// Where in it the word is that names the latest version, and where the headers begin.
    pub(crate) latest: usize,
    pub(crate) headers: usize,
    pub(crate) frames: GpuSlice,
    /// Bytes from one frame to the next, and of a version.
    pub(crate) stride: usize,
    pub(crate) bytes: usize,
    pub(crate) count: u8,
}

impl GpuFrames {
    /// The number of the newest version, and the frame that has it.
    fn newest(&self) -> (u64, u8) {
        let word = self.control.as_volatile().load(self.latest, Acquire);
        (word >> 8, word.to_le_bytes()[0])
    }
}

impl BareGpu {
    /// Puts a kernel on the stream that publishes version after version into `frames`, each filled throughout with the
    /// byte that is its number modulo 251. It goes on until [`stop_publishing`](Self::stop_publishing), so nothing else
    /// is asked of this stream before.
    ///
    /// # Errors
    /// A version is not a number of whole words, or the driver refuses.
    pub fn publish(&mut self, frames: &GpuFrames) -> Result<(), GpuError> {
        const WORD: usize = size_of::<u64>();
        let GpuFrames { control, latest, headers, frames: memory, stride, bytes, count } = frames;
        if [*stride, *bytes].iter().any(|bytes| !bytes.is_multiple_of(WORD)) {
            let reason =
                "a kernel publishes versions of whole words of 8 bytes, and this table has others".into();
            return Err(GpuError::Host { reason });
        }
        self.host().store(0, 0, Release);
        let (module, primary) = (self.gpu().module()?, self.gpu().inner().primary.clone());
        lock(&primary, control)?;
        let (stop, page) = (self.host().as_ptr(), control.as_volatile().as_ptr());
        let asking = "asking for the address of host memory";
        let [stop, page] = [stop, page].map(|host| primary.call(asking, |driver| driver.host_pointer(host)));
        let (stop, page) = (stop?, page?);
        let (version, frame) = frames.newest();
        let parameters = PublishParameters {
            stop,
            latest: page + *latest as u64,
            headers: page + *headers as u64,
            frames: memory.pointer(),
            stride: (stride / WORD) as u64,
            words: (bytes / WORD) as u64,
            version,
            frame: frame.into(),
            count: (*count).into(),
        };
        let function = module.function("slackline_publish_versions")?;
        self.issue(Launch {
            function,
            parameter: KernelParameter::Publish(parameters),
            kind: QueueKind::Within,
            slices: smallvec![memory.clone()],
            region: Some(control.clone()),
            _kernels: module,
        })
    }

    /// Ends that kernel, and waits until it has ended. The number of the last version.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn stop_publishing(&mut self, frames: &GpuFrames) -> Result<u64, GpuError> {
        self.end_publishing();
        self.finish()?;
        Ok(frames.newest().0)
    }

    /// Tells a kernel that publishes to end, if there is one.
    pub(super) fn end_publishing(&self) {
        self.host().store(0, 1, Release);
    }
}
