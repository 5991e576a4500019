//! Updates that add up: each gradient counts whole, however many workers there are.

use super::{Needs, ServerAction, ServerEvent, ServerScheme, Share};
use crate::clock::Clock;
use crate::time::Instant;

/// This scheme with the weight 1 for each gradient, if they are to add up, instead of one part in the number of
/// workers: the updates of Dai et al. (AAAI 2015), where the parameters are the sum of the updates of all workers. A
/// mean changes its meaning when a worker joins or leaves; a sum, such as a count, does not.
pub(crate) fn summed(server: Box<dyn ServerScheme>, additive: bool) -> Box<dyn ServerScheme> {
    if additive { Box::new(Summed(server)) } else { server }
}

/// True if the gradients of a scheme can add up: it folds all of them in, and promises nothing of their weights.
pub(crate) fn adds_up(needs: &Needs) -> bool {
    needs.folds_all_in_order && !needs.measures_magnitude && !needs.weighs_updates
}

/// The reason that gradients of another scheme cannot.
pub(crate) const NO_SUM: &str = "leaves gradients out, or bounds what they weigh, so that they do not add up; use \
                                 bsp, asp, ssp, essp or bap";

struct Summed(Box<dyn ServerScheme>);

impl ServerScheme for Summed {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        self.0.handle_event(now, event);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        let action = self.0.poll_action(shares)?;
        shares.iter_mut().for_each(|share| share.weight = 1.0);
        Some(action)
    }

    fn smallest_clock(&self) -> Clock {
        self.0.smallest_clock()
    }

    fn learned(&self) -> Option<String> {
        self.0.learned()
    }

    fn recall(&mut self, learned: &str) {
        self.0.recall(learned);
    }

    fn waits_for(&self) -> Option<u64> {
        self.0.waits_for()
    }

    fn staleness_bound(&self) -> Option<u64> {
        self.0.staleness_bound()
    }
}
