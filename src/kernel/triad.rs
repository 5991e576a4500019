//! The limit that folds are measured against.

use super::lanes::{self, Lanes, Level};
use crate::mem::VolatileSlice;

/// Elements in one turn: 256 bytes of each stream.
const TURN: usize = 64;

/// `a = b + scalar * c` over f32, past the caches: STREAM's triad (McCalpin, 1995), which moves 12 bytes per element
/// as fast as memory goes.
///
/// # Panics
///
/// If the lengths differ or are not whole elements, if `a` is read-only, or if `a` does not begin at a cache line.
pub fn triad(a: VolatileSlice<'_>, b: VolatileSlice<'_>, c: VolatileSlice<'_>, scalar: f32) {
    assert!(a.len() == b.len() && a.len() == c.len(), "triad over ranges of different lengths");
    assert!(a.len().is_multiple_of(4), "triad over a part of an element");
    assert!(a.is_writable(), "triad into memory that was granted read-only");
    assert!(a.as_ptr().addr().is_multiple_of(64), "triad into memory that does not begin at a cache line");
    let count = a.len() / 4;
    let body = count / TURN * TURN;
    // SAFETY: `a` begins at a cache line, so each vector's store is aligned to it; all ranges hold `count` elements.
    // Should they overlap, what is read is some mixture, as with any other writer.
    unsafe {
        match Level::best() {
            Level::Scalar => turns::<f32>(a, b, c, scalar, 0, body),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::avx2(a, b, c, scalar, body),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::avx512(a, b, c, scalar, body),
        }
        turns::<f32>(a, b, c, scalar, body, count);
    }
    lanes::stream_end();
}

/// # Safety
/// As for [`Lanes`], for the elements `from..to`, which are whole vectors.
#[inline(always)]
unsafe fn turns<V: Lanes>(
    a: VolatileSlice<'_>,
    b: VolatileSlice<'_>,
    c: VolatileSlice<'_>,
    scalar: f32,
    from: usize,
    to: usize,
) {
    for at in (from..to).step_by(V::COUNT) {
        // SAFETY: the caller's promise.
        unsafe {
            let product = V::splat(scalar).mul(V::load_f32(c.as_ptr().add(at * 4)));
            V::load_f32(b.as_ptr().add(at * 4)).add(product).stream(a.as_ptr().add(at * 4));
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
    pub(super) unsafe fn avx2(
        a: VolatileSlice<'_>,
        b: VolatileSlice<'_>,
        c: VolatileSlice<'_>,
        scalar: f32,
        body: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { turns::<__m256>(a, b, c, scalar, 0, body) }
    }

    /// # Safety
    /// As for [`turns`], on a processor with AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(
        a: VolatileSlice<'_>,
        b: VolatileSlice<'_>,
        c: VolatileSlice<'_>,
        scalar: f32,
        body: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { turns::<__m512>(a, b, c, scalar, 0, body) }
    }
}
