//! Pieces of a computation, between which it may be asked to stop.

/// The question whether to stop, which is asked between two pieces of work.
pub(super) struct Pieces<F> {
    pub(super) rows: usize,
    pub(super) stop: F,
}

/// The reason that a computation ended before its result.
pub(super) enum Stopped<E> {
    Asked,
    Failed(E),
}

impl<E, F: FnMut() -> Result<bool, E>> Pieces<F> {
    /// Asks if a piece begins with this example; not before the first.
    pub(super) fn before(&mut self, example: usize) -> Result<(), Stopped<E>> {
        if example == 0 || !example.is_multiple_of(self.rows) {
            return Ok(());
        }
        match (self.stop)() {
            Ok(false) => Ok(()),
            Ok(true) => Err(Stopped::Asked),
            Err(error) => Err(Stopped::Failed(error)),
        }
    }
}
