//! Refreshes of a reader's copy, as a state machine that never waits and as blocking calls.

use super::super::runtime::complete;
use super::super::wait::{WaitTurn, wait};
use super::super::worker::private;
use super::super::{Awaited, Error};
use super::{Asked, Destination, Fresh, Reader, Wanted};
use crate::clock::Version;
use crate::param::{DeltaTurn, FrameLabel, PullError, PullOptions, Pulled};
use crate::scheme::Bound;
use crate::time::{Duration, Instant};
use crate::transport::Transport;

/// A refresh that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refresh {
    wanted: Wanted,
    /// How the snapshot was asked for whose memory it fills, if that is not the reader's own copy.
    snapshot: Option<Asked>,
    step: RefreshStep,
    /// The last copy was too far behind when it was there.
    is_too_stale: bool,
    /// The version that the memory of the snapshot holds then: differences go on from there.
    filling: Option<(Version, FrameLabel)>,
}

/// The step that a refresh has come to.
#[derive(Clone, Copy, Debug)]
enum RefreshStep {
    /// The newest version's number is to be asked for.
    Ask,
    /// That number is there once so many probes were answered.
    Asked { answers: u64 },
    /// A version within the bound is to be copied.
    Copy { bound: Bound },
    /// The copy at hand is brought there by differences; `has_read` once one of them was applied, and `is_filled` once
    /// the memory that they are applied to holds the version that they begin from.
    Deltas { bound: Bound, has_read: bool, is_filled: bool },
    /// The differences have led to a version: how far it is behind is known once so many probes were answered. The look
    /// that told of it may have been long before the copy was complete.
    Judge { answers: u64, pulled: Pulled, label: FrameLabel, has_read: bool },
    /// It is being copied, once the requests of an earlier pull are over.
    Copying { bound: Bound, has_begun: bool },
}

impl<T: Transport> Reader<T> {
    /// Makes sure that the reader's copy is at most `max_staleness` versions behind the newest, waiting at most
    /// `timeout`. A copy that is fresh enough already is kept.
    ///
    /// # Errors
    /// [`Error::Deadline`]: there was no answer, or no whole copy that is fresh enough, within `timeout`; call again.
    /// [`Error::ServerLost`], [`Error::Evicted`]: the owner is gone, or has let this reader go; connect again.
    /// [`Error::Pull`]: a copy failed, or does not match its checksum. There may be no copy at hand after an error.
    pub fn refresh(&mut self, max_staleness: u64, timeout: Duration) -> Result<Fresh, Error> {
        complete(self.refresh_async(max_staleness, timeout))
    }

    pub(crate) async fn refresh_async(
        &mut self,
        max_staleness: u64,
        timeout: Duration,
    ) -> Result<Fresh, Error> {
        self.begin_refresh(max_staleness);
        self.finish(timeout).await
    }

    /// Waits, at most `timeout`, for `version` or a newer one, and copies the newest.
    ///
    /// # Errors
    /// The errors of [`refresh`](Self::refresh); [`Error::Deadline`] also where the version was not published within
    /// `timeout`.
    pub fn refresh_to(&mut self, version: Version, timeout: Duration) -> Result<Fresh, Error> {
        self.begin(Wanted::at_least(version), None);
        complete(self.finish(timeout))
    }

    /// Begins a [`refresh`](Self::refresh), and does not wait for it: [`poll`](Self::poll) drives it forward, while
    /// this thread does something else in between. There is no copy to read from the moment when a newer version is
    /// found until the refresh has ended. A call that pins, pulls or refreshes abandons it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
    /// # use slackline::{Address, ElementType, Shm, Table};
    /// # let timeout = Duration::from_secs(10);
    /// # let table = Table::flat(4, ElementType::F32)?;
    /// # let mut publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
    /// # let address = publisher.address().clone();
    /// # let reading = std::thread::spawn(move || {
    /// #     Reader::connect(Shm::new(), &address, ReaderOptions::default(), timeout)
    /// # });
    /// # while !reading.is_finished() {
    /// #     publisher.poll(slackline::now());
    /// # }
    /// # let mut reader = reading.join().expect("no panic")?;
    /// publisher.publish(&[7; 16], timeout)?;
    /// reader.begin_refresh(0);
    /// let fresh = loop {
    ///     publisher.poll(slackline::now()); // Here both live in one thread.
    ///     if let Some(fresh) = reader.poll(slackline::now())? {
    ///         break fresh;
    ///     }
    ///     // Compute something.
    /// };
    /// assert_eq!((fresh.version.get(), reader.bytes()?), (1, &[7; 16][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_refresh(&mut self, max_staleness: u64) {
        self.begin(Wanted::newest().max_staleness(max_staleness), None);
    }

    /// Moves the refresh that [`begin_refresh`](Self::begin_refresh) began on as far as it goes without waiting, and
    /// looks after the connection. `now` is the time by [`now`](crate::now). Returns the version once it is in the
    /// copy; `None` before that, and while there is no refresh.
    ///
    /// Over TCP and RDMA a copy that would come too late pins its frame until it has ended: a publisher may wait for a
    /// frame while a refresh that has begun is not moved on.
    ///
    /// # Errors
    /// The owner is lost, or has let this reader go; the refresh has ended.
    pub fn poll(&mut self, now: Instant) -> Result<Option<Fresh>, Error> {
        Ok(match self.turn(now)? {
            WaitTurn::Done(fresh) => Some(fresh),
            _ => None,
        })
    }

    /// Goes on with the refresh or the snapshot that has begun, waiting at most `timeout`; `None` if it has not ended
    /// by then, and the next call goes on with it.
    #[doc(hidden)]
    pub fn continue_refresh(&mut self, timeout: Duration) -> Result<Option<Fresh>, Error> {
        let runtime = self.runtime.clone();
        let deadline = runtime.now() + timeout;
        complete(wait(&runtime, deadline, |now| {
            let turn = self.turn(now)?;
            Ok(self.rest(turn, deadline - now))
        }))
    }

    pub(super) fn begin(&mut self, wanted: Wanted, snapshot: Option<Asked>) {
        self.abandon_refresh();
        self.filled = None;
        let step = match wanted.most_behind() {
            Some(_) => RefreshStep::Ask,
            None => RefreshStep::Copy { bound: wanted.bound() },
        };
        self.refresh = Some(Refresh { wanted, snapshot, step, is_too_stale: false, filling: None });
    }

    /// Ends the refresh or the snapshot that has begun, if there is one, and releases the frame that it pins. The next
    /// one continues with the chunks that it has copied.
    #[doc(hidden)]
    pub fn abandon_refresh(&mut self) {
        if let Some(refresh) = self.refresh.take() {
            if let RefreshStep::Copying { .. } = refresh.step {
                self.keep_partial(Destination::of(refresh.snapshot.is_some()));
            }
            self.link.cancel_pull();
        }
        (self.resuming, self.failed) = (None, None);
    }

    /// Waits for the end of the refresh.
    pub(super) async fn finish(&mut self, timeout: Duration) -> Result<Fresh, Error> {
        let runtime = self.runtime.clone();
        let deadline = runtime.now() + timeout;
        let fresh = wait(&runtime, deadline, |now| {
            let turn = self.turn(now)?;
            Ok(self.rest(turn, deadline - now))
        });
        let fresh = fresh.await?;
        fresh.ok_or_else(|| {
            let late = self.late(timeout);
            self.abandon_refresh();
            late
        })
    }

    /// The error of a refresh that has not ended within `waited`.
    fn late(&self, waited: Duration) -> Error {
        let (operation, needed, (seen, awaited)) = match self.refresh {
            Some(Refresh {
                step:
                    RefreshStep::Copy { bound }
                    | RefreshStep::Copying { bound, .. }
                    | RefreshStep::Deltas { bound, .. },
                ..
            }) => ("waiting for a version", bound, self.link.lacking()),
            Some(Refresh { is_too_stale: true, wanted, .. }) => {
                ("keeping up with the publisher", self.within(wanted), self.link.lacking())
            }
            _ => {
                let seen = self.link.seen().unwrap_or(Bound::NONE);
                ("asking for the version", Bound::NONE, (seen, Awaited::Answer))
            }
        };
        Error::Deadline { operation, waited, needed, seen, awaited }
    }

    /// The bound on a copy that is wanted, which may be so many versions behind the newest that is known.
    fn within(&self, wanted: Wanted) -> Bound {
        let newest = self.link.line.seen.version.get();
        let oldest = wanted.most_behind().map_or(0, |most| newest.saturating_sub(most));
        Bound::version(Version::new(oldest).max(wanted.bound().version))
    }

    fn turn(&mut self, now: Instant) -> Result<WaitTurn<Fresh>, Error> {
        let turn = match self.failed.take() {
            Some(error) => Err(error),
            None => self.steps(now),
        };
        match &turn {
            Ok(WaitTurn::Done(_)) => self.refresh = None,
            Ok(_) => {}
            Err(_) => self.abandon_refresh(),
        }
        turn
    }

    /// The copy at hand, if it meets the request by the newest version that is known.
    fn kept(&self, wanted: Wanted) -> Option<Fresh> {
        let (held, label) = self.held?;
        let behind = held.version.behind(self.link.line.seen.version);
        let is_wanted = behind <= wanted.most_behind().unwrap_or_default()
            && held.version >= wanted.bound().version
            && wanted.exact().is_none_or(|version| version == held.version);
        is_wanted.then(|| Fresh::new(Pulled { behind, retries: 0, ..held }, label, false))
    }

    /// Fails if the one version that is wanted is too far behind the newest: it never comes nearer.
    pub(super) fn expect_within(&self, wanted: Wanted, newest: Version) -> Result<(), Error> {
        let Some((version, most_behind)) = wanted.exact().zip(wanted.most_behind()) else { return Ok(()) };
        if version.behind(newest) <= most_behind {
            return Ok(());
        }
        let source = PullError::TooOld { version, newest, most_behind };
        Err(Error::Pull { shard: self.link.welcome.shard, source })
    }

    /// Takes steps until one has to wait.
    fn steps(&mut self, now: Instant) -> Result<WaitTurn<Fresh>, Error> {
        let Some(mut refresh) = self.refresh else {
            self.link.look_around(now)?;
            return Ok(WaitTurn::Idle);
        };
        let turn = loop {
            refresh.step = match refresh.step {
                RefreshStep::Ask => {
                    let answers = self.answers_from_now();
                    self.link.look_around(now)?;
                    RefreshStep::Asked { answers }
                }
                RefreshStep::Asked { answers } => {
                    if !self.ask_newest_once(answers, now)? {
                        break self.link.turn(false);
                    }
                    if let (None, Some(kept)) = (refresh.snapshot, self.kept(refresh.wanted)) {
                        break WaitTurn::Done(kept);
                    }
                    self.expect_within(refresh.wanted, self.link.line.seen.version)?;
                    RefreshStep::Copy { bound: self.within(refresh.wanted) }
                }
                RefreshStep::Copy { bound } => {
                    // A dead owner's memory would satisfy this reader for ever.
                    self.link.look_around(now)?;
                    self.release();
                    // The requests of a pull that was abandoned own the memory.
                    self.link.advance()?;
                    if self.link.pull.is_in_flight() {
                        break WaitTurn::Asked;
                    }
                    self.make_room(refresh.snapshot.is_some())?;
                    let (is_snapshot, filling) = (refresh.snapshot.is_some(), refresh.filling.take());
                    if self.begin_deltas(is_snapshot, filling, bound, refresh.wanted.exact())? {
                        let is_filled = !is_snapshot || filling.is_some();
                        RefreshStep::Deltas { bound, has_read: false, is_filled }
                    } else {
                        self.begin_copy(refresh.snapshot.is_some(), bound)
                    }
                }
                RefreshStep::Deltas { bound, has_read, is_filled } => {
                    let progress = self.link.advance()?;
                    let is_snapshot = refresh.snapshot.is_some();
                    match self.turn_of_deltas() {
                        DeltaTurn::Pending => {
                            self.link.look_around(now)?;
                            break self.link.turn(progress);
                        }
                        DeltaTurn::Whole => self.begin_copy(is_snapshot, bound),
                        DeltaTurn::Apply => {
                            self.apply_delta(is_snapshot, is_filled)?;
                            RefreshStep::Deltas { bound, has_read: true, is_filled: true }
                        }
                        DeltaTurn::Reached(pulled, label) => {
                            self.reach(is_snapshot, is_filled, pulled)?;
                            if refresh.wanted.most_behind().is_none() {
                                break self.ends(&mut refresh, pulled, label, has_read)?;
                            }
                            RefreshStep::Judge { answers: self.answers_from_now(), pulled, label, has_read }
                        }
                    }
                }
                RefreshStep::Judge { answers, pulled, label, has_read } => {
                    if !self.ask_newest_once(answers, now)? {
                        break self.link.turn(false);
                    }
                    let behind = pulled.version.behind(self.link.line.seen.version);
                    break self.ends(&mut refresh, Pulled { behind, ..pulled }, label, has_read)?;
                }
                RefreshStep::Copying { bound, mut has_begun } => {
                    let bytes = self.copy_bytes();
                    let memory = if refresh.snapshot.is_some() { &mut self.filling } else { &mut self.copy };
                    let Some(memory) = memory else { break WaitTurn::Idle };
                    let into = memory.slice(0, bytes)?;
                    let options =
                        PullOptions { label: true, exactly: refresh.wanted.exact(), ..self.pull_options() };
                    // Chunks of an earlier copy, and chunks that this one proves, are kept if the owner is lost in
                    // here.
                    self.refresh = Some(refresh);
                    let (pulled, progress) = self.pull_once(&into, bound, options, &mut has_begun)?;
                    if let Some(pulled) = pulled {
                        let label = self.link.pull.label();
                        break self.ends(&mut refresh, pulled, label, true)?;
                    }
                    refresh.step = RefreshStep::Copying { bound, has_begun };
                    self.link.look_around(now)?;
                    break self.link.turn(progress);
                }
            };
        };
        self.refresh = Some(refresh);
        Ok(turn)
    }

    /// The number of answers that there are once a question is answered that is asked from now on: an answer to one of
    /// an earlier call may be older than this one.
    fn answers_from_now(&self) -> u64 {
        self.link.answers() + 1 + u64::from(self.link.is_probing())
    }

    /// Asks for the newest version's number. True once so many questions are answered.
    fn ask_newest_once(&mut self, answers: u64, now: Instant) -> Result<bool, Error> {
        self.link.probe()?;
        self.link.advance()?;
        let is_answered = self.link.answers() >= answers;
        if !is_answered {
            self.link.look_around(now)?;
        }
        Ok(is_answered)
    }

    /// Has the memory made that a copy goes to.
    fn make_room(&mut self, is_snapshot: bool) -> Result<(), Error> {
        let bytes = self.copy_bytes() as u64;
        if is_snapshot && self.filling.is_none() {
            self.filling = Some(match self.spares.take() {
                Some(spare) => spare,
                None => private(&self.transport, bytes)?,
            });
        }
        if !is_snapshot && self.copy.is_none() {
            self.copy = Some(private(&self.transport, bytes)?);
        }
        Ok(())
    }

    fn begin_copy(&mut self, is_snapshot: bool, bound: Bound) -> RefreshStep {
        if !is_snapshot {
            // The copy that was held is being overwritten.
            (self.held, self.content) = (None, None);
        }
        self.resume(Destination::of(is_snapshot));
        RefreshStep::Copying { bound, has_begun: false }
    }

    /// The copy of a refresh is there, for which something was read, or nothing but the newest version's number. If it
    /// is too far behind by now, it begins again.
    fn ends(
        &mut self,
        refresh: &mut Refresh,
        pulled: Pulled,
        label: FrameLabel,
        has_read: bool,
    ) -> Result<WaitTurn<Fresh>, Error> {
        if refresh.snapshot.is_none() {
            self.held = Some((pulled, label));
            self.content = Some((pulled.version, label)).filter(|_| !self.is_callers);
        }
        if refresh.wanted.most_behind().is_some_and(|most| pulled.behind > most) {
            let filling = refresh.snapshot.map(|_| (pulled.version, label));
            *refresh = Refresh { step: RefreshStep::Ask, is_too_stale: true, filling, ..*refresh };
            return Ok(WaitTurn::Progress);
        }
        self.link.tell_held(pulled.version)?;
        let fresh = Fresh::new(pulled, label, has_read);
        if let Some(asked) = refresh.snapshot {
            self.filled = Some((fresh, self.end_record(asked)));
        }
        Ok(WaitTurn::Done(fresh))
    }
}

#[cfg(test)]
mod judged;
