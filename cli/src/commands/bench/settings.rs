//! The settings of measurements, as they follow from the options.

use std::time::Duration;

use slackline::TransportKind;

use super::means::Means;
use super::names::Op;
use crate::optimizer_name::OptimizerName;

/// Settings of the measurements, checked and with defaults in place.
pub(super) struct Settings {
    pub(super) transport: TransportKind,
    pub(super) op: Op,
    pub(super) means: Means,
    /// The host of the other side, with its port, unless it is this one.
    pub(super) peer: Option<String>,
    pub(super) validate: bool,
    pub(super) sizes: Vec<u64>,
    pub(super) iterations: Option<u64>,
    /// The time that each measurement is to take, if it is not a number of operations.
    pub(super) duration: Option<Duration>,
    pub(super) warmup: Option<u64>,
    pub(super) workers: u16,
    pub(super) chunk: u64,
    pub(super) threads: u16,
    /// Threads among which this process cuts its long copies, if it is not to measure how many pay.
    pub(super) copy_threads: Option<u16>,
    pub(super) k: u16,
    pub(super) optimizer: OptimizerName,
    pub(super) borrow: bool,
    pub(super) from_shared: bool,
    pub(super) pin: bool,
    /// Requests of one post where many are under way.
    pub(super) post_list: Option<u16>,
    pub(super) connections: u16,
    pub(super) bidirectional: bool,
    /// Many peers, if there are to be.
    pub(super) load: Option<Load>,
}

/// Many peers of one server, publisher or target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// So many work at once, each with a connection of its own.
    pub(super) peers: u16,
    /// They are shared out among so many processes of this host.
    pub(super) processes: u16,
    /// So many of these processes are killed in the middle.
    pub(super) kill: u16,
}
