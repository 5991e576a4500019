//! Memory and processor time of this process.

use std::cell::Cell;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::error::BenchError;

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessMemory {
    /// Memory in RAM, shared memory that it has touched included, and the most that there was.
    pub(super) resident: u64,
    pub(super) most_resident: u64,
    /// Memory that is pinned for devices. Each registration of the same bytes counts.
    pub(super) pinned: u64,
}

impl ProcessMemory {
    fn look() -> Result<ProcessMemory, BenchError> {
        let status = std::fs::read_to_string("/proc/self/status");
        ProcessMemory::read(&status.map_err(BenchError::system("read /proc/self/status"))?)
    }

    fn read(status: &str) -> Result<ProcessMemory, BenchError> {
        let bytes = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kibibytes = rest.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            let what = || BenchError::Peer(format!("/proc/self/status has no {name} in kB"));
            kibibytes.map(|count| count << 10).ok_or_else(what)
        };
        Ok(ProcessMemory {
            resident: bytes("VmRSS")?,
            most_resident: bytes("VmHWM")?,
            pinned: bytes("VmPin")?,
        })
    }
}

/// The processor time that this process has used, user and system.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Lets this process have as many files open as it may: each peer takes a few.
pub(super) fn raise_open_files() -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    raised.map_err(std::io::Error::from).map_err(BenchError::system("raise the limit on open files"))
}

/// The cost of many peers to their server or publisher.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Served {
    /// Peers that joined.
    pub(super) joined: u64,
    /// Gradients that were folded in.
    pub(super) folded: u64,
    /// The memory before the first peer came, when all were there, and the most that there was.
    pub(super) before: ProcessMemory,
    pub(super) all: ProcessMemory,
    pub(super) most_resident: u64,
    /// Processor time since all were there.
    pub(super) cpu_ns: u64,
}

/// Looks at this process while its peers come and work.
pub(super) struct Watch {
    expected: u64,
    before: ProcessMemory,
    /// The memory and the processor time when all were there.
    all: Cell<Option<(ProcessMemory, Duration)>>,
}

impl Watch {
    pub(super) fn begin(expected: u64) -> Result<Watch, BenchError> {
        raise_open_files()?;
        // The most counts from now on (`man proc_pid_clear_refs`). A kernel without that counts from the beginning of
        // the process, which differs only where it has served others before.
        let _counted_before = std::fs::write("/proc/self/clear_refs", "5");
        Ok(Watch { expected, before: ProcessMemory::look()?, all: Cell::new(None) })
    }

    /// Is called often, with the number of peers that have joined so far.
    pub(super) fn look(&self, joined: u64) {
        if self.all.get().is_none() && joined >= self.expected {
            // Where the first look went well, this one does.
            self.all.set(ProcessMemory::look().ok().map(|memory| (memory, cpu_time())));
        }
    }

    pub(super) fn end(self, joined: u64, folded: u64) -> Result<Served, BenchError> {
        let what = || BenchError::Peer(format!("{joined} of {} peers have joined", self.expected));
        let (all, since) = self.all.get().ok_or_else(what)?;
        // The kernel adds them up at different times.
        let most = ProcessMemory::look()?.most_resident.max(all.resident);
        let cpu_ns = u64::try_from((cpu_time() - since).as_nanos()).unwrap_or(u64::MAX);
        Ok(Served { joined, folded, before: self.before, all, most_resident: most, cpu_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let status = "Name:\tVmRSS:\nVmPin:\t       8 kB\nVmHWM:\t   99 kB\nVmRSS:\t    2048 kB\n";
        let found = ProcessMemory::read(status).unwrap();
        assert_eq!(found, ProcessMemory { resident: 2 << 20, most_resident: 99 << 10, pinned: 8 << 10 });
        assert!(
            ProcessMemory::read("VmRSS:\t1 kB\nVmHWM:\t1 kB\n").unwrap_err().to_string().contains("VmPin")
        );
        assert!(ProcessMemory::look().unwrap().resident > 1 << 20);
    }

    #[test]
    fn a_process_that_computes_uses_processor_time() {
        let (before, begun) = (cpu_time(), std::time::Instant::now());
        while cpu_time() - before < Duration::from_millis(2) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::hint::black_box((0..10_000_u64).sum::<u64>());
        }
    }
}
