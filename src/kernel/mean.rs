//! The mean of several vectors.

use super::lanes::{Lanes, Level};
use crate::mem::VolatileSlice;

/// Elements in one turn: 256 bytes of each vector.
const TURN: usize = 64;

/// The mean of f32 vectors, element by element: they are added in the order given, from the left, and the sum is
/// divided by their number. Each operation is rounded once, so that every processor gives the same bits. `parts` are
/// read where they lie, and others may be writing them: what is read then is garbage, not harm
/// (`docs/architecture.md`, "Memory and `unsafe`").
///
/// ```
/// use slackline::internals::kernel::mean;
/// use slackline::internals::mem::VolatileSlice;
/// let (one, two, mut to) = (1f32.to_le_bytes(), 2f32.to_le_bytes(), [0; 4]);
/// let parts = [VolatileSlice::from_ref(&one), VolatileSlice::from_ref(&two)];
/// mean(&parts, VolatileSlice::from_mut(&mut to));
/// assert_eq!(f32::from_le_bytes(to), 1.5);
/// ```
///
/// # Panics
///
/// If there are no parts, if the lengths differ or are not whole elements, or if `to` is read-only.
pub fn mean(parts: &[VolatileSlice<'_>], to: VolatileSlice<'_>) {
    assert!(!parts.is_empty(), "the mean of nothing");
    assert!(parts.iter().all(|part| part.len() == to.len()), "the mean of vectors of different lengths");
    assert!(to.len().is_multiple_of(4), "the mean of a part of an element");
    assert!(to.is_writable(), "a mean into memory that was granted read-only");
    let count = to.len() / 4;
    let body = count / TURN * TURN;
    // SAFETY: all ranges hold `count` elements, `to` is writable, and each path is taken only where the processor has
    // its vectors; `body` is whole vectors of all of them. Should ranges overlap, what is read is some mixture.
    unsafe {
        match Level::best() {
            Level::Scalar => turns::<f32>(parts, to, 0, body),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::avx2(parts, to, body),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::avx512(parts, to, body),
        }
        turns::<f32>(parts, to, body, count);
    }
}

/// # Safety
/// As for [`Lanes`], for the elements `from..end`, which are whole vectors.
#[inline(always)]
unsafe fn turns<V: Lanes>(parts: &[VolatileSlice<'_>], to: VolatileSlice<'_>, from: usize, end: usize) {
    let (first, rest) = (parts[0], &parts[1..]);
    // SAFETY: the caller's promise.
    unsafe {
        let count = V::splat(parts.len() as f32);
        for at in (from..end).step_by(V::COUNT) {
            let mut sum = V::load_f32(first.as_ptr().add(at * 4));
            for part in rest {
                sum = sum.add(V::load_f32(part.as_ptr().add(at * 4)));
            }
            sum.div(count).store(to.as_ptr().add(at * 4));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__m256, __m512};

    use super::{VolatileSlice, turns};

    /// # Safety
    /// As for [`turns`], on a processor with AVX2.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn avx2(parts: &[VolatileSlice<'_>], to: VolatileSlice<'_>, body: usize) {
        // SAFETY: the caller's promise.
        unsafe { turns::<__m256>(parts, to, 0, body) }
    }

    /// # Safety
    /// As for [`turns`], on a processor with AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(parts: &[VolatileSlice<'_>], to: VolatileSlice<'_>, body: usize) {
        // SAFETY: the caller's promise.
        unsafe { turns::<__m512>(parts, to, 0, body) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_that_of_a_plain_loop_to_the_bit_at_every_length() {
        for (count, len) in [(1, 5), (2, 64), (3, 200), (5, 1003), (8, 64)] {
            let value = |part: usize, index: usize| ((part * 31 + index * 7) as f32 * 0.37).sin() * 1e3;
            let bytes: Vec<Vec<u8>> = (0..count)
                .map(|part| (0..len).flat_map(|index| value(part, index).to_le_bytes()).collect())
                .collect();
            let parts: Vec<_> = bytes.iter().map(|bytes| VolatileSlice::from_ref(bytes)).collect();
            let mut to = vec![0; len * 4];
            mean(&parts, VolatileSlice::from_mut(&mut to));
            for (index, got) in to.as_chunks::<4>().0.iter().enumerate() {
                let sum = (1..count).fold(value(0, index), |sum, part| sum + value(part, index));
                assert_eq!(f32::from_le_bytes(*got).to_bits(), (sum / count as f32).to_bits());
            }
        }
    }
}
