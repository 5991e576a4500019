//! Folds by the kernels on the GPU, bit for bit as the library's own on processors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use slackline::Encoding;
use slackline::gpu::{Gpu, GpuError, GpuMemory};
use slackline::internals::cuda::{BareGpu, GpuFold, GpuKernels, Tickets};
use slackline::internals::kernel::{AdamParameters, Fold, Gradient, Optimizer, Pass, encode};
use slackline::internals::mem::VolatileSlice;

use super::claims::Scene;
use super::numbers::{Numbers, seed};
use super::peer::Outcome;

pub(crate) const ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::Bf16, Encoding::F16];
/// Gradients of a fold.
const COUNTS: [usize; 5] = [1, 2, 4, 7, 256];

pub(crate) fn optimizers(numbers: &mut Numbers) -> [Optimizer; 4] {
    let weight_decay = numbers.of(&[0.0, 0.01]);
    let adam = AdamParameters { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay };
    [
        Optimizer::Sgd { weight_decay },
        Optimizer::Momentum { momentum: numbers.unit(), weight_decay },
        Optimizer::Adam(adam),
        Optimizer::AdamW(adam),
    ]
}

/// A fold of a run within arrays that begin anywhere. Parameters and states are read from `arrays`; what is written was
/// filled with 0xAA before.
pub(crate) struct Case {
    pub(crate) optimizer: Optimizer,
    pub(crate) encoding: Encoding,
    pub(crate) step: u64,
    pub(crate) learning_rate: f32,
    pub(crate) run: std::ops::Range<usize>,
    elements: usize,
    pub(crate) gradients: Vec<(Vec<u8>, f32)>,
    pub(crate) arrays: Vec<Vec<u8>>,
}

impl Case {
    fn new(numbers: &mut Numbers, optimizer: Optimizer, encoding: Encoding) -> Case {
        let elements = 1 + numbers.of(&[9, 700, 100_003]) + numbers.below(9);
        let k = numbers.of(&COUNTS[..if elements > 1000 { 4 } else { 5 }]);
        let number = numbers.of(&[Numbers::wild, Numbers::tame]);
        Case::of(numbers, (optimizer, encoding), (elements, k), number)
    }

    /// So many elements of so many gradients, of such numbers.
    pub(crate) fn of(
        numbers: &mut Numbers,
        (optimizer, encoding): (Optimizer, Encoding),
        (elements, k): (usize, usize),
        number: fn(&mut Numbers) -> f32,
    ) -> Case {
        let array = |numbers: &mut Numbers, encoding: Encoding, of: fn(f32) -> f32| {
            let values: Vec<f32> = (0..elements).map(|_| of(number(numbers))).collect();
            let mut bytes = vec![0; elements * encoding.bytes()];
            encode(&values, VolatileSlice::from_mut(&mut bytes), encoding);
            bytes
        };
        let begin = numbers.below(elements.min(20));
        let run = begin..begin + 1 + numbers.below(elements - begin);
        let gradients = (0..k).map(|_| (array(numbers, encoding, |value| value), number(numbers))).collect();
        // The last state of Adam is a sum of squares.
        let kinds: [fn(f32) -> f32; 3] = [|value| value, |value| value, f32::abs];
        let arrays =
            kinds[..=optimizer.states()].iter().map(|of| array(numbers, Encoding::F32, *of)).collect();
        let (step, learning_rate) = (1 + numbers.below(1000) as u64, numbers.unit());
        Case { optimizer, encoding, step, learning_rate, run, elements, gradients, arrays }
    }

    pub(crate) fn on_processors(&self) -> Outcome<(Vec<Vec<u8>>, bool)> {
        let of = |width: usize| self.run.start * width..self.run.end * width;
        let part = of(self.encoding.bytes());
        let elements = |bytes| VolatileSlice::from_ref(bytes);
        let gradients = self.gradients.iter();
        let gradients: Vec<Gradient<'_>> = gradients
            .map(|(bytes, weight)| Gradient { elements: elements(&bytes[part.clone()]), weight: *weight })
            .collect();
        let mut written = vec![vec![0xAA; self.elements * 4]; self.arrays.len()];
        let from = self.arrays.iter().map(|array| VolatileSlice::from_ref(&array[of(4)]));
        let to = written.iter_mut().map(|array| VolatileSlice::from_mut(&mut array[of(4)]));
        let passes: Vec<Pass<'_>> = from.zip(to).map(|(from, to)| Pass { from, to }).collect();
        let fold = Fold {
            gradients: &gradients,
            encoding: self.encoding,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            step: self.step,
            parameters: passes[0],
            states: &passes[1..],
            streaming: false,
        };
        let is_finite = fold.run()?;
        Ok((written, is_finite))
    }

    /// The arrays begin `shift` elements behind an allocation.
    fn on_gpu(
        &self,
        gpu: &Gpu,
        kernels: &GpuKernels,
        bare: &mut BareGpu,
        shift: usize,
    ) -> Outcome<(Vec<Vec<u8>>, bool)> {
        let launch = |fold, ticket: &mut Tickets| kernels.launch(fold, ticket);
        let written = self.launched(gpu, kernels, bare, shift, launch)?;
        Ok((written, !kernels.has_not_finite()))
    }

    /// What is written by a launch that the caller makes.
    pub(crate) fn launched(
        &self,
        gpu: &Gpu,
        kernels: &GpuKernels,
        bare: &mut BareGpu,
        shift: usize,
        launch: impl Fn(GpuFold, &mut Tickets) -> Result<(), GpuError>,
    ) -> Outcome<Vec<Vec<u8>>> {
        kernels.clear_not_finite();
        let mut put = |bytes: &[u8], width: usize| -> Outcome<_> {
            let begin = shift * width;
            let memory = GpuMemory::allocate(gpu, begin + bytes.len())?;
            let slice = memory.slice(begin, bytes.len())?;
            bare.write(&slice, bytes)?;
            Ok(slice)
        };
        let width = self.encoding.bytes();
        let gradients = self.gradients.iter();
        let gradients = gradients.map(|(bytes, weight)| Ok((put(bytes, width)?, *weight)));
        let gradients = gradients.collect::<Outcome<_>>()?;
        let mut arrays = Vec::new();
        for array in &self.arrays {
            arrays.push((put(array, 4)?, put(&vec![0xAA; array.len()], 4)?));
        }
        let fold = GpuFold {
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            step: self.step,
            encoding: self.encoding,
            gradients,
            arrays: arrays.iter().cloned().collect(),
            elements: self.run.clone(),
        };
        let mut ticket = Tickets::default();
        launch(fold, &mut ticket)?;
        while !ticket.are_done()? {
            std::hint::spin_loop();
        }
        let written: Result<_, _> = arrays.iter().map(|(_, to)| bare.read(to)).collect();
        Ok(written?)
    }
}

pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// A NaN equals every NaN: its sign and its payload are unspecified.
fn are_equal(ours: f32, theirs: f32) -> bool {
    ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan())
}

pub(crate) fn folds_have_the_bits_that_processors_make(scene: &Scene) -> Outcome<()> {
    let seed = seed();
    let mut numbers = Numbers(seed);
    let mut bare = BareGpu::new(&scene.gpu, 1 << 20)?;
    // The driver compiles them when they are loaded, which takes seconds.
    let mut loaded = HashMap::new();
    for encoding in ENCODINGS {
        for optimizer in (0..scene.folds).flat_map(|_| optimizers(&mut numbers)).collect::<Vec<_>>() {
            let case = Case::new(&mut numbers, optimizer, encoding);
            let shift = numbers.of(&[0, 0, 1, 2, 5]);
            let kernels = match loaded.entry(optimizer.name()) {
                Entry::Occupied(kernels) => kernels.into_mut(),
                Entry::Vacant(free) => free.insert(GpuKernels::load(&scene.gpu, &optimizer)?),
            };
            let (ours, ours_is_finite) = case.on_gpu(&scene.gpu, kernels, &mut bare, shift)?;
            let (theirs, is_finite) = case.on_processors()?;
            let of = || format!("{optimizer:?}, {encoding:?}, {:?}, shift {shift}, seed {seed}", case.run);
            for (array, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let other = floats(ours).zip(floats(theirs)).position(|(one, other)| !are_equal(one, other));
                assert_eq!(other, None, "array {array}, {}", of());
            }
            assert_eq!(ours_is_finite, is_finite, "{}", of());
        }
    }
    println!("note: {} folds, seed {seed}", 12 * scene.folds);
    Ok(())
}
