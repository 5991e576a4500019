//! Meeting: every pair of members makes one connection, and each grants the other an inbox over it.

use std::task::Poll;

use super::heartbeat::GroupHeartbeat;
use super::peer::GroupPeer;
use super::{GroupError, GroupMember, GroupMemory, GroupOptions};
use crate::diagnostic::Diagnostic;
use crate::mem::Access;
use crate::node::Error;
use crate::node::runtime::{Runtime, complete};
use crate::node::wait::{WaitTurn, wait};
use crate::param::{GroupHello, GroupInbox, GroupLayout, GroupOutbox, MAX_MEMBERS};
use crate::time::{Duration, Instant, Silence};
use crate::transport::{Address, ConnectError, Connecting, Endpoint, Incoming, Listener, Offer, Transport};

/// Shortest and longest pause between two attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Period at which a member that was met is asked whether it is still there: asking may cost system calls.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A member that listens, and has not met the others yet.
pub struct GroupListener<T: Transport> {
    transport: T,
    runtime: Runtime,
    listener: T::Listener,
    terms: GroupHello,
    lease: Duration,
    heartbeat: GroupHeartbeat,
    peers: Vec<Option<GroupPeer<T::Endpoint>>>,
    memory: GroupMemory,
}

type IncomingOf<T> = <<T as Transport>::Listener as Listener>::Incoming;

/// By rank: the connection whose peer says that it is that member.
type Claims<T> = Vec<Option<RankClaim<IncomingOf<T>>>>;

/// A connection whose peer claims a rank. A member's process may have been started again while no member has
/// noticed yet that the old one is gone; over a network that takes seconds. So a peer that claims a rank which is
/// taken waits for a lease.
struct RankClaim<I> {
    incoming: I,
    /// The time that it has waited while this member listened.
    wait: Silence,
    /// The heartbeat of the peer that has the rank, at the time of the claim.
    beat: u64,
}

/// A member that is dialled.
struct Dial<T: Transport> {
    rank: usize,
    connecting: Option<T::Connecting>,
    /// The memory to grant to the other member. It takes long to register, so it is kept over all attempts until one
    /// has reached a process.
    inbox: Option<GroupInbox>,
    again_at: Instant,
    pause: Duration,
}

fn option_error(option: &'static str, value: impl ToString, reason: &'static str) -> Error {
    Error::Option { option, value: value.to_string(), reason }
}

impl<T: Transport> GroupListener<T> {
    pub(super) fn new(
        transport: T,
        address: &Address,
        rank: usize,
        members: usize,
        elements: usize,
        options: GroupOptions,
    ) -> Result<Self, Error> {
        if members == 0 || members > MAX_MEMBERS {
            return Err(option_error("members", members, "a group has 1 to 512 members"));
        }
        if rank >= members {
            return Err(option_error(
                "rank",
                rank,
                "ranks count from 0 and are less than the number of members",
            ));
        }
        let layout = GroupLayout { elements: elements as u64 };
        if !(1..=GroupLayout::ELEMENTS_MAX).contains(&layout.elements) {
            return Err(option_error("elements", elements, "there must be one, and at most 2^40"));
        }
        if options.lease.is_zero() {
            return Err(option_error(
                "lease",
                "0",
                "every member would be taken for dead; three seconds are usual",
            ));
        }
        #[cfg(feature = "cuda")]
        if transport.gpu().is_some() {
            super::on_gpu::check(members, options.checksums)?;
        }
        let terms = GroupHello {
            run: options.run,
            rank: rank as u16,
            members: members as u16,
            layout,
            lease_ns: u64::try_from(options.lease.as_nanos()).unwrap_or(u64::MAX),
            checksums: options.checksums,
        };
        // Before any other member counts on this one.
        let memory = GroupMemory::new(&transport, layout, members)?;
        let listener = transport.listen(address)?;
        let runtime = Runtime::of(&transport);
        let heartbeat = GroupHeartbeat::new(&runtime, options.lease)?;
        tracing::info!(address = %listener.address(), rank, members, elements, "listening for a group");
        let peers = (0..members).map(|_| None).collect();
        let lease = options.lease;
        Ok(GroupListener { transport, runtime, listener, terms, lease, heartbeat, peers, memory })
    }

    /// Returns the address at which the others reach this member.
    pub fn address(&self) -> Address {
        self.listener.address()
    }

    /// Meets the others within `timeout`. `addresses` are the addresses of all members, in order of rank. The members
    /// may start in any order. A peer that does not belong to the group is refused and told why.
    ///
    /// # Errors
    /// [`Error::Option`]: there are more or fewer addresses than members. [`GroupError::Absent`]: members were not
    /// there within `timeout`. [`GroupError::Foreign`]: another process, or a member with other settings, answers at an
    /// address. [`Error::Connect`], [`Error::Handshake`], [`Error::Register`]: a connection, or memory for it, could
    /// not be had.
    pub fn connect(self, addresses: &[Address], timeout: Duration) -> Result<GroupMember<T>, Error> {
        self.connect_or(addresses, timeout, |_| None)
    }

    /// The same; `instead` is asked for another address where a connection could not be made.
    pub(crate) fn connect_or(
        mut self,
        addresses: &[Address],
        timeout: Duration,
        mut instead: impl FnMut(&ConnectError) -> Option<Address>,
    ) -> Result<GroupMember<T>, Error> {
        let (rank, members) = (usize::from(self.terms.rank), self.peers.len());
        if addresses.len() != members {
            return Err(option_error(
                "addresses",
                addresses.len(),
                "give one for each member, in order of rank",
            ));
        }
        // Of each pair the one of the higher rank dials.
        let begun = self.runtime.now();
        let dial = |rank| Dial { rank, connecting: None, inbox: None, again_at: begun, pause: RETRY.0 };
        let mut claims: Claims<T> = (0..members).map(|_| None).collect();
        let mut dials: Vec<Dial<T>> = (0..rank).map(dial).collect();
        let mut addresses = addresses.to_vec();
        let mut last = None;
        let deadline = begun + timeout;
        let runtime = self.runtime.clone();
        let met = wait(&runtime, deadline, |now| {
            while let Some(incoming) = self.listener.poll(now) {
                self.greet(incoming, &mut claims, now)?;
            }
            for (rank, claimant) in claims.iter_mut().enumerate() {
                self.settle(rank, claimant, now)?;
            }
            for dial in &mut dials {
                if let Err(error) = self.dial(dial, &addresses[dial.rank], now) {
                    if let Error::Connect(error) = &error
                        && let Some(other) = instead(error)
                    {
                        addresses[dial.rank] = other;
                        (dial.connecting, dial.again_at) = (None, now);
                        continue;
                    }
                    // Maybe no process listens there yet, or a process that is about to end; or no path leads from
                    // there to here.
                    let told = error.retry_after();
                    if !matches!(
                        &error,
                        Error::Connect(ConnectError::System { .. } | ConnectError::Closed { .. })
                    ) && told.is_none()
                    {
                        return Err(error);
                    }
                    last = Some(error.to_string());
                    (dial.connecting, dial.again_at) = (None, now + dial.pause.max(told.unwrap_or_default()));
                    dial.pause = (dial.pause * 2).min(RETRY.1);
                }
            }
            let is_complete = self.absent().next().is_none();
            Ok(match is_complete && (now >= deadline || claims.iter().all(Option::is_none)) {
                true => WaitTurn::Done(()),
                false => WaitTurn::Idle,
            })
        });
        match complete(met)? {
            Some(()) => self.finish(claims),
            None => {
                let held_up = || dials.iter().find_map(|dial| dial.connecting.as_ref()?.held_up());
                let last = last.or_else(|| Some(held_up()?.to_string()));
                Err(GroupError::Absent { ranks: self.absent().collect(), waited: timeout, last }.into())
            }
        }
    }

    /// The ranks of the other members that have not been met.
    fn absent(&self) -> impl Iterator<Item = usize> + '_ {
        let own = usize::from(self.terms.rank);
        (0..self.peers.len()).filter(move |rank| *rank != own && self.peers[*rank].is_none())
    }

    fn finish(self, claims: Claims<T>) -> Result<GroupMember<T>, Error> {
        for (rank, claim) in claims.into_iter().enumerate() {
            if let Some(claim) = claim {
                turn_away(claim.incoming, &taken(rank));
            }
        }
        tracing::info!(rank = self.terms.rank, members = self.terms.members, "the group is complete");
        Ok(GroupMember::assemble(
            self.runtime,
            self.listener,
            self.terms,
            self.lease,
            self.heartbeat,
            self.peers,
            self.memory,
        ))
    }

    fn inbox(&self) -> Result<GroupInbox, Error> {
        let layout = self.terms.layout;
        let page = self.transport.allocate(GroupLayout::PAGE_BYTES, Access::REMOTE_WRITE)?;
        // Not relaxed: parts come after the odd sequence on the page that warns of them.
        let areas = self.transport.allocate(2 * layout.area_bytes(), Access::REMOTE_WRITE)?;
        Ok(GroupInbox::new(page, areas, layout))
    }

    fn offer(&self, inbox: &GroupInbox) -> Offer {
        Offer { message: self.terms.encode(), grants: inbox.grants() }
    }

    /// Takes a member in, has it wait for its rank, or refuses a peer that does not belong to the group.
    fn greet(&mut self, incoming: IncomingOf<T>, claims: &mut Claims<T>, now: Instant) -> Result<(), Error> {
        let rank = match self.judge(&incoming) {
            Ok(theirs) => usize::from(theirs.rank),
            Err(reason) => {
                turn_away(incoming, &reason);
                return Ok(());
            }
        };
        let claimant = &mut claims[rank];
        self.settle(rank, claimant, now)?;
        let beat = self.peers[rank].as_ref().map_or(0, |peer| peer.inbox.heartbeat());
        let claim = RankClaim { incoming, wait: Silence::default(), beat };
        if let Some(older) = claimant.replace(claim) {
            turn_away(older.incoming, &taken(rank));
        }
        self.settle(rank, claimant, now)
    }

    /// Gives a rank to the peer that claims it, unless another peer has it and is alive. Whether that other peer is
    /// alive shows within a lease: its connection ends, or its heart beats, or its heart does not beat.
    fn settle(
        &mut self,
        rank: usize,
        claimant: &mut Option<RankClaim<IncomingOf<T>>>,
        now: Instant,
    ) -> Result<(), Error> {
        let Some(claim) = claimant else { return Ok(()) };
        let is_over = claim.wait.observe(now, 0, self.lease);
        let stands = self.peers[rank].as_mut().is_some_and(|peer| {
            let is_connected = peer.endpoint.as_mut().is_some_and(|endpoint| endpoint.check().is_ok());
            is_connected && (!is_over || peer.inbox.heartbeat() != claim.beat)
        });
        if stands && !is_over {
            return Ok(());
        }
        let Some(RankClaim { incoming, .. }) = claimant.take() else { return Ok(()) };
        if stands {
            turn_away(incoming, &taken(rank));
            return Ok(());
        }
        self.peers[rank] = None;
        self.admit(rank, incoming)
    }

    fn admit(&mut self, rank: usize, incoming: IncomingOf<T>) -> Result<(), Error> {
        let outbox = GroupOutbox::new(&incoming.received().grants, self.terms.layout)?;
        let inbox = self.inbox()?;
        match incoming.accept(self.offer(&inbox)) {
            Ok(endpoint) => self.take_in(rank, endpoint, inbox, outbox),
            Err(error) => {
                tracing::warn!(%error, rank, "a member went away during its handshake");
                Ok(())
            }
        }
    }

    /// Returns the hello of a peer that is waited for, or the reason why the peer is no such member.
    fn judge(&self, incoming: &IncomingOf<T>) -> Result<GroupHello, String> {
        if incoming.reads_only() {
            return Err("its secret opens reading only: give it the secret of the job".into());
        }
        let received = incoming.received();
        let theirs =
            GroupHello::decode(&received.message, &received.grants).map_err(|error| error.to_string())?;
        if let Some(difference) = self.terms.differs_from(&theirs) {
            return Err(difference);
        }
        if theirs.rank < self.terms.rank {
            return Err(format!("member {} is dialled by member {}", theirs.rank, self.terms.rank));
        }
        Ok(theirs)
    }

    /// Moves the connection to one member on. A member that ends before the group is complete is dialled again: it may
    /// be started again.
    fn dial(&mut self, dial: &mut Dial<T>, address: &Address, now: Instant) -> Result<(), Error> {
        if self.peers[dial.rank].is_some() {
            if now < dial.again_at {
                return Ok(());
            }
            dial.again_at = now + LOOK_EVERY;
            if !self.has_ended(dial) {
                return Ok(());
            }
        }
        if dial.connecting.is_none() && now >= dial.again_at {
            let inbox = match dial.inbox.take() {
                Some(inbox) => inbox,
                None => self.inbox()?,
            };
            let offer = self.offer(&inbox);
            dial.inbox = Some(inbox);
            dial.connecting = Some(self.transport.connect(address, offer)?);
        }
        let Some(connecting) = &mut dial.connecting else { return Ok(()) };
        let is_reached = connecting.is_accepted();
        let Poll::Ready(connected) = connecting.poll(now) else { return Ok(()) };
        dial.connecting = None;
        // A process that was reached may know the granted memory.
        let inbox = if is_reached || connected.is_ok() { dial.inbox.take() } else { None };
        let (endpoint, received) = connected?;
        let Some(inbox) = inbox else { return Ok(()) };
        let foreign = |reason| GroupError::Foreign { address: address.clone(), reason };
        let theirs = GroupHello::decode(&received.message, &received.grants)
            .map_err(|source| Error::Handshake { address: address.clone(), source })?;
        if let Some(difference) = self.terms.differs_from(&theirs) {
            return Err(foreign(difference).into());
        }
        if usize::from(theirs.rank) != dial.rank {
            let reason = format!(
                "its rank is {}, not {}: give the addresses in order of rank",
                theirs.rank, dial.rank
            );
            return Err(foreign(reason).into());
        }
        let outbox = GroupOutbox::new(&received.grants, self.terms.layout)?;
        self.take_in(dial.rank, endpoint, inbox, outbox)
    }

    /// True if a member that was met is there no more. It is forgotten then, unless it has said that it leaves: then
    /// the group was complete for it.
    fn has_ended(&mut self, dial: &mut Dial<T>) -> bool {
        let peer = self.peers[dial.rank].as_mut().filter(|peer| !peer.inbox.has_left());
        let endpoint = peer.and_then(|peer| peer.endpoint.as_mut());
        let Some(Err(error)) = endpoint.map(Endpoint::check) else { return false };
        tracing::warn!(%error, rank = dial.rank, "a member ended before the group was complete");
        (self.peers[dial.rank], dial.pause) = (None, RETRY.0);
        true
    }

    fn take_in(
        &mut self,
        rank: usize,
        mut endpoint: T::Endpoint,
        inbox: GroupInbox,
        outbox: GroupOutbox,
    ) -> Result<(), Error> {
        endpoint.allow_silence(self.lease);
        match endpoint.heartbeat_word(&outbox.heartbeat()?) {
            Ok(heartbeat_word) => {
                tracing::debug!(rank, transport = endpoint.transport(), "met a member");
                self.heartbeat.add(heartbeat_word);
                self.peers[rank] = Some(GroupPeer::new(endpoint, inbox, outbox));
            }
            Err(error) => {
                tracing::warn!(%error, rank, "a member went away, or granted memory that cannot be written")
            }
        }
        Ok(())
    }
}

fn taken(rank: usize) -> String {
    format!("rank {rank} is taken: give each member a rank of its own")
}

fn turn_away(incoming: impl Incoming, reason: &str) {
    tracing::warn!(reason, "refused a peer");
    incoming.refuse(reason.into());
}
