//! The simulator as the nodes see it: their clock, their waiting and their heartbeats.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::net::{HostId, SharedNet, lock};
use crate::time::{Duration, Instant};
use crate::transport::{HeartbeatWord, Simulator};

/// A node that finds nothing to do looks again after this long at first, and after twice as long each time.
const PAUSE_MIN: u64 = 4_000;
const PAUSE_DOUBLINGS: u32 = 10;

/// A node that has found nothing to do for so many turns is no longer woken by every event.
const PATIENT_TURNS: u32 = 14;

/// The simulated clock, processor and threads of one node.
pub(super) struct SimulatedHost {
    net: SharedNet,
    host: HostId,
}

impl SimulatedHost {
    pub(super) fn new(net: &SharedNet, host: HostId) -> SimulatedHost {
        SimulatedHost { net: Arc::clone(net), host }
    }
}

impl Simulator for SimulatedHost {
    fn now(&self) -> Instant {
        lock(&self.net).at()
    }

    fn stand_back(&self, turns: u32) {
        let mut net = lock(&self.net);
        let most = PAUSE_MIN << turns.min(PAUSE_DOUBLINGS);
        let pause = net.random.between(PAUSE_MIN / 4, most);
        net.sleep(self.host, pause, turns < PATIENT_TURNS);
    }

    fn may_yield(&self) -> bool {
        let mut net = lock(&self.net);
        let yields_permille = net.distribution.yields_permille;
        if !net.random.permille(yields_permille) {
            return false;
        }
        let most = net.distribution.latency.1;
        let nanos = net.random.between(100, most);
        net.sleep(self.host, nanos, false);
        true
    }

    fn sleep(&self, pause: Duration) {
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        lock(&self.net).sleep(self.host, nanos, false);
    }

    fn steps(&self, most: usize) -> usize {
        // One, so that a node may be held up between any two.
        most.min(1)
    }

    fn batch(&self, most: u64) -> u64 {
        most.min(lock(&self.net).distribution.batch)
    }

    fn registering(&self) -> Duration {
        Duration::from_nanos(lock(&self.net).registers_for())
    }

    fn beat(&self, word: Box<dyn HeartbeatWord>, interval: Duration, stop: Arc<AtomicBool>) {
        lock(&self.net).add_heart(self.host, word, interval, stop);
    }
}
