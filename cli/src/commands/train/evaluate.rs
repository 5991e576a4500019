//! Judging the model while it is trained: a thread of its own, off the workers' path.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use slackline::internals::job::coordinated::{Gather, Gathered};
use slackline_lab::model::Evaluation;

use super::plan::Plan;
use crate::failure::Failure;

/// Least time between two evaluations of the model; it is longer where they would take more than a tenth of the time.
const EVALUATE_EVERY: Duration = Duration::from_millis(250);

/// Least time between two evaluations where the time to an accuracy is to be measured.
const MEASURE_EVERY: Duration = Duration::from_millis(10);

/// A message of the evaluating thread to the coordinator.
#[derive(Debug)]
pub(super) enum Event {
    /// An evaluation of the parameters, and the time at which they were read.
    Judged(Evaluation, Instant),
    Final(Result<Gathered, String>),
}

/// The thread. It ends when this is dropped.
pub(super) struct Evaluator {
    commands: SyncSender<()>,
}

impl Evaluator {
    pub(super) fn start(
        mut gather: Gather,
        plan: &Plan,
        events: SyncSender<Event>,
    ) -> Result<Evaluator, Failure> {
        let (commands, orders) = mpsc::sync_channel(1);
        let (spec, task, timeout) = (plan.spec.clone(), Arc::clone(&plan.task), plan.timeout);
        let at_most = if plan.target.is_some() { MEASURE_EVERY } else { EVALUATE_EVERY };
        let body = move || {
            let mut interval = at_most;
            loop {
                match orders.recv_timeout(interval) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => {
                        // Servers may have let this reader go while its process was stopped: it connects again.
                        let last = gather.collect(timeout, true);
                        let last = last.or_else(|_| gather.collect(timeout, true));
                        return drop(events.send(Event::Final(last.map_err(|error| error.to_string()))));
                    }
                }
                let begun = Instant::now();
                // A server that is lost is told by its process; without figures the run goes on.
                let Ok(now) = gather.collect(timeout, false) else { continue };
                let at = Instant::now();
                let evaluation = spec.evaluate(&now.parameters, &task.test);
                if events.send(Event::Judged(evaluation, at)).is_err() {
                    return;
                }
                interval = at_most.max(10 * begun.elapsed());
            }
        };
        std::thread::Builder::new().name("evaluate".into()).spawn(body).map_err(|error| {
            Failure::failed(format!("cannot start a thread: {error}")).help("see ulimit -u")
        })?;
        Ok(Evaluator { commands })
    }

    /// Asks for the parameters as they are now, which come as an event.
    pub(super) fn finish(&self) {
        // A thread that is gone has told why.
        let _ = self.commands.send(());
    }
}
