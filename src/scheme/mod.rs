//! Synchronisation schemes: how long to wait, for which workers, and which gradients to fold in.
//!
//! A scheme is a pair of pure state machines: a [`ServerScheme`] beside each shard and a [`WorkerScheme`] beside each
//! worker. They know clocks, versions, workers and numbers; no bytes, keys, threads, sockets or wall clocks. They
//! receive the time and events, and answer with actions, so the same object runs under a real server, in a property
//! test and in a simulation of ten thousand workers.
//!
//! The driver's loop, on both sides:
//!
//! 1. `handle_event(now, event)` for everything that happened;
//! 2. `handle_timeout(now)` once `poll_timeout()` has passed;
//! 3. `poll_action()` until it returns `None`, carrying out each action before asking for the next.
//!
//! Where the schemes of the literature fit:
//!
//! | scheme | server | worker |
//! | --- | --- | --- |
//! | BSP | folds clock `c` of all workers at once | needs all of clock `c - 1` |
//! | ASP | folds each gradient as it comes | never waits |
//! | SSP(s) | as ASP | uses its copy while its clock is at most `s` behind, else pulls |
//! | ESSP(s) | as ASP, pushes whenever the smallest clock moves | as SSP, over copies that are pushed to it |
//! | BAP(s) | as BSP, `slots() = s + 2`, pushes each version | as ESSP: runs at most `s` clocks ahead |
//! | VAP | as ASP; not weak: waits until enough was [seen](ServerEvent::Seen) | waits until enough was [consumed] |
//! | DBW | folds the first `k` of the newest version, drops the late | computes once on a version |
//! | ABS | folds `K` that are not too stale, drops and interrupts the others | goes on once its own is [consumed] |
//! | DS-Sync | none | makes steps, then [averages](WorkerAction::Average) with its group of this round |
//! | delay | as BSP, each gradient so many rounds late, across the order of clocks | as DBW |
//!
//! DBW learns its `k` from [`ServerEvent::Applied`]'s statistics and the times of arrival, ABS from the loss. Any
//! server's shares can be [`damped`] by their staleness.
//!
//! [consumed]: WorkerEvent::Consumed
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod abs;
mod bsp;
mod config;
mod damping;
#[doc(hidden)]
pub mod dbw;
mod delay;
mod gate;
mod groups;
mod open;
mod ssp;
mod sum;
mod turn;
mod vap;

pub use abs::{Shrink, WaitFor};
pub use config::{DEFAULT_STALENESS, SchemeConfig, SchemeConfigError};
pub use damping::{Damping, damped};
#[doc(inline)]
pub use dbw::{Choice, Delivery, StepRule};
#[doc(hidden)]
pub use groups::Groups;
pub use groups::Partition;
pub(crate) use open::is_text;
pub use open::{AnyScheme, Needs, Registry, Scheme, Start};
pub(crate) use sum::{NO_SUM, adds_up, summed};
pub use vap::Strength;

pub use crate::clock::WorkerId;
use crate::clock::{Clock, Version};
use crate::time::Instant;

/// Names one gradient within one incarnation of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GradientId {
    /// The worker that computed it.
    pub worker: WorkerId,
    /// The clock in which it was computed.
    pub clock: Clock,
}

/// A gradient's part in an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The gradient.
    pub gradient: GradientId,
    /// The weight of the gradient in the sum.
    pub weight: f32,
}

impl Share {
    /// Makes shares for the mean of these gradients.
    fn each(gradients: &[GradientId], shares: &mut Vec<Share>) {
        let weight = 1.0 / gradients.len() as f32;
        shares.clear();
        shares.extend(gradients.iter().map(|gradient| Share { gradient: *gradient, weight }));
    }
}

/// The measurements that the aggregation pass can report of the gradients that it folded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Squared Euclidean norm of the mean gradient, where it was measured.
    pub mean_norm_squared: Option<f64>,
    /// Trace of the covariance of one gradient, where it was measured.
    pub variance: Option<f64>,
    /// Mean of the losses that came with the gradients, where they did.
    pub loss: Option<f64>,
    /// The step size of the update; with momentum the step size with which plain SGD gets as far in the long run,
    /// `rate / (1 - momentum)`, and nothing with Adam.
    pub learning_rate: Option<f64>,
}

/// An event at a server.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServerEvent {
    /// A worker was taken in; its clock begins at `clock`.
    Joined {
        /// The worker.
        worker: WorkerId,
        /// The clock at which it begins.
        clock: Clock,
        /// It was in before, perhaps as another [`WorkerId`]: the id of a worker that has left is given to the next one
        /// that comes.
        returns: bool,
    },
    /// A worker left or was evicted; its gradients that were not applied are void.
    Left {
        /// The worker.
        worker: WorkerId,
    },
    /// A whole gradient is in a slot. The gradients of one worker come in the order of their clocks.
    Arrived {
        /// The gradient.
        gradient: GradientId,
        /// The version from which it was computed.
        base: Version,
        /// The loss that came with it.
        loss: Option<f32>,
        /// Largest magnitude of its elements, where its worker measured it.
        magnitude: Option<f32>,
    },
    /// A worker holds a copy of `version`, or a later one; told only where [`SchemeConfig::reports_reads`].
    Seen {
        /// The worker.
        worker: WorkerId,
        /// The version; over several shards, the version of this shard.
        version: Version,
    },
    /// The answer to [`ServerAction::Weigh`].
    Weighed {
        /// The gradient that was handed out beside the question.
        gradient: GradientId,
        /// Largest magnitude of the elements of the sum; infinite where it cannot be told.
        largest: f64,
    },
    /// An update was applied and can be read.
    Applied {
        /// The version it made.
        version: Version,
        /// The measurements of the pass.
        statistics: Statistics,
    },
}

/// An action that a scheme asks of a server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServerAction {
    /// The shares handed out beside this action will be folded next if they all come: their landed chunks may be summed
    /// before the last byte. This binds neither side.
    Expect,
    /// Fold the shares handed out beside this action into one new version. All of them have arrived. There may be none:
    /// then the version is a step of the optimiser on a gradient of zero.
    Apply,
    /// Say how large the updates of one worker are in sum: the updates of its gradients in versions after `since`, and
    /// the update that the share handed out beside this action would make if it were folded next. Answered by
    /// [`ServerEvent::Weighed`]; only asked by schemes that [need](Needs::weighs_updates) it.
    Weigh {
        /// The version that the sum begins after.
        since: Version,
    },
    /// Consume a gradient without folding it in.
    Drop {
        /// The gradient.
        gradient: GradientId,
    },
    /// Ask a worker to abandon its computation and to pull. The driver sends the newest version along, and a worker
    /// that already computes on that version, or a later one, is not disturbed: the request was overtaken.
    Interrupt {
        /// The worker.
        worker: WorkerId,
    },
    /// Push the newest version to the workers that take pushes.
    Push,
    /// Give up: the call that drives the server fails with [`SchemeConfigError::Custom`].
    Fail {
        /// The cause, and the remedy.
        reason: String,
    },
}

/// The server's half of a scheme.
pub trait ServerScheme: Send {
    /// Takes note of what happened.
    fn handle_event(&mut self, now: Instant, event: ServerEvent);

    /// Takes note that `poll_timeout` has passed.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// Returns the time at which to wake this scheme, if there is one.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns the next action, or `None` if there is none. [`ServerAction::Expect`] and [`ServerAction::Apply`]
    /// fill `shares`, which the driver clears and reuses, ordered by worker and clock.
    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction>;

    /// The smallest clock whose gradients may still be missing from the newest version: every gradient of an earlier
    /// clock, of every worker that is in, has been folded in or dropped. Never moves back.
    fn smallest_clock(&self) -> Clock;

    /// Returns the learned state of the scheme that it could not learn again, as text of its own. A checkpoint keeps
    /// it.
    fn learned(&self) -> Option<String> {
        None
    }

    /// Continues from the result of [`learned`](Self::learned) in an earlier incarnation of the server, with the same
    /// settings. Called before all else, with the text of the checkpoint, which may be anything: text that cannot be
    /// used is to be ignored.
    fn recall(&mut self, _learned: &str) {}

    /// Returns the number of gradients that the next version waits for, where the scheme chooses it. For monitoring
    /// only.
    fn waits_for(&self) -> Option<u64> {
        None
    }

    /// Returns the number of versions that a gradient may be behind by now, where the scheme bounds it. For
    /// monitoring only.
    fn staleness_bound(&self) -> Option<u64> {
        None
    }
}

/// An event at a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// The worker was taken in; its clock begins at `clock`.
    Joined {
        /// The clock at which it begins.
        clock: Clock,
    },
    /// The worker holds a copy of the parameters: pulled, or pushed to it.
    Holds {
        /// Its version; over several shards, the smallest.
        version: Version,
        /// The copy holds all gradients of earlier clocks; over several shards, the smallest.
        smallest_clock: Clock,
    },
    /// The gradient of the worker's clock was announced (to all shards): the clock moves on by one.
    Published {
        /// Largest magnitude of its elements, where it was measured ([`SchemeConfig::measures_magnitude`]).
        magnitude: Option<f32>,
    },
    /// The server asked to abandon the running computation. The clock stays.
    Interrupted,
    /// The server has consumed (folded in or dropped) the worker's gradients of clocks before `clock`, and a copy
    /// brought from here on shows it. This event is for schemes whose workers wait for their own gradients.
    Consumed {
        /// The first clock whose gradient the server has not consumed.
        clock: Clock,
    },
    /// The group average of `round` is in the local parameters.
    Averaged {
        /// The number of the round.
        round: u64,
    },
    /// A member of the job joined or left.
    Membership {
        /// Members now.
        workers: usize,
    },
}

/// The condition that a copy of the parameters must satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// It holds all gradients of clocks before this one.
    pub smallest_clock: Clock,
    /// It is at least this version.
    pub version: Version,
}

impl Bound {
    /// A bound that any version ever published satisfies.
    #[doc(hidden)]
    pub const NONE: Bound = Bound { smallest_clock: Clock::new(0), version: Version::new(0) };

    /// Asks for all gradients of clocks before `clock`.
    pub const fn clock(clock: Clock) -> Bound {
        Bound { smallest_clock: clock, version: Version::new(0) }
    }

    /// Asks for at least `version`.
    pub const fn version(version: Version) -> Bound {
        Bound { smallest_clock: Clock::new(0), version }
    }

    /// True if a copy of `version` that holds all clocks before `smallest_clock` satisfies it.
    #[doc(hidden)]
    pub fn is_met_by(&self, version: Version, smallest_clock: Clock) -> bool {
        version >= self.version && smallest_clock >= self.smallest_clock
    }
}

/// An action that a scheme asks of a worker.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WorkerAction {
    /// Bring the newest copy that satisfies the bound (waiting for one if need be): by pulling, or out of the pushed
    /// ones. Answered by [`WorkerEvent::Holds`]; a second request before the answer replaces the first.
    Refresh {
        /// The condition for the copy.
        bound: Bound,
    },
    /// Compute a gradient on the copy at hand and publish it; without a server, make a local step. Answered by
    /// [`WorkerEvent::Published`] or [`WorkerEvent::Interrupted`].
    Compute,
    /// Average the parameters with the members of this worker's group of this round; without a server. Answered by
    /// [`WorkerEvent::Averaged`].
    Average {
        /// The number of the round; the group is a pure function of it.
        round: u64,
    },
    /// Give up: the call that waits for parameters fails with [`SchemeConfigError::Custom`].
    Fail {
        /// The cause, and the remedy.
        reason: String,
    },
}

/// The worker's half of a scheme.
pub trait WorkerScheme: Send {
    /// Takes note of what happened.
    fn handle_event(&mut self, now: Instant, event: WorkerEvent);

    /// Takes note that `poll_timeout` has passed.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// Returns the time at which to wake this scheme, if there is one.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns the next action, or `None` if there is none.
    fn poll_action(&mut self) -> Option<WorkerAction>;
}
