//! Copies of GPUs that read or write a node's memory.

use super::Error;
#[cfg(feature = "cuda")]
use crate::cuda::Tickets;

/// Copies of GPUs that are under way. Without GPU memory there are none.
#[derive(Debug, Default)]
pub(super) struct Copies {
    #[cfg(feature = "cuda")]
    pub(super) tickets: Tickets,
}

impl Copies {
    /// True once all of them are done. It does not wait.
    ///
    /// # Errors
    /// Work of this process on a GPU failed; its copies are over and were not made.
    pub(super) fn are_done(&mut self) -> Result<bool, Error> {
        #[cfg(feature = "cuda")]
        return Ok(self.tickets.are_done()?);
        #[cfg(not(feature = "cuda"))]
        Ok(true)
    }
}
