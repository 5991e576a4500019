//! A worker that stands for all workers of a host: it publishes their sum, and is driven by polls alone.

use super::{ReadMode, View, Worker, WorkerOptions, WorkerPhase};
use crate::mem::LocalSlice;
use crate::node::Error;
use crate::scheme::{AnyScheme, SchemeConfig};
use crate::table::Encoding;
use crate::time::Duration;
use crate::transport::Transport;

/// Checks that the workers of a host can be one worker of this scheme.
///
/// # Errors
/// [`Error::Scheme`], with the reason.
pub(crate) fn check_scheme_of_host(scheme: &AnyScheme) -> Result<(), Error> {
    let reason = match scheme.built_in() {
        Some(SchemeConfig::Bsp) => return Ok(()),
        Some(
            SchemeConfig::Asp
            | SchemeConfig::Ssp { .. }
            | SchemeConfig::Essp { .. }
            | SchemeConfig::Vap { .. },
        ) => "folds each gradient by itself, as it comes: there is no round whose sum a host could hand on",
        Some(SchemeConfig::Bap { .. }) => {
            "has workers run ahead of the versions that hold their gradients, and a host hands on one sum for each \
             version"
        }
        Some(_) => "chooses among the gradients of single workers, which a host's sum does not tell apart",
        None => "is not known to have rounds, and a host hands on one sum for each; use bsp",
    };
    Err(Error::Scheme { scheme: scheme.clone(), reason })
}

impl<T: Transport> Worker<T> {
    /// Brings the first parameters, within `timeout`.
    ///
    /// # Errors
    /// The scheme or the options do not fit a worker that stands for a host.
    pub(in crate::node) fn stand_for_host(&mut self, timeout: Duration) -> Result<View, Error> {
        check_scheme_of_host(&self.kind)?;
        let refuse = |option, value, reason| Err(Error::Option { option, value, reason });
        let WorkerOptions { encoding, read, own_step, .. } = &self.options;
        if *encoding != Encoding::F32 {
            let reason = "the sum over a host is f32, whatever encoding its workers have";
            return refuse("encoding", format!("{encoding:?}"), reason);
        }
        if *read != ReadMode::Copy {
            return refuse("read", format!("{read:?}"), "the parameters are copied on to the host's workers");
        }
        if let Some(step) = own_step {
            return refuse("own_step", step.to_string(), "the host's workers see what the servers hold");
        }
        Ok(self.step(timeout)?.suspend())
    }

    /// The view that the next gradient is computed on, once its parameters are here.
    pub(in crate::node) fn computing(&mut self) -> Option<View> {
        (self.phase == WorkerPhase::Computing).then(|| self.view())
    }

    /// The memory that parameters are read into.
    pub(in crate::node) fn parameters_memory(&mut self) -> Result<LocalSlice, Error> {
        let bytes = self.table.bytes() as usize;
        let buffer = self.parameters.as_mut().ok_or(super::step::IN_PLACE)?;
        Ok(buffer.slice(0, bytes)?)
    }

    /// The memory that gradients are published from.
    pub(in crate::node) fn gradient_memory(&mut self) -> Result<LocalSlice, Error> {
        let bytes = self.gradient_bytes() as usize;
        Ok(self.gradient_buffer()?.slice(0, bytes)?)
    }

    /// Begins to publish the sum in that memory, over this many workers, with this mean loss.
    pub(in crate::node) fn publish_sum(&mut self, workers: u64, loss: Option<f32>) -> Result<(), Error> {
        self.others = u32::try_from(workers.saturating_sub(1)).unwrap_or(u32::MAX);
        self.start_memory(loss)
    }
}
