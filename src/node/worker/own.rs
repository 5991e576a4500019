//! Read-my-writes: a worker's own gradients that its copy of the parameters does not hold yet.
//!
//! Petuum's caches show a worker its own updates at once (Ho et al., NIPS 2013; Wei et al., SoCC 2015). Here each frame
//! says which of this worker's gradients it holds, and the others are kept and taken off the copy.

use std::ops::Range;

use crate::clock::Clock;
use crate::kernel;
use crate::mem::{Access, MemoryRegion, Streaming, VolatileSlice};
use crate::node::Error;
use crate::table::Encoding;
use crate::transport::Transport;

/// Elements worked on at a time: they stay in the first-level cache while one gradient after the other comes off.
const PIECE: usize = 1024;

/// A worker's latest gradients, as the servers fold them.
///
/// Let `s` be the scheme's staleness and `D` the number of slots. A copy that the worker computes on at clock `c` lacks
/// at most `max(s, D)` of its own gradients. A copy that it has just pulled lacks at most `D`: writing gradient `c - 1`
/// took a free slot, so all but `D` of the gradients before `c` were consumed by then, and every later latest frame
/// contains them. A copy that was pulled for an earlier clock, or pushed, is within the bound of the scheme: it
/// holds all gradients of clocks before `c - s`. The ring holds one more: the gradient that is being published.
pub(super) struct OwnGradients {
    step: f32,
    encoding: Encoding,
    /// A ring: the gradient of clock `c` has the index `c mod capacity`.
    memory: MemoryRegion,
    /// Bytes of one gradient.
    bytes: usize,
    /// The number of gradients that there is room for.
    capacity: u64,
}

impl OwnGradients {
    /// Room for gradients of so many elements.
    pub(super) fn new<T: Transport>(
        transport: &T,
        (step, encoding): (f32, Encoding),
        elements: u64,
        staleness: Option<u64>,
        slots: u16,
    ) -> Result<OwnGradients, Error> {
        let option = |reason| Error::Option { option: "own_step", value: step.to_string(), reason };
        if !step.is_finite() {
            return Err(option("it must be finite"));
        }
        let too_many = || option("as many gradients as the staleness allows do not fit the address space");
        let most = staleness.unwrap_or(0).max(u64::from(slots));
        let capacity = most.checked_add(1).ok_or_else(too_many)?;
        let bytes = elements.checked_mul(encoding.bytes() as u64).ok_or_else(too_many)?;
        let whole = bytes.checked_mul(capacity).and_then(|whole| usize::try_from(whole).ok());
        let whole = whole.filter(|whole| isize::try_from(*whole).is_ok()).ok_or_else(too_many)?;
        let memory = transport.allocate(whole, Access::LOCAL)?;
        Ok(OwnGradients { step, encoding, memory, bytes: bytes as usize, capacity })
    }

    /// Keeps a part of the gradient of `clock`, from element `first` on.
    pub(super) fn keep(&mut self, clock: Clock, first: usize, part: VolatileSlice<'_>) {
        let at = self.offset(clock.get()) + first * self.encoding.bytes();
        self.memory.as_volatile().subslice(at, part.len()).copy_from(part, Streaming::ByLength);
    }

    /// Takes the gradients of `clocks` off a part of the parameters, which begins at element `first`, in their order.
    /// False if they are not all there any more.
    pub(super) fn show(&self, clocks: Range<u64>, first: usize, parameters: &mut [f32]) -> bool {
        if clocks.end.saturating_sub(clocks.start) >= self.capacity {
            return false;
        }
        let width = self.encoding.bytes();
        let mut buffer = [0.0; PIECE];
        for (index, piece) in parameters.chunks_mut(PIECE).enumerate() {
            let gradient = &mut buffer[..piece.len()];
            for clock in clocks.clone() {
                let at = self.offset(clock) + (first + index * PIECE) * width;
                let kept = self.memory.as_volatile().subslice(at, gradient.len() * width);
                kernel::decode(kept, self.encoding, gradient);
                for (parameter, gradient) in piece.iter_mut().zip(&*gradient) {
                    *parameter -= self.step * gradient;
                }
            }
        }
        true
    }

    fn offset(&self, clock: u64) -> usize {
        (clock % self.capacity) as usize * self.bytes
    }
}
