//! The program of a worker, beyond what the library orders it to do: the model, the data and the pace.

use std::ffi::OsString;
use std::path::Path;

use serde::{Deserialize, Serialize};
use slackline::internals::job::coordinated::WorkerOrder;
use slackline_lab::compute::{Computer, Pace};
use slackline_lab::data::{self, Dataset};
use slackline_lab::model::{Batches, ModelKind, ModelSpec};

use super::part::Trouble;
use super::plan::Plan;

/// One worker's program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Program {
    data: Option<OsString>,
    /// Kind, columns, classes and hidden units.
    model: (ModelKind, usize, usize, usize),
    rows: usize,
    seed: u64,
    batch: usize,
    factor: f64,
    /// The distribution of the time that each step takes besides computing.
    jitter: Option<String>,
}

impl Program {
    pub(super) fn of(plan: &Plan, worker: usize) -> Program {
        let spec = &plan.spec;
        Program {
            data: plan.data.as_ref().map(|path| path.clone().into_os_string()),
            model: (spec.kind(), spec.columns(), spec.classes(), spec.hidden()),
            rows: plan.split.train.rows(),
            seed: plan.seed,
            batch: plan.batch,
            factor: plan.factors[worker],
            jitter: plan.jitter.as_ref().map(ToString::to_string),
        }
    }

    pub(super) fn to_text(&self) -> String {
        // Plain data with names as keys: there is nothing that JSON cannot hold.
        serde_json::to_string(self).expect("programs always serialise")
    }

    /// Returns the [`Computer`] of the gradients of this order.
    pub(super) fn computer(order: &WorkerOrder) -> Result<Computer, Trouble> {
        let program: Program = serde_json::from_str(&order.program)?;
        let (kind, columns, classes, hidden) = program.model;
        let spec = ModelSpec::new(kind, columns, classes, hidden)?;
        let train = program.examples()?;
        let WorkerOrder { worker, workers, .. } = *order;
        let batches = Batches::new(program.seed, worker, workers, train.rows(), program.batch)?;
        let pace = Pace::new(program.factor, program.jitter.as_deref(), program.seed, worker, workers)?;
        Ok(Computer::new(spec, train, batches, pace))
    }

    /// The training examples, as the coordinator saw them.
    fn examples(&self) -> Result<Dataset, Trouble> {
        let split = match &self.data {
            Some(path) => data::load(Path::new(path))?,
            None => data::digits(),
        };
        let (_, columns, classes, _) = self.model;
        let found = (split.train.rows(), split.train.columns, split.train.classes);
        if found != (self.rows, columns, classes) {
            return Err(
                "the data file here is not the coordinator's, or was changed; use the same file on all hosts"
                    .into(),
            );
        }
        Ok(split.train)
    }
}
