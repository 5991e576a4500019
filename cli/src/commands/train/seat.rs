//! A process's seat in its job: its connection to the coordinator, kept by a thread of its own, so that it is heard of
//! however long it computes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline::channel::Secret;
use slackline::rendezvous::{
    Choice, Host, Introduction, Member, MemberEvent, Membership, Path, Role, choose,
};
use slackline::transport::Address;

use super::Trouble;
use super::fabric::Ways;
use super::messages::{Body, Message, Order, PathTaken, Report, json, read};

/// How often a worker tells how it is getting on.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How long what this process says may wait for its thread to say it.
const TURN: Duration = Duration::from_millis(5);

/// How long last words may take to be heard.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a seat is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The job is over.
    Dismissed,
    /// The coordinator is gone.
    Lost(String),
}

/// A seat. It is given up when the process ends.
pub(super) struct Seat {
    shared: Arc<Shared>,
    pub(super) host: Host,
    /// What this process has to talk over.
    pub(super) ways: Ways,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Somebody wants a checkpoint now.
    wanted: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    orders: VecDeque<Order>,
    values: Vec<f32>,
    members: Vec<Member>,
    outgoing: Vec<Message>,
    announcement: Option<Vec<Address>>,
    report: Option<Report>,
    end: Option<End>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Joins the job at `address`, within `timeout`. Whoever sets `wanted` wants a checkpoint.
    pub(super) fn take(
        address: &str,
        introduction: Introduction,
        secret: Option<Secret>,
        wanted: Arc<AtomicBool>,
        timeout: Duration,
    ) -> Result<Seat, Trouble> {
        let host = introduction.host.clone();
        let (rank, place) = (introduction.rank, introduction.place);
        let membership = Membership::join(address, introduction, secret.clone(), timeout)?;
        let place = rank.or(place).map_or(0, |place| place as usize);
        let ways = Ways::new(secret, Some(membership.local_address()?.ip()), place);
        let shared = Arc::new(Shared { wanted, ..Shared::default() });
        let kept = Arc::clone(&shared);
        std::thread::Builder::new().name("job".into()).spawn(move || keep(membership, &kept))?;
        Ok(Seat { shared, host, ways })
    }

    /// The next order, within `timeout`.
    pub(super) fn order(&self, timeout: Duration) -> Result<Order, Trouble> {
        self.wait(timeout, "an order", |state| state.orders.pop_front())
    }

    /// So many values, which follow an order.
    pub(super) fn values(&self, count: usize, timeout: Duration) -> Result<Vec<f32>, Trouble> {
        self.wait(timeout, "the initial values", |state| {
            (state.values.len() >= count).then(|| std::mem::take(&mut state.values))
        })
    }

    /// Waits until all `count` members of a role can be reached, and chooses the way to each, in order of their places.
    pub(super) fn reach(
        &self,
        role: Role,
        count: usize,
        require: Option<Path>,
        timeout: Duration,
    ) -> Result<(Vec<Address>, Vec<PathTaken>), Trouble> {
        let up = |member: &&Member| member.role == role && !member.addresses.is_empty();
        let mut members = self.wait(timeout, &format!("all {role}s to be up"), |state| {
            let members: Vec<Member> = state.members.iter().filter(up).cloned().collect();
            (members.len() == count).then_some(members)
        })?;
        members.sort_by_key(|member| member.place);
        let (mut addresses, mut taken) = (Vec::new(), Vec::new());
        for member in members {
            let Choice { path, address, reason } =
                choose(&self.host, &member, require, &|| self.ways.rdma())?;
            let place = member.place;
            tracing::info!(%role, place, host = %member.host, %path, %address, reason, "chose a path");
            let (server, worker) = match role {
                Role::Server => (Some(place), None),
                Role::Worker | Role::Reader => (None, Some(place)),
            };
            addresses.push(address);
            taken.push(PathTaken { server, worker, path, reason });
        }
        Ok((addresses, taken))
    }

    fn wait<R>(
        &self,
        timeout: Duration,
        what: &str,
        mut until: impl FnMut(&mut State) -> Option<R>,
    ) -> Result<R, Trouble> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state();
        loop {
            if let Some(result) = until(&mut state) {
                return Ok(result);
            }
            match &state.end {
                Some(End::Dismissed) => return Err("the job ended".into()),
                Some(End::Lost(why)) => return Err(why.clone().into()),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("waited {timeout:?} for {what}; use a longer --timeout").into());
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a checkpoint was asked for since the last look.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.shared.wanted.swap(false, Ordering::Relaxed)
    }

    /// Why the seat is no more, if it is.
    pub(super) fn end(&self) -> Option<End> {
        self.shared.state().end.clone()
    }

    /// Calls `then` once the seat is no more.
    pub(super) fn at_end(&self, then: impl FnOnce(End) + Send + 'static) -> Result<(), Trouble> {
        let shared = Arc::clone(&self.shared);
        let wait = move || {
            let mut state = shared.state();
            let end = loop {
                if let Some(end) = &state.end {
                    break end.clone();
                }
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            then(end);
        };
        std::thread::Builder::new().name("end of job".into()).spawn(wait)?;
        Ok(())
    }

    /// Tells the coordinator something.
    pub(super) fn say(&self, message: Message) {
        self.shared.state().outgoing.push(message);
    }

    /// What is to be told ten times a second from now on.
    pub(super) fn report(&self, report: Report) {
        self.shared.state().report = Some(report);
    }

    /// Says it for the last time.
    pub(super) fn finish(&self, report: Report) {
        let mut state = self.shared.state();
        state.report = None;
        state.outgoing.push(Message::Finished(report));
    }

    /// Tells everybody where this process is reached.
    pub(super) fn announce(&self, addresses: Vec<Address>) {
        self.shared.state().announcement = Some(addresses);
    }

    /// Tells the coordinator that this process gives up, and waits a moment for it to hear.
    pub(super) fn fail(&self, message: String) {
        self.say(Message::Failed { message });
        // The coordinator answers by ending the connection.
        let never = |_: &mut State| None::<()>;
        let _heard = self.wait(LAST_WORDS, "the coordinator", never);
    }
}

/// The thread: until the job is over or the coordinator is gone.
fn keep(mut membership: Membership, shared: &Shared) {
    let mut reported = Instant::now();
    let end = loop {
        match turn(&mut membership, shared, &mut reported) {
            Ok(None) => membership.wait(TURN),
            Ok(Some(end)) => break end,
            Err(error) => break End::Lost(error.to_string()),
        }
    };
    shared.state().end = Some(end);
    shared.changed.notify_all();
}

/// Says and hears what there is.
fn turn(
    membership: &mut Membership,
    shared: &Shared,
    reported: &mut Instant,
) -> Result<Option<End>, slackline::rendezvous::Error> {
    let mut state = shared.state();
    let mut messages = std::mem::take(&mut state.outgoing);
    let announcement = state.announcement.take();
    if let Some(report) = &mut state.report
        && reported.elapsed() >= REPORT_EVERY
    {
        messages.push(Message::Progress(report.clone()));
        report.loss = None;
        *reported = Instant::now();
    }
    drop(state);
    if let Some(addresses) = announcement {
        membership.announce(addresses)?;
    }
    for message in messages {
        membership.say(&json(&message))?;
    }
    while let Some(event) = membership.poll()? {
        let mut state = shared.state();
        match event {
            MemberEvent::Members => state.members = membership.members().to_vec(),
            MemberEvent::Said(message) => match read::<Order>(&message) {
                Ok(Body::Json(Order::Leave)) => return Ok(Some(End::Dismissed)),
                Ok(Body::Json(Order::Refuse(why))) => return Ok(Some(End::Lost(why))),
                Ok(Body::Json(Order::Checkpoint)) => shared.wanted.store(true, Ordering::Relaxed),
                Ok(Body::Json(order)) => state.orders.push_back(order),
                Ok(Body::Values(values)) => state.values.extend(values),
                Err(error) => {
                    let why = format!("the coordinator said what cannot be understood: {error}");
                    return Ok(Some(End::Lost(why)));
                }
            },
        }
        drop(state);
        shared.changed.notify_all();
    }
    Ok(None)
}
