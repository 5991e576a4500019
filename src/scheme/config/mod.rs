//! Which scheme a job runs: a value that can be named, stored and sent.

mod error;
mod text;

pub use error::ConfigError;

use serde::{Deserialize, Serialize};

use super::bsp::BspServer;
use super::ssp::{Reader, SspServer};
use super::{ServerScheme, WorkerScheme};
use crate::clock::Clock;

/// The staleness of schemes that take one, where none is given: enough to hide jitter, small enough to hardly cost
/// iterations. No staleness hides a worker that is always slow.
pub const DEFAULT_STALENESS: u64 = 3;

/// A scheme with its settings. Both halves are made from it, so peers that agree on it agree on the scheme.
///
/// As text it is a name, or a name with settings in parentheses, the first of which needs no name:
///
/// ```
/// use slackline::scheme::Config;
/// assert_eq!("ssp(2)".parse(), Ok(Config::Ssp { staleness: 2 }));
/// assert_eq!("bap(staleness=2)".parse(), Ok(Config::Bap { staleness: 2 }));
/// assert_eq!("essp".parse::<Config>()?.to_string(), "essp(3)");
/// assert!("bsp(2)".parse::<Config>().is_err());
/// # Ok::<(), slackline::scheme::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Config {
    /// Bulk synchronous: one update per clock, out of everybody's gradients. Every copy is exactly up to date.
    Bsp,
    /// Asynchronous: nobody waits, and staleness is unbounded.
    Asp,
    /// Stale synchronous (Ho et al., NIPS 2013): a copy is used again until it is `staleness` clocks behind.
    Ssp {
        /// How many clocks a copy may be behind its reader.
        staleness: u64,
    },
    /// Eager SSP (Dai et al., AAAI 2015, arXiv 1410.8043): the bound of SSP, over copies that the server pushes
    /// whenever a clock is complete, so that most are far fresher than the bound.
    Essp {
        /// How many clocks a copy may be behind its reader.
        staleness: u64,
    },
    /// Bounded asynchronous parallel (Li et al., HPCC 2016): whole clocks are folded in order, as in BSP, and workers
    /// run ahead of them. The paper's text gives a bound on the "distance" of stale parameters; that the distance is
    /// counted in clocks is a reconstruction. At staleness 0 it is BSP to the bit.
    Bap {
        /// How many clocks a copy may be behind its reader, at most [`RUN_AHEAD_MAX`](Self::RUN_AHEAD_MAX).
        staleness: u64,
    },
}

impl Config {
    /// The names that can be written.
    pub const NAMES: [&'static str; text::NAMES.len()] = text::NAMES;

    /// How many clocks workers may run ahead where each costs them a slot at the server.
    pub const RUN_AHEAD_MAX: u64 = 1024;

    /// The scheme of this name (or text) with these settings beside those that the text itself has: for command lines,
    /// where settings are options. A setting that the scheme does not take, one given twice, and a value that cannot
    /// be are errors that name the setting, the value and the remedy.
    ///
    /// ```
    /// use slackline::scheme::Config;
    /// assert_eq!(Config::from_settings("ssp", &[("staleness", "2")]), Ok(Config::Ssp { staleness: 2 }));
    /// let error = Config::from_settings("bsp", &[("staleness", "2")]).unwrap_err();
    /// assert!(error.to_string().starts_with("bsp takes no staleness, and 2 was given: leave it out, or use ssp"));
    /// ```
    pub fn from_settings(name: &str, settings: &[(&str, &str)]) -> Result<Config, ConfigError> {
        text::parse(name, settings)
    }

    /// Its name, without settings.
    pub const fn name(&self) -> &'static str {
        match self {
            Config::Bsp => "bsp",
            Config::Asp => "asp",
            Config::Ssp { .. } => "ssp",
            Config::Essp { .. } => "essp",
            Config::Bap { .. } => "bap",
        }
    }

    /// Whether a job of `workers` can run it, and if not, why.
    pub fn check(&self, _workers: usize) -> Result<(), ConfigError> {
        match *self {
            Config::Bap { staleness } => self.check_run_ahead(staleness),
            _ => Ok(()),
        }
    }

    fn check_run_ahead(&self, staleness: u64) -> Result<(), ConfigError> {
        if staleness <= Self::RUN_AHEAD_MAX {
            return Ok(());
        }
        Err(ConfigError::BadValue {
            scheme: self.name(),
            setting: "staleness",
            value: staleness.to_string(),
            expected: "a whole number of clocks from 0 to 1024",
        })
    }

    /// How many clocks a copy may be behind its reader; `None` if nothing bounds it.
    pub const fn staleness(&self) -> Option<u64> {
        match *self {
            Config::Bsp => Some(0),
            Config::Asp => None,
            Config::Ssp { staleness } | Config::Essp { staleness } | Config::Bap { staleness } => {
                Some(staleness)
            }
        }
    }

    /// How many slots each worker needs: one that is being folded in, one that is being written, and one for each
    /// clock that its gradients may wait at the server.
    pub const fn slots(&self) -> u16 {
        match *self {
            Config::Bap { staleness } => {
                let ahead = if staleness < Self::RUN_AHEAD_MAX { staleness } else { Self::RUN_AHEAD_MAX };
                ahead as u16 + 2
            }
            _ => 2,
        }
    }

    /// True if the server pushes copies, so that workers must hold frames to receive them.
    pub const fn pushes(&self) -> bool {
        matches!(self, Config::Essp { .. })
    }

    /// True if servers are to be told which version each worker holds: see
    /// [`ServerEvent::Seen`](super::ServerEvent::Seen).
    pub const fn reports_reads(&self) -> bool {
        false
    }

    /// True if workers are to measure the largest magnitude of their gradients.
    pub const fn measures_magnitude(&self) -> bool {
        false
    }

    /// True if servers are to measure norm and variance of the gradients that they fold. Losses they report whenever
    /// they came.
    pub const fn measures_moments(&self) -> bool {
        false
    }

    /// True if servers may ask a worker to abandon what it computes, so that asking whether they did is worth while.
    pub const fn interrupts(&self) -> bool {
        false
    }

    /// How many steps a worker makes on its own copy for each gradient that it publishes, which is their sum.
    pub const fn local_steps(&self) -> u16 {
        1
    }

    /// False if workers average their parameters among themselves, without a server.
    pub const fn has_server(&self) -> bool {
        true
    }

    /// True if it counts versions of the server where others count clocks: then all parameters must be in one shard,
    /// for versions of two have nothing to do with each other.
    pub const fn counts_versions(&self) -> bool {
        false
    }

    /// The server's half, for a job of `workers`: nothing is applied, and the smallest clock stays 0, until that many
    /// different workers have joined. From then on workers come and go as they like.
    ///
    /// An error if [`check`](Self::check) says so, or if the scheme has no server.
    pub fn server(&self, workers: usize) -> Result<Box<dyn ServerScheme>, ConfigError> {
        self.server_at(workers, Clock(0))
    }

    /// As [`server`](Self::server), for a job that goes on from `clock`: the smallest clock begins there.
    pub fn server_at(&self, workers: usize, clock: Clock) -> Result<Box<dyn ServerScheme>, ConfigError> {
        self.check(workers)?;
        Ok(match self {
            Config::Bsp | Config::Bap { .. } => Box::new(BspServer::new(workers, clock)),
            Config::Asp | Config::Ssp { .. } | Config::Essp { .. } => {
                Box::new(SspServer::new(workers, self.pushes(), clock))
            }
        })
    }

    /// The worker's half.
    pub fn worker(&self) -> Box<dyn WorkerScheme> {
        Box::new(match *self {
            Config::Bsp => Reader::fresh(Some(0)),
            Config::Asp => Reader::fresh(None),
            Config::Ssp { staleness } => Reader::reusing(staleness),
            Config::Essp { staleness } | Config::Bap { staleness } => Reader::fresh(Some(staleness)),
        })
    }
}

#[cfg(test)]
mod tests;
