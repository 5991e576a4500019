//! The vectors of x86-64.

use core::arch::x86_64::*;

use super::lanes::Lanes;

impl Lanes for __m256 {
    const COUNT: usize = 8;
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
