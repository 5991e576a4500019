//! The library's log, handed to a function of the caller's.

use std::ffi::{CString, c_char, c_void};
use std::fmt::Write as _;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::error::{Failure, slackline_status};
use crate::handle::call;

/// The levels of the log; a smaller number is more serious.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_log_level {
    /// Something failed that no call could answer.
    Error = 1,
    /// Something that deserves a look: a peer was evicted, a connection was turned away.
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

/// Hands the log of this library, from `level` on to more serious ones, to `function`. Once per process, and for good:
/// a second time is `SLACKLINE_STATUS_OUT_OF_TURN`. Without it nothing is logged. `user` is passed through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_set_log(
    level: u32,
    function: slackline_log_function,
    user: *mut c_void,
) -> slackline_status {
    call(|| {
        let function = function.ok_or_else(|| Failure::null("the function"))?;
        let known = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        let most = known.into_iter().find(|known| number(known) == level).ok_or_else(|| {
            Failure::bad_argument(format!(
                "no log level has the number {level}: use one of 1 (error) to 5 (trace)"
            ))
        })?;
        tracing::subscriber::set_global_default(Hook { most, function, user }).map_err(|_| {
            let message = "a log function is set already: set it once, before the first object is made";
            Failure::new(slackline_status::OutOfTurn, message)
        })
    })
}

fn number(level: &Level) -> u32 {
    let named = match *level {
        Level::ERROR => slackline_log_level::Error,
        Level::WARN => slackline_log_level::Warn,
        Level::INFO => slackline_log_level::Info,
        Level::DEBUG => slackline_log_level::Debug,
        Level::TRACE => slackline_log_level::Trace,
    };
    named as u32
}

struct Hook {
    most: Level,
    function: unsafe extern "C" fn(u32, *const c_char, *mut c_void),
    user: *mut c_void,
}

// SAFETY: `user` is only passed through to `function`, which the caller has promised may be called by any thread.
unsafe impl Send for Hook {}
// SAFETY: as above: it may be called by several threads at once.
unsafe impl Sync for Hook {}

impl Subscriber for Hook {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most.into())
    }

    /// Spans are not shown: events of this library say all that they have to say themselves.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let mut text = line.message + &line.fields;
        text.retain(|character| character != '\0');
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the caller has promised that it may be called by any thread with the pointer that it gave; the text
        // ends in a zero and lives until the call is over.
        unsafe { (self.function)(number(event.metadata().level()), text.as_ptr(), self.user) };
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event and, behind it, its fields as ` name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
