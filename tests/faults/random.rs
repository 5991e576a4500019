//! Random numbers that can be had again.

/// Splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// Says on which seed a test failed.
pub(super) struct Seed(pub(super) u64);

impl Seed {
    /// Of this run: `SLACKLINE_FAULTS_SEED`, or any.
    pub(super) fn of_this_run() -> Seed {
        let told = std::env::var("SLACKLINE_FAULTS_SEED").ok().and_then(|text| text.parse().ok());
        let any = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
        };
        Seed(told.unwrap_or_else(any))
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with SLACKLINE_FAULTS_SEED={}", self.0);
        }
    }
}
