//! The C interface of slackline: opaque objects, status numbers, option structs that begin with their size, and a
//! panic boundary on every function. `include/slackline.h` is generated from here; `tests/smoke.c` uses it.
//!
//! Every function does three things: it checks its arguments (`handle`), calls the library, and translates the result
//! (`error`, `options`). There is no logic on this side of the boundary.
//!
//! # What every function asks of its caller
//!
//! - A pointer to an object is NULL, or came from this library and was not destroyed. An object may wander from
//!   thread to thread, but two threads may not use it at once, and no thread may use it while it is destroyed.
//! - Any other pointer is NULL, or points at as much as its parameter says, which no thread changes during the call.
//!   Texts end in a zero. Memory that a function writes overlaps no other argument.
//! - A result that a function lends (a text, an array) is used no longer than its comment says.
//!
//! NULL where it is not allowed, misalignment, lengths that no address space holds and texts that are not UTF-8 are
//! found and answered with a status; a breach of the rest is undefined behaviour, as ever in C. The `SAFETY` comments
//! below call this *the contract*.
#![allow(unsafe_code, reason = "a foreign boundary: pointers come in and go out")]
#![allow(non_camel_case_types, reason = "types are called what C calls them")]
#![allow(clippy::missing_safety_doc, reason = "the contract is stated once, above")]

mod checkpoint;
mod compute;
mod error;
mod fabric;
mod gpu;
mod group;
mod handle;
mod job;
mod log;
mod memory;
mod options;
mod proxy;
mod publisher;
mod reader;
mod scheme;
mod secret;
mod server;
mod simulate;
mod sized;
mod status;
mod step;
mod table;
mod tables;
mod trace;
mod trainer;
mod weights;
mod worker;

use std::ffi::{CStr, c_char};

pub use checkpoint::*;
pub use compute::*;
pub use error::slackline_status;
pub use gpu::*;
pub use group::*;
pub use job::*;
pub use log::*;
pub use memory::slackline_release;
pub use options::{
    SLACKLINE_NO_VERSION, slackline_damping, slackline_element, slackline_idle, slackline_job_options,
    slackline_non_finite, slackline_optimizer, slackline_publisher_options, slackline_read,
    slackline_reader_options, slackline_resume, slackline_server_options, slackline_tensor,
    slackline_worker_options,
};
pub use proxy::*;
pub use publisher::*;
pub use reader::*;
pub use scheme::*;
pub use secret::*;
pub use server::*;
pub use simulate::*;
pub use status::{
    SLACKLINE_LABEL_BYTES, SLACKLINE_STALENESS_COUNTS, slackline_fresh, slackline_publisher_status,
    slackline_reader_status, slackline_server_status, slackline_staleness, slackline_tag, slackline_view,
    slackline_worker_status,
};
pub use step::*;
pub use table::slackline_tensor_range;
pub use tables::*;
pub use trace::*;
pub use trainer::*;
pub use weights::*;
pub use worker::*;

use handle::call;
use table::OutRange;

/// The major version of this header.
pub const SLACKLINE_VERSION_MAJOR: u32 = 0;
/// The minor version of this header. While the major version is 0, a new minor version may change the ABI.
pub const SLACKLINE_VERSION_MINOR: u32 = 1;
/// The patch version of this header. It grows with every addition to the ABI.
pub const SLACKLINE_VERSION_PATCH: u32 = 13;
/// The version of this header as one number that grows with it.
pub const SLACKLINE_VERSION_NUMBER: u32 =
    SLACKLINE_VERSION_MAJOR * 1000000 + SLACKLINE_VERSION_MINOR * 1000 + SLACKLINE_VERSION_PATCH;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version holds no zero"),
};

/// The library's version, "MAJOR.MINOR.PATCH". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn slackline_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The library's version as one number, to be compared with the header's `SLACKLINE_VERSION_NUMBER`.
#[unsafe(no_mangle)]
pub extern "C" fn slackline_version_number() -> u32 {
    SLACKLINE_VERSION_NUMBER
}

/// Returns the name of a status, for people to read. The text is valid for ever; it is never NULL, for any number.
#[unsafe(no_mangle)]
pub extern "C" fn slackline_status_name(status: u32) -> *const c_char {
    error::name(status).as_ptr()
}

/// The message of the call of this thread that failed last: a sentence that names the operation, the cause and the
/// remedy. UTF-8, at most 2047 bytes; never NULL; empty if no call has failed. The pointer stays the same until
/// the thread ends and may be read that long; the text is replaced by the thread's next failing call, and by no other
/// call.
#[unsafe(no_mangle)]
pub extern "C" fn slackline_last_error() -> *const c_char {
    error::last_message()
}

/// Returns 1 if the call of this thread that failed last may succeed later with the same arguments: after a deadline,
/// while readers pin all other frames, or, after connecting again, where a peer was lost or evicted this one. Returns 0
/// if something has to be changed first, if the object can only be destroyed, or if no call has failed.
#[unsafe(no_mangle)]
pub extern "C" fn slackline_last_error_is_retryable() -> u32 {
    error::last_is_retryable().into()
}

/// Returns the time in milliseconds after which the peer that refused the call of this thread that failed last asks for
/// it again, rounded up: a publisher that has as many readers as it takes, for example. 0 if it has named none, or no
/// peer has refused.
#[unsafe(no_mangle)]
pub extern "C" fn slackline_last_error_retry_after_ms() -> u64 {
    let milliseconds =
        error::last_retry_after().map_or(0, |after| after.as_nanos().div_ceil(1_000_000).max(1));
    u64::try_from(milliseconds).unwrap_or(u64::MAX)
}

/// Finds the bytes of a table's flat space that are shard number `shard` of `shards`: a server's own part. The
/// server's initial values are the values of this part. One shard is the whole table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_shard_range(
    tensors: *const slackline_tensor,
    tensor_count: usize,
    shard: u16,
    shards: u16,
    begin: *mut u64,
    end: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (table, out) = unsafe { (options::table(tensors, tensor_count)?, OutRange::new(begin, end)?) };
        let ranges = table.shards(usize::from(shards))?;
        let range = ranges.get(usize::from(shard)).ok_or_else(|| {
            error::Failure::bad_argument(format!("there is no shard {shard} of {shards}: they count from 0"))
        })?;
        out.set(range.clone());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_macros_are_the_package_s_version() {
        let macros = [SLACKLINE_VERSION_MAJOR, SLACKLINE_VERSION_MINOR, SLACKLINE_VERSION_PATCH];
        let package: Vec<u32> =
            env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap()).collect();
        assert_eq!(macros[..], package);
    }
}
