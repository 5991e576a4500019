//! What the `slackline` command line is made of: the data it trains on and the models it trains, where a process
//! stands in its job, and what it tells of itself.
//!
//! A model is one flat slice of `f32`, which is what lets the library under it hold the same parameters in any kind of
//! memory.

pub mod data;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
pub mod metrics;
pub mod model;
pub mod plot;
pub mod problem;
