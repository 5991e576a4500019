//! Knowing that this process is a forked child, without a system call.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::HostMemory;

/// One word that the kernel sets to zero in a forked child. `None` where the kernel cannot do that (before 4.14).
/// The memory is kept beside it, so that it stays reachable for tools that look for leaks.
static MARKER: LazyLock<Option<(&AtomicU64, &HostMemory)>> = LazyLock::new(|| {
    let memory = HostMemory::anonymous(super::PAGE_SIZE).ok()?;
    memory.wipe_on_fork().ok()?;
    // It lasts as long as the process.
    let memory: &'static HostMemory = Box::leak(Box::new(memory));
    Some((memory.as_volatile().writable_word(0), memory))
});

/// Grows with every process of a line of descent that made a guard. A child inherits the value of its parent, so no
/// number is used twice among a process and its ancestors, and a process can only have guards of these.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);

/// Tells whether it was made in this very process, or in one that this process was forked from.
///
/// Asking costs a load: it may be done on the data path.
///
/// ```
/// use slackline::internals::mem::ForkGuard;
/// assert!(!ForkGuard::new().is_inherited());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard {
    born: u64,
}

impl ForkGuard {
    /// A guard that belongs to this process.
    #[expect(clippy::new_without_default, reason = "two of them differ when made in different processes")]
    pub fn new() -> Self {
        if let Some((marker, _)) = *MARKER
            && marker.load(Ordering::Relaxed) == 0
        {
            let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may have been faster: then its number is the one.
            let _before = marker.compare_exchange(0, generation, Ordering::SeqCst, Ordering::SeqCst);
        }
        ForkGuard { born: current() }
    }

    /// True in a process that was forked from the process that made this guard.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.born != current()
    }
}

#[inline]
fn current() -> u64 {
    match *MARKER {
        Some((marker, _)) => marker.load(Ordering::Relaxed),
        None => u64::from(std::process::id()),
    }
}

/// Runs the test of this path in a process of its own: true in that process. A forked child may hang on a lock that
/// another test held when it was made, and other tests open descriptors of their own.
#[cfg(test)]
pub(crate) fn alone(test: &str) -> bool {
    const ALONE: &str = "SLACKLINE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut process = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = process.args(["--exact", test, "--test-threads=1"]).env(ALONE, "1").output();
    let output = output.expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Forks, runs `child` there, and tells whether it returned true. A child that may take a lock is for tests that run
/// [`alone`].
#[cfg(test)]
pub(crate) fn true_in_a_forked_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `child` alone and leaves by `_exit`; the pid belongs to our child, and `status` is live.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            let is_true = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(i32::from(!is_true.unwrap_or(false)));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_inherited_in_a_forked_child_and_a_new_one_there_is_not() {
        let guard = ForkGuard::new();
        assert!(!guard.is_inherited());
        assert!(true_in_a_forked_child(|| {
            let inherited = guard.is_inherited();
            let own = ForkGuard::new();
            inherited && guard.is_inherited() && !own.is_inherited()
        }));
        assert!(!guard.is_inherited(), "the parent's own guard stays good");
    }

    #[test]
    fn the_kernel_wipes_the_marker_so_no_system_call_is_needed() {
        assert!(MARKER.is_some());
    }
}
