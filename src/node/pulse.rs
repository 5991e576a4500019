//! The heartbeat: a thread that says "alive" to every server, however long the trainer computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Error;
use crate::transport::Beacon;

/// Sets a growing number in each beacon's word until dropped.
pub(super) struct Pulse {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    /// Beats ten times a lease.
    pub(super) fn start(mut beacons: Vec<Box<dyn Beacon>>, lease: Duration) -> Result<Pulse, Error> {
        let interval = (lease / 10).clamp(Duration::from_millis(1), Duration::from_millis(300));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let named = std::thread::Builder::new().name("slackline-pulse".into());
        let spawned = named.spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) && !beacons.is_empty() {
                count += 1;
                // A beacon whose connection is gone has nobody to tell.
                beacons.retain_mut(|beacon| beacon.set(count).is_ok());
                std::thread::park_timeout(interval);
            }
        });
        let thread = spawned.map_err(|source| Error::Thread { what: "heartbeats", source })?;
        Ok(Pulse { stop, thread: Some(thread) })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot panic: setting a word has no way to.
            let _ = thread.join();
        }
    }
}
