//! Pins of frames, which a peer reads in the owner's memory.

use super::Link;
use crate::clock::Version;
#[cfg(feature = "cuda")]
use crate::cuda::GpuMemory;
use crate::mem::VolatileSlice;
use crate::node::runtime::complete;
use crate::node::wait::{WaitTurn, wait};
use crate::node::{Error, idle};
use crate::param::{PinError, Pins, Pulled};
use crate::scheme::Bound;
use crate::time::{Duration, Instant};
use crate::transport::Endpoint;

/// A version in the memory of its owner, which does not overwrite it while this lives (and while this process is taken
/// for alive). [`Reader::pin`](crate::node::Reader::pin) makes it.
///
/// Where the owner has its versions on a GPU, `GpuMemory::try_from(&pinned)` is the memory of this one as this
/// process's GPU has it mapped, for kernels of the caller's. A kernel that is launched after the pin sees the version.
/// Drop this value only once the kernels that read the version have ended, by an event or a stream that the caller
/// waits for: the owner may write the frame from then on.
#[derive(Debug)]
pub struct PinnedFrame<'a> {
    pulled: Pulled,
    shard: u16,
    pins: &'a mut Pins,
}

impl PinnedFrame<'_> {
    /// Returns the number of the version.
    pub fn version(&self) -> Version {
        self.pulled.version
    }

    /// Returns the version that the frame holds, as a pull does.
    #[doc(hidden)]
    pub fn pulled(&self) -> Pulled {
        self.pulled
    }

    /// Returns whether the bytes read so far were this version's. They always are while this process is taken for
    /// alive; a process that was stopped for longer than its lease may have lost the pin, and has to ask after it has
    /// used them, on a GPU once the kernels that read them have ended.
    pub fn is_intact(&self) -> bool {
        self.pins.is_intact()
    }

    /// Its bytes, in place. No process writes them meanwhile, but they are the owner's: copy values that are checked
    /// before they are used.
    ///
    /// # Errors
    /// They are on a GPU.
    pub fn bytes(&self) -> Result<VolatileSlice<'_>, Error> {
        self.pins.bytes().ok_or(Error::Pin { shard: self.shard, source: PinError::OnGpu })
    }
}

/// The memory of a version on a GPU, for kernels that read it: see [`PinnedFrame`]. It stays mapped for as long as a
/// clone of it lives, and it holds the bytes of the version until the pin ends. A call that would copy into it is an
/// error (`GpuError::Lent`).
///
/// ```no_run
/// # use slackline::gpu::{Gpu, GpuMemory};
/// # use slackline::scheme::Bound;
/// # use slackline::weights::{Reader, ReaderOptions};
/// # use slackline::{Address, Shm};
/// # fn launch(weights: u64, bytes: usize) {}
/// # fn synchronise() {}
/// # fn read(address: &Address) -> Result<(), Box<dyn std::error::Error>> {
/// # let timeout = std::time::Duration::from_secs(10);
/// let transport = Shm::new().with_gpu(&Gpu::open(0)?);
/// let mut reader = Reader::connect(transport, address, ReaderOptions::default(), timeout)?;
/// let pinned = reader.pin(Bound::NONE, timeout)?;
/// let weights = GpuMemory::try_from(&pinned)?;
/// launch(weights.pointer(), weights.bytes()); // kernels of your own, which read the weights
/// synchronise(); // with them
/// assert!(pinned.is_intact()); // the version that they have read is `pinned.version()`
/// drop(pinned); // from now on the publisher may write there
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "cuda")]
impl TryFrom<&PinnedFrame<'_>> for GpuMemory {
    type Error = Error;

    /// # Errors
    /// The version is in host memory.
    fn try_from(pinned: &PinnedFrame<'_>) -> Result<GpuMemory, Error> {
        let on_gpu = pinned.pins.on_gpu().cloned();
        on_gpu.ok_or(Error::Pin { shard: pinned.shard, source: PinError::OnHost })
    }
}

impl Drop for PinnedFrame<'_> {
    fn drop(&mut self) {
        self.pins.release();
    }
}

impl<E: Endpoint> Link<E> {
    /// Checks that processors of this process read the owner's frames in place.
    ///
    /// # Errors
    /// They are not mapped, or on a GPU.
    pub(in crate::node) fn expect_in_place(&self) -> Result<(), Error> {
        let source = match &self.pins {
            Some(pins) if pins.are_on_host() => return Ok(()),
            Some(_) => PinError::OnGpu,
            None => PinError::NotMapped,
        };
        Err(Error::Pin { shard: self.welcome.shard, source })
    }

    /// Pins the newest version that satisfies `bound`, waiting at most `timeout`.
    pub(in crate::node) fn pin(&mut self, bound: Bound, timeout: Duration) -> Result<PinnedFrame<'_>, Error> {
        let pulled = self.hold(bound, timeout)?;
        let shard = self.welcome.shard;
        let pins = self.pins.as_mut().ok_or(Error::Pin { shard, source: PinError::NotMapped })?;
        Ok(PinnedFrame { pulled, shard, pins })
    }

    /// As [`pin`](Self::pin), until it is released or the next one is pinned.
    pub(in crate::node) fn hold(&mut self, bound: Bound, timeout: Duration) -> Result<Pulled, Error> {
        let begun = self.runtime.now();
        let bound = self.pull.no_older(bound);
        // A dead owner's memory would satisfy this reader for ever.
        self.look_around(begun)?;
        // Most pins end at once: they have read the clock once, and have not made a future.
        match self.hold_once(bound)? {
            Some(pulled) => Ok(pulled),
            None => complete(self.wait_to_hold(bound, begun, timeout)),
        }
    }

    async fn wait_to_hold(
        &mut self,
        bound: Bound,
        begun: Instant,
        timeout: Duration,
    ) -> Result<Pulled, Error> {
        let runtime = self.runtime.clone();
        let deadline = begun + timeout;
        let held = wait(&runtime, deadline, |now| {
            if let Some(pulled) = self.hold_once(bound)? {
                return Ok(WaitTurn::Done(pulled));
            }
            self.look_around(now)?;
            self.advance()?;
            Ok(idle::rest(WaitTurn::Idle, std::iter::once(&mut *self), deadline - now))
        });
        let held = held.await?;
        let (operation, (seen, awaited)) = ("pinning a version", self.lacking());
        held.ok_or(Error::Deadline { operation, waited: timeout, needed: bound, seen, awaited })
    }

    /// Pins the newest version if it satisfies `bound`.
    fn hold_once(&mut self, bound: Bound) -> Result<Option<Pulled>, Error> {
        if self.pull.is_pinned() {
            // The completed pull releases its pin, which is in the same word.
            self.advance()?;
            if self.pull.is_pinned() {
                return Ok(None);
            }
        }
        let shard = self.welcome.shard;
        let failed = |source| Error::Pin { shard, source };
        let held = self.pins.as_mut().ok_or(failed(PinError::NotMapped))?.hold(bound).map_err(failed)?;
        if let Some(Pulled { version, .. }) = held {
            self.pull.raise_floor(version);
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Publisher, PublisherOptions, Reader, ReaderOptions};
    use crate::param::{PartialCopy, PullOptions, RETRIES_BEFORE_PIN};
    use crate::table::{ElementType, Table};
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    /// Bytes of a version, and of a header.
    const BYTES: usize = 64;

    #[test]
    fn a_rescue_that_loses_its_pin_leaves_no_part_of_a_copy_to_go_on_with() {
        let (table, patience) =
            (Table::flat(BYTES as u64, ElementType::U8).unwrap(), Duration::from_secs(60));
        let mut publisher =
            Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default()).unwrap();
        let address = publisher.address();
        let connect = move || Reader::connect(Shm::new(), &address, ReaderOptions::default(), patience);
        let connecting = std::thread::spawn(connect);
        assert!(publisher.drive(|publisher| publisher.readers().len() == 1, patience).unwrap());
        let mut link = connecting.join().unwrap().unwrap().link;
        let version = publisher.publish(&[0; BYTES], patience).unwrap();
        let frames = publisher.frames();
        let header = frames.layout().frame_header(frames.latest().frame);
        // The copy goes where the header of the version is, so that the pin is lost while it is made.
        let into = frames.control().slice(header, BYTES).unwrap();
        let sequence = into.as_volatile().load_u64(0);
        let options = PullOptions { label: true, ..PullOptions::default() };
        link.pull.start(Bound::version(version), into.clone(), options).unwrap();
        link.pull.resume(PartialCopy::unlabelled(version, 32));
        // It is being written, each time that it is looked at.
        into.as_volatile().store_u64(0, sequence + 1);
        while link.pull.retries() < RETRIES_BEFORE_PIN {
            link.advance().unwrap();
        }
        into.as_volatile().store_u64(0, sequence);
        assert!(link.pull.wanted().is_some(), "it is the link that is to bring the copy");
        assert!(!link.rescue().unwrap(), "its pin was lost");
        assert_eq!(into.as_volatile().load_u64(0), 0, "it has copied");
        assert_eq!(link.pull.take_partial(), None);
    }
}
