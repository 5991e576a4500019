//! Memory that Python objects look at: how many do, and whether they still may.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline::internals::mem::ForkGuard;

use crate::errors::Failure;
use crate::fork;

const LOOKING: &str = "looking at an array";

/// Memory that is lent to Python, for a while or for ever.
///
/// An *export* is a buffer or a DLPack tensor that was handed out and was not given back. Once the lease has
/// [ended](Self::end), no export begins; what the lease was for (a pin, a frame) is let go when there is none left.
pub(crate) struct Lease {
    /// Never changed: it is handed on, to code that makes its own argument.
    pointer: AtomicPtr<u8>,
    bytes: usize,
    state: Mutex<LeaseState>,
    written: Written,
    /// What Python code is told that asks for memory whose lease has ended.
    ended: &'static str,
    /// Called once, when the lease has ended and no export is left.
    let_go: Option<Box<dyn Fn() + Send + Sync>>,
    /// The process whose exports are counted, where that matters: a forked child shares memory that is lent for a
    /// while, and its exports are not counted.
    guard: Option<ForkGuard>,
    /// Keeps the memory valid.
    owner: Box<dyn Any + Send + Sync>,
}

/// Whether memory that is lent to be read has gone to code that may write it all the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(Arc<AtomicBool>);

impl Written {
    /// What was read of the memory before this is as it was lent if this is false.
    pub(crate) fn may_be(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct LeaseState {
    exports: usize,
    ended: bool,
}

impl Lease {
    /// Lends `bytes` from `pointer` on, which stay valid for as long as `owner` lives.
    pub(crate) fn new(pointer: *mut u8, bytes: usize, owner: impl Any + Send + Sync) -> Lease {
        Lease {
            pointer: AtomicPtr::new(pointer),
            bytes,
            state: Mutex::default(),
            written: Written::default(),
            ended: "",
            let_go: None,
            guard: None,
            owner: Box::new(owner),
        }
    }

    /// The same for memory that is lent for a while: `let_go` is called once it has ended and no export is left.
    pub(crate) fn for_a_while(self, ended: &'static str, let_go: impl Fn() + Send + Sync + 'static) -> Lease {
        Lease { ended, let_go: Some(Box::new(let_go)), guard: Some(ForkGuard::new()), ..self }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn written(&self) -> &Written {
        &self.written
    }

    /// The memory goes to code that may write it.
    pub(crate) fn is_lent_to_write(&self) {
        self.written.0.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// What keeps the memory, if it is of this type.
    pub(crate) fn owner<T: Any>(&self) -> Option<&T> {
        self.owner.downcast_ref()
    }

    /// The address of a byte of it.
    ///
    /// # Panics
    /// If it does not lie inside, or at the end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "offset {offset} outside of {} bytes", self.bytes);
        self.pointer.load(Ordering::Relaxed).wrapping_add(offset)
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails once the lease has ended.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.check_process()?;
        if self.state().ended { Err(self.over()) } else { Ok(()) }
    }

    fn check_process(&self) -> Result<(), Failure> {
        self.guard.map_or(Ok(()), |guard| fork::check(guard, LOOKING))
    }

    fn over(&self) -> Failure {
        Failure::out_of_turn(LOOKING, self.ended, "copy what is needed for longer")
    }

    /// Counts one export more.
    pub(crate) fn begin_export(&self) -> Result<(), Failure> {
        self.check_process()?;
        let mut state = self.state();
        if state.ended {
            return Err(self.over());
        }
        state.exports += 1;
        Ok(())
    }

    /// An export was given back.
    pub(crate) fn end_export(&self) {
        let is_last = {
            let mut state = self.state();
            state.exports -= 1;
            state.ended && state.exports == 0
        };
        if is_last {
            self.call_let_go();
        }
    }

    /// Ends the lease, and returns the number of exports that are still to be given back.
    pub(crate) fn end(&self) -> usize {
        let (exports, is_last) = {
            let mut state = self.state();
            let is_first = !std::mem::replace(&mut state.ended, true);
            (state.exports, is_first && state.exports == 0)
        };
        if is_last {
            self.call_let_go();
        }
        exports
    }

    /// Ends the lease unless an export is left; then nothing changes, and it returns how many there are.
    pub(crate) fn end_unless_exported(&self) -> Result<(), usize> {
        let exports = {
            let mut state = self.state();
            state.ended |= state.exports == 0;
            state.exports
        };
        if exports == 0 { Ok(()) } else { Err(exports) }
    }

    /// The number of exports that outlast the lease, if it has ended and there are any.
    pub(crate) fn left(&self) -> Option<usize> {
        let state = self.state();
        (state.ended && state.exports > 0).then_some(state.exports)
    }

    fn call_let_go(&self) {
        if let Some(let_go) = &self.let_go {
            let_go();
        }
    }
}
