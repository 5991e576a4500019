//! A process of a coordinated job: its membership, over which it receives the coordinator's orders and sends its
//! reports.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::JobError;
use super::super::choose::TransportChoice;
use super::super::error_report::ErrorReport;
use super::super::member::{Conversation, End, JobMember, LAST_WORDS};
use super::super::rendezvous::{self, Host, Introduction, MemberRole};
use super::orders::{Body, Message, Order, json, read};
use super::reports::{PathTaken, WorkerReport};
use super::{LEASES, ServerOrder, WorkerOrder};
use crate::channel::Secret;

/// The time between two reports of a worker.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The longest time between two looks at a membership that may last for days.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The settings with which a process joins a coordinated job.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// Server or worker.
    pub role: MemberRole,
    /// The number of its shard, or of the worker; the first that is free if `None`.
    pub role_rank: Option<u32>,
    /// Its rank as its launcher counts.
    pub rank: Option<u32>,
    /// The secret that all processes of the job share.
    pub secret: Option<Secret>,
    /// Set by the part of the program that wants a checkpoint of this server now, such as a handler of a signal.
    pub checkpoint: Arc<AtomicBool>,
    /// The longest time to join, and to wait for the order.
    pub timeout: Duration,
}

/// A process of a coordinated job. It leaves when the last clone is dropped.
#[derive(Clone)]
pub struct CoordinatedMember {
    pub(super) member: Arc<JobMember<Talk>>,
    pub(super) timeout: Duration,
    wanted: Arc<AtomicBool>,
}

/// The conversation with the coordinator.
pub(super) struct Talk {
    orders: VecDeque<Order>,
    values: Vec<f32>,
    report: Option<WorkerReport>,
    reported: Instant,
    wanted: Arc<AtomicBool>,
    /// The last checkpoint is asked for.
    closing: bool,
    /// The workers of which the coordinator was told that they are in at the server of this process.
    served: Option<Vec<u32>>,
}

impl Conversation for Talk {
    fn receive(&mut self, message: Vec<u8>) -> Option<End> {
        match read::<Order>(&message) {
            Ok(Body::Json(Order::Leave)) => return Some(End::Dismissed),
            Ok(Body::Json(Order::Refuse(why))) => return Some(End::Refused(why)),
            Ok(Body::Json(Order::Abort(why))) => return Some(End::Told(why)),
            Ok(Body::Json(Order::Checkpoint)) => self.wanted.store(true, Ordering::Relaxed),
            Ok(Body::Json(Order::Close)) => self.closing = true,
            Ok(Body::Json(order)) => self.orders.push_back(order),
            Ok(Body::Values(values)) => self.values.extend(values),
            Err(error) => {
                return Some(End::Lost(format!(
                    "the coordinator said what cannot be understood ({error}); run the same slackline everywhere"
                )));
            }
        }
        None
    }

    fn due(&mut self, now: Instant) -> Option<Vec<u8>> {
        if now.saturating_duration_since(self.reported) < REPORT_EVERY {
            return None;
        }
        let report = self.report.as_mut()?;
        let message = json(&Message::Progress(report.clone()));
        report.loss = None;
        self.reported = now;
        Some(message)
    }

    fn finished(&mut self) -> Option<Vec<u8>> {
        self.report.take().map(|report| json(&Message::Finished(report)))
    }

    fn failed(&mut self, why: ErrorReport) -> Vec<u8> {
        json(&Message::Failed(why))
    }

    fn serves(&mut self, workers: Vec<u32>, _come: Vec<u32>, _joined: u64) -> Option<Vec<u8>> {
        (self.served.as_ref() != Some(&workers)).then(|| {
            self.served = Some(workers.clone());
            json(&Message::Workers(workers))
        })
    }

    fn connected(&mut self, role: MemberRole, choices: Vec<(u32, TransportChoice)>) -> Option<Vec<u8>> {
        Some(json(&Message::Joined(PathTaken::of(role, choices))))
    }
}

impl CoordinatedMember {
    /// Joins the job whose coordinator is met at `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// The coordinator cannot be reached in time, the secrets differ, or the rank is taken.
    pub fn join(address: &str, options: MemberOptions) -> Result<CoordinatedMember, JobError> {
        let MemberOptions { role, role_rank, rank, secret, checkpoint, timeout } = options;
        let introduction = Introduction { role_rank, rank, ..Introduction::new(role, Host::own()) };
        let talk = Talk {
            orders: VecDeque::new(),
            values: Vec::new(),
            report: None,
            reported: Instant::now(),
            wanted: Arc::clone(&checkpoint),
            closing: false,
            served: None,
        };
        let member = Arc::new(JobMember::join(address, introduction, secret, talk, timeout)?);
        Ok(CoordinatedMember { member, timeout, wanted: checkpoint })
    }

    /// The number of its shard, or of the worker.
    pub fn role_rank(&self) -> u32 {
        self.member.role_rank
    }

    /// Waits for the order of a server.
    ///
    /// # Errors
    /// The job ends before, or the timeout passes.
    pub fn server_order(&self) -> Result<ServerOrder, JobError> {
        match self.order()? {
            Order::Serve(order) => {
                self.member.allow_silence(order.lease.saturating_mul(LEASES));
                Ok(*order)
            }
            _ => Err(JobError::Order("the coordinator takes this server for a worker")),
        }
    }

    /// Waits for the order of a worker.
    ///
    /// # Errors
    /// The job ends before, or the timeout passes.
    pub fn worker_order(&self) -> Result<WorkerOrder, JobError> {
        match self.order()? {
            Order::Work(order) => {
                self.member.allow_silence(order.lease.saturating_mul(LEASES));
                Ok(*order)
            }
            _ => Err(JobError::Order("the coordinator takes this worker for a server")),
        }
    }

    fn order(&self) -> Result<Order, JobError> {
        Ok(self.member.wait(self.timeout, "an order", |talk| talk.orders.pop_front())?)
    }

    /// Waits for so many values, which follow an order.
    pub(super) fn values(&self, count: usize, timeout: Duration) -> Result<Vec<f32>, JobError> {
        let all = |talk: &mut Talk| (talk.values.len() >= count).then(|| std::mem::take(&mut talk.values));
        Ok(self.member.wait(timeout, "the initial values", all)?)
    }

    /// Returns true if a checkpoint was asked for since the last look.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Returns true if the last checkpoint was asked for since the last look.
    pub(super) fn closes(&self) -> bool {
        self.member.with(|talk| std::mem::take(&mut talk.closing)).unwrap_or(false)
    }

    /// The end of the membership, if it has ended.
    pub fn end(&self) -> Option<End> {
        self.member.end()
    }

    /// Waits until the membership ends, however long the job takes.
    pub(super) fn wait_for_the_end(&self) -> End {
        loop {
            if let Some(end) = self.member.wait_for_the_end(DAY) {
                return end;
            }
        }
    }

    /// Calls `then` in a thread of its own once the job is over, has failed or has lost its coordinator. A worker in
    /// the middle of a computation may end its process there: servers drop gradients that were not announced.
    ///
    /// # Errors
    /// The system has no room for another thread.
    pub fn when_over(&self, then: impl FnOnce(End) + Send + 'static) -> Result<(), JobError> {
        let member = self.clone();
        let wait = move || then(member.wait_for_the_end());
        let thread = std::thread::Builder::new().name("slackline-end".into()).spawn(wait);
        thread.map(|_detached| ()).map_err(|source| rendezvous::RendezvousError::Thread(source).into())
    }

    /// Tells the coordinator why this process gives up, and waits a moment for the answer, which ends the membership:
    /// a peer that is lost may be gone because the job has failed, and the coordinator knows why.
    pub fn give_up(&self, why: ErrorReport) -> Option<End> {
        self.member.fail(why);
        self.member.wait_for_the_end(LAST_WORDS)
    }

    /// Waits a moment until everything that was said is on its way.
    pub fn flush(&self) {
        self.member.flush();
    }

    /// Tells the coordinator something.
    pub(super) fn say(&self, message: Message) {
        self.member.send(json(&message));
    }

    /// Replaces the report that is sent ten times a second, and once more when this worker has finished.
    pub(super) fn report(&self, report: WorkerReport) {
        let _inherited = self.member.with(|talk| talk.report = Some(report));
    }
}
