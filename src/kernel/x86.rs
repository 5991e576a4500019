//! The vectors of x86-64.

use core::arch::x86_64::*;

use super::lanes::Lanes;

impl Lanes for __m256 {
    const COUNT: usize = 8;
    type Wide = __m256d;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: the caller has the vectors and 32 bytes there; the load needs no alignment.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller has the vectors and 16 bytes there; the load needs no alignment. A bfloat16 is the
        // upper half of an f32.
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller has the vectors and 16 bytes there; the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn add_times_zero(self, zero: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_fmadd_ps(self, _mm256_setzero_ps(), zero) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_sqrt_ps(self) }
    }
    #[inline(always)]
    unsafe fn wide() -> Self::Wide {
        // SAFETY: the caller has the vectors.
        unsafe { _mm256_setzero_pd() }
    }
    #[inline(always)]
    unsafe fn widen(self, sums: Self::Wide) -> Self::Wide {
        // SAFETY: the caller has the vectors.
        unsafe {
            let low = _mm256_cvtps_pd(_mm256_castps256_ps128(self));
            let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(self));
            _mm256_add_pd(_mm256_add_pd(sums, low), high)
        }
    }
    #[inline(always)]
    unsafe fn total(sums: Self::Wide) -> f64 {
        let mut each = [0.0; 4];
        // SAFETY: the caller has the vectors, and the array is as long as one.
        unsafe { _mm256_storeu_pd(each.as_mut_ptr(), sums) };
        each.iter().sum()
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has the vectors and 32 writable bytes there; the store needs no alignment.
        unsafe { _mm256_storeu_ps(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller has the vectors and 32 writable bytes there, aligned to as many.
        unsafe { _mm256_stream_ps(to.cast(), self) }
    }
}

impl Lanes for __m512 {
    const COUNT: usize = 16;
    type Wide = __m512d;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: the caller has the vectors and 64 bytes there; the load needs no alignment.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller has the vectors and 32 bytes there; the load needs no alignment. A bfloat16 is the
        // upper half of an f32.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller has the vectors and 32 bytes there; the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn add_times_zero(self, zero: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_fmadd_ps(self, _mm512_setzero_ps(), zero) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_sqrt_ps(self) }
    }
    #[inline(always)]
    unsafe fn wide() -> Self::Wide {
        // SAFETY: the caller has the vectors.
        unsafe { _mm512_setzero_pd() }
    }
    #[inline(always)]
    unsafe fn widen(self, sums: Self::Wide) -> Self::Wide {
        // SAFETY: the caller has the vectors.
        unsafe {
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(self));
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self));
            let high = _mm512_cvtps_pd(_mm256_castpd_ps(high));
            _mm512_add_pd(_mm512_add_pd(sums, low), high)
        }
    }
    #[inline(always)]
    unsafe fn total(sums: Self::Wide) -> f64 {
        let mut each = [0.0; 8];
        // SAFETY: the caller has the vectors, and the array is as long as one.
        unsafe { _mm512_storeu_pd(each.as_mut_ptr(), sums) };
        each.iter().sum()
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller has the vectors and 64 writable bytes there; the store needs no alignment.
        unsafe { _mm512_storeu_ps(to.cast(), self) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller has the vectors and 64 writable bytes there, aligned to as many.
        unsafe { _mm512_stream_ps(to.cast(), self) }
    }
}
