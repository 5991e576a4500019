//! The loop of a fold: one pass over memory, as wide as the processor's vectors.

use core::ops::Range;

use super::lanes::{self, Lanes, Level};
use super::rule::{Adam, Momentum, Rule, Sgd};
use super::{Fold, Gradient, Moments, Optimizer};
use crate::table::Encoding;

/// Most vectors of each stream in one turn of the loop; rules with two states take half as many.
///
/// With this, [`AHEAD`] and [`lanes::prefetch`] a fold of four gradients moves 0.82 (SGD) and 0.86 (AdamW) of the bytes
/// per second of [`triad`](super::triad) by one thread, and 0.83 and 0.88 if it is measured, on a virtual machine of
/// two EPYC cores with AVX-512 (`cargo bench --bench kernel`). Eight vectors, and lines asked for into the second cache
/// only, made that 0.79, 0.74, 0.66 and 0.82 there; so many lines at once are taken to be too many for the first
/// cache and the registers, which was not measured apart. They had been the best on two Xeon cores (0.87 and 0.93;
/// without prefetching 0.80 and 0.86), where four were not measured again. docs/measurements.md has more. What remains
/// is reading: a triad writes a third of its bytes, which streaming stores do beside the reads, an SGD fold a sixth.
/// Tried and slower: 1 to 4 KiB of each stream in turn (0.82 to 0.65), a non-temporal prefetch (0.28).
#[cfg(target_arch = "x86_64")]
const UNROLL: usize = 4;

/// The distance, in elements, at which lines are asked for ahead of the loads: the processor's own prefetchers stop
/// at page ends and follow this many streams too timidly. 128 is much the same, 512 costs up to 0.05.
const AHEAD: usize = 256;

/// The facts that a fold has learnt about its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) moments: Moments,
    /// All new parameters are finite, and all new second moments.
    pub(super) finite: bool,
}

/// The memory that a fold reads and writes.
#[derive(Clone, Copy)]
struct Work<'a> {
    gradients: &'a [Gradient<'a>],
    from: [*const u8; 3],
    to: [*mut u8; 3],
    stream: bool,
}

/// Does the fold, and measures it if `MEASURE`.
///
/// # Safety
///
/// [`check`](super::check::check) must have passed, and the processor must have the vectors of `level`.
pub(super) unsafe fn fold<const MEASURE: bool>(fold: &Fold<'_>, level: Level) -> Found {
    let mut found = Found { moments: Moments::default(), finite: true };
    if MEASURE {
        found.moments = Moments::of(fold.gradients.iter().map(|gradient| gradient.weight));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match level {
            Level::Scalar => by_encoding::<Scalar, MEASURE>(fold, &mut found),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => by_encoding::<x86::Avx2, MEASURE>(fold, &mut found),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => by_encoding::<x86::Avx512, MEASURE>(fold, &mut found),
        }
    }
    found
}

/// The encoding of gradients.
trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<V: Lanes>(from: *const u8) -> V;
}

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident) => {
        struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<V: Lanes>(from: *const u8) -> V {
                // SAFETY: the caller's promise.
                unsafe { V::$load(from) }
            }
        }
    };
}
element!(F32, 4, load_f32);
element!(Bf16, 2, load_bf16);
element!(F16, 2, load_f16);

/// The loop, compiled for one kind of vector.
trait Path {
    /// Elements in one turn of the loop.
    const TURN: usize;
    /// # Safety
    /// As for [`turns`].
    unsafe fn run<E: Element, R: Rule, const K: usize, const MEASURE: bool>(
        work: &Work<'_>,
        rule: R,
        range: Range<usize>,
        found: &mut Found,
    );
}

struct Scalar;
impl Path for Scalar {
    const TURN: usize = 1;
    unsafe fn run<E: Element, R: Rule, const K: usize, const MEASURE: bool>(
        work: &Work<'_>,
        rule: R,
        range: Range<usize>,
        found: &mut Found,
    ) {
        // SAFETY: the caller's promise.
        unsafe { one_by_one::<E, R, MEASURE>(work, rule, range, found) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__m256, __m512};

    use super::*;

    pub(super) struct Avx2;
    impl Path for Avx2 {
        const TURN: usize = 8 * UNROLL;
        unsafe fn run<E: Element, R: Rule, const K: usize, const MEASURE: bool>(
            work: &Work<'_>,
            rule: R,
            range: Range<usize>,
            found: &mut Found,
        ) {
            #[target_feature(enable = "avx2,f16c,fma")]
            unsafe fn with<E: Element, R: Rule, const K: usize, const MEASURE: bool>(
                work: &Work<'_>,
                rule: R,
                range: Range<usize>,
                found: &mut Found,
            ) {
                // SAFETY: the caller's promise.
                unsafe { by_states::<__m256, E, R, K, MEASURE>(work, rule, range, found) }
            }
            // SAFETY: the caller's promise; this path is taken only where the processor has the features.
            unsafe { with::<E, R, K, MEASURE>(work, rule, range, found) }
        }
    }

    pub(super) struct Avx512;
    impl Path for Avx512 {
        const TURN: usize = 16 * UNROLL;
        unsafe fn run<E: Element, R: Rule, const K: usize, const MEASURE: bool>(
            work: &Work<'_>,
            rule: R,
            range: Range<usize>,
            found: &mut Found,
        ) {
            #[target_feature(enable = "avx512f")]
            unsafe fn with<E: Element, R: Rule, const K: usize, const MEASURE: bool>(
                work: &Work<'_>,
                rule: R,
                range: Range<usize>,
                found: &mut Found,
            ) {
                // SAFETY: the caller's promise.
                unsafe { by_states::<__m512, E, R, K, MEASURE>(work, rule, range, found) }
            }
            // SAFETY: the caller's promise; this path is taken only where the processor has the feature.
            unsafe { with::<E, R, K, MEASURE>(work, rule, range, found) }
        }
    }
}

/// # Safety
/// As for [`fold`].
unsafe fn by_encoding<P: Path, const MEASURE: bool>(fold: &Fold<'_>, found: &mut Found) {
    // SAFETY: the caller's promise.
    unsafe {
        match fold.encoding {
            Encoding::F32 => by_optimizer::<P, F32, MEASURE>(fold, found),
            Encoding::Bf16 => by_optimizer::<P, Bf16, MEASURE>(fold, found),
            Encoding::F16 => by_optimizer::<P, F16, MEASURE>(fold, found),
        }
    }
}

/// # Safety
/// As for [`fold`].
unsafe fn by_optimizer<P: Path, E: Element, const MEASURE: bool>(fold: &Fold<'_>, found: &mut Found) {
    let rate = fold.learning_rate;
    // SAFETY: the caller's promise; each rule has as many states as its optimiser.
    unsafe {
        match fold.optimizer {
            Optimizer::Sgd { weight_decay: decay } => {
                split::<P, E, _, MEASURE>(fold, Sgd { rate, decay }, found)
            }
            Optimizer::Momentum { momentum, weight_decay: decay } => {
                split::<P, E, _, MEASURE>(fold, Momentum { rate, momentum, decay }, found)
            }
            Optimizer::Adam(adam) => {
                split::<P, E, _, MEASURE>(fold, Adam::<false>::new(adam, rate, fold.step), found)
            }
            Optimizer::AdamW(adam) => {
                split::<P, E, _, MEASURE>(fold, Adam::<true>::new(adam, rate, fold.step), found)
            }
        }
    }
}

/// # Safety
/// As for [`turns`].
unsafe fn by_count<P: Path, E: Element, R: Rule, const MEASURE: bool>(
    work: &Work<'_>,
    rule: R,
    range: Range<usize>,
    found: &mut Found,
) {
    // SAFETY: the caller's promise; K is the number of gradients, or 0 where that is read at run time. Where the fold
    // measures, a loop for each count would be 3 % faster and take twice the code.
    unsafe {
        match work.gradients.len() {
            1 if !MEASURE => P::run::<E, R, 1, MEASURE>(work, rule, range, found),
            2 if !MEASURE => P::run::<E, R, 2, MEASURE>(work, rule, range, found),
            3 if !MEASURE => P::run::<E, R, 3, MEASURE>(work, rule, range, found),
            4 if !MEASURE => P::run::<E, R, 4, MEASURE>(work, rule, range, found),
            _ => P::run::<E, R, 0, MEASURE>(work, rule, range, found),
        }
    }
}

/// Cuts the range into a head up to the first cache line of the destination, whole turns, and a tail; head and tail
/// are done one element at a time. A fold that measures has no head: which elements it squares together, and so how
/// its sums are rounded, depends on the processor's vectors alone and not on where memory happens to lie.
///
/// # Safety
///
/// As for [`fold`].
unsafe fn split<P: Path, E: Element, R: Rule, const MEASURE: bool>(
    fold: &Fold<'_>,
    rule: R,
    found: &mut Found,
) {
    let count = fold.parameters.from.len() / 4;
    let mut work = Work {
        gradients: fold.gradients,
        from: [fold.parameters.from.as_ptr(); 3],
        to: [fold.parameters.to.as_ptr(); 3],
        stream: false,
    };
    for (index, state) in fold.states.iter().enumerate() {
        work.from[index + 1] = state.from.as_ptr();
        work.to[index + 1] = state.to.as_ptr();
    }
    let begins = work.to.map(|to| to.addr() % 64);
    let to_line =
        if begins[0].is_multiple_of(4) { ((64 - begins[0]) % 64 / 4).min(count) } else { usize::MAX };
    let head = if MEASURE || to_line == usize::MAX { 0 } else { to_line };
    // Streaming stores must be aligned: after the head they are if all destinations lie alike on their lines.
    work.stream = fold.streaming && head == to_line && begins.iter().all(|begin| *begin == begins[0]);
    let body = (count - head) / P::TURN * P::TURN;
    // SAFETY: the three ranges are in order and end at `count`, which all operands hold, as the caller checked; the
    // body is whole turns, and where it streams it begins at a cache line of every destination.
    unsafe {
        one_by_one::<E, R, MEASURE>(&work, rule, 0..head, found);
        by_count::<P, E, R, MEASURE>(&work, rule, head..head + body, found);
        one_by_one::<E, R, MEASURE>(&work, rule, head + body..count, found);
    }
    if work.stream {
        lanes::stream_end();
    }
}

/// The loop over single elements: one function for all paths and counts, since each copy of it costs time to compile.
///
/// # Safety
///
/// As for [`turns`].
#[inline(never)]
unsafe fn one_by_one<E: Element, R: Rule, const MEASURE: bool>(
    work: &Work<'_>,
    rule: R,
    range: Range<usize>,
    found: &mut Found,
) {
    // SAFETY: the caller's promise; every processor has f32.
    unsafe { turns::<f32, E, R, 0, 1, MEASURE>(work, rule, range, found) }
}

/// The loop with as many vectors at once as the rule leaves registers for.
///
/// # Safety
///
/// As for [`turns`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn by_states<V: Lanes, E: Element, R: Rule, const K: usize, const MEASURE: bool>(
    work: &Work<'_>,
    rule: R,
    range: Range<usize>,
    found: &mut Found,
) {
    // SAFETY: the caller's promise; a range of whole turns of `UNROLL` is one of whole turns of half of it.
    unsafe {
        if R::STATES < 2 {
            turns::<V, E, R, K, UNROLL, MEASURE>(work, rule, range, found);
        } else {
            turns::<V, E, R, K, { UNROLL / 2 }, MEASURE>(work, rule, range, found);
        }
    }
}

/// The loop itself. `K` is the number of gradients, or 0 to ask `work`; `U` vectors are done in each turn.
///
/// With `MEASURE` squares are added in f32 over the `U` vectors of one gradient in one turn, and the result goes into
/// sums in f64: 5 roundings to f32 at most, all terms being positive, so that each of these short sums is within
/// `5 * 2^-24` of what it should be, relatively, and so is the total, to which f64 adds about `n * 2^-53`. That costs
/// no fold of four gradients more than 2 % of its speed, on the machine of [`UNROLL`], and an SGD fold of eight 17 %.
///
/// # Safety
///
/// As for [`Lanes`]; every operand holds the elements of `range`, which is whole turns; if `work.stream`, the
/// destinations are aligned to the vector at `range.start`.
#[inline(always)]
unsafe fn turns<V: Lanes, E: Element, R: Rule, const K: usize, const U: usize, const MEASURE: bool>(
    work: &Work<'_>,
    rule: R,
    range: Range<usize>,
    found: &mut Found,
) {
    let k = if K == 0 { work.gradients.len() } else { K };
    let Work { from, to, stream, .. } = *work;
    let gradients = &work.gradients[..k];
    // SAFETY: a constant; the caller has the vectors.
    let (mut of_sum, mut of_each) = unsafe { (V::wide(), V::wide()) };
    // SAFETY: a constant; the caller has the vectors.
    let mut zero = unsafe { V::splat(0.0) };
    let mut at = range.start;
    while at < range.end {
        // SAFETY: [1] `at + U * COUNT <= range.end`, since the range is whole turns, so each access lies inside its
        // operand; [2] alignment of streaming stores and the vectors themselves are the caller's promise.
        unsafe {
            if V::COUNT > 1 {
                for gradient in gradients {
                    ask_for::<V, U>(gradient.elements.as_ptr(), at + AHEAD, E::BYTES);
                }
                for from in &from[..1 + R::STATES] {
                    ask_for::<V, U>(*from, at + AHEAD, 4);
                }
            }
            let mut sum = [V::splat(0.0); U];
            for (index, gradient) in gradients.iter().enumerate() {
                let from = gradient.elements.as_ptr().cast_const();
                let weight = V::splat(gradient.weight);
                let mut squares = V::splat(0.0);
                for (lane, sum) in sum.iter_mut().enumerate() {
                    let pointer = from.add((at + lane * V::COUNT) * E::BYTES);
                    let value = E::load::<V>(pointer);
                    if MEASURE {
                        squares = squares.add(value.mul(value));
                    }
                    let term = weight.mul(value);
                    *sum = if index == 0 { term } else { sum.add(term) };
                }
                if MEASURE {
                    of_each = squares.widen(of_each);
                }
            }
            if MEASURE {
                let mut squares = V::splat(0.0);
                for sum in sum {
                    squares = squares.add(sum.mul(sum));
                }
                of_sum = squares.widen(of_sum);
            }
            for (lane, sum) in sum.into_iter().enumerate() {
                let byte = (at + lane * V::COUNT) * 4;
                let mut states = [sum; 2];
                for (state, from) in states.iter_mut().zip(&from[1..]).take(R::STATES) {
                    *state = V::load_f32(from.add(byte));
                }
                let parameter = rule.step(sum, V::load_f32(from[0].add(byte)), &mut states);
                zero = parameter.add_times_zero(zero);
                if R::STATES == 2 {
                    // A second moment that overflows leaves the parameter finite, and never lets it move again.
                    zero = states[1].add_times_zero(zero);
                }
                let results = [parameter, states[0], states[1]];
                for (result, to) in results.into_iter().zip(to).take(1 + R::STATES) {
                    if stream { result.stream(to.add(byte)) } else { result.store(to.add(byte)) }
                }
            }
        }
        at += U * V::COUNT;
    }
    // SAFETY: arithmetic alone; the caller has the vectors.
    found.finite &= unsafe { V::total(zero.widen(V::wide())) } == 0.0;
    if MEASURE {
        // SAFETY: arithmetic alone; the caller has the vectors.
        unsafe {
            found.moments.sum_norm_squared += V::total(of_sum);
            found.moments.each_norm_squared += V::total(of_each);
        }
    }
}

/// Prefetches what a turn at element `at` of `stream` will load, if there is any.
#[inline(always)]
fn ask_for<V: Lanes, const U: usize>(stream: *const u8, at: usize, size: usize) {
    let mut line = 0;
    while line < U * V::COUNT * size {
        lanes::prefetch(stream.wrapping_add(at * size + line));
        line += 64;
    }
}
