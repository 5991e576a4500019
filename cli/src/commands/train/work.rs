//! A worker process.

use std::path::Path;
use std::time::{Duration, Instant};

use slackline::node::{Worker, WorkerOptions};
use slackline::rendezvous::{Choice, Member, Role, choose};
use slackline_cli::data::{self, Dataset};
use slackline_cli::model::{Batches, ModelSpec, Scratch};

use super::Trouble;
use super::fabric::{Fabric, fabric};
use super::messages::{Message, Order, PathTaken, Report, WorkConfig};
use super::seat::{End, Seat};

/// How often a worker brings up to date what it tells.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Trains until all steps are done, then stays until the job is over: while it is in, the others' gradients keep their
/// weight.
pub(super) fn work(seat: &Seat, timeout: Duration) -> Result<(), Trouble> {
    let Order::Work(config) = seat.order(timeout)? else {
        return Err("the coordinator takes this worker for a server".into());
    };
    let (kind, columns, classes, hidden) = config.model;
    let spec = ModelSpec::new(kind, columns, classes, hidden)?;
    let train = examples(&config)?;
    let batches = Batches::new(config.seed, config.worker, config.workers, train.rows(), config.batch)?;
    let timeout = Duration::from_secs_f64(config.timeout_s);
    let choices = choices(seat, &config, timeout)?;
    let addresses: Vec<_> = choices.iter().map(|(_, choice)| choice.address.clone()).collect();
    let options = WorkerOptions {
        encoding: config.encoding,
        checksums: config.checksums,
        ..WorkerOptions::new(config.scheme)
    };
    let mut worker = Worker::connect(fabric(seat.secret.as_ref()), &addresses, options, timeout)?;
    let taken = choices.iter().map(|(server, choice)| PathTaken {
        server: server.place,
        path: choice.path,
        reason: choice.reason.clone(),
    });
    seat.say(Message::Joined(taken.collect()));

    // Nothing is lost by leaving in the middle: the servers drop what was not announced.
    seat.at_end(|end| match end {
        End::Dismissed => std::process::exit(0),
        End::Lost(why) => {
            eprintln!("error: {why}");
            std::process::exit(1)
        }
    })?;
    seat.report(Report::default());
    let mut trainer = Trainer { spec, train, batches, config: *config, timeout, seat };
    trainer.train(&mut worker)?;
    worker.flush(timeout)?;
    seat.finish(Report::from(worker.statistics()));
    loop {
        std::thread::park();
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

/// Waits until all servers are up, and chooses the way to each.
fn choices(seat: &Seat, config: &WorkConfig, timeout: Duration) -> Result<Vec<(Member, Choice)>, Trouble> {
    let servers = seat.members(timeout, "all servers to be up", |members| {
        let up = |member: &&Member| member.role == Role::Server && !member.addresses.is_empty();
        let servers: Vec<Member> = members.iter().filter(up).cloned().collect();
        (servers.len() == config.servers).then_some(servers)
    })?;
    let mut choices = Vec::with_capacity(servers.len());
    for server in servers {
        let choice = choose(&seat.host, &server, config.require)?;
        tracing::info!(server = server.place, host = %server.host, path = %choice.path, address = %choice.address,
            reason = choice.reason, "chose a path");
        choices.push((server, choice));
    }
    Ok(choices)
}

struct Trainer<'a> {
    spec: ModelSpec,
    train: Dataset,
    batches: Batches,
    config: WorkConfig,
    timeout: Duration,
    seat: &'a Seat,
}

impl Trainer<'_> {
    fn train(&mut self, worker: &mut Worker<Fabric>) -> Result<(), Trouble> {
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
            if reported.elapsed() >= REPORT_EVERY {
                let loss = Some(sum / f64::from(count));
                self.seat.report(Report { loss, ..Report::from(worker.statistics()) });
                (sum, count, reported) = (0.0, 0, Instant::now());
            }
        }
        Ok(())
    }
}
