//! The server that stands for the workers of its host: see [`slackline::Server::for_host`].

use std::ffi::c_char;
use std::time::Duration;

use slackline::{Server, Worker, now};

use crate::error::slackline_status;
use crate::fabric::fabric;
use crate::gpu::expect_none;
use crate::handle::create;
use crate::options::{self, slackline_server_options, slackline_worker_options};
use crate::server::{Serving, slackline_server};
use crate::sized::sized;
use crate::worker::read_addresses;

/// Begins to serve the workers of one host at `address`, which is as for `slackline_server_create`, and stands for them
/// at the servers of the job: an aggregating proxy. In each round it sums the gradients of its workers and hands the
/// sum on, so that one connection to each server leaves the host. The scheme is the servers', "bsp"; each worker of the
/// job has the same weight there, and their `workers` counts hosts.
///
/// `servers` are the addresses of the servers of all shards, in any order, to which it connects with the options
/// `upstream` (gradients are f32 and copied, and `own_step` is 0). Of `options` it looks at `workers`, the number of
/// workers of this host, at the secret and its encryption, and at `peers`, `frames`, `checksums`, `chunk_bytes`,
/// `lease_ms` and `idle`. It waits at most `timeout_ms` for the servers and their first parameters.
///
/// Serve it until its workers have left, then destroy it: while it has no worker, the servers wait for its next
/// gradient. It is the caller's; on failure it is NULL. `per_host` in the options of a job does all of this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_server_for_host(
    servers: *const *const c_char,
    server_count: usize,
    upstream: *const slackline_worker_options,
    address: *const c_char,
    options: *const slackline_server_options,
    timeout_ms: u64,
    server: *mut *mut slackline_server,
) -> slackline_status {
    let begin = || {
        let deadline = now() + Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let (servers, address) =
            unsafe { (read_addresses(servers, server_count)?, options::listen_address(address)?) };
        // SAFETY: the contract.
        let (upstream, options) = unsafe { (sized(upstream, "upstream")?, sized(options, "options")?) };
        expect_none(upstream.gpu, "what stands for a host")?;
        // SAFETY: the contract.
        let (above, below) = unsafe {
            (
                options::secret(upstream.secret, upstream.secret_file, upstream.encrypt)?,
                options::secret(options.secret, options.secret_file, options.encrypt)?,
            )
        };
        // SAFETY: the contract.
        let upstream = unsafe { upstream.translate()? };
        expect_none(options.gpu, "what stands for a host")?;
        let memory = options.memory()?;
        let below = fabric(below, std::slice::from_ref(&address))?;
        let upstream = Worker::connect(fabric(above, &servers)?, &servers, upstream, deadline - now())?;
        let workers = options.workers;
        Ok(Serving::new(Server::for_host(upstream, below, &address, workers, memory, deadline - now())?))
    };
    // SAFETY: the contract.
    unsafe { create(server, begin) }
}
