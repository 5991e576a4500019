//! Judging the model while it is trained: a thread with a reader of each shard, off the workers' path.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

use slackline::clock::Version;
use slackline::node::{Reader, ReaderOptions};
use slackline::transport::Address;
use slackline::transport::shm::Shm;
use slackline_cli::data::Split;
use slackline_cli::model::ModelSpec;

use super::Event;
use crate::failure::Failure;

/// How often the model is judged at most; less often where that would take more than a tenth of the time.
const EVALUATE_EVERY: Duration = Duration::from_millis(250);

/// The parameters when all is done.
#[derive(Debug)]
pub(super) struct Final {
    pub(super) parameters: Vec<f32>,
    /// Of the shard that has seen the fewest.
    pub(super) versions: u64,
}

/// The thread. It ends when this is dropped.
pub(super) struct Evaluator {
    commands: Sender<()>,
}

impl Evaluator {
    pub(super) fn start(
        addresses: Vec<Address>,
        spec: ModelSpec,
        split: Arc<Split>,
        timeout: Duration,
        events: SyncSender<Event>,
    ) -> Result<Evaluator, Failure> {
        let (commands, orders) = mpsc::channel();
        let body = move || {
            let mut readers = match connect(&addresses, timeout) {
                Ok(readers) => readers,
                Err(error) => return drop(events.send(Event::Final(Err(error)))),
            };
            let mut interval = EVALUATE_EVERY;
            loop {
                match orders.recv_timeout(interval) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => return drop(events.send(Event::Final(collect(&mut readers, timeout, true)))),
                }
                let begun = Instant::now();
                // A server that is lost is told by its process; without figures the run goes on.
                let Ok(now) = collect(&mut readers, timeout, false) else { continue };
                let evaluation = spec.evaluate(&now.parameters, &split.test);
                if events.send(Event::Evaluated(evaluation)).is_err() {
                    return;
                }
                interval = EVALUATE_EVERY.max(10 * begun.elapsed());
            }
        };
        std::thread::Builder::new()
            .name("evaluate".into())
            .spawn(body)
            .map_err(|error| Failure::failed(format!("cannot start a thread: {error}; see ulimit -u")))?;
        Ok(Evaluator { commands })
    }

    /// Asks for the parameters as they are now, which come as an event.
    pub(super) fn finish(&self) {
        // A thread that is gone has told why.
        let _ = self.commands.send(());
    }
}

fn connect(addresses: &[Address], timeout: Duration) -> Result<Vec<Reader<Shm>>, String> {
    let connect = |address| Reader::connect(Shm::new(), address, ReaderOptions::default(), timeout);
    addresses.iter().map(connect).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Brings all shards, with `newest` those that nothing is newer than.
fn collect(readers: &mut [Reader<Shm>], timeout: Duration, newest: bool) -> Result<Final, String> {
    let mut whole = Final { parameters: Vec::new(), versions: u64::MAX };
    for reader in readers {
        let fresh = match newest {
            true => reader.refresh(0, timeout),
            // While workers publish, the newest is whatever a copy begins with.
            false => reader.refresh_to(Version(0), timeout),
        };
        whole.versions = whole.versions.min(fresh.map_err(|error| error.to_string())?.version.0);
        let (values, _) = reader.bytes().map_err(|error| error.to_string())?.as_chunks();
        whole.parameters.extend(values.iter().map(|value| f32::from_ne_bytes(*value)));
    }
    Ok(whole)
}
