//! Nodes that sleep while they wait, and are woken by what they wait for.

use std::sync::Arc;

use super::Error;
use super::link::Link;
use super::runtime::Runtime;
use super::wait::WaitTurn;
use crate::param::SleepWord;
use crate::time::Duration;
use crate::transport::{Address, ConnectError, Doorbell, Endpoint};

/// Behaviours of a node while it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Idle {
    /// Look for something again and again, standing back a little in between: what comes is seen at once, for a
    /// processor's time.
    #[default]
    Poll,
    /// Sleep until a peer that has announced something wakes this node, or for 20 ms at most. An owner (a server or a
    /// publisher) is woken over RDMA by WRITEs with immediate data, over TCP by the thread that carries out the write,
    /// over shared memory by an eventfd. A worker or a reader is woken over shared memory alone, and polls if it is
    /// connected to any owner in another way.
    Sleep,
}

impl Idle {
    /// A doorbell for a worker or a reader that sleeps, for owners to ring.
    pub(super) fn doorbell(
        self,
        runtime: &Runtime,
        address: &Address,
    ) -> Result<Option<Arc<Doorbell>>, Error> {
        if self == Idle::Poll || runtime.simulator().is_some() {
            return Ok(None);
        }
        let doorbell = Doorbell::new().map_err(|source| ConnectError::no_doorbell(address, source))?;
        Ok(Some(doorbell))
    }
}

/// The doorbell at which a peer sleeps, and the word by which it tells one owner so.
pub(super) struct Sleeper {
    doorbell: Arc<Doorbell>,
    word: SleepWord,
}

/// A sleep ends after so long in any case: connections are looked after that often, and no wake-up is owed.
const LOOK_EVERY: Duration = if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_millis(20) };

impl Sleeper {
    /// None where the owner at the other end has no way to wake this peer.
    pub(super) fn new(
        doorbell: Arc<Doorbell>,
        word: Option<SleepWord>,
        address: &Address,
    ) -> Option<Sleeper> {
        if word.is_none() {
            tracing::info!(%address, "this transport cannot wake a peer that sleeps: polling");
        }
        word.map(|word| Sleeper { doorbell, word })
    }
}

/// The end of a turn of a wait for the owners of `links`: sleeps, for `at_most`, if there was nothing to do and all of
/// them know that this node sleeps. They are told first, and what is waited for is looked at once more.
pub(super) fn rest<'a, R, E: Endpoint + 'a>(
    turn: WaitTurn<R>,
    links: impl Iterator<Item = &'a Link<E>> + Clone,
    at_most: Duration,
) -> WaitTurn<R> {
    let sleepers = links.clone().filter_map(|link| link.sleeper.as_ref());
    let Some(Sleeper { doorbell, .. }) = sleepers.clone().next() else { return turn };
    let is_idle = matches!(turn, WaitTurn::Idle) && !at_most.is_zero();
    if !is_idle || !links.clone().all(Link::may_sleep) {
        // Whoever is awake, and whose wait has ended, need not be woken.
        sleepers.filter(|sleeper| sleeper.word.is_set()).for_each(|sleeper| sleeper.word.clear());
        return turn;
    }
    let mut all_know = true;
    for sleeper in sleepers.filter(|sleeper| !sleeper.word.is_set()) {
        sleeper.word.set();
        all_know = false;
    }
    if all_know {
        doorbell.wait(&[], at_most.min(LOOK_EVERY));
    }
    WaitTurn::Slept
}

#[cfg(test)]
mod tests;
