//! The simulator that a transport may belong to: it replaces the clock, the waiting and the heartbeats of all nodes
//! that run over that transport.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::HeartbeatWord;
use crate::time::{Duration, Instant};

/// A simulator, as one node of it sees it. See [`Transport::simulator`](super::Transport::simulator).
///
/// The node suspends its future after each call that lets time pass, and the simulator polls it again when that time
/// has come.
pub trait Simulator: Send + Sync {
    /// The time.
    fn now(&self) -> Instant;

    /// Lets time pass for a node that has found nothing to do for the `turns`th time.
    fn stand_back(&self, turns: u32);

    /// May let time pass for a node that has found something to do; returns whether it does.
    fn may_yield(&self) -> bool;

    /// Lets `pause` pass.
    fn sleep(&self, pause: Duration);

    /// Returns how many of at most `most` steps of work a node takes before it yields.
    fn steps(&self, most: usize) -> usize;

    /// Returns how many of `most` bytes of a payload are read at a time.
    fn batch(&self, most: u64) -> u64;

    /// The time that registering memory for a peer takes, in a thread of its own.
    fn registering(&self) -> Duration;

    /// Sets `word` every `interval` from now on, until `stop` is set or the node that asks for it is no more.
    fn beat(&self, word: Box<dyn HeartbeatWord>, interval: Duration, stop: Arc<AtomicBool>);
}
