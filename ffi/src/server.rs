//! The server: see [`slackline::Server`].

use std::ffi::{CString, c_char};
use std::time::Duration;

use slackline::{Server, ServerStatus, now};

use crate::error::{Failure, slackline_status};
use crate::fabric::{Fabric, fabric};
use crate::gpu::on_gpu;
use crate::handle::{Handle, Out, call, copy_out, create, destroy, lend_text, opaque, slice, with};
use crate::options::{self, slackline_server_options, slackline_tensor};
use crate::sized::{SizedOut, set_default, sized};
use crate::status::slackline_server_status;

/// Holds one shard of the parameters and folds workers' gradients into it. It has no thread that looks after peers: it
/// works while `slackline_server_progress` or `slackline_server_serve` is called, which must be far more often than
/// the lease.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_server(Handle<Serving>);

/// A server and its address as C reads it.
pub(crate) struct Serving {
    pub(crate) server: Server<Fabric>,
    address: CString,
}

impl Serving {
    pub(crate) fn new(server: Server<Fabric>) -> Serving {
        let address = CString::new(server.address().to_string()).unwrap_or_default();
        Serving { server, address }
    }
}

opaque!(slackline_server: Serving);

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_options_init(
    options: *mut slackline_server_options,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Begins to serve a shard of a table at `address`, of any form that the head of this file lists; NULL picks a name,
/// and `slackline_server_address` tells it.
///
/// All tensors must be f32. `initial` holds the shard's own `initial_len` values as version 0 and is copied; it is not
/// looked at where the server goes on from a checkpoint (`resume` in the options). The server is the caller's, to be
/// destroyed; on failure it is NULL.
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
    let begin = || {
        // SAFETY: the contract.
        let (address, table, initial, options) = unsafe {
            let (address, table) =
                (options::listen_address(address)?, options::table(tensors, tensor_count)?);
            let initial = slice(initial, initial_len, "the array of initial values")?;
            (address, table, initial, sized(options, "options")?)
        };
        // SAFETY: the contract.
        let (secret, translated) = unsafe {
            (options::secret(options.secret, options.secret_file, options.encrypt)?, options.translate()?)
        };
        // SAFETY: the contract.
        let fabric = unsafe { on_gpu(fabric(secret, std::slice::from_ref(&address))?, options.gpu)? };
        let server = match options.resume(&translated)? {
            Some(checkpoint) => Server::resume(fabric, &address, table, checkpoint, translated)?,
            None => Server::new(fabric, &address, table, initial, translated)?,
        };
        Ok(Serving::new(server))
    };
    // SAFETY: the contract.
    unsafe { create(server, begin) }
}

/// Lends the address at which workers and readers reach this server. It is valid until the server is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_address(
    server: *const slackline_server,
    address: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(server, address, "address", |serving| &serving.address) }
}

/// Connects this server to the one of shard 0 at `decider`, which decides for all shards under a scheme that counts
/// versions, such as "dbw" and "abs". Until then it serves no peer: call it before the first progress or serve if
/// `follows` in the status is not 0, and again after `SLACKLINE_STATUS_SERVER_LOST`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_follow(
    server: *mut slackline_server,
    decider: *const c_char,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let decider = unsafe { options::address(decider)? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        unsafe { with(server, |serving| Ok(serving.server.follow(&decider, timeout)?)) }
    })
}

/// Does all work that needs no waiting: accepts peers, notices lost peers, folds gradients that have arrived, publishes
/// versions. `progressed`, unless NULL, becomes 1 if there was work and 0 if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_progress(
    server: *mut slackline_server,
    progressed: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::wanted(progressed, "progressed")? };
        // SAFETY: the contract.
        let progress = unsafe { with(server, |serving| Ok(serving.server.poll(now())?))? };
        if let Some(out) = out {
            out.set(progress.into());
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
            if server.serve(until_workers_left, timeout)? {
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

/// Writes the present state to `status`. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_get_status(
    server: *const slackline_server,
    status: *mut slackline_server_status,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { SizedOut::new(status, "status")? };
        // SAFETY: the contract.
        let status = unsafe {
            with(server, |Serving { server, .. }| {
                Ok(slackline_server_status::of(&server.status(), server.epoch(), server.follows()))
            })?
        };
        out.set(status);
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

/// Writes a checkpoint and serves until the version that is the newest now, or a later one, is safely on the disk: the
/// last thing before a clean end. `version`, unless NULL, is told which one. Needs `checkpoint_folder` in the options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_checkpoint(
    server: *mut slackline_server,
    timeout_ms: u64,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::wanted(version, "version")? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let written = unsafe { with(server, |serving| Ok(serving.server.finish_checkpoint(timeout)?))? };
        if let Some(out) = out {
            out.set(written.get());
        }
        Ok(())
    })
}

/// Ends the server; its peers are told. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_destroy(server: *mut slackline_server) {
    // SAFETY: the contract.
    unsafe { destroy(server) };
}
