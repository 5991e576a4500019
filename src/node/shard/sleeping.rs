//! An owner that sleeps until its peers wake it.

use super::{CHECK_EVERY, Shard, ShardPeer};
use crate::node::Idle;
use crate::node::wait::WaitTurn;
use crate::time::{Duration, Silence};
use crate::transport::{ArrivalWatch, Listener, Transport};

impl<T: Transport> Shard<T> {
    /// The behaviour of the owner while it has no work.
    pub(in crate::node) fn idle(&self) -> Idle {
        self.config.options.idle
    }

    /// The end of a turn that got nowhere: sleeps for `at_most` where peers wake this thread. An owner does not sleep
    /// while it has work under way whose end no peer announces (`is_busy`), nor in a forked child, where it would take
    /// the wake-ups of its parent.
    pub(in crate::node) fn sleep(&mut self, is_busy: bool, at_most: Duration) -> WaitTurn<()> {
        let is_pushing = |peer: &ShardPeer<T::Endpoint>| {
            peer.wants_push || peer.push.as_ref().is_some_and(|push| push.source().is_some())
        };
        let is_busy = is_busy || !self.joining.is_empty();
        let are_pushing = self.pushed_to > 0 && self.peers.iter().flatten().any(is_pushing);
        if !self.is_notified || is_busy || are_pushing || self.is_inherited() {
            return WaitTurn::Idle;
        }
        // Connections and heartbeats are checked that often in any case.
        let look = (self.beaten + self.look_every()).saturating_since(self.runtime.now());
        self.listener.wait(at_most.min(look));
        // It may have been a newcomer, which wakes this thread once.
        self.greeted = None;
        WaitTurn::Slept
    }

    /// Returns a watch at which another thread sleeps until a peer arrives, if the owner sleeps and the transport can
    /// do that: peers that are accepted from now on do not wake this owner.
    pub(in crate::node) fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        if std::mem::take(&mut self.is_notified) { self.listener.watch_arrivals() } else { None }
    }

    pub(super) fn look_every(&self) -> Duration {
        CHECK_EVERY.min(Silence::look_every(self.config.options.lease))
    }
}
