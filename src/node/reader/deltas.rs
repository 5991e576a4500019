//! Copies that are brought from one version to a newer one by their differences, and never by writing memory that was
//! handed out.

use std::sync::Arc;

use super::{Destination, Fresh, Reader, RelayTurn};
use crate::clock::Version;
use crate::mem::{Buffer, LocalSlice, Streaming};
use crate::node::Error;
use crate::node::wait::WaitTurn;
use crate::param::{Consistency, DeltaTurn, FrameLabel, PullError, PullOptions, Pulled};
use crate::scheme::Bound;
use crate::time::Instant;
use crate::transport::Transport;

/// A version that was handed out, and stays as it is for as long as this or its snapshot lives.
pub(super) struct DeltaBase {
    version: Version,
    label: FrameLabel,
    pub(super) buffer: Arc<Buffer>,
}

/// The step that the copy of a relay has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum RelayStep {
    Begin,
    /// By differences; true once the memory holds the version that they begin from.
    Deltas(bool),
    /// Whole; true once the pull has begun.
    Copy(bool),
}

impl<T: Transport> Reader<T> {
    /// Keeps a snapshot to begin from. Where the owner's memory is mapped, a whole copy costs no more than one of it.
    pub(super) fn keep_base(&mut self, fresh: &Fresh, buffer: &Arc<Buffer>) {
        let Fresh { version, tag, published_ns, origin, .. } = *fresh;
        let label = FrameLabel { tag, published_ns, origin };
        let is_of_use = self.reads_deltas() && self.link.expect_in_place().is_err();
        let base = is_of_use.then(|| DeltaBase { version, label, buffer: buffer.clone() });
        if let Some(before) = std::mem::replace(&mut self.base, base) {
            self.spares.give(before.buffer);
        }
    }

    /// True if the next snapshot may begin from the memory of the last one, by differences.
    #[doc(hidden)]
    pub fn has_base(&self) -> bool {
        self.base.is_some()
    }

    /// Has the next snapshot begin from no other one, whose memory its owner has written. A copy that was begun is
    /// given up.
    #[doc(hidden)]
    pub fn forget_base(&mut self) {
        self.abandon_refresh();
        self.let_base_go();
    }

    fn let_base_go(&mut self) {
        if let Some(base) = self.base.take() {
            self.spares.give(base.buffer);
        }
    }

    /// Whether this reader's copies are whole versions of an owner that keeps differences.
    fn reads_deltas(&self) -> bool {
        let is_whole = self.consistency == Consistency::Whole && self.selection.is_none();
        is_whole && self.link.has_deltas()
    }

    /// Begins to read the differences from the copy at hand, or from the newest snapshot, unless the memory of the next
    /// one is filled already. False if there is none of a version that they may begin from.
    pub(super) fn begin_deltas(
        &mut self,
        is_snapshot: bool,
        filling: Option<(Version, FrameLabel)>,
        bound: Bound,
        exactly: Option<Version>,
    ) -> Result<bool, Error> {
        let base = match is_snapshot {
            true => filling.or(self.base.as_ref().map(|base| (base.version, base.label))),
            false => self.content,
        };
        // A number is made once by a publisher, and by a server once in each of its incarnations.
        let base = base.filter(|(_, label)| label.origin != 0 && self.reads_deltas());
        let Some((version, label)) = base else { return Ok(false) };
        let least = if exactly.is_some() { bound } else { self.link.pull.no_older(bound) };
        let Some(deltas) = self.link.deltas(&self.transport)? else { return Ok(false) };
        deltas.start(version, label, least.version, exactly);
        Ok(true)
    }

    pub(super) fn turn_of_deltas(&self) -> DeltaTurn {
        self.link.deltas.as_ref().map_or(DeltaTurn::Whole, |deltas| deltas.turn())
    }

    /// Applies the difference that is there.
    pub(super) fn apply_delta(&mut self, is_snapshot: bool, is_filled: bool) -> Result<(), Error> {
        let into = self.memory_of_deltas(is_snapshot, is_filled)?;
        let Some(deltas) = &mut self.link.deltas else { return Ok(()) };
        let applied = deltas.apply(into.as_volatile());
        if !is_snapshot {
            (self.held, self.content) = (None, applied.then(|| deltas.held()));
        }
        Ok(())
    }

    /// The copy is the version that was to be reached.
    pub(super) fn reach(&mut self, is_snapshot: bool, is_filled: bool, pulled: Pulled) -> Result<(), Error> {
        let into = self.memory_of_deltas(is_snapshot, is_filled)?;
        let checked = self.check_reached(&into, pulled);
        // The version that the differences began from may be the damaged one: the next copy is whole.
        match (&checked, is_snapshot) {
            (Err(_), true) => self.let_base_go(),
            (Err(_), false) => (self.held, self.content) = (None, None),
            (Ok(()), _) => {}
        }
        checked
    }

    fn check_reached(&mut self, copy: &LocalSlice, Pulled { version, .. }: Pulled) -> Result<(), Error> {
        let shard = self.link.welcome.shard;
        let is_checked = self.options.checksums;
        if is_checked && self.link.deltas.as_ref().is_some_and(|deltas| !deltas.matches(copy)) {
            return Err(Error::Pull { shard, source: PullError::Checksum { version } });
        }
        self.link.pull.raise_floor(version);
        Ok(())
    }

    /// The memory that differences are applied to, which holds the version that they begin from.
    fn memory_of_deltas(&mut self, is_snapshot: bool, is_filled: bool) -> Result<LocalSlice, Error> {
        self.forget_partial(Destination::of(is_snapshot));
        let bytes = self.copy_bytes();
        let memory = if is_snapshot { &mut self.filling } else { &mut self.copy };
        let into = memory.as_mut().ok_or(Error::InFlight { what: "copy" })?.slice(0, bytes)?;
        if let Some(base) = self.base.as_ref().filter(|_| !is_filled) {
            let from = base.buffer.as_volatile().ok_or(Error::InFlight { what: "snapshot" })?;
            into.as_volatile().copy_from(from.subslice(0, bytes), Streaming::ByLength);
        }
        Ok(into)
    }

    /// Moves the copy of a version that is at least `least` on, into memory of a relay's, as far as it goes without
    /// waiting. `base` is the version that the relay serves, from which differences may begin.
    pub(in crate::node) fn relay(
        &mut self,
        into: &LocalSlice,
        least: Version,
        base: (Version, FrameLabel, LocalSlice),
        step: &mut RelayStep,
        now: Instant,
    ) -> Result<RelayTurn, Error> {
        if *step == RelayStep::Begin {
            let (version, label, _) = base;
            let deltas = self.link.deltas(&self.transport)?.filter(|_| label.origin != 0);
            *step = RelayStep::Copy(false);
            if let Some(deltas) = deltas {
                deltas.start(version, label, least, None);
                *step = RelayStep::Deltas(false);
            }
        }
        if let RelayStep::Deltas(is_filled) = *step {
            let progress = self.link.advance()?;
            let mut turn = RelayTurn { copied: None, landed: None, has_asked: false, retries: 0, progress };
            let next = self.turn_of_deltas();
            if !matches!(next, DeltaTurn::Pending | DeltaTurn::Whole) {
                self.forget_partial(Destination::Relay);
            }
            let fill = || {
                if !is_filled {
                    into.as_volatile().copy_from(base.2.as_volatile(), Streaming::ByLength);
                }
            };
            match next {
                DeltaTurn::Pending => self.link.look_around(now)?,
                DeltaTurn::Whole => (*step, turn.progress) = (RelayStep::Copy(false), true),
                DeltaTurn::Apply => {
                    fill();
                    if let Some(deltas) = &mut self.link.deltas {
                        deltas.apply(into.as_volatile());
                    }
                    (*step, turn.progress) = (RelayStep::Deltas(true), true);
                }
                DeltaTurn::Reached(pulled, label) => {
                    fill();
                    self.check_reached(into, pulled)?;
                    self.link.tell_held(pulled.version)?;
                    turn.copied = Some((pulled.version, label));
                }
            }
            return Ok(turn);
        }
        let mut has_begun = *step == RelayStep::Copy(true);
        if !has_begun && self.resuming.is_none() {
            self.resume(Destination::Relay);
        }
        let options = PullOptions { follow: true, chunked: true, label: true, ..self.pull_options() };
        let (pulled, progress) = self.pull_once(into, Bound::version(least), options, &mut has_begun)?;
        *step = RelayStep::Copy(has_begun);
        let pull = &self.link.pull;
        let (landed, has_asked, retries) = (pull.landed(), pull.has_asked(), pull.retries());
        let copied = pulled.map(|pulled| (pulled.version, pull.label()));
        match copied {
            Some((version, _)) => self.link.tell_held(version)?,
            None => self.link.look_around(now)?,
        }
        Ok(RelayTurn { copied, landed, has_asked, retries, progress })
    }

    /// True if the owner's memory is mapped: it is on this host.
    pub(crate) fn is_mapped(&self) -> bool {
        self.link.pins.is_some()
    }

    /// The outcome of a turn of a relay's, in which it got somewhere or did not.
    pub(in crate::node) fn relay_turn(&self, progress: bool) -> WaitTurn<()> {
        self.link.turn(progress)
    }
}

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use super::*;
    use crate::clock::VersionTag;
    use crate::diagnostic::Diagnostic;
    use crate::node::{DeltaOptions, Publisher, PublisherOptions, ReaderOptions, ShardOptions, Wanted};
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::tcp::Tcp;

    const PATIENCE: Duration = Duration::from_secs(60);
    const BYTES: usize = 4096;

    fn is_damaged(error: &Error, of: Version) -> bool {
        matches!(error, Error::Pull { source: PullError::Checksum { version }, .. } if *version == of)
    }

    #[test]
    fn a_damaged_copy_is_found_though_nothing_is_read_and_the_next_is_whole() {
        let (at, table) =
            ("127.0.0.1:0".parse().unwrap(), Table::flat(BYTES as u64, ElementType::U8).unwrap());
        let memory = ShardOptions { checksums: true, ..ShardOptions::default() };
        let deltas = Some(DeltaOptions { history: 4, most_bytes: None });
        let options = PublisherOptions { memory, deltas, ..PublisherOptions::default() };
        let publisher = Publisher::new(Tcp::new(), &at, table, options).unwrap().into_background().unwrap();
        let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
        let mut reader = Reader::connect(Tcp::new(), &publisher.address(), options, PATIENCE).unwrap();
        let (mut bytes, mut version) = ([7; BYTES], Version::new(0));
        for value in [7, 8] {
            bytes[9] = value;
            version = publisher.publish(&bytes, VersionTag::default(), PATIENCE).unwrap();
        }
        assert_eq!(reader.snapshot(Wanted::newest(), PATIENCE).unwrap().bytes(), bytes);
        assert_eq!(reader.refresh_to(version, PATIENCE).unwrap().version, version);
        // A bit flips in the reader's copy of each, and nothing is published.
        reader.spares = Default::default();
        let base = reader.base.as_mut().and_then(|base| Arc::get_mut(&mut base.buffer)).unwrap();
        for memory in [base, reader.copy.as_mut().unwrap()] {
            memory.bytes_mut().unwrap()[33] ^= 4;
        }
        let error = reader.snapshot(Wanted::newest(), PATIENCE).unwrap_err();
        assert!(is_damaged(&error, version) && error.is_retryable() && error.remedy().is_some(), "{error}");
        assert_eq!(reader.snapshot(Wanted::newest(), PATIENCE).unwrap().bytes(), bytes);
        let error = reader.refresh_to(version, PATIENCE).unwrap_err();
        assert!(is_damaged(&error, version), "{error}");
        assert_eq!(reader.refresh_to(version, PATIENCE).unwrap().version, version);
        assert_eq!(reader.bytes().unwrap(), bytes);
    }
}
