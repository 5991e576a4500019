//! The ways in which one thread copies.

#[cfg(target_arch = "x86_64")]
pub(super) use x86::store_fence;
#[cfg(target_arch = "x86_64")]
use x86::{has_stream, has_string, stream, string};

/// A way to copy. Which one is the fastest depends on the machine and on the length, so that none is the best by
/// itself: `choice` finds it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Stores past the caches.
    Stream,
    /// `memcpy` of libc.
    Libc,
    /// The processor's instruction that copies strings, which may do without reading the lines that it writes.
    String,
}

impl Way {
    /// All of them, in their order as numbers; where two are equally fast, the earlier one is taken. Stores past the
    /// caches are the first: they leave the caches' content in the caches.
    pub const ALL: [Way; 3] = [Way::Stream, Way::Libc, Way::String];

    /// Whether this processor has it. A missing way is replaced by libc's.
    pub fn is_possible(self) -> bool {
        match self {
            Way::Libc => true,
            Way::String => has_string(),
            Way::Stream => has_stream(),
        }
    }

    /// Copies `len` bytes on this thread. Stores past the caches come before every later store; the caller keeps them
    /// behind the earlier ones, by [`store_fence`]. The other ways keep the order by themselves.
    ///
    /// # Safety
    /// As [`super::copy_bytes`].
    #[inline]
    pub(super) unsafe fn copy(self, destination: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the caller's promise, handed on; each function is called only where the processor has it.
        let done = unsafe {
            match self {
                Way::Libc => false,
                Way::String => string(destination, source, len),
                Way::Stream => stream(destination, source, len),
            }
        };
        if !done {
            // `memcpy` of libc, called as a foreign function, so that the compiler can assume nothing about bytes that
            // others change: a Rust `copy_nonoverlapping` would be a data race in the abstract machine. Where it makes
            // non-temporal stores it ends with a store fence of its own.
            // SAFETY: the caller's promise.
            unsafe { libc::memcpy(destination.cast(), source.cast(), len) };
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use others::store_fence;
#[cfg(not(target_arch = "x86_64"))]
use others::{has_stream, has_string, stream, string};

/// Other processors copy by libc alone, and their fences order all stores alike.
#[cfg(not(target_arch = "x86_64"))]
mod others {
    pub(in super::super) fn store_fence() {}

    pub(super) fn has_string() -> bool {
        false
    }

    pub(super) fn has_stream() -> bool {
        false
    }

    /// # Safety
    /// None is needed: nothing is copied.
    pub(super) unsafe fn string(_destination: *mut u8, _source: *const u8, _len: usize) -> bool {
        false
    }

    /// # Safety
    /// None is needed: nothing is copied.
    pub(super) unsafe fn stream(_destination: *mut u8, _source: *const u8, _len: usize) -> bool {
        false
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::asm;
    use core::arch::x86_64::*;

    /// Bytes copied in one turn: four cache lines, so that the loads run ahead of the stores.
    const STEP: usize = 256;

    /// Bytes in a page, at whose end the processor's own prefetchers stop.
    const PAGE: usize = 4096;

    /// Keeps non-temporal stores that follow behind all stores before.
    #[inline]
    pub(in super::super) fn store_fence() {
        // SAFETY: every x86-64 processor has SSE.
        unsafe { _mm_sfence() }
    }

    /// Whether the string instruction is made for long copies.
    pub(super) fn has_string() -> bool {
        is_x86_feature_detected!("ermsb")
    }

    pub(super) fn has_stream() -> bool {
        is_x86_feature_detected!("avx")
    }

    /// Copies by the string instruction. False, with nothing copied, where it is slow. Its stores may overtake each
    /// other and are in order with all others, as those of libc's `memcpy`, which uses it, too.
    ///
    /// # Safety
    /// As [`super::super::copy_bytes`].
    #[inline]
    pub(super) unsafe fn string(destination: *mut u8, source: *const u8, len: usize) -> bool {
        if !has_string() {
            return false;
        }
        // SAFETY: the caller's promise; the direction flag is clear, as the calling convention wants it. The compiler
        // takes the block for code that may read and write all memory that others can reach.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rdi") destination => _,
                inout("rsi") source => _,
                options(nostack, preserves_flags),
            );
        }
        true
    }

    /// Copies past the caches. False, with nothing copied, where the processor cannot.
    ///
    /// # Safety
    /// As [`super::super::copy_bytes`].
    #[inline]
    pub(super) unsafe fn stream(destination: *mut u8, source: *const u8, len: usize) -> bool {
        // SAFETY: the caller's promise, handed on; each function is called only where the processor has it.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                copy_avx512(destination, source, len);
                return true;
            }
            if is_x86_feature_detected!("avx") {
                copy_avx(destination, source, len);
                return true;
            }
        }
        false
    }

    /// Returns the length of the head, which ends at the destination's first aligned address, and of the body of
    /// whole steps that follows. The head and what is behind the body are left to memcpy.
    fn split(destination: *mut u8, len: usize, align: usize) -> (usize, usize) {
        let head = destination.align_offset(align).min(len);
        let body = (len - head) / STEP * STEP;
        (head, body)
    }

    /// Asks for a line of each of the two pages behind these, so that their translations are there when the copy comes
    /// to them (docs/measurements.md has what that saves). Any address may be asked for; this is a hint, and never
    /// faults.
    #[inline(always)]
    fn ask_for_next_pages(destination: *mut u8, source: *const u8) {
        // SAFETY: every x86-64 processor has SSE, and a prefetch of an invalid address does nothing.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(PAGE).cast());
            _mm_prefetch::<_MM_HINT_T0>(destination.wrapping_add(PAGE).cast_const().cast());
        }
    }

    /// # Safety
    /// As [`super::super::copy_bytes`], on a processor with AVX-512F.
    #[target_feature(enable = "avx512f")]
    unsafe fn copy_avx512(destination: *mut u8, source: *const u8, len: usize) {
        let (head, body) = split(destination, len, 64);
        // SAFETY: head + body <= len, and the tail is what remains; stores are aligned to 64 after the head; loads
        // need no alignment. The fence orders the weakly ordered stores before all later ones (such as a header that
        // says "whole"); the caller's fence orders them behind all earlier ones.
        unsafe {
            libc::memcpy(destination.cast(), source.cast(), head);
            let (to, from) = (destination.add(head), source.add(head));
            for page in (0..body).step_by(PAGE) {
                ask_for_next_pages(to.add(page), from.add(page));
                for at in (page..body.min(page + PAGE)).step_by(STEP) {
                    let line0 = _mm512_loadu_si512(from.add(at).cast());
                    let line1 = _mm512_loadu_si512(from.add(at + 64).cast());
                    let line2 = _mm512_loadu_si512(from.add(at + 128).cast());
                    let line3 = _mm512_loadu_si512(from.add(at + 192).cast());
                    _mm512_stream_si512(to.add(at).cast(), line0);
                    _mm512_stream_si512(to.add(at + 64).cast(), line1);
                    _mm512_stream_si512(to.add(at + 128).cast(), line2);
                    _mm512_stream_si512(to.add(at + 192).cast(), line3);
                }
            }
            libc::memcpy(to.add(body).cast(), from.add(body).cast(), len - head - body);
            _mm_sfence();
        }
    }

    /// # Safety
    /// As [`super::super::copy_bytes`], on a processor with AVX.
    #[target_feature(enable = "avx")]
    unsafe fn copy_avx(destination: *mut u8, source: *const u8, len: usize) {
        let (head, body) = split(destination, len, 32);
        // SAFETY: as in `copy_avx512`, with stores aligned to 32.
        unsafe {
            libc::memcpy(destination.cast(), source.cast(), head);
            let (to, from) = (destination.add(head), source.add(head));
            for page in (0..body).step_by(PAGE) {
                ask_for_next_pages(to.add(page), from.add(page));
                for at in (page..body.min(page + PAGE)).step_by(32) {
                    _mm256_stream_si256(to.add(at).cast(), _mm256_loadu_si256(from.add(at).cast()));
                }
            }
            libc::memcpy(to.add(body).cast(), from.add(body).cast(), len - head - body);
            _mm_sfence();
        }
    }
}
