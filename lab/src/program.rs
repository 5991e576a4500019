//! The program of a worker: all that a process needs to know to compute gradients, as text.

use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};
use slackline::gpu::Gpu;
use thiserror::Error;

use crate::compute::{Computer, GpuComputer, GpuComputerError, Pace, PaceError};
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
    Pace(#[from] PaceError),
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

/// Has a worker follow whatever `bytes` are as a program, if that names no file of this machine.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_program(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let names_a_file = |program: &Program| {
        program.data.is_some() || program.jitter.as_ref().is_some_and(|jitter| jitter.contains(':'))
    };
    if serde_json::from_str(text).is_ok_and(|program| !names_a_file(&program)) {
        let _computer = Program::computer(text, 1, 2);
    }
}

/// Programs for the built-in examples.
#[cfg(any(test, fuzzing))]
pub(crate) fn program_samples() -> Vec<Vec<u8>> {
    let program = |kind: ModelKind, hidden: &[usize], jitter: Option<&str>| {
        let task = Task::load(kind.task(), None).expect("it is built in");
        let examples = task.train.examples();
        let (inputs, outputs) = examples.shape();
        let spec = ModelSpec::new(kind, inputs, outputs, hidden).expect("it can be");
        Program::new(None, &spec, examples, Shards::default(), 1, 8, 2.0, jitter.map(Into::into))
    };
    let programs =
        [program(ModelKind::Softmax, &[], None), program(ModelKind::Mlp, &[8], Some("exp(0.001)"))];
    programs.iter().map(|program| program.to_text().into_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_cut_short_or_repeated_is_refused() {
        for sample in program_samples() {
            fuzz_program(&sample);
            fuzz_program(&sample[..sample.len() / 2]);
            fuzz_program(&sample.repeat(2));
        }
    }

    #[test]
    fn a_program_with_a_factor_that_no_worker_can_have_is_an_error() {
        for sample in program_samples() {
            let computer = |factor: &str| {
                let text = String::from_utf8(sample.clone()).unwrap();
                Program::computer(&text.replace("\"factor\":2.0", &format!("\"factor\":{factor}")), 0, 1)
            };
            assert!(computer("1.0").is_ok());
            for factor in ["0.5", "-1.0", "1e300"] {
                let refused = matches!(computer(factor), Err(ProgramError::Pace(PaceError::Factor(_))));
                assert!(refused, "{factor}");
            }
        }
    }
}
