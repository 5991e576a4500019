//! Parameters and how gradients move them: by the kernel of the real servers.

use std::rc::Rc;

use super::Cluster;
use crate::kernel::{Fold, FoldError, Gradient, Moments, Optimizer, Pass, Schedule, decode, encode};
use crate::mem::VolatileSlice;
use crate::table::Encoding;

/// One version, as it was handed out; shared by all its holders.
#[derive(Debug)]
pub(super) struct ModelSnapshot {
    pub(super) version: u64,
    pub(super) smallest_clock: u64,
    /// None on time alone.
    pub(super) values: Rc<[f32]>,
}

/// A gradient as it goes over the wire.
pub(super) type Payload = Rc<[u8]>;

/// Parameters that their owner updates: the server or, without one, a worker.
#[derive(Clone, Debug)]
pub(super) struct Model {
    optimizer: Optimizer,
    learning_rate: f32,
    schedule: Schedule,
    /// Updates that were made.
    steps: u64,
    parameters: Vec<u8>,
    states: Vec<Vec<u8>>,
    /// Memory that the next fold writes to: the parameters and each state.
    next: Vec<Vec<u8>>,
}

/// As it goes over the wire.
pub(super) fn payload(values: &[f32]) -> Payload {
    let mut bytes = vec![0; values.len() * 4];
    encode(values, VolatileSlice::from_mut(&mut bytes), Encoding::F32);
    bytes.into()
}

/// As it was before it went over the wire.
pub(super) fn values(payload: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; payload.len() / 4];
    decode(VolatileSlice::from_ref(payload), Encoding::F32, &mut values);
    values
}

/// The mean of vectors, added from the left and divided once, each operation rounded to f32.
pub(super) fn mean(parts: &[Vec<f32>]) -> Vec<f32> {
    let mut parts = parts.iter();
    let mut mean = parts.next().cloned().unwrap_or_default();
    let count = 1.0 + parts.len() as f32;
    parts.for_each(|part| mean.iter_mut().zip(part).for_each(|(sum, element)| *sum += element));
    mean.iter_mut().for_each(|sum| *sum /= count);
    mean
}

impl Model {
    /// Begins with `initial`, under the rule of this cluster.
    pub(super) fn new(initial: &[f32], cluster: &Cluster) -> Model {
        let Cluster { optimizer, learning_rate, schedule, .. } = *cluster;
        let zeros = || vec![0; initial.len() * 4];
        Model {
            optimizer,
            learning_rate,
            schedule,
            steps: 0,
            parameters: payload(initial).to_vec(),
            states: (0..optimizer.states()).map(|_| zeros()).collect(),
            next: (0..=optimizer.states()).map(|_| zeros()).collect(),
        }
    }

    /// Takes other parameters; the optimiser's state stays.
    pub(super) fn put(&mut self, parameters: Payload) {
        self.parameters.copy_from_slice(&parameters);
    }

    pub(super) fn values(&self) -> Vec<f32> {
        values(&self.parameters)
    }

    /// Makes version `version` out of weighted gradients, and measures them if `measures`. The step size is the
    /// version's; the optimiser's state is as old as the model.
    pub(super) fn fold(
        &mut self,
        version: u64,
        shares: &[(Payload, f32)],
        measures: bool,
    ) -> Result<Moments, FoldError> {
        let gradients: Vec<Gradient<'_>> = shares
            .iter()
            .map(|(payload, weight)| Gradient { elements: VolatileSlice::from_ref(payload), weight: *weight })
            .collect();
        let learning_rate = self.schedule.rate(self.learning_rate, version.saturating_sub(1));
        let mut passes = std::iter::once(&self.parameters)
            .chain(&self.states)
            .zip(&mut self.next)
            .map(|(from, to)| Pass { from: VolatileSlice::from_ref(from), to: VolatileSlice::from_mut(to) });
        let Some(parameters) = passes.next() else { return Ok(Moments::default()) };
        let states: Vec<Pass<'_>> = passes.collect();
        let fold = Fold {
            gradients: &gradients,
            encoding: Encoding::F32,
            optimizer: self.optimizer,
            learning_rate,
            step: self.steps + 1,
            parameters,
            states: &states,
            streaming: false,
        };
        let moments =
            if measures { fold.run_measured()?.0 } else { fold.run().map(|_| Moments::default())? };
        std::iter::once(&mut self.parameters)
            .chain(&mut self.states)
            .zip(&mut self.next)
            .for_each(|(old, new)| std::mem::swap(old, new));
        self.steps += 1;
        Ok(moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::AdamParameters;
    use crate::scheme::SchemeConfig;

    /// Adam's first step has the length of the step size, for any gradient: its means are corrected for the small
    /// number of gradients.
    #[test]
    fn what_an_optimiser_has_learned_is_as_old_as_its_model() {
        let mut cluster = Cluster::new(SchemeConfig::Asp, 1, 1);
        cluster.optimizer = Optimizer::Adam(AdamParameters::default());
        for version in [1, 100] {
            let mut model = Model::new(&[1.0], &cluster);
            model.fold(version, &[(payload(&[7.0]), 1.0)], false).unwrap();
            assert!((model.values()[0] - 0.9).abs() < 1e-4, "{:?}", model.values());
        }
    }
}
