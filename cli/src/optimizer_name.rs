//! Optimisers by their names: the same under every command.

use clap::ValueEnum;
use slackline::optim::{AdamParameters, Optimizer};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    Sgd,
    /// SGD with momentum 0.9
    Momentum,
    Adam,
    /// Adam with a weight decay of 0.01
    #[value(name = "adamw")]
    AdamW,
}

impl OptimizerName {
    pub(crate) fn optimizer(self) -> Optimizer {
        match self {
            OptimizerName::Sgd => Optimizer::Sgd { weight_decay: 0.0 },
            OptimizerName::Momentum => Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 },
            OptimizerName::Adam => Optimizer::Adam(AdamParameters::default()),
            OptimizerName::AdamW => {
                Optimizer::AdamW(AdamParameters { weight_decay: 0.01, ..AdamParameters::default() })
            }
        }
    }

    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OptimizerName::Sgd => "sgd",
            OptimizerName::Momentum => "momentum",
            OptimizerName::Adam => "adam",
            OptimizerName::AdamW => "adamw",
        }
    }
}
