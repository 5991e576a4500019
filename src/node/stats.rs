//! Statistics of a worker's run.

use crate::clock::Version;
use crate::time::Duration;
use crate::transport::{Address, GpuPath};

/// Counts of small numbers; the last bucket holds all that are larger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
}

impl Histogram {
    const BUCKETS: usize = 256;

    /// Counts one more of `value`.
    #[doc(hidden)]
    pub fn record(&mut self, value: u64) {
        let bucket = usize::try_from(value).map_or(Self::BUCKETS - 1, |value| value.min(Self::BUCKETS - 1));
        self.buckets[bucket] += 1;
    }

    /// Returns the count of each value, from 0 up to the largest one that occurred.
    pub fn counts(&self) -> &[u64] {
        let used = self.buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        &self.buckets[..used]
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: vec![0; Self::BUCKETS] }
    }
}

/// Counts and times of a worker since it connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatistics {
    /// Gradients published.
    pub clocks: u64,
    /// Computations abandoned.
    pub abandoned: u64,
    /// Time between the end of `begin` and the call of a publish.
    pub compute: Duration,
    /// Time inside `begin` and the publishing calls.
    pub wait: Duration,
    /// Bytes of gradients written to servers (none for those computed in a borrowed slot).
    pub bytes_published: u64,
    /// Bytes of parameters copied from servers (none for those read in place).
    pub bytes_pulled: u64,
    /// Number of copies that were begun again because the frame changed under them.
    pub pull_retries: u64,
    /// Waits that ended at their deadline.
    pub timeouts: u64,
    /// Number of times that it has connected again.
    pub reconnects: u64,
    /// At each gradient: by how many clocks its parameters were stale (the worker's clock less the smallest clock of
    /// its copy).
    pub staleness: Histogram,
}

/// One peer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its number; a worker's id.
    pub peer: u16,
    /// Whether it is a worker; else it is a reader.
    pub worker: bool,
    /// The transport that carries it.
    pub transport: &'static str,
    /// Bytes of gradients that it has announced. What it reads, a server does not see.
    pub bytes_received: u64,
}

/// A worker's connection to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// The server's shard.
    pub shard: u16,
    /// The incarnation of the server.
    pub epoch: u64,
    /// The version of the copy that the worker holds of this shard.
    pub version: Version,
    /// This worker's number there.
    pub peer: u16,
    /// The address of the server.
    pub address: Address,
    /// The transport that carries it.
    pub transport: &'static str,
    /// The way that payloads of the worker's GPU take, if it has one.
    pub gpu_path: Option<GpuPath>,
    /// Bytes of gradients written to it.
    pub bytes_published: u64,
    /// Bytes of parameters copied from it.
    pub bytes_pulled: u64,
}
