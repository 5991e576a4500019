//! A pin as a context manager.

use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::lease::Lease;
use crate::snapshot::Snapshot;

/// A version that is pinned in the publisher's memory: `with reader.pin() as snapshot`.
#[pyclass(frozen, module = "slackline")]
pub(crate) struct Pin {
    snapshot: std::sync::Mutex<Option<Snapshot>>,
    lease: Arc<Lease>,
}

impl Pin {
    pub(crate) fn new(snapshot: Snapshot, lease: Arc<Lease>) -> Pin {
        Pin { snapshot: std::sync::Mutex::new(Some(snapshot)), lease }
    }
}

#[pymethods]
impl Pin {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Snapshot>> {
        self.lease.check()?;
        let snapshot = self.snapshot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let again = || crate::errors::Failure::out_of_turn("pinning", "it was entered", "call pin again");
        Py::new(py, snapshot.ok_or_else(again)?)
    }

    fn __exit__(
        &self,
        class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let exports = self.lease.end();
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
