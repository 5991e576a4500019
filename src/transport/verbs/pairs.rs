//! The queue pairs of one side of a connection, and the memory that it grants.
//!
//! Each direction has pairs of its own, so that each can be in a protection domain of its own: those that post are in
//! the transport's, where all memory of this process is known; those that serve a peer are in one that was made for it
//! and holds what it was granted, exactly and with those rights. A key of one peer opens nothing for another.

use std::io;
use std::sync::Arc;

use super::Shared;
use super::bell::Bell;
use super::hello::{Grant, Pairs};
use super::initiator::Initiator;
use super::queue_pair::{Path, QueuePair, RECEIVES};
use super::region::{ProtectionDomain, Registered};
use crate::mem::{Access, LocalSlice};

/// Heartbeats that may be under way.
const PULSE_DEPTH: usize = 16;

/// The pairs that this side posts on.
pub(super) struct Posting {
    pub(super) data: Initiator,
    pub(super) pulse: Initiator,
}

impl Posting {
    pub(super) fn new(shared: &Shared) -> io::Result<Posting> {
        Ok(Posting { data: shared.initiator(shared.queue_depth)?, pulse: shared.initiator(PULSE_DEPTH)? })
    }

    pub(super) fn pairs(&self) -> Pairs {
        Pairs { data: self.data.pair().pair(), pulse: self.pulse.pair().pair() }
    }

    /// Connects them to the pairs that serve them.
    pub(super) fn connect(&self, path: &Path, serving: &Pairs) -> io::Result<()> {
        self.data.pair().connect(path, &serving.data)?;
        self.pulse.pair().connect(path, &serving.pulse)
    }
}

/// Memory that one peer was granted.
struct Granted {
    /// Dropped first, and with it the key.
    registered: Registered,
    slice: LocalSlice,
}

/// The pairs that serve the peer, and what it may reach through them.
pub(super) struct Serving {
    /// What the peer's requests ring.
    bell: Option<Arc<Bell>>,
    // Dropped in this order: no pair, no keys, then the domain.
    data: Arc<QueuePair>,
    pulse: QueuePair,
    granted: Vec<Granted>,
}

impl Serving {
    /// For a peer that is granted `slices`; none if that is nothing. Its requests ring the bell, if there is one.
    pub(super) fn new(
        shared: &Shared,
        slices: Vec<LocalSlice>,
        bell: Option<&Arc<Bell>>,
    ) -> io::Result<Option<Serving>> {
        if slices.is_empty() {
            return Ok(None);
        }
        let domain = ProtectionDomain::new(&shared.device)?;
        let (data, pulse) = (QueuePair::to_serve(&domain, bell)?, QueuePair::to_serve(&domain, None)?);
        let grant = |slice: LocalSlice| {
            let access = slice.region().access();
            // Peers name bytes by their offset in the region: no address of this process ever travels.
            let first = slice.offset() as u64;
            let registered = Registered::new(&domain, slice.as_volatile(), first, access)?;
            Ok(Granted { registered, slice })
        };
        let granted = slices.into_iter().map(grant).collect::<io::Result<_>>()?;
        let data = Arc::new(data);
        if let Some(bell) = bell {
            bell.add(&data);
        }
        Ok(Some(Serving { bell: bell.cloned(), data, pulse, granted }))
    }

    /// Receives that the peer may use up before it is told of more.
    pub(super) fn receives(&self) -> u16 {
        self.bell.as_ref().map_or(0, |_| RECEIVES)
    }

    /// Receives that the peer is to be told of.
    pub(super) fn take_renewed(&self) -> Option<u32> {
        self.data.take_renewed()
    }

    pub(super) fn pairs(&self) -> Pairs {
        Pairs { data: self.data.pair(), pulse: self.pulse.pair() }
    }

    pub(super) fn grants(&self) -> Vec<Grant> {
        let grant = |granted: &Granted| Grant {
            key: granted.registered.remote_key(),
            offset: granted.slice.offset() as u64,
            bytes: granted.slice.len() as u64,
            access: granted.slice.region().access().bits(),
        };
        self.granted.iter().map(grant).collect()
    }

    /// Begins to serve the pairs that the peer posts on.
    pub(super) fn serve(&self, path: &Path, posting: &Pairs) -> io::Result<()> {
        let accesses = self.granted.iter().map(|granted| granted.slice.region().access());
        let all = accesses.fold(Access::LOCAL, Access::union);
        self.data.serve(path, &posting.data, all)?;
        // Heartbeats are words, and words are written.
        self.pulse.serve(path, &posting.pulse, all.intersection(Access::REMOTE_WRITE))
    }

    /// True if the device says that the peer reached for what it was not granted.
    pub(super) fn is_broken(&self) -> bool {
        self.data.is_broken() || self.pulse.is_broken()
    }

    /// Whether the device has told so since it was asked last.
    pub(super) fn was_told_broken(&self) -> bool {
        // Both, so that none is told later.
        self.data.was_told_broken() | self.pulse.was_told_broken()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(bell) = &self.bell
            && !self.data.is_inherited()
        {
            bell.remove(&self.data);
        }
    }
}
