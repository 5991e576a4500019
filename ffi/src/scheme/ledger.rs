//! The gradients that a server's half in C may still name, and the clock that follows from them.

use std::collections::{BTreeMap, BTreeSet};

use slackline::Clock;
use slackline::internals::clock::{ClockTable, WorkerId};
use slackline::internals::kernel::MAX_GRADIENTS;
use slackline::scheme::{GradientId, ServerEvent, Share, Start};

use super::slackline_share;

/// The workers that are in and what has come of them. It sees all events and actions, and refuses what would name a
/// gradient that is not there: memory of the server is never folded that no gradient lies in.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Different workers that have yet to join before anything is asked for.
    awaited: usize,
    members: BTreeMap<WorkerId, Member>,
    /// The clocks of the members by what is consumed; filled once all workers have joined.
    clocks: ClockTable,
    /// Gradients that are being folded.
    folding: Vec<GradientId>,
}

#[derive(Debug)]
struct Member {
    /// The clock of its next gradient to come.
    next: Clock,
    /// Clocks of gradients that have come and are not consumed.
    open: BTreeSet<Clock>,
}

impl Member {
    /// All gradients of earlier clocks are consumed.
    fn consumed(&self) -> Clock {
        self.open.first().copied().unwrap_or(self.next)
    }
}

impl Ledger {
    pub(super) fn new(start: Start) -> Ledger {
        Ledger {
            awaited: start.workers,
            members: BTreeMap::new(),
            clocks: ClockTable::at(start.clock),
            folding: Vec::new(),
        }
    }

    /// True once as many different workers have joined as the job has.
    pub(super) fn is_open(&self) -> bool {
        self.awaited == 0
    }

    /// All gradients of earlier clocks, of all workers that are in, are consumed.
    pub(super) fn smallest_clock(&self) -> Clock {
        self.clocks.smallest()
    }

    pub(super) fn note(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Joined { worker, clock, returns } => {
                self.members.insert(worker, Member { next: clock, open: BTreeSet::new() });
                match self.awaited {
                    0 => {
                        self.clocks.join_at(worker, clock);
                    }
                    _ => {
                        self.awaited -= usize::from(!returns);
                        self.open();
                    }
                }
            }
            ServerEvent::Left { worker } => {
                self.members.remove(&worker);
                self.folding.retain(|gradient| gradient.worker != worker);
                self.clocks.leave(worker);
            }
            ServerEvent::Arrived { gradient, .. } => {
                if let Some(member) = self.members.get_mut(&gradient.worker) {
                    member.open.insert(gradient.clock);
                    member.next = gradient.clock.next();
                }
            }
            ServerEvent::Applied { .. } => {
                for gradient in std::mem::take(&mut self.folding) {
                    self.consume(gradient);
                }
            }
            _ => {}
        }
    }

    /// Lets the table of clocks begin, those furthest behind first: it never moves back.
    fn open(&mut self) {
        if self.is_open() {
            let mut begin: Vec<_> =
                self.members.iter().map(|(worker, member)| (member.consumed(), *worker)).collect();
            begin.sort_unstable();
            for (clock, worker) in begin {
                self.clocks.join_at(worker, clock);
            }
        }
    }

    fn consume(&mut self, gradient: GradientId) {
        if let Some(member) = self.members.get_mut(&gradient.worker) {
            member.open.remove(&gradient.clock);
            self.clocks.advance(gradient.worker, member.consumed());
        }
    }

    /// Takes these to be folded now.
    pub(super) fn apply(&mut self, asked: &[slackline_share], shares: &mut Vec<Share>) -> Result<(), String> {
        self.name(asked, shares, |member, clock| member.open.contains(&clock))?;
        self.folding = shares.iter().map(|share| share.gradient).collect();
        Ok(())
    }

    /// Takes these to be folded once they have come.
    pub(super) fn expect(&self, asked: &[slackline_share], shares: &mut Vec<Share>) -> Result<(), String> {
        self.name(asked, shares, |member, clock| member.open.contains(&clock) || clock >= member.next)
    }

    /// Takes one to be weighed.
    pub(super) fn weigh(&self, asked: &[slackline_share], shares: &mut Vec<Share>) -> Result<(), String> {
        match asked.len() {
            1 => self.name(asked, shares, |member, clock| member.open.contains(&clock)),
            count => Err(format!("it asks to weigh {count} gradients at once: name one")),
        }
    }

    /// Takes one to be dropped.
    pub(super) fn drop(&mut self, worker: u32, clock: u64) -> Result<GradientId, String> {
        let gradient = self.find(worker, clock, |member, clock| member.open.contains(&clock))?;
        self.consume(gradient);
        Ok(gradient)
    }

    /// The worker of this number, which is in.
    pub(super) fn member(&self, worker: u32) -> Result<WorkerId, String> {
        let id = Some(WorkerId(worker)).filter(|id| self.members.contains_key(id));
        id.ok_or_else(|| format!("it names worker {worker}, which is not in"))
    }

    fn find(
        &self,
        worker: u32,
        clock: u64,
        may_be: impl Fn(&Member, Clock) -> bool,
    ) -> Result<GradientId, String> {
        let gradient = GradientId { worker: self.member(worker)?, clock: Clock::new(clock) };
        let is_there =
            self.members.get(&gradient.worker).is_some_and(|member| may_be(member, gradient.clock));
        if !is_there || self.folding.contains(&gradient) {
            return Err(format!(
                "it names the gradient of clock {clock} of worker {worker}, which has not come, or is consumed"
            ));
        }
        Ok(gradient)
    }

    /// Fills `shares`, in the order that the library keeps.
    fn name(
        &self,
        asked: &[slackline_share],
        shares: &mut Vec<Share>,
        may_be: impl Fn(&Member, Clock) -> bool,
    ) -> Result<(), String> {
        shares.clear();
        if asked.len() > MAX_GRADIENTS {
            return Err(format!(
                "it asks for {} shares in one update: {MAX_GRADIENTS} are the most",
                asked.len()
            ));
        }
        for slackline_share { worker, weight, clock } in asked.iter().copied() {
            if !weight.is_finite() {
                return Err(format!(
                    "it gives the gradient of clock {clock} of worker {worker} the weight {weight}"
                ));
            }
            shares.push(Share { gradient: self.find(worker, clock, &may_be)?, weight });
        }
        let key = |share: &Share| (share.gradient.worker, share.gradient.clock);
        shares.sort_unstable_by_key(key);
        match shares.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            Some(pair) => Err(format!("it names a gradient twice in one update: {:?}", pair[0].gradient)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline::Version;
    use slackline::scheme::Statistics;

    const APPLIED: ServerEvent =
        ServerEvent::Applied { version: Version::new(1), statistics: Statistics { ..EMPTY } };
    const EMPTY: Statistics =
        Statistics { mean_norm_squared: None, variance: None, loss: None, learning_rate: None };

    fn ledger(workers: usize) -> Ledger {
        Ledger::new(Start { workers, clock: Clock::new(5), newest: Version::new(0) })
    }

    fn joined(worker: u32, clock: u64) -> ServerEvent {
        ServerEvent::Joined { worker: WorkerId(worker), clock: Clock::new(clock), returns: false }
    }

    fn arrived(worker: u32, clock: u64) -> ServerEvent {
        let gradient = GradientId { worker: WorkerId(worker), clock: Clock::new(clock) };
        ServerEvent::Arrived { gradient, base: Version::new(0), loss: None, magnitude: None }
    }

    fn share(worker: u32, clock: u64) -> slackline_share {
        slackline_share { worker, weight: 0.5, clock }
    }

    #[test]
    fn the_smallest_clock_is_of_what_is_folded_or_dropped_and_never_moves_back() {
        let (mut ledger, mut shares) = (ledger(2), Vec::new());
        [joined(0, 7), arrived(0, 7)].into_iter().for_each(|event| ledger.note(event));
        assert!(!ledger.is_open());
        assert_eq!(ledger.smallest_clock().get(), 5, "worker 1 may begin at 5");
        [joined(1, 6), arrived(1, 6)].into_iter().for_each(|event| ledger.note(event));
        assert!(ledger.is_open());
        assert_eq!(ledger.smallest_clock().get(), 6);
        ledger.apply(&[share(1, 6), share(0, 7)], &mut shares).unwrap();
        assert_eq!(shares[0].gradient.worker, WorkerId(0), "they are put in order");
        assert_eq!(ledger.smallest_clock().get(), 6, "until it can be read");
        ledger.note(APPLIED);
        assert_eq!(ledger.smallest_clock().get(), 7);
        ledger.note(arrived(1, 7));
        ledger.drop(1, 7).unwrap();
        assert_eq!(ledger.smallest_clock().get(), 8);
        ledger.note(ServerEvent::Left { worker: WorkerId(1) });
        ledger.note(joined(1, 8));
        assert_eq!(ledger.smallest_clock().get(), 8);
    }

    #[test]
    fn a_gradient_that_is_not_there_is_named_in_vain() {
        let (mut ledger, mut shares) = (ledger(1), Vec::new());
        [joined(0, 5), arrived(0, 5), arrived(0, 6)].into_iter().for_each(|event| ledger.note(event));
        let mut refused = |asked: &[slackline_share]| ledger.apply(asked, &mut shares).unwrap_err();
        assert!(refused(&[share(0, 7)]).contains("clock 7 of worker 0, which has not come"));
        assert!(refused(&[share(0, 4)]).contains("is consumed"));
        assert!(refused(&[share(1, 5)]).contains("worker 1, which is not in"));
        assert!(refused(&[share(65536, 5)]).contains("worker 65536"));
        assert!(refused(&[share(0, 5), share(0, 5)]).contains("twice"));
        assert!(refused(&[slackline_share { weight: f32::NAN, ..share(0, 5) }]).contains("weight NaN"));
        assert!(refused(&[share(0, 5); MAX_GRADIENTS + 1]).contains("1025 shares"));
        ledger.expect(&[share(0, 7)], &mut shares).unwrap();
        ledger.apply(&[share(0, 5)], &mut shares).unwrap();
        assert!(ledger.apply(&[share(0, 5)], &mut shares).is_err(), "it is being folded");
        assert!(ledger.drop(0, 5).is_err());
    }

    #[test]
    fn a_worker_that_comes_back_while_its_gradient_is_folded_owes_it_again() {
        let (mut ledger, mut shares) = (ledger(1), Vec::new());
        [joined(0, 5), arrived(0, 5)].into_iter().for_each(|event| ledger.note(event));
        ledger.apply(&[share(0, 5)], &mut shares).unwrap();
        let left = ServerEvent::Left { worker: WorkerId(0) };
        [left, joined(0, 5), arrived(0, 5), APPLIED].into_iter().for_each(|event| ledger.note(event));
        assert_eq!(ledger.smallest_clock().get(), 5);
        ledger.drop(0, 5).unwrap();
    }
}
