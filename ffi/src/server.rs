//! The server: see [`slackline::node::Server`].

use std::ffi::{CString, c_char};
use std::time::Duration;

use slackline::node::{Server, ServerStatus, now};
use slackline::transport::Address;

use crate::error::{Failure, slackline_status};
use crate::fabric::{Fabric, fabric};
use crate::handle::{Handle, Opaque, Out, call, copy_out, destroy, give, sized, sized_out, slice, with};
use crate::options::{self, slackline_server_options, slackline_server_status, slackline_tensor};

/// Holds one shard of the parameters and folds workers' gradients into it. It has no thread that looks after peers: it
/// works while `slackline_server_progress` or `slackline_server_serve` is called, which must be far more often than
/// the lease.
pub struct slackline_server(Handle<Serving>);

/// A server and its address as C reads it.
pub(crate) struct Serving {
    server: Server<Fabric>,
    address: CString,
}

impl Opaque for slackline_server {
    type Value = Serving;
    fn wrap(handle: Handle<Serving>) -> Self {
        slackline_server(handle)
    }
    fn handle(&self) -> &Handle<Serving> {
        &self.0
    }
}

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_options_init(
    options: *mut slackline_server_options,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        unsafe { sized_out(options, "options")? }.set(slackline_server_options::default());
        Ok(())
    })
}

/// Begins to serve a shard of a table at `address`: "@NAME", a name that vanishes with the process, the path of a
/// socket file, with a "/" in it, "IP:PORT" (port 0 takes a free one), or several of these with commas between. NULL
/// picks a name; `slackline_server_address` tells it.
///
/// All tensors must be f32. `initial` holds the shard's own `initial_len` values as version 0 and is copied. The
/// server is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_create(
    address: *const c_char,
    tensors: *const slackline_tensor,
    tensor_count: usize,
    initial: *const f32,
    initial_len: usize,
    options: *const slackline_server_options,
    server: *mut *mut slackline_server,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { Out::new(server, "server")? };
        place.set(std::ptr::null_mut());
        // SAFETY: the contract.
        let (address, table, initial, options) = unsafe {
            let address = if address.is_null() { Address::random() } else { options::address(address)? };
            let table = options::table(tensors, tensor_count)?;
            let initial = slice(initial, initial_len, "the array of initial values")?;
            (address, table, initial, sized(options, "options")?.translate()?)
        };
        let server = Server::new(fabric()?, &address, table, initial, options)?;
        let address = CString::new(server.address().to_string()).unwrap_or_default();
        place.set(give(Serving { server, address }));
        Ok(())
    })
}

/// Where workers and readers reach this server. Valid until it is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_address(
    server: *const slackline_server,
    address: *mut *const c_char,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { Out::new(address, "address")? };
        // SAFETY: the contract.
        place.set(unsafe { with(server, |serving| Ok(serving.address.as_ptr()))? });
        Ok(())
    })
}

/// Does whatever there is to do without waiting: takes peers in, notices who is gone, folds gradients that have come,
/// publishes versions. `progressed`, unless NULL, becomes 1 if it got anywhere and 0 if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_progress(
    server: *mut slackline_server,
    progressed: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { Out::wanted(progressed, "progressed")? };
        // SAFETY: the contract.
        let progress = unsafe { with(server, |serving| Ok(serving.server.poll(now())?))? };
        if let Some(place) = place {
            place.set(progress.into());
        }
        Ok(())
    })
}

/// Serves until `until_workers_left` workers in all have left since the server was created, or `timeout_ms` has
/// passed: that is `SLACKLINE_STATUS_DEADLINE`, and serving can go on with another call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_serve(
    server: *mut slackline_server,
    until_workers_left: u64,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        let serve = |serving: &mut Serving| {
            let server = &mut serving.server;
            if server.drive(|server| server.status().left >= until_workers_left, timeout)? {
                return Ok(());
            }
            let ServerStatus { joined, left, .. } = server.status();
            Err(Failure::new(
                slackline_status::Deadline,
                format!(
                    "serving until {until_workers_left} workers have left did not end within {timeout:?}: \
                     {joined} have joined, {left} have left"
                ),
            ))
        };
        // SAFETY: the contract.
        unsafe { with(server, serve) }
    })
}

/// Tells what there is to say now. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_get_status(
    server: *const slackline_server,
    status: *mut slackline_server_status,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { sized_out(status, "status")? };
        // SAFETY: the contract.
        let status = unsafe { with(server, |serving| Ok(serving.server.status()))? };
        place.set(slackline_server_status {
            size: size_of::<slackline_server_status>(),
            version: status.version.0,
            smallest_clock: status.smallest_clock.0,
            workers: status.workers as u64,
            readers: status.readers as u64,
            joined: status.joined,
            left: status.left,
            refused: status.refused,
            folded: status.folded,
            dropped: status.dropped,
            loss: status.loss.unwrap_or(f64::NAN),
        });
        Ok(())
    })
}

/// Changes the step size from the next version on. It must be finite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_set_learning_rate(
    server: *mut slackline_server,
    learning_rate: f32,
) -> slackline_status {
    call(|| {
        let set = |serving: &mut Serving| Ok(serving.server.set_learning_rate(learning_rate)?);
        // SAFETY: the contract.
        unsafe { with(server, set) }
    })
}

/// Copies the newest parameters of this shard to `values`, which has room for exactly as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_parameters(
    server: *const slackline_server,
    values: *mut f32,
    len: usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract; the library's copy lies elsewhere.
        unsafe {
            let parameters = with(server, |serving| Ok(serving.server.parameters()?))?;
            copy_out(&parameters, values, len, "values")
        }
    })
}

/// Ends the server; its peers are told. NULL is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_destroy(server: *mut slackline_server) {
    // SAFETY: the contract.
    unsafe { destroy(server) };
}
