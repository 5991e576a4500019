//! The sides that own parameters: a publisher, and a server.

use std::time::Duration;

use slackline::internals::mem::VolatileSlice;
use slackline::weights::{Publisher, PublisherOptions};
use slackline::{ElementType, Server, ServerOptions, Table, scheme::SchemeConfig};

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;
use super::gpu::{self, OnGpu};
use super::local::{Arrays, Kind};
use super::messages::{Folded, INITIAL, RATE, Ready, TIMEOUT, Task, TaskRole};
use super::pattern;
use super::timing::Latency;
use super::usage::Watch;
use crate::optimizer_name::OptimizerName;

/// The lease of an owner with a crowd of peers. At ten heartbeats in the default lease a thousand peers would say 3,300
/// times a second that they live, which is more than an emulated device carries beside the measurement.
const LEASE_OF_CROWD: Duration = Duration::from_secs(30);

/// A publisher with one version, and what its readers cost it if they are a crowd.
pub(super) fn serve_publisher<C: Carrier>(
    task: &Task,
    chunk: u64,
    crowd: Option<u16>,
    client: &Client,
) -> Result<(), BenchError> {
    let table = Table::flat(task.bytes / 4, ElementType::F32)?;
    let mut options = PublisherOptions::default();
    options.memory.chunk_bytes = chunk;
    options.memory.peers = options.memory.peers.max(crowd.unwrap_or(0));
    options.memory.lease = crowd.map_or(options.memory.lease, |_| LEASE_OF_CROWD);
    if let Some(gpu) = client.means.memory.gpu()? {
        return gpu::serve_publisher::<C>(task, options, client, OnGpu::new(&gpu, task.bytes)?);
    }
    let (carrier, anywhere) = (C::open(&client.means.of_owner())?, C::anywhere(client.host));
    let mut publisher = Publisher::new(carrier, &anywhere, table, options)?;
    let mut payload = vec![0; task.bytes as usize];
    pattern::fill(VolatileSlice::from_mut(&mut payload));
    // Every page of the frame that is read is there.
    publisher.publish(&payload, TIMEOUT)?;
    let watch = crowd.map(|readers| Watch::begin(readers.into())).transpose()?;
    client.say(&Ready { address: publisher.address(), memory: client.means.memory.memory })?;
    let over = |publisher: &Publisher<C>| {
        if let Some(watch) = &watch {
            watch.look(publisher.joined());
        }
        client.is_done()
    };
    while !publisher.drive(over, TIMEOUT)? {}
    let Some(watch) = watch else { return Ok(()) };
    client.say(&watch.end(publisher.joined(), 0)?)
}

/// A server, and what its workers cost it if they are a crowd.
pub(super) fn serve_server<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    let TaskRole::Server { asynchronous, workers, chunk, threads, folds, is_crowd } = task.role else {
        return Err(BenchError::Peer("not a server's task".into()));
    };
    let elements = task.bytes / 4;
    let table = Table::flat(elements, ElementType::F32)?;
    let scheme = if asynchronous { SchemeConfig::Asp } else { SchemeConfig::Bsp };
    let mut options = ServerOptions::new(scheme, usize::from(workers), RATE);
    options.threads = usize::from(threads);
    options.memory.chunk_bytes = chunk;
    options.memory.peers = options.memory.peers.max(workers);
    if is_crowd {
        options.memory.lease = LEASE_OF_CROWD;
    }
    let (carrier, anywhere) = (C::open(&client.means.of_owner())?, C::anywhere(client.host));
    let mut server = Server::new(carrier, &anywhere, table, &vec![INITIAL; elements as usize], options)?;
    let mut alone = Alone::new(folds, usize::from(workers), usize::from(threads), task.bytes as usize)?;
    alone.measure(folds.div_ceil(2))?;
    let watch = if is_crowd { Some(Watch::begin(workers.into())?) } else { None };
    client.say(&Ready { address: server.address(), memory: client.means.memory.memory })?;
    let over = |server: &Server<C>| {
        let status = server.status();
        if let Some(watch) = &watch {
            watch.look(status.joined);
        }
        status.left >= u64::from(workers) || client.is_done()
    };
    while !server.drive(over, TIMEOUT)? {}
    if let Some(watch) = watch {
        let status = server.status();
        return client.say(&watch.end(status.joined, status.folded)?);
    }
    let versions = server.status().version.get();
    drop(server);
    if client.is_done() || folds == 0 {
        return Ok(());
    }
    alone.measure(folds / 2)?;
    client.say(&Folded { versions, alone: alone.latency() })
}

/// The fold of one round and nothing else, over memory of the same kind: half of its samples from before the rounds,
/// half from after, since machines change their mind in between.
struct Alone {
    arrays: Option<Arrays>,
    threads: usize,
    samples: Vec<f64>,
}

impl Alone {
    fn new(folds: u64, k: usize, threads: usize, bytes: usize) -> Result<Alone, BenchError> {
        let kind = Kind::Fold { optimizer: OptimizerName::Sgd.optimizer(), k, shared: true };
        let arrays = if folds == 0 { None } else { Some(Arrays::new(kind, bytes)?) };
        Ok(Alone { arrays, threads, samples: Vec::new() })
    }

    fn measure(&mut self, folds: u64) -> Result<(), BenchError> {
        let Some(arrays) = &self.arrays else { return Ok(()) };
        // The first two are for warmth.
        for fold in 0..folds + 2 {
            let took = arrays.run(self.threads, &[])?;
            if fold >= 2 {
                self.samples.push(took.as_nanos() as f64);
            }
        }
        Ok(())
    }

    fn latency(self) -> Option<Latency> {
        (!self.samples.is_empty()).then(|| Latency::of(self.samples))
    }
}
