//! What the device brings into memory late.

use super::*;

/// Chances, on average, that a word which is late lets pass.
const LATE_STEPS: usize = 10_000;

/// What gets into memory late, of all that the device could bring there at once.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lateness {
    #[default]
    Nothing,
    /// Words that are acknowledged before they are in memory: much later.
    AcknowledgedWords,
    /// WRITEs to memory of GPUs: no sooner than a READ behind them waits for them.
    WritesToGpus,
}

impl Unordered {
    /// From now on a word that is acknowledged before it is in memory gets there much later.
    pub(crate) fn be_late(&self) {
        lock(&self.world.state).lateness = Lateness::AcknowledgedWords;
    }

    /// From now on a WRITE to memory of a GPU is acknowledged, and gets there once a READ behind it waits for it.
    #[cfg(feature = "cuda")]
    pub(super) fn be_late_on_gpus(&self) {
        lock(&self.world.state).lateness = Lateness::WritesToGpus;
    }
}

impl DeviceState {
    /// Whether this step, which chance has chosen, is left for later.
    pub(super) fn puts_off(&mut self, pair: usize, step: DeviceStep) -> bool {
        let DeviceStep::Store(request, _) = step else { return false };
        let is_word = self.pairs[pair].requests[request].is_acknowledged_word();
        self.lateness == Lateness::AcknowledgedWords && is_word && self.random(LATE_STEPS) > 0
    }
}

impl ScriptedPair {
    /// Whether this step is not to be taken yet.
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
