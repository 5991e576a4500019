//! A server process.

use std::time::Duration;

use slackline::node::{
    Checkpoint, CheckpointOptions, Idle, Server, ServerOptions, ServerStatus, ShardOptions,
};
use slackline_cli::metrics::{NodeMetrics, PeerMetrics, PeerState, Registry, Role, ServerMetrics};

use super::Trouble;
use super::fabric::{Fabric, flatten, path_of};
use super::messages::{Message, Order, ServeConfig, Status};
use super::seat::{End, Seat};

/// How often a server tells how it is getting on.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// How long a server may wait for one event before it looks whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves one shard until the job is over.
pub(super) fn serve(seat: &Seat, metrics: Option<&Registry>, timeout: Duration) -> Result<(), Trouble> {
    let Order::Serve(config) = seat.order(timeout)? else {
        return Err("the coordinator takes this server for a worker".into());
    };
    let keeps = config.checkpoint.is_some();
    let mut gradients = config.gradients;
    let mut server = start(seat, *config, timeout)?;
    seat.announce(flatten(server.address()));
    let end = loop {
        let before = server.status();
        match (seat.wants_checkpoint(), keeps) {
            (true, true) => server.request_checkpoint()?,
            (true, false) => tracing::warn!("asked for a checkpoint, and this job was given no --checkpoint"),
            (false, _) => {}
        }
        let mut waited = Duration::ZERO;
        while waited < STATUS_EVERY && seat.end().is_none() {
            let has_all = |status: &ServerStatus| gradients.is_some_and(|all| status.folded >= all);
            let until = |server: &Server<Fabric>| {
                let status = server.status();
                status.left != before.left || has_all(&status)
            };
            if server.drive(until, LOOK_EVERY)? {
                break;
            }
            waited += LOOK_EVERY;
        }
        let status = server.status();
        if gradients.is_some_and(|all| status.folded >= all) {
            // Workers go on until they hear that it is over: what they bring moves nothing any more.
            server.set_learning_rate(0.0)?;
            gradients = None;
        }
        seat.say(Message::Status(Status {
            version: status.version.0,
            left: status.left,
            checkpointed: status.checkpointed.map(|version| version.0),
            lost_updates: status.lost_updates,
            folded: status.folded,
            dropped: status.dropped,
            interrupts: status.interrupts,
            gradients: status.gradients,
            waits_for: status.waits_for,
            staleness_bound: status.staleness_bound,
            mean_norm_squared: status.mean_norm_squared,
            variance: status.variance,
        }));
        if let Some(metrics) = metrics {
            metrics.update(|metrics| tell(metrics, &server));
        }
        if let Some(end) = seat.end() {
            break end;
        }
    };
    // Whatever ended the job: what was learnt is kept where that was asked for.
    if keeps {
        let version = server.finish_checkpoint(timeout)?;
        tracing::info!(version = version.0, "the last checkpoint is written");
    }
    match end {
        End::Dismissed => Ok(()),
        End::Lost(why) => Err(why.into()),
    }
}

fn start(seat: &Seat, config: ServeConfig, timeout: Duration) -> Result<Server<Fabric>, Trouble> {
    let (shard, shards) = config.shard;
    let ranges = config.table.shards(usize::from(shards))?;
    let range = ranges.get(usize::from(shard)).ok_or("the coordinator names a shard that is not there")?;
    let values = seat.values((range.end - range.start) as usize / 4, timeout)?;
    let file = config.checkpoint.as_ref().map(|checkpoint| checkpoint.file(shard, shards));
    let every = config.checkpoint.as_ref().map(|checkpoint| checkpoint.every);
    let options = ServerOptions {
        optimizer: config.optimizer,
        threads: config.threads,
        damping: config.damping,
        shard: config.shard,
        memory: ShardOptions {
            peers: config.peers,
            checksums: config.checksums,
            idle: if config.sleeps { Idle::Sleep } else { Idle::Poll },
            ..ShardOptions::default()
        },
        measure_moments: config.moments,
        checkpoint: file.clone().map(|path| CheckpointOptions { path, every }),
        ..ServerOptions::new(config.scheme, config.workers, config.learning_rate)
    };
    let address = seat.ways.listen_at(&config.listen)?;
    let fabric = seat.ways.fabric();
    let resume = config.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.resume);
    Ok(match file.filter(|file| resume && file.exists()) {
        Some(file) => {
            let checkpoint = Checkpoint::read(&file)?;
            Server::resume(fabric, &address, config.table, checkpoint, options)?
        }
        None => Server::new(fabric, &address, config.table, &values, options)?,
    })
}

fn tell(metrics: &mut NodeMetrics, server: &Server<Fabric>) {
    metrics.server = Some(ServerMetrics::from(server.status()));
    for peer in &mut metrics.peers {
        peer.state = PeerState::Lost;
    }
    for peer in server.peers() {
        let role = if peer.worker { Role::Worker } else { Role::Reader };
        let now = PeerMetrics {
            name: format!("{} {}", role.name(), peer.peer),
            role,
            state: PeerState::Up,
            path: path_of(peer.transport),
            bytes_in: peer.bytes_received,
            bytes_out: 0,
        };
        match metrics.peers.iter_mut().find(|known| known.name == now.name) {
            Some(known) => *known = now,
            None => metrics.peers.push(now),
        }
    }
}
