//! The settings of a job.

use std::ffi::c_char;
use std::ptr::null;
use std::time::Duration;

use slackline::{JobPlan, TransportKind};

use super::texts::secret;
use super::values::{resume_of, slackline_resume};
use crate::error::Failure;
use crate::fabric::Source;
use crate::gpu::slackline_gpu;
use crate::handle::text;
use crate::sized::Measured;

/// The plan of a job, the same in all its processes. Set `size`, call `slackline_job_options_init`, then change
/// fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_job_options {
    /// `sizeof(struct slackline_job_options)`.
    pub size: usize,
    /// The number of servers: the first ranks, one for each shard. The other ranks are workers. By default 1.
    pub servers: u64,
    /// The longest time that any wait of the job takes; by default 60000.
    pub timeout_ms: u64,
    /// "shm", "verbs" or "tcp": the one transport that all pairs must use. By default NULL: the best of each pair.
    pub transport: *const c_char,
    /// Not 0: the job goes on without a server that was lost, until it comes back with its checkpoint or the timeout
    /// passes; workers then call `slackline_job_reconnect`. By default 0.
    pub reconnect: u64,
    /// One of `enum slackline_resume`, for servers with a `checkpoint_folder`; by default never: a checkpoint that an
    /// earlier run left is an error. A server that replaces a lost one resumes from its checkpoint in any case.
    pub resume: u64,
    /// Not 0: the first worker of each host stands for all workers there at the servers, which see one worker and one
    /// gradient of it; the workers of a host reach each other over shared memory. Under "bsp", with servers, and
    /// without `reconnect`. By default 0.
    pub per_host: u64,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed beyond one host. By
    /// default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// Not 0: parameters and gradients are encrypted over TCP, and not only the handshakes. This needs a secret. The
    /// job then has no RDMA. By default 0: they are encrypted if SLACKLINE_TCP_ENCRYPT is 1.
    pub encrypt: u64,
    /// The GPU of this process, for the payloads that it serves or works with: see `slackline_gpu_open`. If the RDMA
    /// devices of a server do not reach its GPU, other hosts reach it over TCP; with "verbs" as `transport` its
    /// payloads are in host memory instead. By default NULL: there is none.
    pub gpu: *const slackline_gpu,
}

impl Default for slackline_job_options {
    fn default() -> Self {
        slackline_job_options {
            size: size_of::<Self>(),
            servers: 1,
            timeout_ms: 60_000,
            transport: null(),
            reconnect: 0,
            resume: slackline_resume::Never as u64,
            per_host: 0,
            secret: null(),
            secret_file: null(),
            encrypt: 0,
            gpu: null(),
        }
    }
}

impl Measured for slackline_job_options {
    const FIRST: usize = 48;
}

impl slackline_job_options {
    /// # Safety
    ///
    /// The texts are NULL or as for [`text`], and outlive the result.
    pub(crate) unsafe fn translate<'a>(&self) -> Result<(JobPlan, Source<'a>), Failure> {
        let servers = u32::try_from(self.servers).map_err(|_| {
            Failure::bad_argument(format!(
                "options->servers cannot be {}; use a number of ranks",
                self.servers
            ))
        })?;
        let plan = JobPlan::servers(servers)
            .timeout(Duration::from_millis(self.timeout_ms))
            .reconnect(self.reconnect != 0)
            .resume(resume_of(self.resume)?)
            .per_host(self.per_host != 0);
        // SAFETY: the caller's promise.
        let secret = unsafe { secret(self.secret, self.secret_file, self.encrypt)? };
        if self.transport.is_null() {
            return Ok((plan, secret));
        }
        // SAFETY: the caller's promise.
        let transport = unsafe { text(self.transport, "options->transport")? };
        let transport = transport.parse::<TransportKind>();
        let transport = transport.map_err(|error| Failure::bad_argument(error.to_string()))?;
        Ok((plan.transport(transport), secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_a_job_by_default_is_the_library_s_own() {
        // SAFETY: all texts are NULL.
        let (plan, secret) = unsafe { slackline_job_options::default().translate() }.unwrap();
        assert_eq!((plan, secret.encrypts), (JobPlan::servers(1), false));
    }
}
