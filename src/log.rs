//! The library's log as lines of text, for the bindings to other languages. A Rust program has a subscriber of
//! `tracing` of its own.
#![forbid(unsafe_code)]

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The levels, by their numbers from 1 on.
const LEVELS: [Level; 5] = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];

/// The number of the last level that is logged.
static LAST: AtomicU32 = AtomicU32::new(0);

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// 1 for an error, 2 for a warning, 3 for information, 4 for a reason, 5 for everything.
    pub level: u32,
    /// The module that it comes from, such as `slackline::node::server`.
    pub module: &'static str,
    /// The message and, behind it, the fields as ` name=value`, without line ends and other control characters.
    pub text: String,
}

/// Gives the log of this process to `take`, permanently: false if another function has it already. There is no line
/// before [`set_log_level`] asks for some. `take` is called by any thread, by several at once too.
pub fn take_log(take: impl Fn(LogLine) + Send + Sync + 'static) -> bool {
    tracing::subscriber::set_global_default(LineSubscriber(take)).is_ok()
}

/// From now on there are lines of the levels 1 to `last`; of none for 0.
pub fn set_log_level(last: u32) {
    LAST.store(last, Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

fn number(level: &Level) -> u32 {
    (1..).zip(LEVELS).find(|(_, known)| known == level).map_or(0, |(number, _)| number)
}

struct LineSubscriber<F>(F);

impl<F: Fn(LogLine) + Send + Sync + 'static> Subscriber for LineSubscriber<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        number(metadata.level()) <= LAST.load(Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let last = LEVELS.iter().rfind(|level| number(level) <= LAST.load(Relaxed));
        Some(last.copied().map_or(LevelFilter::OFF, LevelFilter::from_level))
    }

    /// Spans are not shown: events of this library are complete without them.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = LineWords::default();
        event.record(&mut words);
        let metadata = event.metadata();
        // A peer's text may contain line ends and control characters.
        let text = words.message + &words.fields;
        let text = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        (self.0)(LogLine { level: number(metadata.level()), module: metadata.target(), text });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct LineWords {
    message: String,
    fields: String,
}

impl Visit for LineWords {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn lines_have_the_levels_that_are_asked_for_and_say_all_fields() {
        let lines: Arc<Mutex<Vec<LogLine>>> = Arc::default();
        let taken = Arc::clone(&lines);
        let subscriber = LineSubscriber(move |line| taken.lock().unwrap().push(line));
        tracing::subscriber::with_default(subscriber, || {
            set_log_level(2);
            tracing::error!(rank = 7, "lost");
            tracing::warn!(reason = %"it\nis gone", "late");
            tracing::info!("not asked for");
            set_log_level(3);
            tracing::info!("asked for");
            tracing::debug!("not asked for");
            set_log_level(0);
            tracing::error!("not asked for");
        });
        let line = |level, text: &str| LogLine { level, module: module_path!(), text: text.into() };
        let expected = [line(1, "lost rank=7"), line(2, "late reason=it is gone"), line(3, "asked for")];
        assert_eq!(*lines.lock().unwrap(), expected);
    }
}
