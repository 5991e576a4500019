//! Peers that are disconnected. A thread of its own frees their resources: that may take many milliseconds for each
//! peer, during which the owner serves all others.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use super::{DisconnectReason, Gone, Shard, ShardEvent, ShardPeer};
use crate::mem::OwnThread;
use crate::param::PeerInbox;
use crate::transport::{Endpoint, HANDSHAKE_TIMEOUT, Remains, Transport};

/// Period at which the thread looks whether memory is still read that it is to give back.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The resources of a disconnected peer. [`Endpoint::close`] says from when on the peer reaches none of them.
struct PeerRemains {
    // Dropped in this order.
    connection: Option<Remains>,
    inbox: Option<PeerInbox>,
}

/// A wait until the thread has freed all resources that were in its queue at some moment.
pub(super) struct Undone(Option<Receiver<()>>);

impl Undone {
    /// Waits for that, but no longer than a handshake may take. Memory and queue pairs for a new peer may be short
    /// until those of departed peers are freed.
    pub(super) fn wait(self) {
        if let Some(undone) = self.0
            && undone.recv_timeout(HANDSHAKE_TIMEOUT) == Err(RecvTimeoutError::Timeout)
        {
            tracing::warn!("a newcomer no longer waits for what is left of earlier peers");
        }
    }
}

/// Peers of which something is left to be undone.
#[derive(Default)]
pub(super) struct DepartingPeers {
    /// The thread, once a peer has left, and its queue.
    thread: Option<(SyncSender<Box<PeerRemains>>, OwnThread)>,
}

impl DepartingPeers {
    /// Lets the thread free the resources of a peer. At most `peers` peers may be in at a time.
    fn undo(&mut self, remains: PeerRemains, peers: u16) {
        if self.thread.is_none() {
            // As many newcomers may wait.
            let (queue, undoing) = sync_channel(2 * usize::from(peers));
            match OwnThread::start("slackline-leave", move || undo_all(&undoing)) {
                Ok(thread) => self.thread = Some((queue, thread)),
                Err(error) => tracing::error!(%error, "cannot start a thread to let peers go; see ulimit -u"),
            }
        }
        if let Some((queue, _)) = &self.thread {
            // Where peers come and go faster than they are undone the queue is full, and this one is undone here.
            let _refused = queue.try_send(Box::new(remains));
        }
    }

    /// A wait for the current content of the queue.
    pub(super) fn undone(&self) -> Undone {
        let Some((queue, _)) = &self.thread else { return Undone(None) };
        let (mark, undone) = channel::<()>();
        // It is dropped behind the current content of the queue.
        let mark = PeerRemains { connection: Some(Box::new(mark)), inbox: None };
        Undone(queue.try_send(Box::new(mark)).is_ok().then_some(undone))
    }
}

impl Drop for DepartingPeers {
    fn drop(&mut self) {
        let Some((queue, thread)) = self.thread.take() else { return };
        if !thread.end(move || drop(queue)) {
            tracing::error!("the thread that was to let peers go has panicked");
        }
    }
}

/// Frees the resources in the queue, in order, until its sender is gone.
fn undo_all(queue: &Receiver<Box<PeerRemains>>) {
    // Inboxes out of which gradients are still folded: if this thread dropped them now, the owner's thread would free
    // them.
    let mut inboxes: Vec<PeerInbox> = Vec::new();
    let give_back = |inboxes: &mut Vec<PeerInbox>| inboxes.retain(|inbox| !inbox.is_unshared());
    loop {
        let next = match inboxes.is_empty() {
            true => queue.recv().map_err(RecvTimeoutError::from),
            false => queue.recv_timeout(LOOK_EVERY),
        };
        match next {
            Ok(remains) => {
                // The owner may have released some before it sent this, and this may be the mark of a wait for them.
                give_back(&mut inboxes);
                drop(remains.connection);
                inboxes.extend(remains.inbox);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        give_back(&mut inboxes);
    }
}

impl<T: Transport> Shard<T> {
    /// Disconnects a peer: its pins, its slots and its gradients that were not applied become void.
    pub(in crate::node) fn dismiss(
        &mut self,
        peer: u16,
        disconnect_reason: DisconnectReason,
        events: &mut Vec<ShardEvent>,
    ) {
        let Some(gone) = self.peers[usize::from(peer)].take() else { return };
        self.news.sleepers -= usize::from(gone.sleeps);
        self.pushed_to -= usize::from(gone.push.is_some());
        self.frames.close_line(peer, disconnect_reason.eviction());
        if gone.worker {
            self.taken.leave(gone.identity);
        }
        if let (Some(shard), Some(decider)) = (gone.follows, &mut self.decider) {
            decider.leave(shard);
        }
        self.misbehaved += u64::from(matches!(disconnect_reason, DisconnectReason::Misbehaved(_)));
        match disconnect_reason {
            DisconnectReason::Closed(_) => tracing::info!(peer, reason = %disconnect_reason, "peer left"),
            _ => tracing::warn!(peer, reason = %disconnect_reason, "peer evicted"),
        }
        let slots = gone.inbox.slot_geometry().map_or(0, |geometry| u64::from(geometry.slots));
        let ShardPeer { endpoint, inbox, worker, began, generation, identity, session, .. } = gone;
        let (published, is_honest) =
            (inbox.published(), !matches!(disconnect_reason, DisconnectReason::Misbehaved(_)));
        let remaining = Some(inbox.clone());
        let gone = Gone { worker, published, slots, is_honest, inbox, began, generation, identity, session };
        events.push(ShardEvent::Left { peer, gone });
        // Where the end of the connection keeps the peer from reading its line, this tells it the same.
        let connection = endpoint.close(disconnect_reason.eviction().state());
        // The nodes of a simulator run in one thread, in which nothing takes long.
        if self.runtime.simulator().is_none() {
            let remains = PeerRemains { connection, inbox: remaining };
            self.departing.undo(remains, self.config.options.peers);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;
    use std::thread::ThreadId;

    use super::*;
    use crate::clock::Clock;
    use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion, Registration};
    use crate::mem::{alone, true_in_a_forked_child};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Tells in which thread it is undone.
    struct Noted(Sender<ThreadId>);

    impl Registration for Noted {}

    impl Drop for Noted {
        fn drop(&mut self) {
            let _unheard = self.0.send(std::thread::current().id());
        }
    }

    /// Takes until it is told to be undone.
    struct Held(Receiver<()>);

    impl Drop for Held {
        fn drop(&mut self) {
            let _told = self.0.recv();
        }
    }

    fn connection(remains: impl Send + 'static) -> PeerRemains {
        PeerRemains { connection: Some(Box::new(remains)), inbox: None }
    }

    fn own() -> ThreadId {
        std::thread::current().id()
    }

    #[test]
    fn another_thread_undoes_what_is_left_before_the_owner_is_gone() {
        let (mut departing, (hold, held), (note, noted)) = (DepartingPeers::default(), channel(), channel());
        departing.undo(connection((Held(held), Noted(note))), 1);
        assert!(noted.try_recv().is_err(), "the owner has waited for it");
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(hold);
        });
        drop(departing);
        assert_ne!(noted.try_recv().expect("it is undone"), own());
    }

    #[test]
    fn a_newcomer_waits_for_what_earlier_peers_have_left() {
        let (mut departing, (hold, held)) = (DepartingPeers::default(), channel());
        assert!(departing.undone().0.is_none(), "nothing is left");
        departing.undo(connection(Held(held)), 1);
        let undone = departing.undone().0.expect("something is left");
        assert_eq!(undone.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        drop(hold);
        assert_eq!(undone.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn no_more_is_left_to_the_thread_than_there_may_be_peers_and_newcomers() {
        let (mut departing, (hold, held), (note, noted)) = (DepartingPeers::default(), channel(), channel());
        departing.undo(connection(Held(held)), 2);
        (0..20).for_each(|_| departing.undo(connection(Noted(note.clone())), 2));
        let here: Vec<_> = noted.try_iter().collect();
        // Whether the thread has taken the first one out of the queue is not known.
        assert!((16..=17).contains(&here.len()) && here.iter().all(|thread| *thread == own()));
        drop(hold);
    }

    #[test]
    fn memory_that_is_still_folded_is_given_back_by_the_thread_as_well() {
        let (mut departing, (note, noted)) = (DepartingPeers::default(), channel());
        let memory = HostMemory::anonymous(PeerInbox::page_bytes(0)).unwrap();
        let page = MemoryRegion::new(memory, Access::REMOTE_WRITE, DeviceKeys::NONE, Noted(note));
        let inbox = PeerInbox::new(page, None, Clock::new(0));
        departing.undo(PeerRemains { connection: None, inbox: Some(inbox.clone()) }, 1);
        let undone = departing.undone().0.expect("something is left");
        assert_eq!(undone.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        assert!(noted.try_recv().is_err(), "it is still read");
        drop(inbox);
        assert_ne!(noted.recv_timeout(PATIENCE).expect("it is given back"), own());
    }

    #[test]
    fn a_forked_child_waits_for_no_thread_of_its_parent() {
        if !alone("node::shard::departing::tests::a_forked_child_waits_for_no_thread_of_its_parent") {
            return;
        }
        let (mut departing, (hold, held)) = (DepartingPeers::default(), channel());
        departing.undo(connection(Held(held)), 1);
        let mut departing = Some(departing);
        let is_gone = true_in_a_forked_child(|| {
            let (gone, is_gone) = channel();
            let departing = departing.take();
            std::thread::spawn(move || {
                drop(departing);
                let _unheard = gone.send(());
            });
            is_gone.recv_timeout(Duration::from_secs(10)).is_ok()
        });
        drop(hold);
        assert!(is_gone);
    }
}
