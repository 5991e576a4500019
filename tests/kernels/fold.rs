//! One fold, by a kernel and by `src/kernel`.

use slackline::Encoding;
use slackline::internals::kernel::{Fold, Gradient, MAX_GRADIENTS, Optimizer, Pass, encode};
use slackline::internals::mem::VolatileSlice;

use crate::device::{Block, Buffer, Device};
use crate::numbers::Numbers;

/// Offsets in `slackline_fold` of `cuda/abi.h`, and its length.
mod at {
    pub(super) const COUNT: usize = 8;
    pub(super) const FROM: usize = 16;
    pub(super) const TO: usize = 40;
    pub(super) const NOT_FINITE: usize = 64;
    pub(super) const SQUARES: usize = 72;
    pub(super) const GRADIENTS: usize = 80;
    pub(super) const CONSTANTS: usize = 84;
    pub(super) const WEIGHTS: usize = 128;
    pub(super) const ELEMENTS: usize = 1152;
    pub(super) const LEN: usize = 3200;
}

/// Elements of four that begin at a multiple of four.
const GROUP: usize = 4;
/// `SLACKLINE_LANES`.
pub(crate) const LANES: usize = 131_072;

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) optimizer: Optimizer,
    pub(crate) encoding: Encoding,
    pub(crate) rate: f32,
    pub(crate) step: u64,
    /// The run, and the elements of the arrays.
    pub(crate) offset: usize,
    pub(crate) count: usize,
    pub(crate) elements: usize,
    pub(crate) launch: (u32, u32),
    /// How far in elements the gradients, what is read and what is written begin behind a multiple of 64 bytes.
    pub(crate) shifts: [usize; 3],
    pub(crate) weights: Vec<f32>,
    pub(crate) gradients: Vec<Vec<u8>>,
    /// Parameters and states.
    pub(crate) arrays: [Vec<u8>; 3],
}

/// What came of a fold.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Parameters and states, whole arrays.
    pub(crate) arrays: Vec<Vec<u8>>,
    pub(crate) finite: bool,
    /// Sums of each lane, if it was measured.
    pub(crate) squares: Vec<[f64; 2]>,
}

impl Case {
    /// A case of `k` gradients over `elements` elements, of numbers that `number` gives.
    pub(crate) fn new(
        numbers: &mut Numbers,
        (optimizer, encoding, k): (Optimizer, Encoding, usize),
        elements: usize,
        number: fn(&mut Numbers) -> f32,
    ) -> Case {
        let array = |numbers: &mut Numbers, encoding: Encoding, of: fn(f32) -> f32| {
            let values: Vec<f32> = (0..elements).map(|_| of(number(numbers))).collect();
            let mut bytes = vec![0; elements * encoding.bytes()];
            encode(&values, VolatileSlice::from_mut(&mut bytes), encoding);
            bytes
        };
        let offset = numbers.below(elements.min(20));
        Case {
            optimizer,
            encoding,
            rate: numbers.unit(),
            step: 1 + numbers.below(1000) as u64,
            offset,
            count: 1 + numbers.below(elements - offset),
            elements,
            launch: numbers.of(&[(1, 1), (1, 32), (3, 64), (2, 256), (40, 96)]),
            shifts: numbers.of(&[
                [0, 0, 0],
                [0, 0, 0],
                [4, 8, 12],
                [1, 0, 0],
                [0, 3, 0],
                [0, 0, 1],
                [5, 7, 9],
            ]),
            weights: (0..k).map(|_| number(numbers)).collect(),
            gradients: (0..k).map(|_| array(numbers, encoding, |value| value)).collect(),
            arrays: [|value| value, |value| value, f32::abs].map(|of| array(numbers, Encoding::F32, of)),
        }
    }

    fn states(&self) -> usize {
        self.optimizer.states()
    }

    pub(crate) fn groups(&self) -> usize {
        (self.offset + self.count).div_ceil(GROUP) - self.offset / GROUP
    }

    pub(crate) fn kernel(&self) -> String {
        let encoding = format!("{:?}", self.encoding).to_lowercase();
        format!("slackline_fold_{}_{encoding}", self.optimizer.name())
    }

    /// Runs the kernel. What is written was filled with 0xAA before.
    pub(crate) fn on_device(&self, device: &mut Device, measured: bool) -> Option<Outcome> {
        let [of_gradients, of_sources, of_targets] = self.shifts;
        let mut block = Block::new(at::LEN);
        let mut buffers = Vec::new();
        let mut add = |block: &mut Block, at: usize, shift: usize, bytes: Vec<u8>| {
            block.put_address(at, buffers.len());
            buffers.push(Buffer { shift, bytes });
        };
        for state in 0..=self.states() {
            add(&mut block, at::FROM + state * 8, of_sources * 4, self.arrays[state].clone());
            add(&mut block, at::TO + state * 8, of_targets * 4, vec![0xAA; self.elements * 4]);
        }
        for (index, (weight, elements)) in self.weights.iter().zip(&self.gradients).enumerate() {
            block.put(at::WEIGHTS + index * 4, weight.to_le_bytes());
            let shift = of_gradients * self.encoding.bytes();
            add(&mut block, at::ELEMENTS + index * 8, shift, elements.clone());
        }
        add(&mut block, at::NOT_FINITE, 0, vec![0; 4]);
        let lanes = if measured { self.groups().min(LANES) } else { 0 };
        add(&mut block, at::SQUARES, 0, vec![0xAA; lanes * 16]);
        block.put(0, (self.offset as u64).to_le_bytes());
        block.put(at::COUNT, (self.count as u64).to_le_bytes());
        block.put(at::GRADIENTS, u32::try_from(self.weights.len()).expect("few").to_le_bytes());
        for (index, constant) in self.constants().into_iter().enumerate() {
            block.put(at::CONSTANTS + index * 4, constant.to_le_bytes());
        }
        let kernel = self.kernel() + if measured { "_measured" } else { "" };
        device.launch(&kernel, self.launch, &mut buffers, &block)?;
        let squares = buffers.pop()?.bytes;
        let not_finite = buffers.pop()?.bytes;
        assert!([[0; 4], [1, 0, 0, 0]].iter().any(|word| not_finite == word), "{not_finite:?}");
        Some(Outcome {
            arrays: (0..=self.states()).map(|state| buffers[2 * state + 1].bytes.clone()).collect(),
            finite: not_finite[0] == 0,
            squares: pairs(&squares),
        })
    }

    /// The constants in the order of `cuda/abi.h`, as the formulas of [`Optimizer`] say: in f64, rounded once.
    fn constants(&self) -> [f32; 10] {
        let rate = self.rate;
        match self.optimizer {
            Optimizer::Sgd { weight_decay } => [rate, weight_decay, 0., 0., 0., 0., 0., 0., 0., 0.],
            Optimizer::Momentum { momentum, weight_decay } => {
                [rate, weight_decay, momentum, 0., 0., 0., 0., 0., 0., 0.]
            }
            Optimizer::Adam(adam) | Optimizer::AdamW(adam) => {
                let decoupled = matches!(self.optimizer, Optimizer::AdamW(_));
                let [b1, b2] = [adam.beta1, adam.beta2].map(f64::from);
                let decay = f64::from(adam.weight_decay) * if decoupled { f64::from(rate) } else { 1.0 };
                let step_size = f64::from(rate) / (1.0 - power(b1, self.step));
                let correction = (1.0 - power(b2, self.step)).sqrt();
                let [less1, less2] = [1.0 - b1, 1.0 - b2];
                let rounded =
                    [decay, 0.0, b1, less1, b2, less2, step_size, correction].map(|value| value as f32);
                let [decay, momentum, b1, less1, b2, less2, step_size, correction] = rounded;
                [rate, decay, momentum, b1, less1, b2, less2, step_size, correction, adam.epsilon]
            }
        }
    }

    /// The same by `src/kernel`.
    pub(crate) fn on_cpu(&self) -> Outcome {
        let run = self.offset * 4..(self.offset + self.count) * 4;
        let size = self.encoding.bytes();
        let part = self.offset * size..(self.offset + self.count) * size;
        let gradients: Vec<_> = self.weights.iter().zip(&self.gradients).collect();
        let gradients = gradients.into_iter().map(|(weight, elements)| Gradient {
            elements: VolatileSlice::from_ref(&elements[part.clone()]),
            weight: *weight,
        });
        let gradients: Vec<_> = gradients.collect();
        assert!(gradients.len() <= MAX_GRADIENTS);
        let mut arrays = vec![vec![0xAA; self.elements * 4]; 1 + self.states()];
        let from = self.arrays.iter().map(|array| VolatileSlice::from_ref(&array[run.clone()]));
        let to = arrays.iter_mut().map(|array| VolatileSlice::from_mut(&mut array[run.clone()]));
        let passes: Vec<_> = from.zip(to).map(|(from, to)| Pass { from, to }).collect();
        let fold = Fold {
            gradients: &gradients,
            encoding: self.encoding,
            optimizer: self.optimizer,
            learning_rate: self.rate,
            step: self.step,
            parameters: passes[0],
            states: &passes[1..],
            streaming: false,
        };
        let (moments, finite) = fold.run_measured().expect("a fold that can be");
        Outcome { arrays, finite, squares: vec![[moments.sum_norm_squared, moments.each_norm_squared]] }
    }
}

/// Every product rounded, in the order in which `src/kernel` takes them.
fn power(base: f64, exponent: u64) -> f64 {
    let squares = std::iter::successors(Some(base), |square| Some(square * square));
    let bits = (0..64 - exponent.leading_zeros()).map(|bit| exponent >> bit & 1 == 1);
    squares.zip(bits).filter(|(_, set)| *set).map(|(square, _)| square).product()
}

pub(crate) fn pairs(bytes: &[u8]) -> Vec<[f64; 2]> {
    let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
    bytes.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|pair| pair.each_ref().map(number)).collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
