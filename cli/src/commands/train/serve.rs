//! A server process.

use std::path::Path;
use std::time::Duration;

use slackline::Error;
use slackline::job::rendezvous::MemberRole;
use slackline::node::{
    Checkpoint, CheckpointOptions, Idle, Server, ServerOptions, ServerStatus, ShardOptions,
};

use super::Trouble;
use super::messages::{Message, Order, Origin, Resume, ServeConfig, Status};
use super::seat::{End, Seat};
use super::stop::{self, LAST_CHECKPOINT_WITHIN, Stop};
use crate::metrics::{NodeMetrics, PeerMetrics, PeerState, Registry, Role, ServerMetrics};
use slackline::job::transports::flatten;
use slackline::transport::TransportKind;
use slackline::transport::mixed::Mixed;

/// How often a server tells how it is getting on.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// How long one attempt to reach the server that decides may take.
const FOLLOW_TRY: Duration = Duration::from_millis(500);

/// How long a server may wait for one event before it looks whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves one shard until the job is over.
pub(super) fn serve(seat: &Seat, metrics: Option<&Registry>, timeout: Duration) -> Result<(), Trouble> {
    let Order::Serve(config) = seat.order(timeout)? else {
        return Err("the coordinator takes this server for a worker".into());
    };
    let keeps = config.checkpoint.is_some();
    let stop = keeps.then(Stop::listen).transpose().map_err(|failure| failure.to_string())?;
    let mut gradients = config.gradients;
    let (shards, require) = (usize::from(config.shard.1), only(&config.listen));
    let (mut server, origin) = start(seat, *config, timeout)?;
    if keeps {
        seat.say(Message::Began(origin));
    }
    seat.announce(flatten(server.address()));
    let (mut failed, mut closed) = (0, false);
    let end = loop {
        let before = server.status();
        match (seat.wants_checkpoint(), keeps) {
            (true, true) => server.request_checkpoint()?,
            (true, false) => tracing::warn!("asked for a checkpoint, and this job was given no --checkpoint"),
            (false, _) => {}
        }
        if seat.closes() {
            closed = true;
            close(&mut server, seat, &mut failed, timeout);
        }
        let asked = || stop.as_ref().and_then(Stop::asked);
        let mut waited = Duration::ZERO;
        while waited < STATUS_EVERY && seat.end().is_none() && asked().is_none() {
            if !server.is_following() {
                follow(&mut server, seat, shards, require)?;
            }
            let has_all = |status: &ServerStatus| gradients.is_some_and(|all| status.folded >= all);
            let until = |server: &Server<Mixed>| {
                let status = server.status();
                status.left != before.left || has_all(&status)
            };
            match server.drive(until, LOOK_EVERY) {
                Ok(true) => break,
                Ok(false) => {}
                // The coordinator decides what becomes of a job that has lost a server.
                Err(Error::ServerLost { .. } | Error::Evicted { .. }) if server.follows() => {}
                Err(error) => return Err(error.into()),
            }
            waited += LOOK_EVERY;
        }
        let status = server.status();
        if gradients.is_some_and(|all| status.folded >= all) {
            // Workers go on until they hear that it is over: what they bring moves nothing any more.
            server.set_learning_rate(0.0)?;
            gradients = None;
        }
        tell_failures(&mut server, seat, &mut failed);
        seat.say(Message::Status(Status {
            version: status.version.0,
            left: status.left,
            checkpointed: status.checkpointed.map(|version| version.0),
            lost_updates: status.lost_updates,
            folded: status.folded,
            dropped: status.dropped,
            voided: status.voided,
            non_finite: status.non_finite,
            diverged: status.diverged.map(|version| version.0),
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
        if let Some(signal) = asked() {
            break Err(signal);
        }
        if let Some(end) = seat.end() {
            break Ok(end);
        }
    };
    // Whatever ended the job: what was learnt is kept where that was asked for.
    if keeps && !closed {
        let within = if end.is_err() { timeout.min(LAST_CHECKPOINT_WITHIN) } else { timeout };
        if let Some(error) = close(&mut server, seat, &mut failed, within) {
            eprintln!("warning: the last checkpoint is not written: {error}");
        }
    }
    match end {
        Ok(End::Dismissed) => Ok(()),
        Ok(End::Told(why) | End::Lost(why)) => Err(why.into()),
        Err(signal) => {
            seat.flush();
            drop(server);
            // As a parent expects it of a process that a signal asked to end.
            signal_hook::low_level::emulate_default_handler(signal)?;
            Err(format!("stopped by {}", stop::name(signal)).into())
        }
    }
}

/// The one transport that is to be used, if there is but one.
fn only(transports: &[TransportKind]) -> Option<TransportKind> {
    <[TransportKind; 1]>::try_from(transports).ok().map(|[one]| one)
}

/// Connects a server to the one that decides for all shards, if that one is up within a moment. After another life of
/// it this process ends, and is started again from its checkpoint like one that was lost.
fn follow(
    server: &mut Server<Mixed>,
    seat: &Seat,
    shards: usize,
    require: Option<TransportKind>,
) -> Result<(), Trouble> {
    let Ok((addresses, _)) = seat.reach(MemberRole::Server, shards, require, FOLLOW_TRY) else {
        return Ok(());
    };
    match server.follow(&addresses[0], FOLLOW_TRY) {
        Err(error @ Error::AnotherLife { .. }) => {
            tracing::warn!(%error, "ending");
            seat.flush();
            std::process::exit(1)
        }
        Err(error @ Error::Shards { .. }) => Err(error.into()),
        // It may still be about to listen, or be gone.
        Err(error) => {
            tracing::debug!(%error, "not following yet");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Writes the last checkpoint and tells the coordinator of it. Why it could not be written, if it could not.
fn close(server: &mut Server<Mixed>, seat: &Seat, failed: &mut u64, within: Duration) -> Option<String> {
    let error = match server.finish_checkpoint(within) {
        Ok(version) => {
            tracing::info!(version = version.0, "the last checkpoint is written");
            None
        }
        Err(error) => {
            *failed = server.status().checkpoints_failed;
            seat.say(Message::CheckpointFailed { count: 1, error: error.to_string() });
            Some(error.to_string())
        }
    };
    seat.say(Message::Closed(server.status().checkpointed.map(|version| version.0)));
    error
}

/// Tells the coordinator of checkpoints that could not be written since the last time.
fn tell_failures(server: &mut Server<Mixed>, seat: &Seat, told: &mut u64) {
    let failed = server.status().checkpoints_failed;
    if failed > *told {
        let error = server.checkpoint_failure().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| "the thread that writes checkpoints has ended".into());
        seat.say(Message::CheckpointFailed { count: failed - *told, error });
        *told = failed;
    }
}

fn start(
    seat: &Seat,
    config: ServeConfig,
    timeout: Duration,
) -> Result<(Server<Mixed>, Option<Origin>), Trouble> {
    let (shard, shards) = config.shard;
    let ranges = config.table.shards(usize::from(shards))?;
    let range = ranges.get(usize::from(shard)).ok_or("the coordinator names a shard that is not there")?;
    let values = seat.values((range.end - range.start) as usize / 4, timeout)?;
    let options = ServerOptions {
        optimizer: config.optimizer,
        threads: config.threads,
        damping: config.damping,
        shard: config.shard,
        memory: ShardOptions {
            peers: config.peers,
            lease: Duration::from_secs_f64(config.lease_s),
            checksums: config.checksums,
            idle: if config.sleeps { Idle::Sleep } else { Idle::Poll },
            ..ShardOptions::default()
        },
        measure_moments: config.moments,
        non_finite: config.non_finite.into(),
        checkpoint: config.checkpoint.as_ref().map(|checkpoint| CheckpointOptions {
            path: checkpoint.file(shard, shards),
            every: Some(checkpoint.every),
        }),
        ..ServerOptions::new(config.scheme, config.workers, config.learning_rate)
    };
    let checkpoint = match &config.checkpoint {
        Some(checkpoint) => take_up(&checkpoint.file(shard, shards), checkpoint.resume)?,
        None => None,
    };
    let address = seat.transports().listen_at(&config.listen)?;
    let transports = seat.transports().open();
    Ok(match checkpoint {
        Some(checkpoint) => {
            let origin = Origin {
                version: checkpoint.version().0,
                clock: checkpoint.smallest_clock().0,
                instead_of: checkpoint.instead_of().map(ToString::to_string),
            };
            (Server::resume(transports, &address, config.table, checkpoint, options)?, Some(origin))
        }
        None => (Server::new(transports, &address, config.table, &values, options)?, None),
    })
}

/// The checkpoint to begin with.
fn take_up(file: &Path, resume: Resume) -> Result<Option<Checkpoint>, Trouble> {
    let name = file.display();
    match (resume, Checkpoint::exists(file)) {
        (Resume::Never, true) => {
            Err(format!("an earlier run left {name}; add --resume, or name another folder").into())
        }
        (Resume::Always, false) => Err(format!(
            "--resume: there is no {name}; leave --resume out to begin from the initial values, or use the folder \
             and the number of servers of the run that wrote the checkpoints"
        )
        .into()),
        (Resume::Always | Resume::IfThere, true) => Ok(Some(Checkpoint::read(file)?)),
        (Resume::Never | Resume::IfThere, false) => Ok(None),
    }
}

fn tell(metrics: &mut NodeMetrics, server: &Server<Mixed>) {
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
            path: peer.transport.parse().unwrap_or(TransportKind::Shm),
            bytes_in: peer.bytes_received,
            bytes_out: 0,
        };
        match metrics.peers.iter_mut().find(|known| known.name == now.name) {
            Some(known) => *known = now,
            None => metrics.peers.push(now),
        }
    }
}
