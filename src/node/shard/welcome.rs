//! The message by which an owner lets a peer in.

use super::Shard;
use crate::clock::Clock;
use crate::param::{SlotGeometry, Welcome};
use crate::table::TableError;
use crate::transport::{MAX_MESSAGE_BYTES, Transport};

/// The most bytes of a message that has no peer's numbers yet. With them it is longer by a few words, and the message
/// of a named table has the name before it.
const MOST_BYTES: usize = MAX_MESSAGE_BYTES - 1024;

impl<T: Transport> Shard<T> {
    /// Checks that peers can be told of the table: else none of them would get in.
    pub(super) fn check_welcome(&self) -> Result<(), TableError> {
        let bytes = self.welcome(0, Clock::new(0), None).encode().len();
        if bytes > MOST_BYTES { Err(TableError::Description { bytes, most: MOST_BYTES }) } else { Ok(()) }
    }

    pub(super) fn welcome(&self, peer: u16, clock: Clock, slots: Option<SlotGeometry>) -> Welcome {
        Welcome {
            epoch: self.frames.epoch(),
            peer,
            generation: self.generations,
            clock,
            table: self.config.table.clone(),
            shard: self.config.shard,
            shards: self.config.shards,
            layout: *self.frames.layout(),
            geometry: *self.frames.geometry(),
            slots,
            lease_ns: u64::try_from(self.config.options.lease.as_nanos()).unwrap_or(u64::MAX),
            scheme: self.config.scheme.as_ref().map(|kept| kept.text.clone()),
            decided: None,
            deltas: self.frames.deltas().map(|deltas| *deltas.geometry()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::node::{Error, Publisher, PublisherOptions};
    use crate::table::{ElementType, Table, TableError};
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    #[test]
    fn a_table_that_no_message_can_describe_is_refused_at_once() {
        let publisher = |tensors: u8| {
            let mut table = Table::builder();
            for tensor in 0..tensors {
                let name = char::from(b'a' + tensor).to_string().repeat(1 << 20);
                table = table.tensor(name, &[1], ElementType::U8);
            }
            let table = table.build().unwrap();
            Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default()).map(drop)
        };
        publisher(15).unwrap();
        let error = publisher(16).unwrap_err();
        assert!(matches!(error, Error::Table(TableError::Description { .. })), "{error}");
    }
}
