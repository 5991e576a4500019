//! One heart for all members that are connected: a thread each would be one per pair.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::pulse::Pulse;
use crate::node::{Error, now};
use crate::time::{Duration, Instant};
use crate::transport::{Beacon, Disconnected};

/// Beats in the inbox of every member that was added, until dropped.
pub(super) struct Flock {
    shared: Arc<Shared>,
    lease: Duration,
    _pulse: Pulse,
}

struct Shared {
    beacons: Mutex<Vec<Box<dyn Beacon>>>,
    /// When it beat last, in nanoseconds.
    beaten: AtomicU64,
    /// It has not beaten for longer than the lease since `forgive` was called last.
    overslept: AtomicBool,
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
            overslept: AtomicBool::new(false),
        });
        let all = All { shared: Arc::clone(&shared), lease };
        Ok(Flock { shared, lease, _pulse: Pulse::start(Box::new(all), lease)? })
    }

    pub(super) fn add(&self, beacon: Box<dyn Beacon>) {
        self.shared.beacons().push(beacon);
    }

    /// Whether others may have missed so many beats that they took this member for dead: its whole process was stopped.
    pub(super) fn overslept(&self) -> bool {
        // It may be that the heart has not had its turn again yet.
        let beaten = Instant::from_nanos(self.shared.beaten.load(Ordering::Relaxed));
        self.shared.overslept.load(Ordering::Relaxed) || now() - beaten > self.lease
    }

    /// Nobody seems to have noticed.
    pub(super) fn forgive(&self) {
        self.shared.overslept.store(false, Ordering::Relaxed);
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
        let before = Instant::from_nanos(self.shared.beaten.swap(now.as_nanos(), Ordering::Relaxed));
        if now - before > self.lease {
            self.shared.overslept.store(true, Ordering::Relaxed);
        }
        self.shared.beacons().retain_mut(|beacon| beacon.set(value).is_ok());
        Ok(())
    }
}
