//! The library's log, handed to a function of the caller's.

use std::ffi::{CString, c_char, c_void};

use slackline::internals::log::{LogLine, set_log_level, take_log};

use crate::error::{Failure, slackline_status};
use crate::handle::call;

/// The levels of the log; a smaller number is more serious.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_log_level {
    /// Something failed that no call could answer.
    Error = 1,
    /// Something that deserves a look: a peer was evicted, a connection was refused.
    Warn = 2,
    /// An event: a peer joined or left.
    Info = 3,
    /// The reason for an event.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

/// Receives one line of the log: its level, one of `enum slackline_log_level`, its text without a line end, and the
/// pointer that was given with the function. The text is valid during the call only. It is called by any thread, also
/// by several at once and by the library's own, and must neither block nor call a function of this library.
pub type slackline_log_function =
    Option<unsafe extern "C" fn(level: u32, text: *const c_char, user: *mut c_void)>;

/// Hands the log of this library, from `level` on to more serious ones, to `function`. Once per process, permanently:
/// a second call is `SLACKLINE_STATUS_OUT_OF_TURN`. Without it nothing is logged. `user` is passed through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_set_log(
    level: u32,
    function: slackline_log_function,
    user: *mut c_void,
) -> slackline_status {
    call(|| {
        let function = function.ok_or_else(|| Failure::null("the function"))?;
        if !(slackline_log_level::Error as u32..=slackline_log_level::Trace as u32).contains(&level) {
            return Err(Failure::bad_argument(format!(
                "no log level has the number {level}: use one of 1 (error) to 5 (trace)"
            )));
        }
        let hook = Hook { function, user };
        if !take_log(move |line| hook.call(line)) {
            let message = "a log function is set already: set it once, before the first object is made";
            return Err(Failure::new(slackline_status::OutOfTurn, message));
        }
        set_log_level(level);
        Ok(())
    })
}

struct Hook {
    function: unsafe extern "C" fn(u32, *const c_char, *mut c_void),
    user: *mut c_void,
}

// SAFETY: `user` is only passed through to `function`, which the caller has promised may be called by any thread.
unsafe impl Send for Hook {}
// SAFETY: as above: it may be called by several threads at once.
unsafe impl Sync for Hook {}

impl Hook {
    fn call(&self, line: LogLine) {
        // No line has a zero in it.
        let text = CString::new(line.text).unwrap_or_default();
        // SAFETY: the caller has promised that it may be called by any thread with the pointer that it gave; the text
        // ends in a zero and lives until the call is over.
        unsafe { (self.function)(line.level, text.as_ptr(), self.user) };
    }
}
