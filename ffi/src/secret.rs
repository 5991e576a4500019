//! Secrets that are made of the secret of a job: see [`slackline::Secret`].

use std::ffi::c_char;

use crate::error::{Failure, slackline_status};
use crate::handle::{call, slice_mut};
use crate::options;

/// Bytes of a reader's secret, with the zero at its end.
pub const SLACKLINE_READING_SECRET_BYTES: usize = 149;

/// Writes the secret for processes that only read, which is made of the job's, to `reading`: text of
/// `SLACKLINE_READING_SECRET_BYTES` with its zero, which must fit `room`. Readers use it as their `secret`. It opens
/// publishers and servers over TCP and RDMA for readers alone, and does not tell the job's secret. That one is in
/// `secret` or `secret_file`, or in the environment if both are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reading_secret(
    secret: *const c_char,
    secret_file: *const c_char,
    reading: *mut c_char,
    room: usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (secret, to) = unsafe {
            (options::secret(secret, secret_file, 0)?, slice_mut(reading.cast::<u8>(), room, "reading")?)
        };
        let missing = "there is no secret to make a reader's of: give the job one";
        let secret = secret.read()?.ok_or_else(|| Failure::bad_argument(missing))?.reading();
        let text = secret.expose().as_bytes();
        if room <= text.len() {
            let (needed, room) = (SLACKLINE_READING_SECRET_BYTES, room);
            return Err(Failure::bad_argument(format!("room is {room}: the secret takes {needed} bytes")));
        }
        to[..text.len()].copy_from_slice(text);
        to[text.len()] = 0;
        Ok(())
    })
}
