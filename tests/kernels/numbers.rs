//! Numbers of every kind, from a seed that is fresh unless `SLACKLINE_KERNELS_SEED` names one.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    match std::env::var("SLACKLINE_KERNELS_SEED") {
        Ok(seed) => seed.parse().expect("SLACKLINE_KERNELS_SEED is a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    }
}

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// Below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// From 0 up to, but not including, 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / 2f32.powi(24)
    }

    /// A number as trainings have them.
    pub(crate) fn tame(&mut self) -> f32 {
        (self.unit() * 2.0 - 1.0) * 2f32.powi(self.below(12) as i32 - 8)
    }

    /// Any number: subnormal, infinite, NaN and of every magnitude among many ordinary ones.
    pub(crate) fn wild(&mut self) -> f32 {
        match self.below(8) {
            0 => f32::from_bits(self.word() as u32),
            1 => f32::from_bits(self.word() as u32 & 0x807f_ffff),
            2 => {
                self.of(&[0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::MAX])
            }
            _ => self.tame(),
        }
    }
}
