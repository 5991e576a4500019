//! Judging the model while it is trained: a thread with a reader of each shard, or of each worker's own copy, off the
//! workers' path.

use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline::clock::Version;
use slackline::node::{Reader, ReaderOptions};
use slackline::transport::Address;
use slackline_lab::model::Evaluation;

use super::Event;
use super::plan::Plan;
use crate::failure::Failure;
use slackline::transport::mixed::Mixed;

/// How often the model is judged at most; less often where that would take more than a tenth of the time.
const EVALUATE_EVERY: Duration = Duration::from_millis(250);

/// How often it is judged at most where the time to an accuracy is to be measured.
const MEASURE_EVERY: Duration = Duration::from_millis(10);

/// How long a worker's own copy may take to be connected to, and to be read.
const COPY_WITHIN: Duration = Duration::from_secs(2);

/// The parameters at one time.
#[derive(Debug)]
pub(super) struct Final {
    /// The mean, where each worker has its own.
    pub(super) parameters: Vec<f32>,
    /// Of the shard, or the worker, that has seen the fewest.
    pub(super) versions: u64,
    /// The first worker's own, and how far they are from the mean, where each worker has its own.
    pub(super) local: Option<(Vec<f32>, f64)>,
}

/// How good they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) evaluation: Evaluation,
    /// When they were read.
    pub(super) at: Instant,
}

/// What there is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gather {
    /// Shards, which are put together.
    Shards,
    /// Copies of the whole, each worker's own, of which the mean counts. One that cannot be read is left out.
    Copies,
}

/// The thread. It ends when this is dropped.
pub(super) struct Evaluator {
    commands: Sender<()>,
}

/// Where the servers are now, by shard; or the workers' copies.
pub(super) type Places = Arc<Mutex<Vec<Address>>>;

impl Evaluator {
    pub(super) fn start(
        places: Places,
        plan: &Plan,
        transports: Mixed,
        events: SyncSender<Event>,
    ) -> Result<Evaluator, Failure> {
        let (commands, orders) = mpsc::channel();
        let (spec, split, timeout) = (plan.spec.clone(), Arc::clone(&plan.split), plan.timeout);
        let parameters = spec.parameters();
        let gather = if plan.servers > 0 { Gather::Shards } else { Gather::Copies };
        let at_most = if plan.target.is_some() { MEASURE_EVERY } else { EVALUATE_EVERY };
        let body = move || {
            let mut readers = Readers { places, transports, gather, parameters, readers: Vec::new() };
            let mut interval = at_most;
            loop {
                match orders.recv_timeout(interval) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => {
                        // Servers may have let this reader go while its process was stopped: it connects again.
                        let last = readers.collect(timeout, true);
                        let last = last.or_else(|_| readers.collect(timeout, true));
                        return drop(events.send(Event::Final(last)));
                    }
                }
                let begun = Instant::now();
                // A server that is lost is told by its process; without figures the run goes on.
                let Ok(now) = readers.collect(timeout, false) else { continue };
                let at = Instant::now();
                let evaluation = spec.evaluate(&now.parameters, &split.test);
                if events.send(Event::Judged(Judged { evaluation, at })).is_err() {
                    return;
                }
                interval = at_most.max(10 * begun.elapsed());
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

/// A reader of each shard or copy, connected again where a server was started again.
struct Readers {
    places: Places,
    transports: Mixed,
    gather: Gather,
    /// How many there are in all shards together, and in each copy.
    parameters: usize,
    readers: Vec<(Address, Reader<Mixed>)>,
}

impl Readers {
    /// Brings all, with `newest` those that nothing is newer than.
    fn collect(&mut self, timeout: Duration, newest: bool) -> Result<Final, String> {
        if self.gather == Gather::Copies {
            return self.collect_copies();
        }
        let collected = self.try_collect(timeout, newest).map_err(|error| error.to_string());
        let collected = collected.and_then(|whole| {
            self.check(&whole.parameters)?;
            Ok(whole)
        });
        collected.inspect_err(|_| {
            // Whatever it was, a new connection does no harm.
            self.readers.clear();
        })
    }

    fn try_collect(&mut self, timeout: Duration, newest: bool) -> Result<Final, slackline::Error> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !self.readers.iter().map(|(address, _)| address).eq(&places) {
            self.readers.clear();
            for address in places {
                let options = ReaderOptions::default();
                let reader = Reader::connect(self.transports.clone(), &address, options, timeout)?;
                self.readers.push((address, reader));
            }
        }
        let mut whole = Final { parameters: Vec::new(), versions: u64::MAX, local: None };
        for (_, reader) in &mut self.readers {
            let fresh = match newest {
                true => reader.refresh(0, timeout)?,
                // While workers publish, the newest is whatever a copy begins with.
                false => reader.refresh_to(Version(0), timeout)?,
            };
            whole.versions = whole.versions.min(fresh.version.0);
            whole.parameters.extend(floats(reader.bytes()?));
        }
        Ok(whole)
    }

    /// The mean of all copies that can be read.
    fn collect_copies(&mut self) -> Result<Final, String> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.readers.retain(|(address, _)| places.contains(address));
        let mut copies: Vec<Vec<f32>> = Vec::with_capacity(places.len());
        let mut versions = u64::MAX;
        let mut failed = "no worker has told where its parameters are".to_owned();
        for (index, address) in places.iter().enumerate() {
            let at = self.readers.iter().position(|(known, _)| known == address);
            // What it says of itself is a worker's own word.
            let copy = self.copy(at, address).map_err(|error| error.to_string()).and_then(|copy| {
                self.check(&copy.1)?;
                Ok(copy)
            });
            match copy {
                Ok((version, copy)) => {
                    // The first is what they began with.
                    versions = versions.min(version.saturating_sub(1));
                    copies.push(copy);
                }
                Err(error) => {
                    self.readers.retain(|(known, _)| known != address);
                    failed = format!("copy {index}: {error}");
                }
            }
        }
        let Some(first) = copies.first() else { return Err(failed) };
        let mean: Vec<f32> = (0..first.len())
            .map(|index| copies.iter().map(|copy| f64::from(copy[index])).sum::<f64>() / copies.len() as f64)
            .map(|mean| mean as f32)
            .collect();
        let squares = first.iter().zip(&mean).map(|(own, mean)| (f64::from(*own) - f64::from(*mean)).powi(2));
        let distance = squares.sum::<f64>().sqrt();
        Ok(Final {
            parameters: mean,
            versions,
            local: copies.into_iter().next().map(|copy| (copy, distance)),
        })
    }

    fn check(&self, parameters: &[f32]) -> Result<(), String> {
        match parameters.len() {
            count if count == self.parameters => Ok(()),
            count => Err(format!("{count} parameters where the model has {}", self.parameters)),
        }
    }

    fn copy(&mut self, at: Option<usize>, address: &Address) -> Result<(u64, Vec<f32>), slackline::Error> {
        let at = match at {
            Some(at) => at,
            None => {
                let options = ReaderOptions::default();
                let reader = Reader::connect(self.transports.clone(), address, options, COPY_WITHIN)?;
                self.readers.push((address.clone(), reader));
                self.readers.len() - 1
            }
        };
        let reader = &mut self.readers[at].1;
        let fresh = reader.refresh_to(Version(1), COPY_WITHIN)?;
        Ok((fresh.version.0, floats(reader.bytes()?).collect()))
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use slackline::node::{Publisher, PublisherOptions};
    use slackline::table::{ElementType, Table};

    use slackline::job::transports::Transports;

    use super::*;

    #[test]
    fn a_copy_of_another_length_is_left_out_like_one_that_cannot_be_read() {
        let transports = Transports::new(None, None, 0).open();
        let publisher = |elements: u64| {
            let table = Table::flat(elements, ElementType::F32).unwrap();
            let options = PublisherOptions::default();
            let mut publisher =
                Publisher::new(transports.clone(), &Address::random(), table, options).unwrap();
            let values = vec![elements as f32; elements as usize];
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            publisher.publish(&bytes, COPY_WITHIN).unwrap();
            publisher
        };
        // The long one comes first: by its length all would be judged.
        let mut publishers = [7, 5, 3, 5].map(publisher);
        let addresses = publishers.each_ref().map(Publisher::address).to_vec();
        let readers = |addresses| Readers {
            places: Arc::new(Mutex::new(addresses)),
            transports: transports.clone(),
            gather: Gather::Copies,
            parameters: 5,
            readers: Vec::new(),
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    publishers.iter_mut().for_each(|publisher| {
                        publisher.poll(slackline::node::now());
                    });
                }
            });
            let all = readers(addresses.clone()).collect(COPY_WITHIN, true);
            let none = readers(addresses[..1].to_vec()).collect(COPY_WITHIN, true);
            over.store(true, Ordering::Relaxed);
            assert_eq!(all.unwrap().parameters, [5.0; 5]);
            assert_eq!(none.unwrap_err(), "copy 0: 7 parameters where the model has 5");
        });
    }
}
