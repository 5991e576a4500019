//! The settings of a server.

use std::ffi::c_char;
use std::ptr::null;
use std::time::Duration;

use slackline::checkpoint::{Checkpoint, CheckpointError, CheckpointOptions, Resume};
use slackline::optim::{AdamParameters, Optimizer};
use slackline::{NonFinite, ServerOptions, ShardOptions};

use super::texts::{path, schedule, scheme};
use super::values::{
    DAMPINGS, idle, milliseconds, named, resume_of, slackline_damping, slackline_idle, slackline_non_finite,
    slackline_optimizer, slackline_resume,
};
use crate::error::Failure;
use crate::gpu::slackline_gpu;
use crate::scheme::SLACKLINE_NO_STALENESS;
use crate::sized::Measured;

/// Settings of a server. Set `size`, call `slackline_server_options_init`, then change fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_server_options {
    /// `sizeof(struct slackline_server_options)`.
    pub size: usize,
    /// "bsp", "asp", "ssp(3)" or another scheme that `slackline train --help` names, with its settings in
    /// parentheses, or one of `slackline_scheme_register`; by default "bsp". Workers must run the same.
    pub scheme: *const c_char,
    /// Most clocks that a worker's copy may be behind, for schemes that take a staleness and have none in their text;
    /// by default `SLACKLINE_NO_STALENESS`.
    pub staleness: u64,
    /// Number of workers in the job: nothing is applied before that many have joined. By default 1.
    pub workers: usize,
    /// Threads that sum gradients, the caller's own among them; by default 1.
    pub threads: usize,
    /// One of `enum slackline_optimizer`; by default SGD.
    pub optimizer: u32,
    /// Step size; by default 0.01.
    pub learning_rate: f32,
    /// By default 0.
    pub weight_decay: f32,
    /// By default 0.9.
    pub momentum: f32,
    /// By default 0.9.
    pub beta1: f32,
    /// By default 0.999.
    pub beta2: f32,
    /// By default 1e-8.
    pub epsilon: f32,
    /// The number of the shard that this server holds; by default 0.
    pub shard: u16,
    /// Number of shards into which the table is cut; by default 1.
    pub shards: u16,
    /// Most peers at a time, workers and readers together; by default 64. In a job there is room for its workers and
    /// servers in any case.
    pub peers: u16,
    /// Frames of memory, each one version long: readers that pin different versions, plus 2. By default 3.
    pub frames: u8,
    /// Not 0: each version carries a checksum. By default 0.
    pub checksums: u8,
    /// Bytes of parameters that are summed, copied and announced at a time, a multiple of 64; by default 1 MiB.
    pub chunk_bytes: u64,
    /// The time in milliseconds after which a silent peer is taken for dead; by default 3000.
    pub lease_ms: u64,
    /// One of `enum slackline_non_finite`, for gradients that hold a NaN or an infinity; by default they are allowed.
    pub non_finite: u32,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// The folder for the server's checkpoint, a file `shard-S-of-N.safetensors` and the one before it; the servers of
    /// a job may share the folder. By default NULL: no checkpoints.
    pub checkpoint_folder: *const c_char,
    /// Number of versions after which a thread of its own writes the next checkpoint; with 0 one is written only when
    /// `slackline_server_checkpoint` is called. By default 0.
    pub checkpoint_every: u64,
    /// One of `enum slackline_resume`; by default never.
    pub resume: u64,
    /// One of `enum slackline_damping`; by default none.
    pub damping: u64,
    /// One of `enum slackline_idle`; by default it polls.
    pub idle: u64,
    /// Not 0: norm and variance of gradients are measured, though the scheme has no use for them. By default 0.
    pub measure_moments: u64,
    /// How the step size falls with the number of the version: "constant", "steps(100, 0.1)" (a tenth after each 100
    /// versions), "inverse-root(100)" (`1 / sqrt(1 + version / 100)` of the first one) or "cosine(100)" (to 0 at
    /// version 100). By default NULL: it is constant.
    pub schedule: *const c_char,
    /// Not 0: each gradient counts whole, and the step size is not shared among the workers, so that updates add up as
    /// counts do. It is for schemes that fold every gradient in. By default 0.
    pub additive: u64,
    /// Not 0: parameters and gradients are encrypted over TCP, and not only the handshakes. This needs a secret.
    /// Peers that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are
    /// encrypted if SLACKLINE_TCP_ENCRYPT is 1.
    pub encrypt: u64,
    /// The GPU that the parameters, the states and the gradients are on, and that folds them: over shared memory, TCP,
    /// and RDMA if the device reaches the GPU. If it does not, they are in the memory of the host. See
    /// `slackline_gpu_open`. By default NULL: they are in the memory of the host. `slackline_job_server` does not look
    /// at it.
    pub gpu: *const slackline_gpu,
}

impl Measured for slackline_server_options {
    const FIRST: usize = 104;
}

impl Default for slackline_server_options {
    fn default() -> Self {
        let memory = ShardOptions::default();
        let adam = AdamParameters::default();
        slackline_server_options {
            size: size_of::<Self>(),
            scheme: c"bsp".as_ptr(),
            staleness: SLACKLINE_NO_STALENESS,
            workers: 1,
            threads: 1,
            optimizer: slackline_optimizer::Sgd as u32,
            learning_rate: 0.01,
            weight_decay: adam.weight_decay,
            momentum: 0.9,
            beta1: adam.beta1,
            beta2: adam.beta2,
            epsilon: adam.epsilon,
            shard: 0,
            shards: 1,
            peers: memory.peers,
            frames: memory.frames,
            checksums: memory.checksums.into(),
            chunk_bytes: memory.chunk_bytes,
            lease_ms: milliseconds(memory.lease),
            non_finite: slackline_non_finite::Allow as u32,
            secret: null(),
            secret_file: null(),
            checkpoint_folder: null(),
            checkpoint_every: 0,
            resume: slackline_resume::Never as u64,
            damping: slackline_damping::None as u64,
            idle: slackline_idle::Poll as u64,
            measure_moments: 0,
            schedule: null(),
            additive: 0,
            encrypt: 0,
            gpu: null(),
        }
    }
}

impl slackline_server_options {
    /// # Safety
    ///
    /// The texts are as for [`text`](crate::handle::text).
    pub(crate) unsafe fn translate(&self) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            damping: named(DAMPINGS, self.damping, "setting of damping")?,
            additive: self.additive != 0,
            // SAFETY: the caller's promise.
            scheme: unsafe { scheme(self.scheme, self.staleness)? },
            workers: self.workers,
            optimizer: self.optimizer()?,
            learning_rate: self.learning_rate,
            // SAFETY: the caller's promise.
            schedule: unsafe { schedule(self.schedule)? },
            threads: self.threads,
            shard: (self.shard, self.shards),
            memory: self.memory()?,
            // SAFETY: the caller's promise.
            checkpoint: unsafe { self.checkpoint()? },
            measure_moments: self.measure_moments != 0,
            non_finite: self.non_finite()?,
        })
    }

    /// # Safety
    ///
    /// As for [`translate`](Self::translate).
    unsafe fn checkpoint(&self) -> Result<Option<CheckpointOptions>, Failure> {
        if self.checkpoint_folder.is_null() {
            return match (self.checkpoint_every, self.resume) {
                (0, 0) => Ok(None),
                _ => Err(Failure::bad_argument(
                    "options->checkpoint_every and options->resume need a folder: set options->checkpoint_folder",
                )),
            };
        }
        // SAFETY: the caller's promise.
        let folder = unsafe { path(self.checkpoint_folder, "options->checkpoint_folder")? };
        let file = folder.join(format!("shard-{}-of-{}.safetensors", self.shard, self.shards));
        let every = (self.checkpoint_every > 0).then_some(self.checkpoint_every);
        Ok(Some(CheckpointOptions { every, ..CheckpointOptions::new(file) }))
    }

    /// The checkpoint to go on from, if there is to be one.
    pub(crate) fn resume(&self, options: &ServerOptions) -> Result<Option<Checkpoint>, Failure> {
        let resume = resume_of(self.resume)?;
        let Some(checkpoint) = &options.checkpoint else { return Ok(None) };
        match resume {
            Resume::Never => Ok(None),
            _ => match Checkpoint::read(&checkpoint.path) {
                Err(CheckpointError::Missing { .. }) if resume == Resume::IfThere => Ok(None),
                checkpoint => Ok(Some(checkpoint?)),
            },
        }
    }

    /// The settings of the memory.
    pub(crate) fn memory(&self) -> Result<ShardOptions, Failure> {
        Ok(ShardOptions {
            peers: self.peers,
            frames: self.frames,
            chunk_bytes: self.chunk_bytes,
            lease: Duration::from_millis(self.lease_ms),
            checksums: self.checksums != 0,
            idle: idle(self.idle)?,
        })
    }

    fn non_finite(&self) -> Result<NonFinite, Failure> {
        let known = [
            (slackline_non_finite::Allow as u64, NonFinite::Allow),
            (slackline_non_finite::Drop as u64, NonFinite::Drop),
            (slackline_non_finite::Refuse as u64, NonFinite::Refuse),
        ];
        named(known, self.non_finite.into(), "setting of non_finite")
    }

    fn optimizer(&self) -> Result<Optimizer, Failure> {
        let weight_decay = self.weight_decay;
        let adam =
            AdamParameters { beta1: self.beta1, beta2: self.beta2, epsilon: self.epsilon, weight_decay };
        let known = [
            (slackline_optimizer::Sgd as u64, Optimizer::Sgd { weight_decay }),
            (
                slackline_optimizer::Momentum as u64,
                Optimizer::Momentum { momentum: self.momentum, weight_decay },
            ),
            (slackline_optimizer::Adam as u64, Optimizer::Adam(adam)),
            (slackline_optimizer::Adamw as u64, Optimizer::AdamW(adam)),
        ];
        named(known, self.optimizer.into(), "optimizer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline::scheme::SchemeConfig;

    #[test]
    fn defaults_are_the_library_s_own() {
        // SAFETY: the scheme's name is a literal.
        let server = unsafe { slackline_server_options::default().translate() }.unwrap();
        assert_eq!(server, ServerOptions::new(SchemeConfig::Bsp, 1, 0.01));
    }

    #[test]
    fn numbers_that_name_nothing_are_bad_arguments() {
        assert!(slackline_server_options { optimizer: 4, ..Default::default() }.optimizer().is_err());
        assert!(slackline_server_options { non_finite: 3, ..Default::default() }.non_finite().is_err());
        let drop = slackline_server_options { non_finite: 1, ..Default::default() };
        assert_eq!(drop.non_finite().unwrap(), NonFinite::Drop);
        let adamw = slackline_server_options { optimizer: 3, beta1: 0.5, ..Default::default() };
        assert!(matches!(adamw.optimizer(), Ok(Optimizer::AdamW(adam)) if adam.beta1 == 0.5));
    }
}
