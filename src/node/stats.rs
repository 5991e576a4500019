//! Statistics of a worker's run.

use crate::clock::Version;
use crate::time::Duration;
use crate::transport::{Address, GpuPath};

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
    /// Bytes of gradients written to servers (none for gradients computed in a borrowed slot).
    pub bytes_published: u64,
    /// Bytes of parameters copied from servers (none for parameters read in place).
    pub bytes_pulled: u64,
    /// Number of copies that were begun again because the frame changed under them.
    pub pull_retries: u64,
    /// Waits that ended at their deadline.
    pub timeouts: u64,
    /// Number of times that it has connected again.
    pub reconnects: u64,
    /// Counts of gradients by the clocks that their parameters were stale (the worker's clock less the smallest clock
    /// of its copy), from 0 up to the largest number that occurred. The last of 256 counts has all larger ones.
    pub staleness: Vec<u64>,
}

impl WorkerStatistics {
    const STALENESS_COUNTS: usize = 256;

    /// The statistics of a worker that begins: to count allocates nothing.
    pub(super) fn new() -> WorkerStatistics {
        WorkerStatistics {
            staleness: Vec::with_capacity(Self::STALENESS_COUNTS),
            ..WorkerStatistics::default()
        }
    }

    /// Counts a gradient whose parameters are so many clocks stale.
    pub(super) fn count_staleness(&mut self, clocks: u64) {
        let last = Self::STALENESS_COUNTS - 1;
        let index = usize::try_from(clocks).map_or(last, |clocks| clocks.min(last));
        if self.staleness.len() <= index {
            self.staleness.resize(index + 1, 0);
        }
        self.staleness[index] += 1;
    }
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
    /// Bytes of gradients that it has announced. A server does not see its reads.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_is_counted_up_to_a_last_count_without_an_allocation() {
        let mut statistics = WorkerStatistics::new();
        let memory = statistics.staleness.as_ptr();
        statistics.count_staleness(2);
        statistics.count_staleness(0);
        assert_eq!(statistics.staleness, [1, 0, 1]);
        [255, 256, u64::MAX].into_iter().for_each(|clocks| statistics.count_staleness(clocks));
        assert_eq!((statistics.staleness.len(), statistics.staleness[255]), (256, 3));
        assert_eq!(statistics.staleness.as_ptr(), memory);
    }
}
