//! The scheme of a job: a value that can be named, stored and sent.

mod error;
mod text;

pub use error::SchemeConfigError;

use serde::{Deserialize, Serialize};

use super::abs::{AbsServer, Rules};
use super::bsp::BspServer;
use super::dbw::DbwServer;
use super::delay::DelayServer;
use super::groups::Averager;
use super::ssp::{SspReader, SspServer};
use super::turn::{OncePerVersion, OwnConsumed};
use super::vap::{HoldBack, OwnSums, Unseen, VapWorker};
use super::{
    Choice, Delivery, Groups, Partition, ServerScheme, Shrink, StepRule, Strength, WaitFor, WorkerScheme,
};
use crate::clock::{Clock, Version};

/// The staleness of schemes that take one, where none is given: enough to hide jitter, small enough to hardly cost
/// iterations. No staleness hides a worker that is always slow.
#[doc(hidden)]
pub const DEFAULT_STALENESS: u64 = 3;

/// A scheme with its settings. Both halves are made from it, so peers that agree on it agree on the scheme.
///
/// As text it is a name, or a name with settings in parentheses, the first of which needs no name:
///
/// ```
/// use slackline::scheme::SchemeConfig;
/// assert_eq!("ssp(2)".parse(), Ok(SchemeConfig::Ssp { staleness: 2 }));
/// assert_eq!("bap(staleness=2)".parse(), Ok(SchemeConfig::Bap { staleness: 2 }));
/// assert_eq!("essp".parse::<SchemeConfig>()?.to_string(), "essp(3)");
/// assert!("bsp(2)".parse::<SchemeConfig>().is_err());
/// # Ok::<(), slackline::scheme::SchemeConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SchemeConfig {
    /// Bulk synchronous: one update per clock, out of all workers' gradients. Every copy is exactly up to date.
    Bsp,
    /// Asynchronous: no worker waits, and staleness is unbounded.
    Asp,
    /// Stale synchronous (Ho et al., NIPS 2013): a copy is used again until it is `staleness` clocks behind.
    Ssp {
        /// Most clocks that a copy may be behind its reader.
        staleness: u64,
    },
    /// Eager SSP (Dai et al., AAAI 2015, arXiv 1410.8043): the bound of SSP, over copies that the server pushes
    /// whenever a clock is complete, so that most are far fresher than the bound.
    Essp {
        /// Most clocks that a copy may be behind its reader.
        staleness: u64,
    },
    /// Bounded asynchronous parallel (Li et al., HPCC 2016): whole clocks are folded in order, as in BSP, and workers
    /// run ahead of them on copies that the server pushes, so that none waits for a download within its bound, and go
    /// on while their gradients are on their way. Only the abstract was at hand: it gives a bound on the "distance" of
    /// stale parameters in a cache. That the distance is counted in clocks, and that the server makes whole versions in
    /// order, are reconstructions. At staleness 0 it is BSP to the bit.
    Bap {
        /// Most clocks that a copy may be behind its reader; at most [`RUN_AHEAD_MAX`](Self::RUN_AHEAD_MAX).
        staleness: u64,
    },
    /// Value-bounded asynchronous parallel (Dai et al., AAAI 2015, arXiv 1410.8043): no clock bounds anything; the
    /// updates in transit may be so large, counted in largest elements of gradients times their weights, and `1 /
    /// sqrt(c + 1)` of that in clock `c`. How large a gradient is is known only when it is computed: until then its
    /// worker takes it to be as large as its last. [`Strength::Published`] counts sums of updates instead.
    Vap {
        /// The bound in clock 0; above 0.
        bound: f32,
        /// The gradients that count as in transit.
        strength: Strength,
    },
    /// Dynamic backup workers (Xu et al., arXiv 2004.14696): each version waits for the first few gradients computed
    /// on the one before, and drops the late. See [`dbw`](super::dbw).
    Dbw {
        /// The treatment of workers that are late.
        delivery: Delivery,
        /// The rule that chooses how few gradients a version waits for.
        choice: Choice,
        /// How the step size depends on that number.
        steps: StepRule,
    },
    /// Adaptive bounded staleness (Tan et al., arXiv 2301.08895): each version waits for a few updates that are at most
    /// so many versions behind, and workers that are further behind begin again. Both adaptive rules are
    /// reconstructions.
    Abs {
        /// The number of updates that a version waits for.
        wait_for: WaitFor,
        /// Most versions that an update may be behind; `None`: any number.
        staleness: Option<u64>,
        /// The change of `staleness` as a version waits for more updates.
        shrink: Shrink,
        /// Steps that a worker makes on its own copy for each update, at least 1.
        local_steps: u16,
    },
    /// Divide and shuffle (Wang et al., arXiv 2007.03298): no server; workers make steps of their own and average their
    /// parameters in small groups that change with every round. See [`Groups`].
    DsSync {
        /// Workers in a group.
        group: u16,
        /// The rule that finds the groups.
        partition: Partition,
        /// Steps that a worker makes between two averages, at least 1.
        period: u16,
    },
    /// Synchronous rounds whose updates are folded in late on purpose, each `0..=staleness` rounds, drawn uniformly
    /// (Dai et al., arXiv 1810.03264): a model of staleness. Drawn per update; the paper draws for every reader of it.
    /// At staleness 0 it is BSP to the bit.
    Delay {
        /// Most rounds that an update may be late; at most [`RUN_AHEAD_MAX`](Self::RUN_AHEAD_MAX).
        staleness: u64,
        /// The seed that the delays follow from.
        seed: u64,
    },
}

impl SchemeConfig {
    /// The names that can be written.
    #[doc(hidden)]
    pub const NAMES: [&'static str; text::NAMES.len()] = text::NAMES;

    /// Most clocks that workers may run ahead where each clock costs them a slot at the server.
    #[doc(hidden)]
    pub const RUN_AHEAD_MAX: u64 = 1024;

    /// Most slots that a worker can have: one for each of these clocks, one for the gradient that is being folded in,
    /// and one for the gradient that is being written.
    #[doc(hidden)]
    pub const SLOTS_MAX: u16 = Self::RUN_AHEAD_MAX as u16 + 2;

    /// The scheme of this name (or text) with these settings beside those that the text itself has: for command lines,
    /// where settings are options. A setting that the scheme does not take, one given twice, and a value that cannot
    /// be are errors that name the setting, the value and the remedy.
    ///
    /// ```
    /// use slackline::scheme::SchemeConfig;
    /// assert_eq!(SchemeConfig::from_settings("ssp", &[("staleness", "2")]), Ok(SchemeConfig::Ssp { staleness: 2 }));
    /// let error = SchemeConfig::from_settings("bsp", &[("staleness", "2")]).unwrap_err();
    /// assert!(error.to_string().starts_with("bsp takes no staleness, and 2 was given: leave it out, or use ssp"));
    /// ```
    #[doc(hidden)]
    pub fn from_settings(name: &str, settings: &[(&str, &str)]) -> Result<SchemeConfig, SchemeConfigError> {
        text::parse(name, settings)
    }

    /// Returns its name, without settings.
    #[doc(hidden)]
    pub const fn name(&self) -> &'static str {
        match self {
            SchemeConfig::Bsp => "bsp",
            SchemeConfig::Asp => "asp",
            SchemeConfig::Ssp { .. } => "ssp",
            SchemeConfig::Essp { .. } => "essp",
            SchemeConfig::Bap { .. } => "bap",
            SchemeConfig::Vap { .. } => "vap",
            SchemeConfig::Dbw { .. } => "dbw",
            SchemeConfig::Abs { .. } => "abs",
            SchemeConfig::DsSync { .. } => "ds-sync",
            SchemeConfig::Delay { .. } => "delay",
        }
    }

    /// Checks whether a job of `workers` can run it, and if not, says why.
    #[doc(hidden)]
    pub fn check(&self, workers: usize) -> Result<(), SchemeConfigError> {
        match *self {
            SchemeConfig::Bsp | SchemeConfig::Asp | SchemeConfig::Ssp { .. } | SchemeConfig::Essp { .. } => {
                Ok(())
            }
            SchemeConfig::Bap { staleness } | SchemeConfig::Delay { staleness, .. } => {
                self.check_run_ahead(staleness)
            }
            SchemeConfig::Vap { bound, .. } if bound > 0.0 && bound.is_finite() => Ok(()),
            SchemeConfig::Vap { bound, .. } => Err(self.bad("bound", bound, text::POSITIVE)),
            SchemeConfig::Dbw { steps: StepRule::Knee { gradients: 0 }, .. } => {
                Err(self.bad("knee", 0, text::COUNT))
            }
            SchemeConfig::Dbw { choice: Choice::Static { k }, .. } => self.check_k(k, workers),
            SchemeConfig::Dbw { choice: Choice::Dynamic { window, loss_growth }, .. } => {
                if !(loss_growth > 0.0 && loss_growth.is_finite()) {
                    return Err(self.bad("loss-growth", loss_growth, text::POSITIVE));
                }
                self.check_count("window", window)
            }
            SchemeConfig::Dbw { choice: Choice::Blind { window }, .. } => self.check_count("window", window),
            SchemeConfig::Dbw { choice: Choice::Published, .. } => Ok(()),
            SchemeConfig::Abs { wait_for, local_steps, .. } => {
                self.check_count("local-steps", local_steps)?;
                if let WaitFor::LossOverTime { millis: 0, .. } = wait_for {
                    return Err(self.bad("interval", 0, text::INTERVAL));
                }
                self.check_k(wait_for.k(), workers)
            }
            SchemeConfig::DsSync { group, partition, period } => {
                self.check_count("period", period)?;
                Groups::new(workers, group, partition).map(|_| ())
            }
        }
    }

    fn check_k(&self, k: u16, workers: usize) -> Result<(), SchemeConfigError> {
        self.check_count("k", k)?;
        if usize::from(k) > workers {
            let (scheme, value) = (self.name(), u64::from(k));
            let remedy = "at most as many as there are workers";
            return Err(SchemeConfigError::Workers { scheme, setting: "k", value, workers, remedy });
        }
        Ok(())
    }

    fn check_count(&self, setting: &'static str, count: u16) -> Result<(), SchemeConfigError> {
        if count == 0 { Err(self.bad(setting, count, text::COUNT)) } else { Ok(()) }
    }

    fn bad(&self, setting: &'static str, value: impl ToString, expected: &'static str) -> SchemeConfigError {
        SchemeConfigError::BadValue { scheme: self.name(), setting, value: value.to_string(), expected }
    }

    fn check_run_ahead(&self, staleness: u64) -> Result<(), SchemeConfigError> {
        if staleness <= Self::RUN_AHEAD_MAX {
            return Ok(());
        }
        Err(self.bad("staleness", staleness, text::RUN_AHEAD))
    }

    /// Returns the most clocks that a copy may be behind its reader; `None` if no number of clocks bounds it.
    #[doc(hidden)]
    pub const fn staleness(&self) -> Option<u64> {
        match *self {
            SchemeConfig::Bsp => Some(0),
            SchemeConfig::Ssp { staleness }
            | SchemeConfig::Essp { staleness }
            | SchemeConfig::Bap { staleness } => Some(staleness),
            _ => None,
        }
    }

    /// Returns the number of slots that each worker needs: one for the gradient that is being folded in, one for the
    /// gradient that is being written, and one for each clock that its gradients may wait at the server.
    #[doc(hidden)]
    pub const fn slots(&self) -> u16 {
        match *self {
            // Without a bound by clocks, there are as many as there is room for.
            SchemeConfig::Vap { strength: Strength::Weak | Strength::Strong, .. } => 4,
            SchemeConfig::Bap { staleness } | SchemeConfig::Delay { staleness, .. } => {
                let ahead = if staleness < Self::RUN_AHEAD_MAX { staleness } else { Self::RUN_AHEAD_MAX };
                ahead as u16 + 2
            }
            _ => 2,
        }
    }

    /// Returns the most gradients that a server folds at once, however many workers there are; `None` if it folds one
    /// of each, or, where delays bring gradients of several rounds together, a few.
    #[doc(hidden)]
    pub const fn gradients_at_once(&self) -> Option<u16> {
        match *self {
            SchemeConfig::Asp
            | SchemeConfig::Ssp { .. }
            | SchemeConfig::Essp { .. }
            | SchemeConfig::Vap { .. } => Some(1),
            SchemeConfig::Dbw { choice: Choice::Static { k }, .. }
            | SchemeConfig::Abs { wait_for: WaitFor::Fixed(k), .. } => Some(k),
            _ => None,
        }
    }

    /// Returns the most gradients of one worker that a server folds at once: delays may bring the gradients of several
    /// rounds together.
    pub(crate) const fn gradients_of_each(&self) -> u64 {
        match *self {
            SchemeConfig::Delay { staleness, .. } => staleness.saturating_add(1),
            _ => 1,
        }
    }

    /// True if the server pushes copies, so that workers must hold frames to receive them.
    #[doc(hidden)]
    pub const fn pushes(&self) -> bool {
        matches!(
            self,
            SchemeConfig::Bap { .. }
                | SchemeConfig::Essp { .. }
                | SchemeConfig::Dbw { delivery: Delivery::Wait, .. }
        )
    }

    /// True if a worker goes on to its next clock while its gradient is on its way to the servers.
    #[doc(hidden)]
    pub const fn publishes_in_background(&self) -> bool {
        matches!(self, SchemeConfig::Bap { .. })
    }

    /// True if servers are to be told which version each worker holds: see
    /// [`ServerEvent::Seen`](super::ServerEvent::Seen).
    #[doc(hidden)]
    pub const fn reports_reads(&self) -> bool {
        matches!(self, SchemeConfig::Vap { strength: Strength::Strong | Strength::Published, .. })
    }

    /// True if workers are to measure the largest magnitude of their gradients.
    #[doc(hidden)]
    pub const fn measures_magnitude(&self) -> bool {
        matches!(self, SchemeConfig::Vap { strength: Strength::Weak | Strength::Strong, .. })
    }

    /// True if servers are to measure norm and variance of the gradients that they fold. Losses they report whenever
    /// they came.
    #[doc(hidden)]
    pub const fn measures_moments(&self) -> bool {
        matches!(self, SchemeConfig::Dbw { choice: Choice::Dynamic { .. } | Choice::Published, .. })
    }

    /// True if its promises hold for plain SGD alone, so that a server refuses other optimisers.
    #[doc(hidden)]
    pub const fn requires_sgd(&self) -> bool {
        matches!(
            self,
            SchemeConfig::Dbw { choice: Choice::Published, .. }
                | SchemeConfig::Vap { strength: Strength::Published, .. }
        )
    }

    /// True if it takes each update for a step along the gradient, so that a server refuses optimisers whose steps have
    /// other lengths in each element.
    #[doc(hidden)]
    pub const fn requires_step_size(&self) -> bool {
        matches!(self, SchemeConfig::Dbw { choice: Choice::Dynamic { .. }, .. })
    }

    /// True if servers may ask a worker to abandon a computation, so that it is worth while to ask whether they did.
    #[doc(hidden)]
    pub const fn interrupts(&self) -> bool {
        matches!(
            self,
            SchemeConfig::Dbw { delivery: Delivery::Interrupt, .. }
                | SchemeConfig::Abs { staleness: Some(_), .. }
        )
    }

    /// True if every gradient is folded in, each worker's in order, and with one part in the number of workers, so that
    /// a worker knows the effect of its own gradients before the server has applied them.
    #[doc(hidden)]
    pub const fn folds_all_in_order(&self) -> bool {
        matches!(
            self,
            SchemeConfig::Bsp
                | SchemeConfig::Asp
                | SchemeConfig::Ssp { .. }
                | SchemeConfig::Essp { .. }
                | SchemeConfig::Bap { .. }
                | SchemeConfig::Vap { .. }
        )
    }

    /// True if its gradients can add up, each with the weight 1.
    #[doc(hidden)]
    pub fn adds_up(&self) -> bool {
        super::adds_up(&super::Scheme::needs(self))
    }

    /// Returns the number of steps that a worker makes on its own copy for each gradient that it publishes. The
    /// published gradient is the sum over these steps.
    #[doc(hidden)]
    pub const fn local_steps(&self) -> u16 {
        match *self {
            SchemeConfig::Abs { local_steps, .. } => local_steps,
            _ => 1,
        }
    }

    /// False if workers average their parameters among themselves, without a server.
    #[doc(hidden)]
    pub const fn has_server(&self) -> bool {
        !matches!(self, SchemeConfig::DsSync { .. })
    }

    /// True if one server decides for all where there are several: it counts versions of the server where others count
    /// clocks, and the versions of two servers are not related. Also where a version waits for several workers,
    /// whichever come first, and workers wait for their own: two shards that choose differently could wait for ever for
    /// workers that wait for the other. See [`Server::follow`](crate::node::Server::follow).
    #[doc(hidden)]
    pub const fn counts_versions(&self) -> bool {
        matches!(
            self,
            SchemeConfig::Vap { strength: Strength::Strong | Strength::Published, .. }
                | SchemeConfig::Dbw { .. }
                | SchemeConfig::Abs { staleness: Some(_), .. }
                | SchemeConfig::Abs {
                    wait_for: WaitFor::LossRatio(_) | WaitFor::LossOverTime { .. } | WaitFor::Fixed(2..),
                    ..
                }
                | SchemeConfig::Delay { .. }
        )
    }

    /// The server's half, for a job of `workers`: nothing is applied, and the smallest clock stays 0, until that many
    /// different workers have joined. From then on workers come and go as they like.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check); the scheme has no server.
    #[doc(hidden)]
    pub fn server(&self, workers: usize) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        self.server_at(workers, Clock::new(0), Version::new(0))
    }

    /// As [`server`](Self::server), for a job that goes on from `clock` and `newest`: the smallest clock begins there,
    /// and this is the version that workers find.
    #[doc(hidden)]
    pub fn server_at(
        &self,
        workers: usize,
        clock: Clock,
        newest: Version,
    ) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        self.check(workers)?;
        Ok(match *self {
            SchemeConfig::Bsp | SchemeConfig::Bap { .. } => {
                Box::new(BspServer::new(workers, self.pushes(), clock))
            }
            SchemeConfig::Asp | SchemeConfig::Ssp { .. } | SchemeConfig::Essp { .. } => {
                Box::new(SspServer::new(workers, self.pushes(), clock))
            }
            SchemeConfig::Vap { bound, strength } => {
                let server = SspServer::new(workers, false, clock);
                Box::new(match strength {
                    Strength::Weak => server,
                    Strength::Strong => server.holding_back(HoldBack::Unseen(Unseen::new(bound, newest))),
                    Strength::Published => {
                        server.holding_back(HoldBack::OwnSums(OwnSums::new(bound, newest)))
                    }
                })
            }
            SchemeConfig::Dbw { delivery, choice, steps } => {
                Box::new(DbwServer::new(workers, clock, newest, delivery, choice, steps))
            }
            SchemeConfig::Abs { wait_for, staleness, shrink, .. } => {
                Box::new(AbsServer::new(workers, clock, newest, Rules { wait_for, staleness, shrink }))
            }
            SchemeConfig::DsSync { .. } => return Err(SchemeConfigError::NoServer { scheme: self.name() }),
            SchemeConfig::Delay { staleness, seed } => {
                Box::new(DelayServer::new(workers, clock, newest, staleness, seed))
            }
        })
    }

    /// The worker's half.
    #[doc(hidden)]
    pub fn worker(&self) -> Box<dyn WorkerScheme> {
        match *self {
            SchemeConfig::Bsp => Box::new(SspReader::fresh(Some(0))),
            SchemeConfig::Asp => Box::new(SspReader::fresh(None)),
            SchemeConfig::Ssp { staleness } => Box::new(SspReader::reusing(staleness)),
            SchemeConfig::Essp { staleness } | SchemeConfig::Bap { staleness } => {
                Box::new(SspReader::fresh(Some(staleness)))
            }
            SchemeConfig::Vap { strength: Strength::Published, .. } => Box::new(OwnConsumed::new()),
            SchemeConfig::Vap { bound, strength } => Box::new(VapWorker::new(bound, strength, self.slots())),
            SchemeConfig::Dbw { .. } | SchemeConfig::Delay { .. } => Box::new(OncePerVersion::new()),
            SchemeConfig::Abs { .. } => Box::new(OwnConsumed::new()),
            SchemeConfig::DsSync { period, .. } => Box::new(Averager::new(period)),
        }
    }
}

#[cfg(test)]
mod tests;
