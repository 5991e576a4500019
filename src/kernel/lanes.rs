//! Vectors of f32, from one lane to sixteen, with the same bits in every lane.

/// The vectors that the processor at hand has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// One f32 at a time: every processor.
    Scalar,
    /// 256 bits: AVX2, F16C and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bits: AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The widest there is.
    pub(super) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("fma")
            {
                return Level::Avx2;
            }
        }
        Level::Scalar
    }
}

/// `COUNT` f32 that are worked on at once. Every operation whose result is kept is one IEEE operation per lane, rounded
/// once.
///
/// Loads form no reference and read each byte once: what another writer leaves there becomes a number, and nothing
/// but arithmetic depends on it.
///
/// # Safety
///
/// All functions may be called only on a processor that has the vectors. Loads and stores need `COUNT` elements of
/// valid memory behind the pointer, of any alignment, but that [`stream`](Lanes::stream) needs it aligned to the
/// vector where that is wider than one f32.
pub(super) trait Lanes: Copy {
    /// The number of lanes.
    const COUNT: usize;
    /// Sums in f64.
    type Wide: Copy;
    /// All lanes the same.
    unsafe fn splat(value: f32) -> Self;
    /// Loads f32.
    unsafe fn load_f32(from: *const u8) -> Self;
    /// Loads bfloat16 and widens it, which is exact.
    unsafe fn load_bf16(from: *const u8) -> Self;
    /// Loads half precision and widens it, which is exact.
    unsafe fn load_f16(from: *const u8) -> Self;
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// `zero + self * 0`, where `zero` is zero or NaN: NaN stays, and comes where `self` is NaN or infinite. One fused
    /// instruction of the vectors: a second one (`zero + (self - self)`) made a fold in the cache 5 % slower.
    unsafe fn add_times_zero(self, zero: Self) -> Self;
    /// `self / other`.
    unsafe fn div(self, other: Self) -> Self;
    /// The square root.
    unsafe fn sqrt(self) -> Self;
    /// Sums that are zero.
    unsafe fn wide() -> Self::Wide;
    /// `sums` with all lanes added, each exact in f64.
    unsafe fn widen(self, sums: Self::Wide) -> Self::Wide;
    /// The sum of the sums, in the order of their lanes.
    unsafe fn total(sums: Self::Wide) -> f64;
    /// Stores f32.
    unsafe fn store(self, to: *mut u8);
    /// Stores f32 past the caches, where the processor can; [`stream_end`] orders it.
    unsafe fn stream(self, to: *mut u8);
}

/// Asks for the cache line at `from` into the first cache; it may be any address: this is a hint, and never faults.
#[inline(always)]
pub(super) fn prefetch(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE, and a prefetch of an invalid address does nothing.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// Orders streamed stores before every later store.
pub(super) fn stream_end() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

impl Lanes for f32 {
    const COUNT: usize = 1;
    type Wide = f64;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        value
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Self {
        // SAFETY: the caller's promise: 4 bytes, of any alignment.
        f32::from_bits(u32::from_le(unsafe { from.cast::<u32>().read_unaligned() }))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise: 2 bytes, of any alignment.
        let bits = u16::from_le(unsafe { from.cast::<u16>().read_unaligned() });
        f32::from_bits(u32::from(bits) << 16)
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise: 2 bytes, of any alignment.
        let bits = u16::from_le(unsafe { from.cast::<u16>().read_unaligned() });
        half::f16::from_bits(bits).to_f32()
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    unsafe fn add_times_zero(self, zero: Self) -> Self {
        zero + self * 0.0
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    unsafe fn wide() -> f64 {
        0.0
    }
    #[inline(always)]
    unsafe fn widen(self, sums: f64) -> f64 {
        sums + f64::from(self)
    }
    #[inline(always)]
    unsafe fn total(sums: f64) -> f64 {
        sums
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise: 4 writable bytes, of any alignment.
        unsafe { to.cast::<u32>().write_unaligned(self.to_bits().to_le()) };
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) };
    }
}
