//! What takes the device long: to undo what was made of it, and to register memory.

use super::calls::state;
use super::*;

/// The calls that undo something, and those that register memory.
#[derive(Default)]
pub(super) struct Undoing {
    /// Whether they wait until they are told.
    is_held: bool,
    is_registering_held: bool,
    /// Of either kind.
    waiting: usize,
    /// Whether queue pairs are not taken back to their first state.
    pub(super) refuses_reset: bool,
}

#[cfg(test)]
impl Unordered {
    /// From now on calls that undo something wait, or do not any more.
    pub(crate) fn hold_undoing(&self, is_held: bool) {
        lock(&self.world.state).undoing.is_held = is_held;
    }

    /// From now on calls that register memory wait, or do not any more.
    #[cfg(feature = "cuda")]
    pub(super) fn hold_registering(&self, is_held: bool) {
        lock(&self.world.state).undoing.is_registering_held = is_held;
    }

    /// From now on queue pairs are not taken back to their first state.
    pub(crate) fn refuse_to_stop(&self) {
        lock(&self.world.state).undoing.refuses_reset = true;
    }

    /// Queue pairs and registrations that were ever made.
    pub(crate) fn made(&self) -> u32 {
        lock(&self.world.state).next - 1
    }

    /// Calls that wait to undo something, or to register memory.
    pub(crate) fn undoing(&self) -> usize {
        lock(&self.world.state).undoing.waiting
    }

    /// The queue pairs, registrations and protection domains that were made and not undone.
    pub(crate) fn kept(&self) -> [usize; 3] {
        let state = lock(&self.world.state);
        [state.pairs.len(), state.regions.len(), state.domains.len()]
    }
}

/// Waits for as long as calls that undo something are held.
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

/// A domain in which something is left is not freed.
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
