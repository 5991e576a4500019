//! A model forks no process.

/// As the real one, in the only process that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard;

impl ForkGuard {
    /// A guard.
    #[expect(clippy::new_without_default, reason = "as the real one")]
    pub fn new() -> Self {
        ForkGuard
    }

    /// Always false.
    pub fn is_inherited(&self) -> bool {
        false
    }
}
