//! Copies into arrays of the caller's: of versions that are pulled, and of a step's parameters.
#![allow(unsafe_code, reason = "the caller's arrays are written through pointers")]

use std::sync::Arc;

use pyo3::prelude::*;

use slackline::Version;
use slackline::internals::mem::{Streaming, VolatileSlice};

use crate::device::OnGpu;
use crate::errors::{Class, Failure};
use crate::gpu::Streams;
use crate::lease::Lease;
use crate::reading::{self, PULLING, Reading, Request, newest_from};
use crate::record::Asked;
use crate::snapshot::Facts;
use crate::source::{Foreign, Given};
use crate::table::Layout;
use crate::wait::Deadline;

/// One writable array for each tensor of a table.
pub(crate) struct Targets {
    layout: Arc<Layout>,
    arrays: Vec<Given>,
}

impl Targets {
    pub(crate) fn of(
        layout: &Arc<Layout>,
        into: &Bound<'_, PyAny>,
        operation: &str,
        streams: &Streams,
    ) -> PyResult<Targets> {
        let arrays = layout.arrays(into, operation, streams)?;
        for array in &arrays {
            match array {
                Given::Host(array) => drop(array.writable()?),
                Given::Gpu(array) if array.is_read_only => {
                    let (cause, remedy) = ("it is read-only", "give one that can be written");
                    return Err(Failure::new(Class::LayoutMismatch, operation, cause, remedy).into());
                }
                Given::Gpu(_) => {}
            }
        }
        Ok(Targets { layout: Arc::clone(layout), arrays })
    }

    /// The arrays that are in memory of the host, with where their tensors begin in the table.
    fn on_host(&self) -> impl Iterator<Item = (&Foreign, usize)> {
        self.arrays.iter().zip(&self.layout.specs).filter_map(|(array, spec)| match array {
            Given::Host(array) => Some((array, spec.offset)),
            Given::Gpu(_) => None,
        })
    }

    /// The same of those that are on a GPU.
    pub(crate) fn on_gpu(&self) -> impl Iterator<Item = (&OnGpu, usize)> {
        self.arrays.iter().zip(&self.layout.specs).filter_map(|(array, spec)| match array {
            // Memory without bytes is nothing that a GPU copies.
            Given::Gpu(array) => (array.bytes() > 0).then_some((array, spec.offset)),
            Given::Host(_) => None,
        })
    }

    /// Copies a whole version out of the memory at `from` into the arrays that are not on a GPU.
    ///
    /// # Safety
    /// There are `len` bytes at `from`. A peer may be writing them: then the arrays hold some bytes.
    ///
    /// # Panics
    /// If the table is longer.
    pub(crate) unsafe fn fill_from(&self, from: *mut u8, len: usize) {
        for (array, offset) in self.on_host() {
            let Ok((target, bytes)) = array.writable() else { continue };
            assert!(offset + bytes <= len, "a tensor outside of the version");
            // SAFETY: the tensor lies in the memory; the array is writable and as long as the tensor, and was given to
            // be written.
            unsafe {
                let tensor = VolatileSlice::new(from.wrapping_add(offset), bytes, false);
                VolatileSlice::new(target, bytes, true).copy_from(tensor, Streaming::ByLength);
            }
        }
    }

    pub(crate) fn into_leases(self) -> Vec<Option<Arc<Lease>>> {
        let lease = |array: Given| match array {
            Given::Host(array) => {
                let (pointer, bytes) = array.extent();
                Some(Arc::new(Lease::new(pointer, bytes, array)))
            }
            Given::Gpu(_) => None,
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
    deadline: Deadline,
) -> PyResult<(Facts, Asked)> {
    if let Some(stream) = straight_to_gpu(reading, targets) {
        return pull_to_gpu(py, reading, request, targets, stream, deadline);
    }
    let is_on_gpu = targets.on_gpu().next().is_some();
    if !reading.copies_from_frames() || !reading.is_whole() || is_on_gpu || request.exactly.is_some() {
        loop {
            if is_on_gpu {
                reading.forget_shared();
            }
            let (facts, lease, asked) = reading::pull(py, reading, request, deadline)?;
            if is_on_gpu {
                // The GPU reads it later: no program gets it, which could write it before.
                reading.forget_newest();
            }
            py.detach(|| -> Result<(), Failure> {
                // SAFETY: the lease is of a copy of the whole table, or of the part that is selected.
                unsafe { targets.fill_from(lease.at(0), lease.bytes()) };
                for (array, offset) in targets.on_gpu() {
                    let (gpu, stream) = array.stream()?;
                    let snapshot = lease.owner::<slackline::weights::Snapshot>().ok_or_else(no_snapshot)?;
                    snapshot.copy_to_gpu(offset as u64, &array.memory(&gpu)?, &stream)?;
                }
                Ok(())
            })?;
            // Another thread may have it, too, and may have handed it to code that writes it.
            if !lease.written().may_be() {
                return Ok((facts, asked.ended()));
            }
            if deadline.left().is_zero() {
                return Err(request.late(deadline.timeout, Some(Version::new(facts.version))).into());
            }
        }
    }
    let asked = reading.begin(request);
    loop {
        let left = deadline.left();
        let (facts, address, bytes, check) = reading::hold(py, reading, request, deadline)?;
        let newest = py.detach(|| {
            // SAFETY: what is held is a whole frame, which the publisher leaves alone while this process is alive to
            // it.
            unsafe { targets.fill_from(std::ptr::with_exposed_provenance_mut(address), bytes) };
            let is_intact = check.is_intact();
            reading.reader.release();
            match is_intact {
                true => newest_from(&mut reading.reader, 0, &mut None, left),
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
            return Err(request.late(deadline.timeout, Some(Version::new(newest))).into());
        }
    }
}

fn no_snapshot() -> Failure {
    Failure::new(Class::Error, "copying to a GPU", "the copy is not one of this reader", "please report it")
}

/// The stream of all arrays, if the reader's GPU can bring a version straight into them.
fn straight_to_gpu(reading: &Reading, targets: &Targets) -> Option<usize> {
    let gpu = reading.gpu.as_ref()?;
    let stream = targets.on_gpu().next()?.0.stream;
    let same = |array: &Given| match array {
        Given::Gpu(array) => (array.ordinal, array.stream) == (gpu.ordinal, stream),
        Given::Host(_) => false,
    };
    targets.arrays.iter().all(same).then_some(stream)
}

/// Pulls by the reader's GPU: the whole copy into memory of that GPU, and from there into the arrays. One array that is
/// the whole copy is written straight.
fn pull_to_gpu(
    py: Python<'_>,
    reading: &mut Reading,
    request: Request,
    targets: &Targets,
    stream: usize,
    deadline: Deadline,
) -> PyResult<(Facts, Asked)> {
    let asked = reading.begin(request);
    let (least, closing) = (reading.least(&request), reading.closing.clone());
    let (reader, mut question) = (&mut reading.reader, None);
    let ask = |slice| newest_from(reader, least, &mut question, slice);
    let is_there = closing.in_slices(py, PULLING, deadline, ask)?;
    is_there.ok_or_else(|| PyErr::from(request.late(deadline.timeout, reader.newest_seen())))?;
    let facts = py.detach(|| -> Result<Facts, Failure> {
        let bytes = reading.reader.copy_bytes();
        let (array, _) = targets.on_gpu().next().ok_or_else(no_snapshot)?;
        let (gpu, by) = array.stream()?;
        let left = || deadline.left();
        if targets.arrays.len() == 1 && array.bytes() == bytes {
            let into = array.memory(&gpu)?;
            return Ok(Facts::of(&reading.reader.pull_to_gpu(request.wanted(), &into, &by, left())?));
        }
        let staging = reading.staging(&gpu, stream, bytes)?;
        let fresh = reading.reader.pull_to_gpu(request.wanted(), &staging.whole(), &by, left())?;
        for (array, offset) in targets.on_gpu() {
            by.copy(
                &staging.slice(offset, array.bytes()).map_err(slackline::Error::from)?,
                &array.memory(&gpu)?,
            )?;
        }
        Ok(Facts::of(&fresh))
    })?;
    reading.has_brought(&request, &facts);
    Ok((facts, asked.ended()))
}
