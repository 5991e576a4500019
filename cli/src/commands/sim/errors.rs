//! Errors of the simulator and of recipes, in terms of options.

use slackline::sim::SimError;
use slackline_lab::reproduce::Error;

use crate::failure::Failure;
use crate::scheme_args;

/// Turns an error of the simulator into a failure that names the option.
pub(super) fn of_simulation(error: &SimError) -> Failure {
    match error {
        SimError::Broken { .. } | SimError::Stuck { .. } | SimError::Fold { .. } => Failure::of(error),
        SimError::Scheme(error) => scheme_args::refused(error),
        SimError::Setting { setting, value, remedy } => {
            let option = match *setting {
                "worker bandwidth" => "--bandwidth",
                "server bandwidth" => "--server-bandwidth",
                "a factor of a worker's times" => "--factor",
                "the time of a change" | "the workers of a change" | "the factor of a change" => "--change",
                "the worker of a crash" => {
                    return Failure::usage(format!("--crash: there is no worker {value}")).help(remedy);
                }
                "the time of a crash" => "--crash",
                "the time of a partition" | "the workers of a partition" => "--cut",
                "until" => {
                    return Failure::usage(format!("the end cannot be {value}")).help(remedy);
                }
                other => {
                    return Failure::usage(format!("--{} cannot be {value}", other.replace('_', "-")))
                        .help(remedy);
                }
            };
            Failure::usage(format!("{option}: {setting} cannot be {value}")).help(remedy)
        }
        _ => Failure::refused(error),
    }
}

/// Turns an error of a recipe into a failure that names the option.
pub(super) fn of_recipe(error: &Error) -> Failure {
    match error {
        Error::Scheme(error) => scheme_args::refused(error),
        Error::Simulation(error) => of_simulation(error),
        other => Failure::failed(other),
    }
}
