//! Gradients of a fold that hold a NaN or an infinity, found by a GPU.
//!
//! One gradient after the other is folded alone, a window at a time, with a weight so small that no finite element has
//! a square that is not finite: the measurement of the fold is finite exactly where the window is. The parameters that
//! these folds compute are written to memory of the look's own, and never read.

use std::collections::VecDeque;

use smallvec::{SmallVec, smallvec};

use super::on_gpu;
use crate::cuda::{Gpu, GpuError, GpuFold, GpuKernels, GpuMemory, Tickets};
use crate::kernel::Optimizer;
use crate::node::Error;
use crate::node::aggregate::FoldJob;
use crate::scheme::GradientId;

/// The fold that looks, by which no state of an optimiser is read.
const RULE: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };

/// 2^-66: the squares of four of the largest numbers, times this, add up to less than the largest number.
const WEIGHT: f32 = 1.0 / (1_u128 << 66) as f32;

/// Elements of a window.
const WINDOW: usize = if cfg!(test) { 64 } else { 4 << 20 };

pub(super) struct NonFiniteLook {
    kernels: GpuKernels,
    /// Room for the parameters of a window.
    scratch: GpuMemory,
    /// The gradient and the element that are to be looked at next.
    next: (usize, usize),
    /// Windows that are under way, in order: the gradient of each, its ticket, and the cell of its measurement.
    windows: VecDeque<(usize, Tickets, Option<usize>)>,
    cell: usize,
    /// For each gradient, whether a window so far is not finite.
    found: Vec<bool>,
}

impl NonFiniteLook {
    pub(super) fn new(gpu: &Gpu) -> Result<NonFiniteLook, Error> {
        let kernels = GpuKernels::load_measuring(gpu, &RULE)?;
        let scratch = GpuMemory::allocate(gpu, 4 * WINDOW)?;
        let (windows, found) = (VecDeque::new(), Vec::new());
        Ok(NonFiniteLook { kernels, scratch, next: (0, 0), windows, cell: 0, found })
    }

    /// Begins again with the next job. Windows that are under way go on, and count for nothing.
    pub(super) fn forget(&mut self) {
        self.next = (0, 0);
        self.found.clear();
        self.windows.iter_mut().for_each(|(_, _, cell)| *cell = None);
    }

    /// True once no window is under way.
    pub(super) fn is_quiet(&mut self) -> Result<bool, GpuError> {
        self.retire()?;
        Ok(self.windows.is_empty())
    }

    /// The error of the driver when it was asked whether a window is done.
    pub(super) fn unanswered(&self) -> Option<GpuError> {
        self.windows.front().and_then(|(_, ticket, _)| ticket.unanswered())
    }

    fn retire(&mut self) -> Result<(), GpuError> {
        while let Some((gradient, ticket, cell)) = self.windows.front_mut() {
            match ticket.are_done() {
                Ok(false) => break,
                Ok(true) => {
                    let bad = cell.is_some_and(|cell| !self.kernels.measured(cell)[0].is_finite());
                    if let Some(is_bad) = self.found.get_mut(*gradient).filter(|_| bad) {
                        *is_bad = true;
                    }
                    self.windows.pop_front();
                }
                // Nothing is known of the window.
                Err(fault) => {
                    self.forget();
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    /// Looks on at the gradients of a job. The gradients that are not finite, once all are looked at.
    pub(super) fn advance(&mut self, job: &FoldJob) -> Result<Option<SmallVec<[GradientId; 4]>>, Error> {
        self.retire()?;
        self.found.resize(job.inputs.len(), false);
        while self.windows.len() < GpuKernels::MEASURED_RUNS && self.next.0 < job.inputs.len() {
            self.launch(job)?;
        }
        if !self.windows.is_empty() {
            return Ok(None);
        }
        let found = job.inputs.iter().zip(&self.found).filter(|(_, is_bad)| **is_bad);
        let found = found.map(|(input, _)| input.gradient).collect();
        self.forget();
        Ok(Some(found))
    }

    /// Launches the next window.
    fn launch(&mut self, job: &FoldJob) -> Result<(), Error> {
        let (gradient, begin) = self.next;
        let (whole, width) = (job.parameters.from.len() / 4, job.encoding.bytes());
        let elements = WINDOW.min(whole - begin);
        let window = on_gpu(&job.inputs[gradient].payload)?.slice(begin * width, elements * width)?;
        let from = on_gpu(&job.parameters.from)?.slice(4 * begin, 4 * elements)?;
        let to = self.scratch.slice(0, 4 * elements)?;
        let fold = GpuFold {
            optimizer: RULE,
            learning_rate: 0.0,
            step: 1,
            encoding: job.encoding,
            gradients: smallvec![(window, WEIGHT)],
            arrays: smallvec![(from, to)],
            elements: 0..elements,
        };
        let mut ticket = Tickets::default();
        let launched = self.kernels.launch_measured(fold, self.cell, &mut ticket);
        // Where the driver fails late, the window may be under way all the same. It is looked at again.
        self.windows.push_back((gradient, ticket, launched.is_ok().then_some(self.cell)));
        self.cell = (self.cell + 1) % GpuKernels::MEASURED_RUNS;
        launched?;
        let is_last = begin + elements == whole;
        self.next = if is_last { (gradient + 1, 0) } else { (gradient, begin + elements) };
        Ok(())
    }
}
