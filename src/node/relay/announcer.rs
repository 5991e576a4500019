//! A relay's part in the tree that its publisher arranges: a thread announces the relay again and again, and keeps the
//! publisher's last answer.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::link::Link;
use super::super::runtime::complete;
use super::super::tree::ASK_FOR;
use super::super::{Error, now};
use crate::mem::OwnThread;
use crate::param::{Joiner, TreeOwner, TreePosition};
use crate::time::Duration;
use crate::transport::{Address, Transport};

/// Shortest time between two announcements.
const REST: Duration = Duration::from_millis(20);

/// Announces a relay to its publisher, and knows its position in the tree.
pub(super) struct Announcer {
    publisher: Address,
    shared: Arc<Announcements>,
    thread: Option<OwnThread>,
    /// The owner that the relay reads from, by its number.
    owner: Option<u64>,
    /// The answer that is gone through, and the index of the owner there that is tried next.
    tried: (u64, usize),
    /// The owner that was tried last.
    last: Option<TreeOwner>,
    /// Addresses at which owners were not reached since the relay had an owner.
    unreached: Vec<TreeOwner>,
}

struct Announcements {
    told: Mutex<Announced>,
    is_over: AtomicBool,
}

struct Announced {
    /// The next announcement.
    joiner: Joiner,
    /// The last answer.
    position: TreePosition,
    /// The owner of whose loss the publisher knew when it gave that answer.
    knew_lost: Option<u64>,
    /// The number of announcements that ended: with an answer, or without any, after which the last one is gone through
    /// again.
    turns: u64,
}

impl Announcements {
    fn told(&self) -> MutexGuard<'_, Announced> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Announcer {
    /// Announces the relay again from now on, after this first answer of the publisher.
    pub(super) fn start<T: Transport>(
        transport: T,
        publisher: Address,
        mut joiner: Joiner,
        position: TreePosition,
    ) -> Result<Announcer, Error> {
        keep_number(&mut joiner, &position);
        let told = Mutex::new(Announced { joiner, position, knew_lost: None, turns: 1 });
        let shared = Arc::new(Announcements { told, is_over: AtomicBool::new(false) });
        let (announced, address) = (shared.clone(), publisher.clone());
        let thread = OwnThread::start("slackline-call", move || announce(&transport, &address, &announced));
        let thread = thread.map_err(|source| Error::Thread { what: "the relay's announcements", source })?;
        let mut announcer = Announcer::new(publisher, shared);
        announcer.thread = Some(thread);
        Ok(announcer)
    }

    fn new(publisher: Address, shared: Arc<Announcements>) -> Announcer {
        let (tried, unreached) = ((0, 0), Vec::new());
        Announcer { publisher, shared, thread: None, owner: None, tried, last: None, unreached }
    }

    /// The next owner to try, and its address; `None` until the publisher has answered again.
    pub(super) fn next(&mut self) -> Option<(u64, Address)> {
        let told = self.shared.told();
        if self.tried.0 != told.turns {
            self.tried = (told.turns, 0);
        }
        let mut untried = told.position.owners.iter().enumerate().skip(self.tried.1);
        // An answer from before the loss may name the lost owner. An answer that knows of the loss and names it has no
        // other owner.
        let next = untried.find(|(_, owner)| {
            let is_there = told.joiner.lost != Some(owner.number) || told.knew_lost == Some(owner.number);
            is_there && !self.unreached.contains(owner)
        });
        self.tried.1 = next.as_ref().map_or(told.position.owners.len(), |(index, _)| index + 1);
        self.last = next.map(|(_, owner)| owner.clone());
        let Some(owner) = &self.last else {
            // With the next answer all of them are tried once more.
            self.unreached.clear();
            return None;
        };
        Some((owner.number, owner.address.clone().unwrap_or_else(|| self.publisher.clone())))
    }

    /// The relay reads from this owner now.
    pub(super) fn reads_from(&mut self, owner: u64) {
        self.owner = Some(owner);
        self.unreached.clear();
        let mut told = self.shared.told();
        told.joiner.lost = None;
        if let Some(relay) = &mut told.joiner.relay {
            relay.reads_from = Some(owner);
        }
    }

    /// True if it reads from the publisher, and not from another relay.
    pub(super) fn reads_from_the_publisher(&self) -> bool {
        self.owner == Some(TreePosition::PUBLISHER)
    }

    /// The relay could not reach the owner that it tried last, at that address. If it has no other one, the owner is
    /// lost.
    pub(super) fn has_not_reached(&mut self) {
        let Some(last) = self.last.take() else { return };
        self.unreached.push(last.clone());
        let told = self.shared.told();
        let mut others = told.position.owners.iter().filter(|owner| owner.number == last.number);
        let is_lost = others.all(|owner| self.unreached.contains(owner));
        drop(told);
        if is_lost {
            self.has_lost(last.number);
        }
    }

    /// The relay has lost this owner: the publisher is told so at once.
    fn has_lost(&mut self, owner: u64) {
        self.owner = None;
        let mut told = self.shared.told();
        told.joiner.lost = Some(owner);
        if let Some(relay) = &mut told.joiner.relay {
            relay.reads_from = None;
        }
        drop(told);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// The same for the owner that it reads from, if it has one.
    pub(super) fn has_lost_its_owner(&mut self) {
        if let Some(owner) = self.owner {
            self.has_lost(owner);
        }
    }

    /// The relay has room for so many more peers, and versions come to it from another host at so many bytes per second
    /// (0 if that is not known).
    pub(super) fn tell(&self, room: u16, speed: u64) {
        if let Some(relay) = &mut self.shared.told().joiner.relay {
            (relay.room, relay.speed) = (room, speed);
        }
    }

    /// Whether the publisher has named other owners than the relay's current one, or has answered again since the last
    /// named owners could not be reached.
    pub(super) fn is_to_move(&self) -> bool {
        let told = self.shared.told();
        match self.owner {
            Some(owner) => told.position.owners.iter().all(|other| other.number != owner),
            None => self.tried.0 != told.turns,
        }
    }

    /// The publisher's incarnation.
    pub(super) fn origin(&self) -> u64 {
        self.shared.told().position.origin
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let to_wake = thread.thread().clone();
            // A question that is open ends within its time.
            let _has_panicked = thread.end(|| {
                self.shared.is_over.store(true, Relaxed);
                to_wake.unpark();
            });
        }
    }
}

fn keep_number(joiner: &mut Joiner, position: &TreePosition) {
    if let Some(relay) = &mut joiner.relay {
        relay.number = Some(position.number);
    }
}

/// Announces the relay until its announcer is dropped.
fn announce<T: Transport>(transport: &T, publisher: &Address, shared: &Announcements) {
    while !shared.is_over.load(Relaxed) {
        let (joiner, again) = {
            let told = shared.told();
            (told.joiner.clone(), told.position.again())
        };
        let (asked, lost) = (now(), joiner.lost);
        let answer = complete(Link::<T::Endpoint>::ask_position(transport, publisher, joiner, ASK_FOR));
        let mut told = shared.told();
        told.turns += 1;
        match answer {
            Ok(position) => {
                keep_number(&mut told.joiner, &position);
                (told.position, told.knew_lost) = (position, lost);
            }
            Err(error) => tracing::debug!(%error, "the publisher has not answered an announcement"),
        }
        drop(told);
        std::thread::sleep(REST);
        std::thread::park_timeout(again.saturating_sub(now() - asked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Host;

    /// The announcer of a relay that was told of these owners, and the publisher's address.
    fn told(owners: Vec<TreeOwner>) -> (Announcer, Address) {
        let position = TreePosition { number: 9, again_ns: 1, origin: 7, begin_at: 0, owners };
        let joiner = Joiner { host: Host::own(), lost: None, relay: None };
        let told = Mutex::new(Announced { joiner, position, knew_lost: None, turns: 1 });
        let shared = Arc::new(Announcements { told, is_over: AtomicBool::new(false) });
        let publisher: Address = "127.0.0.1:9".parse().unwrap();
        (Announcer::new(publisher.clone(), shared), publisher)
    }

    fn at(address: &str) -> Address {
        address.parse().unwrap()
    }

    fn owner(number: u64, address: &str) -> TreeOwner {
        TreeOwner { number, address: Some(at(address)) }
    }

    #[test]
    fn a_lost_owner_is_tried_again_if_the_publisher_knows_and_still_names_it() {
        let (mut announcer, publisher) =
            told(vec![TreeOwner { number: TreePosition::PUBLISHER, address: None }]);
        let named = Some((TreePosition::PUBLISHER, publisher));
        assert_eq!(announcer.next(), named);
        announcer.has_lost(TreePosition::PUBLISHER);
        announcer.shared.told().turns += 1;
        assert_eq!(announcer.next(), None, "the answer is from before the loss");
        announcer.shared.told().knew_lost = Some(TreePosition::PUBLISHER);
        announcer.shared.told().turns += 1;
        assert_eq!(announcer.next(), named);
        assert_eq!(announcer.next(), None, "once for each answer");
    }

    #[test]
    fn an_owner_is_lost_once_it_is_reached_at_none_of_its_addresses() {
        let owners =
            vec![owner(1, "@one"), owner(1, "127.0.0.1:1"), owner(2, "@two"), owner(2, "127.0.0.1:2")];
        let (mut announcer, _) = told(owners);
        assert_eq!(announcer.next(), Some((1, at("@one"))));
        announcer.has_not_reached();
        assert_eq!(announcer.shared.told().joiner.lost, None, "it has another address");
        // An answer in between changes nothing.
        announcer.shared.told().turns += 1;
        assert_eq!(announcer.next(), Some((1, at("127.0.0.1:1"))));
        announcer.has_not_reached();
        assert_eq!(announcer.shared.told().joiner.lost, Some(1));
        assert_eq!(announcer.next(), Some((2, at("@two"))));
        announcer.reads_from(2);
        assert_eq!(announcer.shared.told().joiner.lost, None);
    }

    #[test]
    fn owners_that_were_not_reached_are_all_tried_again_with_the_next_answer() {
        let (mut announcer, _) = told(vec![owner(1, "@one"), owner(2, "@two")]);
        for turn in 0..3 {
            announcer.shared.told().knew_lost = (turn > 0).then_some(2);
            for (number, address) in [(1, "@one"), (2, "@two")] {
                assert_eq!(announcer.next(), Some((number, at(address))), "turn {turn}");
                announcer.has_not_reached();
            }
            assert_eq!(announcer.next(), None);
            announcer.shared.told().turns += 1;
        }
    }
}
