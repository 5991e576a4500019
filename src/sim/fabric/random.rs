//! Numbers that a seed draws.
#![forbid(unsafe_code)]

use crate::sim;

/// One stream for a whole run: all events draw from it, in their order.
#[derive(Clone, Debug)]
pub(super) struct FabricRandom {
    stream: sim::Random,
}

impl FabricRandom {
    /// The stream of a seed for one of its purposes.
    pub(super) fn new(seed: u64, purpose: u64) -> FabricRandom {
        FabricRandom { stream: sim::Random::stream(seed, purpose, 0) }
    }

    pub(super) fn word(&mut self) -> u64 {
        self.stream.word()
    }

    /// A number from `least` to `most`, both included.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.stream.below(most.saturating_sub(least).saturating_add(1))
    }

    /// True `count` times out of a thousand.
    pub(super) fn permille(&mut self, count: u64) -> bool {
        self.between(1, 1000) <= count
    }

    /// Picks one of `all`, which is not empty.
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

/// FNV-1a over words: the events, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventHash(u64);

impl EventHash {
    pub(super) fn new() -> EventHash {
        EventHash(0xCBF2_9CE4_8422_2325)
    }

    pub(super) fn note(&mut self, word: u64) {
        // One step a word: this is asked to differ where runs differ, not to withstand an attack.
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    pub(super) fn hash(self) -> u64 {
        self.0
    }
}
