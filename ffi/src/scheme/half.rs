//! One half of a scheme, behind its callbacks.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use slackline::Instant;
use slackline::scheme::Start;

use super::{
    slackline_action, slackline_event, slackline_scheme_action, slackline_scheme_event,
    slackline_scheme_half, slackline_scheme_start,
};

/// Most actions between two events. More than any job has peers, slots and gradients to act on: a half that asks
/// for so many would never end.
const ACTIONS_MAX: u32 = 1 << 20;

type Create = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    *const slackline_scheme_start,
    *mut *mut c_void,
) -> *const c_char;
type Event = unsafe extern "C" fn(*mut c_void, *const slackline_scheme_event) -> *const c_char;
type Action = unsafe extern "C" fn(*mut c_void, *mut slackline_scheme_action) -> *const c_char;

/// The callbacks of a half, none of which is NULL but the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callbacks {
    create: Create,
    event: Event,
    action: Action,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl Callbacks {
    /// The callbacks that C has set; `Ok(None)` if it has set none.
    pub(super) fn of(half: &slackline_scheme_half) -> Result<Option<Callbacks>, &'static str> {
        match *half {
            slackline_scheme_half {
                create: Some(create),
                event: Some(event),
                action: Some(action),
                destroy,
            } => Ok(Some(Callbacks { create, event, action, destroy })),
            slackline_scheme_half { create: None, event: None, action: None, destroy: None } => Ok(None),
            _ => Err("has some of its callbacks: set create, event and action, or none"),
        }
    }
}

/// A half that a callback has made, until a callback fails.
#[derive(Debug)]
pub(super) struct Half {
    callbacks: Callbacks,
    /// The pointer of its own; `None` if it could not be made.
    half: Option<*mut c_void>,
    /// The failure that ended it.
    failure: Option<String>,
    /// The last answer.
    pub(super) last: slackline_scheme_action,
    /// The time at which it is to be woken.
    pub(super) wake: Option<Instant>,
    /// The time at which it was woken last, in nanoseconds.
    woken: u64,
    /// Actions since the last event.
    actions: u32,
}

// SAFETY: the scheme's author has promised that a half may be used by any thread, by one at a time; `last` holds a
// pointer to shares that nothing follows after `ask` has been answered.
unsafe impl Send for Half {}

impl Half {
    /// Has the half made. One that cannot be made is there, too: it has failed.
    ///
    /// # Safety
    ///
    /// The callbacks and `context` are those of one scheme, as [`slackline_scheme`](super::slackline_scheme) says.
    pub(super) unsafe fn create(
        callbacks: Callbacks,
        context: *mut c_void,
        settings: &CStr,
        start: Start,
    ) -> Half {
        let (start, mut half) = (slackline_scheme_start::of(start), null_mut());
        // SAFETY: the caller's promise; text, start and the pointer outlive the call.
        let said =
            unsafe { read((callbacks.create)(context, settings.as_ptr(), &raw const start, &raw mut half)) };
        let failure = said.map(|said| format!("its create failed: {said}"));
        let half = failure.is_none().then_some(half);
        let last = slackline_scheme_action::default();
        Half { callbacks, half, failure, last, wake: None, woken: 0, actions: 0 }
    }

    /// The failure that ended it, if it has failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Ends it, for good.
    pub(super) fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }

    /// Tells it of an event.
    pub(super) fn tell(&mut self, event: slackline_scheme_event) {
        self.actions = 0;
        let (None, Some(half)) = (&self.failure, self.half) else { return };
        // SAFETY: `half` came from `create` and is not destroyed; it is used by this thread alone, as `self` is
        // borrowed for writing; the event outlives the call.
        let said = unsafe { read((self.callbacks.event)(half, &raw const event)) };
        if let Some(said) = said {
            self.fail(format!("its event failed: {said}"));
        }
    }

    /// Asks it for an action. What `shares` points at is there until the next call.
    pub(super) fn ask(&mut self) -> Result<slackline_scheme_action, String> {
        self.last = slackline_scheme_action::default();
        if let (None, Some(half)) = (&self.failure, self.half) {
            // SAFETY: as in `tell`; the answer outlives the call.
            let said = unsafe { read((self.callbacks.action)(half, &raw mut self.last)) };
            if let Some(said) = said {
                self.fail(format!("its action failed: {said}"));
            }
        }
        match self.last.wake_ns {
            0 => {}
            // Time would never pass.
            at if at <= self.woken => {
                self.fail(format!("it is to be woken at {at} ns, and has been woken then"))
            }
            at => self.wake = Some(Instant::from_nanos(at)),
        }
        self.actions += u32::from(self.last.kind != slackline_action::None as u32);
        if self.actions > ACTIONS_MAX {
            self.fail(format!("it asks for more than {ACTIONS_MAX} actions between two events"));
        }
        self.failure.clone().map_or(Ok(self.last), Err)
    }

    /// Wakes it.
    pub(super) fn timeout(&mut self, now: Instant) {
        (self.wake, self.woken) = (None, now.as_nanos());
        self.tell(slackline_scheme_event::new(slackline_event::Timeout, now));
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        if let (Some(destroy), Some(half)) = (self.callbacks.destroy, self.half) {
            // SAFETY: `half` came from `create`, and nothing uses it from here on.
            unsafe { destroy(half) };
        }
    }
}

/// The text that a callback answered, if it failed.
///
/// # Safety
///
/// `text` is NULL, or ends in a zero and is not written during this call.
pub(super) unsafe fn read(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    unsafe extern "C" fn create(
        _context: *mut c_void,
        _settings: *const c_char,
        _start: *const slackline_scheme_start,
        _half: *mut *mut c_void,
    ) -> *const c_char {
        null()
    }

    unsafe extern "C" fn event(_half: *mut c_void, _event: *const slackline_scheme_event) -> *const c_char {
        null()
    }

    unsafe extern "C" fn nothing(_half: *mut c_void, _action: *mut slackline_scheme_action) -> *const c_char {
        null()
    }

    unsafe extern "C" fn push(_half: *mut c_void, action: *mut slackline_scheme_action) -> *const c_char {
        // SAFETY: `Half::ask` hands its own action over.
        unsafe { (*action).kind = slackline_action::Push as u32 };
        null()
    }

    unsafe extern "C" fn at_seven(_half: *mut c_void, action: *mut slackline_scheme_action) -> *const c_char {
        // SAFETY: as above.
        unsafe { (*action).wake_ns = 7 };
        null()
    }

    fn half(action: Action) -> Half {
        let callbacks = Callbacks { create, event, action, destroy: None };
        // SAFETY: the callbacks are those above, which look at no pointer but the action.
        unsafe { Half::create(callbacks, null_mut(), c"", slackline_scheme_start::NONE) }
    }

    #[test]
    fn a_half_may_be_asked_in_vain_without_end_and_may_not_ask_without_end() {
        let (mut idle, mut busy) = (half(nothing), half(push));
        for _ in 0..ACTIONS_MAX {
            idle.ask().unwrap();
            busy.ask().unwrap();
        }
        idle.ask().unwrap();
        assert!(busy.ask().unwrap_err().contains("between two events"));
        assert!(busy.ask().is_err(), "for good");
    }

    #[test]
    fn a_half_is_woken_once_at_one_time() {
        let mut half = half(at_seven);
        half.ask().unwrap();
        half.ask().unwrap();
        assert_eq!(half.wake, Some(Instant::from_nanos(7)));
        half.timeout(Instant::from_nanos(7));
        assert_eq!(half.wake, None);
        assert!(half.ask().unwrap_err().contains("has been woken then"));
    }
}
