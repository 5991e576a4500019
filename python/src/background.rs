//! A publisher, and the thread that looks after its readers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use slackline::internals::mem::ForkGuard;
use slackline::{Error, Mixed, Publisher, Version, now};

use crate::errors::Failure;

/// The pause between two looks at the readers: short beside the handshake of a newcomer, long beside a look.
const PAUSE: Duration = Duration::from_millis(1);

/// A publisher that frames, views and the thread share.
pub(crate) struct Publishing {
    publisher: Mutex<Option<Publisher<Mixed>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stops: AtomicBool,
    /// True while a frame is open.
    is_filling: AtomicBool,
    guard: ForkGuard,
}

impl Publishing {
    pub(crate) fn start(publisher: Publisher<Mixed>) -> Result<Arc<Publishing>, Failure> {
        let publishing = Arc::new(Publishing {
            publisher: Mutex::new(Some(publisher)),
            thread: Mutex::new(None),
            stops: AtomicBool::new(false),
            is_filling: AtomicBool::new(false),
            guard: ForkGuard::new(),
        });
        let shared = Arc::clone(&publishing);
        let thread = std::thread::Builder::new().name("slackline".into()).spawn(move || shared.serve());
        let thread = thread.map_err(|source| Error::Thread { what: "a publisher", source })?;
        *publishing.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(publishing)
    }

    fn serve(&self) {
        while !self.stops.load(Ordering::Relaxed) {
            if let Some(publisher) = &mut *self.lock() {
                publisher.poll(now());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Held by no thread that waits for the interpreter.
    fn lock(&self) -> MutexGuard<'_, Option<Publisher<Mixed>>> {
        self.publisher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` on the publisher. Fails if it is closed, or if this process is a fork of the one that made it.
    pub(crate) fn call<R>(
        &self,
        operation: &str,
        with: impl FnOnce(&mut Publisher<Mixed>) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        crate::fork::check(self.guard, operation)?;
        match &mut *self.lock() {
            Some(publisher) => Ok(with(publisher)?),
            None => Err(Failure::out_of_turn(operation, "the publisher is closed", "make a new one")),
        }
    }

    /// Lets one frame be filled at a time.
    pub(crate) fn begin_filling(&self, operation: &str) -> Result<(), Failure> {
        crate::fork::check(self.guard, operation)?;
        match self.is_filling.swap(true, Ordering::AcqRel) {
            false => Ok(()),
            true => {
                let cause = "a frame is open, or an array of one that has ended is still alive";
                Err(Failure::out_of_turn(operation, cause, "end it, or delete the array, first"))
            }
        }
    }

    /// Asks for the next frame's memory for so long; `None`: readers pin all others.
    pub(crate) fn begin(&self, operation: &str, slice: Duration) -> Result<Option<(usize, usize)>, Failure> {
        let begin = |publisher: &mut Publisher<Mixed>| match publisher.publish_begin(slice) {
            Ok(memory) => Ok(Some((memory.as_ptr().expose_provenance(), memory.len()))),
            Err(Error::Pinned { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        self.call(operation, begin)
    }

    /// Publishes the frame.
    pub(crate) fn commit(&self, operation: &str) -> Result<Version, Failure> {
        let committed = self.call(operation, Publisher::publish_commit);
        self.is_filling.store(false, Ordering::Release);
        committed
    }

    /// Gives the frame up.
    pub(crate) fn abort(&self) {
        if let Some(publisher) = &mut *self.lock() {
            publisher.publish_abort();
        }
        self.is_filling.store(false, Ordering::Release);
    }

    /// Ends the publisher: its readers are told.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        crate::fork::check(self.guard, "closing a publisher")?;
        if self.is_filling.load(Ordering::Acquire) {
            let cause = "a frame is open, or an array of one is still alive";
            return Err(Failure::out_of_turn("closing a publisher", cause, "end it, or delete the array, first"));
        }
        self.stop();
        drop(self.lock().take());
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        if self.guard.is_inherited() {
            return;
        }
        self.stops.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there was reported when it happened.
            drop(thread.join());
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its connections are the parent's.
        if self.guard.is_inherited() {
            std::mem::forget(self.publisher.get_mut().map_or(None, Option::take));
        }
    }
}
