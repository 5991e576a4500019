//! Versions that a reader holds where they lie, without a copy.

use super::{Fresh, Reader};
use crate::mem::VolatileSlice;
use crate::node::Error;
use crate::node::link::PinnedFrame;
use crate::param::{PinCheck, Pins, Pulled};
use crate::scheme::Bound;
use crate::time::Duration;
use crate::transport::Transport;

impl<T: Transport> Reader<T> {
    /// Reads the newest version that satisfies `bound` in place, waiting at most `timeout`; nothing is copied. Only
    /// where the transport shares the owner's memory ([`Shm`](crate::Shm)), elsewhere it is an error. The owner leaves
    /// the frame alone while the result lives, and needs another frame for each version that is pinned
    /// ([`ShardOptions::frames`](crate::ShardOptions::frames)). A version on a GPU is read by kernels:
    /// [`PinnedFrame`] says how.
    ///
    /// ```
    /// use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
    /// use slackline::{Address, ElementType, Shm, Table, VersionTag, scheme::Bound};
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_secs(10);
    /// let table = Table::flat(8, ElementType::F32)?;
    /// let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
    /// let publisher = publisher.into_background()?;
    /// let version = publisher.publish(&[7; 32], VersionTag::default(), timeout)?;
    ///
    /// let mut reader = Reader::connect(Shm::new(), &publisher.address(), ReaderOptions::default(), timeout)?;
    /// let frame = reader.pin(Bound::version(version), timeout)?;
    /// let mut third = [0; 4];
    /// frame.bytes()?.subslice(8, 4).read(&mut third);
    /// assert!(frame.is_intact());
    /// assert_eq!((frame.version(), third), (version, [7; 4]));
    /// # Ok::<(), slackline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The memory is not shared, or is on a GPU that this reader's does not reach; no version satisfies `bound` in
    /// time.
    pub fn pin(&mut self, bound: Bound, timeout: Duration) -> Result<PinnedFrame<'_>, Error> {
        self.abandon_refresh();
        self.link.pin(bound, timeout)
    }

    /// As [`pin`](Self::pin), until [`release`](Self::release) or the next call that pins, pulls or refreshes.
    /// [`held`](Self::held) lends the bytes, which are in host memory.
    #[doc(hidden)]
    pub fn hold(&mut self, bound: Bound, timeout: Duration) -> Result<Pulled, Error> {
        self.link.expect_in_place()?;
        self.abandon_refresh();
        self.link.hold(bound, timeout)
    }

    /// The bytes that [`hold`](Self::hold) has pinned, in place.
    #[doc(hidden)]
    pub fn held(&self) -> Option<VolatileSlice<'_>> {
        self.link.pins.as_ref().and_then(Pins::bytes)
    }

    /// True if the held bytes are still those of the pinned version, as [`Pins::is_intact`].
    #[doc(hidden)]
    pub fn is_intact(&self) -> bool {
        self.link.pins.as_ref().is_some_and(Pins::is_intact)
    }

    /// A check that says the same while another thread uses this reader.
    #[doc(hidden)]
    pub fn held_check(&self) -> Option<PinCheck> {
        self.link.pins.as_ref().and_then(Pins::check)
    }

    /// Releases the frame that [`hold`](Self::hold) has pinned.
    #[doc(hidden)]
    pub fn release(&mut self) {
        if let Some(pins) = self.link.pins.as_mut().filter(|pins| pins.held().is_some()) {
            pins.release();
        }
    }

    /// The version that [`hold`](Self::hold) has pinned.
    #[doc(hidden)]
    pub fn held_fresh(&self) -> Option<Fresh> {
        let pins = self.link.pins.as_ref()?;
        Some(Fresh::new(pins.held()?, pins.label()?, false))
    }
}
