//! The texts that functions and structs of options share: names of schemes and tables, schedules, addresses, secrets
//! and paths.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use slackline::optim::Schedule;
use slackline::{Address, scheme::AnyScheme};

use crate::error::{Failure, slackline_status};
use crate::fabric;
use crate::handle::text;

/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn scheme(name: *const c_char, staleness: u64) -> Result<AnyScheme, Failure> {
    // SAFETY: the caller's promise.
    crate::scheme::named(unsafe { text(name, "the scheme's name")? }, staleness)
}

/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn address(pointer: *const c_char) -> Result<Address, Failure> {
    // SAFETY: the caller's promise.
    fabric::address(unsafe { text(pointer, "the address")? })
}

/// The address to listen at; NULL picks a name.
///
/// # Safety
///
/// NULL or as for [`text`].
pub(crate) unsafe fn listen_address(pointer: *const c_char) -> Result<Address, Failure> {
    if pointer.is_null() {
        return Ok(Address::random());
    }
    // SAFETY: the caller's promise.
    unsafe { address(pointer) }
}

/// The fields that say where the secret comes from, and whether it encrypts data.
///
/// # Safety
///
/// Each is NULL or as for [`text`], and outlives the result.
pub(crate) unsafe fn secret<'a>(
    secret: *const c_char,
    secret_file: *const c_char,
    encrypt: u64,
) -> Result<fabric::Source<'a>, Failure> {
    let origin = match (secret.is_null(), secret_file.is_null()) {
        (true, true) => fabric::SecretOrigin::Environment,
        // SAFETY: the caller's promise.
        (false, true) => fabric::SecretOrigin::Text(unsafe { text(secret, "options->secret")? }),
        // SAFETY: the caller's promise.
        (true, false) => fabric::SecretOrigin::File(unsafe { path(secret_file, "options->secret_file")? }),
        (false, false) => {
            let both = "options->secret and options->secret_file are both set: set one of them";
            return Err(Failure::bad_argument(both));
        }
    };
    Ok(fabric::Source { origin, encrypts: encrypt != 0 })
}

/// The name of a table; empty for NULL.
///
/// # Safety
///
/// As for [`text`], where it is not NULL.
pub(crate) unsafe fn table_name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    if name.is_null() {
        return Ok("");
    }
    // SAFETY: not NULL; it ends in a zero by the caller's promise.
    unsafe { text(name, "the name of the table") }
}

/// The schedule of the step size; NULL stands for a constant one.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn schedule(pointer: *const c_char) -> Result<Schedule, Failure> {
    if pointer.is_null() {
        return Ok(Schedule::Constant);
    }
    // SAFETY: the caller's promise.
    let schedule = unsafe { text(pointer, "options->schedule")? }.parse::<Schedule>();
    schedule.map_err(|error| Failure::of(slackline_status::BadArgument, &error))
}

/// A path, which need not be UTF-8.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char, what: &str) -> Result<&'a Path, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not NULL; it ends in a zero by the caller's promise.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(pointer) }.to_bytes())))
}
