//! The `slackline` command line, and the part of it that others may use: the metrics of a process.
#![forbid(unsafe_code)]

mod checkpoint_args;
mod cli;
mod commands;
mod device_name;
mod everyday;
mod failure;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod member_help;
mod memory;
pub mod metrics;
mod model_args;
mod optimizer_name;
mod output;
mod rank_args;
mod scheme_args;
mod secret_args;

pub use cli::run;
