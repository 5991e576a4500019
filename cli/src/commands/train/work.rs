//! A worker process.

use std::io::{self, BufReader};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline::node::{Worker, WorkerOptions};
use slackline::transport::Address;
use slackline::transport::shm::Shm;
use slackline_cli::data::{self, Dataset};
use slackline_cli::model::{Batches, ModelSpec, Scratch};

use super::child::{self, Trouble};
use super::messages::{Message, Report, WorkConfig, receive, send};

/// How often a worker tells how it is getting on.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Trains until all steps are done, then stays until stdin ends: while it is in, the others' gradients keep their
/// weight.
pub(crate) fn work() -> ExitCode {
    child::run(|| {
        let mut input = BufReader::new(io::stdin());
        let config: WorkConfig = receive(&mut input)?.ok_or("no configuration came")?;
        let (kind, columns, classes, hidden) = config.model;
        let spec = ModelSpec::new(kind, columns, classes, hidden)?;
        let train = examples(&config)?;
        let batches = Batches::new(config.seed, config.worker, config.workers, train.rows(), config.batch)?;
        let mut addresses = Vec::with_capacity(config.addresses.len());
        for address in &config.addresses {
            addresses.push(address.parse::<Address>()?);
        }
        let timeout = Duration::from_secs_f64(config.timeout_s);
        let options = WorkerOptions { encoding: config.encoding, ..WorkerOptions::new(config.scheme) };
        let mut worker = Worker::connect(Shm::new(), &addresses, options, timeout)?;
        send(io::stdout(), &Message::Joined)?;

        // Nothing is lost by leaving in the middle: the servers drop what was not announced.
        child::at_end_of(input, || std::process::exit(0))?;
        let report = Arc::new(Mutex::new(Report::default()));
        report_from_now_on(Arc::clone(&report))?;
        let mut trainer = Trainer { spec, train, batches, config, timeout, report };
        trainer.train(&mut worker)?;
        worker.flush(timeout)?;
        send(io::stdout(), &Message::Finished(Report::from(worker.statistics())))?;
        loop {
            std::thread::park();
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
        return Err("the data file was changed after the run began; start the run again".into());
    }
    Ok(split.train)
}

/// Says how the worker is getting on from a thread of its own, so that one that computes for long is not taken for one
/// that hangs.
fn report_from_now_on(report: Arc<Mutex<Report>>) -> io::Result<()> {
    let tell = move || {
        loop {
            std::thread::sleep(REPORT_EVERY);
            let mut latest = report.lock().unwrap_or_else(PoisonError::into_inner);
            let message = Message::Progress(latest.clone());
            latest.loss = None;
            drop(latest);
            if send(io::stdout(), &message).is_err() {
                return; // The coordinator is gone; the end of stdin ends this process.
            }
        }
    };
    std::thread::Builder::new().name("report".into()).spawn(tell).map(drop)
}

struct Trainer {
    spec: ModelSpec,
    train: Dataset,
    batches: Batches,
    config: WorkConfig,
    timeout: Duration,
    report: Arc<Mutex<Report>>,
}

impl Trainer {
    fn train(&mut self, worker: &mut Worker<Shm>) -> Result<(), Trouble> {
        let mut gradient: Vec<f32> = Vec::new();
        gradient.try_reserve_exact(self.spec.parameters())?;
        gradient.resize(self.spec.parameters(), 0.0);
        let mut scratch = Scratch::default();
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        for step in 0..self.config.steps {
            worker.begin(self.timeout)?;
            let begun = Instant::now();
            let rows = self.batches.rows(step);
            let parameters = worker.parameters()?;
            let loss =
                self.spec.loss_and_gradient(parameters, &self.train, rows, &mut gradient, &mut scratch);
            if self.config.factor > 1.0 {
                std::thread::sleep(begun.elapsed().mul_f64(self.config.factor - 1.0));
            }
            worker.encode(&gradient)?;
            worker.publish(Some(loss), self.timeout)?;

            (sum, count) = (sum + f64::from(loss), count + 1);
            // Cheap next to a step, but there may be thousands of steps between two reports.
            if reported.elapsed() >= REPORT_EVERY / 2 {
                let loss = Some(sum / f64::from(count));
                *self.report.lock().unwrap_or_else(PoisonError::into_inner) =
                    Report { loss, ..Report::from(worker.statistics()) };
                (sum, count, reported) = (0.0, 0, Instant::now());
            }
        }
        Ok(())
    }
}
