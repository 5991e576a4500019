//! A server of a coordinated job.

use std::time::Duration;

use super::super::member::End;
use super::super::rendezvous::MemberRole;
use super::super::server::resume_from;
use super::super::transports::flatten;
use super::super::{JobError, Resume};
use super::member::CoordinatedMember;
use super::orders::Message;
use super::reports::{Origin, ServerReport};
use super::{LAST_CHECKPOINT_WITHIN, ServerOrder};
use crate::node::{CheckpointOptions, Error, Idle, Server, ServerOptions, ServerStatus, ShardOptions};
use crate::transport::TransportKind;
use crate::transport::mixed::Mixed;

/// The time between two reports of a server.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The longest time for which a server waits for one event before it looks whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest time that one attempt to reach the server that decides may take.
const FOLLOW_TRY: Duration = Duration::from_millis(500);

/// The end of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeEnd {
    /// The end of the membership; `None` if the caller wished the end.
    pub end: Option<End>,
    /// The error of the last checkpoint, if it was written at the end and could not be.
    pub checkpoint_error: Option<String>,
}

impl CoordinatedMember {
    /// Serves the shard of `order` until the membership ends or `stop` returns true. The last checkpoint is written in
    /// either case, if the server keeps any.
    ///
    /// `observe` is called about ten times a second, `stop` every 20 ms.
    ///
    /// # Errors
    /// The server cannot begin, or cannot go on.
    pub fn serve(
        &self,
        mut order: ServerOrder,
        mut observe: impl FnMut(&Server<Mixed>),
        stop: impl Fn() -> bool,
    ) -> Result<ServeEnd, JobError> {
        let keeps = order.checkpoint.is_some();
        let mut gradients = order.gradients;
        let mut values = self.initial_values(&order)?;
        let mut server = self.start_server(&order, &values)?;
        if !server.follows() {
            // Only a server that follows begins again in this process.
            values = Vec::new();
        }
        let (mut failed, mut closed) = (0, false);
        let end = loop {
            let before = server.status();
            match (self.wants_checkpoint(), keeps) {
                (true, true) => server.request_checkpoint()?,
                (true, false) => tracing::warn!("asked for a checkpoint, and this job keeps none"),
                (false, _) => {}
            }
            if self.closes() {
                closed = true;
                self.write_last(&mut server, &mut failed, self.timeout);
            }
            let mut waited = Duration::ZERO;
            while waited < REPORT_EVERY && self.end().is_none() && !stop() {
                let has_all = |status: &ServerStatus| gradients.is_some_and(|all| status.folded >= all);
                let until = |server: &Server<Mixed>| {
                    let status = server.status();
                    status.left != before.left || has_all(&status)
                };
                if !server.is_following() && !self.follow(&mut server, &order)? {
                    // The one that decides is another incarnation, which none of these versions belong to.
                    drop(server);
                    if let Some(checkpoint) = &mut order.checkpoint {
                        checkpoint.resume = Resume::IfThere;
                    }
                    server = self.start_server(&order, &values)?;
                    break;
                }
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
            self.tell_failures(&mut server, &mut failed);
            self.say(Message::Status(ServerReport::from(status)));
            observe(&server);
            if stop() {
                break None;
            }
            if let Some(end) = self.end() {
                break Some(end);
            }
        };
        // Whatever ended the job: what was learnt is kept where that was asked for.
        let mut checkpoint_error = None;
        if keeps && !closed {
            let within = if end.is_none() { self.timeout.min(LAST_CHECKPOINT_WITHIN) } else { self.timeout };
            checkpoint_error = self.write_last(&mut server, &mut failed, within);
        }
        self.flush();
        Ok(ServeEnd { end, checkpoint_error })
    }

    /// Connects a server to the one that decides for all shards, if that one is up within a moment. False if that is
    /// another incarnation than the one that it followed before.
    fn follow(&self, server: &mut Server<Mixed>, order: &ServerOrder) -> Result<bool, JobError> {
        let require = <[TransportKind; 1]>::try_from(&order.listen[..]).ok().map(|[one]| one);
        let shards = usize::from(order.shard.1);
        let Ok(choices) = self.member.reach(MemberRole::Server, shards, require, FOLLOW_TRY) else {
            return Ok(true);
        };
        match server.follow(&choices[0].address, FOLLOW_TRY) {
            Err(Error::AnotherIncarnation { .. }) => return Ok(false),
            Err(error @ Error::Shards { .. }) => return Err(error.into()),
            // It may still be about to listen, or be gone.
            Err(error) => tracing::debug!(%error, "not following yet"),
            Ok(()) => {}
        }
        Ok(true)
    }

    /// Writes the last checkpoint and tells the coordinator of it. The error, if it could not be written.
    fn write_last(&self, server: &mut Server<Mixed>, failed: &mut u64, within: Duration) -> Option<String> {
        let error = match server.finish_checkpoint(within) {
            Ok(version) => {
                tracing::info!(version = version.0, "the last checkpoint is written");
                None
            }
            Err(error) => {
                *failed = server.status().checkpoints_failed;
                self.say(Message::CheckpointFailed { count: 1, error: error.to_string() });
                Some(error.to_string())
            }
        };
        self.say(Message::Closed(server.status().checkpointed.map(|version| version.0)));
        error
    }

    /// Tells the coordinator of checkpoints that could not be written since the last time.
    fn tell_failures(&self, server: &mut Server<Mixed>, told: &mut u64) {
        let failed = server.status().checkpoints_failed;
        if failed > *told {
            let error = server.checkpoint_failure().map(|error| error.to_string());
            let error = error.unwrap_or_else(|| "the thread that writes checkpoints has ended".into());
            self.say(Message::CheckpointFailed { count: failed - *told, error });
            *told = failed;
        }
    }

    /// The values of the order's shard, which the coordinator sends once.
    fn initial_values(&self, order: &ServerOrder) -> Result<Vec<f32>, JobError> {
        let (shard, shards) = order.shard;
        let ranges = order.table.shards(usize::from(shards)).map_err(Error::from)?;
        let range = ranges.get(usize::from(shard));
        let range = range.ok_or(JobError::Order("the coordinator names a shard that is not there"))?;
        self.values((range.end - range.start) as usize / 4, self.timeout)
    }

    /// Begins a server, and tells where it is and from which checkpoint it goes on.
    fn start_server(&self, order: &ServerOrder, values: &[f32]) -> Result<Server<Mixed>, JobError> {
        let (shard, shards) = order.shard;
        let file = order.checkpoint.as_ref().map(|checkpoint| (checkpoint, checkpoint.file(shard, shards)));
        let options = ServerOptions {
            optimizer: order.optimizer,
            threads: order.threads,
            damping: order.damping,
            shard: order.shard,
            memory: ShardOptions {
                peers: order.peers,
                lease: order.lease,
                checksums: order.checksums,
                idle: if order.sleeps { Idle::Sleep } else { Idle::Poll },
                ..ShardOptions::default()
            },
            measure_moments: order.moments,
            non_finite: order.non_finite,
            checkpoint: file.as_ref().map(|(checkpoint, file)| CheckpointOptions {
                path: file.clone(),
                every: Some(checkpoint.every),
            }),
            ..ServerOptions::new(order.scheme, order.workers, order.learning_rate)
        };
        let checkpoint = match &file {
            Some((checkpoint, file)) => resume_from(file, checkpoint.resume)?,
            None => None,
        };
        let address = self.member.transports.listen_at(&order.listen).map_err(JobError::NoRdma)?;
        let transports = self.member.transports.open();
        let table = order.table.clone();
        let (server, origin) = match checkpoint {
            Some(checkpoint) => {
                let origin = Origin {
                    version: checkpoint.version().0,
                    clock: checkpoint.smallest_clock().0,
                    instead_of: checkpoint.instead_of().map(ToString::to_string),
                };
                (Server::resume(transports, &address, table, checkpoint, options)?, Some(origin))
            }
            None => (Server::new(transports, &address, table, values, options)?, None),
        };
        if order.checkpoint.is_some() {
            self.say(Message::Began(origin));
        }
        self.member.announce(flatten(server.address()));
        Ok(server)
    }
}
