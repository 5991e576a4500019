//! A process's membership of its job, which a thread of its own keeps: rank 0 hears of the process however long it
//! computes.

use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;

use super::choose::{PathError, TransportChoice, choose};
use super::error_report::ErrorReport;
use super::no_paths::NoPaths;
use super::plan::deadline_after;
use super::rendezvous::{self, Host, Introduction, Member, MemberEvent, MemberRole, Membership};
use super::transports::Transports;
use crate::channel::Secret;
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::mem::ForkGuard;
use crate::transport::{Address, TransportKind};

/// The time between two questions for a message that is due. A message that is sent wakes the thread.
const TURN: Duration = Duration::from_millis(50);

/// The longest time that the last message of a process may take, and the answer to it.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// The reason why a membership has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The job is over.
    Dismissed,
    /// The job failed: the cause, as rank 0 told it.
    Told(String),
    /// The job has no rank for this process, for a reason that rank 0 told.
    Refused(String),
    /// Rank 0 is gone and told no cause.
    Lost(String),
}

/// The messages between rank 0 and one member, as this member understands them.
pub trait Conversation: Send + 'static {
    /// Takes a message of rank 0. `Some` ends the membership.
    fn receive(&mut self, message: Vec<u8>) -> Option<End>;

    /// Gives the message that is due at `now`, if any; asked twenty times a second.
    fn due(&mut self, now: Instant) -> Option<Vec<u8>> {
        let _ = now;
        None
    }

    /// Gives the message that this worker has run all its clocks and all its gradients are applied, unless rank 0
    /// knows that.
    fn finished(&mut self) -> Option<Vec<u8>>;

    /// Gives the message that this member gives up, and why.
    fn failed(&mut self, why: ErrorReport) -> Vec<u8>;

    /// Gives the message that `workers` are in at the server of this process, and that `come` have ever come to it,
    /// unless rank 0 knows that. Workers have joined that server `joined` times in all.
    fn serves(&mut self, workers: Vec<u32>, come: Vec<u32>, joined: u64) -> Option<Vec<u8>> {
        let _ = (workers, come, joined);
        None
    }

    /// Gives the message by which transports this worker is connected to members of a role, each with its rank within
    /// the role, if rank 0 asks for that.
    fn connected(&mut self, role: MemberRole, choices: Vec<(u32, TransportChoice)>) -> Option<Vec<u8>> {
        let _ = (role, choices);
        None
    }
}

/// A wait for the job has failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WaitError {
    /// The membership has ended.
    #[error("{}", match .0 {
        End::Dismissed => "the job ended",
        End::Told(why) | End::Refused(why) | End::Lost(why) => why,
    })]
    Ended(End),
    /// The deadline passed.
    #[error("waited {waited:?} for {what}; {}", remedy_of(self))]
    Deadline {
        /// The subject of the wait.
        what: String,
        /// The length of the wait.
        waited: Duration,
    },
    /// No transport reaches a member.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl Diagnostic for WaitError {
    fn operation(&self) -> &'static str {
        "reaching the other processes"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            WaitError::Deadline { .. } => Some("use a longer timeout".into()),
            WaitError::Path(error) => error.remedy(),
            WaitError::Ended(_) => None,
        }
    }

    fn is_retryable(&self) -> bool {
        matches!(self, WaitError::Deadline { .. })
    }
}

/// A member of a job. Dropping the last clone of its `Arc` leaves the job.
pub struct JobMember<C: Conversation> {
    shared: Arc<MemberShared<C>>,
    /// The host of this process.
    pub host: Host,
    /// The transports of this process.
    pub transports: Transports,
    /// The shard of a server, or the number of a worker.
    pub role_rank: u32,
    /// The number of processes that had this rank within this role before.
    pub generation: u64,
    /// One of them has announced addresses.
    pub(super) was_up: bool,
    /// The members to which no path leads by RDMA.
    pub(super) no_paths: Mutex<NoPaths>,
}

struct MemberShared<C> {
    /// The thread is not in a forked child, and may have held the state for ever there.
    guard: ForkGuard,
    state: Mutex<MemberState<C>>,
    changed: Condvar,
    /// Wakes the thread.
    wake: OwnedFd,
}

struct MemberState<C> {
    conversation: C,
    members: Vec<Member>,
    outgoing: Vec<Vec<u8>>,
    announcement: Option<(Vec<Address>, Option<[u8; 16]>)>,
    /// The silence that rank 0 is allowed from now on.
    silence: Option<Duration>,
    end: Option<End>,
    /// Messages were taken from `outgoing` and are not yet handed to the connection.
    sending: bool,
    /// The member is dropped: the thread leaves once all messages are sent.
    leaving: bool,
}

impl<C> MemberShared<C> {
    fn state(&self) -> MutexGuard<'_, MemberState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the membership has ended for a forked child, which it is not of.
    fn inherited(&self) -> Option<End> {
        let why = "this process was forked from a member of the job: join in the child itself";
        self.guard.is_inherited().then(|| End::Lost(why.into()))
    }

    /// Gives `with` the state. `None` in a forked child, where the lock may be held for ever.
    fn with<R>(&self, with: impl FnOnce(&mut MemberState<C>) -> R) -> Option<R> {
        (!self.guard.is_inherited()).then(|| with(&mut self.state()))
    }

    /// Changes the state and wakes the thread, which looks at it. A forked child leaves the membership to its parent.
    fn tell(&self, change: impl FnOnce(&mut MemberState<C>)) {
        if self.with(change).is_none() {
            return;
        }
        // It fails only where the counter is full: the thread is awake then.
        let _counted = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl<C: Conversation> JobMember<C> {
    /// Joins the job whose rank 0 listens at `address` (`HOST:PORT`), within `timeout`.
    pub fn join(
        address: &str,
        introduction: Introduction,
        secret: Option<Secret>,
        conversation: C,
        timeout: Duration,
    ) -> Result<JobMember<C>, rendezvous::RendezvousError> {
        let host = introduction.host.clone();
        let (rank, wanted) = (introduction.rank, introduction.role_rank);
        let membership = Membership::join(address, introduction, secret.clone(), timeout)?;
        let (role_rank, generation) = (membership.role_rank(), membership.generation());
        let was_up = membership.was_up();
        let index = rank.or(wanted).map_or(0, |index| index as usize);
        let transports = Transports::new(secret, Some(membership.local_address()?.ip()), index);
        let state = MemberState {
            conversation,
            members: Vec::new(),
            outgoing: Vec::new(),
            announcement: None,
            silence: None,
            end: None,
            sending: false,
            leaving: false,
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| rendezvous::RendezvousError::Thread(errno.into()))?;
        let shared = Arc::new(MemberShared {
            guard: ForkGuard::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake,
        });
        let kept = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("slackline-job".into())
            .spawn(move || keep(membership, &kept))
            .map_err(rendezvous::RendezvousError::Thread)?;
        let no_paths = Mutex::default();
        Ok(JobMember { shared, host, transports, role_rank, generation, was_up, no_paths })
    }

    /// Gives `with` the conversation, for as long as the call takes. `None` in a forked child, which has none.
    pub fn with<R>(&self, with: impl FnOnce(&mut C) -> R) -> Option<R> {
        self.shared.with(|state| with(&mut state.conversation))
    }

    /// The reason why the membership has ended, if it has.
    pub fn end(&self) -> Option<End> {
        self.shared.inherited().or_else(|| self.shared.state().end.clone())
    }

    /// The number of members of a role, as far as this process was told. 0 in a forked child.
    pub fn count(&self, role: MemberRole) -> usize {
        let count =
            |state: &mut MemberState<C>| state.members.iter().filter(|member| member.role == role).count();
        self.shared.with(count).unwrap_or(0)
    }

    /// Sends a message to rank 0.
    pub fn send(&self, message: Vec<u8>) {
        self.shared.tell(|state| state.outgoing.push(message));
    }

    /// Sends the message that the conversation gives, if any.
    pub(super) fn tell(&self, message: impl FnOnce(&mut C) -> Option<Vec<u8>>) {
        self.shared.tell(|state| state.outgoing.extend(message(&mut state.conversation)));
    }

    /// Tells rank 0 why this process gives up.
    pub(super) fn fail(&self, why: ErrorReport) {
        self.tell(|conversation| Some(conversation.failed(why)));
    }

    /// Tells all members the addresses at which this process listens, with the UUID of the GPU that its payloads
    /// are on, if they are on one.
    pub fn announce(&self, addresses: Vec<Address>, gpu: Option<[u8; 16]>) {
        self.shared.tell(|state| state.announcement = Some((addresses, gpu)));
    }

    /// From now on rank 0 may be silent for so long before it is taken for gone.
    pub(super) fn allow_silence(&self, silence: Duration) {
        self.shared.tell(|state| state.silence = Some(silence));
    }

    /// Waits a moment until all messages are handed to the connection.
    pub fn flush(&self) {
        // A rank 0 that is gone hears nothing more.
        let _gone = self.wait_for(LAST_WORDS, "the connection", |state| {
            (state.outgoing.is_empty() && !state.sending).then_some(())
        });
    }

    /// Waits until the membership has ended, and says how. `None` after `timeout`.
    pub fn wait_for_the_end(&self, timeout: Duration) -> Option<End> {
        match self.wait_for(timeout, "the end of the job", |_| None::<()>) {
            Err(WaitError::Ended(end)) => Some(end),
            _ => None,
        }
    }

    /// Waits until `until` returns a result out of the conversation.
    pub fn wait<R>(
        &self,
        timeout: Duration,
        what: &str,
        mut until: impl FnMut(&mut C) -> Option<R>,
    ) -> Result<R, WaitError> {
        self.wait_for(timeout, what, |state| until(&mut state.conversation))
    }

    /// Waits until all `count` members of a role have announced addresses, and chooses the transport to each, in order
    /// of their ranks within the role.
    pub fn reach(
        &self,
        role: MemberRole,
        count: usize,
        require: Option<TransportKind>,
        timeout: Duration,
    ) -> Result<Vec<TransportChoice>, WaitError> {
        // The list of members is as old as the membership.
        if let Some(end) = self.end() {
            return Err(WaitError::Ended(end));
        }
        let is_up = |member: &Member| member.role == role && !member.addresses.is_empty();
        let members = self.members(timeout, &format!("all {role}s to be up"), count, is_up)?;
        Ok(members.iter().map(|member| self.choose(member, require)).collect::<Result<_, _>>()?)
    }

    /// Waits until so many members are as wanted, and returns them in order of their ranks within their role.
    pub(super) fn members(
        &self,
        timeout: Duration,
        what: &str,
        count: usize,
        is_wanted: impl Fn(&Member) -> bool,
    ) -> Result<Vec<Member>, WaitError> {
        let mut members = self.wait_for(timeout, what, |state| {
            let wanted = state.members.iter().filter(|member| is_wanted(member));
            let members: Vec<Member> = wanted.cloned().collect();
            (members.len() == count).then_some(members)
        })?;
        members.sort_by_key(|member| member.role_rank);
        Ok(members)
    }

    /// The member that has announced this address.
    pub(super) fn member_at(&self, address: &Address) -> Option<Member> {
        let is_there = |member: &&Member| member.addresses.contains(address);
        self.shared.with(|state| state.members.iter().find(is_there).cloned())?
    }

    /// Chooses the transport to a member that has announced addresses.
    pub(super) fn choose(
        &self,
        member: &Member,
        require: Option<TransportKind>,
    ) -> Result<TransportChoice, PathError> {
        let rdma = || match self.no_paths().reason(member.id) {
            Some(no_path) => Err(no_path),
            None => self.transports.rdma().map_err(|error| error.to_string()),
        };
        let choice = choose(&self.host, member, require, &rdma, &|gpu| self.transports.maps(gpu))?;
        let TransportChoice { kind, address, reason } = &choice;
        let Member { role, role_rank, host, .. } = member;
        tracing::info!(%role, role_rank, %host, %kind, %address, reason, "chose a transport");
        Ok(choice)
    }

    fn wait_for<R>(
        &self,
        timeout: Duration,
        what: &str,
        mut until: impl FnMut(&mut MemberState<C>) -> Option<R>,
    ) -> Result<R, WaitError> {
        if let Some(end) = self.shared.inherited() {
            return Err(WaitError::Ended(end));
        }
        let deadline = deadline_after(timeout);
        let mut state = self.shared.state();
        loop {
            if let Some(result) = until(&mut state) {
                return Ok(result);
            }
            if let Some(end) = &state.end {
                return Err(WaitError::Ended(end.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::Deadline { what: what.into(), waited: timeout });
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<C: Conversation> Drop for JobMember<C> {
    fn drop(&mut self) {
        self.shared.tell(|state| state.leaving = true);
    }
}

/// Runs the thread until the job is over, rank 0 is gone or the member leaves.
fn keep<C: Conversation>(mut membership: Membership, shared: &MemberShared<C>) {
    let end = loop {
        match turn(&mut membership, shared) {
            Ok(None) => {
                membership.wait(TURN, shared.wake.as_fd());
                // Whether it was counted up or not, the next turn looks.
                let _count = rustix::io::read(&shared.wake, &mut [0; 8]);
            }
            Ok(Some(end)) => break end,
            Err(error) => break End::Lost(format!("{error}; rank 0 told no cause: look at its output")),
        }
        let state = shared.state();
        if state.leaving && state.outgoing.is_empty() && membership.is_flushed() {
            break End::Dismissed;
        }
    };
    shared.state().end = Some(end);
    shared.changed.notify_all();
}

/// Sends and receives the messages that there are.
fn turn<C: Conversation>(
    membership: &mut Membership,
    shared: &MemberShared<C>,
) -> Result<Option<End>, rendezvous::RendezvousError> {
    let mut state = shared.state();
    let mut messages = std::mem::take(&mut state.outgoing);
    messages.extend(state.conversation.due(Instant::now()));
    let (announcement, silence) = (state.announcement.take(), state.silence.take());
    state.sending = !messages.is_empty();
    drop(state);
    silence.into_iter().for_each(|silence| membership.allow_silence(silence));
    if let Some((addresses, gpu)) = announcement {
        membership.announce(addresses, gpu)?;
    }
    for message in messages {
        membership.say(&message)?;
    }
    let was_sending = std::mem::take(&mut shared.state().sending);
    if was_sending {
        shared.changed.notify_all();
    }
    while let Some(event) = membership.poll()? {
        let mut state = shared.state();
        match event {
            MemberEvent::Members => state.members = membership.members().to_vec(),
            MemberEvent::Said(message) => {
                if let Some(end) = state.conversation.receive(message) {
                    return Ok(Some(end));
                }
            }
        }
        drop(state);
        shared.changed.notify_all();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::job::messages::EndOnly;
    use crate::mem::{alone, true_in_a_forked_child};

    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parents_membership() {
        if !alone("job::member::tests::a_forked_child_waits_for_no_lock_of_its_parents_membership") {
            return;
        }
        let state = MemberState {
            conversation: EndOnly::default(),
            members: Vec::new(),
            outgoing: Vec::new(),
            announcement: None,
            silence: None,
            end: None,
            sending: false,
            leaving: false,
        };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (guard, state) = (ForkGuard::new(), Mutex::new(state));
        let shared = Arc::new(MemberShared { guard, state, changed: Condvar::new(), wake });
        // As the membership's thread may when its process forks.
        let held = shared.state();
        assert!(true_in_a_forked_child(|| {
            let (tell, told) = channel();
            let (shared, member) = (Arc::clone(&shared), &shared);
            std::thread::spawn(move || {
                shared.tell(|state| state.leaving = true);
                let _unheard = tell.send(shared.with(|_| ()));
            });
            let is_told = told.recv_timeout(Duration::from_secs(10)) == Ok(None);
            is_told && matches!(member.inherited(), Some(End::Lost(_)))
        }));
        assert!(!held.leaving, "that is the parent's");
    }
}
