//! The interface by which a simulator replaces the clock, the processor and the threads.
//!
//! Nodes run their ordinary blocking code under it. Outside of a simulation it costs one load of a thread-local flag
//! wherever a node reads the clock, stands back, starts a heartbeat or has made a version.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::clock::{Clock, Version};
use crate::mem::VolatileSlice;
use crate::scheme::{GradientId, Share};
use crate::time::{Duration, Instant};
use crate::transport::HeartbeatWord;

/// The runtime of the nodes that run in one thread.
pub(crate) trait Runtime {
    /// The time.
    fn now(&self) -> Instant;

    /// Lets others run for a while: the node has found nothing to do for the `turns`th time.
    fn stand_back(&self, turns: u32);

    /// May let others run in the middle of a fold.
    fn breathe(&self);

    /// Lets others run until `pause` has passed.
    fn sleep(&self, pause: Duration);

    /// The time that registering memory for a peer takes, in a thread of its own.
    fn registering(&self) -> Duration;

    /// Sets `heartbeat_word` every `interval` from now on, until `stop` is set or the node that asks for it is no more.
    fn beat(&self, heartbeat_word: Box<dyn HeartbeatWord>, interval: Duration, stop: Arc<AtomicBool>);

    /// Takes note of a version that a server has just published.
    fn published(&self, published: &PublishedVersion<'_>);

    /// Takes note that the server of this incarnation has consumed a gradient that it does not fold.
    fn dropped(&self, epoch: u64, gradient: GradientId);
}

/// A version that was published.
pub(crate) struct PublishedVersion<'a> {
    pub(crate) epoch: u64,
    pub(crate) version: Version,
    pub(crate) smallest_clock: Clock,
    /// The gradients that were folded into it, with their weights.
    pub(crate) shares: &'a [Share],
    pub(crate) payload: VolatileSlice<'a>,
}

thread_local! {
    /// True if a runtime is installed. Code reads this flag where the cost of a look matters.
    static ARE_INSTALLED: Cell<bool> = const { Cell::new(false) };
    static INSTALLED: RefCell<Option<Rc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Keeps a runtime installed in this thread for as long as it lives.
pub(crate) struct Stay {
    _not_send: std::marker::PhantomData<Rc<()>>,
}

impl Stay {
    /// Puts `runtime` around all nodes of this thread.
    pub(crate) fn new(runtime: Rc<dyn Runtime>) -> Stay {
        INSTALLED.set(Some(runtime));
        ARE_INSTALLED.set(true);
        Stay { _not_send: std::marker::PhantomData }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        ARE_INSTALLED.set(false);
        INSTALLED.set(None);
    }
}

/// Returns the runtime of this thread, if it is a simulator's.
#[inline]
pub(super) fn installed() -> Option<Rc<dyn Runtime>> {
    if ARE_INSTALLED.get() { find() } else { None }
}

#[cold]
fn find() -> Option<Rc<dyn Runtime>> {
    INSTALLED.with_borrow(Clone::clone)
}
