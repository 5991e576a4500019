//! The kernels of models, as plain loops over one result after the other: what `cuda/train.cuh` says.

use std::ops::Range;

use super::super::driver::DevicePointer;
use super::super::model::{LayerParameters, ModelParameters, SoftmaxParameters};
use super::kernel::{load, store};
use super::work::ScriptedMemory;

/// The row of an example.
fn row(device: &mut ScriptedMemory, rows: DevicePointer, example: usize) -> usize {
    if rows == 0 {
        return example;
    }
    let bytes = device.at(rows + 8 * example as u64, 8).expect("rows that are allocated");
    u64::from_le_bytes(bytes.try_into().expect("eight bytes")) as usize
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
    device: &mut ScriptedMemory,
    name: &str,
    parameters: &ModelParameters,
    results: Range<usize>,
) {
    for at in results {
        match (name, parameters) {
            ("slackline_train_softmax", ModelParameters::Softmax(of)) => softmax(device, of, at),
            ("slackline_train_linear", ModelParameters::Layer(of)) => linear(device, of, at),
            ("slackline_train_gradient", ModelParameters::Layer(of)) => gradient(device, of, at),
            ("slackline_train_deltas", ModelParameters::Layer(of)) => deltas(device, of, at),
            (other, _) => panic!("no kernel {other} of these parameters"),
        }
    }
}

fn input(device: &mut ScriptedMemory, of: &LayerParameters, example: usize, column: usize) -> f32 {
    let row = row(device, of.rows, example);
    load(device, of.inputs, row * of.columns as usize + column)
}

fn linear(device: &mut ScriptedMemory, of: &LayerParameters, at: usize) {
    let (units, columns) = (of.units as usize, of.columns as usize);
    let (example, unit) = (at / units, at % units);
    let mut output = load(device, of.parameters, units * columns + unit);
    for column in 0..columns {
        output += load(device, of.parameters, unit * columns + column) * input(device, of, example, column);
    }
    store(device, of.outputs, at, if of.relu != 0 && output < 0.0 { 0.0 } else { output });
}

fn softmax(device: &mut ScriptedMemory, of: &SoftmaxParameters, example: usize) {
    let classes = of.classes as usize;
    let row = row(device, of.rows, example);
    let bytes = device.at(of.labels + 4 * row as u64, 4).expect("labels that are allocated");
    let label = u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize;
    let mut scores: Vec<f32> =
        (0..classes).map(|class| load(device, of.scores, example * classes + class)).collect();
    let highest = scores.iter().copied().fold(scores[0], |most, next| if next > most { next } else { most });
    let score = scores[label] - highest;
    scores.iter_mut().for_each(|score| *score = (*score - highest).exp());
    let sum: f32 = scores.iter().sum();
    for (class, score) in scores.iter().enumerate() {
        let less = if class == label { 1.0 } else { 0.0 };
        store(device, of.scores, example * classes + class, (score / sum - less) * of.share);
    }
    store(device, of.losses, example, sum.ln() - score);
}

fn gradient(device: &mut ScriptedMemory, of: &LayerParameters, at: usize) {
    let (units, columns) = (of.units as usize, of.columns as usize);
    let weights = units * columns;
    let (unit, column) = if at < weights { (at / columns, at % columns) } else { (at - weights, 0) };
    let mut sum = 0.0;
    for example in 0..of.examples as usize {
        let delta = load(device, of.outputs, example * units + unit);
        sum += if at < weights { delta * input(device, of, example, column) } else { delta };
    }
    store(device, of.results, at, sum);
}

fn deltas(device: &mut ScriptedMemory, of: &LayerParameters, at: usize) {
    let (units, columns) = (of.units as usize, of.columns as usize);
    let (example, column) = (at / columns, at % columns);
    let mut sum = 0.0;
    for unit in 0..units {
        sum += load(device, of.outputs, example * units + unit)
            * load(device, of.parameters, unit * columns + column);
    }
    let is_off = input(device, of, example, column) == 0.0;
    store(device, of.results, at, if is_off { 0.0 } else { sum });
}
