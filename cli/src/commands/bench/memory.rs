//! Where the payloads of both sides are.

use serde::{Deserialize, Serialize};
use slackline::gpu::Gpu;
use slackline::internals::job::coordinated::ComputeDevice;

use super::error::BenchError;
use super::names::Op;
use crate::device_name;

/// Operations whose payloads may be on a GPU.
const OF_GPUS: [Op; 4] = [Op::Write, Op::Read, Op::Publish, Op::Pull];

/// The memory of both sides.
#[derive(clap::Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryArgs {
    /// write, read, publish, pull: memory of this side, host, cuda or cuda:N for the GPU of this number: the local
    /// buffers of writes and reads, the gradient that is published, the copy that is pulled; with --listen the
    /// buffers that peers write and read, the slots or the frames
    #[arg(long, help_heading = "GPUs", value_name = "MEMORY", value_parser = memory, default_value = "host")]
    pub(super) memory: ComputeDevice,
    /// The same for the other side, where this one starts it
    #[arg(
        long,
        help_heading = "GPUs",
        value_name = "MEMORY",
        value_parser = memory,
        default_value = "host",
        conflicts_with_all = ["peer", "listen"]
    )]
    pub(super) peer_memory: ComputeDevice,
}

fn memory(text: &str) -> Result<ComputeDevice, String> {
    device_name::parse(text, "host")
}

impl MemoryArgs {
    fn is_on_host(&self) -> bool {
        [self.memory, self.peer_memory] == [ComputeDevice::Host; 2]
    }

    /// Refuses what is not measured out of memory of a GPU.
    pub(super) fn check(&self, op: Option<Op>, many: bool, bidirectional: bool) -> Result<(), BenchError> {
        if self.is_on_host() {
            return Ok(());
        }
        let wrong = [
            (
                op.is_some_and(|op| !OF_GPUS.contains(&op)),
                "--memory cuda means something only to --op write, read, publish and pull",
                "leave it out, or use such an --op",
            ),
            (many, "--memory cuda does not go with --peers", "leave one of the two out"),
            (bidirectional, "--memory cuda does not go with --bidirectional", "leave one of the two out"),
        ];
        match wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) {
            None => Ok(()),
            Some((_, what, help)) => Err(BenchError::usage(what, help)),
        }
    }

    /// The same as the other side has it.
    pub(super) fn of_peer(&self) -> MemoryArgs {
        MemoryArgs { memory: self.peer_memory, peer_memory: self.memory }
    }

    /// The same of an owner, whose payloads are where they are, wherever those of its peers are.
    pub(super) fn of_owner(&self) -> MemoryArgs {
        MemoryArgs { memory: self.memory, peer_memory: ComputeDevice::Host }
    }

    /// Opens the GPU that has this side's payloads, if one has.
    pub(super) fn gpu(&self) -> Result<Option<Gpu>, BenchError> {
        Ok(self.memory.open(0)?)
    }

    /// Opens the GPU that the transport of this side takes: over shared memory also where only the other side's
    /// payloads are on one, which this side maps.
    pub(super) fn transport_gpu(&self, maps: bool) -> Result<Option<Gpu>, BenchError> {
        match self.gpu()? {
            None if maps => Ok(self.peer_memory.open(0)?),
            gpu => Ok(gpu),
        }
    }

    /// What to call both, unless they are the host's.
    pub(super) fn names(&self) -> Option<[String; 2]> {
        let names = || [self.memory, self.peer_memory].map(|memory| device_name::name(memory, "host"));
        (!self.is_on_host()).then(names)
    }
}
