//! How many differences between versions a publisher keeps, and how long they may be.

use super::super::Error;
use crate::param::DeltaGeometry;
use crate::table::Table;

/// Settings of the differences that a publisher keeps for readers which hold an older version.
///
/// With each version the publisher writes which values have changed since the version before, and the new values, bit
/// for bit. That costs it one more pass over two versions, and memory of `history` times `most_bytes`. A reader that
/// holds one of the last `history` versions reads the differences up to the version that it wants, if they are shorter
/// than that version, and applies them to its own copy.
///
/// ```
/// use slackline::weights::{DeltaOptions, Publisher, PublisherOptions};
/// use slackline::{Address, ElementType, Shm, Table};
/// let table = Table::flat(1 << 20, ElementType::Bf16)?;
/// let options = PublisherOptions { deltas: Some(DeltaOptions::default()), ..PublisherOptions::default() };
/// let publisher = Publisher::new(Shm::new(), &Address::random(), table, options)?;
/// # Ok::<(), slackline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaOptions {
    /// Number of differences that are kept, of the newest versions. By default 8.
    pub history: u8,
    /// Most bytes of one difference: a version that differs by more is read whole. By default a sixteenth of the table,
    /// and at least 4,096.
    pub most_bytes: Option<u64>,
}

impl Default for DeltaOptions {
    fn default() -> Self {
        DeltaOptions { history: 8, most_bytes: None }
    }
}

impl DeltaOptions {
    /// The layout of the differences between versions of `table`.
    pub(super) fn geometry(&self, table: &Table) -> Result<DeltaGeometry, Error> {
        // No more than the smallest element: a value that changes takes no unchanged ones along.
        let smallest = table.tensors().iter().map(|tensor| tensor.element().bytes()).min().unwrap_or(1);
        let usual = (table.bytes() / 16).max(4096);
        let geometry = DeltaGeometry {
            slots: self.history,
            slot_bytes: self.most_bytes.unwrap_or(usual).min(table.bytes()),
            unit: smallest.min(8) as u8,
        };
        if self.history == 0 {
            let reason = "keep at least one difference, or none by `None` for all of it";
            return Err(Error::Option { option: "history", value: "0".into(), reason });
        }
        if !geometry.is_sound() {
            let value = self.most_bytes.unwrap_or_default().to_string();
            return Err(Error::Option { option: "most_bytes", value, reason: "use 1 byte to 2^48" });
        }
        Ok(geometry)
    }
}
