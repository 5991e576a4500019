//! The choice of the way and the number of threads of a long copy: the fastest among the first copies.
//!
//! The first long copies of each length try the plans by turns and are timed; then the best plan is kept. So nothing is
//! copied only to measure, and the measurement is of the memory that counts: its pages, its NUMA node, its part in the
//! caches, and the other load of the machine. A measurement on memory of its own would know nothing of
//! that, and would have to touch more than the last cache holds. Of each plan the best time counts, since all that
//! disturbs a copy, such as the first touch of a page, makes it longer.
//!
//! One copy tells nothing by itself. Unless it goes past the caches, it leaves there what it has written: the next copy
//! of the same bytes gains, and where they are more than the last cache holds, the copies after it pay for the way to
//! memory. So a plan keeps its turn until it has copied twice over, or as much as twice that cache holds, and the
//! second half of its turn counts.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::pool::MOST_THREADS;
use super::{LONG, Way, last_cache, streaming_threshold};

/// Copies are cut among threads from this length on: waking a thread takes tens of microseconds.
const THREADED: usize = 8 << 20;
/// A shorter piece tells little, and reading the clock would be a part of it.
const TIMED: usize = 64 << 10;
/// Lengths from [`LONG`] on, by powers of two; the last class has no end.
const CLASSES: usize = 8;
/// Turns that each plan has.
const ROUNDS: usize = 4;
/// Turns are no longer than for a last cache of this length: with a longer one, the trials would take tens of GiB.
const CACHE_MOST: usize = 64 << 20;
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

/// Runs `copy`, which copies `len` bytes of a copy of `total`, by the best plan, or by a plan that is still to be
/// tried.
pub(super) fn with_plan(len: usize, total: usize, copy: impl FnOnce(CopyPlan)) {
    let class = ((total / LONG).ilog2() as usize).min(CLASSES - 1);
    let (threaded, is_beyond) = (len >= THREADED, total > last_cache());
    let contest = &CONTESTS[class][usize::from(threaded)][usize::from(is_beyond)];
    if let Some(plan) = contest.winner() {
        return copy(plan);
    }
    // All copies of one contest have the same plans: its turns are by their number.
    let plans = Plans::new(LONG << class, threaded, is_beyond);
    let length = TurnLength::of(LONG << class, is_beyond);
    let Some(trial) = (len >= TIMED).then(|| contest.next(&plans, len, length)).flatten() else {
        return copy(plans.guess());
    };
    let begun = Instant::now();
    copy(plans.as_slice()[trial.turn % plans.count]);
    let took = begun.elapsed();
    if let Some(winner) = contest.tell(&plans, trial, len, took) {
        let bytes = LONG << class;
        tracing::debug!(bytes, threaded, way = ?winner.way, threads = winner.threads, "long copies are measured");
    }
}

/// The bytes that a plan copies in one turn.
#[derive(Clone, Copy)]
struct TurnLength {
    bytes: usize,
    /// The first so many of them do not count.
    ignored: usize,
}

impl TurnLength {
    /// Of copies of `least` bytes and up to twice that, which the last cache does not hold or does.
    fn of(least: usize, is_beyond: bool) -> TurnLength {
        let ignored = if is_beyond { last_cache() } else { 2 * least }.min(CACHE_MOST);
        TurnLength { bytes: 2 * ignored, ignored }
    }
}

/// Fixes the number of threads among which copies of many MiB are cut, and has everything measured again: for tests and
/// measurements, while nothing is copied.
pub fn set_copy_threads(threads: usize) {
    FIXED.store(threads.clamp(1, MOST_THREADS), Ordering::Relaxed);
    CONTESTS.iter().flatten().flatten().for_each(Contest::reset);
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
    /// The plans for copies of `least` bytes and up to twice that, which fit in the last cache or do not.
    fn new(least: usize, threaded: bool, is_beyond: bool) -> Plans {
        let mut plans = Plans { plans: [CopyPlan { way: Way::Libc, threads: 1 }; PLANS], count: 0 };
        for threads in
            (1..=MOST_THREADS).filter(|threads| if threaded { are_tried(*threads) } else { *threads == 1 })
        {
            for way in Way::ALL {
                // A copy that fits in a core's own cache is best left there for its next reader.
                let fits = way != Way::Stream || is_beyond || least >= streaming_threshold();
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
    /// The turn that is under way in the upper 8 bits, and the bytes whose copying has begun in it in the others.
    progress: AtomicU64,
    /// The copies that count, by turn.
    turns: [Turn; PLANS * ROUNDS],
    /// The plan that won, or 0.
    winner: AtomicU32,
}

/// Bits of `Contest::progress` that count bytes.
const BYTES: u32 = 56;

/// The totals of the copies of one turn.
struct Turn {
    /// Added to before `bytes`: a copy that is noted by halves makes its turn look dear, and never cheap.
    nanos: AtomicU64,
    bytes: AtomicU64,
}

/// One copy by a plan that is being tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    turn: usize,
    counts: bool,
    /// It ends the last turn of all.
    is_last: bool,
}

/// By length, whether threads help, and whether the last cache is too small.
static CONTESTS: [[[Contest; 2]; 2]; CLASSES] =
    [const { [const { [const { Contest::new() }; 2] }; 2] }; CLASSES];

impl Contest {
    const fn new() -> Contest {
        Contest {
            progress: AtomicU64::new(0),
            turns: [const { Turn { nanos: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; PLANS * ROUNDS],
            winner: AtomicU32::new(0),
        }
    }

    fn reset(&self) {
        for Turn { nanos, bytes } in &self.turns {
            bytes.store(0, Ordering::Relaxed);
            nanos.store(0, Ordering::Relaxed);
        }
        self.winner.store(0, Ordering::Relaxed);
        self.progress.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn winner(&self) -> Option<CopyPlan> {
        CopyPlan::from_word(self.winner.load(Ordering::Relaxed))
    }

    /// The turn in which `len` bytes are copied; none once all plans have had theirs.
    fn next(&self, plans: &Plans, len: usize, length: TurnLength) -> Option<Trial> {
        let all = plans.count * ROUNDS;
        let parts = |word: u64| ((word >> BYTES) as usize, (word & ((1 << BYTES) - 1)) as usize);
        let ends = |begin: usize| begin.saturating_add(len) >= length.bytes;
        // One thread alone ends each turn, and so the last one.
        let before = self.progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let (turn, begin) = parts(word);
            let after = if ends(begin) { (turn as u64 + 1) << BYTES } else { word + len as u64 };
            (turn < all).then_some(after)
        });
        let (turn, begin) = parts(before.ok()?);
        let counts = begin.saturating_add(len) > length.ignored;
        Some(Trial { turn, counts, is_last: ends(begin) && turn + 1 == all })
    }

    /// Notes the time that a trial took; the last one decides, and returns the winner.
    fn tell(&self, plans: &Plans, trial: Trial, len: usize, took: Duration) -> Option<CopyPlan> {
        if trial.counts {
            let turn = &self.turns[trial.turn];
            turn.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            turn.bytes.fetch_add(len as u64, Ordering::Release);
        }
        if !trial.is_last {
            return None;
        }
        let mut costs = [u32::MAX; PLANS];
        for (turn, noted) in self.turns[..plans.count * ROUNDS].iter().enumerate() {
            let least = &mut costs[turn % plans.count];
            *least = noted.cost().min(*least);
        }
        let winner = best(plans.as_slice(), &costs);
        self.winner.store(winner.to_word(), Ordering::Relaxed);
        Some(winner)
    }
}

impl Turn {
    /// Nanoseconds of a MiB.
    fn cost(&self) -> u32 {
        let bytes = self.bytes.load(Ordering::Acquire);
        let nanos = self.nanos.load(Ordering::Relaxed);
        let cost = (u128::from(nanos) << 20).checked_div(u128::from(bytes));
        cost.and_then(|cost| u32::try_from(cost).ok()).unwrap_or(u32::MAX)
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

    fn plans_of_two() -> Plans {
        let mut plans = Plans::new(LONG, false, false);
        plans.plans[..4].copy_from_slice(&PLANS_OF_TWO);
        plans.count = 4;
        plans
    }

    #[test]
    fn a_plan_is_kept_once_each_has_had_its_turns_and_its_best_time_counts() {
        let (contest, plans) = (Contest::new(), plans_of_two());
        let length = TurnLength { bytes: 0, ignored: 0 };
        for turn in 0..4 * ROUNDS {
            assert_eq!(contest.winner(), None);
            let trial = contest.next(&plans, 1 << 20, length).unwrap();
            assert_eq!(trial, Trial { turn, counts: true, is_last: turn + 1 == 4 * ROUNDS });
            // Three of four times the best plan is disturbed.
            let took = if turn == 2 { 10 } else { 1000 };
            let told = contest.tell(&plans, trial, 1 << 20, Duration::from_nanos(took));
            assert_eq!(told.is_some(), trial.is_last);
        }
        assert_eq!(contest.winner(), Some(PLANS_OF_TWO[2]));
        assert_eq!(contest.next(&plans, 1 << 20, length), None);
    }

    /// Plan 0 is fast at first, and pays later, as a plan does that leaves its writes in the caches.
    #[test]
    fn the_begin_of_a_turn_does_not_count_where_copies_do_not_fit_the_cache() {
        let (contest, plans) = (Contest::new(), plans_of_two());
        let length = TurnLength { bytes: 8 << 20, ignored: 4 << 20 };
        let mut trials = 0;
        while let Some(trial) = contest.next(&plans, 1 << 20, length) {
            let piece = trials % 8;
            assert_eq!((trial.turn, trial.counts), (trials / 8, piece >= 4));
            let took = match (trial.turn % 4, piece < 4) {
                (0, true) => 10,
                (0, false) => 1000,
                (1, _) => 500,
                _ => 600,
            };
            contest.tell(&plans, trial, 1 << 20, Duration::from_nanos(took));
            trials += 1;
        }
        assert_eq!((trials, contest.winner()), (8 * 4 * ROUNDS, Some(PLANS_OF_TWO[1])));
    }

    /// The string instruction and libc's copies are equally fast, and faster than stores past the caches, unless those
    /// have put the destination out of the caches before.
    #[test]
    fn a_plan_does_not_pay_for_the_caches_that_another_has_left_behind() {
        let (contest, plans) = (Contest::new(), Plans::new(1 << 20, false, false));
        let length = TurnLength::of(1 << 20, false);
        let mut is_cached = false;
        while let Some(trial) = contest.next(&plans, 1 << 20, length) {
            let is_past = plans.as_slice()[trial.turn % plans.count].way == Way::Stream;
            let took = match (is_past, is_cached) {
                (true, _) => 43,
                (false, false) => 82,
                (false, true) => 28,
            };
            is_cached = !is_past;
            contest.tell(&plans, trial, 1 << 20, Duration::from_micros(took));
        }
        assert_eq!(contest.winner().map(|plan| plan.way), Some(Way::Libc));
    }

    #[test]
    fn callers_that_copy_at_once_come_to_one_winner() {
        let (contest, plans) = (Contest::new(), plans_of_two());
        let length = TurnLength { bytes: 0, ignored: 0 };
        let told = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(trial) = contest.next(&plans, 1 << 20, length) {
                        let winner = contest.tell(&plans, trial, 1 << 20, Duration::from_nanos(10));
                        told.fetch_add(usize::from(winner.is_some()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(told.into_inner(), 1);
        assert!(contest.winner().is_some());
    }

    #[test]
    fn a_copy_longer_than_a_turn_is_one_turn_and_counts() {
        let (contest, plans) = (Contest::new(), plans_of_two());
        let length = TurnLength { bytes: 8 << 20, ignored: 4 << 20 };
        for turn in 0..3 {
            let trial = contest.next(&plans, 1 << 30, length);
            assert_eq!(trial, Some(Trial { turn, counts: true, is_last: false }));
        }
    }

    #[test]
    fn short_copies_have_one_thread_and_what_a_cache_holds_stays_there() {
        assert!(Plans::new(1 << 30, false, true).as_slice().iter().all(|plan| plan.threads == 1));
        let short = Plans::new(streaming_threshold() - 1, false, false);
        assert!(short.as_slice().iter().all(|plan| plan.way != Way::Stream));
        assert_eq!(short.guess(), CopyPlan { way: Way::Libc, threads: 1 });
    }
}
