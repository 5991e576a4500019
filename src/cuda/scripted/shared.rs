//! Allocations that scripted drivers have shared with others, which stand for other processes or are in them.

use std::collections::BTreeMap;
use std::fs::File;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::sys::IpcHandle;

/// How many other drivers of this process have an allocation open.
static OPEN: Mutex<BTreeMap<[u8; 64], usize>> = Mutex::new(BTreeMap::new());

fn openings() -> MutexGuard<'static, BTreeMap<[u8; 64], usize>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle: of a descriptor of this process and its length, and of a driver, an address and a number in it.
pub(super) fn handle([file, bytes]: [u64; 2], [driver, pointer, number]: [u64; 3]) -> IpcHandle {
    let mut handle = [0; 64];
    let words = [driver, file, bytes, pointer, number];
    for (word, to) in words.into_iter().zip(handle.chunks_exact_mut(8)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    IpcHandle(handle)
}

fn word(handle: IpcHandle, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| handle.0[8 * at + index]))
}

/// The number of the driver: no other one has it, in this process or in others.
pub(super) fn driver(handle: IpcHandle) -> u64 {
    word(handle, 0)
}

/// The number of the driver that is the `count`th of this process.
pub(super) fn driver_number(count: u32) -> u64 {
    u64::from(process::id()) << 32 | u64::from(count)
}

/// Lets other drivers open it.
pub(super) fn share(handle: IpcHandle) {
    openings().entry(handle.0).or_insert(0);
}

/// Opens it in another driver.
pub(super) fn open(handle: IpcHandle) -> Option<(File, usize)> {
    let path = format!("/proc/{}/fd/{}", driver(handle) >> 32, word(handle, 1));
    let file = File::options().read(true).write(true).open(path).ok()?;
    if driver(handle) >> 32 == u64::from(process::id()) {
        *openings().get_mut(&handle.0)? += 1;
    }
    Some((file, word(handle, 2) as usize))
}

/// The other driver has closed it.
pub(super) fn close(handle: IpcHandle) {
    openings().entry(handle.0).and_modify(|open| *open -= 1);
}

/// Its driver frees it. Fails the test where another one has it open.
pub(super) fn forget(handle: IpcHandle) {
    let open = openings().remove(&handle.0).unwrap_or(0);
    assert_eq!(open, 0, "memory is freed that other processes have open");
}
