//! Which scheme, as options: the same for `train` and `sim`.

use slackline::scheme::{Config, ConfigError};

use crate::failure::Failure;

/// The settings of all schemes. A scheme takes those that it has, and refuses the others.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct SchemeArgs {
    /// Clocks that parameters may be behind (ssp, essp, bap, delay), or versions (abs) [default: 3]
    #[arg(long, help_heading = "Scheme", value_name = "N")]
    pub(crate) staleness: Option<String>,

    /// Gradients in each update (dbw without its choice, abs as its first)
    #[arg(long, help_heading = "Scheme", value_name = "N")]
    pub(crate) k: Option<String>,

    /// What happens to slower workers once an update is made (dbw): interrupt, wait or pull
    #[arg(long, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) delivery: Option<String>,

    /// Largest change that may be on its way unseen (vap)
    #[arg(long, help_heading = "Scheme", value_name = "VALUE")]
    pub(crate) bound: Option<String>,

    /// Whether the bound also covers what only some have seen (vap): weak or strong
    #[arg(long, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) strength: Option<String>,

    /// Steps on its own copy that a worker makes for each gradient (abs)
    #[arg(long, help_heading = "Scheme", value_name = "N")]
    pub(crate) local_steps: Option<String>,

    /// Workers that average at a time (ds-sync)
    #[arg(long, help_heading = "Scheme", value_name = "N")]
    pub(crate) group: Option<String>,

    /// How workers are parted into groups (ds-sync): digits, authors or uneven
    #[arg(long, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) partition: Option<String>,
}

impl SchemeArgs {
    /// The scheme of this name, or text such as `ssp(3)`, with these settings.
    pub(crate) fn config(&self, name: &str) -> Result<Config, Failure> {
        Config::from_settings(name, &self.given()).map_err(|error| refused(&error))
    }

    /// The settings that were given, by their names.
    pub(crate) fn given(&self) -> Vec<(&'static str, &str)> {
        let SchemeArgs { staleness, k, delivery, bound, strength, local_steps, group, partition } = self;
        let all = [
            ("staleness", staleness),
            ("k", k),
            ("delivery", delivery),
            ("bound", bound),
            ("strength", strength),
            ("local-steps", local_steps),
            ("group", group),
            ("partition", partition),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }
}

/// The option, what is wrong with it, and what to do.
pub(crate) fn refused(error: &ConfigError) -> Failure {
    let option = match error {
        ConfigError::UnknownSetting { setting, .. } | ConfigError::GivenTwice { setting, .. } => setting,
        ConfigError::BadValue { setting, .. } | ConfigError::Workers { setting, .. } => *setting,
        _ => "scheme",
    };
    let text = error.to_string();
    let text = match text.rsplit_once(": ") {
        Some((what, remedy)) => format!("{what}; {remedy}"),
        None => text,
    };
    Failure::usage(format!("--{option}: {text}"))
}
