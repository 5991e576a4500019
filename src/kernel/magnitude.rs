//! The largest magnitude of a gradient's elements.

use crate::mem::VolatileSlice;
use crate::table::Encoding;

/// Copied out at a time: stays in the first-level cache.
const PIECE: usize = 8 << 10;

/// The largest of the elements' absolute values, in one pass over them; 0 of none. An element that is not a number
/// counts as infinite.
///
/// ```
/// use slackline::internals::kernel::largest_magnitude;
/// use slackline::internals::mem::VolatileSlice;
/// use slackline::Encoding;
/// let bytes: Vec<u8> = [1.0f32, -2.5, 0.25].iter().flat_map(|value| value.to_le_bytes()).collect();
/// assert_eq!(largest_magnitude(VolatileSlice::from_ref(&bytes), Encoding::F32), 2.5);
/// ```
///
/// # Panics
///
/// If `elements` are not whole elements of the encoding.
pub fn largest_magnitude(elements: VolatileSlice<'_>, encoding: Encoding) -> f32 {
    assert!(elements.len().is_multiple_of(encoding.bytes()), "the magnitude of a part of an element");
    let mut buffer = [0; PIECE];
    let mut most = 0;
    for at in (0..elements.len()).step_by(PIECE) {
        let piece = &mut buffer[..PIECE.min(elements.len() - at)];
        elements.subslice(at, piece.len()).read(piece);
        most = most.max(match encoding {
            Encoding::F32 => largest(piece, words),
            Encoding::Bf16 | Encoding::F16 => largest(piece, halves),
        });
    }
    let magnitude = match encoding {
        Encoding::F32 => f32::from_bits(most),
        Encoding::Bf16 => f32::from_bits(most << 16),
        Encoding::F16 => half::f16::from_bits(most as u16).to_f32(),
    };
    if magnitude.is_nan() { f32::INFINITY } else { magnitude }
}

/// Without their signs, floating point numbers are in the order of their bits, those that are not numbers last.
#[inline(always)]
fn words(piece: &[u8]) -> u32 {
    let bits = |word: &[u8; 4]| u32::from_le_bytes(*word) & 0x7fff_ffff;
    piece.as_chunks().0.iter().map(bits).fold(0, u32::max)
}

#[inline(always)]
fn halves(piece: &[u8]) -> u32 {
    let bits = |half: &[u8; 2]| u16::from_le_bytes(*half) & 0x7fff;
    piece.as_chunks().0.iter().map(bits).fold(0, u16::max).into()
}

/// The loop, compiled for the widest vectors at hand.
fn largest(piece: &[u8], of: impl Fn(&[u8]) -> u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw")]
        fn avx512(piece: &[u8], of: impl Fn(&[u8]) -> u32) -> u32 {
            of(piece)
        }
        #[target_feature(enable = "avx2")]
        fn avx2(piece: &[u8], of: impl Fn(&[u8]) -> u32) -> u32 {
            of(piece)
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has both features.
            return unsafe { avx512(piece, of) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { avx2(piece, of) };
        }
    }
    of(piece)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::encode;

    #[test]
    fn the_largest_is_found_wherever_it_stands() {
        for encoding in [Encoding::F32, Encoding::Bf16, Encoding::F16] {
            for count in [0usize, 1, 7, 64, 2048, 5000] {
                let mut values: Vec<f32> = (0..count).map(|at| (at % 5) as f32 / 8.0 - 0.25).collect();
                for at in [0, count / 2, count.saturating_sub(1)] {
                    let Some(value) = values.get_mut(at) else { continue };
                    let before = std::mem::replace(value, -3.5);
                    let mut bytes = vec![0; count * encoding.bytes() + 1];
                    let elements = VolatileSlice::from_mut(&mut bytes).subslice(1, count * encoding.bytes());
                    encode(&values, elements, encoding);
                    assert_eq!(largest_magnitude(elements, encoding), 3.5, "{encoding:?} {at} of {count}");
                    values[at] = before;
                }
            }
            assert_eq!(largest_magnitude(VolatileSlice::from_ref(&[]), encoding), 0.0);
        }
    }

    #[test]
    fn what_is_not_a_number_is_infinite() {
        for encoding in [Encoding::F32, Encoding::Bf16, Encoding::F16] {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut bytes = vec![0; 100 * encoding.bytes()];
                let mut values = [1.0; 100];
                values[70] = bad;
                encode(&values, VolatileSlice::from_mut(&mut bytes), encoding);
                assert_eq!(largest_magnitude(VolatileSlice::from_ref(&bytes), encoding), f32::INFINITY);
            }
        }
    }
}
