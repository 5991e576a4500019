//! Threads that end with the value that has started them.

use std::io;
use std::thread::{Builder, JoinHandle, Thread};

use super::ForkGuard;

/// A thread of this process. A child that was forked from it has no such thread.
#[derive(Debug)]
pub(crate) struct OwnThread {
    thread: JoinHandle<()>,
    guard: ForkGuard,
}

impl OwnThread {
    /// Starts a thread of this name.
    pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<OwnThread> {
        let thread = Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(OwnThread { thread, guard: ForkGuard::new() })
    }

    pub(crate) fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Asks the thread to end, by `ask`, and waits until it has. False if it has panicked, which the panic hook has
    /// told.
    ///
    /// In a forked child it neither asks nor waits, and leaks the resources of `ask`: the thread is the parent's, and
    /// may have held any lock at the time of the fork.
    pub(crate) fn end(self, ask: impl FnOnce()) -> bool {
        if self.guard.is_inherited() {
            std::mem::forget((self, ask));
            return true;
        }
        ask();
        self.thread.join().is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::super::{alone, true_in_a_forked_child};
    use super::*;

    #[test]
    fn a_thread_is_asked_to_end_and_waited_for() {
        let ended = std::sync::Arc::new(AtomicBool::new(false));
        let (seen, (end, is_time)) = (ended.clone(), channel::<()>());
        let run = move || {
            assert!(is_time.recv().is_err());
            seen.store(true, Ordering::Relaxed);
        };
        let thread = OwnThread::start("slackline-test", run).unwrap();
        assert_eq!(thread.thread().name(), Some("slackline-test"));
        assert!(thread.end(move || drop(end)) && ended.load(Ordering::Relaxed));
        let panics = OwnThread::start("slackline-test", || panic!("on purpose")).unwrap();
        assert!(!panics.end(|| ()));
    }

    #[test]
    fn a_forked_child_leaves_the_thread_to_its_parent() {
        if !alone("mem::own_thread::tests::a_forked_child_leaves_the_thread_to_its_parent") {
            return;
        }
        let (end, is_time) = channel::<()>();
        let mut thread = Some(OwnThread::start("slackline-test", move || _ = is_time.recv()).unwrap());
        assert!(true_in_a_forked_child(|| {
            let mut is_asked = false;
            thread.take().unwrap().end(|| is_asked = true) && !is_asked
        }));
        assert!(thread.take().unwrap().end(move || drop(end)));
    }
}
