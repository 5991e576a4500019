//! A worker process.

use std::path::Path;
use std::time::{Duration, Instant};

use slackline::Error;
use slackline::node::{LinkStatus, Worker, WorkerOptions};
use slackline::rendezvous::Role;
use slackline_cli::data::{self, Dataset};
use slackline_cli::metrics::{self, PeerMetrics, PeerState, Registry, WorkerMetrics};
use slackline_cli::model::{Batches, ModelSpec};

use super::Trouble;
use super::compute::{Computer, Pace};
use super::fabric::{Fabric, path_of};
use super::messages::{Message, Order, Report, WorkConfig};
use super::seat::{End, Seat};
use super::sync::Sync;

/// How long one try to connect to servers that came back may take.
const RECONNECT_TRY: Duration = Duration::from_secs(2);

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
        end_with_the_job(seat)?;
        seat.report(Report::default());
        sync.train()?;
        seat.finish(sync.report());
        return sync.attend();
    }
    let (addresses, taken) = seat.reach(Role::Server, config.servers, config.require, timeout)?;
    let options = WorkerOptions {
        encoding: config.encoding,
        checksums: config.checksums,
        own_step: config.own_step,
        ..WorkerOptions::new(config.scheme)
    };
    let mut worker = Worker::connect(seat.ways.fabric(), &addresses, options, timeout)?;
    seat.say(Message::Joined(taken));

    end_with_the_job(seat)?;
    seat.report(Report::default());
    let mut trainer = Trainer { computer, config: *config, timeout, seat, metrics };
    trainer.train(&mut worker)?;
    seat.finish(Report::of(worker.clock(), worker.statistics()));
    loop {
        std::thread::park();
    }
}

/// Ends this process with the job. Nothing is lost by leaving in the middle: servers drop what was not announced.
fn end_with_the_job(seat: &Seat) -> Result<(), Trouble> {
    seat.at_end(|end| match end {
        End::Dismissed => std::process::exit(0),
        End::Lost(why) => {
            eprintln!("error: {why}");
            std::process::exit(1)
        }
    })
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
    fn train(&mut self, worker: &mut Worker<Fabric>) -> Result<(), Trouble> {
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

    /// Connects again once all servers are up, wherever they are by then.
    fn reconnect(&mut self, worker: &mut Worker<Fabric>, lost: Error) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.timeout;
        let mut last = Trouble::from(lost);
        while Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let WorkConfig { servers, require, .. } = self.config;
            let (addresses, taken) = self.seat.reach(Role::Server, servers, require, left)?;
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
    fn steps(&mut self, worker: &mut Worker<Fabric>) -> Result<(), Error> {
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        while self.config.steps.is_none_or(|steps| worker.clock().0 < steps) {
            worker.begin(self.timeout)?;
            match self.compute(worker)? {
                Some(loss) => {
                    worker.encode(&self.computer.gradient)?;
                    worker.publish(Some(loss), self.timeout)?;
                    (sum, count) = (sum + f64::from(loss), count + 1);
                }
                None => worker.abandon()?,
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
    fn compute(&mut self, worker: &mut Worker<Fabric>) -> Result<Option<f32>, Error> {
        let clock = worker.clock().0;
        if !self.config.scheme.interrupts() && self.computer.local_steps == 1 {
            return self.computer.gradient(clock, worker.parameters()?).map(Some);
        }
        self.computer.base.clear();
        self.computer.base.extend_from_slice(worker.parameters()?);
        self.computer.gradient_unless(clock, &mut || worker.should_stop())
    }

    fn tell(&self, worker: &Worker<Fabric>, loss: Option<f64>) {
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
        path: path_of(link.transport),
        bytes_in: link.bytes_pulled,
        bytes_out: link.bytes_published,
    }
}
