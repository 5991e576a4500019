//! The kernels of models, as plain loops over one result after the other: what `cuda/train.cuh` says.

use std::ops::Range;

use super::super::driver::DevicePointer;
use super::super::model::{LayerParameters, SoftmaxParameters};
use super::kernel::{Memory, load};

/// What a kernel of a model is given.
pub(super) enum ModelParameters {
    Layer(LayerParameters),
    Softmax(SoftmaxParameters),
}

impl ModelParameters {
    /// An address in each array, or 0 for one that there is not.
    pub(super) fn addresses(&self) -> Vec<DevicePointer> {
        match self {
            ModelParameters::Layer(of) => vec![of.inputs, of.rows, of.parameters, of.outputs, of.results],
            ModelParameters::Softmax(of) => vec![of.scores, of.labels, of.rows, of.losses],
        }
    }
}

fn store(memory: &mut Memory<'_>, array: DevicePointer, index: usize, value: f32) {
    memory.store(array + 4 * index as u64, &value.to_le_bytes());
}

/// The row of an example.
fn row(memory: &mut Memory<'_>, rows: DevicePointer, example: usize) -> usize {
    if rows == 0 {
        return example;
    }
    u64::from_le_bytes(memory.load(rows + 8 * example as u64)) as usize
}

/// The numbers that a kernel computes, one in each thread.
pub(super) fn results(name: &str, parameters: &ModelParameters) -> usize {
    match parameters {
        ModelParameters::Softmax(softmax) => softmax.examples as usize,
        ModelParameters::Layer(layer) => {
            let [examples, columns, units] =
                [layer.examples, layer.columns, layer.units].map(|number| number as usize);
            match name {
                "slackline_train_linear" => examples * units,
                "slackline_train_gradient" => units * (columns + 1),
                "slackline_train_deltas" => examples * columns,
                other => panic!("no kernel {other}"),
            }
        }
    }
}

/// Computes these results by the kernel of this name.
pub(super) fn compute(
    memory: &mut Memory<'_>,
    name: &str,
    parameters: &ModelParameters,
    results: Range<usize>,
) {
    for at in results {
        match (name, parameters) {
            ("slackline_train_softmax", ModelParameters::Softmax(of)) => softmax(memory, of, at),
            ("slackline_train_linear", ModelParameters::Layer(of)) => linear(memory, of, at),
            ("slackline_train_gradient", ModelParameters::Layer(of)) => gradient(memory, of, at),
            ("slackline_train_deltas", ModelParameters::Layer(of)) => deltas(memory, of, at),
            (other, _) => panic!("no kernel {other} of these parameters"),
        }
    }
}

fn input(memory: &mut Memory<'_>, of: &LayerParameters, example: usize, column: usize) -> f32 {
    let row = row(memory, of.rows, example);
    load(memory, of.inputs, row * of.columns as usize + column)
}

fn linear(memory: &mut Memory<'_>, of: &LayerParameters, at: usize) {
    let (units, columns) = (of.units as usize, of.columns as usize);
    let (example, unit) = (at / units, at % units);
    let mut output = load(memory, of.parameters, units * columns + unit);
    for column in 0..columns {
        output += load(memory, of.parameters, unit * columns + column) * input(memory, of, example, column);
    }
    store(memory, of.outputs, at, if of.relu != 0 && output < 0.0 { 0.0 } else { output });
}

fn softmax(memory: &mut Memory<'_>, of: &SoftmaxParameters, example: usize) {
    let classes = of.classes as usize;
    let row = row(memory, of.rows, example);
    let label = u32::from_le_bytes(memory.load(of.labels + 4 * row as u64)) as usize;
    let mut scores: Vec<f32> =
        (0..classes).map(|class| load(memory, of.scores, example * classes + class)).collect();
    let highest = scores.iter().copied().fold(scores[0], |most, next| if next > most { next } else { most });
    let score = scores[label] - highest;
    scores.iter_mut().for_each(|score| *score = (*score - highest).exp());
    let sum: f32 = scores.iter().sum();
    for (class, score) in scores.iter().enumerate() {
        let less = if class == label { 1.0 } else { 0.0 };
        store(memory, of.scores, example * classes + class, (score / sum - less) * of.share);
    }
    store(memory, of.losses, example, sum.ln() - score);
}

fn gradient(memory: &mut Memory<'_>, of: &LayerParameters, at: usize) {
    let (units, columns) = (of.units as usize, of.columns as usize);
    let weights = units * columns;
    let (unit, column) = if at < weights { (at / columns, at % columns) } else { (at - weights, 0) };
    let mut sum = 0.0;
    for example in 0..of.examples as usize {
        let delta = load(memory, of.outputs, example * units + unit);
        sum += if at < weights { delta * input(memory, of, example, column) } else { delta };
    }
    store(memory, of.results, at, sum);
}

fn deltas(memory: &mut Memory<'_>, of: &LayerParameters, at: usize) {
    let (units, columns) = (of.units as usize, of.columns as usize);
    let (example, column) = (at / columns, at % columns);
    let mut sum = 0.0;
    for unit in 0..units {
        sum += load(memory, of.outputs, example * units + unit)
            * load(memory, of.parameters, unit * columns + column);
    }
    let is_off = input(memory, of, example, column) == 0.0;
    store(memory, of.results, at, if is_off { 0.0 } else { sum });
}
