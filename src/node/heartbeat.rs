//! The heartbeat: a thread that says "alive" to an owner from the first moment on, however long the trainer computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Error, runtime};
use crate::transport::HeartbeatWord;

/// Sets a growing number in a heartbeat word until dropped.
pub(super) struct Heartbeat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Beats ten times a lease, at least every 300 ms.
    pub(super) fn start(
        mut heartbeat_word: Box<dyn HeartbeatWord>,
        lease: Duration,
    ) -> Result<Heartbeat, Error> {
        let interval = (lease / 10).clamp(Duration::from_millis(1), Duration::from_millis(300));
        let stop = Arc::new(AtomicBool::new(false));
        if let Some(runtime) = runtime::installed() {
            runtime.beat(heartbeat_word, interval, Arc::clone(&stop));
            return Ok(Heartbeat { stop, thread: None });
        }
        let stopped = Arc::clone(&stop);
        let named = std::thread::Builder::new().name("slackline-heartbeat".into());
        let spawned = named.spawn(move || {
            let mut count = 1u64;
            // A heartbeat word whose connection is gone reaches no owner any more.
            while !stopped.load(Ordering::Relaxed) && heartbeat_word.set(count).is_ok() {
                count += 1;
                std::thread::park_timeout(interval);
            }
        });
        let thread = spawned.map_err(|source| Error::Thread { what: "heartbeats", source })?;
        Ok(Heartbeat { stop, thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot panic: setting a word has no way to.
            let _ = thread.join();
        }
    }
}
