//! What kernels on the GPU measure and compute, against sums in float64, and conversions, bit for bit.

use slackline::gpu::GpuMemory;
use slackline::internals::cuda::{BareGpu, GpuKernels};
use slackline::internals::kernel::{Optimizer, decode, encode};
use slackline::internals::mem::VolatileSlice;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, ElementType, Encoding, Shm, Table, VersionTag};

use super::claims::Scene;
use super::folds::{Case, ENCODINGS, floats, optimizers};
use super::numbers::{Numbers, seed};
use super::peer::{Outcome, PATIENCE};

/// What `docs/gpu.md` promises of moments, and of parameters.
const OF_MOMENTS: f64 = 2e-6;
const OF_PARAMETERS: f64 = 1e-6;

/// The gradients' elements in the run, as f32, with their weights.
fn gradients_of(case: &Case) -> Vec<(Vec<f32>, f32)> {
    let width = case.encoding.bytes();
    let part = case.run.start * width..case.run.end * width;
    let values = |bytes: &Vec<u8>| {
        let mut values = vec![0.0; case.run.len()];
        decode(VolatileSlice::from_ref(&bytes[part.clone()]), case.encoding, &mut values);
        values
    };
    case.gradients.iter().map(|(bytes, weight)| (values(bytes), *weight)).collect()
}

/// The squares of the weighted sum, whose elements are f32, and of each gradient, in float64.
fn squares_of(case: &Case) -> [f64; 2] {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let (mut sums, mut of_each) = (vec![-0.0_f32; case.run.len()], 0.0);
    for (values, weight) in gradients_of(case) {
        for (sum, value) in sums.iter_mut().zip(&values) {
            *sum += weight * value;
        }
        of_each += values.into_iter().map(square).sum::<f64>();
    }
    [sums.into_iter().map(square).sum(), of_each]
}

pub(crate) fn measured_folds_agree_with_sums_in_float64(scene: &Scene) -> Outcome<()> {
    let seed = seed();
    let mut numbers = Numbers(seed);
    let mut bare = BareGpu::new(&scene.gpu, 4 << 20)?;
    let mut worst = 0.0_f64;
    for optimizer in optimizers(&mut numbers) {
        let kernels = GpuKernels::load_measuring(&scene.gpu, &optimizer)?;
        for (encoding, cell) in
            ENCODINGS.into_iter().flat_map(|e| (0..scene.folds.div_ceil(4)).map(move |n| (e, n)))
        {
            // More than the lanes take at once, in the last case of the simplest rule.
            let is_long = optimizer.states() == 0 && cell == 0;
            let elements = if is_long { 600_000 } else { numbers.of(&[1, 700, 100_003]) } + numbers.below(9);
            let k = if is_long { 2 } else { numbers.of(&[1, 2, 4, 7]) };
            let case = Case::of(&mut numbers, (optimizer, encoding), (elements, k), Numbers::tame);
            let shift = numbers.of(&[0, 1, 5]);
            let written = case.launched(&scene.gpu, &kernels, &mut bare, shift, |fold, ticket| {
                kernels.launch_measured(fold, cell, ticket)
            })?;
            let of =
                || format!("{optimizer:?}, {encoding:?}, {:?}, {k}, shift {shift}, seed {seed}", case.run);
            let (expected, _) = case.on_processors()?;
            let same = written.iter().zip(&expected).all(|(ours, theirs)| {
                let pairs = floats(ours).zip(floats(theirs));
                pairs.into_iter().all(|(one, other)| one.to_bits() == other.to_bits())
            });
            assert!(same, "to measure changes what is folded: {}", of());
            for (found, expected) in kernels.measured(cell).into_iter().zip(squares_of(&case)) {
                let off = (found - expected).abs() / expected;
                assert!(off <= OF_MOMENTS, "{found} for {expected}, {}", of());
                worst = worst.max(off);
            }
        }
    }
    println!("note: moments are within {worst:.1e} of float64, seed {seed}");
    Ok(())
}

/// One step from `p` with state `[m, v]`, in float64, and the magnitude that its error is compared with.
fn step_of(case: &Case, sum: f64, p: f64, [m, v]: [f64; 2]) -> (f64, f64) {
    let rate = f64::from(case.learning_rate);
    let (next, step) = match case.optimizer {
        Optimizer::Sgd { weight_decay } => (p, rate * (sum + f64::from(weight_decay) * p)),
        Optimizer::Momentum { momentum, weight_decay } => {
            (p, rate * (f64::from(momentum) * m + sum + f64::from(weight_decay) * p))
        }
        Optimizer::Adam(a) | Optimizer::AdamW(a) => {
            let is_decoupled = matches!(case.optimizer, Optimizer::AdamW(_));
            let [b1, b2, decay] = [a.beta1, a.beta2, a.weight_decay].map(f64::from);
            let (g, p) = if is_decoupled { (sum, p - rate * decay * p) } else { (sum + decay * p, p) };
            let (m, v) = (b1 * m + (1.0 - b1) * g, b2 * v + (1.0 - b2) * g * g);
            let [c1, c2] = [b1, b2].map(|beta| 1.0 - beta.powf(case.step as f64));
            (p, rate / c1 * m / (v.sqrt() / c2.sqrt() + f64::from(a.epsilon)))
        }
    };
    (next - step, p.abs() + step.abs())
}

pub(crate) fn folds_are_within_a_millionth_of_float64(scene: &Scene) -> Outcome<()> {
    let seed = seed();
    let mut numbers = Numbers(seed);
    let mut bare = BareGpu::new(&scene.gpu, 1 << 20)?;
    let mut worst = 0.0_f64;
    for optimizer in optimizers(&mut numbers) {
        let kernels = GpuKernels::load(&scene.gpu, &optimizer)?;
        for encoding in ENCODINGS.into_iter().flat_map(|e| std::iter::repeat_n(e, scene.folds.div_ceil(4))) {
            let (elements, k) = (1 + numbers.below(20_000), 1 + numbers.below(4));
            // Above 0, so that nothing but the step itself is a difference.
            let number = |numbers: &mut Numbers| numbers.unit() + 2f32.powi(-8);
            let case = Case::of(&mut numbers, (optimizer, encoding), (elements, k), number);
            let launch = |fold, ticket: &mut _| kernels.launch(fold, ticket);
            let written = case.launched(&scene.gpu, &kernels, &mut bare, 0, launch)?;
            let ours: Vec<f32> = floats(&written[0]).collect();
            let before: Vec<Vec<f32>> = case.arrays.iter().map(|array| floats(array).collect()).collect();
            let gradients = gradients_of(&case);
            for (index, at) in case.run.clone().enumerate() {
                let term = |(values, weight): &(Vec<f32>, f32)| f64::from(values[index]) * f64::from(*weight);
                let state = |array: usize| before.get(array).map_or(0.0, |array| f64::from(array[at]));
                let sum = gradients.iter().map(term).sum();
                let (expected, magnitude) = step_of(&case, sum, state(0), [state(1), state(2)]);
                let off = (f64::from(ours[at]) - expected).abs() / magnitude;
                let of = || format!("{optimizer:?}, {encoding:?}, {k} gradients, element {at}, seed {seed}");
                assert!(off <= OF_PARAMETERS, "{} for {expected}, {}", ours[at], of());
                worst = worst.max(off);
            }
        }
    }
    println!("note: parameters are within {worst:.1e} of float64, seed {seed}");
    Ok(())
}

pub(crate) fn halves_are_published_with_the_bits_that_processors_make(scene: &Scene) -> Outcome<()> {
    let seed = seed();
    let mut numbers = Numbers(seed);
    let gpu = &scene.gpu;
    let mut bare = BareGpu::new(gpu, 1 << 20)?;
    for round in 0..scene.folds {
        let elements = numbers.of(&[1, 1023, 100_003]) + numbers.below(9);
        // Elements, not bytes, decide where a payload of halves may begin.
        let (shift, offset) = (numbers.below(5), 2 * numbers.below(5));
        let table = Table::flat((offset + 2 * elements + 1) as u64, ElementType::U8)?;
        let transport = if round % 2 == 0 { Shm::new().with_gpu(gpu) } else { Shm::new() };
        let publisher =
            Publisher::new(transport.clone(), &Address::random(), table, PublisherOptions::default())?;
        let publisher = publisher.into_background()?;
        let options = ReaderOptions::default();
        let mut reader = Reader::connect(transport, &publisher.address(), options, PATIENCE)?;
        let memory = GpuMemory::allocate(gpu, 4 * (shift + elements))?;
        let weights = memory.slice(4 * shift, 4 * elements)?;
        for encoding in [Encoding::Bf16, Encoding::F16] {
            let values: Vec<f32> = (0..elements).map(|_| numbers.wild()).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            bare.write(&weights, &bytes)?;
            let mut draft = publisher.draft(PATIENCE)?;
            draft.encode_from_gpu(offset as u64, &weights, encoding, &bare.stream()?)?;
            let version = draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)?;
            let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE)?;
            let mut expected = vec![0; 2 * elements];
            encode(&values, VolatileSlice::from_mut(&mut expected), encoding);
            let found = &snapshot.bytes()[offset..][..2 * elements];
            let other = found.chunks(2).zip(expected.chunks(2)).position(|(one, other)| one != other);
            let of = || format!("{encoding:?}, {elements} elements, {shift} and {offset}, seed {seed}");
            assert_eq!(other.map(|at| values[at].to_bits()), None, "{}", of());
        }
    }
    Ok(())
}
