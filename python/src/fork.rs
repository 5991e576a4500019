//! Objects are of the process that made them.

use slackline::internals::mem::ForkGuard;

use crate::errors::Failure;

/// Fails in a process that was forked from the object's maker.
pub(crate) fn check(guard: ForkGuard, operation: &str) -> Result<(), Failure> {
    match guard.is_inherited() {
        false => Ok(()),
        true => {
            let cause = "this object belongs to the process that this one was forked from";
            Err(Failure::out_of_turn(operation, cause, "make one in this process"))
        }
    }
}
