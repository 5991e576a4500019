//! How the bytes of a request are carried from one end of a simulated connection to the other.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{NetConnection, PostedRequest, WireOperation, WriteSource};
use crate::mem;
use crate::mem::{Access, LocalSlice, VolatileSlice};
use crate::sim::fabric::net::{Net, NetEvent, TransportShape};
use crate::transport::Flags;

impl Net {
    /// Carries out all requests of an end, as its own processor does where memory is mapped.
    pub(super) fn carry_out(&mut self, connection: usize, end: usize) {
        let [poster, target] = [end, 1 - end].map(|end| self.connections[connection].ends[end].host);
        for request in &mut self.connections[connection].ends[end].requests {
            move_part(request, WHOLE, None);
            (request.is_begun, request.is_moved, request.is_done) = (true, true, true);
            if matches!(request.work, WireOperation::Refused) {
                break;
            }
        }
        self.complete(connection, end);
        self.touch(target);
        self.tempt(poster);
    }

    /// Pieces of a range, in any order, and where the parts of them end. Aligned words are never cut.
    pub(super) fn cut_up(&mut self, there: &LocalSlice) -> (Vec<(u32, u32)>, Vec<u32>) {
        let unit = if self.distribution.lines { 64 } else { 8 };
        let unit =
            unit.max(there.len().div_ceil(PIECES_MAX).next_multiple_of(64) * usize::from(there.len() > 512));
        let mut pieces = Vec::with_capacity(there.len() / unit + 2);
        let mut at = 0;
        while at < there.len() {
            let len = (unit - (there.offset() + at) % unit).min(there.len() - at);
            pieces.push((at as u32, len as u32));
            at += len;
        }
        self.random.shuffle(&mut pieces);
        let most = self.distribution.parts_max.min(pieces.len() as u64).max(1);
        let count = self.random.between(1, most);
        let mut parts: Vec<u32> =
            (1..count).map(|_| self.random.between(0, pieces.len() as u64) as u32).collect();
        parts.push(pieces.len() as u32);
        parts.sort_unstable();
        (pieces, parts)
    }

    /// Begins every request that may begin now.
    pub(super) fn pump(&mut self, connection: usize, end: usize) {
        let mut reads_moved = true;
        let mut writes_moved = true;
        for index in 0..self.connections[connection].ends[end].requests.len() {
            let poster = &mut self.connections[connection].ends[end];
            let serial = poster.first + index as u64;
            let request = &mut poster.requests[index];
            if request.flags.contains(Flags::FENCE) && !reads_moved {
                break;
            }
            if let WireOperation::Refused = request.work {
                // Nothing behind it is carried out.
                if !std::mem::replace(&mut request.is_begun, true) {
                    let at = request.arrival + self.latency();
                    self.schedule(at, NetEvent::Done { connection, end, serial });
                }
                break;
            }
            let is_read = request.is_read();
            let may_begin = !request.is_begun && (is_read || writes_moved);
            reads_moved &= !is_read || request.is_moved;
            writes_moved &= is_read || request.is_moved;
            if may_begin {
                request.is_begun = true;
                let (arrival, parts) = (request.arrival.max(self.now), request.parts.len() as u32);
                for part in 0..parts {
                    let at = arrival + self.random.between(0, self.distribution.spread);
                    self.schedule(at, NetEvent::Part { connection, end, serial, part });
                }
            }
        }
    }

    /// Carries out one part of a request.
    pub(in crate::sim::fabric) fn on_part(&mut self, connection: usize, end: usize, serial: u64, part: u32) {
        let [poster, target] = [end, 1 - end].map(|end| self.connections[connection].ends[end].host);
        if let Some(until) = self.stalled_until(poster, target) {
            let at = until + self.random.between(0, self.distribution.spread);
            return self.schedule(at, NetEvent::Part { connection, end, serial, part });
        }
        let is_read = self.request(connection, end, serial).is_some_and(|request| request.is_read());
        if let Some(until) = self.halted_until(poster, target, is_read) {
            return self.schedule(until, NetEvent::Part { connection, end, serial, part });
        }
        let NetConnection { ends, is_cut } = &self.connections[connection];
        let there = &ends[1 - end];
        // A request to a node that is gone is not answered, unless it needs only memory.
        let is_mapped = self.distribution.shape == TransportShape::Mapped;
        let answering = is_mapped || !*is_cut && !there.is_dropped && there.failed.is_none();
        let successor = if self.hosts[target].is_alive { None } else { self.living(self.hosts[target].node) };
        if !answering && successor.is_none() {
            if !*is_cut && !self.hosts[target].is_alive && self.request(connection, end, serial).is_some() {
                // It is sent again and again, until the poster hears that no node is there.
                let again = self.random.between(500_000, 3_000_000);
                self.schedule_in(again, NetEvent::Part { connection, end, serial, part });
            }
            return;
        }
        let same_keys = self.distribution.same_keys;
        let Some(request) = self.request(connection, end, serial) else { return };
        let mut instead = None;
        if let (WireOperation::Read { from, .. }, Some(successor), false) =
            (&request.work, successor, answering)
        {
            // The key means something to the node's next incarnation, too: a READ cannot tell.
            let index = from.region().device_keys().local[0] as usize;
            let (offset, len) = (from.offset(), from.len());
            let region = self.hosts[successor].regions.get(index.wrapping_sub(1)).cloned();
            let region = region.filter(|region| same_keys && region.access().contains(Access::REMOTE_READ));
            instead = region.and_then(|region| region.slice(offset, len).ok());
        }
        if !answering && instead.is_none() {
            return self.meet_an_unauthenticated_peer(connection, end, serial);
        }
        let Some(request) = self.request(connection, end, serial) else { return };
        move_part(request, part, instead.as_ref());
        request.parts_left = request.parts_left.saturating_sub(1);
        let is_moved = request.parts_left == 0;
        if is_moved && !request.is_repeated && self.random.permille(self.distribution.repeated) {
            // The answer, or the acknowledgement, was lost: all or a part of it is carried out once more.
            let part_again = if self.random.permille(500) { WHOLE } else { part };
            let again = self.latency();
            if let Some(request) = self.request(connection, end, serial) {
                (request.is_repeated, request.parts_left) = (true, 1);
            }
            self.schedule_in(again, NetEvent::Part { connection, end, serial, part: part_again });
        } else if is_moved {
            if let Some(request) = self.request(connection, end, serial) {
                request.is_moved = true;
            }
            let back = self.latency();
            self.schedule_in(back, NetEvent::Done { connection, end, serial });
            self.pump(connection, end);
        }
        if !is_read {
            self.touch(target);
            if is_moved {
                self.tempt(poster);
            }
        }
    }

    /// A request reaches the next incarnation of its target, which never granted anything to this connection.
    fn meet_an_unauthenticated_peer(&mut self, connection: usize, end: usize, serial: u64) {
        if !self.random.permille(300) {
            return;
        }
        let back = self.latency();
        if let Some(request) = self.request(connection, end, serial) {
            request.work = WireOperation::Refused;
            request.is_begun = true;
            self.schedule_in(back, NetEvent::Done { connection, end, serial });
        }
    }
}

/// Requests have at most so many pieces; longer ones have longer pieces.
const PIECES_MAX: usize = 64;

/// The part that is all of a request.
const WHOLE: u32 = u32::MAX;

pub(super) fn snapshot(from: &WriteSource) -> Vec<u8> {
    match from {
        WriteSource::Words(words) => words.words().iter().flat_map(|word| word.to_le_bytes()).collect(),
        WriteSource::Memory(memory) => {
            let mut bytes = vec![0; memory.len()];
            memory.as_volatile().read(&mut bytes);
            bytes
        }
    }
}

/// Moves one part of a request's pieces. A READ whose target is another memory by now reads `instead`.
fn move_part(request: &PostedRequest, part: u32, instead: Option<&LocalSlice>) {
    let index = part as usize;
    let pieces = match request.parts.get(index) {
        _ if part == WHOLE => &request.pieces[..],
        Some(end) => {
            let begin = if index == 0 { 0 } else { request.parts[index - 1] };
            &request.pieces[begin as usize..*end as usize]
        }
        None => &[],
    };
    match &request.work {
        WireOperation::Refused => {}
        WireOperation::Write { from, to } => {
            mem::fence(Release);
            for (at, len) in pieces.iter().map(|(at, len)| (*at as usize, *len as usize)) {
                match from {
                    WriteSource::Words(words) => {
                        for (offset, word) in words.words().iter().enumerate() {
                            if (at..at + len).contains(&(offset * 8)) {
                                to.as_volatile().store(offset * 8, *word, Relaxed);
                            }
                        }
                    }
                    WriteSource::Memory(memory) => {
                        copy(memory.as_volatile(), to.as_volatile(), at, len, to.offset())
                    }
                }
            }
        }
        WireOperation::Read { from, into } => {
            let from = instead.unwrap_or(from);
            for (at, len) in pieces.iter().map(|(at, len)| (*at as usize, *len as usize)) {
                copy(from.as_volatile(), into.as_volatile(), at, len, from.offset());
            }
            mem::fence(Acquire);
        }
    }
}

/// Copies a range word by word, where the words of the memory that lies at `base` of its region are.
fn copy(from: VolatileSlice<'_>, to: VolatileSlice<'_>, at: usize, len: usize, base: usize) {
    let (mut at, end) = (at, at + len);
    let mut bytes = [0; 8];
    while at < end {
        let step = (8 - (base + at) % 8).min(end - at);
        let (source, target) = (from.subslice(at, step), to.subslice(at, step));
        if step == 8 && source.is_aligned() {
            bytes = source.load(0, Relaxed).to_le_bytes();
        } else {
            source.read(&mut bytes[..step]);
        }
        store(target, 0, &bytes[..step]);
        at += step;
    }
}

/// Stores bytes, whole words at a time where they are words.
pub(super) fn store(to: VolatileSlice<'_>, at: usize, bytes: &[u8]) {
    let target = to.subslice(at, bytes.len());
    if !target.is_aligned() {
        return target.write(bytes);
    }
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        target.store(index * 8, u64::from_le_bytes(*word), Relaxed);
    }
    target.subslice(words.len() * 8, rest.len()).write(rest);
}
