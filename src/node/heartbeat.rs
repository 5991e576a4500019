//! The heartbeat: a thread that says "alive" to the owners from the first moment on, however long the trainer computes.
//!
//! One thread beats for all connections of the process. It runs while there are any.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::runtime::Runtime;
use super::{Error, now};
use crate::time::Instant;
use crate::transport::HeartbeatWord;

/// Sets a growing number in a heartbeat word until dropped.
pub(super) struct Heartbeat {
    stop: Arc<AtomicBool>,
    /// The heart that sets the word, unless a simulator does.
    heart: Option<Arc<Heart>>,
}

impl Heartbeat {
    /// Beats ten times a lease.
    pub(super) fn start(
        runtime: &Runtime,
        word: Box<dyn HeartbeatWord>,
        lease: Duration,
    ) -> Result<Heartbeat, Error> {
        let interval = interval(lease);
        let stop = Arc::new(AtomicBool::new(false));
        if let Some(simulator) = runtime.simulator() {
            simulator.beat(word, interval, Arc::clone(&stop));
            return Ok(Heartbeat { stop, heart: None });
        }
        let heart = Heart::of_this_process();
        heart.add(Beating { word, interval, due: now(), count: 1, stop: Arc::clone(&stop) })?;
        Ok(Heartbeat { stop, heart: Some(heart) })
    }
}

/// The time between two heartbeats. A longer lease means fewer of them: the heartbeats of a thousand workers may be
/// more than the device of their server carries.
fn interval(lease: Duration) -> Duration {
    (lease / 10).max(Duration::from_millis(1))
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(heart) = &self.heart {
            heart.end_those_stopped();
        }
    }
}

/// The heartbeat thread of a process, and the words that it sets.
struct Heart {
    /// A forked child has a copy of its parent's heart, whose thread it lacks and whose lock may be held for ever.
    process: u32,
    beats: Mutex<Beats>,
}

#[derive(Default)]
struct Beats {
    words: Vec<Beating>,
    /// The thread, while there are words.
    thread: Option<Thread>,
}

/// One heartbeat word.
struct Beating {
    word: Box<dyn HeartbeatWord>,
    interval: Duration,
    due: Instant,
    count: u64,
    stop: Arc<AtomicBool>,
}

impl Heart {
    fn of_this_process() -> Arc<Heart> {
        static HEART: Mutex<Option<Arc<Heart>>> = Mutex::new(None);
        let process = std::process::id();
        let mut heart = HEART.lock().unwrap_or_else(PoisonError::into_inner);
        let own = heart.take().filter(|heart| heart.process == process);
        let own = own.unwrap_or_else(|| Arc::new(Heart { process, beats: Mutex::default() }));
        Arc::clone(heart.insert(own))
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, beating: Beating) -> Result<(), Error> {
        let mut beats = self.beats();
        beats.words.push(beating);
        match &beats.thread {
            Some(thread) => thread.unpark(),
            None => {
                let heart = Arc::clone(self);
                let named = std::thread::Builder::new().name("slackline-heartbeat".into());
                match named.spawn(move || heart.run()) {
                    Ok(thread) => beats.thread = Some(thread.thread().clone()),
                    Err(source) => {
                        beats.words.pop();
                        return Err(Error::Thread { what: "heartbeats", source });
                    }
                }
            }
        }
        Ok(())
    }

    /// Once this has returned, no word that was stopped is set any more.
    fn end_those_stopped(&self) {
        if self.process != std::process::id() {
            return;
        }
        let mut beats = self.beats();
        let is_stopped = |beating: &mut Beating| beating.stop.load(Ordering::Relaxed);
        let stopped: Vec<Beating> = beats.words.extract_if(.., is_stopped).collect();
        if let (true, Some(thread)) = (beats.words.is_empty(), &beats.thread) {
            thread.unpark();
        }
        // To drop a word's connection may take long: the other heartbeats do not wait for that.
        drop(beats);
        drop(stopped);
    }

    fn run(&self) {
        loop {
            let mut beats = self.beats();
            let ended = beats.beat(now());
            let next = beats.words.iter().map(|beating| beating.due).min();
            if next.is_none() {
                beats.thread = None;
            }
            drop(beats);
            drop(ended);
            let Some(next) = next else { return };
            std::thread::park_timeout(next - now());
        }
    }
}

impl Beats {
    /// Sets the words that are due. Returns the words whose connection is gone: they reach no owner any more.
    fn beat(&mut self, now: Instant) -> Vec<Beating> {
        let is_over = |beating: &mut Beating| {
            if beating.due > now {
                return false;
            }
            (beating.count, beating.due) = (beating.count + 1, now + beating.interval);
            beating.word.set(beating.count - 1).is_err()
        };
        self.words.extract_if(.., is_over).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_beats_ten_times_a_lease_however_long_that_is() {
        for (lease, beat) in [(3_000, 300), (30_000, 3_000), (600_000, 60_000), (1, 1)] {
            assert_eq!(interval(Duration::from_millis(lease)), Duration::from_millis(beat));
        }
    }
}
