//! A job whose parameters tell at every moment whether a wrong bit ever got in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline::{
    Address, ElementType, Error, Server, ServerOptions, ServerStatus, Table, Tcp, View, Worker,
    WorkerOptions, scheme::SchemeConfig,
};

/// Longest time that any wait may take: far more than any of them needs.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Time that a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(30);

pub(super) const SCHEMES: [SchemeConfig; 3] =
    [SchemeConfig::Bsp, SchemeConfig::Ssp { staleness: 2 }, SchemeConfig::Essp { staleness: 2 }];

/// One test at a time: they are about time, and the machine is small.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `step` until it returns something.
pub(super) fn wait_for<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a call that must return by its deadline, whatever it returns.
pub(super) fn timed<R>(what: &str, timeout: Duration, call: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let result = call();
    let took = begun.elapsed();
    assert!(took < timeout + SLACK, "{what} took {took:?} of {timeout:?}");
    result
}

/// A server of zeros over TCP, for two workers.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) scheme: SchemeConfig,
    pub(super) elements: usize,
    pub(super) lease: Duration,
}

/// The part of a job's state that can be seen from outside.
pub(super) struct Watch {
    job: Job,
    status: Mutex<ServerStatus>,
    /// No worker has published more clocks than this.
    furthest: AtomicU64,
}

impl Job {
    pub(super) fn new(scheme: SchemeConfig, elements: usize) -> Job {
        Job { scheme, elements, lease: Duration::from_secs(3) }
    }

    /// Serves while `body` runs; then what it gave, the parameters, and what there is to say of the server.
    pub(super) fn serve<R>(self, body: impl FnOnce(&Address, &Watch) -> R) -> (R, Vec<f32>, ServerStatus) {
        let mut options = ServerOptions::new(self.scheme, 2, -1.0);
        options.memory.checksums = true;
        options.memory.chunk_bytes = 4096;
        options.memory.lease = self.lease;
        // With three members, one of them about to be missed, weights would be thirds, and sums not exact.
        options.memory.peers = 2;
        let table = Table::flat(self.elements as u64, ElementType::F32).unwrap();
        let zeros = vec![0.0; self.elements];
        let any_port = "127.0.0.1:0".parse().unwrap();
        let mut server = Server::new(Tcp::new(), &any_port, table, &zeros, options).unwrap();
        let address = server.address();
        let status = Mutex::new(server.status());
        let watch = Watch { job: self, status, furthest: AtomicU64::new(0) };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (seen, done_too) = (&watch, &done);
            let serving = scope.spawn(move || {
                let until = |server: &Server<Tcp>| {
                    let status = server.status();
                    assert!(
                        status.loss.is_none_or(|loss| loss == f64::from(LOSS)),
                        "a wrong loss: {status:?}"
                    );
                    *seen.status.lock().unwrap() = status;
                    done_too.load(SeqCst)
                };
                assert!(server.drive(until, 3 * PATIENCE).unwrap(), "the job does not end");
                (server.parameters().unwrap(), server.status())
            });
            let end = End(&done);
            let result = body(&address, &watch);
            drop(end);
            let (parameters, status) = serving.join().unwrap();
            (result, parameters, status)
        })
    }
}

/// Ends the serving, also if a claim does not hold.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The loss of every gradient.
const LOSS: f32 = 0.75;

/// Returns the value of one element of each gradient: a whole number, so that sums are exact.
pub(super) fn pattern(index: usize) -> f32 {
    (index % 7 + 1) as f32
}

/// Asserts that the parameters are one and the same multiple of the pattern, and returns that multiple: the sum of the
/// weights of all gradients in it.
pub(super) fn multiple(parameters: &[f32]) -> f64 {
    let unit = parameters[0];
    for (index, value) in parameters.iter().enumerate() {
        assert!(
            *value == unit * pattern(index),
            "a wrong byte: {value} at {index}, where {unit} is the unit"
        );
    }
    assert!(unit >= 0.0 && (2.0 * unit).fract() == 0.0, "no sum of weights: {unit}");
    f64::from(unit)
}

impl Watch {
    pub(super) fn status(&self) -> ServerStatus {
        *self.status.lock().unwrap()
    }

    pub(super) fn connect(&self, address: &Address, timeout: Duration) -> Result<Worker<Tcp>, Error> {
        let options = WorkerOptions { checksums: true, ..WorkerOptions::new(self.job.scheme) };
        let addresses = std::slice::from_ref(address);
        timed("connect", timeout, || Worker::connect(Tcp::new(), addresses, options, timeout))
    }

    /// Trains for one clock, and checks its parameters, clocks and version.
    pub(super) fn train(&self, worker: &mut Worker<Tcp>, timeout: Duration) -> Result<(), Error> {
        let mut step = timed("step", timeout, move || worker.step(timeout))?;
        let view = step.view();
        self.check(&view, step.parameters()?);
        for (index, value) in step.gradient()?.iter_mut().enumerate() {
            *value = pattern(index);
        }
        self.furthest.fetch_max(view.clock.get() + 1, SeqCst);
        timed("publish", timeout, || step.publish(Some(LOSS), timeout))
    }

    /// Two workers weigh a half each, one alone weighs one: a version adds a half or one.
    fn check(&self, view: &View, parameters: &[f32]) {
        let (unit, version) = (multiple(parameters), view.version.get() as f64);
        let furthest = self.furthest.load(SeqCst);
        let (clock, smallest) = (view.clock.get(), view.smallest_clock.get());
        assert!(smallest <= furthest, "{view:?} where no worker is past {furthest}");
        match self.job.scheme.staleness() {
            Some(bound) => assert!(clock <= smallest + bound, "too stale: {view:?}"),
            None => panic!("a scheme with a bound"),
        }
        match self.job.scheme {
            SchemeConfig::Bsp => {
                assert!(unit == version && smallest == view.version.get(), "{unit} is not {view:?}")
            }
            _ => assert!((version / 2.0..=version).contains(&unit), "{unit} is not {view:?}"),
        }
    }
}
