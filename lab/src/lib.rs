//! Reproductions of results of the literature, and the parts that they are made of: small models, readers of data
//! sets, plots, tables. `slackline train` and `slackline sim` use the same parts.
//!
//! A model is one flat slice of `f32`, which is what lets the library under it hold the same parameters in any kind of
//! memory.
#![forbid(unsafe_code)]

pub mod compute;
pub mod data;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod model;
pub mod parallel;
pub mod plot;
pub mod problem;
pub mod program;
pub mod reproduce;
pub mod statistics;
pub mod stderr;
pub mod table;
