//! Memory of this process alone, for copies of versions.
#![allow(unsafe_code, reason = "memory is allocated by hand: no reference to it exists")]

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use slackline::CallerMemory;

use crate::errors::{Class, Failure};

/// Each tensor's consumer asks for at most this alignment (DLPack).
const ALIGN: usize = 256;

/// Zeroed memory, aligned for every consumer of DLPack.
pub(crate) struct Memory {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, and hands out pointers alone.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Result<Memory, Failure> {
        let none = || {
            let cause = format_args!("there are no {bytes} bytes of memory");
            Failure::new(Class::Error, "allocating a copy", cause, "drop snapshots that are not needed")
        };
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(|_| none())?;
        // SAFETY: the layout is not empty.
        let pointer = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(none)?;
        Ok(Memory { pointer, layout })
    }

    /// Lends the first bytes of it to a reader, which keeps it for as long as it uses it.
    pub(crate) fn lend(self: &Arc<Memory>, bytes: usize) -> CallerMemory {
        assert!(bytes <= self.layout.size());
        // SAFETY: zeroed memory that lives as long as the owner that goes with it. A copy is given to a reader when no
        // snapshot holds it, and to a snapshot when the refresh has ended; until then no code of Python knows of it.
        unsafe { CallerMemory::new(self.pointer, bytes, Arc::clone(self)) }
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed here alone.
        unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) };
    }
}
