//! A member that breaks the protocol: its program is the ordinary one, and words of its inbox are forged, in its writes
//! and in the owner's memory at any moment afterwards.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use super::flow::NetGrant;
use super::net::{HostId, Net, NetEvent};
use crate::param::own_page;
use crate::transport::Inline;

/// Slots whose headers are forged, among the slots that fit the page: no scheme here has more.
const SLOTS_MAX: usize = 6;

/// Indices of an owner's grants to a peer, in the order of the handshake.
const CONTROL: usize = 0;
const PAGE: usize = 2;

impl Net {
    /// True if this incarnation of a node breaks the protocol now.
    fn lies(&self, host: HostId) -> bool {
        self.distribution.liar == Some(self.hosts[host].node)
    }

    /// Returns a node's words as they leave it.
    pub(super) fn tamper(&mut self, host: HostId, data: Inline) -> Inline {
        if !self.lies(host) || !self.random.permille(self.distribution.lying) {
            return data;
        }
        let (count, mut words) = (data.words().len(), [0; 8]);
        words[..count].copy_from_slice(data.words());
        let at = self.random.between(0, count as u64 - 1) as usize;
        words[at] = self.forged(words[at]);
        if count == 1 { Inline::word(words[0]) } else { Inline::line(words) }
    }

    /// A node's write has landed: it may be changed again before the owner has done with it.
    pub(super) fn tempt(&mut self, host: HostId) {
        if self.lies(host) && self.random.permille(self.distribution.lying) {
            let most = self.random.pick(&[1_000, 100_000, 5_000_000]);
            let after = self.random.between(0, most);
            self.schedule_in(after, NetEvent::Lie);
        }
    }

    /// Replaces a word of the liar's inbox at one of its owners.
    pub(super) fn on_lie(&mut self) {
        let Some(host) = self.distribution.liar.and_then(|node| self.living(node)) else { return };
        let Some((owner, grants)) = self.inbox_of(host) else { return };
        let page = grants[PAGE].slice.clone();
        let slots = self.random.between(1, SLOTS_MAX as u64) as usize;
        let all: Vec<usize> = own_page::inbox_words(slots).filter(|at| at + 8 <= page.len()).collect();
        let own = own_page::inbox_words(0).count();
        // One word of its own or of a header, or several that belong together.
        let count = self.random.pick(&[1, 1, 2, 8]);
        let choice = if self.random.permille(600) { own } else { all.len() };
        let from = self.random.between(0, choice as u64 - 1) as usize;
        for at in all.into_iter().skip(from).take(count) {
            let word = self.forged(page.as_volatile().load(at, Relaxed));
            page.as_volatile().store(at, word, Relaxed);
            // Not the word itself: a header has the epoch in it, which is another one in each run.
            self.trace.note(at as u64);
        }
        self.touch(owner);
    }

    /// Another word instead of this one: taken back, a little more, with a wrong bit, or anything at all.
    fn forged(&mut self, word: u64) -> u64 {
        let little = self.random.between(1, 3);
        match self.random.between(0, 7) {
            0 | 1 => word.saturating_sub(little),
            2 => 0,
            3 | 4 => word.saturating_add(little),
            5 => word ^ 1 << self.random.between(0, 63),
            6 => u64::MAX,
            _ => self.random.word(),
        }
    }

    /// Pins the newest frame of an owner for a while, as a reader in place does where memory is shared.
    pub(super) fn pin(&mut self, host: HostId, nanos: u64) {
        let Some((_, grants)) = self.inbox_of(host) else { return };
        let newest = own_page::newest_frame(&grants[CONTROL].slice.as_volatile());
        let page = grants[PAGE].slice.clone();
        let pin = own_page::pin_word();
        page.as_volatile().store(pin, u64::from(newest) + 1, Relaxed);
        self.pins.push(page.slice(pin, 8).unwrap_or(page));
        let index = self.pins.len() - 1;
        self.schedule_in(nanos, NetEvent::Unpin { index });
    }

    /// Ends a pin.
    pub(super) fn unpin(&mut self, index: usize) {
        self.pins[index].as_volatile().store(0, 0, Relaxed);
    }

    /// The owner of one of the inboxes of this incarnation of a node, and its grants.
    fn inbox_of(&mut self, host: HostId) -> Option<(HostId, Vec<NetGrant>)> {
        let inboxes: Vec<usize> = (0..self.connections.len())
            .filter(|at| {
                let [peer, owner] = &self.connections[*at].ends;
                peer.host == host && !peer.is_dropped && peer.reach.len() > PAGE && !owner.is_dropped
            })
            .collect();
        let inbox = *inboxes.get(self.random.between(0, (inboxes.len() as u64).max(1) - 1) as usize)?;
        let [peer, owner] = &self.connections[inbox].ends;
        Some((owner.host, peer.reach.clone()))
    }
}
