//! The source of everything random: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), one stream for each purpose.

/// A stream of numbers that follows from its seed alone.
///
/// ```
/// use slackline::sim::Random;
/// let mut one = Random::new(7);
/// let mut same = Random::new(7);
/// assert_eq!(one.word(), same.word());
/// assert!((0.0..1.0).contains(&one.unit()));
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Random {
    /// The stream of a seed.
    pub const fn new(seed: u64) -> Random {
        Random { state: mixed(seed.wrapping_add(STEP)) }
    }

    /// A stream of its own for each pair under one seed, so that the draws of one part of a program do not shift the
    /// draws of another.
    pub const fn stream(seed: u64, purpose: u64, index: u64) -> Random {
        let seed = mixed(seed.wrapping_add(STEP)) ^ mixed(purpose.wrapping_mul(STEP).wrapping_add(1));
        Random { state: mixed(seed.wrapping_add(mixed(index.wrapping_add(STEP)))) }
    }

    /// 64 random bits.
    pub const fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mixed(self.state)
    }

    /// Uniform in `0..end`, but for a bias below `end / 2^64`; 0 if `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.word() as u128 * end as u128) >> 64) as u64
    }

    /// Uniform in `0.0..1.0`, at steps of 2^-53.
    pub const fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_purpose_and_index() {
        let first = |seed, purpose, index| Random::stream(seed, purpose, index).word();
        let all = [first(0, 0, 0), first(1, 0, 0), first(0, 1, 0), first(0, 0, 1), first(1, 1, 1)];
        for (index, word) in all.iter().enumerate() {
            assert!(!all[..index].contains(word));
        }
    }

    #[test]
    fn a_normal_has_mean_0_and_variance_1() {
        let mut random = Random::new(3);
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|draw| draw * draw).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean}, {variance}");
    }
}
