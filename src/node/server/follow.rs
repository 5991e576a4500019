//! Several servers of which one decides: the server of shard 0 runs the scheme, and the others make their versions of
//! the same gradients.

use std::collections::{BTreeSet, VecDeque};

use super::{FoldSource, Server, WorkerState};
use crate::clock::Clock;
use crate::mem::Access;
use crate::node::Error;
use crate::node::link::Link;
use crate::node::runtime::complete;
use crate::node::shard::{DisconnectReason, Gone};
use crate::node::wait::retry;
use crate::param::{Decision, DecisionReader, Epoch, FollowError, Followed, PeerHello, PeerRole};
use crate::scheme::{AnyScheme, GradientId, ServerAction, Share};
use crate::time::{Duration, Instant};
use crate::transport::{Address, Disconnected, Endpoint, Transport};

/// Period at which the connection to the decider is asked whether it still stands.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The state of a server for which another one decides.
pub(super) struct Following<E> {
    scheme: String,
    link: Option<Decided<E>>,
    /// The incarnation of the decider and the entry at which this server was when it lost its connection. `None` before
    /// the first connection.
    position: Option<(Epoch, u64)>,
    /// The decider's smallest clock, as of the newest version here.
    clock: Clock,
    /// Sessions of the workers that the decider has let in.
    sessions: BTreeSet<u64>,
    /// Workers that have left with gradients on which the decider may still decide.
    departed: Vec<Departed>,
    /// Decisions that were read and not carried out.
    queue: VecDeque<Decision>,
    /// Shares of the version that is decided next.
    shares: Vec<(u64, u64, f32)>,
}

/// The connection to the decider.
struct Decided<E> {
    endpoint: E,
    follow: DecisionReader,
    address: Address,
    shards: u16,
    checked: Instant,
}

/// A worker that has left, and on whose gradients the decider may still decide. No other peer gets its index meanwhile.
struct Departed {
    peer: u16,
    source: FoldSource,
    /// Its gradients of clocks before this one are whole.
    arrived: Clock,
    /// Its gradients of clocks before this one were consumed when it left.
    consumed: Clock,
    /// Once all decisions up to this look are read, the decider knows its session or never will.
    look: u64,
}

impl<E> Following<E> {
    pub(super) fn new(scheme: &AnyScheme, clock: Clock) -> Following<E> {
        Following {
            scheme: scheme.to_string(),
            link: None,
            position: None,
            clock,
            sessions: BTreeSet::new(),
            departed: Vec::new(),
            queue: VecDeque::new(),
            shares: Vec::new(),
        }
    }
}

impl<T: Transport> Server<T> {
    /// Returns true if another server decides for this one. It serves no peer until [`follow`](Self::follow) has
    /// connected it.
    #[doc(hidden)]
    pub fn follows(&self) -> bool {
        self.following.is_some()
    }

    /// False if another server decides for this one and this one is not connected to it: see [`follow`](Self::follow).
    pub(crate) fn is_following(&self) -> bool {
        self.following.as_ref().is_none_or(|following| following.link.is_some())
    }

    /// The incarnation of the server that decides for this one, once it has followed one.
    #[cfg(feature = "sim")]
    pub(crate) fn decider(&self) -> Option<Epoch> {
        self.following.as_ref()?.position.map(|(epoch, _)| epoch)
    }

    /// Connects this server to the one of shard 0 at `decider`, which decides for all shards: under schemes that
    /// count versions or choose the workers to wait for
    /// ([`Needs::counts_versions`](crate::scheme::Needs::counts_versions)), where there are several servers. Waits
    /// at most `timeout` for that server, which may not listen yet.
    ///
    /// Call this before the first [`poll`](Self::poll), and again after an [`Error::ServerLost`] of shard 0. This
    /// server then goes on where it was. If the decider has begun another incarnation while this server was away, the
    /// error is [`Error::AnotherIncarnation`]. Then start this server again, from its checkpoint if there is one. At
    /// its begin it takes over the decider's version. Updates that its checkpoint lacks are lost, and counted in
    /// [`ServerStatus::lost_updates`](super::ServerStatus::lost_updates).
    ///
    /// # Errors
    /// [`Error::OutOfTurn`]: this server decides for itself. [`Error::AnotherIncarnation`], as above.
    /// [`Error::Shards`]: the server at `decider` does not hold shard 0 of the same table, or decides for no others.
    /// [`Error::Connect`], [`Error::Handshake`], [`Error::Deadline`]: it was not reached within `timeout`.
    /// [`Error::Register`]: memory could not be had.
    pub fn follow(&mut self, decider: &Address, timeout: Duration) -> Result<(), Error> {
        complete(self.follow_async(decider, timeout))
    }

    pub(crate) async fn follow_async(&mut self, decider: &Address, timeout: Duration) -> Result<(), Error> {
        let Some(following) = &mut self.following else {
            let reason = "this server decides for itself, as the first shard does, or as its scheme lets each shard do";
            return Err(Error::OutOfTurn { operation: "follow another server", reason });
        };
        following.link = None;
        let shard = self.shard.number();
        let followed = following.position.map(|(epoch, next)| Followed { epoch, next });
        let role = PeerRole::Follower { scheme: following.scheme.clone(), shard, followed };
        let transport = self.shard.transport();
        let runtime = self.shard.runtime.clone();
        let deadline = runtime.now() + timeout;
        let connect = async || {
            let hello = PeerHello::from(role.clone());
            Link::<T::Endpoint>::shake_hands(transport, decider, hello, (Vec::new(), None), deadline, timeout)
                .await
        };
        let (mut endpoint, received, welcome) = retry(&runtime, deadline, may_pass, connect).await?;
        let wrong = |what: &str| Error::Shards { reason: format!("{decider} {what}") };
        let is_ours = welcome.table == *self.shard.table() && welcome.shards == self.shard.shards();
        if welcome.shard != 0 || !is_ours {
            return Err(wrong("does not hold shard 0 of this server's table"));
        }
        // As long as workers: an outage that they sit out ends no following either.
        endpoint.allow_silence(Duration::from_nanos(welcome.lease_ns));
        let scratch = transport.allocate(DecisionReader::SCRATCH_BYTES, Access::LOCAL)?;
        let follow = DecisionReader::new(&welcome, &received.grants, scratch.whole())
            .map_err(|error| wrong(&format!("granted too little: {error}")))?;
        let (Some(follow), Some(from)) = (follow, welcome.decided) else {
            return Err(wrong("does not decide for others"));
        };
        match following.position {
            None => {
                let own = self.shard.frames.latest().version;
                // Where this shard was ahead, workers begin where it was, so that it takes no clock a second time.
                self.shard.taken.pass(following.clock);
                following.clock = welcome.clock;
                self.announced_clock = welcome.clock;
                self.shard.begin_at(from.version, welcome.clock);
                if let Some(writer) = &mut self.checkpoints {
                    writer.go_on_at(from.version);
                }
                if own < from.version {
                    let lost = own.behind(from.version);
                    tracing::warn!(shard, updates = lost, "this shard lacks updates that the decider has");
                    self.shard.lost_updates = self.shard.lost_updates.max(Some(lost));
                }
                if own > from.version {
                    let ahead = from.version.behind(own);
                    tracing::warn!(shard, updates = ahead, "this shard keeps updates that the decider lacks");
                }
            }
            Some(_) if from.goes_on => {}
            Some(_) => return Err(Error::AnotherIncarnation { shard, address: decider.clone() }),
        }
        let Some(following) = &mut self.following else { return Ok(()) };
        following.position = Some(follow.position());
        // Each connection counts its looks from one, and no earlier one has told of all decisions.
        following.departed.iter_mut().for_each(|departed| departed.look = follow.next_look());
        tracing::info!(%decider, shard, version = from.version.get(), goes_on = from.goes_on, "following");
        let (address, shards, checked) = (decider.clone(), welcome.shards, runtime.now());
        following.link = Some(Decided { endpoint, follow, address, shards, checked });
        Ok(())
    }

    /// False before a server for which another decides has found it.
    pub(super) fn is_ready(&self) -> bool {
        self.following.as_ref().is_none_or(|following| following.position.is_some())
    }

    /// The smallest clock, as the scheme says or the decider said.
    pub(super) fn smallest_clock(&self) -> Clock {
        self.following.as_ref().map_or_else(|| self.scheme.smallest_clock(), |following| following.clock)
    }

    // ------------------------------------------------------------------ the server that follows

    /// Reads the decisions of the decider. An error once its connection has ended.
    pub(super) fn hear(&mut self, now: Instant) -> Result<bool, Error> {
        let Some(following) = &mut self.following else { return Ok(false) };
        let Some(link) = &mut following.link else { return Ok(false) };
        let heard = link.hear(now, &mut following.queue);
        // Also where the connection has ended: decisions that were read before wait in the queue, and are not read
        // again.
        following.position = Some(link.follow.position());
        match heard {
            Ok(progress) => Ok(progress),
            Err(error) => {
                let (address, shards) = (link.address.clone(), link.shards);
                following.link = None;
                Err(error.into_error(address, shards))
            }
        }
    }

    /// True if another server decides for this one and may be about to decide on a gradient that is here.
    pub(super) fn awaits_decisions(&self) -> bool {
        let is_open = |worker: &WorkerState| worker.unconsumed(worker.arrived) > 0;
        self.following.as_ref().is_some_and(|following| {
            !following.departed.is_empty() || self.workers.iter().flatten().any(is_open)
        })
    }

    /// The next decision that is to be carried out, with its shares.
    pub(super) fn next_decided(&mut self, now: Instant) -> Result<Option<ServerAction>, Error> {
        self.forget_unauthenticated_peers();
        while let Some(following) = &mut self.following
            && let Some(decision) = following.queue.pop_front()
        {
            match decision {
                Decision::Joined { session } => {
                    following.sessions.insert(session);
                }
                Decision::Left { session } => {
                    following.sessions.remove(&session);
                    following.departed.retain(|departed| departed.source.session != session);
                    self.release_peers();
                }
                Decision::Clock { clock } => following.clock = following.clock.max(clock),
                Decision::Share { session, ordinal, weight } => {
                    following.shares.push((session, ordinal, weight));
                }
                Decision::Drop { session, ordinal } => {
                    if let Some(gradient) = self.find(session, ordinal, now) {
                        return Ok(Some(ServerAction::Drop { gradient }));
                    }
                }
                Decision::Apply { version, learning_rate } => {
                    let next = self.shard.next_version()?;
                    if version != next {
                        let reason =
                            format!("shard 0 decides on version {} after {}", version.get(), next.get() - 1);
                        return Err(Error::Shards { reason });
                    }
                    let named = std::mem::take(&mut following.shares);
                    for (session, ordinal, weight) in &named {
                        match self.find(*session, *ordinal, now) {
                            Some(gradient) => self.shares.push(Share { gradient, weight: *weight }),
                            None => self.status.missing += 1,
                        }
                    }
                    if let Some(following) = &mut self.following {
                        following.shares = named;
                        following.shares.clear();
                    }
                    self.learning_rate = learning_rate;
                    return Ok(Some(ServerAction::Apply));
                }
            }
        }
        Ok(None)
    }

    /// Finds the gradient of this name, if it has come. Its worker announces it to the decider last: a worker that
    /// is in, and whose gradient is not here, broke the protocol.
    fn find(&mut self, session: u64, ordinal: u64, now: Instant) -> Option<GradientId> {
        self.hear_out(session);
        let peers = self.shard.peers.iter().zip(&self.workers).zip(0..);
        let found = peers.filter_map(|((peer, state), index)| Some((peer.as_ref()?, state.as_ref()?, index)));
        let found = found.map(|(peer, state, index)| (peer.session, peer.began, state.arrived, index));
        let departed = self.following.iter().flat_map(|following| &following.departed);
        let departed = departed.map(|gone| (gone.source.session, gone.source.began, gone.arrived, gone.peer));
        let (_, began, arrived, peer) = departed.chain(found).find(|(own, ..)| *own == session)?;
        let clock = Clock::new(began.get().saturating_add(ordinal));
        if clock < arrived {
            return Some(GradientId { worker: peer.into(), clock });
        }
        let reason = "it announced a gradient to shard 0 before it announced it here".to_owned();
        self.shard.dismiss(peer, DisconnectReason::Misbehaved(reason), &mut self.events);
        self.take_events(now);
        None
    }

    /// Keeps the inbox of a worker that has left, until the decider lets it go as well.
    pub(super) fn keep_departed(&mut self, peer: u16, gone: Gone, state: &WorkerState) {
        let Some(following) = self.following.as_mut().filter(|_| gone.is_honest) else { return };
        let Gone { inbox, generation, identity, session, began, .. } = gone;
        let source = FoldSource { inbox, generation, identity, session, began, others: 0 };
        let look = following.link.as_ref().map_or(0, |link| link.follow.next_look());
        let (arrived, consumed) = (state.arrived, state.consumed);
        following.departed.push(Departed { peer, source, arrived, consumed, look });
        self.release_peers();
    }

    /// Looks again at the inbox of a worker that has left: where memory is mapped it keeps writing until it notices,
    /// and announces to the decider gradients that are here then.
    fn hear_out(&mut self, session: u64) {
        let departed = self.following.iter().flat_map(|following| &following.departed);
        let Some((index, gone)) = departed.enumerate().find(|(_, gone)| gone.source.session == session)
        else {
            return;
        };
        let (inbox, mut arrived) = (&gone.source.inbox, gone.arrived);
        while arrived < inbox.published() && self.believe(inbox, gone.consumed, arrived).is_ok() {
            arrived = arrived.next();
        }
        if let Some(following) = &mut self.following {
            following.departed[index].arrived = arrived;
        }
    }

    /// Lets go of workers that have left and that the decider has never let in, or not for long.
    fn forget_unauthenticated_peers(&mut self) {
        let Some(Following { departed, link: Some(link), sessions, queue, .. }) = &mut self.following else {
            return;
        };
        let before = departed.len();
        if queue.is_empty() {
            departed.retain(|gone| {
                sessions.contains(&gone.source.session) || !link.follow.has_settled(gone.look)
            });
        }
        if departed.len() < before {
            self.release_peers();
        }
    }

    /// A worker that has joined again in the same session announced nothing before: it joins so as to begin at a later
    /// clock.
    pub(super) fn forget_departed(&mut self, peer_index: u16) {
        let Some(following) = &mut self.following else { return };
        if let Some(peer) = &self.shard.peers[usize::from(peer_index)] {
            following.departed.retain(|gone| gone.source.session != peer.session);
            self.release_peers();
        }
    }

    /// Lets newcomers have the indices of workers that have left, once nothing of theirs is to be folded any more.
    pub(super) fn release_peers(&mut self) {
        let is_folding = |peer: u16| {
            self.work.bound && self.work.shares.iter().any(|share| share.gradient.worker == peer.into())
        };
        self.shard.withheld.retain(|(peer, _)| is_folding(*peer));
        let kept = self.following.iter().flat_map(|following| &following.departed);
        self.shard.withheld.extend(kept.map(|departed| {
            let FoldSource { began, session, .. } = departed.source;
            (departed.peer, (departed.arrived == began).then_some(session))
        }));
    }

    /// Returns the source of the gradients of a worker, which may have left.
    pub(super) fn source(&self, peer: u16) -> Option<FoldSource> {
        let mut departed = self.following.iter().flat_map(|following| &following.departed);
        if let Some(gone) = departed.find(|gone| gone.peer == peer) {
            return Some(gone.source.clone());
        }
        self.shard.peers.get(usize::from(peer))?.as_ref().map(FoldSource::of)
    }

    // ------------------------------------------------------------------ the server that decides

    /// Returns whether the scheme may be asked: the other servers hear of its decisions, so all of them must be
    /// there.
    pub(super) fn may_decide(&mut self) -> bool {
        let followers = self.shard.followers().count();
        self.shard.decider.as_mut().is_none_or(|decider| {
            decider.flush();
            decider.has_room() && followers == decider.followers()
        })
    }

    fn say(&mut self, decision: Decision) {
        if let Some(decider) = &mut self.shard.decider {
            decider.say(decision);
        }
    }

    pub(super) fn say_joined(&mut self, peer_index: u16) {
        if let Some(peer) = &self.shard.peers[usize::from(peer_index)] {
            let session = peer.session;
            self.say(Decision::Joined { session });
        }
    }

    /// Tells a follower that has come, and so all, which workers are in.
    pub(super) fn say_who_is_in(&mut self, follower: u16) {
        if self.shard.peers[usize::from(follower)].as_ref().is_some_and(|peer| peer.follows.is_some()) {
            for worker in 0..self.workers.len() as u16 {
                if self.workers[usize::from(worker)].is_some() {
                    self.say_joined(worker);
                }
            }
        }
    }

    pub(super) fn say_left(&mut self, session: u64) {
        self.say(Decision::Left { session });
    }

    pub(super) fn say_dropped(&mut self, gradient: GradientId) {
        if let Some(Some(peer)) = self.shard.peers.get(gradient.worker.index()) {
            let ordinal = gradient.clock.get().saturating_sub(peer.began.get());
            let session = peer.session;
            self.say(Decision::Drop { session, ordinal });
        }
    }

    pub(super) fn say_clock(&mut self, clock: Clock) {
        if clock != self.announced_clock {
            self.say(Decision::Clock { clock });
        }
    }

    /// The planned fold counts from here on, with the step size of now unless it runs already.
    pub(super) fn bind(&mut self) {
        if !self.folder.is_running() {
            self.work.learning_rate = self.next_rate();
        }
        self.work.bound = true;
        self.bind_sums();
        let Some(decider) = &mut self.shard.decider else { return };
        for (share, source) in self.work.shares.iter().zip(&self.work.sources) {
            let ordinal = share.gradient.clock.get().saturating_sub(source.began.get());
            decider.say(Decision::Share { session: source.session, ordinal, weight: share.weight });
        }
        let version = self.shard.frames.latest().version.next();
        decider.say(Decision::Apply { version, learning_rate: self.work.learning_rate });
    }

    /// Hands decisions out, and learns how far the others are.
    pub(super) fn tell(&mut self, now: Instant) -> bool {
        let Some(decider) = &mut self.shard.decider else { return false };
        let mut liar = None;
        for (peer, peer_index) in self.shard.peers.iter().zip(0..) {
            if let Some(peer) = peer
                && let Some(shard) = peer.follows
                && !decider.learn(shard, peer.inbox.followed())
            {
                liar = Some(peer_index);
            }
        }
        let progress = decider.flush();
        if let Some(liar) = liar {
            let disconnect_reason =
                DisconnectReason::Misbehaved("it has taken decisions that there are not".into());
            self.shard.dismiss(liar, disconnect_reason, &mut self.events);
            self.take_events(now);
        }
        progress
    }
}

impl<E: Endpoint> Decided<E> {
    fn hear(&mut self, now: Instant, queue: &mut VecDeque<Decision>) -> Result<bool, FollowError> {
        let mut progress = false;
        loop {
            while let Some(completion) = self.endpoint.poll() {
                self.follow.complete(completion);
            }
            // Decisions that were read are carried out before more are asked for.
            let stepped = self.follow.advance(&mut self.endpoint, |decision| queue.push_back(decision))?;
            progress |= stepped;
            if !stepped {
                break;
            }
        }
        if now - self.checked >= CHECK_EVERY {
            self.checked = now;
            self.endpoint.check().map_err(FollowError::Disconnected)?;
        }
        Ok(progress)
    }
}

impl FollowError {
    fn into_error(self, address: Address, shards: u16) -> Error {
        let lost = |reason| Error::ServerLost { shard: 0, shards, address: address.clone(), source: reason };
        match self {
            FollowError::Disconnected(gone) => lost(gone),
            FollowError::Completion(_) => lost(Disconnected { reason: "a read of its decisions failed" }),
            FollowError::Evicted(why) => Error::Evicted { shard: 0, why },
            FollowError::Post(source) => Error::Post { shard: 0, source },
            FollowError::Impossible => Error::Shards { reason: "shard 0 decides what cannot be".into() },
            FollowError::Grants(error) => {
                Error::Shards { reason: format!("shard 0 granted too little: {error}") }
            }
        }
    }
}

/// True if the decider may let this server follow later.
fn may_pass(error: &Error) -> bool {
    error.is_no_listener() || error.is_refused_for_now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::server::ServerOptions;
    use crate::node::{Worker, WorkerOptions, now};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Two servers, of which the first decides.
    type Pair = [Server<Shm>; 2];

    fn until(servers: &mut Pair, done: impl Fn(&Pair) -> bool) {
        let deadline = now() + PATIENCE;
        while !done(servers) {
            assert!(now() < deadline, "{:?}", servers.each_ref().map(Server::status));
            servers.iter_mut().for_each(|server| _ = server.poll(now()).unwrap());
        }
    }

    fn connect(servers: &mut Pair, scheme: SchemeConfig, rank: u32) -> Worker<Shm> {
        let addresses = servers.each_ref().map(Server::address);
        let options = WorkerOptions { identity: Some(rank), ..WorkerOptions::new(scheme) };
        std::thread::scope(|scope| {
            let connect = || Worker::connect(Shm::new(), &addresses, options, PATIENCE).unwrap();
            let connecting = scope.spawn(connect);
            until(servers, |_| connecting.is_finished());
            connecting.join().unwrap()
        })
    }

    /// The worker goes, and another one comes, before this server hears of the decision.
    #[test]
    fn a_gradient_that_is_decided_on_after_its_worker_went_counts_as_taken() {
        let scheme: SchemeConfig = "dbw(k=1, delivery=wait)".parse().unwrap();
        let server = |shard| {
            let options = ServerOptions { shard: (shard, 2), ..ServerOptions::new(scheme, 2, 0.1) };
            let table = Table::flat(32, ElementType::F32).unwrap();
            Server::new(Shm::new(), &Address::random(), table, &[0.0; 16], options).unwrap()
        };
        let mut servers = [server(0), server(1)];
        let [decider, follower] = &mut servers;
        let address = decider.address();
        std::thread::scope(|scope| {
            let following = scope.spawn(|| follower.follow(&address, PATIENCE).unwrap());
            assert!(decider.drive(|_| following.is_finished(), PATIENCE).unwrap());
        });
        let [mut first, straggler] = [1, 2].map(|rank| connect(&mut servers, scheme, rank));
        let hears_of = |servers: &Pair| servers[1].following.as_ref().map_or(0, |it| it.sessions.len());
        until(&mut servers, |servers| hears_of(servers) == 2);
        let link = servers[1].following.as_mut().and_then(|following| following.link.take());
        let mut step = first.step(PATIENCE).unwrap();
        step.gradient().unwrap().fill(1.0);
        step.publish(None, PATIENCE).unwrap();
        until(&mut servers, |servers| servers[0].status().version.get() == 1);
        drop(first);
        until(&mut servers, |servers| servers.iter().all(|server| server.status().left == 1));
        let another = connect(&mut servers, scheme, 3);
        assert_eq!(servers[1].status().version.get(), 0, "it has not heard yet");
        servers[1].following.as_mut().unwrap().link = link;
        until(&mut servers, |servers| servers[1].status().version.get() == 1);
        assert_eq!(servers[1].announced_clock, Clock::new(0), "the straggler holds it there");
        let taken = &servers[1].shard.taken;
        assert_eq!(taken.begin(1), Clock::new(1), "its gradient of clock 0 is in the parameters");
        assert_eq!(taken.applied(Clock::new(0)).workers[&1], Clock::new(1));
        drop((straggler, another));
    }
}
