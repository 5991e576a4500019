//! Peers that sleep until there is something new for them.

use super::Shard;
use crate::clock::Clock;
use crate::param::fence_before_waking;
use crate::transport::{Endpoint, Transport};

/// The peers for which there may be news since the sleeping peers were last woken.
#[derive(Debug, Default)]
pub(in crate::node) struct News {
    /// Peers that sleep while they wait.
    pub(super) sleepers: usize,
    for_any: bool,
    for_all: bool,
}

impl<T: Transport> Shard<T> {
    /// There is something new for all peers, such as a version.
    pub(in crate::node) fn note_news(&mut self) {
        (self.news.for_any, self.news.for_all) = (true, true);
    }

    /// Gives a worker its slots back up to (not including) `clock`, which is something new for it alone.
    pub(in crate::node) fn set_consumed(&mut self, peer: u16, clock: Clock) {
        self.frames.set_consumed(peer, clock);
        if let Some(peer) = &mut self.peers[usize::from(peer)] {
            (peer.has_news, self.news.for_any) = (true, true);
        }
    }

    /// Wakes the sleeping peers for which there is news. If no peer ever sleeps, it looks at none.
    pub(in crate::node) fn wake_peers(&mut self) {
        let for_all = std::mem::take(&mut self.news.for_all);
        if !std::mem::take(&mut self.news.for_any) || self.news.sleepers == 0 {
            return;
        }
        let mut is_fenced = false;
        for peer in self.peers.iter_mut().flatten() {
            let has_news = std::mem::take(&mut peer.has_news) | for_all;
            if !has_news || !peer.sleeps {
                continue;
            }
            if !std::mem::replace(&mut is_fenced, true) {
                fence_before_waking();
            }
            let times = peer.inbox.sleeps();
            if std::mem::replace(&mut peer.woken, times) != times {
                peer.endpoint.wake();
            }
        }
    }
}
