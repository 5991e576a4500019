//! The program of a worker: all that a process needs to know to compute gradients, as text.

use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};
use slackline::gpu::Gpu;
use slackline::sim::DistributionError;
use thiserror::Error;

use crate::compute::{Computer, GpuComputer, GpuComputerError, Pace};
use crate::data::{DataError, Examples, Task, TaskPart};
use crate::model::{Batches, BatchesError, ModelKind, ModelSpec, ModelSpecError, Shards, ShardsError};

/// One worker's program.
#[derive(Debug, Serialize, Deserialize)]
pub struct Program {
    data: Option<OsString>,
    /// What [`ModelSpec::new`] takes.
    model: (ModelKind, usize, usize, Vec<usize>),
    penalty: f32,
    rows: usize,
    /// How examples are dealt out to workers.
    shards: String,
    seed: u64,
    /// Examples of a gradient.
    batch: usize,
    /// The factor by which the worker is slowed down.
    factor: f64,
    /// The distribution of the time that each step takes besides computing.
    jitter: Option<String>,
}

/// What a program says, read.
struct ReadProgram {
    spec: ModelSpec,
    train: TaskPart,
    batches: Batches,
    /// The most examples of a batch.
    batch: usize,
    pace: Pace,
}

/// A program that a process cannot follow.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum ProgramError {
    #[error("the program of the coordinator cannot be read: {0}; use one version of slackline on all hosts")]
    Text(#[from] serde_json::Error),
    #[error(transparent)]
    Model(#[from] ModelSpecError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the data file here is not the coordinator's, or was changed; use the same file on all hosts")]
    OtherData,
    #[error(transparent)]
    Batches(#[from] BatchesError),
    #[error(transparent)]
    Shards(#[from] ShardsError),
    #[error(transparent)]
    Jitter(#[from] DistributionError),
    #[error(transparent)]
    Gpu(#[from] GpuComputerError),
}

impl Program {
    /// A program for `spec` on the examples `train`, the training part of what [`Task::load`] gives for `data`.
    /// `factor` and `jitter` are those of [`Pace::new`].
    #[allow(clippy::too_many_arguments)] // one for each field
    pub fn new(
        data: Option<&Path>,
        spec: &ModelSpec,
        train: Examples<'_>,
        shards: Shards,
        seed: u64,
        batch: usize,
        factor: f64,
        jitter: Option<String>,
    ) -> Program {
        Program {
            data: data.map(|path| path.as_os_str().to_owned()),
            model: (spec.kind(), spec.inputs(), spec.outputs(), spec.hidden().to_vec()),
            penalty: spec.penalty(),
            rows: train.count(),
            shards: shards.to_string(),
            seed,
            batch,
            factor,
            jitter,
        }
    }

    /// The program as text.
    pub fn to_text(&self) -> String {
        // Plain data with names as keys: there is nothing that JSON cannot hold.
        serde_json::to_string(self).expect("programs always serialise")
    }

    /// The computer of the gradients of one worker, counted from 0, out of `workers`, by the text of its program.
    ///
    /// # Errors
    ///
    /// If the text is no program, or the data file is not there or not the one of the program.
    pub fn computer(text: &str, worker: usize, workers: usize) -> Result<Computer, ProgramError> {
        let ReadProgram { spec, train, batches, pace, .. } = Program::parts(text, worker, workers)?;
        Ok(Computer::new(spec, train, batches, pace))
    }

    /// The same for gradients that are computed on a GPU.
    ///
    /// # Errors
    ///
    /// As [`computer`](Self::computer); there are no kernels for the model, or the GPU has no room for it.
    pub fn gpu_computer(
        text: &str,
        worker: usize,
        workers: usize,
        gpu: &Gpu,
    ) -> Result<GpuComputer, ProgramError> {
        let ReadProgram { spec, train, batches, batch, pace } = Program::parts(text, worker, workers)?;
        Ok(GpuComputer::new(gpu, &spec, &train, (batches, batch), pace)?)
    }

    fn parts(text: &str, worker: usize, workers: usize) -> Result<ReadProgram, ProgramError> {
        let program: Program = serde_json::from_str(text)?;
        let (kind, columns, classes, hidden) = &program.model;
        let spec = ModelSpec::new(*kind, *columns, *classes, hidden)?.with_penalty(program.penalty);
        let train = program.examples()?;
        let Program { shards, seed, batch, factor, jitter, .. } = program;
        let batches =
            Batches::sharded(shards.parse()?, seed, worker, workers, train.examples().groups(), batch)?;
        let pace = Pace::new(factor, jitter.as_deref(), seed, worker, workers)?;
        Ok(ReadProgram { spec, train, batches, batch, pace })
    }

    /// The training examples, as the coordinator saw them.
    fn examples(&self) -> Result<TaskPart, ProgramError> {
        let (kind, inputs, outputs, _) = self.model;
        let Task { train, .. } = Task::load(kind.task(), self.data.as_ref().map(Path::new))?;
        let found = train.examples();
        if (found.count(), found.shape()) != (self.rows, (inputs, outputs)) {
            return Err(ProgramError::OtherData);
        }
        Ok(train)
    }
}
