//! The kernels, as plain loops over one element after the other: what `cuda/fold.cuh` and `cuda/encode.cuh` say.

use std::ffi::c_void;
use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use super::super::driver::DevicePointer;
use super::super::encode::EncodeParameters;
use super::super::fold::FoldParameters;
use super::super::kernels::{GROUP, LANES, LaneParameters, SUMS, groups};
use super::super::model::{LayerParameters, SoftmaxParameters};
use super::super::publish::PublishParameters;
use super::host::ScriptedHost;
use super::memory::ScriptedMemory;
use super::model::{self, ModelParameters};
use crate::mem::fence;

/// A kernel that was launched, with its parameter.
pub(super) enum ScriptedKernel {
    Fold { name: String, parameters: Box<FoldParameters> },
    Moments(LaneParameters),
    Encode { is_bf16: bool, parameters: EncodeParameters },
    Model { name: String, parameters: ModelParameters },
    Publish(PublishParameters),
}

impl ScriptedKernel {
    /// The kernel of this name, if its parameter has so many bytes.
    ///
    /// # Safety
    /// The parameter has so many bytes.
    pub(super) unsafe fn new(name: String, parameter: *const c_void, bytes: usize) -> Option<ScriptedKernel> {
        if name.starts_with("slackline_fold_") && bytes == size_of::<FoldParameters>() {
            // SAFETY: of this length, which no other parameter has.
            let parameters = Box::new(unsafe { parameter.cast::<FoldParameters>().read() });
            return Some(ScriptedKernel::Fold { name, parameters });
        }
        if name == "slackline_moments" && bytes == size_of::<LaneParameters>() {
            // SAFETY: as above.
            return Some(ScriptedKernel::Moments(unsafe { parameter.cast::<LaneParameters>().read() }));
        }
        if name == "slackline_publish_versions" && bytes == size_of::<PublishParameters>() {
            // SAFETY: as above.
            return Some(ScriptedKernel::Publish(unsafe { parameter.cast::<PublishParameters>().read() }));
        }
        if name == "slackline_train_softmax" && bytes == size_of::<SoftmaxParameters>() {
            // SAFETY: as above.
            let parameters =
                ModelParameters::Softmax(unsafe { parameter.cast::<SoftmaxParameters>().read() });
            return Some(ScriptedKernel::Model { name, parameters });
        }
        if name.starts_with("slackline_train_") && bytes == size_of::<LayerParameters>() {
            // SAFETY: as above.
            let parameters = ModelParameters::Layer(unsafe { parameter.cast::<LayerParameters>().read() });
            return Some(ScriptedKernel::Model { name, parameters });
        }
        let is_bf16 = name.strip_prefix("slackline_encode_")? == "bf16";
        (bytes == size_of::<EncodeParameters>()).then(|| {
            // SAFETY: as above.
            let parameters = unsafe { parameter.cast::<EncodeParameters>().read() };
            ScriptedKernel::Encode { is_bf16, parameters }
        })
    }

    /// The elements that it goes through.
    pub(super) fn count(&self) -> usize {
        match self {
            ScriptedKernel::Fold { parameters, .. } => parameters.count as usize,
            ScriptedKernel::Moments(_) => SUMS,
            ScriptedKernel::Encode { parameters, .. } => parameters.count as usize,
            ScriptedKernel::Model { name, parameters } => model::results(name, parameters),
            ScriptedKernel::Publish(parameters) => parameters.words as usize,
        }
    }

    /// True if it begins again once it has gone through all of them: one that publishes, with the next version.
    pub(super) fn goes_on(&mut self, memory: &Memory<'_>) -> bool {
        let ScriptedKernel::Publish(parameters) = self else { return false };
        parameters.version += 1;
        parameters.frame = (parameters.frame + 1) % parameters.count;
        memory.host_word(parameters.stop) == 0
    }

    /// True unless it folds arrays at an address that the device has no memory at.
    pub(super) fn is_there(&self, device: &ScriptedMemory) -> bool {
        match self {
            ScriptedKernel::Fold { parameters, .. } => device.range(parameters.from[0]).is_some(),
            ScriptedKernel::Moments(_)
            | ScriptedKernel::Encode { .. }
            | ScriptedKernel::Model { .. }
            | ScriptedKernel::Publish(_) => true,
        }
    }

    /// An address in each array that it reads or writes.
    pub(super) fn addresses(&self) -> Vec<DevicePointer> {
        let mut addresses = match self {
            ScriptedKernel::Fold { parameters: of, .. } => {
                let (gradients, others) = (of.gradients as usize, [of.not_finite, of.squares]);
                [&of.from[..], &of.to[..], &of.elements[..gradients], &others[..]].concat()
            }
            ScriptedKernel::Moments(of) => vec![of.lanes, of.sums],
            ScriptedKernel::Encode { parameters: of, .. } => vec![of.from, of.to],
            ScriptedKernel::Model { parameters, .. } => parameters.addresses(),
            ScriptedKernel::Publish(of) => vec![of.stop, of.latest, of.headers, of.frames],
        };
        // An array that it has not.
        addresses.retain(|address| *address != 0);
        addresses
    }

    /// Goes through a part of them, of which there may be several, in order.
    pub(super) fn run(&self, part: Range<usize>, memory: &mut Memory<'_>) {
        match self {
            ScriptedKernel::Fold { name, parameters } => {
                let kernel = name.strip_prefix("slackline_fold_").expect("a kernel that folds");
                let (rule, element) = kernel.split_once('_').expect("a rule and a type");
                let (element, measures) =
                    element.strip_suffix("_measured").map_or((element, false), |element| (element, true));
                let begin = parameters.offset as usize;
                let is_last = part.end == self.count();
                if part.start == 0 {
                    expect_apart(element, parameters);
                }
                fold(memory, (rule, element), parameters, begin + part.start..begin + part.end);
                // As late as may be: what it measures is read again at the end.
                if measures && is_last {
                    measure(memory, element, parameters);
                }
            }
            ScriptedKernel::Moments(parameters) => moments(memory, parameters, part),
            ScriptedKernel::Model { name, parameters } => model::compute(memory, name, parameters, part),
            ScriptedKernel::Publish(parameters) => {
                publish(memory, parameters, part.clone(), part.end == self.count());
            }
            ScriptedKernel::Encode { is_bf16, parameters } => {
                let begin = parameters.offset as usize;
                for index in begin + part.start..begin + part.end {
                    let value = load(memory, parameters.from, index);
                    let half = match is_bf16 {
                        true => half::bf16::from_f32(value).to_bits(),
                        false => half::f16::from_f32(value).to_bits(),
                    };
                    memory.store(parameters.to + 2 * index as u64, &half.to_le_bytes());
                }
            }
        }
    }
}

/// Fails the test if a fold writes what it reads: its kernels do not say which of both comes first.
fn expect_apart(element: &str, of: &FoldParameters) {
    let range = |array: DevicePointer, width: u64| {
        let begin = array + width * of.offset;
        begin..begin + width * of.count
    };
    let arrays =
        |of: &[DevicePointer]| of.iter().filter(|array| **array != 0).map(|array| range(*array, 4)).collect();
    let mut read: Vec<_> = arrays(&of.from);
    let width = if element == "f32" { 4 } else { 2 };
    read.extend(of.elements[..of.gradients as usize].iter().map(|gradient| range(*gradient, width)));
    let written: Vec<_> = arrays(&of.to);
    let is_apart = |to: &Range<u64>| read.iter().all(|from| from.end <= to.start || to.end <= from.start);
    assert!(written.iter().all(is_apart), "a fold writes what it reads");
}

/// The memory that a kernel reaches.
pub(super) struct Memory<'a> {
    pub(super) device: &'a mut ScriptedMemory,
    pub(super) registered: &'a ScriptedHost,
    /// The device that runs it.
    pub(super) by: i32,
}

impl Memory<'_> {
    /// A word of the host's that it may be reading or writing, too.
    fn host_word(&self, address: DevicePointer) -> u64 {
        let mut word = [0; 8];
        self.registered.read(self.by, address as usize, &mut word);
        u64::from_le_bytes(word)
    }

    pub(super) fn load<const N: usize>(&self, address: DevicePointer) -> [u8; N] {
        let bytes = self.device.read(address, N).expect("an element of an array that is allocated");
        bytes.try_into().expect("as many bytes")
    }

    /// Writes memory of the device, or host memory that is registered.
    pub(super) fn store(&mut self, address: DevicePointer, bytes: &[u8]) {
        match self.device.write(address, bytes.len()) {
            Some(to) => to.copy_from_slice(bytes),
            None => self.registered.write(self.by, address as usize, bytes),
        }
    }
}

pub(super) fn load(memory: &mut Memory<'_>, array: DevicePointer, index: usize) -> f32 {
    f32::from_le_bytes(memory.load(array + 4 * index as u64))
}

/// The element of a gradient of this type.
fn element_of(memory: &mut Memory<'_>, element: &str, array: DevicePointer, index: usize) -> f32 {
    let half = |memory: &mut Memory<'_>| u16::from_le_bytes(memory.load(array + 2 * index as u64));
    match element {
        "f32" => load(memory, array, index),
        "bf16" => half::bf16::from_bits(half(memory)).to_f32(),
        "f16" => half::f16::from_bits(half(memory)).to_f32(),
        other => panic!("no type {other}"),
    }
}

/// The weighted sum of the gradients' elements at `index`, and the squares of each.
fn sum(
    memory: &mut Memory<'_>,
    element: &str,
    parameters: &FoldParameters,
    index: usize,
    mut see: impl FnMut(usize, f32),
) -> f32 {
    let mut sum = 0.0_f32;
    for j in 0..parameters.gradients as usize {
        let value = element_of(memory, element, parameters.elements[j], index);
        see(j, value);
        let term = parameters.weights[j] * value;
        sum = if j == 0 { term } else { sum + term };
    }
    sum
}

/// The squares of each lane of a fold.
fn measure(memory: &mut Memory<'_>, element: &str, parameters: &FoldParameters) {
    let (offset, count) = (parameters.offset as usize, parameters.count as usize);
    let (first, groups) = (offset / GROUP, groups(parameters.offset, parameters.count));
    for lane in 0..groups.min(LANES) {
        let [mut of_sum, mut of_each] = [0.0_f64; 2];
        for group in (lane..groups).step_by(LANES) {
            let begin = (first + group) * GROUP;
            let (mut sums, mut each) = (0.0_f32, vec![0.0_f32; parameters.gradients as usize]);
            for index in begin.max(offset)..(begin + GROUP).min(offset + count) {
                let sum = sum(memory, element, parameters, index, |j, value| each[j] += value * value);
                sums += sum * sum;
            }
            each.into_iter().for_each(|square| of_each += f64::from(square));
            of_sum += f64::from(sums);
        }
        let at = parameters.squares + 16 * lane as u64;
        memory.store(at, &of_sum.to_le_bytes());
        memory.store(at + 8, &of_each.to_le_bytes());
    }
}

/// These of the sums of all lanes.
fn moments(memory: &mut Memory<'_>, parameters: &LaneParameters, part: Range<usize>) {
    for at in part {
        for half in [0, 8] {
            let lanes = (at..parameters.count as usize).step_by(SUMS);
            let square =
                |lane: usize| f64::from_le_bytes(memory.load(parameters.lanes + 16 * lane as u64 + half));
            let sum = lanes.map(square).fold(0.0, |sum, square| sum + square);
            memory.store(parameters.sums + 16 * at as u64 + half, &sum.to_le_bytes());
        }
    }
}

/// Writes these words of the next version, and before the first what says so, and announces it behind the last.
fn publish(memory: &mut Memory<'_>, parameters: &PublishParameters, part: Range<usize>, is_last: bool) {
    let version = parameters.version + 1;
    let frame = u64::from((parameters.frame + 1) % parameters.count);
    let header = parameters.headers + 64 * frame;
    let (registered, by) = (memory.registered, memory.by);
    if part.start == 0 {
        registered.store(by, header as usize, (memory.host_word(header) + 1) | 1);
        fence(SeqCst);
        registered.store(by, header as usize + 8, version);
    }
    let begin = parameters.frames + 8 * parameters.stride * frame;
    memory.store(begin + 8 * part.start as u64, &vec![(version % 251) as u8; 8 * part.len()]);
    if is_last {
        registered.store(by, header as usize, memory.host_word(header) + 1);
        registered.store(by, parameters.latest as usize, version << 8 | frame);
    }
}

/// Folds these elements by the kernel of this rule and type.
fn fold(
    memory: &mut Memory<'_>,
    (rule, element): (&str, &str),
    parameters: &FoldParameters,
    elements: Range<usize>,
) {
    for index in elements {
        let sum = sum(memory, element, parameters, index, |_, _| {});
        let states = match rule {
            "sgd" => 0,
            "momentum" => 1,
            _ => 2,
        };
        let mut values = [0.0; 3];
        for (value, from) in values.iter_mut().zip(parameters.from).take(1 + states) {
            *value = load(memory, from, index);
        }
        let results = step(rule, parameters, sum, values);
        for (result, to) in results.into_iter().zip(parameters.to).take(1 + states) {
            memory.store(to + 4 * index as u64, &result.to_le_bytes());
        }
        // The parameter and the second moment, which is 0 where there is none.
        if !(results[0].is_finite() && results[2].is_finite()) {
            memory.store(parameters.not_finite, &1_u32.to_le_bytes());
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
