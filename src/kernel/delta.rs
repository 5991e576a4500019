//! Differences between two versions of the same bytes, lossless: which units changed, and what they are now.
//!
//! A difference is a row of runs. Each is a number, `unchanged units before it << 1 | is_long`, where it is long the
//! number of its units less two, and then its new units. Numbers are LEB128, seven bits in a byte. Units are compared
//! as bits: a NaN keeps its payload, and 0.0 is not -0.0. A last unit that the payload cuts off is as long as it is.

use crate::mem::{Streaming, VolatileSlice};

/// Compared at a time: two of these stay in the first-level cache. A run does not go beyond it.
const PIECE: usize = 8 << 10;

/// Longest number in bytes: 64 bits in sevens.
const NUMBER_MAX: usize = 10;

/// A difference that no encoder has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the difference is damaged: it ends early, or reaches beyond the version")]
pub struct DamagedDelta;

/// Writes the difference from `before` to `after`, in units of `unit` bytes (1, 2, 4 or 8), to `out`, and returns its
/// length; `None` if it does not fit.
///
/// With 2 % of bf16 values changed, anywhere, it is 3.3 % as long as the version: two bytes for each value, and mostly
/// one for the way to it.
///
/// # Panics
/// If `before` and `after` differ in length, or `unit` is none of these.
///
/// ```
/// use slackline::internals::kernel::{apply_delta, encode_delta};
/// use slackline::internals::mem::VolatileSlice;
///
/// let (mut held, newer) = ([1.0f32, 0.0, 3.0].map(f32::to_le_bytes), [1.0f32, -0.0, 3.0].map(f32::to_le_bytes));
/// let (held, newer) = (held.as_flattened_mut(), newer.as_flattened());
/// let mut delta = [0; 12];
/// let out = VolatileSlice::from_mut(&mut delta);
/// let bytes = encode_delta(VolatileSlice::from_ref(held), VolatileSlice::from_ref(newer), 4, out);
/// assert_eq!(bytes, Some(5));
/// apply_delta(VolatileSlice::from_ref(&delta[..5]), VolatileSlice::from_mut(held), 4)?;
/// assert_eq!(held, newer);
/// # Ok::<(), slackline::internals::kernel::DamagedDelta>(())
/// ```
pub fn encode_delta(
    before: VolatileSlice<'_>,
    after: VolatileSlice<'_>,
    unit: usize,
    out: VolatileSlice<'_>,
) -> Option<usize> {
    assert_eq!(before.len(), after.len(), "the difference of versions of different lengths");
    let mut encoder = Encoder { out, flushed: 0, buffer: [0; 2 * PIECE], filled: 0, unchanged: 0 };
    let (mut old, mut new) = ([0; PIECE], [0; PIECE]);
    for at in (0..before.len()).step_by(PIECE) {
        let len = PIECE.min(before.len() - at);
        before.subslice(at, len).read(&mut old[..len]);
        after.subslice(at, len).read(&mut new[..len]);
        match unit {
            1 => encoder.piece::<1>(&old[..len], &new[..len])?,
            2 => encoder.piece::<2>(&old[..len], &new[..len])?,
            4 => encoder.piece::<4>(&old[..len], &new[..len])?,
            8 => encoder.piece::<8>(&old[..len], &new[..len])?,
            _ => panic!("a unit of {unit} bytes"),
        }
    }
    encoder.flush()?;
    Some(encoder.flushed)
}

struct Encoder<'a> {
    out: VolatileSlice<'a>,
    flushed: usize,
    buffer: [u8; 2 * PIECE],
    filled: usize,
    /// Units since the last run.
    unchanged: u64,
}

impl Encoder<'_> {
    fn piece<const UNIT: usize>(&mut self, old: &[u8], new: &[u8]) -> Option<()> {
        let units = old.len().div_ceil(UNIT);
        let differs = |unit: usize| {
            let range = unit * UNIT..((unit + 1) * UNIT).min(old.len());
            old[range.clone()] != new[range]
        };
        let mut at = 0;
        while at < units {
            let word = at * UNIT..at * UNIT + 8;
            if old.get(word.clone()).is_some_and(|old| old == &new[word]) {
                at += 8 / UNIT;
                self.unchanged += (8 / UNIT) as u64;
            } else if differs(at) {
                let end = (at + 1..units).find(|unit| !differs(*unit)).unwrap_or(units);
                self.run(end - at, &new[at * UNIT..(end * UNIT).min(new.len())])?;
                at = end;
            } else {
                at += 1;
                self.unchanged += 1;
            }
        }
        Some(())
    }

    fn run(&mut self, units: usize, bytes: &[u8]) -> Option<()> {
        if self.filled + 2 * NUMBER_MAX + bytes.len() > self.buffer.len() {
            self.flush()?;
        }
        let unchanged = std::mem::take(&mut self.unchanged);
        self.number(unchanged << 1 | u64::from(units > 1));
        if units > 1 {
            self.number(units as u64 - 2);
        }
        self.buffer[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Some(())
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.buffer[self.filled] = number as u8 | 0x80;
            self.filled += 1;
            number >>= 7;
        }
        self.buffer[self.filled] = number as u8;
        self.filled += 1;
    }

    fn flush(&mut self) -> Option<()> {
        let filled = std::mem::take(&mut self.filled);
        if filled > self.out.len() - self.flushed {
            return None;
        }
        self.out.subslice(self.flushed, filled).write(&self.buffer[..filled]);
        self.flushed += filled;
        Some(())
    }
}

/// Applies a difference to `held`, which holds the version that it was made from.
///
/// # Errors
/// The difference is damaged; what `held` has then is no version any more.
///
/// # Panics
/// If `unit` is not the 1, 2, 4 or 8 that it was made with.
pub fn apply_delta(
    delta: VolatileSlice<'_>,
    held: VolatileSlice<'_>,
    unit: usize,
) -> Result<(), DamagedDelta> {
    assert!(matches!(unit, 1 | 2 | 4 | 8), "a unit of {unit} bytes");
    let mut decoder = Decoder { delta, fetched: 0, buffer: [0; PIECE], at: 0, end: 0 };
    let mut at = 0usize;
    while !decoder.is_at_end() {
        let first = decoder.number()?;
        let units = if first & 1 == 1 { decoder.number()?.checked_add(2) } else { Some(1) };
        let begin = bytes_of(first >> 1, unit).and_then(|skip| at.checked_add(skip));
        let (begin, bytes) = begin.zip(units.and_then(|units| bytes_of(units, unit))).ok_or(DamagedDelta)?;
        let left = held.len().checked_sub(begin).filter(|left| *left > 0).ok_or(DamagedDelta)?;
        // Only the last unit of all may be cut off.
        if bytes >= left + unit {
            return Err(DamagedDelta);
        }
        let bytes = bytes.min(left);
        decoder.copy_to(held.subslice(begin, bytes))?;
        at = begin + bytes;
    }
    Ok(())
}

fn bytes_of(units: u64, unit: usize) -> Option<usize> {
    usize::try_from(units).ok()?.checked_mul(unit)
}

struct Decoder<'a> {
    delta: VolatileSlice<'a>,
    fetched: usize,
    buffer: [u8; PIECE],
    at: usize,
    end: usize,
}

impl Decoder<'_> {
    fn is_at_end(&mut self) -> bool {
        if self.at == self.end {
            self.end = PIECE.min(self.delta.len() - self.fetched);
            self.at = 0;
            self.delta.subslice(self.fetched, self.end).read(&mut self.buffer[..self.end]);
            self.fetched += self.end;
        }
        self.end == 0
    }

    fn number(&mut self) -> Result<u64, DamagedDelta> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            if self.is_at_end() {
                return Err(DamagedDelta);
            }
            let byte = self.buffer[self.at];
            self.at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DamagedDelta)
    }

    fn copy_to(&mut self, to: VolatileSlice<'_>) -> Result<(), DamagedDelta> {
        let mut copied = 0;
        while copied < to.len() {
            if self.is_at_end() {
                return Err(DamagedDelta);
            }
            let len = (self.end - self.at).min(to.len() - copied);
            let from = VolatileSlice::from_ref(&self.buffer[self.at..self.at + len]);
            to.subslice(copied, len).copy_from(from, Streaming::Never);
            self.at += len;
            copied += len;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(before: &[u8], after: &[u8], unit: usize, room: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; room];
        let (before, after) = (VolatileSlice::from_ref(before), VolatileSlice::from_ref(after));
        let len = encode_delta(before, after, unit, VolatileSlice::from_mut(&mut out))?;
        out.truncate(len);
        Some(out)
    }

    fn apply(delta: &[u8], before: &[u8], unit: usize) -> Result<Vec<u8>, DamagedDelta> {
        let mut held = before.to_vec();
        apply_delta(VolatileSlice::from_ref(delta), VolatileSlice::from_mut(&mut held), unit)?;
        Ok(held)
    }

    /// Written out by hand after the format: 3 units unchanged, one changed; 70 unchanged, three changed.
    #[test]
    fn a_difference_is_what_the_format_says() {
        let before = vec![0u8; 2 * 80];
        let mut after = before.clone();
        after[6..8].copy_from_slice(&[1, 2]);
        after[148..154].copy_from_slice(&[3, 0, 0, 4, 5, 6]);
        let delta = [3 << 1, 1, 2, (70 << 1 | 1) & 0x7f | 0x80, (70 << 1 | 1) >> 7, 1, 3, 0, 0, 4, 5, 6];
        assert_eq!(encode(&before, &after, 2, 100).unwrap(), delta);
        assert_eq!(apply(&delta, &before, 2).unwrap(), after);
        assert_eq!(encode(&before, &after, 2, delta.len()).unwrap(), delta);
        assert_eq!(encode(&before, &after, 2, delta.len() - 1), None, "there is no room");
    }

    #[test]
    fn bits_are_compared_and_not_values() {
        let nans = [f32::NAN, f32::from_bits(0x7fc0_0001), f32::from_bits(0xffc0_dead), 0.0];
        let others = [f32::from_bits(0x7fc0_0002), f32::from_bits(0x7fc0_0001), f32::NAN, -0.0];
        let [before, after] = [nans, others].map(|values| values.map(f32::to_le_bytes));
        let (before, after) = (before.as_flattened(), after.as_flattened());
        let delta = encode(before, after, 4, 100).unwrap();
        assert_eq!(apply(&delta, before, 4).unwrap(), after);
        assert_eq!(delta.len(), 5 + 2 + 8, "the second value is the same NaN");
    }

    #[test]
    fn two_percent_of_changed_values_are_less_than_four_percent_of_the_bytes() {
        let (before, values) = (vec![0x3f; 2 << 20], 1 << 20);
        let mut after = before.clone();
        let mut random = 1u64;
        let changed = (0..values).filter(|value| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let changes = random >> 32 < (1 << 32) / 50;
            after[2 * value] ^= u8::from(changes);
            changes
        });
        let changed = changed.count();
        assert!((20_000..22_000).contains(&changed), "{changed} of {values}");
        let delta = encode(&before, &after, 2, after.len()).unwrap();
        assert!(delta.len() * 25 < after.len(), "{} of {}", delta.len(), after.len());
        assert_eq!(apply(&delta, &before, 2).unwrap(), after);
    }

    #[test]
    fn damaged_differences_are_errors() {
        let held = [0; 10];
        // Behind the end, an end that comes early, a run beyond the end, numbers without an end or beyond 64 bits.
        for delta in [
            &[20, 1, 2][..],
            &[0, 1],
            &[1, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            &[0x80],
            &[0xff; 12],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ] {
            assert_eq!(apply(delta, &held, 2), Err(DamagedDelta), "{delta:?}");
        }
        assert_eq!(apply(&[], &held, 2).unwrap(), held);
    }

    proptest! {
        #[test]
        fn what_is_applied_is_bit_identical(
            before in prop::collection::vec(0u8..3, 1..300),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            repeat in 1usize..100,
            unit in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let before = before.repeat(repeat);
            let mut after = before.clone();
            for (at, value) in changes {
                let at = at.index(after.len());
                after[at] = value;
            }
            let delta = encode(&before, &after, unit, 2 * after.len() + 20).unwrap();
            prop_assert_eq!(apply(&delta, &before, unit).unwrap(), after);
        }
    }
}
