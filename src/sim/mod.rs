//! Simulation: schemes, nodes and the memory protocol under virtual time.
//!
//! [`fabric`] runs the real nodes over a simulated network that is as hostile as the transport contract permits.

pub mod fabric;
