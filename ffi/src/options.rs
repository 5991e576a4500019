//! The structs that cross the boundary, and what they become on this side.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;
use std::time::Duration;

use slackline::{
    AdamParameters, Address, Checkpoint, CheckpointError, CheckpointOptions, DeltaOptions, ElementType,
    Encoding, Idle, NonFinite, Optimizer, PublisherOptions, ReadMode, ReaderOptions, Resume, Schedule,
    ServerOptions, ShardOptions, Table, Version, WorkerOptions,
    scheme::{AnyScheme, Damping},
};

use crate::error::Failure;
use crate::fabric;
use crate::handle::{slice, text};
use crate::sized::Measured;

/// A staleness that is not given: schemes that take one use their default, the others take none.
pub const SLACKLINE_NO_STALENESS: u64 = 0xffff_ffff_ffff_ffff;

/// A version that there is not.
pub const SLACKLINE_NO_VERSION: u64 = 0xffff_ffff_ffff_ffff;

/// Types of elements, for the field called `element`: those of DLPack 1.1. A server's table is f32. Of the field called
/// `encoding` the first three are values.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_element {
    /// IEEE 754 single precision, 4 bytes.
    F32 = 0,
    /// bfloat16, 2 bytes.
    Bf16 = 1,
    /// IEEE 754 half precision, 2 bytes.
    F16 = 2,
    /// IEEE 754 double precision, 8 bytes.
    F64 = 3,
    /// A byte that is 0 or 1.
    Bool = 4,
    /// Signed integer of 1 byte.
    I8 = 5,
    /// Signed integer of 2 bytes.
    I16 = 6,
    /// Signed integer of 4 bytes.
    I32 = 7,
    /// Signed integer of 8 bytes.
    I64 = 8,
    /// Unsigned integer of 1 byte.
    U8 = 9,
    /// Unsigned integer of 2 bytes.
    U16 = 10,
    /// Unsigned integer of 4 bytes.
    U32 = 11,
    /// Unsigned integer of 8 bytes.
    U64 = 12,
    /// Two f32, real and imaginary part.
    Complex64 = 13,
    /// Two f64, real and imaginary part.
    Complex128 = 14,
    /// 1 byte: 3 bits of exponent, 4 of mantissa.
    F8E3M4 = 15,
    /// 1 byte: 4 bits of exponent, 3 of mantissa, as IEEE 754 would have it.
    F8E4M3 = 16,
    /// 1 byte: 4 bits of exponent with bias 11, 3 of mantissa, finite, one zero.
    F8E4M3B11Fnuz = 17,
    /// 1 byte: 4 bits of exponent, 3 of mantissa, finite (OCP E4M3).
    F8E4M3Fn = 18,
    /// 1 byte: 4 bits of exponent, 3 of mantissa, finite, one zero.
    F8E4M3Fnuz = 19,
    /// 1 byte: 5 bits of exponent, 2 of mantissa (OCP E5M2).
    F8E5M2 = 20,
    /// 1 byte: 5 bits of exponent, 2 of mantissa, finite, one zero.
    F8E5M2Fnuz = 21,
    /// 1 byte: 8 bits of exponent, for scales (OCP E8M0).
    F8E8M0Fnu = 22,
    /// 6 bits, packed: 2 of exponent, 3 of mantissa.
    F6E2M3Fn = 23,
    /// 6 bits, packed: 3 of exponent, 2 of mantissa.
    F6E3M2Fn = 24,
    /// 4 bits, packed: 2 of exponent, 1 of mantissa.
    F4E2M1Fn = 25,
}

/// The rules by which gradients move parameters, for the field called `optimizer`. Formulas are PyTorch's.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_optimizer {
    /// Uses `learning_rate` and `weight_decay`.
    Sgd = 0,
    /// Uses `momentum` as well.
    Momentum = 1,
    /// Uses `learning_rate`, `beta1`, `beta2`, `epsilon` and `weight_decay`, an L2 penalty.
    Adam = 2,
    /// As Adam, with the decay taken from the parameter itself.
    Adamw = 3,
}

/// One tensor of a table. A table is an array of them, laid out one after the other in one flat space, each at a
/// multiple of its element size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_tensor {
    /// UTF-8, ending in a zero; unique in its table.
    pub name: *const c_char,
    /// `rank` sides, outermost first. May be NULL if `rank` is 0: a scalar.
    pub shape: *const u64,
    /// Number of sides.
    pub rank: usize,
    /// One of `enum slackline_element`.
    pub element: u32,
}

/// The treatments of gradients that hold a NaN or an infinity, for the field called `non_finite`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_non_finite {
    /// They are folded in as they are.
    Allow = 0,
    /// They are left out, and count as dropped.
    Drop = 1,
    /// They are left out, and the worker that sent one is evicted.
    Refuse = 2,
}

/// Whether a server goes on from its checkpoint, for the field called `resume`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_resume {
    /// It begins with the initial values that it is given.
    Never = 0,
    /// It goes on from its checkpoint if there is one. The version in its status tells.
    IfThere = 1,
    /// It goes on from its checkpoint; that there is none is an error.
    Required = 2,
}

/// The ways in which a worker reads parameters, for the field called `read`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_read {
    /// It copies them into memory of its own: `slackline_worker_parameters`.
    Copy = 0,
    /// It reads them where they lie and holds a pin while it computes, over shared memory only:
    /// `slackline_worker_in_place`.
    InPlace = 1,
}

/// The effects of a gradient's staleness on its weight, for the field called `damping`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_damping {
    /// It has no effect.
    None = 0,
    /// The weight is divided by the staleness, where that is more than 1.
    Inverse = 1,
}

/// The ways in which an owner waits while there is nothing to do, for the field called `idle`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_idle {
    /// It looks for something again and again: what comes is seen at once, for a processor's time.
    Poll = 0,
    /// It sleeps until a peer wakes it, or for 20 ms at most, over shared memory, TCP and RDMA. One that shares its
    /// listener with other tables polls, as does one at several RDMA addresses; a publisher with `background` looks
    /// every millisecond.
    Sleep = 1,
}

/// Settings of a server. Set `size`, call `slackline_server_options_init`, change what should differ.
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
    /// Most peers at a time, workers and readers together; by default 64.
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
}

/// Settings of a worker. Set `size`, call `slackline_worker_options_init`, change what should differ.
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
    /// Not 0: gradients carry checksums, and those of parameters are checked. By default 0.
    pub checksums: u32,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// One of `enum slackline_read`; by default it copies.
    pub read: u64,
    /// A number from 1 to 4294967295 that names this worker among those of its servers. A worker that is started again
    /// with the same number is the same worker to the servers: no gradient of one clock of it is applied twice. By
    /// default 0: a random name that no other worker has. `slackline_job_worker` does not look at it.
    pub identity: u64,
    /// The step with which this worker's view takes the worker's own gradients: `parameters -= own_step * gradient`.
    /// The view then holds all that the worker has published, at once; for plain SGD `own_step` is the learning rate
    /// over the number of workers. By default 0: the view is what the servers have.
    pub own_step: f64,
}

/// Settings of a publisher. Set `size`, call `slackline_publisher_options_init`, change what should differ.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_publisher_options {
    /// `sizeof(struct slackline_publisher_options)`.
    pub size: usize,
    /// Most readers at a time; by default 64.
    pub peers: u16,
    /// Frames of memory, each one version long: readers that pin different versions, plus 2. By default 3.
    pub frames: u8,
    /// Not 0: each version carries a checksum. By default 0.
    pub checksums: u8,
    /// Bytes that are copied and announced at a time, a multiple of 64; by default 1 MiB.
    pub chunk_bytes: u64,
    /// The time in milliseconds after which a silent reader is taken for dead; by default 3000.
    pub lease_ms: u64,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// One of `enum slackline_idle`; by default it polls.
    pub idle: u64,
    /// Not 0: a thread of the library looks after the readers, so that no call has to. By default 0.
    pub background: u64,
    /// The version at which it begins, all zeros; by default 0. The successor of a publisher that is lost begins at
    /// that one's last version.
    pub begin_at: u64,
    /// Differences between successive versions that are kept for readers which hold an older version: those of the
    /// newest so many, at most 255; by default 0. Readers use them by themselves.
    pub deltas: u64,
    /// Most bytes of one difference: a version that differs by more is read whole. By default 0, which stands for a
    /// sixteenth of the table.
    pub delta_bytes: u64,
    /// The name of the table, UTF-8 and a zero, by which readers ask for it; of a relay also by which it asks for it.
    /// By default NULL: it has none. For several tables at one address see `slackline_tables_listen`.
    pub table: *const c_char,
    /// Relays that read from it, at least 1, where a publisher arranges a tree; by default 2. See
    /// `slackline_relay_join`.
    pub branches: u64,
}

/// Settings of a reader. Set `size`, call `slackline_reader_options_init`, change what should differ.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_reader_options {
    /// `sizeof(struct slackline_reader_options)`.
    pub size: usize,
    /// Not 0: check the owner's checksums, where there are any. By default 0.
    pub checksums: u32,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// The name of the table to read, UTF-8 and a zero, where its owner has one for it. By default NULL: it has none.
    pub table: *const c_char,
    /// Not 0: the address is that of a publisher whose relays are in a tree. It says from whom this reader reads, each
    /// time that it connects. By default 0.
    pub in_tree: u64,
}

impl Measured for slackline_server_options {
    const FIRST: usize = 104;
}
impl Measured for slackline_worker_options {
    const FIRST: usize = 32;
}
impl Measured for slackline_publisher_options {
    const FIRST: usize = 32;
}
impl Measured for slackline_reader_options {
    const FIRST: usize = 16;
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
        }
    }
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
        }
    }
}

impl Default for slackline_publisher_options {
    fn default() -> Self {
        let ShardOptions { peers, frames, chunk_bytes, lease, checksums, .. } = ShardOptions::default();
        slackline_publisher_options {
            size: size_of::<Self>(),
            peers,
            frames,
            checksums: checksums.into(),
            chunk_bytes,
            lease_ms: milliseconds(lease),
            secret: null(),
            secret_file: null(),
            idle: slackline_idle::Poll as u64,
            background: 0,
            begin_at: 0,
            deltas: 0,
            delta_bytes: 0,
            table: null(),
            branches: 2,
        }
    }
}

impl Default for slackline_reader_options {
    fn default() -> Self {
        slackline_reader_options {
            size: size_of::<Self>(),
            checksums: 0,
            secret: null(),
            secret_file: null(),
            table: null(),
            in_tree: 0,
        }
    }
}

impl slackline_server_options {
    /// # Safety
    ///
    /// The texts are as for [`text`].
    pub(crate) unsafe fn translate(&self) -> Result<ServerOptions, Failure> {
        Ok(ServerOptions {
            damping: named(DAMPINGS, self.damping, "setting of damping")?,
            additive: false,
            // SAFETY: the caller's promise.
            scheme: unsafe { scheme(self.scheme, self.staleness)? },
            workers: self.workers,
            optimizer: self.optimizer()?,
            learning_rate: self.learning_rate,
            schedule: Schedule::Constant,
            threads: self.threads,
            shard: (self.shard, self.shards),
            memory: ShardOptions {
                peers: self.peers,
                frames: self.frames,
                chunk_bytes: self.chunk_bytes,
                lease: Duration::from_millis(self.lease_ms),
                checksums: self.checksums != 0,
                idle: idle(self.idle)?,
            },
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

impl slackline_worker_options {
    /// # Safety
    ///
    /// `scheme` is NULL or as for [`text`].
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
            checksums: self.checksums != 0,
            waits_for_server: true,
            own_step: (self.own_step != 0.0).then_some(self.own_step as f32),
            schemes: crate::scheme::registry(),
            ..named
        })
    }
}

impl slackline_publisher_options {
    pub(crate) fn translate(&self) -> Result<PublisherOptions, Failure> {
        let memory = ShardOptions {
            peers: self.peers,
            frames: self.frames,
            chunk_bytes: self.chunk_bytes,
            lease: Duration::from_millis(self.lease_ms),
            checksums: self.checksums != 0,
            idle: idle(self.idle)?,
        };
        let too_many = || Failure::bad_argument(format!("deltas is {}: keep at most 255", self.deltas));
        let history = u8::try_from(self.deltas).map_err(|_| too_many())?;
        let most_bytes = (self.delta_bytes > 0).then_some(self.delta_bytes);
        let deltas = (history > 0).then_some(DeltaOptions { history, most_bytes });
        let branches = u16::try_from(self.branches).map_err(|_| {
            Failure::bad_argument(format!("branches is {}: use at most 65,535", self.branches))
        })?;
        Ok(PublisherOptions { memory, begin_at: Version::new(self.begin_at), deltas, branches })
    }
}

impl slackline_reader_options {
    pub(crate) fn translate(&self) -> ReaderOptions {
        ReaderOptions {
            checksums: self.checksums != 0,
            waits_for_server: true,
            in_tree: self.in_tree != 0,
            ..ReaderOptions::default()
        }
    }
}

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

/// The two fields that say where the secret comes from.
///
/// # Safety
///
/// Each is NULL or as for [`text`], and outlives the result.
pub(crate) unsafe fn secret<'a>(
    secret: *const c_char,
    secret_file: *const c_char,
) -> Result<fabric::Source<'a>, Failure> {
    match (secret.is_null(), secret_file.is_null()) {
        (true, true) => Ok(fabric::Source::Environment),
        // SAFETY: the caller's promise.
        (false, true) => Ok(fabric::Source::Text(unsafe { text(secret, "options->secret")? })),
        // SAFETY: the caller's promise.
        (true, false) => Ok(fabric::Source::File(unsafe { path(secret_file, "options->secret_file")? })),
        (false, false) => Err(Failure::bad_argument(
            "options->secret and options->secret_file are both set: set one of them",
        )),
    }
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

/// A path, which need not be UTF-8.
///
/// # Safety
///
/// As for [`text`].
unsafe fn path<'a>(pointer: *const c_char, what: &str) -> Result<&'a Path, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not NULL; it ends in a zero by the caller's promise.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(pointer) }.to_bytes())))
}

/// # Safety
///
/// `tensors` is NULL, or points at `count` tensors, whose names and shapes are as for [`text`] and [`slice`].
pub(crate) unsafe fn table(tensors: *const slackline_tensor, count: usize) -> Result<Table, Failure> {
    let mut builder = Table::builder();
    // SAFETY: the caller's promise.
    for tensor in unsafe { slice(tensors, count, "the array of tensors")? } {
        // SAFETY: the caller's promise.
        let (name, shape) = unsafe {
            (text(tensor.name, "a tensor's name")?, slice(tensor.shape, tensor.rank, "a tensor's shape")?)
        };
        builder = builder.tensor(name, shape, element(tensor.element)?);
    }
    Ok(builder.build()?)
}

pub(crate) const DAMPINGS: [(u64, Damping); 2] =
    [(slackline_damping::None as u64, Damping::None), (slackline_damping::Inverse as u64, Damping::Inverse)];

/// The library's name of a number of [`slackline_resume`].
pub(crate) fn resume_of(number: u64) -> Result<Resume, Failure> {
    let known = [
        (slackline_resume::Never as u64, Resume::Never),
        (slackline_resume::IfThere as u64, Resume::IfThere),
        (slackline_resume::Required as u64, Resume::Required),
    ];
    named(known, number, "setting of resume")
}

fn idle(number: u64) -> Result<Idle, Failure> {
    let known = [(slackline_idle::Poll as u64, Idle::Poll), (slackline_idle::Sleep as u64, Idle::Sleep)];
    named(known, number, "setting of idle")
}

fn read_mode(number: u64) -> Result<ReadMode, Failure> {
    let known =
        [(slackline_read::Copy as u64, ReadMode::Copy), (slackline_read::InPlace as u64, ReadMode::InPlace)];
    named(known, number, "setting of read")
}

/// Each type of elements, as C and as Rust name it.
pub(crate) const ELEMENTS: [(u64, ElementType); 26] = [
    (slackline_element::F32 as u64, ElementType::F32),
    (slackline_element::Bf16 as u64, ElementType::Bf16),
    (slackline_element::F16 as u64, ElementType::F16),
    (slackline_element::F64 as u64, ElementType::F64),
    (slackline_element::Bool as u64, ElementType::Bool),
    (slackline_element::I8 as u64, ElementType::I8),
    (slackline_element::I16 as u64, ElementType::I16),
    (slackline_element::I32 as u64, ElementType::I32),
    (slackline_element::I64 as u64, ElementType::I64),
    (slackline_element::U8 as u64, ElementType::U8),
    (slackline_element::U16 as u64, ElementType::U16),
    (slackline_element::U32 as u64, ElementType::U32),
    (slackline_element::U64 as u64, ElementType::U64),
    (slackline_element::Complex64 as u64, ElementType::Complex64),
    (slackline_element::Complex128 as u64, ElementType::Complex128),
    (slackline_element::F8E3M4 as u64, ElementType::F8E3M4),
    (slackline_element::F8E4M3 as u64, ElementType::F8E4M3),
    (slackline_element::F8E4M3B11Fnuz as u64, ElementType::F8E4M3B11Fnuz),
    (slackline_element::F8E4M3Fn as u64, ElementType::F8E4M3Fn),
    (slackline_element::F8E4M3Fnuz as u64, ElementType::F8E4M3Fnuz),
    (slackline_element::F8E5M2 as u64, ElementType::F8E5M2),
    (slackline_element::F8E5M2Fnuz as u64, ElementType::F8E5M2Fnuz),
    (slackline_element::F8E8M0Fnu as u64, ElementType::F8E8M0Fnu),
    (slackline_element::F6E2M3Fn as u64, ElementType::F6E2M3Fn),
    (slackline_element::F6E3M2Fn as u64, ElementType::F6E3M2Fn),
    (slackline_element::F4E2M1Fn as u64, ElementType::F4E2M1Fn),
];

fn element(number: u32) -> Result<ElementType, Failure> {
    named(ELEMENTS, number.into(), "element type")
}

fn encoding(number: u32) -> Result<Encoding, Failure> {
    let known = [
        (slackline_element::F32 as u64, Encoding::F32),
        (slackline_element::Bf16 as u64, Encoding::Bf16),
        (slackline_element::F16 as u64, Encoding::F16),
    ];
    named(known, number.into(), "encoding of gradients")
}

/// The value that C knows by this number.
pub(crate) fn named<T, const COUNT: usize>(
    known: [(u64, T); COUNT],
    number: u64,
    what: &str,
) -> Result<T, Failure> {
    let found = known.into_iter().find(|(name, _)| *name == number);
    found
        .map(|(_, value)| value)
        .ok_or_else(|| Failure::bad_argument(format!("no {what} has the number {number}")))
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
        // SAFETY: the scheme's name is a literal.
        let worker = unsafe { slackline_worker_options::default().translate() }.unwrap();
        assert_eq!(worker, WorkerOptions { waits_for_server: true, ..WorkerOptions::default() });
        assert_eq!(slackline_publisher_options::default().translate().unwrap(), PublisherOptions::default());
        let keeping = slackline_publisher_options { deltas: 4, delta_bytes: 100, ..Default::default() };
        let deltas = Some(DeltaOptions { history: 4, most_bytes: Some(100) });
        assert_eq!(keeping.translate().unwrap(), PublisherOptions { deltas, ..PublisherOptions::default() });
        let reader = ReaderOptions { waits_for_server: true, ..ReaderOptions::default() };
        assert_eq!(slackline_reader_options::default().translate(), reader);
    }

    #[test]
    fn numbers_that_name_nothing_are_bad_arguments() {
        assert!(element(26).is_err() && encoding(3).is_err());
        assert!(slackline_server_options { optimizer: 4, ..Default::default() }.optimizer().is_err());
        assert!(slackline_server_options { non_finite: 3, ..Default::default() }.non_finite().is_err());
        assert!(slackline_publisher_options { deltas: 256, ..Default::default() }.translate().is_err());
        assert!(idle(2).is_err() && read_mode(2).is_err() && resume_of(3).is_err());
        assert!(named(DAMPINGS, 2, "setting of damping").is_err());
        let drop = slackline_server_options { non_finite: 1, ..Default::default() };
        assert_eq!(drop.non_finite().unwrap(), NonFinite::Drop);
        let adamw = slackline_server_options { optimizer: 3, beta1: 0.5, ..Default::default() };
        assert!(matches!(adamw.optimizer(), Ok(Optimizer::AdamW(adam)) if adam.beta1 == 0.5));
    }
}
