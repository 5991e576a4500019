//! Random numbers that are the same on every platform and with every version of the crates under us.
//!
//! Only the ChaCha stream itself is taken from a crate. What is drawn from it (an index, a shuffle) is
//! spelled out here, since libraries of distributions may change theirs between versions and a split
//! or a run would silently change with them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The purpose of a stream, so that the same seed gives unrelated numbers for different uses.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// The choice of the examples that go to the test part.
    Split = 1,
    /// Initial parameters.
    Parameters = 2,
    /// The order of the examples in one epoch.
    Epoch = 3,
    /// The order in which examples of one label are dealt out to workers.
    Shards = 4,
}

/// A stream of random numbers.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// The stream for `seed`, `purpose` and a `part` of that purpose, such as the epoch.
    pub(crate) fn new(seed: u64, purpose: Purpose, part: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&(purpose as u64).to_le_bytes());
        key[16..24].copy_from_slice(&part.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// An index below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        // The bias of multiply-and-shift is at most bound / 2^64: no run is long enough to see it.
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in [-1, 1), a multiple of 2^-23 and so exact in `f32`.
    pub(crate) fn symmetric(&mut self) -> f32 {
        let steps = (self.0.next_u32() >> 8) as i32 - (1 << 23);
        steps as f32 / (1 << 23) as f32
    }

    /// Puts `items` in random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
