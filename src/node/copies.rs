//! Copies of GPUs that read or write a node's memory.

#[cfg(feature = "cuda")]
use std::sync::{Mutex, PoisonError};

use super::Error;
#[cfg(feature = "cuda")]
use crate::cuda::Tickets;
#[cfg(feature = "cuda")]
use crate::time::Duration;

/// Copies of GPUs that are under way. Without GPU memory there are none.
#[derive(Debug, Default)]
pub(super) struct Copies {
    #[cfg(feature = "cuda")]
    tickets: Mutex<Tickets>,
}

impl Copies {
    /// The tickets of the copies, to add to.
    #[cfg(feature = "cuda")]
    pub(super) fn tickets(&mut self) -> &mut Tickets {
        self.tickets.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once all of them are done. It does not wait.
    ///
    /// # Errors
    /// Work of this process on a GPU failed; its copies are over and were not made.
    pub(super) fn are_done(&self) -> Result<bool, Error> {
        #[cfg(feature = "cuda")]
        return Ok(self.tickets.lock().unwrap_or_else(PoisonError::into_inner).are_done()?);
        #[cfg(not(feature = "cuda"))]
        Ok(true)
    }

    /// The error that they are not done after so long.
    #[cfg(feature = "cuda")]
    pub(super) fn late(&self, waited: Duration) -> Error {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).late(waited).into()
    }
}
