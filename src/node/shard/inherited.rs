//! A shard in a forked child of its owner: its memory may be shared with the owner, and is left alone.

use super::Shard;
use crate::mem::ForkGuard;
use crate::node::Error;
use crate::transport::Transport;

/// Checks that this process made the guard, as the owner of something that it alone may write.
pub(in crate::node) fn expect_owner(guard: ForkGuard, operation: &'static str) -> Result<(), Error> {
    let reason = "this process was forked from the owner: make a publisher or a server of its own here";
    if guard.is_inherited() { Err(Error::OutOfTurn { operation, reason }) } else { Ok(()) }
}

impl<T: Transport> Shard<T> {
    /// True in a process that was forked from the owner.
    pub(in crate::node) fn is_inherited(&self) -> bool {
        self.guard.is_inherited()
    }

    /// Checks that this process is the owner, which alone may write.
    pub(in crate::node) fn expect_owner(&self, operation: &'static str) -> Result<(), Error> {
        expect_owner(self.guard, operation)
    }
}
