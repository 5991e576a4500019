//! The rails' parts of a striped request.

use std::ops::Range;
use std::time::Duration;

use crate::mem::MAX_RAILS;

/// The smallest share of a striped request that a rail gets, in bytes: shorter requests complete sooner on one rail.
const SHARE_LEAST: usize = 16 << 10;

/// Shares are multiples of this: whole packets of any size, and whole words.
const SHARE_UNIT: usize = 4096;

/// The shares of a striped request by the speeds of the rails. Sets of rails are bits; the first rail has the lowest.
pub(super) struct Shares {
    speeds: Vec<u32>,
}

impl Shares {
    /// Equal shares if a speed is unknown.
    pub(super) fn new(mut speeds: Vec<u32>) -> Shares {
        assert!(speeds.len() <= MAX_RAILS);
        if speeds.contains(&0) {
            speeds.fill(1);
        }
        Shares { speeds }
    }

    /// The speeds of these rails.
    fn speeds(&self, rails: u8) -> impl Iterator<Item = u64> {
        let of = move |(rail, speed): (usize, &u32)| (rails & 1 << rail != 0).then_some(u64::from(*speed));
        self.speeds.iter().enumerate().filter_map(of)
    }

    /// The length of the shortest request of which each of these rails gets [`SHARE_LEAST`].
    pub(super) fn least(&self, rails: u8) -> u64 {
        let sum: u64 = self.speeds(rails).sum();
        (SHARE_LEAST as u64 * sum).div_ceil(self.speeds(rails).min().unwrap_or(1))
    }

    /// One rail's part of a request of so many bytes that is striped over these rails: its start and its end.
    pub(super) fn part(&self, rails: u8, rail: usize, bytes: usize) -> Range<usize> {
        let before = rails & !(u8::MAX << rail);
        self.end(rails, before, bytes)..self.end(rails, before | 1 << rail, bytes)
    }

    /// The end of the parts of the first of these rails.
    fn end(&self, rails: u8, first: u8, bytes: usize) -> usize {
        let (sum, all): (u64, u64) = (self.speeds(first).sum(), self.speeds(rails).sum());
        // Speeds of all rails together are below 2^34, and requests below 2^64.
        let end = (bytes as u128 * u128::from(sum)).div_ceil(u128::from(all.max(1))) as usize;
        end.next_multiple_of(SHARE_UNIT).min(bytes)
    }
}

/// The time after which a rail of this speed in Mbit/s, 0 if unknown, is assumed never to transfer so many bytes: the
/// time at a hundredth of the speed, and at 10 Mbit/s at least.
pub(super) fn longest_transfer(bytes: u64, speed: u32) -> Duration {
    let bytes_per_ms = u64::from(speed.max(1_000) / 100) * 1_000 / 8;
    Duration::from_millis(bytes / bytes_per_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_may_take_a_hundred_times_as_long_as_its_rail_needs() {
        // 1 GB at 4 Gbit/s and at 10 Mbit/s.
        assert_eq!(longest_transfer(1_000_000_000, 400_000), Duration::from_secs(2));
        assert_eq!(longest_transfer(1_000_000_000, 0), Duration::from_secs(800));
        assert_eq!(longest_transfer(u64::MAX, 1), longest_transfer(u64::MAX, 1_000));
    }

    /// The lengths of the consecutive parts of a request over these rails.
    fn parts(speeds: &[u32], rails: u8, bytes: usize) -> Vec<usize> {
        let shares = Shares::new(speeds.to_vec());
        let of = (0..speeds.len()).filter(|rail| rails & 1 << rail != 0);
        let parts: Vec<Range<usize>> = of.map(|rail| shares.part(rails, rail, bytes)).collect();
        assert!(parts.windows(2).all(|two| two[0].end == two[1].start) && parts[0].start == 0);
        parts.into_iter().map(|part| part.len()).collect()
    }

    #[test]
    fn a_rail_gets_as_much_of_a_request_as_it_has_of_the_speed() {
        assert_eq!(parts(&[100_000, 100_000], 0b11, 1 << 20), [512 << 10, 512 << 10]);
        assert_eq!(parts(&[400_000, 200_000, 200_000], 0b111, 1 << 20), [512 << 10, 256 << 10, 256 << 10]);
        assert_eq!(parts(&[100_000, 0], 0b11, 1 << 20), [512 << 10, 512 << 10], "one of unknown speed");
        assert_eq!(
            parts(&[300_000, 200_000, 100_000], 0b101, 1 << 20),
            [768 << 10, 256 << 10],
            "one is lost"
        );
        assert_eq!(parts(&[300_000, 200_000], 0b01, 1 << 20), [1 << 20]);
    }

    #[test]
    fn parts_are_whole_units_that_make_the_request_and_none_is_too_short() {
        for speeds in [vec![1; 4], vec![400_000, 100_000], vec![2_500, 800_000, 40_000], vec![7, 1, 1, 3]] {
            for rails in (1..1_u8 << speeds.len()).filter(|rails| rails & 1 != 0) {
                let least = Shares::new(speeds.clone()).least(rails) as usize;
                for bytes in [least, least + 1, 3 * least + 4095, 64 << 20] {
                    let parts = parts(&speeds, rails, bytes);
                    assert_eq!(parts.iter().sum::<usize>(), bytes);
                    assert!(parts[..parts.len() - 1].iter().all(|part| part.is_multiple_of(SHARE_UNIT)));
                    // The last part is shorter by the bytes by which the others are rounded up.
                    assert!(
                        parts.iter().all(|part| *part > SHARE_LEAST - SHARE_UNIT),
                        "{speeds:?} {rails:b} {bytes}: {parts:?}"
                    );
                }
            }
        }
    }
}
