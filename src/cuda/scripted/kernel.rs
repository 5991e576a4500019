//! The kernels that fold, as a plain loop over one element after the other: what `cuda/fold.cuh` says.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::super::driver::DevicePointer;
use super::super::fold::FoldParameters;
use super::work::ScriptedMemory;

pub(super) fn load(device: &mut ScriptedMemory, array: DevicePointer, index: usize) -> f32 {
    let bytes = device.at(array + 4 * index as u64, 4).expect("an element of an array that is allocated");
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

pub(super) fn store(device: &mut ScriptedMemory, array: DevicePointer, index: usize, value: f32) {
    let bytes = device.at(array + 4 * index as u64, 4).expect("an element of an array that is allocated");
    bytes.copy_from_slice(&value.to_le_bytes());
}

fn half(device: &mut ScriptedMemory, array: DevicePointer, index: usize) -> u16 {
    let bytes = device.at(array + 2 * index as u64, 2).expect("an element of an array that is allocated");
    u16::from_le_bytes(bytes.try_into().expect("two bytes"))
}

/// Folds these elements by the kernel of this name.
pub(super) fn fold(
    device: &mut ScriptedMemory,
    name: &str,
    parameters: &FoldParameters,
    elements: Range<usize>,
) {
    let kernel = name.strip_prefix("slackline_fold_").expect("a kernel that folds");
    let (rule, element) = kernel.split_once('_').expect("a rule and a type");
    for index in elements {
        let mut sum = 0.0_f32;
        for j in 0..parameters.gradients as usize {
            let array = parameters.elements[j];
            let value = match element {
                "f32" => load(device, array, index),
                "bf16" => half::bf16::from_bits(half(device, array, index)).to_f32(),
                "f16" => half::f16::from_bits(half(device, array, index)).to_f32(),
                other => panic!("no type {other}"),
            };
            let term = parameters.weights[j] * value;
            sum = if j == 0 { term } else { sum + term };
        }
        let states = match rule {
            "sgd" => 0,
            "momentum" => 1,
            _ => 2,
        };
        let mut values = [0.0; 3];
        for (value, from) in values.iter_mut().zip(parameters.from).take(1 + states) {
            *value = load(device, from, index);
        }
        let results = step(rule, parameters, sum, values);
        for (result, to) in results.into_iter().zip(parameters.to).take(1 + states) {
            store(device, to, index, result);
        }
        if !results[0].is_finite() {
            let word = std::ptr::with_exposed_provenance_mut(parameters.not_finite as usize);
            // SAFETY: a word of host memory that is registered for as long as launches are under way.
            unsafe { AtomicU32::from_ptr(word) }.store(1, Relaxed);
        }
    }
}

/// The formulas of `torch.optim`, as `Optimizer` has them: the parameter and its states.
fn step(rule: &str, of: &FoldParameters, sum: f32, [p, m, v]: [f32; 3]) -> [f32; 3] {
    match rule {
        "sgd" => {
            let g = sum + of.decay * p;
            [p - of.rate * g, 0.0, 0.0]
        }
        "momentum" => {
            let g = sum + of.decay * p;
            let m = of.momentum * m + g;
            [p - of.rate * m, m, 0.0]
        }
        "adam" | "adamw" => {
            let decayed = of.decay * p;
            let (g, p) = if rule == "adamw" { (sum, p - decayed) } else { (sum + decayed, p) };
            let m = of.beta1 * m + of.one_less_beta1 * g;
            let v = of.beta2 * v + of.one_less_beta2 * g * g;
            let denominator = v.sqrt() / of.correction + of.epsilon;
            [p - of.step_size * (m / denominator), m, v]
        }
        other => panic!("no rule {other}"),
    }
}
