//! Rank 0's side of the meeting.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::wire::{FromHub, LIMIT, ToHub, decode, encode};
use super::{Introduction, MAX_MEMBERS, Member, MemberId, MemberRole, RendezvousError};
use crate::channel::{Channel, ChannelError, ChannelTerms, Identity, Purpose, Secret, allow_silence, listen};
use crate::mem::ForkGuard;
use crate::node::now;
use crate::transport::wireup::{Newcomer, Newcomers, accept};

/// Changes of the list of members are told at most so often: a job of a thousand joins at once.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// The longest wait while the system gives no descriptors for connections.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Settings of a hub.
#[derive(Clone, Debug, Default)]
pub struct HubOptions {
    /// The secret that all processes of the job know. Without one only loopback is let in.
    pub secret: Option<Secret>,
    /// The number of ranks of each role; members of a role that is not listed may fill the job.
    pub ranks: Vec<(MemberRole, u32)>,
    /// A member may be silent for so long, and for 3 to 15 s, before the system takes it for gone.
    pub silence: Duration,
}

/// Events at the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubEvent {
    /// A process is in.
    Joined(Member),
    /// A member told where it is reached, or that this has changed.
    Announced(Member),
    /// A member said something.
    Said(MemberId, Vec<u8>),
    /// A member is gone.
    Left {
        /// The member.
        member: Member,
        /// The reason, for people.
        reason: String,
    },
}

/// The rendezvous of a job. Driven by [`poll`](Self::poll), which never waits.
///
/// Unauthenticated connections cost little: a poll accepts at most [`MAX_PENDING_HANDSHAKES`], as many are greeted at a
/// time, each for at most [`HANDSHAKE_TIMEOUT`]. If there are more, a connection that has sent the least is dropped:
/// the new one itself, if it alone has sent nothing.
///
/// [`MAX_PENDING_HANDSHAKES`]: crate::transport::MAX_PENDING_HANDSHAKES
/// [`HANDSHAKE_TIMEOUT`]: crate::transport::HANDSHAKE_TIMEOUT
pub struct Hub {
    listener: TcpListener,
    address: SocketAddr,
    options: HubOptions,
    epoch: u64,
    newcomers: Newcomers<PendingProcess>,
    inside: Vec<Inside>,
    events: VecDeque<HubEvent>,
    /// All members were listened to since `poll` last returned nothing.
    has_looked: bool,
    /// No member had anything to say then.
    is_dry: bool,
    /// Number of times that each rank within a role was taken, and whether one of its members has announced addresses.
    generations: HashMap<(MemberRole, u32), (u64, bool)>,
    ids: u64,
    changed: bool,
    told: Option<Instant>,
    guard: ForkGuard,
}

/// A process that has not introduced itself.
struct PendingProcess(Channel);

impl Newcomer for PendingProcess {
    type Said = Introduction;

    fn hear(&mut self) -> Result<Option<Introduction>, String> {
        let Some(bytes) = self.0.poll().map_err(|error| error.to_string())? else { return Ok(None) };
        match decode(&bytes) {
            Some(ToHub::Introduce(introduction)) => Ok(Some(introduction)),
            _ => Err("it did not introduce itself".to_owned()),
        }
    }

    fn messages(&self) -> u8 {
        self.0.greetings()
    }
}

struct Inside {
    channel: Channel,
    member: Member,
    /// The reason for which the member is to go.
    failed: Option<String>,
    /// It is still to be told the list of members.
    is_stale: bool,
}

impl Inside {
    /// Ends the connection, though a forked child may hold a copy of the descriptor.
    fn end(&self) {
        let _gone = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Write);
    }
}

impl Hub {
    /// Begins to listen; port 0 takes any that is free.
    pub fn listen(address: SocketAddr, options: HubOptions) -> Result<Hub, RendezvousError> {
        let failed = |source| RendezvousError::Listen { address, source };
        if options.secret.is_none() && !address.ip().to_canonical().is_loopback() {
            return Err(RendezvousError::NeedsSecret { address });
        }
        let listener = listen(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(|error| failed(io::Error::other(error.to_string())))?;
        tracing::info!(%address, secret = options.secret.is_some(), "rendezvous is open");
        Ok(Hub {
            listener,
            address,
            options,
            epoch: u64::from_le_bytes(epoch).max(1),
            newcomers: Newcomers::default(),
            inside: Vec::new(),
            events: VecDeque::new(),
            has_looked: false,
            is_dry: true,
            generations: HashMap::new(),
            ids: 0,
            changed: false,
            told: None,
            guard: ForkGuard::new(),
        })
    }

    /// Returns the address at which the hub listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The epoch of this incarnation of the job: a random number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the members that are in.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.inside.iter().filter(|inside| inside.failed.is_none()).map(|inside| &inside.member)
    }

    /// Returns the number of connections that were refused so far.
    pub fn refused(&self) -> u64 {
        self.newcomers.refused()
    }

    /// Drives all connections without waiting, and takes the next event. It returns `None` once it has read each member
    /// once, even if more bytes wait: members that send without pause do not hold the caller.
    pub fn poll(&mut self) -> Option<HubEvent> {
        if self.events.is_empty() && !self.has_looked {
            self.has_looked = true;
            self.greet();
            self.hear();
            self.tell();
            self.is_dry = self.events.is_empty();
        }
        let event = self.events.pop_front();
        if event.is_none() {
            self.has_looked = false;
        }
        event
    }

    /// Waits until there is something to do, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        // A member that has said something may have said more: its socket is empty then.
        if !self.events.is_empty() || !self.is_dry {
            return;
        }
        let mut sockets = Vec::with_capacity(1 + self.newcomers.iter().len() + self.inside.len());
        // Of a socket that cannot be accepted from there is nothing to be heard but that.
        let cannot_accept = self.newcomers.cannot_accept();
        sockets.extend((!cannot_accept).then(|| PollFd::new(&self.listener, PollFlags::IN)));
        let unauthenticated_peers = self.newcomers.iter().map(|PendingProcess(channel)| channel);
        let channels = unauthenticated_peers.chain(self.inside.iter().map(|inside| &inside.channel));
        sockets.extend(channels.map(|channel| PollFd::from_borrowed_fd(channel.as_fd(), interest(channel))));
        let timeout = if self.changed { timeout.min(TELL_EVERY) } else { timeout };
        let timeout = if cannot_accept { timeout.min(ACCEPT_AGAIN) } else { timeout };
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // Interrupted or refused, it is only a shorter wait.
        let _ready = rustix::event::poll(&mut sockets, Some(&timeout));
    }

    /// Accepts connections, and admits the processes that have introduced themselves.
    fn greet(&mut self) {
        let (address, now) = (self.address, now());
        let identity = Identity { role: 0, rank: Some(0), epoch: self.epoch };
        let secret = self.options.secret.clone();
        let terms = ChannelTerms { secret, identity, limit: LIMIT, ..ChannelTerms::new(Purpose::Rendezvous) };
        self.newcomers.admit(&address, now, || Ok(accept(&self.listener, &terms)?.map(PendingProcess)));
        while let Some((PendingProcess(channel), introduction)) = self.newcomers.next(&address, now) {
            self.admit(channel, introduction);
        }
    }

    fn admit(&mut self, mut channel: Channel, introduction: Introduction) {
        let role_rank = match self.role_rank(&introduction) {
            Ok(role_rank) => role_rank,
            Err((reason, again)) => {
                self.newcomers.refuse(&self.address, &reason);
                // A fresh connection has room for it; if the peer is gone, it does not need to know.
                let _unheard = channel.send(&encode(&FromHub::Refuse { reason, again }));
                return;
            }
        };
        let Introduction { role, rank, host, process, .. } = introduction;
        let (next, was_up) = self.generations.entry((role, role_rank)).or_default();
        let (generation, was_up) = (*next, *was_up);
        *next += 1;
        self.ids += 1;
        let id = MemberId(self.ids);
        let member =
            Member { id, role, role_rank, generation, rank, host, process, addresses: Vec::new(), gpu: None };
        let welcome = FromHub::Welcome { id, role_rank, generation, was_up, epoch: self.epoch };
        if channel.send(&encode(&welcome)).is_ok() {
            tracing::info!(%role, role_rank, generation, host = %member.host, process, "joined");
            if let Err(error) = allow_silence(&channel, self.options.silence) {
                tracing::warn!(%error, "a member that is silent for seconds will be taken for gone");
            }
            self.inside.push(Inside { channel, member: member.clone(), failed: None, is_stale: false });
            self.events.push_back(HubEvent::Joined(member));
            self.changed = true;
        }
    }

    /// The rank within its role that a newcomer gets, or why it gets none and whether that can change.
    fn role_rank(&self, introduction: &Introduction) -> Result<u32, (String, bool)> {
        let role = introduction.role;
        let limit = self.options.ranks.iter().find(|(listed, _)| *listed == role).map(|(_, count)| *count);
        let holder =
            |role_rank| self.members().find(|member| member.role == role && member.role_rank == role_rank);
        if self.inside.len() >= MAX_MEMBERS {
            return Err((format!("the job is full: {MAX_MEMBERS} members"), true));
        }
        let lowest_free = || {
            let taken: HashSet<u32> =
                self.members().filter(|member| member.role == role).map(|member| member.role_rank).collect();
            (0..).find(|role_rank| !taken.contains(role_rank)).unwrap_or(u32::MAX)
        };
        let role_rank = introduction.role_rank.unwrap_or_else(lowest_free);
        if limit.is_some_and(|limit| role_rank >= limit) {
            // The loss of a member may not have been noticed yet.
            let again = introduction.role_rank.is_none();
            return Err((format!("the job has ranks for {} {role}s", limit.unwrap_or(0)), again));
        }
        match holder(role_rank) {
            Some(member) => {
                let (host, process) = (&member.host, member.process);
                Err((format!("{role} {role_rank} is there already: process {process} on {host}"), true))
            }
            None => Ok(role_rank),
        }
    }

    fn hear(&mut self) {
        for inside in &mut self.inside {
            if inside.failed.is_some() {
                continue;
            }
            match inside.channel.poll() {
                Ok(None) => {}
                Ok(Some(bytes)) => match decode(&bytes) {
                    Some(ToHub::Say(message)) => {
                        self.events.push_back(HubEvent::Said(inside.member.id, message));
                    }
                    Some(ToHub::Announce(addresses, gpu)) => {
                        let member = &mut inside.member;
                        let is_up = !addresses.is_empty();
                        (member.addresses, member.gpu) = (addresses, gpu);
                        let known = self.generations.get_mut(&(member.role, member.role_rank));
                        known.into_iter().for_each(|(_, was_up)| *was_up |= is_up);
                        self.events.push_back(HubEvent::Announced(inside.member.clone()));
                        self.changed = true;
                    }
                    Some(ToHub::Introduce(_)) | None => {
                        inside.failed = Some("it said what is no message, or out of turn".into());
                    }
                },
                Err(ChannelError::Closed { .. }) => inside.failed = Some("its connection was closed".into()),
                Err(error) => inside.failed = Some(error.to_string()),
            }
        }
        self.let_go();
    }

    fn let_go(&mut self) {
        let (events, changed) = (&mut self.events, &mut self.changed);
        self.inside.retain_mut(|inside| {
            let Some(reason) = inside.failed.take() else { return true };
            tracing::info!(role = %inside.member.role, role_rank = inside.member.role_rank, reason, "left");
            events.push_back(HubEvent::Left { member: inside.member.clone(), reason });
            *changed = true;
            inside.end();
            false
        });
    }

    /// Sends the list of members to all of them. A member that has not received the last list yet gets the newest one
    /// later: lists do not pile up for a process that reads nothing.
    fn tell(&mut self) {
        if self.changed && self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.changed = false;
            self.told = Some(Instant::now());
            self.inside.iter_mut().for_each(|inside| inside.is_stale = true);
        }
        let is_due = |inside: &Inside| inside.is_stale && inside.channel.is_flushed();
        if !self.inside.iter().any(is_due) {
            return;
        }
        let members: Vec<Member> = self.members().cloned().collect();
        let message = encode(&FromHub::Members(members));
        for inside in self.inside.iter_mut().filter(|inside| is_due(inside)) {
            inside.is_stale = false;
            if let Err(error) = inside.channel.send(&message) {
                inside.failed = Some(error.to_string());
            }
        }
    }

    /// Sends a message to one member. A member that is gone or does not read leaves with the next events.
    ///
    /// # Panics
    /// If the message is longer than [`MAX_MESSAGE_BYTES`](super::MAX_MESSAGE_BYTES).
    pub fn say(&mut self, to: MemberId, message: &[u8]) {
        assert!(message.len() <= super::MAX_MESSAGE_BYTES, "cut long messages");
        let Some(inside) = self.inside.iter_mut().find(|inside| inside.member.id == to) else { return };
        if let Err(error) = inside.channel.send(&encode(&FromHub::Say(message.to_vec()))) {
            inside.failed = Some(error.to_string());
        }
    }

    /// Bytes that were said to a member and wait to be sent.
    pub fn backlog(&self, member: MemberId) -> usize {
        let inside = self.inside.iter().find(|inside| inside.member.id == member);
        inside.map_or(0, |inside| inside.channel.backlog())
    }

    /// Ends the connection of one member; it leaves with the next events.
    pub fn dismiss(&mut self, member: MemberId) {
        if let Some(inside) = self.inside.iter_mut().find(|inside| inside.member.id == member) {
            inside.failed = Some("it was dismissed".into());
        }
    }

    /// Ends the meeting: sends `message` to every member, also to one that joins meanwhile, and waits until each of
    /// them has closed its connection, at most `timeout`.
    ///
    /// Without that wait a member that is slow to read may lose the message: bytes that are not sent yet are discarded
    /// with the hub, and a socket that is closed with unread input resets its connection.
    ///
    /// # Panics
    /// If the message is longer than [`MAX_MESSAGE_BYTES`](super::MAX_MESSAGE_BYTES).
    pub fn close(mut self, message: &[u8], timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let members: Vec<MemberId> = self.members().map(|member| member.id).collect();
        members.into_iter().for_each(|member| self.say(member, message));
        while !self.inside.is_empty() || self.newcomers.iter().len() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            while let Some(event) = self.poll() {
                if let HubEvent::Joined(member) = event {
                    self.say(member.id, message);
                }
            }
            self.wait(left.min(TELL_EVERY));
        }
    }
}

impl Drop for Hub {
    /// The meeting ends here, and its port is free, though a forked child may hold copies of the descriptors.
    fn drop(&mut self) {
        if self.guard.is_inherited() {
            return;
        }
        let _never_connected = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.inside.iter().for_each(Inside::end);
    }
}

fn interest(channel: &Channel) -> PollFlags {
    if channel.waits_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_port_is_free_when_its_hub_ends_though_its_descriptor_is_held_elsewhere() {
        let hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        // As a forked child holds it.
        let (address, _copy) = (hub.address, hub.listener.try_clone().unwrap());
        drop(hub);
        Hub::listen(address, HubOptions::default()).unwrap();
    }

    #[test]
    fn lists_do_not_pile_up_for_a_member_that_reads_nothing() {
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let address = hub.address.to_string();
        let introduction = Introduction::new(MemberRole::Worker, super::super::Host::own());
        let joining = std::thread::spawn(move || {
            let timeout = Duration::from_secs(60);
            super::super::Membership::join(&address, introduction, None, timeout).unwrap()
        });
        while !joining.is_finished() {
            hub.poll();
            hub.wait(Duration::from_millis(1));
        }
        let _reads_nothing = joining.join().unwrap();
        let list = encode(&FromHub::Members(hub.members().cloned().collect())).len();
        for _ in 0..100_000 {
            (hub.changed, hub.told) = (true, None);
            hub.tell();
        }
        let waits: Vec<usize> = hub.inside.iter().map(|inside| inside.channel.backlog()).collect();
        assert!(
            waits.len() == 1 && waits[0] > 0 && waits[0] < 4 * list,
            "{waits:?} bytes wait of lists of {list}"
        );
    }

    #[test]
    fn a_hub_without_descriptors_waits_and_does_not_spin() {
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let mut waits_to_be_accepted = TcpStream::connect(hub.address()).unwrap();
        // The system keeps a connection to itself that has said nothing.
        waits_to_be_accepted.write_all(b"a hello").unwrap();
        let (address, full) = (hub.address, || Err(io::Error::from_raw_os_error(libc::EMFILE)));
        hub.newcomers.admit(&address, now(), full);
        let begun = std::time::Instant::now();
        hub.wait(Duration::from_millis(30));
        assert!(begun.elapsed() >= Duration::from_millis(30), "nothing can be done about the connection");
        // Descriptors are there again.
        assert!(hub.poll().is_none() && !hub.newcomers.cannot_accept());
    }
}
