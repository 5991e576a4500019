//! Versions that a reader copies into memory of a GPU.

#[cfg(test)]
mod lent;
#[cfg(test)]
mod pinned;
#[cfg(test)]
mod scripted;

use super::{Fresh, Reader, Wanted};
use crate::clock::Version;
use crate::cuda::{GpuSlice, GpuStream};
use crate::node::Error;
use crate::node::runtime::complete;
use crate::node::wait::{WaitTurn, wait};
use crate::param::PullOptions;
use crate::scheme::Bound;
use crate::time::{Duration, Instant};
use crate::transport::{Endpoint, Transport};

impl<T: Transport> Reader<T> {
    /// Copies the version that is wanted into `into`, memory of the GPU as long as a copy, waiting at most `timeout`.
    /// The copy begins behind the work that `stream` has now, and later work of `stream` sees this version and no
    /// other. The GPU or an RDMA device copies it straight out of the owner's memory; over TCP, and by RDMA whose
    /// devices do not reach the GPU, it comes by way of blocks of host memory. Only over a transport with the GPU
    /// ([`Shm::with_gpu`](crate::Shm::with_gpu), `Tcp::with_gpu`, `Verbs::with_gpu`).
    ///
    /// After an error `into` may hold anything.
    ///
    /// ```no_run
    /// # use slackline::gpu::{Gpu, GpuMemory, GpuStream};
    /// # use slackline::weights::{Reader, ReaderOptions, Wanted};
    /// # use slackline::{Address, Shm};
    /// # fn pull(address: &Address) -> Result<(), Box<dyn std::error::Error>> {
    /// # let timeout = std::time::Duration::from_secs(10);
    /// let gpu = Gpu::open(0)?;
    /// // SAFETY: the default stream, which is there as long as the device.
    /// let stream = unsafe { GpuStream::of_caller(&gpu, 0)? };
    /// let mut reader = Reader::connect(Shm::new().with_gpu(&gpu), address, ReaderOptions::default(), timeout)?;
    /// let weights = GpuMemory::allocate(&gpu, reader.table().bytes() as usize)?;
    /// let fresh = reader.pull_to_gpu(Wanted::newest(), &weights.whole(), &stream, timeout)?;
    /// // A kernel that is launched on the stream now sees version `fresh.version`.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such version by the timeout, or no more; this process's GPU has not copied it by then, and
    /// [`GpuError::NotCopied`](crate::cuda::GpuError) names the work that it waits for; `into` has another length, or
    /// is on another GPU than the stream or the transport, or holds a pinned version; checksums are to be checked;
    /// the stream captures a graph; the transport has no GPU, or the GPU does not copy; the owner is lost.
    pub fn pull_to_gpu(
        &mut self,
        wanted: Wanted,
        into: &GpuSlice,
        stream: &GpuStream,
        timeout: Duration,
    ) -> Result<Fresh, Error> {
        self.abandon_refresh();
        self.release();
        if into.bytes() != self.copy_bytes() {
            return Err(Error::Length { given: into.bytes(), expected: self.copy_bytes(), unit: "bytes" });
        }
        into.expect_own()?;
        stream.hold_copies_of(into, self.transport.gpu())?;
        let pulled = complete(self.pull_wanted(wanted, into, timeout));
        if pulled.is_err() {
            self.link.cancel_pull();
        }
        // Also after an error: a copy that is under way cannot be called off.
        let ordered = stream.wait_for_copies();
        let fresh = pulled?;
        ordered?;
        self.link.tell_held(fresh.version)?;
        Ok(fresh)
    }

    async fn pull_wanted(
        &mut self,
        wanted: Wanted,
        into: &GpuSlice,
        timeout: Duration,
    ) -> Result<Fresh, Error> {
        let runtime = self.runtime.clone();
        let deadline = runtime.now() + timeout;
        loop {
            let bound = match wanted.most_behind() {
                None => wanted.bound(),
                Some(most) => {
                    let newest = self.newest_async(deadline - runtime.now()).await?;
                    self.expect_within(wanted, newest)?;
                    let oldest = Version::new(newest.get().saturating_sub(most));
                    Bound::version(oldest.max(wanted.bound().version))
                }
            };
            let options = PullOptions { label: true, exactly: wanted.exact(), ..self.pull_options() };
            let mut has_begun = false;
            let turn = |now: Instant| {
                let (pulled, progress) = self.pull_once(into, bound, options, &mut has_begun)?;
                if let Some(pulled) = pulled {
                    return Ok(WaitTurn::Done(pulled));
                }
                self.link.look_around(now)?;
                Ok(self.link.turn(progress))
            };
            let pulled = wait(&runtime, deadline, turn).await?;
            let Some(pulled) = pulled else {
                if let Some(copies) = self.link.endpoint.awaited_copies() {
                    return Err(copies.late(timeout).into());
                }
                let (operation, (seen, awaited)) = ("waiting for a version", self.link.lacking());
                return Err(Error::Deadline { operation, waited: timeout, needed: bound, seen, awaited });
            };
            if wanted.most_behind().is_none_or(|most| pulled.behind <= most) {
                return Ok(Fresh::new(pulled, self.link.pull.label(), true));
            }
        }
    }
}
