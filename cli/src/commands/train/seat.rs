//! A process's seat in its job: its membership, over which the coordinator tells it what to do and hears how it is
//! getting on.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slackline::Error;
use slackline::channel::Secret;
pub(super) use slackline::job::member::End;
use slackline::job::member::{Conversation, JobMember, WaitError};
use slackline::job::rendezvous::{Introduction, MemberRole};
use slackline::job::transports::Transports;
use slackline::transport::{Address, TransportKind};

use super::Trouble;
use super::messages::{Body, Message, Order, PathTaken, Report, json, read};
use crate::failure::Failure;

/// How often a worker tells how it is getting on.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How long last words may take to be heard.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The longest time between two looks at a membership that may last for days.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A seat. It is given up when the process ends.
pub(super) struct Seat {
    member: Arc<JobMember<Talk>>,
    /// The coordinator tells the user what goes wrong, and this process says nothing.
    quiet: bool,
    /// Set by a signal or by the coordinator: a checkpoint is asked for.
    wanted: Arc<AtomicBool>,
    /// A thread has begun to end this process: it tells the user why, and no other does.
    ending: Arc<AtomicBool>,
}

/// The conversation with the coordinator.
struct Talk {
    orders: VecDeque<Order>,
    values: Vec<f32>,
    report: Option<Report>,
    reported: Instant,
    wanted: Arc<AtomicBool>,
    /// The last checkpoint is asked for.
    closing: bool,
}

impl Conversation for Talk {
    fn receive(&mut self, message: Vec<u8>) -> Option<End> {
        match read::<Order>(&message) {
            Ok(Body::Json(Order::Leave)) => return Some(End::Dismissed),
            Ok(Body::Json(Order::Refuse(why) | Order::Abort(why))) => return Some(End::Told(why)),
            Ok(Body::Json(Order::Checkpoint)) => self.wanted.store(true, Ordering::Relaxed),
            Ok(Body::Json(Order::Close)) => self.closing = true,
            Ok(Body::Json(order)) => self.orders.push_back(order),
            Ok(Body::Values(values)) => self.values.extend(values),
            Err(error) => {
                let why = format!("the coordinator said what cannot be understood: {error}");
                return Some(End::Lost(why));
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
}

impl Seat {
    /// Joins the job at `address`, within `timeout`. A signal sets `wanted` to ask for a checkpoint.
    pub(super) fn take(
        address: &str,
        introduction: Introduction,
        secret: Option<Secret>,
        wanted: Arc<AtomicBool>,
        timeout: Duration,
        quiet: bool,
    ) -> Result<Seat, Trouble> {
        let talk = Talk {
            orders: VecDeque::new(),
            values: Vec::new(),
            report: None,
            reported: Instant::now(),
            wanted: Arc::clone(&wanted),
            closing: false,
        };
        let member = Arc::new(JobMember::join(address, introduction, secret, talk, timeout)?);
        Ok(Seat { member, quiet, wanted, ending: Arc::default() })
    }

    /// The shard or the worker that this process is.
    pub(super) fn place(&self) -> u32 {
        self.member.place
    }

    /// The transports of this process.
    pub(super) fn transports(&self) -> &Transports {
        &self.member.transports
    }

    /// The next order, within `timeout`.
    pub(super) fn order(&self, timeout: Duration) -> Result<Order, Trouble> {
        self.member.wait(timeout, "an order", |talk| talk.orders.pop_front()).map_err(told)
    }

    /// So many values, which follow an order.
    pub(super) fn values(&self, count: usize, timeout: Duration) -> Result<Vec<f32>, Trouble> {
        let all = |talk: &mut Talk| (talk.values.len() >= count).then(|| std::mem::take(&mut talk.values));
        self.member.wait(timeout, "the initial values", all).map_err(told)
    }

    /// Waits until all `count` members of a role can be reached, and chooses the transport to each, in order of their
    /// places.
    pub(super) fn reach(
        &self,
        role: MemberRole,
        count: usize,
        require: Option<TransportKind>,
        timeout: Duration,
    ) -> Result<(Vec<Address>, Vec<PathTaken>), Trouble> {
        let choices = self.member.reach(role, count, require, timeout).map_err(told)?;
        let (mut addresses, mut taken) = (Vec::new(), Vec::new());
        for (place, choice) in (0..).zip(choices) {
            let (server, worker) = match role {
                MemberRole::Server => (Some(place), None),
                MemberRole::Worker | MemberRole::Reader => (None, Some(place)),
            };
            addresses.push(choice.address);
            taken.push(PathTaken { server, worker, path: choice.kind, reason: choice.reason });
        }
        Ok((addresses, taken))
    }

    /// Whether a checkpoint was asked for since the last look.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Why the seat is no more, if it is.
    pub(super) fn end(&self) -> Option<End> {
        self.member.end()
    }

    /// Ends this process with the job. Nothing is lost by leaving in the middle: servers drop what was not announced.
    pub(super) fn end_with_the_job(&self) -> Result<(), Trouble> {
        let (member, ending, quiet) = (Arc::clone(&self.member), Arc::clone(&self.ending), self.quiet);
        let wait = move || {
            let end = loop {
                if let Some(end) = member.wait_for_the_end(DAY) {
                    break end;
                }
            };
            // The main thread has an error of its own, and ends this process.
            if ending.swap(true, Ordering::SeqCst) {
                return;
            }
            match end {
                End::Dismissed => std::process::exit(0),
                End::Told(why) | End::Lost(why) => {
                    if !quiet {
                        eprintln!("{}", Failure::failed(why));
                    }
                    std::process::exit(1)
                }
            }
        };
        std::thread::Builder::new().name("end of job".into()).spawn(wait)?;
        Ok(())
    }

    /// Returns true if the last checkpoint was asked for since the last look.
    pub(super) fn closes(&self) -> bool {
        self.member.with(|talk| std::mem::take(&mut talk.closing))
    }

    /// Waits a moment until everything that was said is on its way.
    pub(super) fn flush(&self) {
        self.member.flush(LAST_WORDS);
    }

    /// Tells the coordinator something.
    pub(super) fn say(&self, message: Message) {
        self.member.send(json(&message));
    }

    /// What is to be told ten times a second from now on.
    pub(super) fn report(&self, report: Report) {
        self.member.with(|talk| talk.report = Some(report));
    }

    /// Says it for the last time.
    pub(super) fn finish(&self, report: Report) {
        self.member.with(|talk| talk.report = None);
        self.say(Message::Finished(report));
    }

    /// Tells everybody where this process is reached.
    pub(super) fn announce(&self, addresses: Vec<Address>) {
        self.member.announce(addresses);
    }

    /// Gives up: tells the coordinator why, and the user, unless the coordinator does.
    ///
    /// A peer that is lost may be gone because the job has failed: the coordinator is given a moment to tell that
    /// cause.
    pub(super) fn give_up(&self, error: &Trouble) -> ExitCode {
        let own = error.to_string();
        if self.ending.swap(true, Ordering::SeqCst) {
            // The other thread tells why, and ends the process.
            loop {
                std::thread::park();
            }
        }
        self.say(Message::Failed { message: own.clone() });
        // The coordinator answers by ending the connection.
        let end = self.member.wait_for_the_end(LAST_WORDS);
        if self.quiet {
            return ExitCode::FAILURE;
        }
        let is_loss = |error: &Error| matches!(error, Error::ServerLost { .. } | Error::Evicted { .. });
        match end {
            Some(End::Told(why)) if error.downcast_ref().is_some_and(is_loss) => {
                Failure::failed(why).report()
            }
            _ => Failure::failed(own).report(),
        }
    }
}

/// A wait that failed, to a user who has an option for its length.
fn told(error: WaitError) -> Trouble {
    match error {
        WaitError::Deadline { what, waited } => {
            format!("waited {waited:?} for {what}; use a longer --timeout").into()
        }
        error => error.into(),
    }
}
