//! Signals to the processes of a job: SIGUSR1 asks for a checkpoint, SIGINT and SIGTERM for a last one before the end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use crate::failure::Failure;

/// Returns the flag of this process that is true once it was sent SIGUSR1, which asks for a checkpoint. Batch systems
/// send it before they take a host away.
pub(super) fn checkpoint_requests() -> Result<Arc<AtomicBool>, Failure> {
    static WANTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
    flag::register(SIGUSR1, Arc::clone(&WANTED))
        .map_err(|error| Failure::failed(format!("cannot listen for SIGUSR1: {error}")))?;
    Ok(Arc::clone(&WANTED))
}

/// Remembers the first SIGINT or SIGTERM; the second ends the process at once.
pub(super) struct Stop(Arc<AtomicUsize>);

impl Stop {
    pub(super) fn listen() -> Result<Stop, Failure> {
        let (signal, second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for number in [SIGINT, SIGTERM] {
            flag::register_conditional_default(number, Arc::clone(&second))
                .and_then(|_| flag::register(number, Arc::clone(&second)))
                .and_then(|_| flag::register_usize(number, Arc::clone(&signal), number as usize))
                .map_err(|error| Failure::failed(format!("cannot listen for SIGINT and SIGTERM: {error}")))?;
        }
        Ok(Stop(signal))
    }

    /// The signal that came, if one did.
    pub(super) fn asked(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|signal| *signal != 0)
    }
}

pub(super) fn name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}
