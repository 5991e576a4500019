//! The data that the device writes to memory late.

use super::*;

/// The number of chances, on average, that a late word lets pass.
const LATE_STEPS: usize = 10_000;

/// The data that gets into memory late, although the device could write it at once.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lateness {
    #[default]
    Nothing,
    /// Words that are acknowledged before they are in memory: much later.
    AcknowledgedWords,
    /// WRITEs to memory of GPUs: not before a READ behind them waits for them.
    WritesToGpus,
}

impl Unordered {
    /// From now on a word that is acknowledged before it is in memory arrives there much later.
    pub(crate) fn be_late(&self) {
        lock(&self.world.state).lateness = Lateness::AcknowledgedWords;
    }

    /// From now on a WRITE to memory of a GPU is acknowledged, and arrives there once a READ behind it waits for it.
    #[cfg(feature = "cuda")]
    pub(super) fn be_late_on_gpus(&self) {
        lock(&self.world.state).lateness = Lateness::WritesToGpus;
    }
}

impl DeviceState {
    /// Whether this step, which was chosen at random, is left for later.
    pub(super) fn puts_off(&mut self, pair: usize, step: DeviceStep) -> bool {
        let DeviceStep::Store(request, _) = step else { return false };
        let is_word = self.pairs[pair].requests[request].is_acknowledged_word();
        self.lateness == Lateness::AcknowledgedWords && is_word && self.random(LATE_STEPS) > 0
    }
}

impl ScriptedPair {
    /// Whether this step must not be taken yet.
    pub(super) fn holds(&self, step: DeviceStep, lateness: Lateness) -> bool {
        let DeviceStep::Store(request, _) = step else { return false };
        let is_waiting = |behind: &ScriptedRequest| behind.reads_into.is_some() && !behind.is_read;
        lateness == Lateness::WritesToGpus
            && self.requests[request].is_of_gpu
            && !self.requests.range(request..).any(is_waiting)
    }
}

impl ScriptedRequest {
    fn is_acknowledged_word(&self) -> bool {
        self.is_told && self.bytes == size_of::<u64>()
    }
}
