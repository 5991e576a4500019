//! Connections, and how their requests are carried out: in pieces, in any order that the contract permits.
//!
//! Of the writes of one end only the first that has not landed is on its way into memory; reads go on beside them.
//! Both are cut into pieces, which move at moments of their own. An end hears of its requests in order, and late.
#![forbid(unsafe_code)]

mod carrying;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, Release};

use self::carrying::{snapshot, store};
use super::net::{HostId, Net, NetEvent, TransportShape};
use crate::mem::{self, Access, LocalSlice, RemoteKey, RemoteSlice};
use crate::transport::{
    CompletionError, Disconnected, Flags, Inline, Operation, PostError, WorkCompletion, WorkRequest,
    WorkRequestId,
};

/// Two ends: 0 connected, 1 listened.
pub(super) struct NetConnection {
    pub(super) ends: [ConnectionEnd; 2],
    /// Nothing is answered any more, and neither end knows yet.
    is_cut: bool,
}

/// A grant that an end got from the other.
#[derive(Clone)]
pub(super) struct NetGrant {
    pub(super) key: RemoteKey,
    pub(super) slice: LocalSlice,
}

pub(super) struct ConnectionEnd {
    pub(super) host: HostId,
    pub(super) reach: Vec<NetGrant>,
    requests: VecDeque<PostedRequest>,
    /// Serial number of the first of them.
    first: u64,
    completions: VecDeque<WorkCompletion>,
    pub(super) failed: Option<Disconnected>,
    pub(super) is_dropped: bool,
    /// The other end is gone, which this one learns when it looks: of mapped memory only.
    is_gone: bool,
    /// Writes that were flushed and arrive nevertheless.
    late: VecDeque<(LocalSlice, Vec<u8>)>,
}

impl ConnectionEnd {
    pub(super) fn new(host: HostId, reach: Vec<NetGrant>) -> ConnectionEnd {
        ConnectionEnd {
            host,
            reach,
            requests: VecDeque::new(),
            first: 0,
            completions: VecDeque::new(),
            failed: None,
            is_dropped: false,
            is_gone: false,
            late: VecDeque::new(),
        }
    }

    /// Memory that this end may reach with all of `needed`.
    fn target(&self, remote: &RemoteSlice, needed: Access) -> Option<LocalSlice> {
        let grant = self.reach.iter().find(|grant| grant.key == remote.key)?;
        if !grant.slice.region().access().contains(needed) {
            return None;
        }
        grant.slice.slice(usize::try_from(remote.offset).ok()?, usize::try_from(remote.len).ok()?).ok()
    }
}

enum WriteSource {
    Memory(LocalSlice),
    Words(Inline),
}

enum WireOperation {
    Write {
        from: WriteSource,
        to: LocalSlice,
    },
    Read {
        from: LocalSlice,
        into: LocalSlice,
    },
    /// The other end does not permit it.
    Refused,
}

struct PostedRequest {
    id: WorkRequestId,
    flags: Flags,
    work: WireOperation,
    /// The time at which it is at the other end.
    arrival: u64,
    /// Its pieces in the order in which they move, and where each part of them ends.
    pieces: Vec<(u32, u32)>,
    parts: Vec<u32>,
    parts_left: u32,
    is_begun: bool,
    /// It was carried out twice already.
    is_repeated: bool,
    /// All its pieces have moved.
    is_moved: bool,
    is_done: bool,
}

impl PostedRequest {
    fn is_read(&self) -> bool {
        matches!(self.work, WireOperation::Read { .. })
    }
}

const GONE: Disconnected = Disconnected { reason: "the peer is gone" };

impl Net {
    pub(super) fn connect_ends(&mut self, ends: [ConnectionEnd; 2]) -> usize {
        self.connections.push(NetConnection { ends, is_cut: false });
        self.connections.len() - 1
    }

    pub(super) fn post(
        &mut self,
        connection: usize,
        end: usize,
        batch: &[WorkRequest],
    ) -> Result<(), PostError> {
        let depth = self.distribution.queue_depth;
        let poster = &self.connections[connection].ends[end];
        if let Some(gone) = &poster.failed {
            return Err(gone.clone().into());
        }
        if batch.len() > depth {
            return Err(PostError::BatchTooLong { batch: batch.len(), depth });
        }
        for (index, request) in batch.iter().enumerate() {
            let is_atomic =
                matches!(request.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. });
            let checked = match request.check() {
                Ok(()) if is_atomic => Err("this transport has no atomics"),
                checked => checked,
            };
            checked.map_err(|reason| PostError::Malformed { index, reason })?;
        }
        let free = depth - (poster.requests.len() + poster.completions.len()).min(depth);
        if batch.len() > free || self.random.permille(self.distribution.full) {
            let free = free.min(batch.len().saturating_sub(1));
            return Err(PostError::QueueFull { free, batch: batch.len() });
        }
        let is_idle = poster.requests.is_empty();
        for request in batch {
            self.queue_request(connection, end, request);
        }
        if self.distribution.shape == TransportShape::Mapped
            && is_idle
            && self.random.permille(self.distribution.at_once)
        {
            self.carry_out(connection, end);
        } else {
            self.pump(connection, end);
        }
        Ok(())
    }

    fn queue_request(&mut self, connection: usize, end: usize, request: &WorkRequest) {
        let arrival = self.now + self.latency();
        let host = self.connections[connection].ends[end].host;
        let tampered = match &request.operation {
            Operation::WriteInline { data, .. } => self.tamper(host, *data),
            _ => Inline::word(0),
        };
        let poster = &self.connections[connection].ends[end];
        let work = match &request.operation {
            Operation::Write { local, remote, .. } => poster
                .target(remote, Access::REMOTE_WRITE)
                .map(|to| WireOperation::Write { from: WriteSource::Memory(local.clone()), to }),
            Operation::WriteInline { remote, .. } => poster
                .target(remote, Access::REMOTE_WRITE)
                .filter(|to| to.as_volatile().is_aligned())
                .map(|to| WireOperation::Write { from: WriteSource::Words(tampered), to }),
            Operation::Read { local, remote, .. } => poster
                .target(remote, Access::REMOTE_READ)
                .map(|from| WireOperation::Read { from, into: local.clone() }),
            _ => None,
        };
        let work = work.unwrap_or(WireOperation::Refused);
        let (pieces, parts) = match &work {
            WireOperation::Write { to: there, .. } | WireOperation::Read { from: there, .. } => {
                self.cut_up(there)
            }
            WireOperation::Refused => (Vec::new(), Vec::new()),
        };
        let parts_left = parts.len() as u32;
        let request = PostedRequest {
            id: request.id,
            flags: request.flags,
            work,
            arrival,
            pieces,
            parts,
            parts_left,
            is_begun: false,
            is_repeated: false,
            is_moved: false,
            is_done: false,
        };
        self.connections[connection].ends[end].requests.push_back(request);
    }

    fn request(&mut self, connection: usize, end: usize, serial: u64) -> Option<&mut PostedRequest> {
        let poster = &mut self.connections[connection].ends[end];
        let index = usize::try_from(serial.checked_sub(poster.first)?).ok()?;
        poster.requests.get_mut(index)
    }

    /// The poster hears that a request was carried out, or refused.
    pub(super) fn on_done(&mut self, connection: usize, end: usize, serial: u64) {
        let [poster, target] = [end, 1 - end].map(|end| self.connections[connection].ends[end].host);
        if let Some(until) = self.stalled_until(target, poster) {
            return self.schedule(until, NetEvent::Done { connection, end, serial });
        }
        if let Some(until) = self.deaf_until(poster) {
            return self.schedule(until, NetEvent::Done { connection, end, serial });
        }
        if self.connections[connection].is_cut && self.distribution.shape != TransportShape::Mapped {
            return;
        }
        let Some(request) = self.request(connection, end, serial) else { return };
        request.is_done = true;
        self.trace.note(serial);
        self.complete(connection, end);
    }

    fn complete(&mut self, connection: usize, end: usize) {
        let poster = &mut self.connections[connection].ends[end];
        let host = poster.host;
        let mut is_refused = false;
        while poster.requests.front().is_some_and(|request| request.is_done) {
            let Some(request) = poster.requests.pop_front() else { break };
            poster.first += 1;
            is_refused = matches!(request.work, WireOperation::Refused);
            let result = if is_refused { Err(CompletionError::RemoteAccess) } else { Ok(()) };
            if is_refused || request.flags.contains(Flags::SIGNALLED) {
                poster.completions.push_back(WorkCompletion { id: request.id, result });
            }
            if is_refused {
                break;
            }
        }
        self.touch(host);
        if is_refused {
            self.fail(connection, end, Disconnected { reason: "the peer refused a request" });
            let notice = self.latency();
            self.schedule_in(notice, NetEvent::Notice { connection, end: 1 - end });
        }
    }

    /// An end learns that its peer is gone: requests under way are flushed, in order.
    fn fail(&mut self, connection: usize, end: usize, reason: Disconnected) {
        let poster = &mut self.connections[connection].ends[end];
        if poster.failed.is_some() || poster.is_dropped {
            return;
        }
        poster.failed = Some(reason);
        let host = poster.host;
        self.let_go(connection, end);
        let poster = &mut self.connections[connection].ends[end];
        for request in poster.requests.drain(..) {
            let result = Err(CompletionError::Flushed);
            poster.completions.push_back(WorkCompletion { id: request.id, result });
        }
        self.touch(host);
    }

    /// Writes that are under way and not to be answered may arrive nevertheless: they are copied, since their memory
    /// is its owner's again.
    fn let_go(&mut self, connection: usize, end: usize) {
        if !self.random.permille(self.distribution.late) {
            return;
        }
        let poster = &mut self.connections[connection].ends[end];
        let mut late = VecDeque::new();
        for request in &poster.requests {
            match &request.work {
                WireOperation::Write { from, to } if !request.is_moved => {
                    late.push_back((to.clone(), snapshot(from)))
                }
                WireOperation::Refused => break,
                _ => {}
            }
        }
        if !late.is_empty() {
            poster.late = late;
            let arrival = self.latency() + self.random.between(0, self.distribution.notice.1);
            self.schedule_in(arrival, NetEvent::Late { connection, end });
        }
    }

    /// A write of a connection that failed at its poster arrives, unless the target knows already.
    pub(super) fn on_late(&mut self, connection: usize, end: usize) {
        let [poster, target] = &self.connections[connection].ends;
        let (there, to) = if end == 0 { (target, target.host) } else { (poster, poster.host) };
        if there.is_dropped || there.failed.is_some() || !self.hosts[to].is_alive {
            self.connections[connection].ends[end].late.clear();
            return;
        }
        if let Some(until) = self.deaf_until(to) {
            return self.schedule(until, NetEvent::Late { connection, end });
        }
        if let Some((slice, bytes)) = self.connections[connection].ends[end].late.pop_front() {
            mem::fence(Release);
            store(slice.as_volatile(), 0, &bytes);
            self.touch(to);
            let next = self.latency();
            self.schedule_in(next, NetEvent::Late { connection, end });
        }
    }

    pub(super) fn on_notice(&mut self, connection: usize, end: usize) {
        let host = self.connections[connection].ends[end].host;
        if self.distribution.shape == TransportShape::Mapped {
            self.connections[connection].ends[end].is_gone = true;
        } else if let Some(until) = self.deaf_until(host) {
            self.schedule(until, NetEvent::Notice { connection, end });
        } else {
            self.fail(connection, end, GONE);
        }
    }

    /// Tells an end whether its connection stands, as far as the end can know.
    pub(super) fn check(&mut self, connection: usize, end: usize) -> Result<(), Disconnected> {
        if self.connections[connection].ends[end].is_gone {
            self.fail(connection, end, GONE);
        }
        self.connections[connection].ends[end].failed.clone().map_or(Ok(()), Err)
    }

    /// An end is dropped, or its host is gone; the other one hears of it after `notice`.
    pub(super) fn end(&mut self, connection: usize, end: usize, notice: u64) {
        if std::mem::replace(&mut self.connections[connection].ends[end].is_dropped, true) {
            return;
        }
        let NetConnection { ends: [peer, owner], is_cut } = &self.connections[connection];
        let stood = !*is_cut && !peer.is_dropped && owner.failed.is_none();
        // A peer that only asks is granted nothing.
        if end == 1 && stood && self.hosts[owner.host].is_alive && !peer.reach.is_empty() {
            self.evictions.push(self.hosts[peer.host].node);
        }
        self.let_go(connection, end);
        let dropped = &mut self.connections[connection].ends[end];
        dropped.requests.clear();
        dropped.completions.clear();
        dropped.reach.clear();
        self.schedule_in(notice, NetEvent::Notice { connection, end: 1 - end });
    }

    /// Breaks all connections between two hosts: each end hears of it at a moment of its own.
    pub(super) fn cut(&mut self, one: HostId, other: HostId) {
        for connection in 0..self.connections.len() {
            let hosts = self.connections[connection].ends.each_ref().map(|end| end.host);
            if hosts == [one, other] || hosts == [other, one] {
                self.connections[connection].is_cut = true;
                for end in 0..2 {
                    let notice = self.notice();
                    self.schedule_in(notice, NetEvent::Notice { connection, end });
                }
            }
        }
    }

    pub(super) fn poll_completion(&mut self, connection: usize, end: usize) -> Option<WorkCompletion> {
        self.connections[connection].ends[end].completions.pop_front()
    }

    /// A word that a heartbeat may set.
    pub(super) fn light(&mut self, connection: usize, end: usize, word: &RemoteSlice) -> Option<usize> {
        let target = self.connections[connection].ends[end].target(word, Access::REMOTE_WRITE)?;
        if target.len() != 8 || !target.as_volatile().is_aligned() {
            return None;
        }
        self.lights.push(super::net::Light { connection, end, word: target, last: 0 });
        Some(self.lights.len() - 1)
    }

    /// Sends a word on its way.
    pub(super) fn shine(&mut self, light: usize, value: u64) -> Result<(), Disconnected> {
        let (connection, end) = (self.lights[light].connection, self.lights[light].end);
        let sender = &self.connections[connection].ends[end];
        if let Some(gone) = &sender.failed {
            return Err(gone.clone());
        }
        if sender.is_dropped {
            return Err(Disconnected { reason: "the endpoint of this heartbeat word was dropped" });
        }
        let at = (self.now + self.latency()).max(self.lights[light].last);
        self.lights[light].last = at;
        self.schedule(at, NetEvent::Word { light, value });
        Ok(())
    }

    pub(super) fn on_word(&mut self, light: usize, value: u64) {
        let super::net::Light { connection, end, .. } = self.lights[light];
        let NetConnection { ends, is_cut } = &self.connections[connection];
        let [from, to] = [end, 1 - end].map(|end| ends[end].host);
        let is_gone = *is_cut || ends[1 - end].is_dropped || ends[1 - end].failed.is_some();
        if is_gone && self.distribution.shape != TransportShape::Mapped || !self.hosts[to].is_alive {
            return;
        }
        if let Some(until) = self.deaf_until(to) {
            self.lights[light].last = self.lights[light].last.max(until);
            return self.schedule(until, NetEvent::Word { light, value });
        }
        if let Some(until) = self.stalled_until(from, to) {
            self.lights[light].last = self.lights[light].last.max(until);
            return self.schedule(until, NetEvent::Word { light, value });
        }
        mem::fence(Release);
        self.lights[light].word.as_volatile().store(0, value, Relaxed);
    }
}
