//! Trying what a device says it can do, on a connection of this process with itself.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::hello::Terms;
use super::initiator::Initiator;
use super::pairs::{Posting, Serving, connect};
use crate::mem::{Access, HostMemory, MemoryRegion, RemoteSlice};
use crate::transport::{Operation, WorkRequest};

/// How long any of it may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Both ends of a connection through the device, in this process.
struct Loopback {
    data: Initiator,
    remote: RemoteSlice,
    target: MemoryRegion,
    local: MemoryRegion,
    _pulse: Initiator,
    _serving: Serving,
}

impl Loopback {
    fn new(shared: &Arc<Shared>, access: Access) -> Result<Loopback, String> {
        let text = |error: std::io::Error| error.to_string();
        let memory = || HostMemory::anonymous(4096).map_err(|error| error.to_string());
        let (target, local) = (
            shared.register(memory()?, access).map_err(text)?,
            shared.register(memory()?, Access::LOCAL).map_err(text)?,
        );
        let rail = shared.first();
        let from = rail.choose_gid(None).ok_or("its port has no address")?;
        let place = rail.place(&from.gid);
        let path = rail.path(&from, &place, &place)?;
        let posting = Posting::new(shared, 1).map_err(text)?;
        let serving =
            Serving::new(shared, 1, vec![target.whole()], None).map_err(text)?.ok_or("nothing is granted")?;
        let terms = Terms {
            place,
            posting: Some(posting.pairs()),
            serving: Some(serving.pairs()),
            grants: serving.grants(),
            further: Vec::new(),
            receives: serving.receives(),
        };
        connect(&[path], Some(&posting), Some(&serving), &terms).map_err(text)?;
        let remote = terms.received(Vec::new()).grants.remove(0);
        let Posting { data, pulse, .. } = posting;
        Ok(Loopback { data, remote, target, local, _pulse: pulse, _serving: serving })
    }

    fn run(&mut self, operation: Operation) -> Result<(), String> {
        self.data.post(&[WorkRequest::signalled(1, operation)]).map_err(|error| error.to_string())?;
        let begin = std::time::Instant::now();
        loop {
            if let Some(completion) = self.data.poll() {
                return completion.result.map_err(|error| error.to_string());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("no completion within {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
    }
}

/// Whether atomics do what they should: counts come back whole and the right way round, and only matches are swapped.
pub(super) fn atomics(shared: &Arc<Shared>) -> Result<(), String> {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let mut loopback = Loopback::new(shared, all)?;
    const START: u64 = 0x0102_0304_0506_0708;
    loopback.target.as_volatile().store_u64(64, START);
    let word = loopback.remote.slice(64, 8).map_err(|error| error.to_string())?;
    let into = loopback.local.slice(0, 8).map_err(|error| error.to_string())?;
    let add = Operation::FetchAdd { local: into.clone(), remote: word, add: 3 };
    let swap = |compare| Operation::CompareSwap { local: into.clone(), remote: word, compare, swap: 9 };
    for (operation, before, after) in
        [(add, START, START + 3), (swap(START), START + 3, START + 3), (swap(START + 3), START + 3, 9)]
    {
        loopback.run(operation)?;
        let found = (into.as_volatile().load_u64(0), loopback.target.as_volatile().load_u64(64));
        if found != (before, after) {
            return Err(format!("{found:x?} where {before:x} and {after:x} were to be found"));
        }
    }
    Ok(())
}
