//! The settings of a worker.

use crate::node::Idle;
use crate::scheme::{AnyScheme, Registry};
use crate::table::Encoding;

/// Ways for a worker to read parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadMode {
    /// Into memory of its own.
    #[default]
    Copy,
    /// In place, with a pin while it computes; only where the transport shares memory.
    InPlace,
}

/// Settings of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerOptions {
    /// The scheme, which must be the servers'; `None` takes theirs.
    pub scheme: Option<AnyScheme>,
    /// The schemes that it can take from servers.
    pub schemes: Registry,
    /// Encoding of its gradients.
    pub encoding: Encoding,
    /// Its rank in the job. A worker that is started again with the same rank is the same worker to the servers: no
    /// gradient of one clock of it is applied twice. At any time one worker of a rank can be connected. `None` draws
    /// a random name that no other worker has, and a worker that is started again is another one.
    pub identity: Option<u32>,
    /// The way in which it reads parameters.
    pub read: ReadMode,
    /// Whether its gradients carry checksums, and the checksums of parameters are checked: one more pass over each.
    pub checksums: bool,
    /// True if [`Worker::connect`](super::Worker::connect) waits, until its timeout, for servers that do not listen
    /// yet. Otherwise an address where no process listens is an error at once.
    pub waits_for_server: bool,
    /// Read-my-writes: one of its own gradients changes the parameters by `parameters -= own_step * gradient`. With
    /// it the worker's view holds all its published gradients at once: the gradients that its copy lacks are applied
    /// to it in order. For plain SGD that is the learning rate over the number of workers.
    ///
    /// For optimisers that add up, without decay. A worker does not know which optimiser the servers have, so the
    /// program that sets this must know it. Schemes must consume each worker's gradients in order. A gradient that
    /// the servers drop is in the view until a copy says that it was dropped. Not with [`ReadMode::InPlace`]. It
    /// costs memory for as many gradients as the scheme's staleness or its slots, whichever is more, and one more;
    /// a pass over a gradient when it is published, and one over each that a copy lacks.
    pub own_step: Option<f32>,
    /// The behaviour of the worker while it waits for servers.
    pub idle: Idle,
}

impl Default for WorkerOptions {
    /// The servers' scheme, gradients in f32, a random identity, parameters copied, no checksums, no waiting for
    /// servers, no read-my-writes, polling.
    fn default() -> WorkerOptions {
        WorkerOptions {
            scheme: None,
            schemes: Registry::default(),
            encoding: Encoding::F32,
            identity: None,
            read: ReadMode::Copy,
            checksums: false,
            waits_for_server: false,
            own_step: None,
            idle: Idle::Poll,
        }
    }
}

impl WorkerOptions {
    /// The defaults, for a worker that insists on this scheme.
    pub fn new(scheme: impl Into<AnyScheme>) -> WorkerOptions {
        WorkerOptions { scheme: Some(scheme.into()), ..WorkerOptions::default() }
    }
}
