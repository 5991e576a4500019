//! Which way a long copy takes, and on how many threads: what was the fastest among the first ones.
//!
//! The first long copies of each length try the plans by turns and are timed; then the best plan is kept. So nothing is
//! copied for the sake of measuring, and what is measured is the memory that counts: its pages, the node that it is on,
//! what of it the caches hold and what else the machine does. A measurement on memory of its own would know nothing of
//! that, and would have to touch more than the last cache holds. Of each plan the best time counts, since all that
//! disturbs a copy, such as the first touch of a page, makes it longer.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::pool::MOST_THREADS;
use super::{LONG, Way, streaming_threshold};

/// Copies are cut among threads from this length on: waking a thread takes tens of microseconds.
const THREADED: usize = 8 << 20;
/// A shorter piece tells little, and reading the clock would be a part of it.
const TIMED: usize = 64 << 10;
/// Lengths from [`LONG`] on, by powers of two; the last class has no end.
const CLASSES: usize = 8;
/// Times that each plan is tried.
const ROUNDS: u32 = 4;
/// Numbers of threads that are tried where the user names none. A few threads have all of a machine's bandwidth.
const TRIED: [usize; 4] = [1, 2, 4, 8];
const PLANS: usize = Way::ALL.len() * TRIED.len();
/// Another way is better if it takes less than this much of the time, in percent; twice the threads, likewise: they
/// are processors that others could use.
const WAY_PERCENT: u64 = 97;
const THREADS_PERCENT: u64 = 85;

/// The variable that fixes the number of threads.
const VARIABLE: &str = "SLACKLINE_COPY_THREADS";

/// How a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyPlan {
    pub(super) way: Way,
    pub(super) threads: usize,
}

impl CopyPlan {
    /// Never zero.
    const fn to_word(self) -> u32 {
        (self.threads as u32) << 8 | self.way as u32
    }

    fn from_word(word: u32) -> Option<CopyPlan> {
        let way = *Way::ALL.get((word & 0xff) as usize)?;
        (word != 0).then_some(CopyPlan { way, threads: (word >> 8) as usize })
    }
}

/// Runs `copy`, which copies `len` bytes of a copy of `total`, by the best plan, or by one that has yet to be tried.
pub(super) fn with_plan(len: usize, total: usize, copy: impl FnOnce(CopyPlan)) {
    let class = ((total / LONG).ilog2() as usize).min(CLASSES - 1);
    let threaded = len >= THREADED;
    let contest = &CONTESTS[class][usize::from(threaded)];
    if let Some(plan) = contest.winner() {
        return copy(plan);
    }
    let plans = Plans::new(total, threaded);
    let Some(index) = (len >= TIMED).then(|| contest.next(&plans)).flatten() else {
        return copy(plans.guess());
    };
    let begun = Instant::now();
    copy(plans.as_slice()[index]);
    let took = begun.elapsed();
    if let Some(winner) = contest.tell(&plans, index, cost(len, took)) {
        let bytes = LONG << class;
        tracing::debug!(bytes, threaded, way = ?winner.way, threads = winner.threads, "long copies are measured");
    }
}

/// Nanoseconds of a MiB.
fn cost(len: usize, took: Duration) -> u32 {
    u32::try_from((took.as_nanos() << 20) / len.max(1) as u128).unwrap_or(u32::MAX)
}

/// Fixes the number of threads among which copies of many MiB are cut, and has everything measured again: for tests and
/// measurements, while nothing is copied.
pub fn set_copy_threads(threads: usize) {
    FIXED.store(threads.clamp(1, MOST_THREADS), Ordering::Relaxed);
    CONTESTS.iter().flatten().for_each(Contest::reset);
}

/// The number of threads that the user has fixed, or 0.
static FIXED: LazyLock<AtomicUsize> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let fixed = text.parse().ok().filter(|threads| (1..=MOST_THREADS).contains(threads));
    if fixed.is_none() && !text.is_empty() {
        tracing::warn!(
            "{VARIABLE} is {text:?}, and not a number from 1 to {MOST_THREADS}: it is measured instead"
        );
    }
    AtomicUsize::new(fixed.unwrap_or(0))
});

/// Whether so many threads are tried: powers of two, as far as this process may run on so many processors.
fn are_tried(threads: usize) -> bool {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    match FIXED.load(Ordering::Relaxed) {
        0 => TRIED.contains(&threads) && threads <= *PROCESSORS,
        fixed => threads == fixed,
    }
}

/// The plans for copies of one length, in the order in which they are tried.
struct Plans {
    plans: [CopyPlan; PLANS],
    count: usize,
}

impl Plans {
    fn new(total: usize, threaded: bool) -> Plans {
        let mut plans = Plans { plans: [CopyPlan { way: Way::Libc, threads: 1 }; PLANS], count: 0 };
        for threads in
            (1..=MOST_THREADS).filter(|threads| if threaded { are_tried(*threads) } else { *threads == 1 })
        {
            for way in Way::ALL {
                // What fits a core's own cache is wanted there by its next reader.
                let fits = way != Way::Stream || total >= streaming_threshold();
                if fits && way.is_possible() {
                    plans.plans[plans.count] = CopyPlan { way, threads };
                    plans.count += 1;
                }
            }
        }
        plans
    }

    fn as_slice(&self) -> &[CopyPlan] {
        &self.plans[..self.count]
    }

    /// The plan as long as nothing is known.
    fn guess(&self) -> CopyPlan {
        let streams = self.as_slice().iter().find(|plan| plan.way == Way::Stream);
        *streams.unwrap_or(&self.plans[0])
    }
}

/// The trials of copies of one length.
struct Contest {
    /// Trials that have begun, and that have ended.
    begun: AtomicU32,
    ended: AtomicU32,
    /// The least cost of each plan.
    costs: [AtomicU32; PLANS],
    /// The plan that won, or 0.
    winner: AtomicU32,
}

static CONTESTS: [[Contest; 2]; CLASSES] = [const { [Contest::new(), Contest::new()] }; CLASSES];

impl Contest {
    const fn new() -> Contest {
        let (begun, ended, winner) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        Contest { begun, ended, costs: [const { AtomicU32::new(u32::MAX) }; PLANS], winner }
    }

    fn reset(&self) {
        self.costs.iter().for_each(|cost| cost.store(u32::MAX, Ordering::Relaxed));
        [&self.begun, &self.ended, &self.winner].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn winner(&self) -> Option<CopyPlan> {
        CopyPlan::from_word(self.winner.load(Ordering::Relaxed))
    }

    /// The plan whose turn it is, by its index; none once all have been tried often enough.
    fn next(&self, plans: &Plans) -> Option<usize> {
        let count = plans.count as u32;
        let turn = self.begun.load(Ordering::Relaxed);
        // Two threads that draw the same turn both try it, and one of their trials is one too many: no harm.
        (turn < count * ROUNDS).then(|| (self.begun.fetch_add(1, Ordering::Relaxed) % count) as usize)
    }

    /// Notes what a trial has cost; the last one decides, and returns the winner.
    fn tell(&self, plans: &Plans, index: usize, cost: u32) -> Option<CopyPlan> {
        self.costs[index].fetch_min(cost, Ordering::Relaxed);
        // The trial that ends as the last one sees the costs of all others.
        if self.ended.fetch_add(1, Ordering::AcqRel) + 1 != plans.count as u32 * ROUNDS {
            return None;
        }
        let costs = self.costs.each_ref().map(|cost| cost.load(Ordering::Relaxed));
        let winner = best(plans.as_slice(), &costs);
        self.winner.store(winner.to_word(), Ordering::Relaxed);
        Some(winner)
    }
}

/// The plan of the least cost. It is better than an earlier one only by more than noise makes.
fn best(plans: &[CopyPlan], costs: &[u32]) -> CopyPlan {
    let mut best = (plans[0], u64::from(costs[0]));
    for (plan, cost) in plans.iter().zip(costs) {
        let percent = if plan.threads == best.0.threads { WAY_PERCENT } else { THREADS_PERCENT };
        if u64::from(*cost) * 100 < best.1 * percent {
            best = (*plan, u64::from(*cost));
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANS_OF_TWO: [CopyPlan; 4] = [
        CopyPlan { way: Way::Libc, threads: 1 },
        CopyPlan { way: Way::Stream, threads: 1 },
        CopyPlan { way: Way::Libc, threads: 2 },
        CopyPlan { way: Way::Stream, threads: 2 },
    ];

    #[test]
    fn the_best_plan_is_faster_than_noise_and_twice_the_threads_pay() {
        for (costs, winner) in [
            ([100, 98, 98, 98], 0),
            ([100, 90, 90, 90], 1),
            ([100, 90, 80, 78], 1),
            ([100, 90, 70, 69], 2),
            ([100, 90, 60, 50], 3),
            ([100, u32::MAX, u32::MAX, u32::MAX], 0),
        ] {
            assert_eq!(best(&PLANS_OF_TWO, &costs), PLANS_OF_TWO[winner], "{costs:?}");
        }
    }

    #[test]
    fn a_plan_is_kept_once_each_has_had_its_turns_and_its_best_time_counts() {
        let contest = Contest::new();
        let mut plans = Plans::new(LONG, false);
        plans.plans[..4].copy_from_slice(&PLANS_OF_TWO);
        plans.count = 4;
        for turn in 0..4 * ROUNDS {
            assert_eq!(contest.winner(), None);
            let index = contest.next(&plans).unwrap();
            assert_eq!(index, turn as usize % 4);
            // Three of four times the best plan is disturbed.
            let cost = if index == 2 && turn < 4 { 10 } else { 1000 };
            assert_eq!(contest.tell(&plans, index, cost).is_some(), turn + 1 == 4 * ROUNDS);
        }
        assert_eq!(contest.winner(), Some(PLANS_OF_TWO[2]));
        assert_eq!(contest.next(&plans), None);
    }

    #[test]
    fn short_copies_have_one_thread_and_what_a_cache_holds_stays_there() {
        assert!(Plans::new(1 << 30, false).as_slice().iter().all(|plan| plan.threads == 1));
        let short = Plans::new(streaming_threshold() - 1, false);
        assert!(short.as_slice().iter().all(|plan| plan.way != Way::Stream));
        assert_eq!(short.guess(), CopyPlan { way: Way::Libc, threads: 1 });
    }
}
