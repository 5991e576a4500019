//! A fold must give the bits of a plain serial loop, on every path.

use half::{bf16, f16};
use proptest::prelude::*;

use super::lanes::Level;
use super::*;
use crate::mem::HostMemory;

pub(super) fn levels() -> Vec<Level> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only x86-64 has more levels"))]
    let mut levels = vec![Level::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
        {
            levels.push(Level::Avx2);
        }
        if is_x86_feature_detected!("avx512f") {
            levels.push(Level::Avx512);
        }
    }
    levels
}

pub(super) const OPTIMIZERS: [Optimizer; 4] = [
    Optimizer::Sgd { weight_decay: 0.01 },
    Optimizer::Momentum { momentum: 0.9, weight_decay: 0.1 },
    Optimizer::Adam(AdamParameters { weight_decay: 0.02, ..AdamParameters::DEFAULT }),
    Optimizer::AdamW(AdamParameters { weight_decay: 0.3, ..AdamParameters::DEFAULT }),
];
pub(super) const ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::Bf16, Encoding::F16];

/// The formulas of [`Optimizer`], one parameter at a time, in plain Rust.
fn reference(optimizer: Optimizer, rate: f32, t: u64, g: f32, p: f32, s: [f32; 2]) -> [f32; 3] {
    match optimizer {
        Optimizer::Sgd { weight_decay } => {
            let g = g + weight_decay * p;
            [p - rate * g, 0.0, 0.0]
        }
        Optimizer::Momentum { momentum, weight_decay } => {
            let g = g + weight_decay * p;
            let m = momentum * s[0] + g;
            [p - rate * m, m, 0.0]
        }
        Optimizer::Adam(a) | Optimizer::AdamW(a) => {
            let decoupled = matches!(optimizer, Optimizer::AdamW(_));
            let (b1, b2) = (f64::from(a.beta1), f64::from(a.beta2));
            let mut powers = (1.0, 1.0);
            for _ in 0..t {
                powers = (powers.0 * b1, powers.1 * b2);
            }
            let step_size = (f64::from(rate) / (1.0 - powers.0)) as f32;
            let correction = (1.0 - powers.1).sqrt() as f32;
            let rate_decay = (f64::from(rate) * f64::from(a.weight_decay)) as f32;
            let (g, p) = if decoupled { (g, p - rate_decay * p) } else { (g + a.weight_decay * p, p) };
            let m = a.beta1 * s[0] + ((1.0 - b1) as f32) * g;
            let v = a.beta2 * s[1] + (((1.0 - b2) as f32) * g) * g;
            [p - step_size * (m / (v.sqrt() / correction + a.epsilon)), m, v]
        }
    }
}

/// Arbitrary bits: every NaN, infinity and subnormal among many ordinary numbers.
struct Bits(u64);

impl Bits {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn number(&mut self) -> f32 {
        match self.word() % 8 {
            0 => f32::from_bits(self.word()),
            1 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::MAX, 1e-41]
                [self.word() as usize % 8],
            _ => (self.word() as f32 / 2f32.powi(31) - 1.0) * 2f32.powi(self.word() as i32 % 16),
        }
    }

    fn element(&mut self, encoding: Encoding) -> (f32, Vec<u8>) {
        let number = self.number();
        match encoding {
            Encoding::F32 => (number, number.to_le_bytes().to_vec()),
            Encoding::Bf16 => {
                let half = bf16::from_f32(number);
                (half.to_f32(), half.to_le_bytes().to_vec())
            }
            Encoding::F16 => {
                let half = f16::from_f32(number);
                (half.to_f32(), half.to_le_bytes().to_vec())
            }
        }
    }
}

fn same(one: f32, other: f32) -> bool {
    one.to_bits() == other.to_bits() || one.is_nan() && other.is_nan()
}

/// Memory for `arrays` arrays of at most 8 KiB, each at an offset of its own from a page.
struct Arrays<'a>(&'a HostMemory, usize);

impl<'a> Arrays<'a> {
    fn next(&mut self, len: usize, offset: usize) -> VolatileSlice<'a> {
        let at = self.1 * 8192;
        self.1 += 1;
        let all = self.0.as_volatile();
        all.subslice(at, 8192).write(&[0xAA; 8192]);
        all.subslice(at + 64 + offset, len)
    }
}

/// Returns whether the bytes around a destination are still as [`Arrays::next`] left them.
fn untouched(memory: &HostMemory, slice: VolatileSlice<'_>) -> bool {
    let at = slice.as_ptr().addr() - memory.as_volatile().as_ptr().addr();
    let mut around = [0; 16];
    memory.as_volatile().subslice(at - 8, 8).read(&mut around[..8]);
    memory.as_volatile().subslice(at + slice.len(), 8).read(&mut around[8..]);
    around == [0xAA; 16]
}

fn floats(slice: VolatileSlice<'_>) -> Vec<f32> {
    let mut values = vec![0.0; slice.len() / 4];
    decode(slice, Encoding::F32, &mut values);
    values
}

#[derive(Clone, Copy, Debug)]
struct Case {
    optimizer: Optimizer,
    encoding: Encoding,
    k: usize,
    count: usize,
    /// Alignment of the destinations and of everything else.
    offsets: [usize; 2],
    streaming: bool,
    step: u64,
    seed: u64,
}

/// Folds at every level and compares with the reference.
fn check(memory: &HostMemory, case: Case) -> Result<(), String> {
    let Case { optimizer, encoding, k, count, offsets: [aligned, other], streaming, step, seed } = case;
    let mut bits = Bits(seed);
    let mut arrays = Arrays(memory, 0);
    let mut sums = vec![0.0; count];
    let gradients: Vec<_> = (0..k)
        .map(|index| {
            let weight = if bits.word().is_multiple_of(8) { bits.number() } else { 1.0 / (index + 1) as f32 };
            let elements = arrays.next(count * encoding.bytes(), other + index);
            let mut bytes = Vec::new();
            for sum in &mut sums {
                let (value, encoded) = bits.element(encoding);
                bytes.extend(encoded);
                *sum = if index == 0 { weight * value } else { *sum + weight * value };
            }
            elements.write(&bytes);
            Gradient { elements, weight }
        })
        .collect();
    let passes: Vec<_> = (0..3)
        .map(|index| {
            let numbers: Vec<f32> = (0..count).map(|_| bits.number()).collect();
            let pass = Pass { from: arrays.next(count * 4, other), to: arrays.next(count * 4, aligned) };
            // The second moment is a sum of squares.
            let numbers: Vec<_> =
                if index == 2 { numbers.iter().map(|v| v.abs()).collect() } else { numbers };
            encode(&numbers, pass.from, Encoding::F32);
            pass
        })
        .collect();
    let [p, m, v] = [0, 1, 2].map(|index| floats(passes[index].from));
    for (level, measured) in levels().into_iter().flat_map(|level| [(level, false), (level, true)]) {
        for pass in &passes {
            pass.to.write(&vec![0xAA; pass.to.len()]);
        }
        let fold = Fold {
            gradients: &gradients,
            encoding,
            optimizer,
            learning_rate: 0.01,
            step,
            parameters: passes[0],
            states: &passes[1..1 + optimizer.states()],
            streaming,
        };
        let run = if measured { fold.run_on::<true>(level) } else { fold.run_on::<false>(level) };
        run.map_err(|error| error.to_string())?;
        let results = [0, 1, 2].map(|index| floats(passes[index].to));
        for at in 0..count {
            let expected = reference(optimizer, 0.01, step, sums[at], p[at], [m[at], v[at]]);
            for array in 0..1 + optimizer.states() {
                let result = results[array][at];
                if !same(result, expected[array]) {
                    let expected = expected[array];
                    return Err(format!(
                        "{level:?} array {array} at {at}: {result:e}, not {expected:e}; {case:?}"
                    ));
                }
            }
        }
        if !passes.iter().all(|pass| untouched(memory, pass.to)) {
            return Err(format!("{level:?} wrote outside of its range; {case:?}"));
        }
    }
    Ok(())
}

#[test]
fn every_path_gives_the_bits_of_a_serial_loop() {
    let memory = HostMemory::anonymous(16 * 8192).unwrap();
    let mut seed = 0;
    for optimizer in OPTIMIZERS {
        for encoding in ENCODINGS {
            for k in 0..=5 {
                for count in (0..=200).chain([512, 1000]) {
                    seed += 1;
                    let offsets = [[0, 0], [4, 0], [60, 3], [1, 2], [0, 31]][seed as usize % 5];
                    let streaming = seed % 2 == 0;
                    let step = seed % 3 + 1;
                    let case = Case { optimizer, encoding, k, count, offsets, streaming, step, seed };
                    check(&memory, case).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_fold_of_nothing_is_a_step_on_a_gradient_of_zero() {
    let memory = HostMemory::anonymous(16 * 8192).unwrap();
    let zeros = VolatileSlice::from_ref(&[0; 400]);
    for optimizer in OPTIMIZERS {
        let mut arrays = Arrays(&memory, 0);
        let passes = [0, 1, 2].map(|_| Pass { from: arrays.next(400, 0), to: arrays.next(400, 0) });
        for (index, pass) in passes.iter().enumerate() {
            let values: Vec<f32> = (0..100).map(|at| (at + index) as f32 / 64.0).collect();
            encode(&values, pass.from, Encoding::F32);
        }
        let fold = |gradients| small_fold(optimizer, Encoding::F32, gradients, &passes);
        let results = || [0, 1, 2].map(|index| floats(passes[index].to));
        let gradient_of_zero = [Gradient { elements: zeros, weight: 1.0 }];
        fold(&gradient_of_zero).run().unwrap();
        let expected = results();
        passes.iter().take(1 + optimizer.states()).for_each(|pass| pass.to.write(&[0xAA; 400]));
        fold(&[]).run().unwrap();
        assert_eq!(results(), expected, "{optimizer:?}");
        let (moments, _) = fold(&[]).run_measured().unwrap();
        assert_eq!(moments, Moments::default());
        assert_eq!(moments.statistics(), (None, None));
        assert_eq!(results(), expected, "{optimizer:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 500 }))]

    #[test]
    fn any_alignment_gives_the_bits_of_a_serial_loop(
        (optimizer, encoding) in (prop::sample::select(OPTIMIZERS.to_vec()), prop::sample::select(ENCODINGS.to_vec())),
        k in 0usize..9, count in 0usize..1500, offsets in [0usize..64, 0usize..64],
        streaming: bool, step in 1u64..4, seed: u64,
    ) {
        let memory = HostMemory::anonymous(16 * 8192).unwrap();
        let case = Case { optimizer, encoding, k, count, offsets, streaming, step, seed };
        prop_assert_eq!(check(&memory, case), Ok(()));
    }

    #[test]
    fn a_triad_is_a_triad(count in 0usize..1500, scalar in -2f32..2.0) {
        let memory = HostMemory::anonymous(3 * 8192).unwrap();
        let mut arrays = Arrays(&memory, 0);
        let [a, b, c] = [0, 4, 1].map(|offset| arrays.next(count * 4, offset));
        let values: Vec<f32> = (0..count).map(|i| i as f32 / 7.0).collect();
        encode(&values, b, Encoding::F32);
        encode(&values, c, Encoding::F32);
        triad(a, b, c, scalar);
        let expected: Vec<f32> = values.iter().map(|v| v + scalar * v).collect();
        prop_assert_eq!(floats(a), expected);
        prop_assert!(untouched(&memory, a));
    }

    #[test]
    fn a_checksum_of_parts_is_that_of_the_whole(bytes: Vec<u8>, cut: prop::sample::Index, longer in 0usize..40_000) {
        let bytes: Vec<u8> = bytes.into_iter().chain((0..longer).map(|i| i as u8)).collect();
        let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
        let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes);
        prop_assert_eq!(crc64(VolatileSlice::from_ref(&bytes), 0), whole);
        let seed = crc64(VolatileSlice::from_ref(head), 0);
        prop_assert_eq!(crc64(VolatileSlice::from_ref(tail), seed), whole);
    }
}

#[test]
fn a_fold_that_cannot_be_is_an_error_and_writes_nothing() {
    let memory = HostMemory::anonymous(4096).unwrap();
    let at = |offset, len| memory.as_volatile().subslice(offset, len);
    let read_only = [0; 64];
    let gradient = |elements| Gradient { elements, weight: 1.0 };
    let good = [gradient(at(0, 64))];
    let fold = Fold {
        gradients: &good,
        encoding: Encoding::F32,
        optimizer: OPTIMIZERS[0],
        learning_rate: 1.0,
        step: 1,
        parameters: Pass { from: at(64, 64), to: at(128, 64) },
        states: &[],
        streaming: false,
    };
    let to = |to| Pass { to, ..fold.parameters };
    let many = vec![good[0]; MAX_GRADIENTS + 1];
    let short = [good[0], gradient(at(0, 60))];
    let states = [Pass { from: at(256, 64), to: at(320, 64) }, Pass { from: at(384, 64), to: at(376, 64) }];
    let cases = [
        (Fold { gradients: &many, ..fold }, FoldError::Gradients { count: MAX_GRADIENTS + 1 }),
        (Fold { states: &states, ..fold }, FoldError::States { expected: 0, given: 2 }),
        (Fold { optimizer: OPTIMIZERS[1], ..fold }, FoldError::States { expected: 1, given: 0 }),
        (Fold { optimizer: OPTIMIZERS[2], states: &states, step: 0, ..fold }, FoldError::Step),
        (
            Fold { parameters: Pass { from: at(64, 63), to: at(128, 63) }, ..fold },
            FoldError::PartialElement { bytes: 63 },
        ),
        (
            Fold { gradients: &short, ..fold },
            FoldError::Length { operand: Operand::Gradient(1), bytes: 60, expected: 64 },
        ),
        (
            Fold { encoding: Encoding::F16, ..fold },
            FoldError::Length { operand: Operand::Gradient(0), bytes: 64, expected: 32 },
        ),
        (
            Fold { parameters: to(at(128, 60)), ..fold },
            FoldError::Length { operand: Operand::ParametersTo, bytes: 60, expected: 64 },
        ),
        (
            Fold { parameters: to(VolatileSlice::from_ref(&read_only)), ..fold },
            FoldError::ReadOnly { operand: Operand::ParametersTo },
        ),
        (
            Fold { parameters: to(at(124, 64)), ..fold },
            FoldError::Overlap { operand: Operand::ParametersTo, with: Operand::ParametersFrom },
        ),
        (
            Fold { parameters: to(at(0, 64)), ..fold },
            FoldError::Overlap { operand: Operand::ParametersTo, with: Operand::Gradient(0) },
        ),
        (
            Fold { optimizer: OPTIMIZERS[3], states: &states, ..fold },
            FoldError::Overlap { operand: Operand::StateTo(0), with: Operand::StateTo(1) },
        ),
    ];
    for (fold, error) in cases {
        assert_eq!(fold.run(), Err(error));
    }
    let mut after = [0; 4096];
    memory.as_volatile().read(&mut after);
    assert_eq!(after, [0; 4096]);
    assert_eq!(fold.run(), Ok(true));
}

/// The third step of `optimizer` over the parameters and states in `passes`.
fn small_fold<'a>(
    optimizer: Optimizer,
    encoding: Encoding,
    gradients: &'a [Gradient<'a>],
    passes: &'a [Pass<'a>; 3],
) -> Fold<'a> {
    Fold {
        gradients,
        encoding,
        optimizer,
        learning_rate: 0.5,
        step: 3,
        parameters: passes[0],
        states: &passes[1..1 + optimizer.states()],
        streaming: false,
    }
}

#[test]
fn a_fold_tells_wherever_one_gradient_or_parameter_is_not_finite() {
    let memory = HostMemory::anonymous(16 * 8192).unwrap();
    let count = 300;
    for (optimizer, encoding) in OPTIMIZERS.into_iter().flat_map(|o| ENCODINGS.map(|e| (o, e))) {
        let mut arrays = Arrays(&memory, 0);
        let passes =
            [0, 1, 2].map(|_| Pass { from: arrays.next(4 * count, 0), to: arrays.next(4 * count, 0) });
        let elements = [0, 1].map(|_| arrays.next(encoding.bytes() * count, 0));
        let gradients = elements.map(|elements| Gradient { elements, weight: 0.5 });
        let fold = small_fold(optimizer, encoding, &gradients, &passes);
        let finite = |values: [&[f32]; 3]| {
            encode(values[0], passes[0].from, Encoding::F32);
            encode(values[1], elements[0], encoding);
            encode(values[2], elements[1], encoding);
            let one = |level| {
                let found =
                    [fold.run_on::<false>(level), fold.run_on::<true>(level)].map(|f| f.unwrap().finite);
                assert_eq!(found[0], found[1]);
                found[0]
            };
            let found: Vec<bool> = levels().into_iter().map(one).collect();
            assert!(found.iter().all(|finite| *finite == found[0]), "{found:?}");
            found[0]
        };
        // As large as a finite number may be that is squared, added up and stepped on.
        let good = vec![1e4; count];
        assert!(finite([&good, &good, &good]), "{optimizer:?}");
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (array, at) in (0..3).flat_map(|array| [0, 1, 130, 298, 299].map(|at| (array, at))) {
                let mut values = [good.clone(), good.clone(), good.clone()];
                values[array][at] = bad;
                assert!(
                    !finite([0, 1, 2].map(|index| &values[index][..])),
                    "{optimizer:?} {bad} {array} {at}"
                );
            }
        }
    }
}

#[test]
fn a_second_moment_that_overflows_is_told_as_not_finite() {
    let memory = HostMemory::anonymous(16 * 8192).unwrap();
    let count = 300;
    for optimizer in OPTIMIZERS {
        let mut arrays = Arrays(&memory, 0);
        let passes =
            [0, 1, 2].map(|_| Pass { from: arrays.next(4 * count, 0), to: arrays.next(4 * count, 0) });
        let elements = arrays.next(4 * count, 0);
        let gradients = [Gradient { elements, weight: 1.0 }];
        let fold = small_fold(optimizer, Encoding::F32, &gradients, &passes);
        for at in [0, 1, 130, 298, 299] {
            let mut values = vec![1.0; count];
            values[at] = 1e21;
            encode(&values, elements, Encoding::F32);
            for level in levels() {
                for found in [fold.run_on::<false>(level), fold.run_on::<true>(level)] {
                    assert!(floats(passes[0].to).iter().all(|parameter| parameter.is_finite()), "{level:?}");
                    let is_finite = found.unwrap().finite;
                    assert_eq!(is_finite, optimizer.states() < 2, "{level:?} {optimizer:?} at {at}");
                }
            }
        }
    }
}
