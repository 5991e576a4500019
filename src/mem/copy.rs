//! Copying: libc's memcpy where the destination is wanted in the cache, non-temporal stores where it is not.
//!
//! A copy longer than the caches loses a third of its bandwidth to reading each destination line before writing it;
//! a non-temporal store does not read it. Measured on two cores with 4 MiB of L2 each: 64 MiB 8 GB/s by memcpy,
//! 13.7 by non-temporal stores; 1 MiB 32 against 23 (`cargo xtask bench` measures both on the machine at hand).

use std::sync::LazyLock;

/// Whether a copy should go past the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// Decide by the length of this copy alone.
    #[default]
    ByLength,
    /// This copy is a piece of one of `total_bytes`: decide by that.
    PieceOf {
        /// Length of the whole.
        total_bytes: usize,
    },
    /// Always past the caches (where the processor can).
    Always,
    /// Never.
    Never,
}

/// From how many bytes on copies go past the caches: the size of one core's L2 cache, 2 MiB if it is not known.
pub fn streaming_threshold() -> usize {
    static THRESHOLD: LazyLock<usize> = LazyLock::new(|| {
        let text =
            std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
        let kib = text.trim().strip_suffix('K').and_then(|kib| kib.parse::<usize>().ok());
        kib.map_or(2 << 20, |kib| kib << 10)
    });
    *THRESHOLD
}

/// From how many bytes on a copy may make non-temporal stores, whatever was asked for.
///
/// Ours make none below a page, where setting them up is not worth it. libc's `memcpy` makes them on its own account:
/// glibc's does so from three quarters of its share of the last cache on, and from 16 KiB on where a virtual machine
/// reports its caches badly.
const MAY_STREAM: usize = 4096;

impl Streaming {
    #[inline]
    pub(crate) fn is_wanted(self, len: usize) -> bool {
        match self {
            Streaming::Never => false,
            Streaming::Always => len >= MAY_STREAM,
            Streaming::ByLength => len >= 64 << 10 && len >= streaming_threshold(),
            Streaming::PieceOf { total_bytes } => len >= MAY_STREAM && total_bytes >= streaming_threshold(),
        }
    }
}

/// Copies `len` bytes. A copy that streams stays behind every earlier store and before every later one.
///
/// # Safety
///
/// `source` must be valid for reads and `destination` for writes of `len` bytes. Others may write the source and
/// read the destination meanwhile; what is copied then is some mixture of bytes.
#[inline]
pub(super) unsafe fn copy_bytes(destination: *mut u8, source: *const u8, len: usize, streaming: Streaming) {
    if len <= 64 && (len | destination.addr() | source.addr()).is_multiple_of(8) {
        // Words never tear: that is what announcements and headers are made of.
        for at in (0..len).step_by(8) {
            // SAFETY: inside both ranges and aligned; both accesses are single machine words.
            unsafe {
                let word = source.add(at).cast::<u64>().read_volatile();
                destination.add(at).cast::<u64>().write_volatile(word);
            }
        }
        return;
    }
    if len >= MAY_STREAM {
        // A non-temporal store may pass an earlier plain one, such as the header that says "being written". The fence
        // takes no time that can be measured: 31.4 ns for 4 KiB with it and without.
        store_fence();
    }
    // SAFETY: the caller's promise, handed on.
    if streaming.is_wanted(len) && unsafe { stream(destination, source, len) } {
        return;
    }
    // `memcpy` of libc, called as a foreign function, so that the compiler can assume nothing about bytes that
    // others change: a Rust `copy_nonoverlapping` would be a data race in the abstract machine. Where it makes
    // non-temporal stores it ends with a store fence of its own.
    // SAFETY: the caller's promise.
    unsafe { libc::memcpy(destination.cast(), source.cast(), len) };
}

#[cfg(target_arch = "x86_64")]
use x86::{store_fence, stream};

/// Other processors' fences order non-temporal stores along with all others.
#[cfg(not(target_arch = "x86_64"))]
fn store_fence() {}

/// No copy goes past the caches of other processors.
///
/// # Safety
/// As [`copy_bytes`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(_destination: *mut u8, _source: *const u8, _len: usize) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    /// Bytes copied in one turn: four cache lines, so that the loads run ahead of the stores.
    const STEP: usize = 256;

    /// Keeps non-temporal stores that follow behind all stores before.
    #[inline]
    pub(super) fn store_fence() {
        // SAFETY: every x86-64 processor has SSE.
        unsafe { _mm_sfence() }
    }

    /// Copies past the caches. False, with nothing copied, where the processor cannot.
    ///
    /// # Safety
    /// As [`super::copy_bytes`].
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

    /// # Safety
    /// As [`super::copy_bytes`], on a processor with AVX-512F.
    #[target_feature(enable = "avx512f")]
    unsafe fn copy_avx512(destination: *mut u8, source: *const u8, len: usize) {
        let (head, body) = split(destination, len, 64);
        // SAFETY: head + body <= len, and the tail is what remains; stores are aligned to 64 after the head; loads
        // need no alignment. The fence orders the weakly ordered stores before all that follow (such as a header that
        // says "whole"); the caller's orders them behind all before.
        unsafe {
            libc::memcpy(destination.cast(), source.cast(), head);
            let (to, from) = (destination.add(head), source.add(head));
            for at in (0..body).step_by(STEP) {
                let line0 = _mm512_loadu_si512(from.add(at).cast());
                let line1 = _mm512_loadu_si512(from.add(at + 64).cast());
                let line2 = _mm512_loadu_si512(from.add(at + 128).cast());
                let line3 = _mm512_loadu_si512(from.add(at + 192).cast());
                _mm512_stream_si512(to.add(at).cast(), line0);
                _mm512_stream_si512(to.add(at + 64).cast(), line1);
                _mm512_stream_si512(to.add(at + 128).cast(), line2);
                _mm512_stream_si512(to.add(at + 192).cast(), line3);
            }
            libc::memcpy(to.add(body).cast(), from.add(body).cast(), len - head - body);
            _mm_sfence();
        }
    }

    /// # Safety
    /// As [`super::copy_bytes`], on a processor with AVX.
    #[target_feature(enable = "avx")]
    unsafe fn copy_avx(destination: *mut u8, source: *const u8, len: usize) {
        let (head, body) = split(destination, len, 32);
        // SAFETY: as in `copy_avx512`, with stores aligned to 32.
        unsafe {
            libc::memcpy(destination.cast(), source.cast(), head);
            let (to, from) = (destination.add(head), source.add(head));
            for at in (0..body).step_by(32) {
                _mm256_stream_si256(to.add(at).cast(), _mm256_loadu_si256(from.add(at).cast()));
            }
            libc::memcpy(to.add(body).cast(), from.add(body).cast(), len - head - body);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_copies_every_byte_at_every_alignment() {
        let source: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in [0, 1, 7, 8, 63, 255, 256, 4096, 4097, 9_999] {
            for (to_offset, from_offset) in [(0, 0), (1, 0), (0, 3), (63, 17), (32, 32)] {
                for streaming in [Streaming::ByLength, Streaming::Always, Streaming::Never] {
                    let mut destination = vec![0xAA; 12_000];
                    // SAFETY: both vectors are longer than offset + len, and distinct.
                    unsafe {
                        let to = destination.as_mut_ptr().add(to_offset);
                        copy_bytes(to, source.as_ptr().add(from_offset), len, streaming);
                    }
                    assert_eq!(
                        destination[to_offset..to_offset + len],
                        source[from_offset..from_offset + len]
                    );
                    assert!(destination[..to_offset].iter().all(|byte| *byte == 0xAA));
                    assert!(destination[to_offset + len..].iter().all(|byte| *byte == 0xAA));
                }
            }
        }
    }

    #[test]
    fn a_piece_of_a_long_copy_streams_and_a_short_copy_does_not() {
        assert!(Streaming::PieceOf { total_bytes: 1 << 30 }.is_wanted(1 << 20));
        assert!(!Streaming::PieceOf { total_bytes: 4096 }.is_wanted(4096));
        assert!(!Streaming::ByLength.is_wanted(4096));
    }
}
