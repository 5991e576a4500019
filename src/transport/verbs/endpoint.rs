//! One connected peer, as its user holds it.

mod losing;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::VerbsShared;
use super::chosen::ChosenRail;
use super::device::{QueuePairError, lock};
use super::direct::VerbsGpu;
use super::hearing::{Ear, Hearing};
use super::heartbeat::HeartbeatLane;
use super::hello::{Hello, Note, Terms};
use super::pairs::{Requester, Responder};
use super::rails::Rails;
use super::staged::StagedRails;
use super::unanswered::PeerWay;
use crate::channel::{Channel, allow_silence};
#[cfg(feature = "cuda")]
use crate::cuda::Tickets;
use crate::mem::{ForkGuard, LocalSlice, RemoteSlice};
use crate::transport::doorbell::Doorbell;
use crate::transport::staging::StagedPosting;
use crate::transport::{
    Disconnected, Endpoint, GpuPath, HANDSHAKE_TIMEOUT, HeartbeatWord, PostError, Remains, WorkCompletion,
    WorkRequest,
};

pub(super) const FORKED: &str = "used in a forked child; connect again there";
const INHERITED: Disconnected = Disconnected { reason: FORKED };
const GONE: Disconnected = Disconnected { reason: "the peer process ended, or its host does not answer" };
const PROTOCOL: Disconnected = Disconnected { reason: "the peer broke the protocol" };
const ACCESS_VIOLATION: Disconnected =
    Disconnected { reason: "the peer reached for memory that it was not granted" };
const UNREADY: Disconnected = Disconnected { reason: "the peer did not finish the handshake in time" };
const REFUSED: Disconnected = Disconnected { reason: "the peer's device refused a request" };
const UNREACHABLE: Disconnected = Disconnected { reason: "the peer's device does not answer" };
const FLUSHED: Disconnected = Disconnected { reason: "the queue pair of this connection is over" };
const BROKEN: Disconnected =
    Disconnected { reason: "the RDMA device of this host could not go on with this connection" };
const NOT_COPIED: Disconnected = Disconnected {
    reason: "a GPU of this process did not copy a payload: its log has the driver's error; remove the cause and \
             connect again",
};
const LET_GO: Disconnected = Disconnected { reason: "this side has let the peer go" };
const NO_DEVICE: Disconnected = Disconnected { reason: "the RDMA device of this host is gone" };

/// Wake-ups that are taken at one look; the next look takes the rest. A path that stood still delivers many at once.
pub(super) const WAKES_AT_ONCE: u32 = 8;

/// The time after which the state of the pairs that serve a peer is looked at again, on soft-RoCE.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The conversation of the handshake. It ends with its owner, even if a forked child holds a copy of the descriptor.
struct HandshakeChannel {
    channel: Channel,
    /// Hears whether the peer has said something; none where the system listens to no more sockets.
    ear: Option<Ear>,
    guard: ForkGuard,
}

impl HandshakeChannel {
    fn new(channel: Channel, hearing: &Arc<Hearing>) -> HandshakeChannel {
        let ear = hearing.listen_to(&channel);
        let ear = ear.inspect_err(|error| tracing::warn!(%error, "an RDMA peer is asked by itself")).ok();
        HandshakeChannel { channel, ear, guard: ForkGuard::new() }
    }

    /// Whether there is anything to hear, or to say that did not fit.
    fn has_news(&self) -> bool {
        self.ear.as_ref().is_none_or(Ear::take_heard) || !self.channel.is_flushed()
    }

    /// Has the next look hear what this one has left.
    fn hear_again(&self) {
        self.ear.iter().for_each(Ear::hear_again);
    }
}

impl Drop for HandshakeChannel {
    fn drop(&mut self) {
        if !self.guard.is_inherited() {
            let _gone = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Both);
            if let Some(ear) = &self.ear {
                ear.forget();
            }
        }
    }
}

/// One connected peer, reached by RDMA.
pub struct VerbsEndpoint {
    /// The conversation of the handshake. It carries no data: it tells that the peer lives.
    link: Option<HandshakeChannel>,
    /// This side's requests; none if the peer granted nothing.
    data: Option<Rails>,
    /// What stands before them where this side has a GPU.
    staged: Option<(VerbsGpu, Box<StagedPosting>)>,
    heartbeat: Arc<Mutex<HeartbeatLane>>,
    /// The peer's requests; none if it was granted nothing. It serves the peer no more once the connection is over.
    responder: Option<Responder>,
    theirs: Terms,
    /// What this side sleeps at until the peer wakes it.
    doorbell: Option<Arc<Doorbell>>,
    /// The rails of the connection, by their indexes in the transport. The first one leads.
    rails: Vec<usize>,
    /// The ways that they take, by the same order.
    ways: Vec<Option<PeerWay>>,
    /// Those of them that this side has given up, a bit for each.
    given_up: u8,
    /// Those of which the peer has said the same.
    given_up_there: u8,
    /// False on the accepting side until the peer's queue pairs stand.
    is_ready: bool,
    /// True once the handshake is said and heard to its end, and so is the loss of each rail.
    is_settled: bool,
    over: Option<Disconnected>,
    begun: Instant,
    /// The time at which the state of the serving pairs was looked at last.
    looked: Instant,
    guard: ForkGuard,
    // Dropped last: with the last of these end the registrations of memory of GPUs, which a peer reads for as long as
    // its pair stands and its conversation is open.
    shared: Arc<VerbsShared>,
}

impl VerbsEndpoint {
    pub(super) fn new(
        shared: Arc<VerbsShared>,
        link: Channel,
        requester: Option<Requester>,
        responder: Option<Responder>,
        theirs: Terms,
        is_ready: bool,
    ) -> VerbsEndpoint {
        let (depth, link) = (shared.queue_depth, HandshakeChannel::new(link, &shared.hearing));
        let (mut data, heartbeat) = requester
            .map(|mut requester| {
                let heartbeat = requester.take_heartbeat();
                (Rails::new(requester.rails, &theirs, depth), heartbeat)
            })
            .unzip();
        if let Some(data) = &mut data {
            data.add_receives(theirs.blob.receives, theirs.blob.receives);
        }
        VerbsEndpoint {
            rails: theirs.blob.indexes().collect(),
            ways: Vec::new(),
            given_up: 0,
            given_up_there: 0,
            shared,
            link: Some(link),
            data,
            staged: None,
            heartbeat: Arc::new(Mutex::new(HeartbeatLane::new(heartbeat.flatten(), is_ready))),
            responder,
            theirs,
            doorbell: None,
            is_ready,
            is_settled: false,
            over: None,
            begun: Instant::now(),
            looked: Instant::now(),
            guard: ForkGuard::new(),
        }
    }

    /// Has it note the ways on which the peer does not answer, of these rails of the connection.
    pub(super) fn know_ways(&mut self, rails: &[ChosenRail]) {
        self.ways = rails.iter().map(|rail| rail.way).collect();
    }

    /// Has the peer's wake-ups ring this.
    pub(super) fn set_doorbell(&mut self, doorbell: Arc<Doorbell>) {
        self.doorbell = Some(doorbell);
    }

    /// Lets requests have memory on this GPU.
    pub(super) fn use_gpu(&mut self, gpu: &VerbsGpu) {
        self.data.iter_mut().for_each(Rails::use_gpu);
        let longest = self.theirs.grants.iter().map(|grant| grant.bytes).max();
        let longest = longest.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let staged = StagedPosting::new(&gpu.gpu, longest, self.shared.queue_depth);
        self.staged = Some(gpu).cloned().zip(staged);
    }

    /// Calls what posts payloads of the GPU, where this side has one and the peer serves requests.
    fn by_blocks<R>(
        &mut self,
        call: impl FnOnce(&mut StagedPosting, &mut StagedRails<'_>) -> R,
    ) -> Option<R> {
        let (data, (gpu, staged)) = self.data.as_mut().zip(self.staged.as_mut())?;
        let mut lane = StagedRails::new(&self.shared, data, gpu);
        let result = call(staged, &mut lane);
        if lane.has_failed {
            self.fail(NOT_COPIED);
        }
        Some(result)
    }

    /// Moves the handshake on, and listens whether the peer is there.
    #[cold]
    fn hear(&mut self) {
        if self.link.is_none() {
            return;
        }
        #[cfg(test)]
        self.shared.hearing.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut wakes = 0;
        loop {
            let Some(HandshakeChannel { channel: link, .. }) = &mut self.link else { return };
            match link.poll().map(|message| message.map(|bytes| Hello::decode(&bytes))) {
                Ok(None) => break,
                Ok(Some(Ok((Hello::Note(Note::Ready(sentinel)), _))))
                    if !self.is_ready && (sentinel.is_none() || self.theirs.answers_reads()) =>
                {
                    self.is_ready = true;
                    lock(&self.heartbeat).set_ready();
                    if let (Some(data), Some(sentinel)) = (&mut self.data, sentinel) {
                        data.prove_by(sentinel, &self.theirs);
                    }
                }
                Ok(Some(Ok((Hello::Note(Note::AccessViolation), _)))) => {
                    return self.fail_for_access_violation();
                }
                // Each of them takes something of this side's first: a peer cannot go on saying so.
                Ok(Some(Ok((Hello::Note(Note::Receives(more)), _))))
                    if self
                        .data
                        .as_mut()
                        .is_some_and(|data| data.add_receives(more, self.theirs.blob.receives)) => {}
                Ok(Some(Ok((Hello::Note(Note::RailLost(rail)), _)))) if self.may_lose(rail) => {
                    self.given_up_there |= 1 << rail;
                    if !self.lose_rails(1 << rail) {
                        return;
                    }
                    if let Some(data) = &mut self.data {
                        data.is_closed_at_peer(rail.into());
                    }
                }
                Ok(Some(Ok((Hello::Note(Note::Wake), _)))) if self.doorbell.is_some() => {
                    self.doorbell.iter().for_each(|doorbell| doorbell.ring());
                    wakes += 1;
                    if wakes == WAKES_AT_ONCE {
                        self.link.iter().for_each(HandshakeChannel::hear_again);
                        break;
                    }
                }
                Ok(Some(_)) => {
                    tracing::warn!("an RDMA peer broke the protocol of the handshake: disconnected");
                    return self.fail(PROTOCOL);
                }
                Err(_) => return self.lose_peer(),
            }
        }
        let is_flushed = self.link.as_ref().is_none_or(|link| link.channel.is_flushed());
        // A loss of which the peer has not said the same is heard of by the next check, unless requests wait for it.
        let is_repeated = self.data.as_ref().is_none_or(|data| !data.is_repeating());
        self.is_settled =
            self.is_ready && is_flushed && (is_repeated || self.given_up == self.given_up_there);
        if !self.is_ready && self.begun.elapsed() > HANDSHAKE_TIMEOUT {
            self.fail(UNREADY);
        }
    }

    /// Tells the peer whatever it is told.
    #[cfg(test)]
    pub(super) fn say(&mut self, note: Note) {
        self.link.as_mut().unwrap().channel.send(&Hello::Note(note).encode(&[])).unwrap();
    }

    /// Tells the peer how many more of its requests can be noticed.
    fn tell_receives(&mut self) {
        let (Some(responder), Some(link)) = (&self.responder, &mut self.link) else { return };
        if let Some(renewed) = responder.renew_receives() {
            // If it is gone, its end is heard elsewhere.
            let _unheard = link.channel.send(&Hello::Note(Note::Receives(renewed)).encode(&[]));
        }
    }

    /// Draws the consequences of failed requests and lost rails.
    #[cold]
    fn hear_of_own_requests(&mut self) {
        let Some(data) = &mut self.data else { return };
        let lost = data.take_lost();
        if data.has_failed() {
            let failure = data.failure();
            // Without one, it is a lost rail that could not be closed.
            return if lost != 0 && failure.is_none() {
                self.fail(BROKEN)
            } else {
                self.settle_failure(failure)
            };
        }
        self.note_unanswered();
        self.lose_rails(lost);
    }

    #[inline]
    fn hear_news(&mut self) {
        if self.data.as_ref().is_some_and(Rails::has_news) {
            self.hear_of_own_requests();
        }
    }

    /// Hears of failed requests, for a caller that only checks and never polls.
    fn look_at_own_requests(&mut self) {
        if let Some(data) = &mut self.data {
            data.take_completions();
            data.lose_silent_rails();
            if self.staged.as_ref().is_some_and(|(_, staged)| !staged.is_idle()) {
                self.by_blocks(|staged, lane| staged.advance(lane));
            }
            self.hear_news();
        }
        let beat = lock(&self.heartbeat).failure();
        if beat.is_some() {
            self.settle_failure(beat);
        }
    }

    fn check_over(&self) -> Result<(), Disconnected> {
        self.over.clone().map_or(Ok(()), Err)
    }
}

impl Endpoint for VerbsEndpoint {
    #[inline]
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        if self.guard.is_inherited() {
            return Err(INHERITED.into());
        }
        if !self.is_settled {
            self.hear();
        }
        if let Some(over) = &self.over {
            return Err(over.clone().into());
        }
        let Some(data) = &mut self.data else {
            if batch.is_empty() {
                return Ok(());
            }
            return Err(PostError::Malformed { index: 0, reason: "the peer granted nothing" });
        };
        if !self.is_ready {
            // Its queue pairs stand a moment later.
            return Err(PostError::QueueFull { free: 0, batch: batch.len() });
        }
        let posted = match &self.staged {
            None => data.post(batch),
            Some((gpu, _)) => {
                data.check(batch, &gpu.gpu)?;
                self.by_blocks(|staged, lane| staged.post(lane, batch)).unwrap_or(Ok(()))
            }
        };
        self.hear_news();
        posted
    }

    #[inline]
    fn poll(&mut self) -> Option<WorkCompletion> {
        if self.guard.is_inherited() {
            return None;
        }
        if !self.is_settled {
            self.hear();
        }
        let completion = match self.staged {
            None => self.data.as_mut()?.poll(),
            Some(_) => self.by_blocks(|staged, lane| staged.poll(lane))?,
        };
        self.hear_news();
        completion
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        if self.guard.is_inherited() {
            return Err(INHERITED);
        }
        if self.over.is_none() {
            let gone = self.shared.look();
            if gone != 0 && self.needs_any(gone) {
                self.fail(NO_DEVICE);
            } else {
                match self.queue_pair_error() {
                    Some(QueuePairError::Refused) => self.fail_for_access_violation(),
                    Some(QueuePairError::Failed) => self.fail(BROKEN),
                    None => {
                        let is_told = self.was_told_of_own_pairs();
                        if !self.is_settled || self.link.as_ref().is_some_and(HandshakeChannel::has_news) {
                            self.hear();
                        }
                        self.tell_receives();
                        self.look_at_own_requests();
                        if is_told {
                            self.fail(BROKEN);
                        }
                    }
                }
            }
        }
        self.check_over()
    }

    fn map(&self, _remote: &RemoteSlice) -> Option<LocalSlice> {
        None
    }

    fn transport(&self) -> &'static str {
        super::NAME
    }

    fn gpu_path(&self) -> Option<GpuPath> {
        self.staged.as_ref().map(|(gpu, _)| gpu.path.clone())
    }

    #[cfg(feature = "cuda")]
    fn awaited_copies(&self) -> Option<&Tickets> {
        self.staged.as_ref()?.1.awaited_copies()
    }

    /// By the conversation of the handshake, which is there in any case: a receive for each peer that sleeps, and a
    /// completion queue that is armed before each sleep, would save nothing that counts beside waking a thread.
    fn wake(&mut self) {
        if let (Some(link), false) = (&mut self.link, self.guard.is_inherited()) {
            // If it is gone, its end is heard elsewhere.
            let _unheard = link.channel.send(&Hello::Note(Note::Wake).encode(&[]));
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(|link| link.channel.as_fd())
    }

    fn hear_wake(&mut self) {
        if !self.guard.is_inherited() {
            self.hear();
        }
    }

    fn close(mut self, _code: u64) -> Option<Remains> {
        if self.guard.is_inherited() {
            return None;
        }
        self.fail(LET_GO);
        Some(Box::new(self))
    }

    /// Of the connection that the handshake used. The timeout and the retries of the queue pairs are settings.
    fn allow_silence(&mut self, lease: Duration) {
        let allowed = self.link.as_ref().map_or(Ok(()), |link| allow_silence(&link.channel, lease));
        if let Err(error) = allowed {
            tracing::warn!(%error, "a peer that is silent for seconds will be taken for dead");
        }
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        if self.guard.is_inherited() {
            return Err(INHERITED.into());
        }
        self.check_over()?;
        if !self.theirs.is_writable_word(word) {
            let reason = "a heartbeat word is one granted, aligned, writable word";
            return Err(PostError::Malformed { index: 0, reason });
        }
        Ok(Box::new(VerbsHeartbeatWord {
            heartbeat: Arc::clone(&self.heartbeat),
            word: *word,
            guard: self.guard,
        }))
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        if !self.guard.is_inherited() {
            // First, so that the peer hears of it before this side has undone what takes long.
            self.link = None;
            // The thread that sets the words of all connections does not wait for that either.
            let lane = lock(&self.heartbeat).take();
            drop(lane);
        }
    }
}

/// A word at the peer, for as long as the connection lasts.
struct VerbsHeartbeatWord {
    heartbeat: Arc<Mutex<HeartbeatLane>>,
    word: RemoteSlice,
    guard: ForkGuard,
}

impl HeartbeatWord for VerbsHeartbeatWord {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        if self.guard.is_inherited() {
            return Err(INHERITED);
        }
        // Without room the peer does not answer, and the next beat will have counted further: the thread that sets the
        // words of all connections does not wait for this one.
        let _is_posted = lock(&self.heartbeat).set(&self.word, value)?;
        Ok(())
    }
}
