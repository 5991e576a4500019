//! The questions of a peer to its owner while it waits: whether the owner is alive, which version is the newest, and
//! whether this peer is still in.

use super::{LINE_BYTES, Link, PROBE_TAG};
use crate::clock::Version;
use crate::mem::{LocalSlice, RemoteSlice, Streaming};
use crate::node::{Awaited, Error};
use crate::param::{Eviction, own_page};
use crate::scheme::Bound;
use crate::time::{Duration, Instant};
use crate::transport::{Endpoint, Flags, Operation, PostError, WorkRequest};

impl<E: Endpoint> Link<E> {
    /// Looks after the connection while there is nothing else to do: is the owner there, and are we still in?
    pub(in crate::node) fn look_around(&mut self, now: Instant) -> Result<(), Error> {
        if let Some(gone) = self.failed.clone() {
            return Err(self.lost(gone));
        }
        let is_asked = !self.is_answered() && !self.is_probing();
        if now - self.probed < PROBE_EVERY && !is_asked {
            return Ok(());
        }
        self.probed = now;
        // The line first: an owner that lets a peer go says so there, and closes the connection.
        self.probe()?;
        self.advance()?;
        if let Some(why) = self.line.evicted {
            return Err(Error::Evicted { shard: self.welcome.shard, why });
        }
        self.endpoint.check().map_err(|gone| self.lost(gone))
    }

    /// Asks for the own line and the status line; the answer is in `line` once `advance` has seen it.
    pub(in crate::node) fn probe(&mut self) -> Result<(), Error> {
        if self.probe.outstanding > 0 {
            return Ok(());
        }
        let shard = self.welcome.shard;
        let read = |at: usize, remote| -> Result<WorkRequest, Error> {
            let local = self.probe.scratch.slice(at, LINE_BYTES)?;
            let operation = Operation::Read { local, remote, streaming: Streaming::Never };
            Ok(WorkRequest::signalled(PROBE_TAG, operation))
        };
        // The status line names no incarnation. The own line does by its generation, and is read after it.
        let (status, mut line) = (read(LINE_BYTES, self.probe.status)?, read(0, self.probe.line)?);
        line.flags |= Flags::FENCE;
        let requests = [status, line];
        match self.endpoint.post(&requests) {
            Ok(()) => self.probe.outstanding = 2,
            Err(PostError::QueueFull { .. }) => {}
            Err(PostError::Disconnected(gone)) => return Err(self.lost(gone)),
            Err(source) => return Err(Error::Post { shard, source }),
        }
        Ok(())
    }

    /// The newest version and smallest clock that were read of the owner; `None` before anything was.
    pub(in crate::node) fn seen(&self) -> Option<Bound> {
        let mapped = self.pins.as_ref().map(|pins| Bound::version(pins.newest()));
        let told = (self.answers > 0).then_some(self.line.seen);
        let in_deltas = self.deltas.as_ref().map(|deltas| Bound::version(deltas.seen()));
        let seen = [mapped, told, self.pull.seen(), in_deltas.filter(|seen| *seen != Bound::NONE)];
        seen.into_iter().flatten().reduce(|one, other| Bound {
            version: one.version.max(other.version),
            smallest_clock: one.smallest_clock.max(other.smallest_clock),
        })
    }

    /// The bound that was seen by the deadline of a wait for a version, and the missing event: that version, or the
    /// owner's first answer.
    pub(in crate::node) fn lacking(&self) -> (Bound, Awaited) {
        self.seen().map_or((Bound::NONE, Awaited::Answer), |seen| (seen, Awaited::Version))
    }

    /// Asks once more whether this peer is still in. The question begins after all reads so far.
    pub(in crate::node) fn ask_again(&mut self) -> Result<(), Error> {
        self.awaited = self.answers + 1 + u64::from(self.is_probing());
        self.probe()?;
        self.advance()?;
        Ok(())
    }

    /// Returns whether the answer to that is there and says that this peer is still in.
    pub(in crate::node) fn is_answered(&self) -> bool {
        self.answers >= self.awaited
    }

    /// Returns the number of probes that were answered so far, while this peer was in.
    pub(in crate::node) fn answers(&self) -> u64 {
        self.answers
    }

    /// True while the answer to a probe is under way.
    pub(in crate::node) fn is_probing(&self) -> bool {
        self.probe.outstanding > 0
    }

    pub(super) fn learn(&mut self) {
        let memory = self.probe.scratch.as_volatile();
        let words = own_page::read_line(&memory.subslice(0, LINE_BYTES), self.welcome.generation);
        let status = own_page::read_status(&memory.subslice(LINE_BYTES, LINE_BYTES));
        if words.evicted.is_some() {
            // The rest may be said to another peer, or by another incarnation of the owner.
            self.line.evicted = words.evicted;
            return;
        }
        let (seen, workers) =
            (Bound { version: status.latest, smallest_clock: status.smallest_clock }, status.workers);
        self.line = Line { evicted: None, interrupt: words.interrupt, seen, workers };
        self.answers += 1;
        if let Some(publish) = &mut self.publish {
            publish.learn_consumed(words.consumed);
        }
    }
}

/// This peer's line of the control page, as last seen.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::node) struct Line {
    pub(in crate::node) evicted: Option<Eviction>,
    /// The version on which, or on a later one, this peer is to compute.
    pub(in crate::node) interrupt: Version,
    /// The owner's newest version and smallest clock.
    pub(in crate::node) seen: Bound,
    /// Workers that are in, by the owner's count; 0 before anything was heard.
    pub(in crate::node) workers: usize,
}

/// Reads the own line and the status line, now and then.
pub(super) struct Probe {
    /// The own line where it lies, if its memory is mapped.
    pub(super) mapped: Option<LocalSlice>,
    pub(super) line: RemoteSlice,
    pub(super) status: RemoteSlice,
    pub(super) scratch: LocalSlice,
    pub(super) outstanding: u32,
}

/// Period at which a waiting peer looks after its connection and its line.
const PROBE_EVERY: Duration = Duration::from_millis(20);
