//! The events that a worker's scheme is told of, and the actions that it asks for.

use super::{Part, Worker, WorkerPhase};
use crate::clock::Clock;
use crate::node::Error;
use crate::param::PullOptions;
use crate::scheme::{Bound, WorkerAction, WorkerEvent};
use crate::time::Instant;
use crate::transport::Transport;

impl<T: Transport> Worker<T> {
    /// Carries out the scheme's next action, once.
    pub(super) fn decide(&mut self, now: Instant) -> Result<bool, Error> {
        // Parameters that a GPU still copies are not replaced.
        if !self.copies.are_done()? && !mutant!("pull_over_gpu_copy") {
            return Ok(false);
        }
        if self.scheme.poll_timeout().is_some_and(|at| at <= now) {
            self.scheme.handle_timeout(now);
        }
        match self.scheme.poll_action() {
            None => Ok(false),
            Some(WorkerAction::Compute) => {
                self.show_own()?;
                self.phase = WorkerPhase::Computing;
                Ok(true)
            }
            Some(WorkerAction::Refresh { bound }) => {
                match self.phase {
                    WorkerPhase::Refreshing { .. } => self.amend_refresh(bound),
                    _ => self.start_refresh(bound)?,
                }
                self.phase = WorkerPhase::Refreshing { bound };
                Ok(true)
            }
            Some(WorkerAction::Average { .. }) => {
                let reason = "averages in groups without a server: this worker has only servers";
                Err(Error::Scheme { scheme: self.kind.clone(), reason })
            }
            Some(WorkerAction::Fail { reason }) => Err(self.kind.failure(reason).into()),
        }
    }

    pub(super) fn start_refresh(&mut self, bound: Bound) -> Result<(), Error> {
        self.refresh_those(|_| true, bound)
    }

    fn refresh_those(&mut self, which: impl Fn(&Part<T>) -> bool, bound: Bound) -> Result<(), Error> {
        let options =
            PullOptions { follow: true, checksum: self.options.checksums, ..PullOptions::default() };
        for part in self.parts.iter_mut().filter(|part| which(part)) {
            part.refreshed = false;
            let bound = part.bound(bound);
            match &mut self.parameters {
                Some(buffer) => {
                    let into = buffer.slice(part.begin, part.bytes)?;
                    part.link.start_refresh(bound, into, options)?;
                }
                None => {
                    if let Some(pins) = &mut part.link.pins {
                        pins.release();
                    }
                }
            }
        }
        Ok(())
    }

    /// True if one server decides for all shards.
    pub(super) fn is_decided(&self) -> bool {
        self.needs.counts_versions && self.parts.len() > 1
    }

    /// Brings each part to the version of the deciding server's part, or a later one, where one server decides for
    /// all. The copy then is of that version, and as long as that is the newest, of that alone. Returns true if a
    /// part lacked.
    pub(super) fn level(&mut self, bound: Bound) -> Result<bool, Error> {
        let decided = match &self.parts[..] {
            [first, ..] if self.is_decided() => first.version,
            _ => return Ok(false),
        };
        let lacks = |part: &Part<T>| part.version < decided;
        if !self.parts.iter().any(lacks) {
            return Ok(false);
        }
        for part in self.parts.iter_mut().filter(|part| lacks(part)) {
            part.least = part.least.max(decided);
        }
        self.refresh_those(lacks, bound)?;
        Ok(true)
    }

    /// Announces a gradient to the deciding server once all other servers have it: then it decides on gradients that
    /// all servers have.
    pub(super) fn release_first(&mut self) {
        if let [first, others @ ..] = &mut self.parts[..]
            && others.iter().all(|part| part.published)
            && let Some(publish) = &mut first.link.publish
        {
            publish.hold(false);
        }
    }

    /// Changes the bound that the copies being brought are to satisfy. Shards that were brought already satisfied
    /// the bound before: `collect_copies` asks again for the shards that do not satisfy this one.
    fn amend_refresh(&mut self, bound: Bound) {
        for part in self.parts.iter_mut().filter(|part| !part.refreshed) {
            let bound = part.bound(bound);
            part.link.refreshing().amend(bound);
        }
    }

    /// Applies this worker's own published gradients to the copy at hand.
    fn show_own(&mut self) -> Result<(), Error> {
        let (Some(own), Some(buffer)) = (&self.own, &mut self.parameters) else { return Ok(()) };
        let parameters = buffer.f32s_mut().ok_or(Error::InFlight { what: "parameters" })?;
        for part in &mut self.parts {
            // Shards count for themselves: the gradients that are missing are this worker's last ones in any case.
            let published = part.link.published();
            let missing = published.get().saturating_sub(part.shows.get());
            let clocks = self.clock.get().saturating_sub(missing)..self.clock.get();
            let part_of_table = &mut parameters[part.begin / 4..][..part.bytes / 4];
            if !own.show(clocks, part.begin / 4, part_of_table) {
                let reason = "keeps a copy for longer than it bounds: leave out `own_step`";
                return Err(Error::Scheme { scheme: self.kind.clone(), reason });
            }
            part.shows = published;
        }
        Ok(())
    }

    /// Tells the scheme how far all servers have consumed this worker's gradients.
    pub(super) fn tell_consumed(&mut self, now: Instant) {
        let outstanding = |part: &Part<T>| {
            part.link
                .publish
                .as_ref()
                .map(|publish| publish.clock().get().saturating_sub(publish.consumed().get()))
        };
        let most = self.parts.iter().filter_map(outstanding).max().unwrap_or_default();
        let announced = self.clock.get().saturating_sub(u64::from(self.outgoing));
        let clock = Clock::new(announced.saturating_sub(most));
        if clock > self.consumed {
            self.consumed = clock;
            self.scheme.handle_event(now, WorkerEvent::Consumed { clock });
        }
    }

    /// Tells the scheme how many workers are in, as far as the server says that knows of the fewest.
    pub(super) fn tell_membership(&mut self, now: Instant) {
        let workers = self.parts.iter().map(|part| part.link.line.workers).min().unwrap_or_default();
        if workers > 0 && workers != self.members {
            self.members = workers;
            self.scheme.handle_event(now, WorkerEvent::Membership { workers });
        }
    }
}
