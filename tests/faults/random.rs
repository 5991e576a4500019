//! Random numbers that can be had again.

pub(super) use slackline::sim::Random;

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
