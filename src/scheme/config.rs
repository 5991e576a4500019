//! Which scheme a job runs: a value that can be named, stored and sent.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::bsp::BspServer;
use super::ssp::{Reader, SspServer};
use super::{ServerScheme, WorkerScheme};
use crate::clock::Clock;

/// The staleness of SSP and ESSP where none is given: enough to hide jitter, small enough to hardly cost iterations.
/// No staleness hides a worker that is always slow.
pub const DEFAULT_STALENESS: u64 = 3;

/// A scheme with its settings. Both halves are made from it, so peers that agree on it agree on the scheme.
///
/// ```
/// use slackline::scheme::Config;
/// assert_eq!(Config::new("ssp", Some(2))?, Config::Ssp { staleness: 2 });
/// assert_eq!(Config::new("essp", None)?.to_string(), "essp(3)");
/// assert!(Config::new("bsp", Some(2)).is_err());
/// # Ok::<(), slackline::scheme::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
}

/// A scheme cannot be made as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No scheme has this name.
    #[error("no scheme is named {name:?}: use one of {}", Config::NAMES.join(", "))]
    UnknownName {
        /// The name.
        name: String,
    },
    /// A staleness was given to a scheme that has none.
    #[error("{scheme} takes no staleness, and {staleness} was given: leave it out, or use ssp or essp")]
    TakesNoStaleness {
        /// The scheme.
        scheme: &'static str,
        /// What was given.
        staleness: u64,
    },
}

impl Config {
    /// The names that [`Config::new`] knows.
    pub const NAMES: [&'static str; 4] = ["bsp", "asp", "ssp", "essp"];

    /// The scheme of this name. SSP and ESSP take a staleness, by default [`DEFAULT_STALENESS`]; the others take none.
    pub fn new(name: &str, staleness: Option<u64>) -> Result<Config, ConfigError> {
        let config = match name {
            "bsp" => Config::Bsp,
            "asp" => Config::Asp,
            "ssp" => return Ok(Config::Ssp { staleness: staleness.unwrap_or(DEFAULT_STALENESS) }),
            "essp" => return Ok(Config::Essp { staleness: staleness.unwrap_or(DEFAULT_STALENESS) }),
            _ => return Err(ConfigError::UnknownName { name: name.to_owned() }),
        };
        match staleness {
            None => Ok(config),
            Some(staleness) => Err(ConfigError::TakesNoStaleness { scheme: config.name(), staleness }),
        }
    }

    /// Its name, without settings.
    pub const fn name(&self) -> &'static str {
        match self {
            Config::Bsp => "bsp",
            Config::Asp => "asp",
            Config::Ssp { .. } => "ssp",
            Config::Essp { .. } => "essp",
        }
    }

    /// How many clocks a copy may be behind its reader; `None` if nothing bounds it.
    pub const fn staleness(&self) -> Option<u64> {
        match *self {
            Config::Bsp => Some(0),
            Config::Asp => None,
            Config::Ssp { staleness } | Config::Essp { staleness } => Some(staleness),
        }
    }

    /// How many slots each worker needs: one that is being folded in, one that is being written.
    pub const fn slots(&self) -> u16 {
        2
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

    /// True if servers are to measure norm and variance of the gradients that they fold.
    pub const fn measures_moments(&self) -> bool {
        false
    }

    /// True if servers may ask a worker to abandon what it computes, so that asking whether they did is worth while.
    pub const fn interrupts(&self) -> bool {
        false
    }

    /// The server's half, for a job of `workers`: nothing is applied, and the smallest clock stays 0, until that many
    /// different workers have joined. From then on workers come and go as they like.
    pub fn server(&self, workers: usize) -> Box<dyn ServerScheme> {
        self.server_at(workers, Clock(0))
    }

    /// As [`server`](Self::server), for a job that goes on from `clock`: the smallest clock begins there.
    pub fn server_at(&self, workers: usize, clock: Clock) -> Box<dyn ServerScheme> {
        match self {
            Config::Bsp => Box::new(BspServer::new(workers, clock)),
            _ => Box::new(SspServer::new(workers, self.pushes(), clock)),
        }
    }

    /// The worker's half.
    pub fn worker(&self) -> Box<dyn WorkerScheme> {
        Box::new(match *self {
            Config::Bsp => Reader::fresh(Some(0)),
            Config::Asp => Reader::fresh(None),
            Config::Ssp { staleness } => Reader::reusing(staleness),
            Config::Essp { staleness } => Reader::fresh(Some(staleness)),
        })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Config::Bsp | Config::Asp => f.write_str(self.name()),
            Config::Ssp { staleness } | Config::Essp { staleness } => {
                write!(f, "{}({staleness})", self.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_its_scheme() {
        for name in Config::NAMES {
            assert_eq!(Config::new(name, None).unwrap().name(), name);
        }
    }

    #[test]
    fn errors_name_the_remedy() {
        let unknown = Config::new("bap", None).unwrap_err();
        assert_eq!(unknown.to_string(), r#"no scheme is named "bap": use one of bsp, asp, ssp, essp"#);
        let refused = Config::new("bsp", Some(1)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "bsp takes no staleness, and 1 was given: leave it out, or use ssp or essp"
        );
        assert!(Config::new("asp", Some(0)).is_err());
    }

    #[test]
    fn what_is_stored_comes_back() {
        for config in [Config::Bsp, Config::Asp, Config::Ssp { staleness: 0 }, Config::Essp { staleness: 9 }]
        {
            let bytes = postcard::to_allocvec(&config).unwrap();
            assert_eq!(postcard::from_bytes::<Config>(&bytes).unwrap(), config);
        }
    }
}
