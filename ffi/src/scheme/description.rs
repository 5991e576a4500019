//! A scheme as C describes it.

use std::ffi::{c_char, c_void};
use std::ptr::null;

use super::action::slackline_scheme_action;
use super::event::slackline_scheme_event;
use super::needs::{slackline_scheme_needs, slackline_scheme_start};
use crate::sized::Measured;

/// The callbacks of one half of a scheme: a state machine that is told events and asked for actions, and knows no
/// memory, thread or wall clock. All are set but `destroy`, which may be NULL; or none is, and `base` has the half.
///
/// Each answers NULL, or a text that says why it failed, which is read at once: then the call that runs the half ends
/// with `SLACKLINE_STATUS_SCHEME`, and nothing but `destroy` is called again.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_scheme_half {
    /// Makes a half: writes a pointer of its own, which may be NULL, to `half`. One that failed is not destroyed.
    pub create: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            settings: *const c_char,
            start: *const slackline_scheme_start,
            half: *mut *mut c_void,
        ) -> *const c_char,
    >,
    /// Takes note of an event.
    pub event: Option<
        unsafe extern "C" fn(half: *mut c_void, event: *const slackline_scheme_event) -> *const c_char,
    >,
    /// Asks for the next action, again and again until it is none.
    pub action: Option<
        unsafe extern "C" fn(half: *mut c_void, action: *mut slackline_scheme_action) -> *const c_char,
    >,
    /// Frees a half.
    pub destroy: Option<unsafe extern "C" fn(half: *mut c_void)>,
}

/// A scheme that is written in C. Set `size` and the fields that it needs, and leave the others zero.
///
/// Thread-safety: one half is used by one thread at a time, the one that calls the server's or the worker's functions;
/// different halves, and `needs`, may be called by several threads at once. A callback returns, soon and without
/// `longjmp` or an exception, and calls no function of this library that takes an object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_scheme {
    /// `sizeof(struct slackline_scheme)`.
    pub size: usize,
    /// The name, which no other scheme has; copied. Without "(" and control codes.
    pub name: *const c_char,
    /// A built-in scheme with its settings, such as "asp": it has the half that has no callbacks here, and the needs by
    /// default. By default NULL: there is none.
    pub base: *const c_char,
    /// Passed through to `needs` and `create`; it is used until the process ends. By default NULL.
    pub context: *mut c_void,
    /// Says whether such `settings` can be (the text between the parentheses behind the name, which travels from the
    /// servers to the workers) and what the scheme needs under them; it answers as the callbacks of a half. By default
    /// NULL: there are no settings, and the needs are the default.
    pub needs: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            settings: *const c_char,
            needs: *mut slackline_scheme_needs,
        ) -> *const c_char,
    >,
    /// The half beside each server.
    pub server: slackline_scheme_half,
    /// The half beside each worker.
    pub worker: slackline_scheme_half,
}

impl Default for slackline_scheme {
    fn default() -> Self {
        slackline_scheme {
            size: size_of::<Self>(),
            name: null(),
            base: null(),
            context: std::ptr::null_mut(),
            needs: None,
            server: slackline_scheme_half::default(),
            worker: slackline_scheme_half::default(),
        }
    }
}

impl Measured for slackline_scheme {
    const FIRST: usize = 104;
}
