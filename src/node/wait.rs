//! Waiting, for the blocking wrappers: reading the clock and standing back between polls.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Error;
use super::runtime::Runtime;
use crate::diagnostic::Diagnostic as _;
use crate::time::{Duration, Instant};

/// This process's monotonic clock, as the nodes are told it. Its origin is the first call.
pub fn now() -> Instant {
    static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    let nanos = ORIGIN.elapsed().as_nanos();
    Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Stands back between fruitless polls: first spins, then yields the processor, then sleeps.
///
/// Spinning catches what another core does within a microsecond; yielding lets the peer run where there are fewer
/// cores than processes; sleeping keeps a long wait from burning a core. In a round of a hundred megabytes the awaited
/// events come within the yields. A sleep takes a small part of the wait so far: two hundred processes that wait
/// for one leave it a processor, and no wait becomes longer by more than that part.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
    waiting_since: Option<Instant>,
    /// How long the wait had lasted when it first slept for an answer that is due.
    due_since: Option<Duration>,
    /// It waits no longer where the machine has more to run than processors.
    is_alone: bool,
}

impl Backoff {
    const SPINS: u32 = 64;
    const YIELD_FOR: Duration = Duration::from_millis(2);

    /// The shortest sleep; the longest, and the longest on a crowded machine.
    const SHORTEST: Duration = Duration::from_micros(100);
    const LONGEST: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(20));

    /// The part of the wait so far that a sleep takes, and the one on a crowded machine.
    const PARTS: (u32, u32) = (32, 4);

    /// The part of the time between two chunks for which a sleep may miss one, and the longest.
    const PART_OF_A_CHUNK: u32 = 8;
    const MOST_OF_A_CHUNK: Duration = Duration::from_millis(1);

    /// A wait that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// The wait of a node that is alone of its kind on its host, such as a relay that many others wait for: it does not
    /// give way to a crowd.
    pub(super) fn of_one_per_host() -> Self {
        Backoff { is_alone: true, ..Self::default() }
    }

    /// Something happened: begin from the start.
    #[inline]
    pub fn reset(&mut self) {
        *self = Backoff { is_alone: self.is_alone, ..Self::default() };
    }

    fn is_crowded(&self) -> bool {
        !self.is_alone && CROWD.is_seen()
    }

    /// Nothing happened: stand back once.
    pub fn wait(&mut self) {
        self.due_since = None;
        let is_crowded = self.is_crowded();
        self.wait_or(is_crowded, |waited| std::thread::sleep(Self::pause(waited, is_crowded)));
    }

    /// The same while the answer to a question is on its way: it comes soon, however long the wait has lasted. On a
    /// crowded machine it does not, and each look takes a turn from the process that is to answer.
    pub(super) fn wait_for_answer(&mut self) {
        if self.is_crowded() {
            return self.wait();
        }
        let mut due_since = self.due_since;
        self.wait_or(false, |waited| {
            let asked = *due_since.get_or_insert(waited);
            std::thread::sleep(Self::pause_for_answer(waited, asked));
        });
        self.due_since = due_since;
    }

    /// The same for a pull that was lapped, however busy the machine is: its owner keeps writing while this thread
    /// sleeps.
    pub(super) fn hurry(&mut self) {
        self.wait_or(false, |_| std::thread::sleep(Self::SHORTEST));
    }

    /// The same for a copy that follows its owner and expects more chunks, however busy the machine is: a chunk that is
    /// found late is passed on late.
    pub(super) fn keep_up(&mut self) {
        self.wait_or(false, |waited| std::thread::sleep(Self::pause_between_chunks(waited)));
    }

    /// The same, and after a while until this thread is unparked (or for no reason at all).
    pub(super) fn wait_for_unpark(&mut self) {
        self.wait_or(self.is_crowded(), |_| std::thread::park());
    }

    /// Returns how often nothing has happened so far, and counts once more: for a simulator, which waits by itself.
    pub(super) fn count(&mut self) -> u32 {
        let before = self.turns;
        self.turns = self.turns.saturating_add(1);
        before
    }

    /// The time to sleep after a wait of `waited`.
    fn pause(waited: Duration, is_crowded: bool) -> Duration {
        let (part, longest) = match is_crowded {
            false => (Self::PARTS.0, Self::LONGEST.0),
            true => (Self::PARTS.1, Self::LONGEST.1),
        };
        (waited / part).clamp(Self::SHORTEST, longest)
    }

    /// The time to sleep after a wait of `waited` for a chunk.
    fn pause_between_chunks(waited: Duration) -> Duration {
        (waited / Self::PART_OF_A_CHUNK).clamp(Self::SHORTEST, Self::MOST_OF_A_CHUNK)
    }

    /// The time to sleep after a wait of `waited` for an answer that was due from `asked` on.
    fn pause_for_answer(waited: Duration, asked: Duration) -> Duration {
        (waited.saturating_sub(asked) / Self::PARTS.1).clamp(Self::SHORTEST, Self::pause(waited, false))
    }

    /// Stands back once; `rest` is told for how long this wait has lasted.
    fn wait_or(&mut self, rests_at_once: bool, rest: impl FnOnce(Duration)) {
        if self.turns < Self::SPINS && !rests_at_once {
            self.turns += 1;
            std::hint::spin_loop();
            return;
        }
        let begun = now();
        let waited = begun - *self.waiting_since.get_or_insert(begun);
        if waited >= Self::YIELD_FOR || rests_at_once {
            return rest(waited);
        }
        std::thread::yield_now();
        CROWD.yielded(begun, now());
    }
}

/// Whether the machine has more to run than processors, as the threads of this process have seen.
///
/// A thread that yields then waits for whole time slices of the others; a thread that sleeps is woken ahead of them. So
/// a process whose yield took that long sleeps instead, for a time in proportion: on a machine with as many threads as
/// processors a yield is long now and then, and to sleep in each later wait would cost more than it did.
struct Crowd {
    /// The time until which no thread yields, in nanoseconds of [`now`].
    until: AtomicU64,
}

static CROWD: Crowd = Crowd { until: AtomicU64::new(0) };

impl Crowd {
    /// A yield that took longer than a sleep would have.
    const LONG: Duration = Duration::from_micros(200);

    /// The threads of this process then do not yield for so many times as long, and for how long at most.
    const HOLDS_FOR: (u32, Duration) = (16, Duration::from_millis(100));

    fn is_seen(&self) -> bool {
        // The clock is not read where no yield was ever long.
        self.until.load(Relaxed) > 0 && self.is_seen_at(now())
    }

    fn is_seen_at(&self, now: Instant) -> bool {
        now.as_nanos() < self.until.load(Relaxed)
    }

    /// A yield took from one time to another.
    fn yielded(&self, from: Instant, to: Instant) {
        let took = to - from;
        if took >= Self::LONG {
            let (times, at_most) = Self::HOLDS_FOR;
            self.until.fetch_max((to + (took * times).min(at_most)).as_nanos(), Relaxed);
        }
    }
}

/// The pause between two attempts, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Tries until it succeeds, `deadline` passes, or an error comes that no repetition can help.
pub(super) async fn retry<R>(
    runtime: &Runtime,
    deadline: Instant,
    may_pass: impl Fn(&Error) -> bool,
    attempt: impl AsyncFn() -> Result<R, Error>,
) -> Result<R, Error> {
    let (mut pause, most) = RETRY;
    let mut refusal = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            // The last attempt had no time left; the answer to an earlier one says more.
            Err(error @ Error::Deadline { .. }) => refusal.take().unwrap_or(error),
            Err(error) => error,
        };
        // A temporary refusal says how long it may last: to ask earlier would only keep the owner busy, and to ask
        // later may cost this peer its position in a queue.
        let told = error.retry_after().unwrap_or_default();
        let rest = pause.max(told);
        if !may_pass(&error) || deadline - runtime.now() <= rest {
            return Err(error);
        }
        tracing::debug!(%error, "trying again to connect");
        refusal = error.retry_after().is_some().then_some(error);
        runtime.sleep(rest).await;
        if told <= pause {
            pause = (pause * 2).min(most);
        }
    }
}

/// The outcome of one turn of a wait.
pub(super) enum WaitTurn<R> {
    /// The wait is over.
    Done(R),
    /// The node got somewhere.
    Progress,
    /// There was nothing to do.
    Idle,
    /// There was nothing to do, and the node has slept already.
    Slept,
    /// There was nothing to do, and an owner was asked for something: a look after a long pause would see an answer
    /// that is as old as the pause.
    Asked,
    /// An owner has lapped a pull, and writes on while this thread sleeps.
    Lapped,
    /// A copy follows its owner, and more of it is about to come.
    KeepsUp,
}

impl<R> WaitTurn<R> {
    /// The outcome of a turn that did not end the wait.
    pub(super) fn of(progress: bool) -> WaitTurn<R> {
        if progress { WaitTurn::Progress } else { WaitTurn::Idle }
    }

    /// The outcome of a turn with several owners: an answer of any is waited for.
    pub(super) fn or(self, other: WaitTurn<R>) -> WaitTurn<R> {
        match (&self, &other) {
            (WaitTurn::Idle, _) | (WaitTurn::Asked, WaitTurn::Lapped | WaitTurn::KeepsUp) => other,
            _ => self,
        }
    }
}

/// Takes turns until one ends the wait, and backs off after turns that found nothing to do. `None` once `deadline` has
/// passed: there is always one turn, and a turn that begins at the deadline is the last.
pub(super) async fn wait<R>(
    runtime: &Runtime,
    deadline: Instant,
    mut turn: impl FnMut(Instant) -> Result<WaitTurn<R>, Error>,
) -> Result<Option<R>, Error> {
    let mut backoff = Backoff::new();
    loop {
        let now = runtime.now();
        let turn = turn(now)?;
        if let WaitTurn::Done(result) = turn {
            return Ok(Some(result));
        }
        if now >= deadline {
            return Ok(None);
        }
        stand_back(runtime, &mut backoff, &turn).await;
    }
}

/// Stands back as the outcome of a turn asks for it.
pub(super) async fn stand_back<R>(runtime: &Runtime, backoff: &mut Backoff, turn: &WaitTurn<R>) {
    match turn {
        WaitTurn::Done(_) | WaitTurn::Progress => {
            backoff.reset();
            runtime.yield_now().await;
        }
        WaitTurn::Idle => runtime.stand_back(backoff).await,
        WaitTurn::Asked => runtime.wait_for_answer(backoff).await,
        WaitTurn::Lapped => runtime.hurry(backoff).await,
        WaitTurn::KeepsUp => runtime.keep_up(backoff).await,
        WaitTurn::Slept => {}
    }
}

/// Polls an owner until `until` says so or `timeout` has passed; false if it was the timeout. `sleep` ends a turn that
/// got nowhere, and is told for how long it may sleep at most.
pub(super) async fn drive<N>(
    runtime: Runtime,
    node: &mut N,
    mut poll: impl FnMut(&mut N, Instant) -> Result<bool, Error>,
    mut sleep: impl FnMut(&mut N, Duration) -> WaitTurn<()>,
    until: impl Fn(&N) -> bool,
    timeout: Duration,
) -> Result<bool, Error> {
    let deadline = runtime.now() + timeout;
    let ended = wait(&runtime, deadline, |now| {
        let progress = poll(node, now)?;
        Ok(match until(node) {
            true => WaitTurn::Done(()),
            false if progress => WaitTurn::Progress,
            false => sleep(node, deadline - now),
        })
    });
    Ok(ended.await?.is_some())
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::super::runtime::complete;
    use super::*;
    use crate::node::Awaited;
    use crate::scheme::Bound;
    use crate::transport::{Address, ConnectError};

    #[test]
    fn a_sleep_is_a_small_part_of_its_wait_and_never_long() {
        let pause =
            |micros, is_crowded| Backoff::pause(Duration::from_micros(micros), is_crowded).as_micros();
        assert_eq!(
            [0, 3_200, 6_400, 64_000, 1_000_000].map(|wait| pause(wait, false)),
            [100, 100, 200, 2_000, 5_000]
        );
        assert_eq!([0, 400, 6_400, 1_000_000].map(|wait| pause(wait, true)), [100, 100, 1_600, 20_000]);
    }

    #[test]
    fn a_sleep_for_an_answer_is_a_part_of_the_time_since_the_question() {
        let pause = |waited, asked| {
            Backoff::pause_for_answer(Duration::from_micros(waited), Duration::from_micros(asked)).as_micros()
        };
        assert_eq!([64_000, 64_400, 66_000].map(|waited| pause(waited, 64_000)), [100, 100, 500]);
        assert_eq!(pause(1_000_000, 64_000), 5_000, "and no longer than without a question");
    }

    #[test]
    fn after_a_long_yield_a_process_does_not_yield_for_a_time_in_proportion() {
        let crowd = Crowd { until: AtomicU64::new(0) };
        let at = |micros| Instant::ORIGIN + Duration::from_micros(micros);
        crowd.yielded(at(1000), at(1199));
        assert!(!crowd.is_seen_at(at(1199)), "it was short");
        crowd.yielded(at(2000), at(2200));
        assert!(crowd.is_seen_at(at(5399)) && !crowd.is_seen_at(at(5400)), "16 times 200 us");
        crowd.yielded(at(10_000), at(20_000));
        crowd.yielded(at(20_000), at(20_300));
        assert!(
            crowd.is_seen_at(at(119_999)) && !crowd.is_seen_at(at(120_000)),
            "no more than 100 ms, and no less"
        );
    }

    #[test]
    fn who_was_refused_is_told_so_though_the_last_attempt_had_no_time() {
        let runtime = Runtime::default();
        let attempts = Cell::new(0);
        let attempt = async || -> Result<(), Error> {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 1 {
                let (address, reason) = (Address::random(), "there is no such table".into());
                let retry_after = Some(Duration::ZERO);
                return Err(ConnectError::Refused { address, retry_after, reason }.into());
            }
            let (operation, waited) = ("connecting", Duration::ZERO);
            let (needed, seen, awaited) = (Bound::NONE, Bound::NONE, Awaited::Answer);
            Err(Error::Deadline { operation, waited, needed, seen, awaited })
        };
        let may_pass = |error: &Error| error.retry_after().is_some();
        let deadline = runtime.now() + Duration::from_secs(60);
        let tried = retry(&runtime, deadline, |error| may_pass(error) && attempts.get() < 2, attempt);
        let error = complete(tried).unwrap_err();
        assert!(attempts.get() == 2 && may_pass(&error), "{error}");
    }
}
