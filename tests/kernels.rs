//! The kernels of `cuda/`, compiled for the CPU, give the bits of `src/kernel`. A NaN equals every NaN: its sign and
//! its payload are unspecified in both. In what is encoded for a peer they count, too.
//!
//! This shows the arithmetic, the bounds and the alignment of the sources. It shows nothing of what a GPU makes of
//! them.

#[path = "kernels/device.rs"]
mod device;
#[path = "kernels/fold.rs"]
mod fold;
#[path = "kernels/numbers.rs"]
mod numbers;

use slackline::Encoding;
use slackline::internals::kernel::{AdamParameters, Optimizer, encode};
use slackline::internals::mem::VolatileSlice;

use device::{Block, Buffer, Device};
use fold::{Case, LANES, Outcome, floats, pairs};
use numbers::Numbers;

/// Gradients of a fold: few, and `SLACKLINE_GRADIENTS`.
const COUNTS: [usize; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 256];

const ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::Bf16, Encoding::F16];

/// The rules, with constants of every size.
fn optimizers(numbers: &mut Numbers) -> [Optimizer; 4] {
    let decay = numbers.of(&[0.0, 0.01, 0.3]);
    let adam = AdamParameters {
        beta1: numbers.of(&[0.0, 0.9]),
        beta2: numbers.of(&[0.5, 0.999]),
        epsilon: numbers.of(&[1e-8, 0.125]),
        weight_decay: decay,
    };
    [
        Optimizer::Sgd { weight_decay: decay },
        Optimizer::Momentum { momentum: numbers.unit(), weight_decay: decay },
        Optimizer::Adam(adam),
        Optimizer::AdamW(adam),
    ]
}

/// Where the kernel's results are not those of the CPU.
fn difference(case: &Case, ours: &Outcome, theirs: &Outcome) -> Option<String> {
    let Case { offset, count, shifts, launch, .. } = case;
    let k = case.weights.len();
    let of =
        format!("{} of {k}, {offset} + {count}, {shifts:?}, {launch:?}, {:?}", case.kernel(), case.optimizer);
    for (array, (ours, theirs)) in ours.arrays.iter().zip(&theirs.arrays).enumerate() {
        for (at, (ours, theirs)) in floats(ours).into_iter().zip(floats(theirs)).enumerate() {
            if ours.to_bits() != theirs.to_bits() && !(ours.is_nan() && theirs.is_nan()) {
                return Some(format!("array {array} at {at}: {ours:e}, on the CPU {theirs:e}: {of}"));
            }
        }
    }
    (ours.finite != theirs.finite)
        .then(|| format!("finite: {}, on the CPU {}: {of}", ours.finite, theirs.finite))
}

/// Folds of every rule, type and number of gradients, each `times` times. The first that differs, or dies.
fn first_difference(device: &mut Device, numbers: &mut Numbers, times: usize) -> Option<String> {
    for (k, encoding) in COUNTS.into_iter().flat_map(|k| ENCODINGS.map(|encoding| (k, encoding))) {
        for time in 0..times {
            for optimizer in optimizers(numbers) {
                let number = numbers.of(&[Numbers::wild, Numbers::tame]);
                let most = if k < 10 { numbers.of(&[9, 80, 700]) } else { 20 };
                let elements = 1 + numbers.below(most);
                let case = Case::new(numbers, (optimizer, encoding, k), elements, number);
                let Some(ours) = case.on_device(device, time % 2 == 1) else {
                    return Some(format!("the device has died in {}", case.kernel()));
                };
                if let Some(difference) = difference(&case, &ours, &case.on_cpu()) {
                    return Some(difference);
                }
            }
        }
    }
    None
}

#[test]
fn folds_give_the_bits_of_the_cpu_for_every_rule_and_type() {
    let seed = numbers::seed();
    let mut device = Device::new();
    let found = first_difference(&mut device, &mut Numbers(seed), 12);
    assert_eq!(found, None, "SLACKLINE_KERNELS_SEED={seed}");
}

#[test]
fn every_half_is_taken_for_the_number_that_it_is() {
    let mut device = Device::new();
    let mut numbers = Numbers(1);
    for (encoding, shift) in [Encoding::Bf16, Encoding::F16].into_iter().flat_map(|e| [(e, 0), (e, 1)]) {
        let [sgd, ..] = optimizers(&mut numbers);
        let mut case = Case::new(&mut numbers, (sgd, encoding, 1), 1 << 16, Numbers::tame);
        (case.offset, case.count, case.shifts, case.weights) = (0, 1 << 16, [shift, 0, 0], vec![1.0]);
        case.gradients = vec![(0..=u16::MAX).flat_map(u16::to_le_bytes).collect()];
        let ours = case.on_device(&mut device, false).expect("a fold");
        assert_eq!(difference(&case, &ours, &case.on_cpu()), None);
    }
}

/// The sums of squares, in the order that `cuda/fold.cuh` states.
fn squares(case: &Case) -> Vec<[f64; 2]> {
    let mut gradients = vec![vec![0.0; case.elements]; case.gradients.len()];
    for (values, bytes) in gradients.iter_mut().zip(&case.gradients) {
        slackline::internals::kernel::decode(VolatileSlice::from_ref(bytes), case.encoding, values);
    }
    let sum = |at: usize| {
        let terms = gradients.iter().zip(&case.weights).map(|(gradient, weight)| weight * gradient[at]);
        terms.reduce(|sum, term| sum + term).unwrap_or_default()
    };
    let run = case.offset..case.offset + case.count;
    let mut lanes = vec![[0.0; 2]; case.groups().min(LANES)];
    let of_lanes = lanes.len();
    for group in 0..case.groups() {
        let begin = (case.offset / 4 + group) * 4;
        let elements = || (begin..begin + 4).filter(|at| run.contains(at));
        let square = |value: f32| value * value;
        let [of_sum, of_each] = &mut lanes[group % of_lanes];
        for gradient in &gradients {
            *of_each += f64::from(elements().fold(0.0, |sum, at| sum + square(gradient[at])));
        }
        *of_sum += f64::from(elements().fold(0.0, |total, at| total + square(sum(at))));
    }
    lanes
}

#[test]
fn what_is_measured_depends_on_the_run_alone_and_agrees_with_the_cpu() {
    let seed = numbers::seed();
    let mut numbers = Numbers(seed);
    let mut device = Device::new();
    let bits = |pairs: &[[f64; 2]]| pairs.iter().map(|pair| pair.map(f64::to_bits)).collect::<Vec<_>>();
    let sizes = [(3, 5), (2, 900), (9, 4_000), (0, 50), (1, 4 * LANES + 3_001)];
    for ((k, elements), encoding) in sizes.into_iter().flat_map(|size| ENCODINGS.map(|e| (size, e))) {
        let [.., adamw] = optimizers(&mut numbers);
        let mut case = Case::new(&mut numbers, (adamw, encoding, k), elements, Numbers::tame);
        // To the end, so that the longest run has more groups than there are lanes.
        case.count = elements - case.offset;
        let expected = squares(&case);
        for (launch, shifts) in [((7, 64), [0, 0, 0]), ((512, 256), [3, 0, 1])] {
            (case.launch, case.shifts) = (launch, shifts);
            let ours = case.on_device(&mut device, true).expect("a fold");
            assert!(bits(&ours.squares) == bits(&expected), "SLACKLINE_KERNELS_SEED={seed}, {launch:?}");
            assert_eq!(difference(&case, &ours, &case.on_cpu()), None, "SLACKLINE_KERNELS_SEED={seed}");
        }

        let sums = moments(&mut device, &expected, case.launch);
        let strided = |n: usize| expected.iter().skip(n).step_by(256);
        let add = |sum: [f64; 2], lane: &[f64; 2]| [sum[0] + lane[0], sum[1] + lane[1]];
        let of_lanes: Vec<[f64; 2]> = (0..256).map(|n| strided(n).fold([0.0; 2], add)).collect();
        assert_eq!(bits(&sums), bits(&of_lanes));
        let total = sums.iter().fold([0.0; 2], add);
        for (ours, theirs) in total.into_iter().zip(case.on_cpu().squares[0]) {
            assert!((ours - theirs).abs() <= 2e-6 * theirs, "{ours:e} and on the CPU {theirs:e}: {seed}");
        }
    }
}

/// The sums of the lanes by `slackline_moments`.
fn moments(device: &mut Device, lanes: &[[f64; 2]], launch: (u32, u32)) -> Vec<[f64; 2]> {
    let bytes = lanes.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    let mut buffers = [Buffer { shift: 0, bytes }, Buffer { shift: 0, bytes: vec![0xAA; 256 * 16] }];
    let mut block = Block::new(24);
    block.put_address(0, 0);
    block.put(8, (lanes.len() as u64).to_le_bytes());
    block.put_address(16, 1);
    device.launch("slackline_moments", launch, &mut buffers, &block).expect("sums");
    pairs(&buffers[1].bytes)
}

#[test]
fn what_is_encoded_for_a_peer_has_the_bits_of_the_cpu_even_of_a_nan() {
    let seed = numbers::seed();
    let mut numbers = Numbers(seed);
    let mut device = Device::new();
    // Each upper half with the lower ones at which rounding turns, for bfloat16 and for half precision, and with any.
    let lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
    let each = (0..1u32 << 16).map(|upper| upper << 16);
    let turning = each.clone().flat_map(|upper| lower.map(|lower| upper | lower));
    let values: Vec<f32> =
        turning.chain(each.map(|e| e | numbers.below(1 << 16) as u32)).map(f32::from_bits).collect();
    for (encoding, kernel) in
        [(Encoding::Bf16, "slackline_encode_bf16"), (Encoding::F16, "slackline_encode_f16")]
    {
        for (offset, count, from, to) in
            [(0, values.len(), 0, 0), (5, values.len() - 8, 0, 0), (3, 1001, 1, 3), (2, 1, 0, 0)]
        {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let unwritten = vec![0xAA; values.len() * 2];
            let mut buffers =
                [Buffer { shift: from * 4, bytes }, Buffer { shift: to * 2, bytes: unwritten.clone() }];
            let mut block = Block::new(32);
            block.put(0, (offset as u64).to_le_bytes());
            block.put(8, (count as u64).to_le_bytes());
            block.put_address(16, 0);
            block.put_address(24, 1);
            device.launch(kernel, (3, 256), &mut buffers, &block).expect("encoded");
            let mut expected = unwritten;
            let run = VolatileSlice::from_mut(&mut expected).subslice(offset * 2, count * 2);
            encode(&values[offset..offset + count], run, encoding);
            let differ = |(ours, theirs): (&[u8; 2], &[u8; 2])| ours != theirs;
            let mut both = buffers[1].bytes.as_chunks().0.iter().zip(expected.as_chunks().0);
            let first = both.position(differ).map(|at| values[at].to_bits());
            assert_eq!(first, None, "{kernel}, SLACKLINE_KERNELS_SEED={seed}");
        }
    }
}

/// What a reader beside the kernel that publishes has found: the words that were not of their version. Checks what the
/// kernel has left.
fn torn(device: &mut Device) -> u64 {
    // Frames are further apart than they are long. Frame 1 has the version before.
    const FRAMES: usize = 3;
    const WORDS: usize = 500;
    const STRIDE: usize = 512;
    const VERSION: u64 = 7;
    let zeros = |words: usize| Buffer { shift: 0, bytes: vec![0; 8 * words] };
    let mut buffers = [zeros(2), zeros(1), zeros(8 * FRAMES), zeros(STRIDE * FRAMES)];
    buffers[1].bytes = (VERSION << 8 | 1).to_le_bytes().into();
    buffers[2].bytes[72..80].copy_from_slice(&VERSION.to_le_bytes());
    // A frame that was being written when it was lent.
    buffers[2].bytes[0] = 5;
    let mut block = Block::new(64);
    (0..4).for_each(|buffer| block.put_address(8 * buffer, buffer));
    let words = [STRIDE as u64, WORDS as u64, VERSION, 1 | (FRAMES as u64) << 32];
    words.iter().enumerate().for_each(|(at, word)| block.put(32 + 8 * at, word.to_le_bytes()));
    device.launch("slackline_publish_versions", (2, 2), &mut buffers, &block).expect("versions");
    let word = |buffer: usize, at: usize| u64::from_le_bytes(buffers[buffer].bytes.as_chunks().0[at]);
    let (version, frame) = (word(1, 0) >> 8, (word(1, 0) & 0xFF) as usize);
    assert!(word(0, 0) == 1 && version > VERSION + 1, "the newest is {version}");
    assert_eq!(frame as u64, (1 + version - VERSION) % FRAMES as u64);
    for back in 0..FRAMES as u64 {
        let (version, frame) = (version - back, (frame + FRAMES - back as usize) % FRAMES);
        assert_eq!((word(2, 8 * frame) % 2, word(2, 8 * frame + 1)), (0, version));
        let fill = version % 251 * 0x0101_0101_0101_0101;
        let found: Vec<u64> = (0..STRIDE).map(|at| word(3, STRIDE * frame + at)).collect();
        assert!(
            found[..WORDS].iter().all(|word| *word == fill) && found[WORDS..].iter().all(|word| *word == 0)
        );
    }
    word(0, 1)
}

#[test]
fn a_kernel_publishes_whole_versions_until_it_is_ended() {
    assert_eq!(torn(&mut Device::new()), 0);
    let mark = "slackline::store(header + SEQUENCE, odd);";
    let mut unmarked = Device::altered("unmarked", ("publish.cuh", mark, ""), false);
    assert!(torn(&mut unmarked) > 0, "no reader has noticed that nothing marks a frame as being written");
}

#[test]
fn a_kernel_with_one_operation_altered_is_noticed() {
    let term = "__fadd_rn(sums[e], __fmul_rn(weight, values[j][e]))";
    let first = "const float second = __fmul_rn(__fmul_rn(one_less_beta2, gradient), gradient)";
    let differs = "on the CPU";
    let dies = "has died";
    let alterations = [
        ("fused", differs, ("fold.cuh", term, "std::fma(weight, values[j][e], sums[e])")),
        ("backwards", differs, ("fold.cuh", "[first + j]", "[fold.gradients - 1 - first - j]")),
        ("from-zero", differs, ("fold.cuh", "-0.0f : 0.0f", "0.0f : 0.0f")),
        (
            "regrouped",
            differs,
            ("rule.cuh", first, "const float second = one_less_beta2 * (gradient * gradient)"),
        ),
        ("unseen", differs, ("fold.cuh", " && (Rule::STATES < 2 || is_finite(state[1]))", "")),
        ("misaligned", dies, ("fold.cuh", "aligned && run.has_all(at)", "run.has_all(at)")),
        ("too-far", differs, ("number.cuh", "at >= begin && at + WIDTH <= end", "at >= begin")),
    ];
    for (name, noticed, alteration) in alterations {
        let mut device = Device::altered(name, alteration, noticed == dies);
        let found = first_difference(&mut device, &mut Numbers(1), 4).unwrap_or_default();
        assert!(found.contains(noticed), "{name}: `{found}`");
    }
}
