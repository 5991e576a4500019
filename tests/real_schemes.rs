//! Every scheme on real servers and workers over shared memory: what it promises holds at each view and each update.
//!
//! Each gradient has one element that no other one has: what is in a version, and how much it counts, can be read off
//! its parameters.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use slackline::{
    Address, ElementType, Server, ServerOptions, Shm, Table, View, Worker, WorkerOptions,
    scheme::{SchemeConfig, dbw::Choice},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const WORKERS: usize = 4;

/// The weight of a gradient of magnitude 1 where each is folded in alone.
const WEIGHT: f64 = 1.0 / WORKERS as f64;

/// VAP's bound in a clock.
fn bound_at(bound: f64, clock: u64) -> f64 {
    bound / (clock as f64 + 1.0).sqrt()
}

/// Returns the number of gradients of which a version is the mean, if one of them has this weight in it.
fn count_of(weight: f32) -> usize {
    (1.0 / weight).round() as usize
}

/// Time for which a worker waits before it looks whether all is over.
const LOOK: Duration = Duration::from_millis(20);

/// A gradient that was published, and the view that it was computed on.
#[derive(Clone, Copy, Debug)]
struct Published {
    element: usize,
    view: View,
    /// Number of its worker's own gradients that were not in the view.
    own_missing: usize,
    /// A version that was there already when it was done.
    newest: u64,
}

/// An update: between which versions it came, and which elements count in it, and for how much.
#[derive(Debug)]
struct Update {
    before: u64,
    after: u64,
    shares: Vec<(usize, f32)>,
}

/// The history of one run.
struct History {
    published: Vec<Published>,
    updates: Vec<Update>,
    folded: u64,
    dropped: u64,
    versions: u64,
    abandoned: u64,
    /// Number of clocks for which a worker has elements.
    clocks: u64,
}

/// Runs four workers of different speeds under `scheme` until `versions` versions are made, or each worker has made so
/// many clocks.
fn run(scheme: SchemeConfig, clocks: u64, versions: u64) -> History {
    run_with(ServerOptions::new(scheme, WORKERS, 1.0), scheme, clocks, versions)
}

fn run_with(options: ServerOptions, scheme: SchemeConfig, clocks: u64, versions: u64) -> History {
    let elements = WORKERS * clocks as usize;
    let address = Address::random();
    let table = Table::flat(elements as u64, ElementType::F32).unwrap();
    let mut server = Server::new(Shm::new(), &address, table, &vec![0.0; elements], options).unwrap();
    let (over, newest, left) = (AtomicBool::new(false), AtomicU64::new(0), WORKERS as u64);
    let published = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|index| {
                let (address, world) =
                    (address.clone(), World { over: &over, newest: &newest, published: &published });
                scope.spawn(move || work(scheme, &address, index, clocks, world))
            })
            .collect();
        let watched = Mutex::new((0u64, vec![0.0f32; elements], Vec::new()));
        // What is made while workers leave is made of fewer: only what was made before counts.
        let counted = Mutex::new(None);
        let ended = server.drive(
            |server| {
                let status = server.status();
                newest.store(status.version.get(), Ordering::Release);
                let mut watched = watched.lock().unwrap();
                let (version, parameters, updates) = &mut *watched;
                let mut counted = counted.lock().unwrap();
                if counted.is_none() && status.version.get() > *version {
                    let now = server.parameters().unwrap();
                    let changed = now.iter().zip(&*parameters).map(|(now, before)| before - now).enumerate();
                    let shares = changed.filter(|(_, weight)| *weight != 0.0).collect();
                    updates.push(Update { before: *version, after: status.version.get(), shares });
                    (*version, *parameters) = (status.version.get(), now);
                }
                if status.version.get() >= versions {
                    counted.get_or_insert(status);
                    over.store(true, Ordering::Relaxed);
                }
                status.left == left
            },
            TIMEOUT,
        );
        over.store(true, Ordering::Relaxed);
        assert!(ended.unwrap(), "{scheme}: stuck at {:?}", server.status());
        let abandoned = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        let status = counted.into_inner().unwrap().unwrap_or_else(|| server.status());
        let (versions, _, updates) = watched.into_inner().unwrap();
        let published = std::mem::take(&mut *published.lock().unwrap());
        let (folded, dropped) = (status.folded, status.dropped);
        History { published, updates, folded, dropped, versions, abandoned, clocks }
    })
}

/// The state of the run that workers see, and the list in which they leave what they published.
struct World<'a> {
    over: &'a AtomicBool,
    newest: &'a AtomicU64,
    published: &'a Mutex<Vec<Published>>,
}

/// A worker from its start to its end; gives how many computations it abandoned.
fn work(scheme: SchemeConfig, address: &Address, index: usize, clocks: u64, world: World<'_>) -> u64 {
    let options = WorkerOptions::new(scheme);
    let mut worker = Worker::connect(Shm::new(), std::slice::from_ref(address), options, TIMEOUT).unwrap();
    let is_over = || world.over.load(Ordering::Relaxed);
    let mut own: Vec<usize> = Vec::new();
    while worker.clock().get() < clocks && !is_over() {
        // Once all is over there may be nothing to wait for.
        let mut step = match worker.step(LOOK) {
            Ok(step) => step,
            Err(slackline::Error::Deadline { .. }) => continue,
            Err(error) => panic!("{scheme}: worker {index}: {error}"),
        };
        let view = step.view();
        let element = index * clocks as usize + view.clock.get() as usize;
        let parameters = step.parameters().unwrap();
        let own_missing = own.iter().filter(|own| parameters[**own] == 0.0).count();
        // Different speeds, and each worker slow now and then.
        let slow = if view.clock.get() % 7 == index as u64 { 4 } else { 1 };
        let mut stopped = false;
        for _ in 0..slow * (1 + index as u32) {
            std::thread::sleep(Duration::from_micros(100));
            stopped = scheme.interrupts() && step.should_stop().unwrap();
            if stopped {
                break;
            }
        }
        if stopped {
            step.abandon().unwrap();
            continue;
        }
        // Once the others go on without the last backup worker: that one is late is not left to chance.
        while is_static_backup(scheme) && (index, view.clock.get()) == (WORKERS - 1, 5) && !is_over() {
            if world.newest.load(Ordering::Acquire) > view.version.get() {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let newest = world.newest.load(Ordering::Acquire);
        let gradient = step.gradient().unwrap();
        gradient.fill(0.0);
        gradient[element] = 1.0;
        // A loss that falls, for the schemes that learn from it.
        step.publish(Some(1.0 / (1.0 + view.clock.get() as f32)), TIMEOUT).unwrap();
        own.push(element);
        world.published.lock().unwrap().push(Published { element, view, own_missing, newest });
    }
    if !is_over() {
        worker.flush(TIMEOUT).unwrap();
    }
    worker.statistics().abandoned
}

fn is_static_backup(scheme: SchemeConfig) -> bool {
    matches!(scheme, SchemeConfig::Dbw { choice: Choice::Static { .. }, .. })
}

impl History {
    /// No gradient counts twice, none counts that was not published, and the counters say the same.
    fn check_folded_at_most_once(&self) {
        let mut seen = vec![false; 1 + self.published.iter().map(|one| one.element).max().unwrap_or(0)];
        let mut folded = 0;
        for (element, _) in self.updates.iter().flat_map(|update| &update.shares) {
            assert!(!std::mem::replace(&mut seen[*element], true), "element {element} counts twice");
            folded += 1;
        }
        assert_eq!(folded, self.folded);
        assert!(folded + self.dropped <= self.published.len() as u64);
    }

    /// Each version is the mean of so many gradients, also where two came between two looks.
    fn check_means(&self, of: impl Fn(usize) -> bool) {
        for update in &self.updates {
            let mut sum = 0.0;
            for (element, weight) in &update.shares {
                let count = count_of(*weight);
                assert!(of(count), "element {element} is one of {count} in {update:?}");
                assert_eq!(*weight, 1.0 / count as f32, "element {element} of {update:?}");
                sum += f64::from(*weight);
            }
            assert!(
                (sum - (update.after - update.before) as f64).abs() < 1e-4,
                "weights add to {sum}: {update:?}"
            );
        }
    }

    /// By how many versions each gradient was behind when it was folded in with so many others: at least, where several
    /// versions came between two looks. The most.
    fn check_used(&self, fits: impl Fn(u64, usize) -> bool) -> u64 {
        let (mut most, mut exact) = (0, 0);
        for update in &self.updates {
            exact += u64::from(update.after == update.before + 1);
            for (element, weight) in &update.shares {
                let of = self.published.iter().find(|one| one.element == *element);
                let base = of.expect("folded, so published").view.version.get();
                assert!(base < update.after, "element {element}, computed on {base}, is in {update:?}");
                let staleness = update.before.saturating_sub(base);
                let fits = fits(staleness, count_of(*weight));
                assert!(fits, "element {element}, computed on {base}, is in {update:?}");
                most = most.max(staleness);
            }
        }
        assert!(exact > self.versions / 8, "{exact} of {} versions were seen alone", self.versions);
        most
    }

    /// Asserts that a worker that begins a clock has no more of its own in transit than leaves room for one, or none.
    /// Returns how often one had any.
    fn check_own_in_transit(&self, bound: f64) -> usize {
        let some = self.published.iter().filter(|one| one.own_missing > 0);
        for Published { view, own_missing, .. } in some.clone() {
            let transit = WEIGHT * (own_missing + 1) as f64;
            assert!(
                transit <= bound_at(bound, view.clock.get()),
                "{own_missing} of its own, at clock {}",
                view.clock.get()
            );
        }
        some.count()
    }

    /// Counts how often more than one gradient, and more than the bound, was folded in while a worker computed on an
    /// older version.
    fn unseen_beyond(&self, bound: f64) -> usize {
        let is_beyond = |one: &&Published| {
            let Some(last) = self.updates.iter().find(|update| update.after >= one.newest) else {
                return false;
            };
            let clock = last.shares.iter().map(|(element, _)| *element as u64 % self.clocks).min();
            let unseen = one.newest.saturating_sub(one.view.version.get());
            unseen > 1 && WEIGHT * unseen as f64 > bound_at(bound, clock.unwrap_or(0))
        };
        self.published.iter().filter(is_beyond).count()
    }

    fn check_staleness(&self, bound: u64) {
        for Published { element, view, .. } in &self.published {
            assert!(view.staleness() <= bound, "element {element}: {view:?}");
        }
    }
}

#[test]
fn bsp_folds_everybody_s_gradient_of_each_clock() {
    let history = run(SchemeConfig::Bsp, 60, u64::MAX);
    assert_eq!((history.versions, history.folded, history.dropped), (60, 240, 0));
    history.check_folded_at_most_once();
    history.check_means(|count| count == WORKERS);
    history.check_staleness(0);
}

#[test]
fn asp_ssp_and_essp_fold_each_gradient_and_keep_their_bound() {
    for scheme in [SchemeConfig::Asp, SchemeConfig::Ssp { staleness: 2 }, SchemeConfig::Essp { staleness: 2 }]
    {
        let history = run(scheme, 60, u64::MAX);
        assert_eq!((history.folded, history.dropped), (240, 0), "{scheme}");
        history.check_folded_at_most_once();
        if let Some(bound) = scheme.staleness() {
            history.check_staleness(bound);
        }
    }
}

#[test]
fn bap_folds_whole_clocks_in_order_and_runs_ahead_no_further_than_its_bound() {
    let history = run(SchemeConfig::Bap { staleness: 2 }, 60, u64::MAX);
    assert_eq!((history.versions, history.folded, history.dropped), (60, 240, 0));
    history.check_folded_at_most_once();
    history.check_means(|count| count == WORKERS);
    history.check_staleness(2);
    for Published { view, .. } in &history.published {
        assert!(
            view.clock.get() - view.version.get().min(view.clock.get()) <= 2
                && view.version.get() <= view.clock.get(),
            "{view:?}"
        );
    }
    let ahead = history.published.iter().filter(|one| one.view.staleness() > 0).count();
    assert!(ahead > 0, "no worker ever ran ahead");
}

fn scheme(text: &str) -> SchemeConfig {
    text.parse().unwrap()
}

#[test]
fn static_backup_workers_fold_exactly_k_and_all_of_one_version() {
    for delivery in ["interrupt", "wait", "pull"] {
        let history = run(scheme(&format!("dbw(k=3, delivery={delivery})")), 200, 40);
        assert_eq!(history.folded, 3 * history.versions, "{delivery}");
        assert!(history.dropped + history.abandoned > 0, "{delivery}: the slow one is never late");
        history.check_folded_at_most_once();
        history.check_means(|count| count == 3);
        history.check_used(|staleness, _| staleness == 0);
    }
}

#[test]
fn dynamic_backup_workers_fold_whole_means_of_one_version() {
    for choice in ["dynamic", "blind"] {
        let history = run(scheme(&format!("dbw(choice={choice})")), 200, 40);
        assert!((history.versions..=4 * history.versions).contains(&history.folded));
        history.check_folded_at_most_once();
        history.check_means(|count| (1..=WORKERS).contains(&count));
        history.check_used(|staleness, _| staleness == 0);
    }
}

#[test]
fn abs_folds_k_updates_none_older_than_its_bound() {
    for bound in [0, 1, 2] {
        let text = format!("abs(k=2, staleness={bound}, rule=fixed, shrink=fixed)");
        let history = run(scheme(&text), 200, 40);
        assert_eq!(history.folded, 2 * history.versions, "{text}");
        history.check_folded_at_most_once();
        history.check_means(|count| count == 2);
        history.check_used(|staleness, _| staleness <= bound);
    }
    let history = run(scheme("k-async(2)"), 200, 40);
    assert_eq!((history.folded, history.dropped, history.abandoned), (2 * history.versions, 0, 0));
    history.check_folded_at_most_once();
}

/// The default: more are waited for as the loss falls, and the bound shrinks with that.
#[test]
fn adaptive_abs_keeps_to_the_bound_in_force() {
    let history = run(scheme("abs(k=1, staleness=3)"), 200, 60);
    history.check_folded_at_most_once();
    history.check_means(|count| (1..=WORKERS).contains(&count));
    history.check_used(|staleness, count| staleness <= 3u64.div_ceil(count as u64));
    let counts =
        || history.updates.iter().flat_map(|update| &update.shares).map(|(_, weight)| count_of(*weight));
    assert!(counts().max() > counts().min(), "as many were waited for from the first to the last");
}

#[test]
fn vap_folds_every_gradient_once_and_has_no_more_in_transit_than_its_bound() {
    let bound = 3.0;
    for strength in ["weak", "strong"] {
        let history = run(scheme(&format!("vap(bound={bound}, strength={strength})")), 300, 300);
        history.check_folded_at_most_once();
        assert_eq!(history.dropped, 0, "{strength}");
        assert!(history.versions >= 300, "{strength}");
        assert!(history.check_own_in_transit(bound) > 0, "{strength}: no worker had anything in transit");
        if strength == "strong" {
            assert_eq!(history.unseen_beyond(bound), 0);
        }
    }
    assert!(run(SchemeConfig::Asp, 300, 300).unseen_beyond(bound) > 0, "no worker waits, and nothing shows");
}

#[test]
fn delayed_updates_are_folded_in_late_and_all_of_them() {
    let bound = 3;
    let history = run(scheme(&format!("delay(staleness={bound}, seed=5)")), 200, 40);
    history.check_folded_at_most_once();
    assert_eq!(history.dropped, 0);
    // A gradient of round `r` comes into the version after its own round, or up to three later.
    assert!(history.check_used(|staleness, _| staleness <= bound) > 0, "none was late");
    let shares = || history.updates.iter().flat_map(|update| &update.shares);
    assert!(shares().all(|(_, weight)| *weight == 1.0 / WORKERS as f32), "each as its own round has it");
    let is_due = |one: &&Published| one.view.version.get() + 1 + bound <= history.versions;
    for Published { element, view, .. } in history.published.iter().filter(is_due) {
        assert!(shares().any(|(folded, _)| folded == element), "element {element} of {view:?} never came in");
    }
}

/// A gradient that depends on the parameters, and a run in which only the order of sums could differ.
fn trained(scheme: SchemeConfig) -> Vec<u32> {
    const ELEMENTS: usize = 1000;
    let address = Address::random();
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    let options = ServerOptions::new(scheme, WORKERS, 0.1);
    let mut server = Server::new(Shm::new(), &address, table, &[0.5; ELEMENTS], options).unwrap();
    // One joins after the other: gradients are summed in the order of the peers.
    let joined = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for index in 0..WORKERS {
            let (address, joined) = (address.clone(), &joined);
            scope.spawn(move || {
                let options = WorkerOptions::new(scheme);
                while joined.load(Ordering::SeqCst) != index {
                    std::thread::yield_now();
                }
                let mut worker = Worker::connect(Shm::new(), &[address], options, TIMEOUT).unwrap();
                joined.store(index + 1, Ordering::SeqCst);
                for clock in 0..30 {
                    let mut step = worker.step(TIMEOUT).unwrap();
                    let (parameters, gradient) = step.borrow().unwrap();
                    for (element, (gradient, parameter)) in gradient.iter_mut().zip(parameters).enumerate() {
                        *gradient = parameter - ((element * 7 + index * 3 + clock) as f32 * 0.01).sin();
                    }
                    step.publish(Some(1.0), TIMEOUT).unwrap();
                }
                worker.flush(TIMEOUT).unwrap();
            });
        }
        assert!(server.drive(|server| server.status().left == WORKERS as u64, TIMEOUT).unwrap());
    });
    server.parameters().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn bap_without_run_ahead_is_bsp_to_the_bit() {
    assert!(trained(SchemeConfig::Bap { staleness: 0 }) == trained(SchemeConfig::Bsp));
}

/// A sum and no mean: one clock of all moves a parameter as far as its gradients do together.
#[test]
fn updates_that_add_up_count_whole() {
    for (text, clocks) in [("ssp(2)", 50), ("essp(2)", 50), ("bsp", 20)] {
        let options = ServerOptions { additive: true, ..ServerOptions::new(scheme(text), WORKERS, 1.0) };
        let history = run_with(options, scheme(text), clocks, u64::MAX);
        let shares: Vec<_> = history.updates.iter().flat_map(|update| &update.shares).collect();
        assert!(shares.len() > clocks as usize, "{text}: {} shares", shares.len());
        assert!(shares.iter().all(|(_, weight)| *weight == 1.0), "{text}: {shares:?}");
    }
}
