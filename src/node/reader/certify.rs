//! The records of reads: how each was asked for, and the certificate that is made of that and of the bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::super::record::digests;
use super::{Fresh, Reader, Wanted};
use crate::clock::Version;
use crate::mem::{VolatileSlice, fence};
use crate::table::{Table, Tensor};
use crate::trace::Certificate;
use crate::transport::Transport;

/// The request of a read, which its certificate states besides the version.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    wanted: Wanted,
    /// The name of the reader.
    reader: u64,
    /// The number of the read.
    sequence: u64,
    began_ns: u64,
    /// The time at which the copy was complete; 0 before.
    ended_ns: u64,
}

impl Asked {
    /// The record of the read, which has ended with `fresh` and bytes of these digests.
    pub(super) fn certificate(self, fresh: &Fresh, digests: BTreeMap<String, [u8; 32]>) -> Certificate {
        let Fresh { version, behind, epoch, tag, published_ns, origin, .. } = *fresh;
        let Asked { wanted, reader, sequence, began_ns, ended_ns } = self;
        let least = wanted.bound().version;
        Certificate {
            reader,
            sequence,
            max_staleness: wanted.most_behind(),
            at_least: (least > Version::new(0) && wanted.exact().is_none()).then_some(least),
            exactly: wanted.exact(),
            began_ns,
            ended_ns,
            epoch,
            origin,
            version,
            newest: Version::new(version.get() + behind),
            tag,
            published_ns,
            digests,
        }
    }
}

/// The table of copies.
#[derive(Debug)]
pub(super) struct CopiedTable {
    pub(super) table: Table,
    /// For each tensor, whether it is the owner's whole tensor and not a slice of it.
    whole: Vec<bool>,
    /// The bytes of the table that are there: of a server's shard a part.
    pub(super) range: Range<u64>,
}

impl CopiedTable {
    /// The digests of the tensors that `memory`, a copy, has whole.
    pub(super) fn digests(&self, memory: VolatileSlice<'_>) -> BTreeMap<String, [u8; 32]> {
        let tensors = self.table.tensors().iter().zip(&self.whole);
        let whole = tensors.filter(|(_, is_whole)| **is_whole).map(|(tensor, _)| tensor);
        digests(whole, memory)
    }
}

impl<T: Transport> Reader<T> {
    /// Records that a read of `reader` begins now.
    pub(super) fn begin_read(&mut self, wanted: Wanted, reader: u64) -> Asked {
        self.reads += 1;
        let (sequence, began_ns) = (self.reads, self.runtime.time_of_day());
        // No load of the read comes before the clock's.
        fence(SeqCst);
        Asked { wanted, reader, sequence, began_ns, ended_ns: 0 }
    }

    /// Puts on record that a read other than a snapshot begins now. `is_refresh` says that it keeps a copy at hand
    /// which is fresh enough, though another read may have had a newer version: refreshes are the reads of a reader of
    /// their own.
    #[doc(hidden)]
    pub fn begin_record(&mut self, wanted: Wanted, is_refresh: bool) -> Asked {
        self.begin_read(wanted, if is_refresh { !self.identity } else { self.identity })
    }

    /// Puts on record that the read ends now.
    #[doc(hidden)]
    pub fn end_record(&self, asked: Asked) -> Asked {
        Asked { ended_ns: self.runtime.time_of_day(), ..asked }
    }

    /// The record of a read that has ended with `fresh` and these bytes: a copy, or a frame that was read in place.
    #[doc(hidden)]
    pub fn certify(&mut self, asked: Asked, fresh: &Fresh, bytes: VolatileSlice<'_>) -> Certificate {
        // A read in place has the whole frame, whatever is selected.
        let copied = match self.held() {
            Some(_) => Arc::new(self.whole_table()),
            None => self.table_of_copies(),
        };
        asked.certificate(fresh, copied.digests(bytes))
    }

    /// The table of copies, which is made once.
    pub(super) fn table_of_copies(&mut self) -> Arc<CopiedTable> {
        if let Some(copied) = &self.copied {
            return Arc::clone(copied);
        }
        let mut copied = self.whole_table();
        if let Some(selection) = &self.selection {
            let shapes: HashMap<&str, &[u64]> =
                self.table().tensors().iter().map(|tensor| (tensor.name(), tensor.shape())).collect();
            let table = selection.table().clone();
            let is_whole = |tensor: &Tensor| shapes.get(tensor.name()) == Some(&tensor.shape());
            let whole = table.tensors().iter().map(is_whole).collect();
            copied = CopiedTable { range: 0..table.bytes(), table, whole };
        }
        Arc::clone(self.copied.insert(Arc::new(copied)))
    }

    /// The table of a whole frame.
    fn whole_table(&self) -> CopiedTable {
        let (table, range) = (self.table().clone(), self.range());
        // A shard begins and ends anywhere in the tensors.
        let has_all = range == (0..table.bytes());
        CopiedTable { whole: vec![has_all; table.tensors().len()], table, range }
    }
}
