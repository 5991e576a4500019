//! A server of a coordinated job.

use std::time::{Duration, Instant};

use super::super::member::End;
use super::super::server_loop::resume_from;
use super::super::transports::flatten;
use super::super::{JobError, Resume};
use super::member::CoordinatedMember;
use super::orders::Message;
use super::reports::{Origin, ServerReport};
use super::{LAST_CHECKPOINT_WITHIN, ServerOrder};
use crate::diagnostic::cause_of;
use crate::node::{CheckpointOptions, Error, Idle, Server, ServerOptions, ServerStatus, ShardOptions};
use crate::transport::mixed::Mixed;

/// The time between two reports of a server.
const REPORT_EVERY: Duration = Duration::from_millis(100);

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
            let deadline = Instant::now() + REPORT_EVERY;
            while Instant::now() < deadline && self.end().is_none() && !stop() {
                let has_all = |status: &ServerStatus| gradients.is_some_and(|all| status.folded >= all);
                let until = |server: &Server<Mixed>| {
                    let status = server.status();
                    status.left != before.left || has_all(&status)
                };
                match self.member.drive(&order.plan, &mut server, until, order.plan.timeout) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(JobError::Node(Error::AnotherIncarnation { .. })) => {
                        // None of these versions belong to the incarnation that decides now.
                        self.tell_failures(&mut server, &mut failed);
                        drop(server);
                        if let Some(checkpoint) = &mut order.checkpoint {
                            checkpoint.resume = Resume::IfThere;
                        }
                        // It counts from nothing.
                        (server, failed) = (self.start_server(&order, &values)?, 0);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            let status = server.status();
            if gradients.is_some_and(|all| status.folded >= all) {
                // Workers continue until they hear that the job is over: their gradients do not change the parameters.
                server.set_learning_rate(0.0)?;
                gradients = None;
            }
            self.tell_failures(&mut server, &mut failed);
            // With a proxy on each host, the servers of the hosts have the workers.
            if !order.plan.per_host {
                self.member.tell_workers(&server);
            }
            self.say(Message::Status(ServerReport::from(status)));
            observe(&server);
            if stop() {
                break None;
            }
            if let Some(end) = self.end() {
                break Some(end);
            }
        };
        // For any end of the job: a job with checkpoints keeps the newest version.
        let mut checkpoint_error = None;
        if keeps && !closed {
            let within = if end.is_none() { self.timeout.min(LAST_CHECKPOINT_WITHIN) } else { self.timeout };
            checkpoint_error = self.write_last(&mut server, &mut failed, within);
        }
        self.flush();
        Ok(ServeEnd { end, checkpoint_error })
    }

    /// Writes the last checkpoint and tells the coordinator of it. The error, if it could not be written.
    fn write_last(&self, server: &mut Server<Mixed>, failed: &mut u64, within: Duration) -> Option<String> {
        let error = match server.finish_checkpoint(within) {
            Ok(version) => {
                tracing::info!(version = version.get(), "the last checkpoint is written");
                None
            }
            Err(error) => {
                *failed = server.status().checkpoints_failed;
                self.say(Message::CheckpointFailed { count: 1, error: error.to_string() });
                Some(error.to_string())
            }
        };
        self.say(Message::Closed(server.status().checkpointed.map(|version| version.get())));
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
        let (shard, shards) = order.shard_numbers();
        let ranges = order.table.shards(usize::from(shards)).map_err(Error::from)?;
        let range = ranges.get(usize::from(shard));
        let range = range.ok_or(JobError::Order("the coordinator names a shard that is not there"))?;
        self.values((range.end - range.start) as usize / 4, self.timeout)
    }

    /// Begins a server, and tells where it is and from which checkpoint it goes on.
    fn start_server(&self, order: &ServerOrder, values: &[f32]) -> Result<Server<Mixed>, JobError> {
        let workers = self.member.upstream_workers(&order.plan, order.workers)?;
        let (shard, shards) = order.shard_numbers();
        let file = order.checkpoint.as_ref().map(|checkpoint| (checkpoint, checkpoint.file(shard, shards)));
        let options = ServerOptions {
            optimizer: order.optimizer,
            schedule: order.schedule,
            threads: order.threads,
            damping: order.damping,
            additive: order.additive,
            shard: order.shard_numbers(),
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
            ..ServerOptions::new(order.scheme, workers, order.learning_rate)
        };
        let checkpoint = match &file {
            Some((checkpoint, file)) => resume_from(file, checkpoint.resume)?,
            None => None,
        };
        let origin = checkpoint.as_ref().map(|checkpoint| Origin {
            version: checkpoint.version().get(),
            clock: checkpoint.smallest_clock().get(),
            // Its remedy is for a server that has no other one.
            instead_of: checkpoint.instead_of().map(|error| cause_of(error)),
        });
        let table = order.table.clone();
        let server = self.member.make_server(&order.listen, table, values, checkpoint, options)?;
        if order.checkpoint.is_some() {
            self.say(Message::Began(origin));
        }
        self.member.announce(flatten(server.address()), self.member.transports.serves_from());
        Ok(server)
    }
}

#[cfg(all(test, feature = "checkpoint", feature = "tcp"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::fixture::{TIMEOUT, coordination};
    use super::super::orders::{Body, Order, json, read, values};
    use super::super::{CheckpointOrder, MemberOptions};
    use super::*;
    use crate::job::JobPlan;
    use crate::job::rendezvous::{Hub, HubEvent, HubOptions, MemberRole};
    use crate::scheme::SchemeConfig;

    /// Elements of both shards.
    const ELEMENTS: usize = 32;

    /// Flags of one server.
    #[derive(Default)]
    struct Flags {
        checkpoint: Arc<AtomicBool>,
        has_followed: AtomicBool,
        stop: AtomicBool,
    }

    fn serve(address: &str, shard: u32, flags: &Flags) {
        let (role, role_rank, checkpoint) = (MemberRole::Server, Some(shard), Arc::clone(&flags.checkpoint));
        let options =
            MemberOptions { role, role_rank, rank: None, secret: None, checkpoint, timeout: TIMEOUT };
        let member = CoordinatedMember::join(address, options).unwrap();
        let order = member.server_order().unwrap();
        let observe = |server: &Server<Mixed>| {
            flags.has_followed.fetch_or(server.is_following(), Ordering::Relaxed);
        };
        member.serve(order, observe, || flags.stop.load(Ordering::Relaxed)).unwrap();
    }

    #[test]
    fn failures_are_told_of_each_incarnation_of_a_server_that_begins_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = &parent.path().join("checkpoints");
        std::fs::create_dir(folder).unwrap();
        let order = |shard: u32| {
            let checkpoint = CheckpointOrder::new(folder.into(), 1000, Resume::Never);
            let mut order = coordination(ELEMENTS, 1).server.unwrap();
            order.plan = JobPlan::servers(2).reconnect(true).timeout(TIMEOUT);
            order.scheme = "dbw".parse::<SchemeConfig>().unwrap();
            order.shard = shard as u16;
            order.checkpoint = (shard == 1).then_some(checkpoint);
            Order::Serve(Box::new(order))
        };
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let address = &hub.address().to_string();
        let [decider, again, follower] = &[(); 3].map(|()| Flags::default());
        let deadline = Instant::now() + TIMEOUT;
        std::thread::scope(|scope| {
            scope.spawn(|| serve(address, 0, decider));
            scope.spawn(|| serve(address, 1, follower));
            let (mut begun, mut told, mut restarted) = (0, Vec::new(), false);
            while !told.contains(&2) {
                let heard = hub.poll();
                match &heard {
                    Some(HubEvent::Joined(member)) => {
                        hub.say(member.id, &json(&order(member.role_rank)));
                        hub.say(member.id, &values(&[1.0; ELEMENTS / 2]));
                    }
                    Some(HubEvent::Said(_, message)) => match read::<Message>(message) {
                        // The follower alone keeps checkpoints. Its folder is there while it begins.
                        Ok(Body::Json(Message::Began(_))) => {
                            begun += 1;
                            std::fs::remove_dir_all(folder).unwrap();
                            follower.checkpoint.store(true, Ordering::Relaxed);
                        }
                        Ok(Body::Json(Message::CheckpointFailed { .. })) => told.push(begun),
                        _ => {}
                    },
                    Some(HubEvent::Left { .. }) => _ = scope.spawn(|| serve(address, 0, again)),
                    Some(HubEvent::Announced(_)) => {}
                    None => hub.wait(Duration::from_millis(1)),
                }
                if !told.is_empty() && follower.has_followed.load(Ordering::Relaxed) && !restarted {
                    std::fs::create_dir(folder).unwrap();
                    decider.stop.store(true, Ordering::Relaxed);
                    restarted = true;
                }
                if Instant::now() > deadline {
                    [decider, again, follower]
                        .iter()
                        .for_each(|flags| flags.stop.store(true, Ordering::Relaxed));
                    panic!("failures were told of incarnations {told:?} of {begun}");
                }
            }
            [again, follower].iter().for_each(|flags| flags.stop.store(true, Ordering::Relaxed));
        });
    }
}
