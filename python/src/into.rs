//! Pulls into arrays of the caller's.
#![allow(unsafe_code, reason = "the caller's arrays are written through pointers")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use slackline::Version;
use slackline::internals::mem::{Streaming, VolatileSlice};

use crate::errors::Failure;
use crate::lease::Lease;
use crate::reading::{self, Reading, Request, newest_from};
use crate::record::Asked;
use crate::snapshot::Facts;
use crate::source::Foreign;
use crate::table::Layout;

/// One writable array for each tensor of a table.
pub(crate) struct Targets {
    layout: Arc<Layout>,
    arrays: Vec<Foreign>,
}

impl Targets {
    pub(crate) fn of(layout: &Arc<Layout>, into: &Bound<'_, PyAny>) -> PyResult<Targets> {
        let arrays = layout.arrays(into, "pulling into arrays")?;
        for array in &arrays {
            array.writable()?;
        }
        Ok(Targets { layout: Arc::clone(layout), arrays })
    }

    /// Copies a whole version out of the memory at `from`.
    ///
    /// # Safety
    /// The memory at `from` has the bytes of the table. A peer may be writing it: then the arrays hold some bytes.
    unsafe fn fill_from(&self, from: *mut u8) {
        for (array, spec) in self.arrays.iter().zip(&self.layout.specs) {
            let Ok((target, bytes)) = array.writable() else { continue };
            // SAFETY: the tensor lies in the table, by the caller's promise; the array is writable and as long, and was
            // given to be written.
            unsafe {
                let tensor = VolatileSlice::new(from.wrapping_add(spec.offset), bytes, false);
                VolatileSlice::new(target, bytes, true).copy_from(tensor, Streaming::ByLength);
            }
        }
    }

    pub(crate) fn into_leases(self) -> Vec<Arc<Lease>> {
        let lease = |array: Foreign| {
            let (pointer, bytes) = array.extent();
            Arc::new(Lease::new(pointer, bytes, array))
        };
        self.arrays.into_iter().map(lease).collect()
    }
}

/// Pulls into the arrays: straight out of the publisher's memory where that is mapped, and else by way of a copy.
pub(crate) fn pull(
    py: Python<'_>,
    reading: &mut Reading,
    request: Request,
    targets: &Targets,
    timeout: Duration,
) -> PyResult<(Facts, Asked)> {
    let is_whole = std::ptr::eq(reading.reader.copied_table(), reading.reader.table());
    if !reading.copies_from_frames || !is_whole || request.exactly.is_some() {
        let (facts, lease, asked) = reading::pull(py, reading, request, timeout)?;
        // SAFETY: the lease is of a copy of the whole table, which no code writes.
        py.detach(|| unsafe { targets.fill_from(lease.at(0)) });
        return Ok((facts, asked.ended()));
    }
    let deadline = Instant::now() + timeout;
    let asked = reading.begin(request);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (facts, address, _bytes) = reading::hold(py, reading, request, left)?;
        let newest = py.detach(|| {
            // SAFETY: what is held is a whole frame, which the publisher leaves alone while this process is alive to
            // it.
            unsafe { targets.fill_from(std::ptr::with_exposed_provenance_mut(address)) };
            let is_intact = reading.reader.is_intact();
            reading.reader.release();
            match is_intact {
                true => newest_from(&mut reading.reader, 0, left),
                false => Ok(None),
            }
        })?;
        py.check_signals()?;
        let Some(newest) = newest else { continue };
        let staleness = newest.saturating_sub(facts.version);
        if request.max_staleness.is_none_or(|most| staleness <= most) {
            reading.reader.tell_held(Version::new(facts.version)).map_err(Failure::from)?;
            reading.has_brought(&request, &facts);
            return Ok((Facts { staleness, ..facts }, asked.ended()));
        }
        if left.is_zero() {
            return Err(request.late(timeout, newest).into());
        }
    }
}
