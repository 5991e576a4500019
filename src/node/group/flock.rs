//! One heart for all members that are connected. With a thread for each connection there would be one per pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::pulse::Pulse;
use crate::node::{Error, now};
use crate::time::{Duration, Instant};
use crate::transport::{Beacon, Disconnected};

/// Beats in the inbox of every member that was added, until it is dropped.
pub(super) struct Flock {
    shared: Arc<Shared>,
    lease: Duration,
    _pulse: Pulse,
}

struct Shared {
    beacons: Mutex<Vec<Box<dyn Beacon>>>,
    /// The time of the last beat, in nanoseconds.
    beaten: AtomicU64,
    /// The time of the last beat that came more than a lease after the beat before it, in nanoseconds.
    woken: AtomicU64,
}

impl Shared {
    fn beacons(&self) -> MutexGuard<'_, Vec<Box<dyn Beacon>>> {
        self.beacons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flock {
    pub(super) fn new(lease: Duration) -> Result<Flock, Error> {
        let shared = Arc::new(Shared {
            beacons: Mutex::default(),
            beaten: AtomicU64::new(now().as_nanos()),
            woken: AtomicU64::new(0),
        });
        let all = All { shared: Arc::clone(&shared), lease };
        Ok(Flock { shared, lease, _pulse: Pulse::start(Box::new(all), lease)? })
    }

    pub(super) fn add(&self, beacon: Box<dyn Beacon>) {
        self.shared.beacons().push(beacon);
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
        now() - beaten > self.lease || self.woken() > forgiven
    }
}

/// All beacons as one, which never ends.
struct All {
    shared: Arc<Shared>,
    lease: Duration,
}

impl Beacon for All {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        let now = now();
        let before = Instant::from_nanos(self.shared.beaten.load(Ordering::Relaxed));
        // Stored before the heart looks awake again.
        if now - before > self.lease {
            self.shared.woken.store(now.as_nanos(), Ordering::Release);
        }
        self.shared.beaten.store(now.as_nanos(), Ordering::Release);
        self.shared.beacons().retain_mut(|beacon| beacon.set(value).is_ok());
        Ok(())
    }
}
