//! Programs that stop in the middle of whatever they call, and go on there later: all in one thread, by turns.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Bytes of a program's stack; what is never touched costs address space only.
const STACK_BYTES: usize = 512 << 10;

type Suspender = Yielder<(), ()>;

thread_local! {
    /// The suspender of the program that runs now; null while none does.
    static RUNNING: Cell<*const Suspender> = const { Cell::new(std::ptr::null()) };
    /// Stacks of programs that have ended: making one is a handful of system calls.
    static STACKS: Cell<Vec<DefaultStack>> = const { Cell::new(Vec::new()) };
}

/// One program, which runs only while it is [resumed](Self::resume).
pub(super) struct Program {
    coroutine: Option<Coroutine<(), (), (), DefaultStack>>,
    /// The address of its own suspender: on its stack, from its first turn on.
    suspender: Rc<Cell<*const Suspender>>,
}

impl Program {
    /// A program that has not begun.
    pub(super) fn new(body: impl FnOnce() + 'static) -> std::io::Result<Program> {
        let mut stacks = STACKS.take();
        let pooled = stacks.pop();
        STACKS.set(stacks);
        let stack = pooled.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)?;
        let suspender = Rc::new(Cell::new(std::ptr::null()));
        let own = Rc::clone(&suspender);
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Suspender, ()| {
            own.set(yielder);
            RUNNING.set(yielder);
            body();
        });
        Ok(Program { coroutine: Some(coroutine), suspender })
    }

    /// Lets it run until it [suspends](suspend) or ends; true if it has ended. A panic of its own goes on here.
    pub(super) fn resume(&mut self) -> bool {
        let Some(coroutine) = &mut self.coroutine else { return true };
        RUNNING.set(self.suspender.get());
        // Also where it panics: a caller that catches the panic may run other programs.
        let _idle = Idle;
        matches!(coroutine.resume(()), CoroutineResult::Return(()))
    }
}

impl Drop for Program {
    /// Ends a program in the middle: its stack is unwound, so that all it holds is dropped.
    fn drop(&mut self) {
        let Some(mut coroutine) = self.coroutine.take() else { return };
        if !coroutine.done() {
            coroutine.force_unwind();
        }
        let mut stacks = STACKS.take();
        stacks.push(coroutine.into_stack());
        STACKS.set(stacks);
    }
}

struct Idle;

impl Drop for Idle {
    fn drop(&mut self) {
        RUNNING.set(std::ptr::null());
    }
}

/// Stops the program that calls this until it is resumed. Does nothing where none runs: what a program holds may ask
/// for it while it is being dropped.
pub(super) fn suspend() {
    let running = RUNNING.get();
    if running.is_null() {
        return;
    }
    // SAFETY: the pointer was made from the reference that the program's body got, which lives on the program's own
    // stack until the body returns or is unwound. It is not null only while that program runs: `resume` sets it
    // before the program goes on, and clears it when the program stops, returns or panics. So the code here runs on
    // that very stack, above the frame that the reference belongs to. The thread cannot differ: it is a thread-local
    // of a program that is not `Send`.
    let suspender = unsafe { &*running };
    suspender.suspend(());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_stop_in_the_middle_and_go_on_there() {
        let seen = Rc::new(Cell::new(0));
        let program = |step: u32| {
            let seen = Rc::clone(&seen);
            Program::new(move || {
                for _ in 0..3 {
                    seen.set(seen.get() * 10 + step);
                    suspend();
                }
            })
            .unwrap()
        };
        let (mut one, mut two) = (program(1), program(2));
        for _ in 0..3 {
            assert!(!one.resume());
            assert!(!two.resume());
        }
        assert_eq!(seen.get(), 121_212);
        assert!(one.resume() && two.resume());
        suspend();
    }

    #[test]
    fn what_a_program_holds_is_dropped_with_it() {
        let held = Rc::new(());
        for turns in 0..2 {
            let inner = Rc::clone(&held);
            let mut program = Program::new(move || {
                let _inner = inner;
                suspend();
            })
            .unwrap();
            for _ in 0..turns {
                program.resume();
            }
            drop(program);
            assert_eq!(Rc::strong_count(&held), 1, "after {turns} turns");
        }
    }

    #[test]
    fn a_panic_of_a_program_comes_out_where_it_was_resumed() {
        let mut program = Program::new(|| panic!("within")).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| program.resume()));
        assert!(caught.is_err());
        suspend();
    }
}
