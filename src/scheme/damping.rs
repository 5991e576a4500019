//! Smaller steps for staler gradients.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{GradientId, ServerAction, ServerEvent, ServerScheme, Share};
use crate::clock::{Clock, Version};
use crate::time::Instant;

/// The effect of a gradient's staleness on its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Damping {
    /// Staleness has no effect.
    #[default]
    None,
    /// The weight is divided by the staleness, where that is more than 1 (Zhang et al., IJCAI 2016, arXiv
    /// 1511.05950).
    Inverse,
}

impl Damping {
    /// Returns the factor for a gradient's weight. `staleness` is the number of versions by which the gradient is
    /// behind the newest version, the one before the fold.
    #[doc(hidden)]
    pub fn factor(self, staleness: u64) -> f32 {
        match self {
            Damping::None => 1.0,
            Damping::Inverse => 1.0 / staleness.max(1) as f32,
        }
    }
}

/// This scheme with its shares scaled by their staleness in versions, at the moment they are handed out to be applied.
/// `newest` is the version that the server begins with.
#[doc(hidden)]
pub fn damped(server: Box<dyn ServerScheme>, damping: Damping, newest: Version) -> Box<dyn ServerScheme> {
    match damping {
        Damping::None => server,
        _ => Box::new(Damped { server, damping, newest, bases: Vec::new() }),
    }
}

struct Damped {
    server: Box<dyn ServerScheme>,
    damping: Damping,
    newest: Version,
    /// By worker: the versions that the gradients at hand were computed on, in order of their clocks.
    bases: Vec<VecDeque<(Clock, Version)>>,
}

impl Damped {
    fn bases(&mut self, gradient: GradientId) -> Option<&mut VecDeque<(Clock, Version)>> {
        self.bases.get_mut(gradient.worker.index())
    }

    fn base(&mut self, gradient: GradientId) -> Option<(usize, Version)> {
        let bases = self.bases(gradient)?.iter().enumerate();
        bases
            .map(|(index, (clock, base))| (index, *clock, *base))
            .find_map(|(index, clock, base)| (clock == gradient.clock).then_some((index, base)))
    }

    /// The gradient is done with.
    fn forget(&mut self, gradient: GradientId) {
        if let Some((index, _)) = self.base(gradient)
            && let Some(bases) = self.bases(gradient)
        {
            bases.remove(index);
        }
    }
}

impl ServerScheme for Damped {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Joined { worker, .. } | ServerEvent::Left { worker } => {
                if let Some(bases) = self.bases.get_mut(worker.index()) {
                    bases.clear();
                }
            }
            ServerEvent::Arrived { gradient, base, .. } => {
                let index = gradient.worker.index();
                if self.bases.len() <= index {
                    self.bases.resize_with(index + 1, VecDeque::new);
                }
                self.bases[index].push_back((gradient.clock, base));
            }
            ServerEvent::Applied { version, .. } => self.newest = version,
            ServerEvent::Seen { .. } | ServerEvent::Weighed { .. } => {}
        }
        self.server.handle_event(now, event);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.server.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.server.poll_timeout()
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        let action = self.server.poll_action(shares)?;
        match action {
            ServerAction::Expect | ServerAction::Apply | ServerAction::Weigh { .. } => {
                for share in shares.iter_mut() {
                    // A gradient that has yet to come is assumed to be fresh.
                    if let Some((_, base)) = self.base(share.gradient) {
                        share.weight *= self.damping.factor(base.behind(self.newest));
                    }
                    if action == ServerAction::Apply {
                        self.forget(share.gradient);
                    }
                }
            }
            ServerAction::Drop { gradient } => self.forget(gradient),
            _ => {}
        }
        Some(action)
    }

    fn smallest_clock(&self) -> Clock {
        self.server.smallest_clock()
    }

    fn learned(&self) -> Option<String> {
        self.server.learned()
    }

    fn recall(&mut self, learned: &str) {
        self.server.recall(learned);
    }

    fn waits_for(&self) -> Option<u64> {
        self.server.waits_for()
    }

    fn staleness_bound(&self) -> Option<u64> {
        self.server.staleness_bound()
    }
}
