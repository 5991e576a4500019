//! Judging the model while it is trained: a thread with a reader of each shard, off the workers' path.

use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline::channel::Secret;
use slackline::clock::Version;
use slackline::node::{Reader, ReaderOptions};
use slackline::transport::Address;
use slackline_cli::data::Split;
use slackline_cli::model::ModelSpec;

use super::Event;
use super::fabric::{Fabric, fabric};
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

/// Where the servers are now, by shard.
pub(super) type Places = Arc<Mutex<Vec<Address>>>;

impl Evaluator {
    pub(super) fn start(
        places: Places,
        secret: Option<Secret>,
        spec: ModelSpec,
        split: Arc<Split>,
        timeout: Duration,
        events: SyncSender<Event>,
    ) -> Result<Evaluator, Failure> {
        let (commands, orders) = mpsc::channel();
        let body = move || {
            let mut readers = Readers { places, fabric: fabric(secret.as_ref()), readers: Vec::new() };
            let mut interval = EVALUATE_EVERY;
            loop {
                match orders.recv_timeout(interval) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => return drop(events.send(Event::Final(readers.collect(timeout, true)))),
                }
                let begun = Instant::now();
                // A server that is lost is told by its process; without figures the run goes on.
                let Ok(now) = readers.collect(timeout, false) else { continue };
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

/// A reader of each shard, connected again where a server was started again.
struct Readers {
    places: Places,
    fabric: Fabric,
    readers: Vec<(Address, Reader<Fabric>)>,
}

impl Readers {
    /// Brings all shards, with `newest` those that nothing is newer than.
    fn collect(&mut self, timeout: Duration, newest: bool) -> Result<Final, String> {
        let collected = self.try_collect(timeout, newest);
        collected.map_err(|error| {
            // Whatever it was, a new connection does no harm.
            self.readers.clear();
            error.to_string()
        })
    }

    fn try_collect(&mut self, timeout: Duration, newest: bool) -> Result<Final, slackline::Error> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !self.readers.iter().map(|(address, _)| address).eq(&places) {
            self.readers.clear();
            for address in places {
                let options = ReaderOptions::default();
                let reader = Reader::connect(self.fabric.clone(), &address, options, timeout)?;
                self.readers.push((address, reader));
            }
        }
        let mut whole = Final { parameters: Vec::new(), versions: u64::MAX };
        for (_, reader) in &mut self.readers {
            let fresh = match newest {
                true => reader.refresh(0, timeout)?,
                // While workers publish, the newest is whatever a copy begins with.
                false => reader.refresh_to(Version(0), timeout)?,
            };
            whole.versions = whole.versions.min(fresh.version.0);
            let (values, _) = reader.bytes()?.as_chunks();
            whole.parameters.extend(values.iter().map(|value| f32::from_ne_bytes(*value)));
        }
        Ok(whole)
    }
}
