//! The server's half of a scheme in C.

use slackline::scheme::{ServerAction, ServerEvent, ServerScheme, Share, Start};
use slackline::{Clock, Instant, Version};

use super::action::{slackline_action, slackline_scheme_action, slackline_share};
use super::event::slackline_scheme_event;
use super::half::Half;
use super::ledger::Ledger;
use super::needs::SLACKLINE_NO_STALENESS;
use crate::handle::slice;

/// A half whose answers are checked, and whose clocks are counted, by the [`Ledger`].
pub(super) struct ServerHalf {
    half: Half,
    ledger: Ledger,
    /// The scheme needs to weigh updates.
    weighs: bool,
}

impl ServerHalf {
    pub(super) fn new(half: Half, start: Start, weighs: bool) -> ServerHalf {
        ServerHalf { half, ledger: Ledger::new(start), weighs }
    }

    /// The action that the half asks for; an error if it cannot be done.
    fn ask(&mut self, shares: &mut Vec<Share>) -> Result<Option<ServerAction>, String> {
        let asked = self.half.ask()?;
        let is = |kind: slackline_action| asked.kind == kind as u32;
        Ok(Some(if is(slackline_action::None) {
            return Ok(None);
        } else if is(slackline_action::Apply) {
            // SAFETY: the scheme's author has promised that the shares are there until the next callback.
            let asked = unsafe { named(&asked)? };
            self.ledger.apply(asked, shares)?;
            ServerAction::Apply
        } else if is(slackline_action::Expect) {
            // SAFETY: as above.
            let asked = unsafe { named(&asked)? };
            self.ledger.expect(asked, shares)?;
            ServerAction::Expect
        } else if is(slackline_action::Drop) {
            ServerAction::Drop { gradient: self.ledger.drop(asked.worker, asked.clock)? }
        } else if is(slackline_action::Interrupt) {
            ServerAction::Interrupt { worker: self.ledger.member(asked.worker)? }
        } else if is(slackline_action::Push) {
            ServerAction::Push
        } else if is(slackline_action::Weigh) {
            if !self.weighs {
                return Err("its server asks to weigh updates: set weighs_updates in its needs".into());
            }
            // SAFETY: as above.
            let share = unsafe { named(&asked)? };
            self.ledger.weigh(share, shares)?;
            ServerAction::Weigh { since: Version::new(asked.version) }
        } else {
            return Err(format!("its server asks for action {}, which no server does", asked.kind));
        }))
    }
}

/// The shares that an action names.
///
/// # Safety
///
/// `shares` is NULL, or points at `share_count` shares that no thread writes while the result is used.
unsafe fn named(asked: &slackline_scheme_action) -> Result<&[slackline_share], String> {
    // SAFETY: the caller's promise.
    unsafe { slice(asked.shares, asked.share_count, "action->shares") }.map_err(|failure| failure.message)
}

impl ServerScheme for ServerHalf {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        self.ledger.note(event);
        if let Some(event) = slackline_scheme_event::at_server(now, event) {
            self.half.tell(event);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.half.timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.half.wake
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if !self.ledger.is_open() && self.half.failure().is_none() {
            return None;
        }
        self.ask(shares).unwrap_or_else(|reason| {
            self.half.fail(reason.clone());
            Some(ServerAction::Fail { reason })
        })
    }

    fn smallest_clock(&self) -> Clock {
        self.ledger.smallest_clock()
    }

    fn waits_for(&self) -> Option<u64> {
        Some(self.half.last.waits_for).filter(|gradients| *gradients > 0)
    }

    fn staleness_bound(&self) -> Option<u64> {
        Some(self.half.last.staleness_bound).filter(|versions| *versions != SLACKLINE_NO_STALENESS)
    }
}
