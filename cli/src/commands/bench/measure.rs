//! Warm-up, and the timing of operations.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use slackline::internals::kernel::ticks;
use slackline_lab::stderr;

use super::error::BenchError;
use super::settings::Settings;
use super::timing::{Latency, Mean, Timing};
use super::usage::cpu_time;

/// Time that one measurement should take if the number of its operations is not given.
const DEFAULT_LENGTH: Duration = Duration::from_millis(1000);
/// Longest time that such a measurement takes. Work between the operations, or a machine that slowed down, can make it
/// that long.
const MAX_LENGTH: Duration = Duration::from_millis(3000);
/// Fewer samples than these are no measurement.
const MIN_SAMPLES: u64 = 5;
const DEFAULT_WARMUP: Duration = Duration::from_millis(100);
const MAX_ITERATIONS: u64 = 20_000_000;

/// Of a measurement that is to take long, so many samples are kept at most, more or less: of more operations each.
const MANY_SAMPLES: f64 = 1e6;
/// Room is made for so many samples before the first; for more of them it grows between two samples.
pub(super) const SAMPLES_AHEAD: u64 = 1 << 20;
/// Requests that only flow while there are many are counted after so long, and then go on.
const STRETCH: Duration = Duration::from_millis(100);

/// Below this an operation is timed in batches: reading the clock costs some 20 ns.
const BATCH_BELOW: Duration = Duration::from_micros(1);
const BATCH_LENGTH: Duration = Duration::from_micros(10);

/// A clock that takes longer to read is not asked, if there is another way; that is compared with it for so long.
const SLOW_CLOCK: Duration = Duration::from_nanos(300);
const CALIBRATION: Duration = Duration::from_millis(50);

/// Time between two messages that tell a user how far a measurement has come.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Warms up and times operations; `many` does so many and says how long they took.
pub(super) fn time(
    settings: &Settings,
    what: &str,
    many: impl FnMut(u64) -> Result<Duration, BenchError>,
) -> Result<Timing, BenchError> {
    time_batches(settings, what, 1, many)
}

/// The same with at least `least` operations in one sample.
pub(super) fn time_batches(
    settings: &Settings,
    what: &str,
    least: u64,
    mut many: impl FnMut(u64) -> Result<Duration, BenchError>,
) -> Result<Timing, BenchError> {
    let mut progress = Progress::new(format!("{} {what}", settings.op.name()));
    let one = match settings.warmup {
        Some(0) => None,
        Some(count) => {
            let mut took = Duration::ZERO;
            for done in 0..count {
                took = many(1)?;
                progress.tick("warm-up operation", done + 1, count);
            }
            // The last of them is the warmest.
            Some(took.as_secs_f64())
        }
        None => Some(warm_up(&mut many)?),
    };
    let length = settings.duration.unwrap_or(DEFAULT_LENGTH).as_secs_f64();
    let default = || match one {
        Some(one) => (length / one.max(1e-9)) as u64,
        None => 100,
    };
    let iterations = settings.iterations.unwrap_or_else(|| default().clamp(MIN_SAMPLES, MAX_ITERATIONS));
    let batch = match one {
        Some(one) if one < BATCH_BELOW.as_secs_f64() => {
            ((BATCH_LENGTH.as_secs_f64() / one.max(1e-9)).ceil() as u64).clamp(1, iterations.min(100_000))
        }
        _ => 1,
    };
    let batch = match (settings.duration, one) {
        (Some(length), Some(one)) => batch.max((length.as_secs_f64() / one.max(1e-9) / MANY_SAMPLES) as u64),
        _ => batch,
    };
    let batch = batch.max(least);
    let count = iterations.div_ceil(batch);
    let mut samples = Vec::with_capacity(count.min(SAMPLES_AHEAD) as usize);
    let (begun, cpu) = (Instant::now(), cpu_time());
    let is_over = |done: u64| match (settings.duration, settings.iterations) {
        (Some(length), _) => done > 0 && begun.elapsed() >= length,
        (None, None) if done >= MIN_SAMPLES && begun.elapsed() > MAX_LENGTH => true,
        _ => done == count,
    };
    let mut done = 0;
    while !is_over(done) {
        samples.push(many(batch)?.as_nanos() as f64 / batch as f64);
        done += 1;
        progress.tick("sample", done, count.max(done));
    }
    let iterations = samples.len() as u64 * batch;
    let cpu_ns = Some((cpu_time() - cpu).as_nanos() as f64 / iterations as f64);
    Ok(Timing { iterations, batch, latency: Latency::of(samples), cpu_ns })
}

/// Warms up and times operations as one whole, for what only flows while there are many.
pub(super) fn time_whole(
    settings: &Settings,
    mut many: impl FnMut(u64) -> Result<Duration, BenchError>,
) -> Result<Mean, BenchError> {
    let one = match settings.warmup {
        Some(0) => None,
        Some(count) => Some(many(count)?.as_secs_f64() / count as f64),
        None => Some(warm_up(&mut many)?),
    };
    let count = settings.iterations.unwrap_or_else(|| match one {
        Some(one) => {
            ((DEFAULT_LENGTH.as_secs_f64() / one.max(1e-9)) as u64).clamp(MIN_SAMPLES, MAX_ITERATIONS)
        }
        None => 100,
    });
    let stretch = match settings.duration {
        Some(_) => one.map_or(count, |one| (STRETCH.as_secs_f64() / one.max(1e-9)) as u64).max(MIN_SAMPLES),
        None => count,
    };
    let length = settings.duration.unwrap_or_default();
    let (mut done, mut took, begun, cpu) = (0, Duration::ZERO, Instant::now(), cpu_time());
    while done == 0 || begun.elapsed() < length {
        took += many(stretch)?;
        done += stretch;
    }
    let [nanos, cpu_ns] = [took, cpu_time() - cpu].map(|time| time.as_nanos() as f64 / done as f64);
    Ok(Mean { nanos, cpu_ns })
}

/// Seconds of one operation, once warm and undisturbed.
fn warm_up(many: &mut impl FnMut(u64) -> Result<Duration, BenchError>) -> Result<f64, BenchError> {
    let begun = Instant::now();
    many(1)?;
    let (mut count, mut shortest) = (1, f64::INFINITY);
    loop {
        shortest = shortest.min(many(count)?.as_secs_f64() / count as f64);
        if begun.elapsed() >= DEFAULT_WARMUP {
            return Ok(shortest);
        }
        count *= 2;
    }
}

/// Time that has passed on this core.
enum Stopwatch {
    Clock(Instant),
    /// The processor's counter, where reading the clock takes microseconds (the system has none better than a
    /// device's): short operations would take twice as long.
    Ticks(u64),
}

impl Stopwatch {
    fn start() -> Stopwatch {
        match (*NANOS_PER_TICK, ticks()) {
            (Some(_), Some(ticks)) => Stopwatch::Ticks(ticks),
            _ => Stopwatch::Clock(Instant::now()),
        }
    }

    fn elapsed(&self) -> Duration {
        match (self, *NANOS_PER_TICK, ticks()) {
            (Stopwatch::Clock(begun), ..) => begun.elapsed(),
            // Counters of two cores may differ.
            (Stopwatch::Ticks(begun), Some(nanos), Some(now)) => {
                Duration::from_nanos((now.saturating_sub(*begun) as f64 * nanos) as u64)
            }
            (Stopwatch::Ticks(_), ..) => Duration::ZERO,
        }
    }
}

/// Nanoseconds in one tick of the processor's counter. None where the clock is good enough, or there is no counter.
static NANOS_PER_TICK: LazyLock<Option<f64>> = LazyLock::new(|| {
    let cost = (0..50).map(|_| Instant::now().elapsed()).min();
    if cost.is_none_or(|cost| cost < SLOW_CLOCK) {
        return None;
    }
    let (clock, before) = (Instant::now(), ticks()?);
    std::thread::sleep(CALIBRATION);
    let (took, after) = (clock.elapsed(), ticks()?);
    let passed = after.checked_sub(before).filter(|passed| *passed > 0)?;
    Some(took.as_nanos() as f64 / passed as f64)
});

/// Times `count` calls of `one` as a whole.
pub(super) fn calls(
    count: u64,
    mut one: impl FnMut() -> Result<(), BenchError>,
) -> Result<Duration, BenchError> {
    let begun = Stopwatch::start();
    for _ in 0..count {
        one()?;
    }
    Ok(begun.elapsed())
}

/// Says on standard error how far something has come, if it takes longer than one likes to wait without a word.
pub(super) struct Progress {
    what: String,
    told: Instant,
}

impl Progress {
    pub(super) fn new(what: String) -> Progress {
        Progress { what, told: Instant::now() }
    }

    pub(super) fn tick(&mut self, unit: &str, done: u64, all: u64) {
        if self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            stderr::tell(format_args!("slackline bench: {}: {unit} {done} of {all}", self.what));
        }
    }
}
