//! The real nodes over a simulated network that is as hostile as the transport contract permits, under virtual time.
//!
//! Servers, workers and readers run the code that they run in a process: the futures that their blocking calls wait
//! for. Wherever a node waits, its future is suspended and virtual time passes. A seed decides everything: the job,
//! all durations and their order, and all faults and their times. A judge that sees everything from outside holds
//! every run against the promises, and after the last fault all nodes must get to the end.
//!
//! ```
//! use slackline::sim::fabric;
//! let report = fabric::run(7, &fabric::FabricOptions::default())?;
//! let again = fabric::run(7, &fabric::FabricOptions::default())?;
//! assert_eq!(report.trace_hash, again.trace_hash);
//! # Ok::<(), fabric::FabricFailure>(())
//! ```
#![forbid(unsafe_code)]

mod cause;
mod class;
mod flow;
mod judge;
mod lies;
mod meet;
mod net;
mod nodes;
mod plan;
mod random;
mod relays;
mod scheduler;
mod simulated_host;
mod transport;
mod values;

use crate::diagnostic::{Diagnostic, remedy_of};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::scheme::AnyScheme;
use crate::time::Duration;
pub use class::{Class, UnknownClass};
pub use plan::WORKERS_MAX;
use plan::{FaultKinds, Plan};
pub use transport::{SimConnecting, SimEndpoint, SimIncoming, SimListener, SimTransport};

/// Settings of a run, besides the seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricOptions {
    /// The scheme; if there is none, a built-in one, drawn from the seed. A scheme that is written outside of this
    /// crate is held to the promises of its [`Needs`](crate::scheme::Needs).
    pub scheme: Option<AnyScheme>,
    /// No node crashes, stalls, lies or is cut off: only delays, pieces and repetitions.
    pub spare_nodes: bool,
    /// Only faults of this class; drawn from the seed if there is none.
    pub only: Option<Class>,
}

impl FabricOptions {
    fn faults(&self) -> FaultKinds {
        match self.only {
            _ if self.spare_nodes => FaultKinds::None,
            Some(class) => FaultKinds::Only(class),
            None => FaultKinds::Drawn,
        }
    }
}

/// A run that kept every promise and came to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricReport {
    /// Its seed.
    pub seed: u64,
    /// The scheme that it ran.
    pub scheme: AnyScheme,
    /// The hash over all events, in order: the same for the same seed and options.
    pub trace_hash: u64,
    /// The number of events.
    pub events: u64,
    /// The time that it took by its own clock.
    pub virtual_time: Duration,
    /// Versions that its servers published.
    pub versions: u64,
    /// Copies that were handed out, each compared with the published version.
    pub views: u64,
    /// Calls that ended with an error, as they may.
    pub errors: u64,
}

/// A promise was broken, or a run did not come to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct FabricFailure {
    /// The seed that shows it.
    pub seed: u64,
    /// The options that it was run with.
    pub options: FabricOptions,
    /// The scheme that was run.
    pub scheme: AnyScheme,
    /// The cause of the failure, and its time.
    pub what: String,
}

impl fmt::Display for FabricFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FabricFailure { seed, scheme, what, .. } = self;
        write!(f, "seed {seed}, {scheme}: {what}\n{}", remedy_of(self))
    }
}

impl Diagnostic for FabricFailure {
    fn operation(&self) -> &'static str {
        "simulating"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        let mut again = format!("to see it again: slackline sim --fabric --seed {}", self.seed);
        if let Some(scheme) = self.options.scheme.as_ref().and_then(AnyScheme::built_in) {
            again += &format!(" --scheme '{scheme}'");
        }
        if self.options.spare_nodes {
            again += " --spare-nodes";
        }
        if let Some(class) = self.options.only {
            again += &format!(" --only {class}");
        }
        Some(again.into())
    }
}

/// Runs one seed.
///
/// # Errors
/// A promise was broken, or the scheme does not run here; the failure has the command that repeats the run.
pub fn run(seed: u64, options: &FabricOptions) -> Result<FabricReport, FabricFailure> {
    let plan = Plan::draw(seed, options.scheme.clone(), options.faults());
    let scheme = plan.scheme.clone();
    let cannot =
        |what: String| FabricFailure { seed, options: options.clone(), scheme: scheme.clone(), what };
    scheme.check().map_err(|error| cannot(error.to_string()))?;
    let built_in = scheme.built_in();
    if built_in.is_some_and(|scheme| !scheme.has_server()) {
        return Err(cannot("it has no servers, and the fabric runs nothing else".into()));
    }
    if let Some(scheme) = built_in.filter(|_| !plan.publishes()) {
        scheme.check(plan.workers).map_err(|error| cannot(error.to_string()))?;
    }
    match scheduler::play(seed, plan, scheme.clone()) {
        Ok(outcome) => Ok(FabricReport {
            seed,
            scheme,
            trace_hash: outcome.trace.hash(),
            events: outcome.events,
            virtual_time: outcome.virtual_time,
            versions: outcome.versions,
            views: outcome.views,
            errors: outcome.errors,
        }),
        Err(what) => Err(cannot(what)),
    }
}

/// The results of many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FabricSummary {
    /// The number of runs.
    pub runs: u64,
    /// The number of events in all of them.
    pub events: u64,
    /// Versions that were published.
    pub versions: u64,
    /// Copies that were handed out.
    pub views: u64,
    /// Calls that ended with an error, as they may.
    pub errors: u64,
    /// All their trace hashes, in any order of the runs' ends.
    pub trace_hash: u64,
}

/// Runs all of `seeds` on `threads` threads (0: one for each core), until one fails. `progress` is called for each run
/// when it ends.
///
/// # Errors
/// The failure of one of the runs, as by [`run`].
pub fn run_all(
    seeds: Range<u64>,
    options: &FabricOptions,
    threads: usize,
    progress: &(dyn Fn(&FabricReport) + Sync),
) -> Result<FabricSummary, FabricFailure> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let next = AtomicU64::new(seeds.start);
    let ended: Mutex<Result<FabricSummary, FabricFailure>> = Mutex::new(Ok(FabricSummary::default()));
    let lock = || ended.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || lock().is_err() {
                        return;
                    }
                    match run(seed, options) {
                        Ok(report) => {
                            if let Ok(summary) = &mut *lock() {
                                summary.add(&report);
                            }
                            progress(&report);
                        }
                        Err(failure) => {
                            let mut ended = lock();
                            // The smallest seed of the runs that failed at once.
                            if ended.as_ref().err().is_none_or(|other| other.seed > failure.seed) {
                                *ended = Err(failure);
                            }
                            return;
                        }
                    }
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl FabricSummary {
    fn add(&mut self, report: &FabricReport) {
        self.runs += 1;
        self.events += report.events;
        self.versions += report.versions;
        self.views += report.views;
        self.errors += report.errors;
        self.trace_hash ^= report.trace_hash;
    }
}

#[cfg(test)]
mod tests {
    use super::plan::PlannedFault;
    use super::*;
    use crate::clock::{Clock, Version};
    use crate::node::Error;
    use crate::scheme::{
        Needs, Scheme, SchemeConfig, SchemeConfigError, ServerAction, ServerEvent, ServerScheme, Share,
        Start, Statistics, WorkerScheme,
    };
    use crate::time::Instant;
    use crate::transport::PostError;

    /// Checks whether a worker's call may fail so, in a run that something has harmed or nothing.
    #[test]
    fn a_call_fails_for_good_only_where_something_was_harmed() {
        let plan = Plan::draw(1, Some(SchemeConfig::Bsp.into()), FaultKinds::None);
        for is_harmed in [false, true] {
            let mut judge = judge::FabricJudge::new(&plan, plan.scheme.clone());
            if is_harmed {
                judge.harm(Instant::ORIGIN);
            }
            let source = PostError::QueueFull { free: 0, batch: 1 };
            judge.erred(plan.servers, "begin", &Error::Post { shard: 0, source }, Instant::ORIGIN);
            assert_eq!(judge.failure().is_some(), !is_harmed, "{:?}", judge.failure());
        }
    }

    /// The judge's own observations of it.
    #[test]
    fn a_run_whose_records_contradict_each_other_fails() {
        let plan = Plan::draw(1, None, FaultKinds::None);
        let sample = String::from_utf8(crate::trace::fuzz::trace_samples().remove(0)).unwrap();
        let (publication, certificate) = sample.trim_end().split_once('\n').unwrap();
        for (digest, is_torn) in [("\"w\":\"a5", false), ("\"w\":\"b5", true)] {
            let mut judge = judge::FabricJudge::new(&plan, plan.scheme.clone());
            for line in [publication, &certificate.replace("\"w\":\"a5", digest)] {
                judge.recorded(line.parse().unwrap(), Instant::ORIGIN);
            }
            judge.check_records();
            let found = judge.failure().map(String::as_str).unwrap_or_default();
            assert_eq!(found.contains("not whole"), is_torn, "{found}");
            assert_eq!(judge.failure().is_some(), is_torn, "{found}");
        }
    }

    /// One scheme is promised, and another, looser by the smallest step that shows, runs where nothing breaks.
    #[test]
    fn bounds_loosened_by_one_are_caught() {
        // Of two workers under VAP: in clock 5 one gradient of 16 may be in transit and one more may come from
        // `32 / 2 * sqrt(6) = 39.2` on.
        for (promised, kept, complaint) in [
            ("bsp", "ssp(1)", "clocks stale"),
            ("ssp(1)", "ssp(2)", "clocks stale"),
            ("essp(1)", "essp(2)", "clocks stale"),
            ("bap(1)", "bap(2)", "clocks stale"),
            ("vap(39.1)", "vap(39.3)", "in transit"),
            ("vap(39.1, strength=strong)", "vap(39.3, strength=strong)", "in transit"),
            ("abs(k=1, staleness=0, rule=fixed)", "abs(k=1, staleness=1, rule=fixed)", "too old"),
            ("dbw(1)", "abs(k=1, staleness=1, rule=fixed)", "too old"),
            ("delay(1, seed=1)", "delay(2, seed=1)", "too old"),
            ("dbw(1)", "dbw(2)", "is made of 2 gradients"),
            (
                "abs(k=1, staleness=2, rule=fixed)",
                "abs(k=2, staleness=2, rule=fixed)",
                "is made of 2 gradients",
            ),
            // Of four workers; from clock 4 on a version waits for three, and the bound is 2.
            ("abs(k=1, staleness=4)", "abs(k=1, staleness=4, shrink=fixed)", "too old"),
        ] {
            let workers = if promised.contains("staleness=4") { 4 } else { 2 };
            let [promised, kept]: [SchemeConfig; 2] = [promised, kept].map(|text| text.parse().unwrap());
            let caught = (0..100).filter(|seed| {
                let mut plan = Plan::draw(*seed, Some(kept.into()), FaultKinds::None);
                (plan.workers, plan.quorum, plan.goal) = (workers, [workers; 2], 10);
                scheduler::play(*seed, plan, promised.into()).is_err_and(|what| {
                    assert!(what.contains(complaint), "{kept} for {promised}, seed {seed}: {what}");
                    true
                })
            });
            let caught = caught.count();
            assert!(caught > 3, "{kept} for {promised}: caught {caught} of 100");
        }
    }

    /// SSP, whose server drops each fourth gradient of a worker where it would fold it in.
    struct Dropping;

    const KEPT: SchemeConfig = SchemeConfig::Ssp { staleness: 2 };

    impl Scheme for Dropping {
        fn name(&self) -> &str {
            "dropping"
        }

        fn needs(&self) -> Needs {
            KEPT.needs()
        }

        fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
            Ok(Box::new(DroppingServer(Scheme::server(&KEPT, start)?)))
        }

        fn worker(&self) -> Box<dyn WorkerScheme> {
            KEPT.worker()
        }
    }

    struct DroppingServer(Box<dyn ServerScheme>);

    impl ServerScheme for DroppingServer {
        fn handle_event(&mut self, now: Instant, event: ServerEvent) {
            self.0.handle_event(now, event);
        }

        fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
            let action = self.0.poll_action(shares)?;
            let gradient = shares.first().map(|share| share.gradient);
            let Some(gradient) =
                gradient.filter(|it| action == ServerAction::Apply && it.clock.get() % 4 == 3)
            else {
                return Some(action);
            };
            shares.clear();
            let (version, statistics) = (Version::new(0), Statistics::default());
            self.0.handle_event(Instant::ORIGIN, ServerEvent::Applied { version, statistics });
            Some(ServerAction::Drop { gradient })
        }

        fn smallest_clock(&self) -> Clock {
            self.0.smallest_clock()
        }
    }

    /// Nothing breaks, and no worker comes late.
    #[test]
    fn a_scheme_that_drops_where_it_promises_to_fold_all_is_caught() {
        let options =
            FabricOptions { scheme: Some(Dropping.into()), spare_nodes: true, ..FabricOptions::default() };
        for seed in 0..20 {
            let failure = run(seed, &options).unwrap_err();
            assert!(failure.what.contains("all are folded in"), "{failure}");
        }
    }

    /// Of two servers one decides. Whichever is lost, or stands still for longer than the lease, all shards hold the
    /// same gradients, and all workers get to the end.
    #[test]
    fn servers_of_which_one_decides_survive_the_loss_and_the_pause_of_each() {
        const MILLISECOND: u64 = 1_000_000;
        let mut runs = 0;
        for text in ["dbw(2)", "dbw(2, delivery=wait)", "abs(k=2, staleness=1)", "vap(1e5, strength=strong)"]
        {
            let scheme: SchemeConfig = text.parse().unwrap();
            for seed in 0..40 {
                let plan = Plan::draw(seed, Some(scheme.into()), FaultKinds::None);
                let lease = plan.lease.as_nanos() as u64;
                for node in (0..plan.servers).filter(|_| plan.servers > 1) {
                    let at = (1 + seed % 5) * MILLISECOND;
                    let crash = PlannedFault::Crash { node, notice_max: MILLISECOND };
                    for (fault, lasts) in [
                        (
                            vec![(at, crash), (at + 3 * MILLISECOND, PlannedFault::Return { node })],
                            3 * MILLISECOND,
                        ),
                        (vec![(at, PlannedFault::Freeze { node, nanos: 2 * lease })], 2 * lease),
                        (vec![(at, PlannedFault::Cut { one: 0, other: 1 })], 0),
                    ] {
                        let mut plan = plan.clone();
                        plan.faults = fault;
                        plan.faults.push((at + lasts + MILLISECOND, PlannedFault::Calm));
                        let played = scheduler::play(seed, plan, scheme.into());
                        assert!(played.is_ok(), "{text}, seed {seed}, {node}: {:?}", played.err());
                        runs += 1;
                    }
                }
            }
        }
        assert!(runs > 100, "{runs} runs");
    }

    /// Of BSP a worker followed for ever a fold that its server had begun in hope. Of DBW one look found words of a
    /// server's old and of its new incarnation, and called that damage. A server that follows forgot how far it had
    /// read when its connection ended, and took the decider for another one; and after a new connection it let go of a
    /// worker that had left, before it knew whether the decider had its gradient. In the others the judge was told of
    /// an eviction for which it knew no cause: the connection had ended long before, while the worker still made that
    /// to the other server; or a server or a relay began again, since its decider or its publisher had.
    #[test]
    fn runs_that_once_broke_a_promise_keep_it() {
        let of = |text: &str| Some(text.parse::<SchemeConfig>().unwrap().into());
        for (seed, scheme) in [
            (37_549, None),
            (42_197, None),
            (60_966, None),
            (134_024, None),
            (145_967, None),
            (240_508, None),
            (321_250, None),
            (640, of("bsp")),
            (862, of("dbw(2)")),
        ] {
            let ended = run(seed, &FabricOptions { scheme, ..FabricOptions::default() });
            assert!(ended.is_ok(), "{}", ended.unwrap_err());
        }
    }

    #[test]
    fn the_command_that_shows_a_failure_again_has_all_its_options() {
        let options = FabricOptions {
            scheme: Some(SchemeConfig::Bsp.into()),
            spare_nodes: true,
            only: Some(Class::Liars),
        };
        let failure =
            FabricFailure { seed: 7, options, scheme: SchemeConfig::Bsp.into(), what: "it ended".into() };
        let command = "slackline sim --fabric --seed 7 --scheme 'bsp' --spare-nodes --only liars";
        assert!(failure.to_string().ends_with(command), "{failure}");
    }
}
