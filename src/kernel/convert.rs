//! Between f32 of one's own and encoded elements in shared memory.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::mem::{Streaming, VolatileSlice};
use crate::table::Encoding;

#[cfg(target_endian = "big")]
compile_error!("elements are little-endian in shared memory, and nothing here swaps them yet");

/// Elements converted at a time: both sides of it stay in the first-level cache.
const PIECE: usize = 2048;

/// Writes `from` to `to` in the given encoding, rounding to nearest, ties to even.
///
/// ```
/// use slackline::internals::kernel::{decode, encode};
/// use slackline::internals::mem::VolatileSlice;
/// use slackline::Encoding;
/// let mut bytes = [0; 4];
/// encode(&[1.0, -2.5], VolatileSlice::from_mut(&mut bytes), Encoding::Bf16);
/// let mut values = [0.0; 2];
/// decode(VolatileSlice::from_ref(&bytes), Encoding::Bf16, &mut values);
/// assert_eq!(values, [1.0, -2.5]);
/// ```
///
/// # Panics
///
/// If `to` is not as long as that needs, or is read-only.
pub fn encode(from: &[f32], to: VolatileSlice<'_>, encoding: Encoding) {
    let size = encoding.bytes();
    assert_eq!(Some(to.len()), from.len().checked_mul(size), "encoding into a range of another length");
    let streaming = Streaming::PieceOf { total_bytes: to.len() };
    let mut buffer = [0u16; PIECE];
    for (index, from) in from.chunks(PIECE).enumerate() {
        let halves = &mut buffer[..from.len()];
        let bytes = match encoding {
            Encoding::F32 => bytes_of(from),
            Encoding::Bf16 => {
                narrow(from, halves);
                bytes_of(halves)
            }
            Encoding::F16 => {
                halves.reinterpret_cast_mut::<f16>().convert_from_f32_slice(from);
                bytes_of(halves)
            }
        };
        to.subslice(index * PIECE * size, bytes.len()).copy_from(VolatileSlice::from_ref(bytes), streaming);
    }
}

/// Reads `from`, which is in the given encoding, into `to`. Exact.
///
/// # Panics
///
/// If `from` is not as long as `to` asks for.
pub fn decode(from: VolatileSlice<'_>, encoding: Encoding, to: &mut [f32]) {
    let size = encoding.bytes();
    assert_eq!(Some(from.len()), to.len().checked_mul(size), "decoding from a range of another length");
    if encoding == Encoding::F32 {
        return from.read(bytes_of_mut(to));
    }
    let mut buffer = [0u16; PIECE];
    for (index, to) in to.chunks_mut(PIECE).enumerate() {
        let halves = &mut buffer[..to.len()];
        from.subslice(index * PIECE * size, to.len() * size).read(bytes_of_mut(halves));
        if encoding == Encoding::Bf16 {
            for (to, half) in to.iter_mut().zip(halves) {
                *to = f32::from_bits(u32::from(*half) << 16);
            }
        } else {
            halves.reinterpret_cast::<f16>().convert_to_f32_slice(to);
        }
    }
}

/// f32 to bfloat16, compiled for the widest vectors at hand.
fn narrow(from: &[f32], to: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw")]
        fn avx512(from: &[f32], to: &mut [u16]) {
            narrow_each(from, to);
        }
        #[target_feature(enable = "avx2")]
        fn avx2(from: &[f32], to: &mut [u16]) {
            narrow_each(from, to);
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has both features.
            return unsafe { avx512(from, to) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { avx2(from, to) };
        }
    }
    narrow_each(from, to);
}

#[inline(always)]
fn narrow_each(from: &[f32], to: &mut [u16]) {
    for (value, half) in from.iter().zip(to) {
        // As `half::bf16::from_f32`, but without a branch, so that it becomes vectors.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        *half = if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16;
    }
}

/// Numbers, every bit pattern of which is one and which have no padding.
trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u16 {}

fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the same bytes for the same lifetime; a `Plain` has no padding, and u8 no alignment.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: the same bytes, exclusively, for the same lifetime; whatever is written is a `Plain` again.
    unsafe { core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_rounds_as_half_does() {
        let step = if cfg!(miri) { 1_000_003 } else { 4_099 };
        let values: Vec<f32> = (0..=u32::MAX)
            .step_by(step)
            .chain([0x7f7f_8000, 0x7f80_0001, 0x0000_8000])
            .chain((0..0x1_0000).map(|upper| upper << 16 | 0x8000))
            .map(f32::from_bits)
            .collect();
        let mut bytes = vec![0; values.len() * 2];
        encode(&values, VolatileSlice::from_mut(&mut bytes), Encoding::Bf16);
        for (value, half) in values.iter().zip(bytes.as_chunks::<2>().0) {
            assert_eq!(u16::from_le_bytes(*half), half::bf16::from_f32(*value).to_bits(), "{value}");
        }
    }

    #[test]
    fn every_half_survives_a_round_trip() {
        for encoding in [Encoding::Bf16, Encoding::F16] {
            let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut values = vec![0.0; 1 << 16];
            decode(VolatileSlice::from_ref(&bytes), encoding, &mut values);
            let mut again = vec![0; bytes.len()];
            encode(&values, VolatileSlice::from_mut(&mut again), encoding);
            for ((value, bytes), again) in
                values.iter().zip(bytes.as_chunks::<2>().0).zip(again.as_chunks::<2>().0)
            {
                assert!(bytes == again || value.is_nan(), "{encoding:?} {bytes:?} became {again:?}");
            }
        }
    }

    #[test]
    fn f32_is_copied() {
        let values: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let mut bytes = vec![0; 20_000];
        encode(&values, VolatileSlice::from_mut(&mut bytes), Encoding::F32);
        let mut again = vec![0.0; 5000];
        decode(VolatileSlice::from_ref(&bytes), Encoding::F32, &mut again);
        assert_eq!(values, again);
    }
}
