//! Numbers that a seed draws.
#![forbid(unsafe_code)]

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, fast, and every seed is as good as any other.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        let mut random = Random { state: seed ^ 0x5EED_FAB5_1C00_0001 };
        // Neighbouring seeds begin far apart.
        random.state = random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `least` to `most`, both included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        let span = most.saturating_sub(least).saturating_add(1);
        least + (u128::from(self.next()) * u128::from(span) >> 64) as u64
    }

    /// True `count` times out of a thousand.
    pub(super) fn permille(&mut self, count: u64) -> bool {
        self.between(1, 1000) <= count
    }

    /// One of `all`, which is not empty.
    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.between(0, all.len() as u64 - 1) as usize]
    }

    /// Brings `all` into any order.
    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.between(0, at as u64) as usize);
        }
    }
}

/// FNV-1a over words: what happened, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace(u64);

impl Trace {
    pub(super) fn new() -> Trace {
        Trace(0xCBF2_9CE4_8422_2325)
    }

    pub(super) fn note(&mut self, word: u64) {
        // One step a word: this is asked to differ where runs differ, not to withstand anybody.
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    pub(super) fn hash(self) -> u64 {
        self.0
    }
}
