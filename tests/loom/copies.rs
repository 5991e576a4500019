//! A copy that several threads make.

use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;
use slackline::internals::mem::Gate;

use super::world::explore;

/// A copy of one word to two others. The thread that takes one first makes it.
struct Shared {
    gate: Gate,
    next: AtomicUsize,
    from: AtomicU64,
    to: [AtomicU64; 2],
}

impl Shared {
    fn take_part(&self) {
        while let Some(to) = self.to.get(self.next.fetch_add(1, Relaxed)) {
            to.store(self.from.load(Relaxed), Relaxed);
        }
    }
}

/// The helper may come at any time, and again: before the first copy, amid either, and when all is over. Each fence of
/// the gate is needed (`gate_open`, `gate_enter`, `gate_leave`, `gate_close`).
#[test]
fn a_copy_by_several_threads_is_whole_once_its_gate_is_closed() {
    explore(3, |accepted| {
        let (gate, next, from) = (Gate::closed(), AtomicUsize::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { gate, next, from, to: [AtomicU64::new(0), AtomicU64::new(0)] });
        let helped = Arc::clone(&shared);
        let helper = thread::spawn(move || {
            for _ in 0..2 {
                if helped.gate.enter() {
                    helped.take_part();
                    helped.gate.leave();
                }
            }
        });
        for value in [1, 2] {
            shared.from.store(value, Relaxed);
            shared.next.store(0, Relaxed);
            shared.gate.open();
            shared.take_part();
            shared.gate.close();
            let found = shared.to.each_ref().map(|to| to.load(Relaxed));
            assert_eq!(found, [value; 2], "a copy by several threads is not whole");
            accepted.fetch_add(1, Relaxed);
        }
        helper.join().unwrap();
    });
}
