//! The side of every other process in the meeting.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::resolve::resolve;
use super::wire::{FromHub, LIMIT, ToHub, decode, encode};
use super::{Introduction, MAX_MESSAGE_BYTES, Member, MemberId, RendezvousError};
use crate::channel::{Channel, ChannelError, ChannelTerms, Identity, Purpose, Secret, allow_silence};
use crate::mem::ForkGuard;
use crate::transport::Address;

/// Between two tries to reach rank 0, which may start later than the others: at first, and at most once it has
/// answered. Each try costs it a handshake, and many may try.
const TRY_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The longest time to wait for a connection to one of several addresses: the network may drop packets to it.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Events that a member is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A member joined, left or announced addresses: [`Membership::members`] has changed.
    Members,
    /// Rank 0 said something.
    Said(Vec<u8>),
}

/// The membership of this process in a job. Dropping it leaves the job.
pub struct Membership {
    channel: Channel,
    /// As the user wrote it.
    address: String,
    id: MemberId,
    role_rank: u32,
    generation: u64,
    was_up: bool,
    epoch: u64,
    members: Vec<Member>,
    guard: ForkGuard,
}

impl Membership {
    /// Joins the job whose rank 0 meets the others at `address` (`HOST:PORT`). Tries until `timeout`: rank 0 may be up
    /// and its name known later, or it may still believe that the process that this one replaces is there.
    pub fn join(
        address: &str,
        introduction: Introduction,
        secret: Option<Secret>,
        timeout: Duration,
    ) -> Result<Membership, RendezvousError> {
        let deadline = Instant::now() + timeout;
        let identity = Identity { role: 1 + introduction.role as u32, rank: introduction.rank, epoch: 0 };
        let terms = ChannelTerms { secret, identity, limit: LIMIT, ..ChannelTerms::new(Purpose::Rendezvous) };
        let introduction = encode(&ToHub::Introduce(introduction));
        let mut tries = Tries { last: "it has no address".into(), refusal: None };
        let mut pause = TRY_EVERY.0;
        loop {
            let sockets = resolve(address, deadline)?;
            let is_only = sockets.len() == 1;
            for socket in sockets {
                let connected_by =
                    if is_only { deadline } else { deadline.min(Instant::now() + CONNECT_MAX) };
                match join_at(socket, address, &introduction, &terms, (connected_by, deadline)) {
                    Ok(membership) => return Ok(membership),
                    Err(failure) => tries.note(socket, failure)?,
                }
            }
            if Instant::now() + TRY_EVERY.0 >= deadline {
                return Err(RendezvousError::Timeout {
                    address: address.into(),
                    waited: timeout,
                    last: tries.last,
                    answered: tries.refusal.is_some(),
                });
            }
            // There is one more try before the deadline.
            std::thread::sleep(pause.min(deadline - TRY_EVERY.0 - Instant::now()).max(TRY_EVERY.0));
            pause = if tries.refusal.is_some() { (2 * pause).min(TRY_EVERY.1) } else { TRY_EVERY.0 };
        }
    }

    /// Its name.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// Returns the rank of this member within its role.
    pub fn role_rank(&self) -> u32 {
        self.role_rank
    }

    /// Returns the number of members that had this rank within this role before.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// True if a member that had this rank within this role before has announced addresses.
    pub fn was_up(&self) -> bool {
        self.was_up
    }

    /// The epoch of this incarnation of the job.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the members that are in, as far as this member was told.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// This host's address as rank 0 sees it: a good one to listen at.
    pub fn local_address(&self) -> Result<SocketAddr, RendezvousError> {
        let failed = |source| ChannelError::System { operation: "ask for the own address", source };
        self.channel.local_address().map_err(failed).map_err(|source| self.failed(source))
    }

    /// Moves everything on without waiting, and takes the next event. An error means that rank 0 is lost.
    pub fn poll(&mut self) -> Result<Option<MemberEvent>, RendezvousError> {
        let Some(bytes) = self.channel.poll().map_err(|source| self.failed(source))? else {
            return Ok(None);
        };
        match decode(&bytes) {
            Some(FromHub::Say(message)) => Ok(Some(MemberEvent::Said(message))),
            Some(FromHub::Members(members)) => {
                self.members = members;
                Ok(Some(MemberEvent::Members))
            }
            Some(FromHub::Welcome { .. } | FromHub::Refuse { .. }) | None => {
                let reason = "it said what is no message, or out of turn";
                Err(RendezvousError::Protocol { address: self.address.clone(), reason })
            }
        }
    }

    /// Has the system wait for so long, and for 3 to 15 s, for a rank 0 that is silent.
    pub fn allow_silence(&self, silence: Duration) {
        if let Err(error) = allow_silence(&self.channel, silence) {
            tracing::warn!(%error, "a rank 0 that is silent for seconds will be taken for gone");
        }
    }

    /// Waits until there is something to do or `wake` is readable, at most `timeout`.
    pub fn wait(&self, timeout: Duration, wake: BorrowedFd<'_>) {
        wait(&self.channel, timeout, Some(wake));
    }

    /// Tells all members where this member is reached from now on, and the UUID of the GPU that it serves payloads
    /// from, if they are on one.
    pub fn announce(
        &mut self,
        addresses: Vec<Address>,
        gpu: Option<[u8; 16]>,
    ) -> Result<(), RendezvousError> {
        if addresses.len() > super::MAX_ADDRESSES {
            let (length, limit) = (addresses.len(), super::MAX_ADDRESSES);
            return Err(RendezvousError::TooLong { what: "the list of addresses", length, limit });
        }
        self.send(&ToHub::Announce(addresses, gpu))
    }

    /// Says something to rank 0, at most [`MAX_MESSAGE_BYTES`].
    pub fn say(&mut self, message: &[u8]) -> Result<(), RendezvousError> {
        if message.len() > MAX_MESSAGE_BYTES {
            let (length, limit) = (message.len(), MAX_MESSAGE_BYTES);
            return Err(RendezvousError::TooLong { what: "a message", length, limit });
        }
        self.send(&ToHub::Say(message.to_vec()))
    }

    /// True if everything that was said is on its way.
    pub fn is_flushed(&self) -> bool {
        self.channel.is_flushed()
    }

    fn send(&mut self, message: &ToHub) -> Result<(), RendezvousError> {
        self.channel.send(&encode(message)).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: ChannelError) -> RendezvousError {
        RendezvousError::Channel { address: self.address.clone(), source }
    }
}

impl Drop for Membership {
    /// The membership ends here, though a forked child may hold a copy of the descriptor.
    fn drop(&mut self) {
        if !self.guard.is_inherited() {
            let _gone = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Both);
        }
    }
}

enum JoinFailure {
    /// Trying again would not help.
    Final(RendezvousError),
    /// It might.
    Passing(String),
    /// It might, once a rank becomes free.
    Full(String),
    /// Nothing came in time.
    Unanswered,
}

/// The outcomes of the attempts to join.
struct Tries {
    /// The outcome of the last attempt that tells a cause.
    last: String,
    /// The last refusal, and the address at which rank 0 listens.
    refusal: Option<(SocketAddr, String)>,
}

impl Tries {
    /// Notes how a try at one of the addresses failed; an error is final.
    fn note(&mut self, socket: SocketAddr, failure: JoinFailure) -> Result<(), RendezvousError> {
        match (failure, &self.refusal) {
            (JoinFailure::Final(error), _) => return Err(error),
            (JoinFailure::Full(why), _) => {
                self.last.clone_from(&why);
                self.refusal = Some((socket, why));
            }
            // Rank 0 need not listen at its other addresses.
            (_, Some((refused_at, _))) if *refused_at != socket => {}
            // The deadline has cut this try short: an answer to one before says more.
            (JoinFailure::Unanswered, Some(_)) => {}
            (JoinFailure::Passing(_), Some((_, why))) => {
                self.last = format!("it refused until it was gone: {why}");
            }
            (JoinFailure::Unanswered, None) => self.last = "it does not answer".into(),
            (JoinFailure::Passing(why), None) => self.last = why,
        }
        Ok(())
    }
}

/// Joins at one address: it is to be connected by the first time, and answered by the second.
fn join_at(
    socket: SocketAddr,
    address: &str,
    introduction: &[u8],
    terms: &ChannelTerms,
    (connected_by, answered_by): (Instant, Instant),
) -> Result<Membership, JoinFailure> {
    let failure = |source: ChannelError| match source {
        ChannelError::System { .. } | ChannelError::Closed { .. } => JoinFailure::Passing(source.to_string()),
        source => JoinFailure::Final(RendezvousError::Channel { address: address.into(), source }),
    };
    let mut channel = Channel::connect(socket, terms).map_err(failure)?;
    channel.send(introduction).map_err(failure)?;
    let answer = loop {
        if let Some(answer) = channel.poll().map_err(failure)? {
            break answer;
        }
        let deadline = if channel.is_open() { answered_by } else { connected_by };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(JoinFailure::Unanswered);
        }
        wait(&channel, left, None);
    };
    match decode(&answer) {
        Some(FromHub::Welcome { id, role_rank, generation, was_up, epoch }) => {
            let address = address.to_owned();
            let (members, guard) = (Vec::new(), ForkGuard::new());
            Ok(Membership { channel, address, id, role_rank, generation, was_up, epoch, members, guard })
        }
        Some(FromHub::Refuse { reason, again: true }) => Err(JoinFailure::Full(reason)),
        Some(FromHub::Refuse { reason, again: false }) => {
            Err(JoinFailure::Final(RendezvousError::Refused { address: address.into(), reason }))
        }
        _ => {
            let reason = "it did not welcome this process";
            Err(JoinFailure::Final(RendezvousError::Protocol { address: address.into(), reason }))
        }
    }
}

fn wait(channel: &Channel, timeout: Duration, wake: Option<BorrowedFd<'_>>) {
    let flags = if channel.waits_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    // A channel that is not connected yet may have to be dialled again.
    let timeout = if channel.is_open() { timeout } else { timeout.min(Duration::from_millis(20)) };
    let timeout = rustix::time::Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let socket = PollFd::new(channel, flags);
    // Without a descriptor that wakes, the socket stands for both.
    let wake = wake.map_or_else(|| socket.clone(), |wake| PollFd::from_borrowed_fd(wake, PollFlags::IN));
    let mut sockets = [socket, wake];
    // Interrupted or refused, it is only a shorter wait.
    let _ready = rustix::event::poll(&mut sockets, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::{Host, Hub, HubEvent, HubOptions, MemberRole};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn rank_0_is_gone_only_where_the_address_at_which_it_refused_fails() {
        let [other, own]: [SocketAddr; 2] = ["[::1]:7", "127.0.0.1:7"].map(|socket| socket.parse().unwrap());
        let closed = || JoinFailure::Passing("connection refused".into());
        let mut tries = Tries { last: String::new(), refusal: None };
        let mut last = |socket, failure| {
            tries.note(socket, failure).unwrap();
            tries.last.clone()
        };
        assert_eq!(last(other, closed()), "connection refused");
        assert_eq!(last(own, JoinFailure::Full("it is full".into())), "it is full");
        assert_eq!(last(other, closed()), "it is full");
        assert_eq!(last(own, JoinFailure::Unanswered), "it is full");
        assert_eq!(last(own, closed()), "it refused until it was gone: it is full");
        assert_eq!(last(other, JoinFailure::Unanswered), "it refused until it was gone: it is full");
    }

    #[test]
    fn a_process_that_waits_for_its_welcome_does_not_spin() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let terms = ChannelTerms::new(Purpose::Rendezvous);
        let mut channel = Channel::connect(silent.local_addr().unwrap(), &terms).unwrap();
        channel.send(b"an introduction").unwrap();
        let deadline = Instant::now() + PATIENCE;
        while channel.waits_to_send() {
            assert!(channel.poll().unwrap().is_none() && Instant::now() < deadline);
        }
        let begun = Instant::now();
        wait(&channel, Duration::from_millis(50), None);
        assert!(begun.elapsed() >= Duration::from_millis(20), "it looked again at once");
    }

    #[test]
    fn a_membership_ends_with_its_owner_though_its_descriptor_is_held_elsewhere() {
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let address = hub.address().to_string();
        let introduction = Introduction::new(MemberRole::Worker, Host::own());
        let joining =
            std::thread::spawn(move || Membership::join(&address, introduction, None, PATIENCE).unwrap());
        let deadline = Instant::now() + PATIENCE;
        let mut wait_for = |is_it: fn(&HubEvent) -> bool| {
            while !hub.poll().is_some_and(|event| is_it(&event)) {
                assert!(Instant::now() < deadline, "it did not come");
                hub.wait(Duration::from_millis(5));
            }
        };
        wait_for(|event| matches!(event, HubEvent::Joined(_)));
        let membership = joining.join().unwrap();
        // As a forked child holds it.
        let _copy = rustix::io::dup(&membership.channel).unwrap();
        drop(membership);
        wait_for(|event| matches!(event, HubEvent::Left { .. }));
    }
}
