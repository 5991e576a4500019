//! Copies that were abandoned, because their owner was lost or their time was over, and go on.

use super::Reader;
use crate::mem::Buffer;
use crate::node::Error;
use crate::param::PartialCopy;
use crate::transport::Transport;

/// The memory that a copy goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The reader's own.
    Copy,
    /// The memory of the next snapshot.
    Snapshot,
    /// The next frame of a relay.
    Relay,
}

impl Destination {
    pub(super) fn of(is_snapshot: bool) -> Destination {
        if is_snapshot { Destination::Snapshot } else { Destination::Copy }
    }
}

impl<T: Transport> Reader<T> {
    /// Keeps the proved chunks of a copy that is being abandoned. If it has not begun to copy, the chunks of an earlier
    /// one are still there.
    pub(super) fn keep_partial(&mut self, of: Destination) {
        let begun: Option<PartialCopy> = self.resuming.take().or_else(|| self.link.pull.take_partial());
        // Memory of the caller's may be written now that no copy is under way.
        let is_kept = !(of == Destination::Copy && self.is_callers);
        if let Some(partial) = begun.filter(|_| is_kept) {
            self.partial = Some((of, partial));
        }
    }

    /// The memory is about to hold something else.
    pub(super) fn forget_partial(&mut self, of: Destination) {
        self.partial.take_if(|(its, _)| *its == of);
    }

    /// Leaves memory to the requests that still use it: a GPU's copy for a lost connection cannot be cancelled, and
    /// must not write into the next copy.
    ///
    /// # Errors
    /// It is the caller's.
    pub(super) fn leave_lent_memory(&mut self) -> Result<(), Error> {
        let is_lent = |memory: &mut Buffer| memory.bytes().is_none();
        if self.filling.take_if(is_lent).is_some() {
            self.forget_partial(Destination::Snapshot);
        }
        if self.copy.take_if(is_lent).is_some() {
            self.forget_partial(Destination::Copy);
            self.content = None;
            if std::mem::take(&mut self.is_callers) {
                return Err(Error::InFlight { what: "memory of the caller" });
            }
        }
        Ok(())
    }

    /// A copy to this memory is about to begin: it continues with the chunks of an abandoned one there.
    pub(super) fn resume(&mut self, of: Destination) {
        self.resuming = self.partial.take_if(|(its, _)| *its == of).map(|(_, partial)| partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Version;
    use crate::node::{Publisher, PublisherOptions, ReaderOptions};
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    /// A publisher, and a reader of it.
    fn pair() -> (Publisher<Shm>, Reader<Shm>) {
        let table = Table::flat(64, ElementType::U8).unwrap();
        let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default());
        let (mut publisher, patience) = (publisher.unwrap(), Duration::from_secs(60));
        let address = publisher.address();
        let connect = move || Reader::connect(Shm::new(), &address, ReaderOptions::default(), patience);
        let connecting = std::thread::spawn(connect);
        assert!(publisher.drive(|publisher| publisher.readers().len() == 1, patience).unwrap());
        (publisher, connecting.join().unwrap().unwrap())
    }

    /// Stores a word of the header of the latest frame.
    fn store(publisher: &Publisher<Shm>, word: usize, value: u64) {
        let frames = publisher.frames();
        let at = frames.layout().frame_header(frames.latest().frame) + word * 8;
        frames.control().as_volatile().store_u64(at, value);
    }

    #[test]
    fn a_part_outlives_an_owner_that_is_lost_in_the_first_step_of_the_copy() {
        let (publisher, mut reader) = pair();
        let partial = Some((Destination::Copy, PartialCopy::unlabelled(Version::new(0), 32)));
        reader.partial = partial;
        // The epoch of another incarnation.
        store(&publisher, 2, 1);
        let lost = reader.refresh_to(Version::new(0), Duration::from_secs(60)).unwrap_err();
        assert!(lost.is_loss(), "{lost}");
        assert_eq!(reader.partial, partial);
    }

    #[test]
    fn a_lapped_refresh_begins_again_once_between_two_looks_at_the_clock() {
        let (publisher, mut reader) = pair();
        // It is being written, each time that it is looked at.
        store(&publisher, 0, 1);
        reader.begin_refresh(0);
        let now = crate::node::now();
        for retries in 1..=4 {
            assert_eq!(reader.poll(now).unwrap(), None);
            assert_eq!(reader.link.pull.retries(), retries);
        }
    }

    #[test]
    fn a_relay_that_is_given_up_before_it_copies_keeps_the_part_it_had() {
        let table = Table::flat(64, ElementType::U8).unwrap();
        let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default());
        let publisher = publisher.unwrap().into_background().unwrap();
        let (address, options) = (publisher.address(), ReaderOptions::default());
        let mut reader = Reader::connect(Shm::new(), &address, options, Duration::from_secs(60)).unwrap();
        let partial = Some((Destination::Relay, PartialCopy::unlabelled(Version::new(1), 32)));
        reader.partial = partial;
        reader.give_up_relay();
        assert_eq!(reader.partial, partial);
    }
}
