//! A worker process.

use std::path::Path;
use std::time::{Duration, Instant};

use slackline::Error;
use slackline::job::rendezvous::MemberRole;
use slackline::node::{LinkStatus, Step, Worker, WorkerOptions, now};

use slackline_lab::data::{self, Dataset};
use slackline_lab::model::{Batches, ModelSpec};

use super::Trouble;
use super::compute::{Computer, Pace};
use super::messages::{Message, Order, Report, WorkConfig};
use super::seat::Seat;
use super::sync::Sync;
use crate::metrics::{self, PeerMetrics, PeerState, Registry, WorkerMetrics};
use slackline::transport::TransportKind;
use slackline::transport::mixed::Mixed;

/// How long one try to connect to servers that came back may take.
const RECONNECT_TRY: Duration = Duration::from_secs(2);

/// The time between two looks of a finished worker at its connections.
const ATTEND_EVERY: Duration = Duration::from_millis(50);

/// How often a worker brings up to date what it tells.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Trains until all steps are done, then stays until the job is over: while it is in, the others' gradients keep their
/// weight.
pub(super) fn work(seat: &Seat, metrics: Option<&Registry>, timeout: Duration) -> Result<(), Trouble> {
    let Order::Work(config) = seat.order(timeout)? else {
        return Err("the coordinator takes this worker for a server".into());
    };
    let (kind, columns, classes, hidden) = config.model;
    let spec = ModelSpec::new(kind, columns, classes, hidden)?;
    let train = examples(&config)?;
    let batches = Batches::new(config.seed, config.worker, config.workers, train.rows(), config.batch)?;
    let timeout = Duration::from_secs_f64(config.timeout_s);
    let mut computer = Computer::new(spec, train, batches);
    let (jitter, workers) = (config.jitter.as_deref(), config.workers);
    computer.pace = Pace::new(config.factor, jitter, config.seed, config.worker, workers)?;
    computer.learning_rate = config.learning_rate;
    computer.local_steps = u64::from(config.scheme.local_steps());
    if config.sync.is_some() {
        let mut sync = Sync::meet(seat, *config, computer, metrics)?;
        seat.end_with_the_job()?;
        seat.report(Report::default());
        sync.train()?;
        seat.finish(sync.report());
        return sync.attend();
    }
    let (addresses, taken) = seat.reach(MemberRole::Server, config.servers, config.require, timeout)?;
    let options = WorkerOptions {
        encoding: config.encoding,
        checksums: config.checksums,
        own_step: config.own_step,
        // Started again, it is the same worker to the servers.
        identity: u32::try_from(config.worker).ok(),
        ..WorkerOptions::new(config.scheme)
    };
    let mut worker = Worker::connect(seat.transports().open(), &addresses, options, timeout)?;
    seat.say(Message::Joined(taken));

    seat.end_with_the_job()?;
    seat.report(Report::default());
    let mut trainer = Trainer { computer, config: *config, timeout, seat, metrics };
    trainer.train(&mut worker)?;
    loop {
        seat.finish(Report::of(worker.clock(), worker.statistics()));
        trainer.attend(&mut worker)?;
        // A server that came back with a checkpoint may lack this worker's last gradients: the others wait for them.
        trainer.train(&mut worker)?;
    }
}

/// The training examples, as the coordinator saw them.
fn examples(config: &WorkConfig) -> Result<Dataset, Trouble> {
    let split = match &config.data {
        Some(path) => data::load(Path::new(path))?,
        None => data::digits(),
    };
    let (_, columns, classes, _) = config.model;
    let found = (split.train.rows(), split.train.columns, split.train.classes);
    if found != (config.rows, columns, classes) {
        return Err(
            "the data file here is not the coordinator's, or was changed; use the same file on all hosts"
                .into(),
        );
    }
    Ok(split.train)
}

struct Trainer<'a> {
    computer: Computer,
    config: WorkConfig,
    timeout: Duration,
    seat: &'a Seat,
    metrics: Option<&'a Registry>,
}

impl Trainer<'_> {
    /// Trains until all steps are done, through the loss of servers if they may come back.
    fn train(&mut self, worker: &mut Worker<Mixed>) -> Result<(), Trouble> {
        while let Err(error) = self.steps(worker) {
            let lost = matches!(error, Error::ServerLost { .. } | Error::Evicted { .. });
            if !lost || !self.config.reconnect {
                return Err(error.into());
            }
            tracing::warn!(%error, "connecting again");
            self.reconnect(worker, error)?;
        }
        Ok(())
    }

    /// Stays in until a server is lost and has come back: it waits for all workers that are in, also for one that has
    /// finished. The end of the job ends the process.
    fn attend(&mut self, worker: &mut Worker<Mixed>) -> Result<(), Trouble> {
        loop {
            std::thread::sleep(ATTEND_EVERY);
            match worker.poll(now()) {
                Ok(_) => {}
                Err(error) if self.config.reconnect => return self.reconnect(worker, error),
                // The coordinator decides what becomes of a job that has lost a server.
                Err(_) => loop {
                    std::thread::park();
                },
            }
        }
    }

    /// Connects again once all servers are up, wherever they are by then.
    fn reconnect(&mut self, worker: &mut Worker<Mixed>, lost: Error) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.timeout;
        let mut last = Trouble::from(lost);
        while Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let WorkConfig { servers, require, .. } = self.config;
            let (addresses, taken) = self.seat.reach(MemberRole::Server, servers, require, left)?;
            // What is told of a server that has just died may not have been corrected yet.
            match worker.reconnect(&addresses, left.min(RECONNECT_TRY)) {
                Ok(()) => {
                    self.seat.say(Message::Joined(taken));
                    return Ok(());
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    /// The clock of the worker says which step it is at: it may begin late, and after a loss it goes on where the
    /// servers are.
    fn steps(&mut self, worker: &mut Worker<Mixed>) -> Result<(), Error> {
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        while self.config.steps.is_none_or(|steps| worker.clock().0 < steps) {
            let mut step = worker.step(self.timeout)?;
            match self.compute(&mut step)? {
                Some(loss) => {
                    step.encode(&self.computer.gradient)?;
                    step.publish(Some(loss), self.timeout)?;
                    (sum, count) = (sum + f64::from(loss), count + 1);
                }
                None => step.abandon()?,
            }
            // Cheap next to a step, but there may be thousands of steps between two reports.
            if reported.elapsed() >= REPORT_EVERY {
                self.tell(worker, (count > 0).then(|| sum / f64::from(count)));
                (sum, count, reported) = (0.0, 0, Instant::now());
            }
        }
        worker.flush(self.timeout)
    }

    /// The gradient of this clock, and its loss; none if a server asked to give it up.
    fn compute(&mut self, step: &mut Step<'_, Mixed>) -> Result<Option<f32>, Error> {
        let clock = step.view().clock.0;
        if !self.config.scheme.interrupts() && self.computer.local_steps == 1 {
            return self.computer.gradient(clock, step.parameters()?).map(Some);
        }
        self.computer.base.clear();
        self.computer.base.extend_from_slice(step.parameters()?);
        self.computer.gradient_unless(clock, &mut || step.should_stop())
    }

    fn tell(&self, worker: &Worker<Mixed>, loss: Option<f64>) {
        self.seat.report(Report { loss, ..Report::of(worker.clock(), worker.statistics()) });
        let Some(metrics) = self.metrics else { return };
        let clock = worker.clock().0;
        metrics.update(|metrics| {
            let before = metrics.worker.take().and_then(|worker| worker.loss);
            let statistics = WorkerMetrics::from(worker.statistics());
            let loss = loss.or(before);
            metrics.worker = Some(WorkerMetrics { clock, loss, ..statistics });
            metrics.peers = worker.links().map(peer).collect();
        });
    }
}

fn peer(link: LinkStatus) -> PeerMetrics {
    PeerMetrics {
        name: format!("server {}", link.shard),
        role: metrics::Role::Server,
        state: PeerState::Up,
        path: link.transport.parse().unwrap_or(TransportKind::Shm),
        bytes_in: link.bytes_pulled,
        bytes_out: link.bytes_published,
    }
}
