//! Slow calls of the device: the calls that destroy its objects, and the registration of memory.

use super::calls::state;
use super::*;

/// The calls that destroy objects, and the calls that register memory.
#[derive(Default)]
pub(super) struct Undoing {
    /// Whether calls that destroy objects wait until the test releases them.
    is_held: bool,
    is_registering_held: bool,
    /// The waiting calls of both kinds.
    waiting: usize,
    /// Whether queue pairs refuse to return to their first state.
    pub(super) refuses_reset: bool,
}

#[cfg(test)]
impl Unordered {
    /// From now on calls that destroy objects wait, or no longer wait.
    pub(crate) fn hold_undoing(&self, is_held: bool) {
        lock(&self.world.state).undoing.is_held = is_held;
    }

    /// From now on calls that register memory wait, or no longer wait.
    #[cfg(feature = "cuda")]
    pub(super) fn hold_registering(&self, is_held: bool) {
        lock(&self.world.state).undoing.is_registering_held = is_held;
    }

    /// From now on queue pairs refuse to return to their first state.
    pub(crate) fn refuse_to_stop(&self) {
        lock(&self.world.state).undoing.refuses_reset = true;
    }

    /// The number of queue pairs and registrations that were ever made.
    pub(crate) fn made(&self) -> u32 {
        lock(&self.world.state).next - 1
    }

    /// The number of calls that wait to destroy an object, or to register memory.
    pub(crate) fn undoing(&self) -> usize {
        lock(&self.world.state).undoing.waiting
    }

    /// The numbers of queue pairs, registrations and protection domains that exist.
    pub(crate) fn kept(&self) -> [usize; 3] {
        let state = lock(&self.world.state);
        [state.pairs.len(), state.regions.len(), state.domains.len()]
    }
}

/// Waits for as long as calls that destroy objects are held.
pub(super) fn wait(context: *mut sys::ibv_context) {
    wait_while(context, |undoing| undoing.is_held);
}

/// Waits for as long as calls that register memory are held.
pub(super) fn wait_to_register(context: *mut sys::ibv_context) {
    wait_while(context, |undoing| undoing.is_registering_held);
}

fn wait_while(context: *mut sys::ibv_context, is_held: impl Fn(&Undoing) -> bool) {
    let is_held = || is_held(&state(context).undoing);
    if is_held() {
        state(context).undoing.waiting += 1;
        while is_held() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        state(context).undoing.waiting -= 1;
    }
}

/// A domain that still contains objects is not freed.
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    // SAFETY: the caller's structure.
    let context = unsafe { (*pd).context };
    wait(context);
    let mut state = state(context);
    let mut used =
        state.pairs.iter().map(|pair| pair.domain).chain(state.regions.values().map(|one| one.domain));
    if used.any(|domain| domain == pd.addr()) {
        return libc::EBUSY;
    }
    state.domains.remove(&pd.addr());
    // SAFETY: made by `alloc_pd`, and freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}
