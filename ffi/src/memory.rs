//! Memory of the caller's: see [`slackline::CallerMemory`].

use std::ffi::c_void;
use std::ptr::NonNull;

use slackline::CallerMemory;

/// Called once, by any thread, when the library uses memory of the caller's no more, with the `context` that was
/// given. It returns soon and calls no function of this library.
pub type slackline_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Calls the caller's function when it is dropped.
pub(crate) struct Release {
    function: slackline_release,
    context: *mut c_void,
}

// SAFETY: the contract of `slackline_release`: any thread may call it.
unsafe impl Send for Release {}
// SAFETY: as above; nothing can be done with it but to drop it.
unsafe impl Sync for Release {}

impl Release {
    pub(crate) fn new(function: slackline_release, context: *mut c_void) -> Release {
        Release { function, context }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(function) = self.function {
            // SAFETY: the contract of the call that this was given to.
            unsafe { function(self.context) };
        }
    }
}

/// Memory at `pointer`, or none if that is NULL. It keeps `owner`.
///
/// # Safety
/// As for [`CallerMemory::new`].
pub(crate) unsafe fn caller_memory(
    pointer: *mut c_void,
    bytes: usize,
    owner: impl Send + Sync + 'static,
) -> Option<CallerMemory> {
    // SAFETY: the caller's promise.
    NonNull::new(pointer.cast()).map(|pointer| unsafe { CallerMemory::new(pointer, bytes, owner) })
}
