//! The clock, the waits and the heartbeats of a node, either of this process or of the simulator that its transport
//! belongs to.
//!
//! The waits of nodes are futures. In a process they end at the first poll, since [`Runtime::stand_back`] itself waits:
//! [`complete`] is then an ordinary blocking call. In a simulator they are suspended wherever time passes, and the
//! simulator polls them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Backoff, now};
use crate::time::{Duration, Instant};
use crate::transport::{Simulator, Transport};

/// The clock and the waits of one node. The default uses the clock of this process.
#[derive(Clone, Default)]
pub(crate) struct Runtime(Option<Arc<dyn Simulator>>);

impl Runtime {
    /// The runtime of the nodes over `transport`.
    pub(crate) fn of<T: Transport>(transport: &T) -> Runtime {
        Runtime(transport.simulator())
    }

    /// The simulator, if there is one.
    pub(super) fn simulator(&self) -> Option<&dyn Simulator> {
        self.0.as_deref()
    }

    /// The time.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        match &self.0 {
            None => now(),
            Some(simulator) => simulator.now(),
        }
    }

    /// The time of day in nanoseconds since 1970, or of the simulation.
    pub(super) fn time_of_day(&self) -> u64 {
        let Some(simulator) = &self.0 else {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            return since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        };
        simulator.now().as_nanos()
    }

    /// Stands back once after a turn that found nothing to do.
    pub(super) async fn stand_back(&self, backoff: &mut Backoff) {
        match &self.0 {
            None => backoff.wait(),
            Some(simulator) => self.pass(|| simulator.stand_back(backoff.count())).await,
        }
    }

    /// The same while an answer is on its way: see [`Backoff::wait_for_answer`].
    pub(super) async fn wait_for_answer(&self, backoff: &mut Backoff) {
        match &self.0 {
            None => backoff.wait_for_answer(),
            Some(simulator) => self.pass(|| simulator.stand_back(backoff.count())).await,
        }
    }

    /// The same for a pull that was lapped: see [`Backoff::hurry`].
    pub(super) async fn hurry(&self, backoff: &mut Backoff) {
        match &self.0 {
            None => backoff.hurry(),
            Some(simulator) => self.pass(|| simulator.stand_back(backoff.count())).await,
        }
    }

    /// The same for a copy that follows its owner: see [`Backoff::keep_up`].
    pub(super) async fn keep_up(&self, backoff: &mut Backoff) {
        match &self.0 {
            None => backoff.keep_up(),
            Some(simulator) => self.pass(|| simulator.stand_back(backoff.count())).await,
        }
    }

    /// Goes on after a turn that found something to do, in a simulator perhaps a little later.
    #[inline]
    pub(super) async fn yield_now(&self) {
        if let Some(simulator) = &self.0
            && simulator.may_yield()
        {
            suspend().await;
        }
    }

    /// Sleeps for `pause`.
    pub(crate) async fn sleep(&self, pause: Duration) {
        match &self.0 {
            None => std::thread::sleep(pause),
            Some(simulator) => self.pass(|| simulator.sleep(pause)).await,
        }
    }

    /// Returns how many of at most `most` steps of work the node takes in one turn.
    pub(super) fn steps(&self, most: usize) -> usize {
        self.0.as_ref().map_or(most, |simulator| simulator.steps(most))
    }

    /// Returns how many of at most `most` bytes of a payload are read at a time.
    pub(super) fn batch(&self, most: u64) -> u64 {
        self.0.as_ref().map_or(most, |simulator| simulator.batch(most))
    }

    async fn pass(&self, time: impl FnOnce()) {
        time();
        suspend().await;
    }
}

/// Returns to the caller of the outermost poll once.
async fn suspend() {
    let mut is_back = false;
    poll_fn(|_| match std::mem::replace(&mut is_back, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    })
    .await;
}

/// Waits for the end of a node's future, in a process: see the [module](self).
///
/// # Panics
/// If the node belongs to a simulator, which alone can let its time pass.
pub(super) fn complete<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a node of a simulator was asked to block"),
    }
}
