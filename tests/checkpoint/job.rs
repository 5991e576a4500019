//! A job whose servers can be stopped at any time: each is driven by a thread until it is told to stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackline::checkpoint::{Checkpoint, CheckpointOptions};
use slackline::{
    Address, Clock, ElementType, Error, Server, ServerOptions, ServerStatus, Shm, Table, View, Worker,
    WorkerOptions, scheme::SchemeConfig,
};

/// Longest time that any wait may take: far more than any of them needs.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

pub(super) fn schemes() -> [SchemeConfig; 4] {
    [
        SchemeConfig::Bsp,
        SchemeConfig::Asp,
        SchemeConfig::Ssp { staleness: 2 },
        SchemeConfig::Essp { staleness: 2 },
    ]
}

pub(super) fn table(elements: usize) -> Table {
    Table::flat(elements as u64, ElementType::F32).unwrap()
}

/// A server that a thread drives.
pub(super) struct Serving {
    pub(super) address: Address,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Server<Shm>>,
}

impl Serving {
    pub(super) fn start(mut server: Server<Shm>) -> Serving {
        let stop = Arc::new(AtomicBool::new(false));
        let (address, stopped) = (server.address(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            // A test that waits for it fails first.
            let stopped = server.drive(|_| stopped.load(SeqCst), 10 * PATIENCE).unwrap();
            assert!(stopped, "this server was not stopped");
            server
        });
        Serving { address, stop, thread }
    }

    /// Returns the server as it stands. To drop it is to kill it: no peer is told.
    pub(super) fn stop(self) -> Server<Shm> {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }

    /// Drives the server itself until `until` says so.
    pub(super) fn until(self, what: &str, until: impl Fn(&ServerStatus) -> bool) -> Serving {
        let mut server = self.stop();
        let met = server.drive(|server| until(&server.status()), PATIENCE).unwrap();
        assert!(met, "waited in vain for {what}: {:?}", server.status());
        Serving::start(server)
    }
}

/// Options with a checkpoint in a folder of its own.
pub(super) fn checkpointing(options: ServerOptions, path: impl Into<PathBuf>) -> ServerOptions {
    ServerOptions { checkpoint: Some(CheckpointOptions::new(path)), ..options }
}

pub(super) fn new(elements: usize, options: ServerOptions) -> Server<Shm> {
    Server::new(Shm::new(), &Address::random(), table(elements), &vec![0.5; elements], options).unwrap()
}

pub(super) fn resume(elements: usize, path: &std::path::Path, options: ServerOptions) -> Server<Shm> {
    let checkpoint = Checkpoint::read(path).unwrap();
    Server::resume(Shm::new(), &Address::random(), table(elements), checkpoint, options).unwrap()
}

pub(super) fn worker(address: &Address, scheme: SchemeConfig) -> Worker<Shm> {
    Worker::connect(Shm::new(), std::slice::from_ref(address), WorkerOptions::new(scheme), PATIENCE).unwrap()
}

/// A gradient that depends on the parameters and on the clock, up to some clock that all schemes reach.
pub(super) fn gradient_of(parameters: &[f32], clock: Clock, gradient: &mut [f32]) {
    for (index, (g, p)) in gradient.iter_mut().zip(parameters).enumerate() {
        *g = p - (index as f32 * 0.07).sin() - clock.get().min(100) as f32 * 0.001;
    }
}

/// One clock of a worker.
pub(super) fn train(worker: &mut Worker<Shm>) -> Result<View, Error> {
    let mut step = worker.step(PATIENCE)?;
    let view = step.view();
    let parameters = step.parameters()?.to_vec();
    gradient_of(&parameters, view.clock, step.gradient()?);
    step.publish(None, PATIENCE)?;
    Ok(view)
}

/// Calls `step` until it returns something.
pub(super) fn wait_for<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
