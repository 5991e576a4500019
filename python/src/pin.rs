//! A pin as a context manager.

use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use slackline::internals::param::PinCheck;

use crate::errors::{Class, Failure};
use crate::lease::Lease;
use crate::reading::PINNING;
use crate::snapshot::Snapshot;

/// A version that is pinned in the publisher's memory: `with reader.pin() as snapshot`.
#[pyclass(frozen, module = "slackline")]
pub(crate) struct Pin {
    snapshot: std::sync::Mutex<Option<Snapshot>>,
    lease: Arc<Lease>,
    check: PinCheck,
}

impl Pin {
    pub(crate) fn new(snapshot: Snapshot, lease: Arc<Lease>, check: PinCheck) -> Pin {
        Pin { snapshot: std::sync::Mutex::new(Some(snapshot)), lease, check }
    }
}

#[pymethods]
impl Pin {
    /// True if all reads of the pin so far saw the pinned version. They always do unless this process
    /// was silent for longer than the publisher's lease: stopped, or starved. The end of the block asks it, too.
    fn is_intact(&self) -> PyResult<bool> {
        self.lease.check()?;
        Ok(self.check.is_intact())
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Snapshot>> {
        self.lease.check()?;
        let snapshot = self.snapshot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let again = || Failure::out_of_turn("pinning", "it was entered", "call pin again");
        Py::new(py, snapshot.ok_or_else(again)?)
    }

    fn __exit__(
        &self,
        class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // Once the lease has ended, the publisher may write the version.
        let is_lost = self.lease.check().is_ok() && !self.check.is_intact();
        let exports = self.lease.end();
        if is_lost && class.is_none() {
            let cause = "the pin was lost in the block, since this process was silent for longer than the lease (it \
                         was stopped, or starved): what was read there may be of several versions";
            let remedy = "read again; the publisher's lease says how long a reader may be silent";
            return Err(Failure::new(Class::PeerGone, PINNING, cause, remedy).into());
        }
        // An exception of the block may itself hold the arrays: it comes first.
        if exports == 0 || !class.is_none() {
            return Ok(());
        }
        Err(PyBufferError::new_err(format!(
            "{exports} arrays still look at the pinned version, which stays pinned until they are gone; delete them \
             before the end of the block, or copy what is needed for longer"
        )))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.lease.end();
    }
}
