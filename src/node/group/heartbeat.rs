//! One heart for all members that are connected. With a thread for each connection there would be one per pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::Error;
use crate::node::heartbeat::Heartbeat;
use crate::node::runtime::Runtime;
use crate::time::{Duration, Instant};
use crate::transport::{Disconnected, HeartbeatWord};

/// Beats in the inbox of every member that was added, until it is dropped.
pub(super) struct GroupHeartbeat {
    shared: Arc<HeartbeatShared>,
    lease: Duration,
    _heartbeat: Heartbeat,
}

struct HeartbeatShared {
    /// The clock of the member: the process's, or its simulator's.
    runtime: Runtime,
    heartbeat_words: Mutex<Vec<Box<dyn HeartbeatWord>>>,
    /// The time of the last beat, in nanoseconds.
    beaten: AtomicU64,
    /// The time of the last beat that came more than a lease after the beat before it, in nanoseconds.
    woken: AtomicU64,
}

impl HeartbeatShared {
    fn heartbeat_words(&self) -> MutexGuard<'_, Vec<Box<dyn HeartbeatWord>>> {
        self.heartbeat_words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupHeartbeat {
    pub(super) fn new(runtime: &Runtime, lease: Duration) -> Result<GroupHeartbeat, Error> {
        let shared = Arc::new(HeartbeatShared {
            runtime: runtime.clone(),
            heartbeat_words: Mutex::default(),
            beaten: AtomicU64::new(runtime.now().as_nanos()),
            woken: AtomicU64::new(0),
        });
        let all = All { shared: Arc::clone(&shared), lease };
        Ok(GroupHeartbeat { shared, lease, _heartbeat: Heartbeat::start(runtime, Box::new(all), lease)? })
    }

    pub(super) fn add(&self, heartbeat_word: Box<dyn HeartbeatWord>) {
        self.shared.heartbeat_words().push(heartbeat_word);
    }

    /// Returns the last time at which this heart beat again after the whole process was stopped for longer than a
    /// lease. Before that beat, others may have taken this member for dead.
    pub(super) fn woken(&self) -> Instant {
        Instant::from_nanos(self.shared.woken.load(Ordering::Acquire))
    }

    /// Returns whether that has happened after `forgiven`.
    pub(super) fn overslept(&self, forgiven: Instant) -> bool {
        // It may be that the heart has not had its turn again yet.
        let beaten = Instant::from_nanos(self.shared.beaten.load(Ordering::Acquire));
        self.shared.runtime.now() - beaten > self.lease || self.woken() > forgiven
    }
}

/// All heartbeat words as one, which never ends.
struct All {
    shared: Arc<HeartbeatShared>,
    lease: Duration,
}

impl HeartbeatWord for All {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        let now = self.shared.runtime.now();
        let before = Instant::from_nanos(self.shared.beaten.load(Ordering::Relaxed));
        // Stored before the heart looks awake again.
        if now - before > self.lease {
            self.shared.woken.store(now.as_nanos(), Ordering::Release);
        }
        self.shared.beaten.store(now.as_nanos(), Ordering::Release);
        self.shared.heartbeat_words().retain_mut(|heartbeat_word| heartbeat_word.set(value).is_ok());
        Ok(())
    }
}
