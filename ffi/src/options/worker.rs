//! The settings of a worker.

use std::ffi::c_char;
use std::ptr::null;

use slackline::WorkerOptions;

use super::texts::scheme;
use super::values::{encoding, idle, read_mode, slackline_element, slackline_idle, slackline_read};
use crate::error::Failure;
use crate::gpu::slackline_gpu;
use crate::scheme::SLACKLINE_NO_STALENESS;
use crate::sized::Measured;

/// Settings of a worker. Set `size`, call `slackline_worker_options_init`, then change fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_worker_options {
    /// `sizeof(struct slackline_worker_options)`.
    pub size: usize,
    /// The servers' scheme, which is refused if they run another. By default NULL: the worker asks the servers.
    pub scheme: *const c_char,
    /// The servers' staleness, if `scheme` is set and has none in its text; by default `SLACKLINE_NO_STALENESS`.
    pub staleness: u64,
    /// One of `enum slackline_element`: how gradients travel; by default f32.
    pub encoding: u32,
    /// Not 0: gradients carry checksums, and the checksums of parameters are checked. By default 0.
    pub checksums: u32,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// One of `enum slackline_read`; by default it copies.
    pub read: u64,
    /// A number from 1 to 4294967295 that names this worker among the workers of its servers. A worker that is
    /// started again with the same number is the same worker to the servers: no gradient of one clock of it is
    /// applied twice. By default 0: a random name that no other worker has. `slackline_job_worker` does not look at
    /// it.
    pub identity: u64,
    /// The step with which this worker's view takes the worker's own gradients: `parameters -= own_step * gradient`.
    /// The view then holds all published gradients of the worker at once; for plain SGD `own_step` is the learning rate
    /// over the number of workers. By default 0: the view is the servers' parameters.
    pub own_step: f64,
    /// One of `enum slackline_idle`: how it waits for parameters and for its gradients; by default it polls.
    pub idle: u64,
    /// Not 0: parameters and gradients are encrypted over TCP, and not only the handshakes. This needs a secret.
    /// Peers that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are
    /// encrypted if SLACKLINE_TCP_ENCRYPT is 1.
    pub encrypt: u64,
    /// The GPU that `slackline_worker_publish_from_gpu` publishes from: see `slackline_gpu_open`. By default NULL:
    /// there is none. `slackline_job_worker` does not look at it.
    pub gpu: *const slackline_gpu,
}

impl Measured for slackline_worker_options {
    const FIRST: usize = 32;
}

impl Default for slackline_worker_options {
    fn default() -> Self {
        let (scheme, staleness) = (null(), SLACKLINE_NO_STALENESS);
        let encoding = slackline_element::F32 as u32;
        slackline_worker_options {
            size: size_of::<Self>(),
            scheme,
            staleness,
            encoding,
            checksums: 0,
            secret: null(),
            secret_file: null(),
            read: slackline_read::Copy as u64,
            identity: 0,
            own_step: 0.0,
            idle: slackline_idle::Poll as u64,
            encrypt: 0,
            gpu: null(),
        }
    }
}

impl slackline_worker_options {
    /// # Safety
    ///
    /// `scheme` is NULL or as for [`text`](crate::handle::text).
    pub(crate) unsafe fn translate(&self) -> Result<WorkerOptions, Failure> {
        let named = match self.scheme.is_null() {
            true => WorkerOptions::default(),
            // SAFETY: the caller's promise.
            false => WorkerOptions::new(unsafe { scheme(self.scheme, self.staleness)? }),
        };
        let identity = u32::try_from(self.identity).map_err(|_| {
            let given = self.identity;
            Failure::bad_argument(format!("options->identity cannot be {given}: it has 32 bits"))
        })?;
        Ok(WorkerOptions {
            encoding: encoding(self.encoding)?,
            identity: (identity > 0).then_some(identity),
            read: read_mode(self.read)?,
            idle: idle(self.idle)?,
            checksums: self.checksums != 0,
            waits_for_server: true,
            own_step: (self.own_step != 0.0).then_some(self.own_step as f32),
            schemes: crate::scheme::registry(),
            ..named
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_library_s_own() {
        // SAFETY: the scheme's name is a literal.
        let worker = unsafe { slackline_worker_options::default().translate() }.unwrap();
        assert_eq!(worker, WorkerOptions { waits_for_server: true, ..WorkerOptions::default() });
    }
}
