//! The check of this side's own offer.

use crate::mem::Access;
use crate::transport::{GpuGrant, MAX_GRANTS, MAX_MESSAGE_BYTES, Offer};

/// The reason why an offer cannot be made, if there is one.
pub(crate) fn check_offer(offer: &Offer, on_gpu: &[GpuGrant]) -> Result<(), &'static str> {
    if offer.message.len() > MAX_MESSAGE_BYTES {
        return Err("its message is longer than 16 MiB; send it as memory");
    }
    if offer.grants.len() + on_gpu.len() > MAX_GRANTS {
        return Err("it grants more than 16 ranges; make them parts of one region");
    }
    for slice in &offer.grants {
        let access = slice.region().access();
        if access.is_local() {
            return Err("a region in it was registered without any right for peers");
        }
        if slice.is_empty() {
            return Err("a range in it is empty");
        }
        if lets_write(access) && !slice.as_volatile().is_writable() {
            return Err("a region in it lets peers write memory that is mapped read-only");
        }
    }
    if on_gpu.iter().any(|grant| grant.access.is_local()) {
        return Err("memory of a GPU in it is granted without any right for peers");
    }
    Ok(())
}

/// Whether a peer with these rights may change memory.
pub(crate) fn lets_write(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// Makes a number that no process can guess.
pub(crate) fn random() -> Result<u64, &'static str> {
    getrandom::u64().map_err(|_| "the system has no random source to make keys from")
}
