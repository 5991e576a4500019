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

/// Wake-ups that one call takes; the next call takes the rest. A path that was interrupted delivers many at once.
pub(super) const WAKES_AT_ONCE: u32 = 8;

/// The interval at which the state of the pairs that serve a peer is queried on soft-RoCE.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The conversation of the handshake. It ends with its owner, even if a forked child holds a copy of the descriptor.
struct HandshakeChannel {
    channel: Channel,
    /// Reports whether the peer has sent something; none if the system can listen to no more sockets.
    ear: Option<Ear>,
    guard: ForkGuard,
}

impl HandshakeChannel {
    fn new(channel: Channel, hearing: &Arc<Hearing>) -> HandshakeChannel {
        let ear = hearing.listen_to(&channel);
        let ear = ear.inspect_err(|error| tracing::warn!(%error, "an RDMA peer is asked by itself")).ok();
        HandshakeChannel { channel, ear, guard: ForkGuard::new() }
    }

    /// Whether there may be messages to receive, or messages that did not fit into the socket before.
    fn has_news(&self) -> bool {
        self.ear.as_ref().is_none_or(Ear::take_heard) || !self.channel.is_flushed()
    }

    /// Makes the next call receive the messages that this one has left.
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
    /// The conversation of the handshake. It carries no data: it shows that the peer is alive.
    link: Option<HandshakeChannel>,
    /// This side's requests; none if the peer granted nothing.
    data: Option<Rails>,
    /// The staging of payloads before they reach the rails, where this side has a GPU.
    staged: Option<(VerbsGpu, Box<StagedPosting>)>,
    heartbeat: Arc<Mutex<HeartbeatLane>>,
    /// The side that serves the peer's requests; none if the peer was granted nothing. It stops serving once the
    /// connection is over.
    responder: Option<Responder>,
    theirs: Terms,
    /// The doorbell at which this side sleeps until the peer wakes it.
    doorbell: Option<Arc<Doorbell>>,
    /// The rails of the connection, by their indexes in the transport. The first one leads.
    rails: Vec<usize>,
    /// The paths of these rails, in the same order.
    ways: Vec<Option<PeerWay>>,
    /// The rails that this side has given up, a bit for each.
    given_up: u8,
    /// The rails that the peer has reported as given up.
    given_up_there: u8,
    /// False on the accepting side until the peer's queue pairs are ready.
    is_ready: bool,
    /// True once both sides have exchanged the whole handshake, and the loss of each rail.
    is_settled: bool,
    over: Option<Disconnected>,
    begun: Instant,
    /// The time of the last query of the state of the serving pairs.
    looked: Instant,
    guard: ForkGuard,
    // Dropped last: the last reference ends the registrations of GPU memory, and a peer reads that memory for as long
    // as its pair is connected and its conversation is open.
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

    /// Stores the paths of these rails of the connection, so that the endpoint can note the paths on which the peer
    /// does not answer.
    pub(super) fn know_ways(&mut self, rails: &[ChosenRail]) {
        self.ways = rails.iter().map(|rail| rail.way).collect();
    }

    /// Sets the doorbell that the peer's wake-ups ring.
    pub(super) fn set_doorbell(&mut self, doorbell: Arc<Doorbell>) {
        self.doorbell = Some(doorbell);
    }

    /// Lets requests name memory on this GPU.
    pub(super) fn use_gpu(&mut self, gpu: &VerbsGpu) {
        self.data.iter_mut().for_each(Rails::use_gpu);
        let longest = self.theirs.grants.iter().map(|grant| grant.bytes).max();
        let longest = longest.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let staged = StagedPosting::new(&gpu.gpu, longest, self.shared.queue_depth);
        self.staged = Some(gpu).cloned().zip(staged);
    }

    /// Runs `call` with the staging of GPU payloads, if this side has a GPU and the peer serves requests.
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

    /// Advances the handshake, and checks whether the peer is still connected.
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
                // Each such message must renew receives that this side has used up: a peer cannot send it endlessly.
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
        // If the peer has not yet reported the same losses, the next check receives its report, unless requests wait
        // for it.
        let is_repeated = self.data.as_ref().is_none_or(|data| !data.is_repeating());
        self.is_settled =
            self.is_ready && is_flushed && (is_repeated || self.given_up == self.given_up_there);
        if !self.is_ready && self.begun.elapsed() > HANDSHAKE_TIMEOUT {
            self.fail(UNREADY);
        }
    }

    /// Sends any note to the peer.
    #[cfg(test)]
    pub(super) fn say(&mut self, note: Note) {
        self.link.as_mut().unwrap().channel.send(&Hello::Note(note).encode(&[])).unwrap();
    }

    /// Tells the peer how many more of its requests can notify this side.
    fn tell_receives(&mut self) {
        let (Some(responder), Some(link)) = (&self.responder, &mut self.link) else { return };
        if let Some(renewed) = responder.renew_receives() {
            // If the peer is gone, another call notices it.
            let _unheard = link.channel.send(&Hello::Note(Note::Receives(renewed)).encode(&[]));
        }
    }

    /// Handles failed requests and lost rails.
    #[cold]
    fn hear_of_own_requests(&mut self) {
        let Some(data) = &mut self.data else { return };
        let lost = data.take_lost();
        if data.has_failed() {
            let failure = data.failure();
            // Without a failed request, the cause is a lost rail that could not be closed.
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

    /// Notices failed requests, for a caller that only checks and never polls.
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
            // The peer's queue pairs are ready a moment later.
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

    /// Uses the conversation of the handshake, which exists in any case. A receive for each peer that sleeps, and a
    /// completion queue that is armed before each sleep, would save little compared with the cost of waking a thread.
    fn wake(&mut self) {
        if let (Some(link), false) = (&mut self.link, self.guard.is_inherited()) {
            // If the peer is gone, another call notices it.
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

    /// Applies to the TCP connection of the handshake. The timeout and the retries of the queue pairs are settings.
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
            // First, so that the peer learns of the end before this side's slow cleanup.
            self.link = None;
            // The thread that sets the words of all connections does not wait for this cleanup either.
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
        // If there is no room, the peer does not answer, and the next beat has a higher count: the thread that sets
        // the words of all connections does not wait for this one.
        let _is_posted = lock(&self.heartbeat).set(&self.word, value)?;
        Ok(())
    }
}
