//! Options that set the scheme, the same for `train` and `sim`.

use clap::ValueEnum;
use slackline::optim::Schedule;
use slackline::scheme::{AnyScheme, Damping, SchemeConfig, SchemeConfigError};

use crate::failure::Failure;
use crate::optimizer_name::OptimizerName;

/// The settings of all schemes. A scheme takes those that it has, and refuses the others. Those of single schemes are
/// on the page of `slackline schemes`.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct SchemeArgs {
    /// Clocks that parameters may be behind (ssp, essp, bap), versions (abs), or rounds (delay) [default: 3]
    #[arg(long, help_heading = "Scheme", value_name = "N")]
    pub(crate) staleness: Option<String>,

    /// Gradients in each update (dbw, k-sync, k-async: in all updates; abs, adasync: in the first ones)
    #[arg(long, help_heading = "Scheme", value_name = "N")]
    pub(crate) k: Option<String>,

    /// Treatment of slower workers once an update is made (dbw): interrupt, wait or pull
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) delivery: Option<String>,

    /// Choice of k (dbw): dynamic, published, static or blind
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) choice: Option<String>,

    /// Minimum number of updates to average estimates over (dbw) [default: 10; choice=blind: 5]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "N")]
    pub(crate) window: Option<String>,

    /// Wait for more workers once the loss grows by this factor (dbw) [default: 1]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "FACTOR")]
    pub(crate) loss_growth: Option<String>,

    /// Rule for the growth of k (abs): loss-ratio or fixed
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) rule: Option<String>,

    /// Change of the bound as k grows (abs): with-k or fixed
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) shrink: Option<String>,

    /// Steps on its own copy that a worker makes for each gradient (abs, adasync, k-async, k-sync) [default: 1]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "N")]
    pub(crate) local_steps: Option<String>,

    /// Seconds over which the loss is taken by which k grows (abs, adasync) [default: each update]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "SECONDS")]
    pub(crate) interval: Option<String>,

    /// Bound on the sum of updates in transit (vap) [default: 1]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "VALUE")]
    pub(crate) bound: Option<String>,

    /// Form of the bound (vap): weak, strong or published
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) strength: Option<String>,

    /// Workers that average at a time (ds-sync) [default: 2]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "N")]
    pub(crate) group: Option<String>,

    /// Step size by the number of gradients (dbw): constant, proportional or knee
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "RULE")]
    pub(crate) steps: Option<String>,

    /// Gradients from which on the step size is whole (dbw with --steps knee)
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "N")]
    pub(crate) knee: Option<String>,

    /// Partition of the workers into groups (ds-sync): digits, authors, uneven, near or random
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "HOW")]
    pub(crate) partition: Option<String>,

    /// Steps between two averages (ds-sync) [default: 1]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "N")]
    pub(crate) period: Option<String>,

    /// Averages within racks for each across (ds-sync, near) [default: 1]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "N")]
    pub(crate) inside: Option<String>,

    /// Effect of staleness on the weight of a gradient, under any scheme
    #[arg(long, help_heading = "Scheme", value_enum, default_value_t)]
    pub(crate) damping: DampingName,

    /// Each gradient is added with the weight 1, as the papers on SSP and ESSP have it, instead of 1/workers (bsp, asp,
    /// ssp, essp, bap); for steps of the same length divide --learning-rate by the number of workers
    #[arg(long, help_heading = "Scheme")]
    pub(crate) additive: bool,

    /// Decides how late each gradient is (delay) [default: 0]
    #[arg(long, hide = true, help_heading = "Scheme", value_name = "NUMBER")]
    pub(crate) delay_seed: Option<String>,
}

/// Effect of a gradient's staleness on its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, ValueEnum)]
pub(crate) enum DampingName {
    /// Nothing
    #[default]
    None,
    /// It is divided by the staleness in versions
    Inverse,
}

impl From<DampingName> for Damping {
    fn from(name: DampingName) -> Damping {
        match name {
            DampingName::None => Damping::None,
            DampingName::Inverse => Damping::Inverse,
        }
    }
}

impl SchemeArgs {
    /// The scheme of this name, or text such as `ssp(3)`, with these settings.
    pub(crate) fn config(&self, name: &str) -> Result<SchemeConfig, Failure> {
        SchemeConfig::from_settings(name, &self.given()).map_err(|error| refused(&error))
    }

    /// The same, fit for so many workers. What does not fit them is told of the scheme by the name that was written,
    /// which may be one of several.
    pub(crate) fn config_for(&self, text: &str, workers: usize) -> Result<SchemeConfig, Failure> {
        let config = self.config(text)?;
        config.check(workers).map_err(|mut error| {
            let name = text.split('(').next().unwrap_or_default().trim();
            let written = SchemeConfig::NAMES.into_iter().find(|known| *known == name);
            if let SchemeConfigError::Workers { scheme, .. } | SchemeConfigError::BadValue { scheme, .. } =
                &mut error
            {
                *scheme = written.unwrap_or(scheme);
            }
            refused(&error)
        })?;
        Ok(config)
    }

    /// The settings that were given, by their names.
    pub(crate) fn given(&self) -> Vec<(&'static str, &str)> {
        let all = [
            ("staleness", &self.staleness),
            ("k", &self.k),
            ("delivery", &self.delivery),
            ("choice", &self.choice),
            ("window", &self.window),
            ("loss-growth", &self.loss_growth),
            ("rule", &self.rule),
            ("shrink", &self.shrink),
            ("local-steps", &self.local_steps),
            ("interval", &self.interval),
            ("bound", &self.bound),
            ("strength", &self.strength),
            ("group", &self.group),
            ("steps", &self.steps),
            ("knee", &self.knee),
            ("partition", &self.partition),
            ("period", &self.period),
            ("inside", &self.inside),
            ("seed", &self.delay_seed),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }
}

/// The option that gives a setting.
pub(crate) fn option_of(setting: &str) -> &str {
    if setting == "seed" { "delay-seed" } else { setting }
}

/// Whether real servers can run the scheme.
pub(crate) fn check_real(scheme: &SchemeConfig) -> Result<(), Failure> {
    if AnyScheme::from(*scheme).needs().weighs_updates {
        let why = "it runs in simulated clusters alone, for real servers keep no updates to add up";
        return Err(Failure::usage(format!("--scheme {scheme}: {why}"))
            .help("use --strength weak or strong, or `sim`"));
    }
    Ok(())
}

/// Whether the scheme can run with steps of this optimiser and schedule.
pub(crate) fn check_steps(
    scheme: &SchemeConfig,
    optimizer: OptimizerName,
    schedule: Schedule,
    read_my_writes: bool,
) -> Result<(), Failure> {
    let refuse = |what: String, help| Err(Failure::usage(what).help(help));
    check_real(scheme)?;
    if scheme.requires_sgd() && optimizer != OptimizerName::Sgd {
        let why = "takes each update for a step of plain SGD";
        return refuse(format!("--optimizer {}: {scheme} {why}", optimizer.name()), "use --optimizer sgd");
    }
    let is_adam = matches!(optimizer, OptimizerName::Adam | OptimizerName::AdamW);
    if scheme.requires_step_size() && is_adam {
        let why = "takes each update for a step along the gradient";
        let help = "use --optimizer sgd or momentum";
        return refuse(format!("--optimizer {}: {scheme} {why}", optimizer.name()), help);
    }
    if schedule == Schedule::Constant {
        return Ok(());
    }
    if read_my_writes {
        let why = "a worker does not know the step size that its gradient will be folded in with";
        let what = format!("--schedule {schedule}: with --read-my-writes {why}");
        return refuse(what, "leave out one of the two");
    }
    if scheme.local_steps() > 1 {
        let why = "steps on a worker's own copy are made with the first step size";
        return refuse(format!("--schedule {schedule}: {why}"), "leave it out, or --local-steps");
    }
    Ok(())
}

/// The option, what is wrong with it, and what to do.
pub(crate) fn refused(error: &SchemeConfigError) -> Failure {
    let option = match error {
        SchemeConfigError::UnknownSetting { setting, .. } | SchemeConfigError::GivenTwice { setting, .. } => {
            setting
        }
        SchemeConfigError::BadValue { setting, .. } | SchemeConfigError::Workers { setting, .. } => *setting,
        _ => "scheme",
    };
    let option = option_of(option);
    Failure::refused(error).at(format_args!("--{option}"))
}
