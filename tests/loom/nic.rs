//! The same protocol through a NIC that keeps only what the contract of `transport` promises: writes in order, whole
//! words, and the words of one request in any order.

use std::collections::VecDeque;

use slackline::internals::mem::{LocalSlice, MemoryRegion, RemoteKey, RemoteSlice, fence};
use slackline::internals::transport::{
    Disconnected, Endpoint, Flags, HeartbeatWord, Operation, PostError, WorkCompletion, WorkRequest,
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::push::pushed;
use super::slots::announced;
use super::world::{CONTROL, FRAMES, READERS, explore};

/// Every order of a payload's two words, and the same orders of whatever is longer.
const ORDERS: usize = 2;

#[test]
fn the_owner_reads_what_a_nic_announced() {
    for order in 0..ORDERS {
        explore(3, move |accepted| {
            announced(accepted, 1, |grants| {
                Nic::new(order, grants.each_ref().map(|(key, region, _)| (*key, region.clone())).into())
            });
        });
    }
}

#[test]
fn a_version_that_a_nic_pushed_is_pulled_whole_or_not_at_all() {
    for (order, reader) in (0..ORDERS).flat_map(|order| READERS.map(|reader| (order, reader))) {
        explore(3, move |accepted| {
            pushed(accepted, reader, |frames| {
                let regions =
                    [(CONTROL, frames.control().clone()), (FRAMES, frames.memory().host().unwrap().clone())];
                Nic::new(order, regions.into())
            });
        });
    }
}

/// An endpoint that moves the words of each request in an order of its own.
pub(crate) struct Nic {
    order: usize,
    regions: Vec<(RemoteKey, MemoryRegion)>,
    completions: VecDeque<WorkCompletion>,
}

impl Nic {
    pub(crate) fn new(order: usize, regions: Vec<(RemoteKey, MemoryRegion)>) -> Nic {
        Nic { order, regions, completions: VecDeque::new() }
    }

    fn target(&self, remote: &RemoteSlice) -> LocalSlice {
        let (_, region) = self.regions.iter().find(|(key, _)| *key == remote.key).unwrap();
        region.slice(remote.offset as usize, remote.len as usize).unwrap()
    }

    /// The offsets of the words of a request, in the order in which they are moved: the `order`th permutation.
    fn offsets(&self, bytes: u64) -> Vec<usize> {
        let mut left: Vec<usize> = (0..bytes as usize).step_by(8).collect();
        let mut order = self.order;
        let mut offsets = Vec::new();
        while !left.is_empty() {
            let at = order % left.len();
            order /= left.len();
            // Once the number is used up the rest goes backwards in every other order, so that long ones differ, too.
            offsets.push(if self.order % 2 == 1 && order == 0 && at == 0 {
                left.pop().unwrap()
            } else {
                left.remove(at)
            });
        }
        offsets
    }
}

impl Endpoint for Nic {
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        for request in batch {
            match &request.operation {
                Operation::Write { local, remote, .. } => {
                    fence(Release);
                    let (from, to) = (local.as_volatile(), self.target(remote));
                    for at in self.offsets(remote.len) {
                        to.as_volatile().store(at, from.load(at, Relaxed), Relaxed);
                    }
                }
                Operation::WriteInline { data, remote } => {
                    fence(Release);
                    let to = self.target(remote);
                    for at in self.offsets(remote.len) {
                        to.as_volatile().store(at, data.words()[at / 8], Relaxed);
                    }
                }
                Operation::Read { local, remote, .. } => {
                    let (from, to) = (self.target(remote), local.as_volatile());
                    for at in self.offsets(remote.len) {
                        to.store(at, from.as_volatile().load(at, Relaxed), Relaxed);
                    }
                    fence(Acquire);
                }
                other => unreachable!("nothing here needs {other:?}"),
            }
            if request.flags.contains(Flags::SIGNALLED) {
                self.completions.push_back(WorkCompletion { id: request.id, result: Ok(()) });
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        self.completions.pop_front()
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        Ok(())
    }

    fn map(&self, _remote: &RemoteSlice) -> Option<LocalSlice> {
        None
    }

    fn transport(&self) -> &'static str {
        "nic"
    }

    fn heartbeat_word(&self, _word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        unreachable!("nothing here beats")
    }
}
