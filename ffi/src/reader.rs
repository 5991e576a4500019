//! The reader: see [`slackline::node::Reader`].

use std::ffi::{c_char, c_void};
use std::time::Duration;

use slackline::clock::Version;
use slackline::node::{Fresh, Reader};

use crate::error::{Failure, slackline_status};
use crate::fabric::{Fabric, fabric};
use crate::handle::{Handle, Opaque, Out, call, destroy, give, sized, sized_out, with};
use crate::options::{self, slackline_fresh, slackline_reader_options};

/// Reads versions of one publisher's table, or of one server's shard. A thread of its own tells the owner that it
/// lives.
pub struct slackline_reader(Handle<Reader<Fabric>>);

impl Opaque for slackline_reader {
    type Value = Reader<Fabric>;
    fn wrap(handle: Handle<Reader<Fabric>>) -> Self {
        slackline_reader(handle)
    }
    fn handle(&self) -> &Handle<Reader<Fabric>> {
        &self.0
    }
}

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_options_init(
    options: *mut slackline_reader_options,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        unsafe { sized_out(options, "options")? }.set(slackline_reader_options::default());
        Ok(())
    })
}

/// Connects to a publisher or a server, which must be there already. `options` may be NULL. The reader is the
/// caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_connect(
    address: *const c_char,
    options: *const slackline_reader_options,
    timeout_ms: u64,
    reader: *mut *mut slackline_reader,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { Out::new(reader, "reader")? };
        place.set(std::ptr::null_mut());
        // SAFETY: the contract.
        let (address, options) = unsafe {
            let default = slackline_reader_options::default();
            let options = if options.is_null() { &default } else { sized(options, "options")? };
            (options::address(address)?, options.translate())
        };
        place.set(give(Reader::connect(fabric()?, &address, options, Duration::from_millis(timeout_ms))?));
        Ok(())
    })
}

/// Makes sure that the reader's copy is at most `max_staleness` versions behind the newest. A copy that is fresh
/// enough already is kept. `fresh`, unless NULL, is told what it is; `fresh->size` must be set. After a failure there
/// may be nothing to read until a refresh works again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_refresh(
    reader: *mut slackline_reader,
    max_staleness: u64,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    // SAFETY: the contract.
    call(|| unsafe { refresh(reader, fresh, |reader| Ok(reader.refresh(max_staleness, timeout)?)) })
}

/// Waits for `version` or a newer one, and copies the newest; otherwise as `slackline_reader_refresh`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_refresh_to(
    reader: *mut slackline_reader,
    version: u64,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    // SAFETY: the contract.
    call(|| unsafe { refresh(reader, fresh, |reader| Ok(reader.refresh_to(Version(version), timeout)?)) })
}

/// # Safety
///
/// The contract.
unsafe fn refresh(
    reader: *mut slackline_reader,
    fresh: *mut slackline_fresh,
    operation: impl FnOnce(&mut Reader<Fabric>) -> Result<Fresh, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the contract.
    let place = if fresh.is_null() { None } else { Some(unsafe { sized_out(fresh, "fresh")? }) };
    // SAFETY: the contract.
    let fresh = unsafe { with(reader, operation)? };
    if let Some(place) = place {
        place.set(slackline_fresh {
            size: size_of::<slackline_fresh>(),
            version: fresh.version.0,
            behind: fresh.behind,
            epoch: fresh.epoch,
            retries: fresh.retries,
            copied: fresh.copied.into(),
        });
    }
    Ok(())
}

/// The reader's copy, `len` bytes. Valid, and unchanging, until the next refresh or destroy of this reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_bytes(
    reader: *const slackline_reader,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (place, len) = unsafe { (Out::new(bytes, "bytes")?, Out::new(len, "len")?) };
        let lend = |reader: &mut Reader<Fabric>| {
            let bytes = reader.bytes()?;
            Ok((bytes.as_ptr().cast(), bytes.len()))
        };
        // SAFETY: the contract.
        let (pointer, count) = unsafe { with(reader, lend)? };
        place.set(pointer);
        len.set(count);
        Ok(())
    })
}

/// Leaves. NULL is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_destroy(reader: *mut slackline_reader) {
    // SAFETY: the contract.
    unsafe { destroy(reader) };
}
