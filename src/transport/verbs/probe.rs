//! Tries the features that a device reports, on a connection of this process with itself.

#[cfg(feature = "cuda")]
mod gpu;

use std::sync::Arc;
use std::time::Duration;

use super::VerbsShared;
use super::arrival_order::ArrivalOrder;
use super::grants::GrantedMemory;
use super::hello::{Ports, Terms};
use super::initiator::Initiator;
use super::pairs::{RailRequester, Requester, Responder, connect, rail_ports};
use super::rails::word_of;
use crate::mem::{Access, HostMemory, MemoryRegion, RemoteSlice};
use crate::transport::{Operation, WorkRequest};

#[cfg(feature = "cuda")]
pub use gpu::{GpuTransfers, MeasuredTransfers};

/// Longest time that a request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Both ends of a connection through the device, in this process.
struct Loopback {
    data: Initiator,
    /// The grants: `target`, and then any others.
    remote: Vec<RemoteSlice>,
    target: MemoryRegion,
    local: MemoryRegion,
    responder: Responder,
}

impl Loopback {
    fn new(
        shared: &Arc<VerbsShared>,
        access: Access,
        others: Vec<GrantedMemory>,
    ) -> Result<Loopback, String> {
        let text = |error: std::io::Error| error.to_string();
        let memory = || HostMemory::anonymous(4096).map_err(|error| error.to_string());
        let (target, local) = (
            shared.register(memory()?, access).map_err(text)?,
            shared.register(memory()?, Access::LOCAL).map_err(text)?,
        );
        let rail = shared.first();
        let from = rail.choose_gid(None).ok_or("its port has no address")?;
        let address = rail.port_address(&from.gid);
        let path = rail.path(&from, &address, &address)?;
        let mut requester = Requester::new(shared, &[0], 0, false).map_err(text)?;
        let mut granted = vec![GrantedMemory::Host(target.whole())];
        granted.extend(others);
        let mut responder =
            Responder::new(shared, &[0], 0, granted, None).map_err(text)?.ok_or("nothing is granted")?;
        let rails = rail_ports([(0, address)].into_iter(), Some(&requester), Some(&responder));
        let ports = Ports { rails, receives: responder.receives() };
        let terms = Terms { grants: responder.grants(), blob: ports };
        connect(&[path], Some(&requester), Some(&mut responder), &terms.blob).map_err(text)?;
        let remote = terms.received(Vec::new()).grants;
        let RailRequester { mut data, .. } = requester.rails.remove(0);
        if let Some(sentinel) = responder.sentinel() {
            data.prove_by(word_of(sentinel), terms.names());
        }
        Ok(Loopback { data, remote, target, local, responder })
    }

    fn run(&mut self, operation: Operation) -> Result<(), String> {
        self.data.post(&[WorkRequest::signalled(1, operation)]).map_err(|error| error.to_string())?;
        self.complete()
    }

    fn complete(&mut self) -> Result<(), String> {
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

/// Whether the first device applies a peer's writes in order, and the source of this answer. A connection is made
/// only if the driver must be asked.
pub(super) fn arrival_order(shared: &Arc<VerbsShared>) -> Result<ArrivalOrder, String> {
    if let Some(known) = shared.first().known_arrival_order() {
        return Ok(known);
    }
    let order = Loopback::new(shared, Access::REMOTE_WRITE, Vec::new())?.responder.arrival_order();
    order.ok_or_else(|| "nothing is served".into())
}

/// Longest inline data of a request, as the first device grants it.
pub(super) fn inline_bytes(shared: &Arc<VerbsShared>) -> Result<u32, String> {
    let requester = Requester::new(shared, &[0], 0, false).map_err(|error| error.to_string())?;
    Ok(requester.rails[0].data.inline_bytes())
}

/// An atomic of the probe's word.
#[derive(Clone, Copy, Debug)]
enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

/// Tries whether atomics work correctly.
pub(super) fn atomics(shared: &Arc<VerbsShared>) -> Result<(), String> {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let mut loopback = Loopback::new(shared, all, Vec::new())?;
    loopback.target.as_volatile().store_u64(64, START);
    let remote = loopback.remote[0].slice(64, 8).map_err(|error| error.to_string())?;
    let into = loopback.local.slice(0, 8).map_err(|error| error.to_string())?;
    judge(|atomic| {
        let local = into.clone();
        loopback.run(match atomic {
            Atomic::Add(add) => Operation::FetchAdd { local, remote, add },
            Atomic::Swap { compare, swap } => Operation::CompareSwap { local, remote, compare, swap },
        })?;
        Ok((into.as_volatile().load_u64(0), loopback.target.as_volatile().load_u64(64)))
    })
}

/// The first value of the word, in which all bytes differ.
const START: u64 = 0x0102_0304_0506_0708;

/// Checks that fetched values come back whole and in the right byte order, and that only matching values are swapped.
/// `carry_out` returns the fetched value, and the word's value afterwards.
fn judge(mut carry_out: impl FnMut(Atomic) -> Result<(u64, u64), String>) -> Result<(), String> {
    let swap = |compare| Atomic::Swap { compare, swap: 9 };
    for (atomic, before, after) in [
        (Atomic::Add(3), START, START + 3),
        (swap(START), START + 3, START + 3),
        (swap(START + 3), START + 3, 9),
    ] {
        let found = carry_out(atomic)?;
        if found != (before, after) {
            return Err(format!("{found:x?} where {before:x} and {after:x} were to be found"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges a device that applies `does` to the word, and returns `brings` of the word's previous value.
    fn found(does: fn(u64, Atomic) -> u64, brings: fn(u64) -> u64) -> Result<(), String> {
        let mut word = START;
        judge(|atomic| {
            let old = word;
            word = does(old, atomic);
            Ok((brings(old), word))
        })
    }

    fn right(word: u64, atomic: Atomic) -> u64 {
        match atomic {
            Atomic::Add(add) => word.wrapping_add(add),
            Atomic::Swap { compare, swap } if compare == word => swap,
            Atomic::Swap { .. } => word,
        }
    }

    #[test]
    fn atomics_that_do_anything_but_what_they_say_are_found_out() {
        assert_eq!(found(right, |old| old), Ok(()));
        let error = found(right, u64::swap_bytes).unwrap_err();
        assert!(error.contains("102030405060708 and 10203040506070b were to be found"), "{error}");
        assert!(found(right, |old| old & 0xFFFF_FFFF).is_err(), "half of it comes back");
        assert!(found(|word, _| word, |old| old).is_err(), "nothing is done");
        let always = |word, atomic| match atomic {
            Atomic::Swap { swap, .. } => swap,
            add => right(word, add),
        };
        assert!(found(always, |old| old).is_err(), "what does not match is swapped");
        let never = |word, atomic| match atomic {
            Atomic::Swap { .. } => word,
            add => right(word, add),
        };
        assert!(found(never, |old| old).is_err(), "what matches is not swapped");
        assert_eq!(judge(|_| Err("it failed".into())), Err("it failed".into()));
    }
}
