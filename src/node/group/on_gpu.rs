//! Members whose parameters are on a GPU.
//!
//! Members write their parts into each other's host memory, as without a GPU. The GPU copies an outgoing part to host
//! memory; an incoming part is copied to the GPU, and proved whole after that copy. The fold kernels compute the mean
//! there, with the same bits as processors.

#[cfg(test)]
mod scripted;

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::memory::GroupBuffers;
use super::{GroupMember, RoundPhase};
use crate::cuda::{
    Gpu, GpuCopy, GpuError, GpuFold, GpuKernels, GpuMemory, GpuSlice, GpuStream, HostBytes, MAX_GRADIENTS,
    Tickets,
};
use crate::kernel::{AdamParameters, Optimizer};
use crate::mem::{Access, LocalSlice, OutOfBounds};
use crate::node::{Error, payloads};
use crate::param::GroupLayout;
use crate::table::Encoding;
use crate::time::Duration;
use crate::transport::{Endpoint, PayloadMemory, PayloadSlice, Transport};

/// Elements that one launch averages.
const WINDOW: usize = if cfg!(test) { 64 } else { 4 << 20 };

/// Summands lie at multiples of so many bytes, so that kernels load several elements at once.
const ALIGNMENT: usize = 64;

/// With a step size of -1 it adds the summands up: `p - -1 * (sum + 0 * p)`, where `p` is -0, is the sum to the bit.
const SUM: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };

/// It divides its first moment by `members`, with one rounding: of a gradient and a parameter that are -0, with a step
/// size of 2, the first moment `m` becomes `-1 * m + 2 * -0`, the denominator `sqrt(0) / 1 + members`, and the result
/// is `-0 - 2 / (1 - -1) * (-m / members)`. That is exact for infinities and both zeros, too.
fn quotient(members: usize) -> Optimizer {
    Optimizer::Adam(AdamParameters { beta1: -1.0, beta2: 0.0, epsilon: members as f32, weight_decay: 0.0 })
}

/// The progress of the mean of this member's part.
#[derive(Clone, Copy)]
enum MeanStep {
    /// The summands are to be copied to the GPU.
    Copy,
    /// They are there, and are to be averaged.
    Launch,
    /// The mean is made.
    Made,
}

/// The parameters of a member on a GPU, and the memory for their mean.
pub(super) struct GroupGpu {
    gpu: Gpu,
    buffers: [GpuMemory; 2],
    sums: GpuKernels,
    quotients: GpuKernels,
    /// A window of -0, which changes no number that it is added to.
    nothing: GpuMemory,
    /// Room for the sums of a window, and for the other outputs of the kernels beside the mean.
    sum: GpuMemory,
    junk: GpuMemory,
    /// Room for the parts that others write for this member to average.
    summands: GpuMemory,
    step: MeanStep,
}

/// Checks that a GPU meets the needs of such a group.
///
/// # Errors
/// It would compute checksums, or average more members than a kernel takes.
pub(super) fn check(members: usize, checksums: bool) -> Result<(), Error> {
    if checksums {
        return Err(GpuError::OnGpu { operation: "compute the checksums of a group's parts" }.into());
    }
    if members > MAX_GRADIENTS {
        let reason = "a GPU averages the parameters of at most 256 members: use a transport without a GPU";
        return Err(Error::Option { option: "members", value: members.to_string(), reason });
    }
    Ok(())
}

impl GroupGpu {
    pub(super) fn new<T: Transport>(
        transport: &T,
        gpu: &Gpu,
        layout: GroupLayout,
        members: usize,
    ) -> Result<GroupGpu, Error> {
        let parameters = || match payloads::allocate(transport, layout.bytes(), Access::LOCAL)? {
            PayloadMemory::Gpu(memory) => Ok(memory),
            PayloadMemory::Host(_) => Err(Error::InFlight { what: "memory just allocated" }),
        };
        let window = WINDOW.min(layout.bytes() / 4);
        let nothing = GpuMemory::allocate(gpu, 4 * window)?;
        payloads::write(&nothing.whole().into(), Some(gpu), &vec![-0.0; window])?;
        Ok(GroupGpu {
            buffers: [parameters()?, parameters()?],
            sums: GpuKernels::load(gpu, &SUM)?,
            quotients: GpuKernels::load(gpu, &quotient(members))?,
            nothing,
            sum: GpuMemory::allocate(gpu, 4 * window)?,
            junk: GpuMemory::allocate(gpu, 4 * window)?,
            // Parts differ by a cache line, and each is rounded up to one.
            summands: GpuMemory::allocate(gpu, layout.bytes() + 2 * ALIGNMENT * members)?,
            step: MeanStep::Copy,
            gpu: gpu.clone(),
        })
    }

    pub(super) fn slice(&self, index: usize, range: Range<usize>) -> Result<GpuSlice, OutOfBounds> {
        self.buffers[index].slice(range.start, range.len())
    }

    pub(super) fn forget_mean(&mut self) {
        self.step = MeanStep::Copy;
    }

    /// Begins to copy a part to the buffer `index`. True if it has no bytes.
    pub(super) fn take(
        &mut self,
        from: LocalSlice,
        index: usize,
        range: Range<usize>,
        copies: &mut Tickets,
    ) -> Result<bool, Error> {
        if !range.is_empty() {
            self.gpu.copy(GpuCopy::FromHost { from, into: self.slice(index, range.clone())? }, copies)?;
        }
        Ok(range.is_empty())
    }

    /// Begins the next step of a mean: of the parameters in the buffer `own` and others' summands, to the buffer
    /// `next`. True if there is none left.
    pub(super) fn average(
        &mut self,
        summands: &[Option<LocalSlice>],
        [own, next]: [usize; 2],
        range: Range<usize>,
        copies: &mut Tickets,
    ) -> Result<bool, Error> {
        if range.is_empty() {
            return Ok(true);
        }
        let stride = range.len().next_multiple_of(ALIGNMENT);
        let (own, mean) = (self.slice(own, range.clone())?, self.slice(next, range.clone())?);
        let copied = |index: usize| self.summands.slice(index * stride, range.len());
        match self.step {
            MeanStep::Copy => {
                let others = summands.iter().flatten().enumerate();
                for (index, from) in others {
                    let copy = GpuCopy::FromHost { from: from.clone(), into: copied(index)? };
                    self.gpu.copy(copy, copies)?;
                }
                self.step = MeanStep::Launch;
            }
            MeanStep::Launch => {
                let mut others = 0..;
                let on_gpu = summands.iter().map(|of| match of {
                    None => Ok(own.clone()),
                    Some(_) => copied(others.next().unwrap_or_default()),
                });
                let on_gpu: SmallVec<[GpuSlice; 8]> = on_gpu.collect::<Result<_, OutOfBounds>>()?;
                self.launch(&on_gpu, &mean, copies)?;
                self.step = MeanStep::Made;
            }
            MeanStep::Made => {
                self.step = MeanStep::Copy;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Launches the mean of `summands`, in their order, to `mean`, which is as long: window after window, first the sum
    /// and then the quotient.
    fn launch(&self, summands: &[GpuSlice], mean: &GpuSlice, copies: &mut Tickets) -> Result<(), Error> {
        let (count, members) = (mean.bytes() / 4, summands.len());
        for begin in (0..count).step_by(WINDOW) {
            let elements = WINDOW.min(count - begin);
            let window = |of: &GpuSlice| of.slice(4 * begin, 4 * elements);
            let [nothing, sums, junk] =
                [&self.nothing, &self.sum, &self.junk].map(|memory| memory.slice(0, 4 * elements));
            let (nothing, sums, junk) = (nothing?, sums?, junk?);
            let weighted = summands.iter().map(|summand| Ok((window(summand)?, 1.0)));
            let sum = GpuFold {
                optimizer: SUM,
                learning_rate: -1.0,
                step: 1,
                encoding: Encoding::F32,
                gradients: weighted.collect::<Result<_, OutOfBounds>>()?,
                arrays: smallvec![(nothing.clone(), sums.clone())],
                elements: 0..elements,
            };
            self.sums.launch(sum, copies)?;
            let (first, second) = ((sums, junk.clone()), (nothing.clone(), junk));
            let quotient = GpuFold {
                optimizer: quotient(members),
                learning_rate: 2.0,
                step: 1,
                encoding: Encoding::F32,
                gradients: smallvec![(nothing.clone(), 1.0)],
                arrays: smallvec![(nothing, window(mean)?), first, second],
                elements: 0..elements,
            };
            self.quotients.launch(quotient, copies)?;
        }
        Ok(())
    }
}

impl<T: Transport> GroupMember<T> {
    /// Has the GPU of `into` copy the parameters there, from the byte `offset` of them on, behind the work that
    /// `stream` has now. Later work of `stream` waits for the copy. It returns at once, and the next average waits
    /// for the copy. The parameters may be in host memory, or on the GPU of the member's transport.
    ///
    /// ```no_run
    /// # use slackline::gpu::{Gpu, GpuMemory, GpuStream};
    /// # use slackline::group::{GroupMember, GroupOptions};
    /// # use slackline::{Address, Shm};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (timeout, addresses) = (std::time::Duration::from_secs(10), [Address::random(), Address::random()]);
    /// let gpu = Gpu::open(0)?;
    /// // SAFETY: the default stream, which is there as long as the device.
    /// let stream = unsafe { GpuStream::of_caller(&gpu, 0)? };
    /// let weights = GpuMemory::allocate(&gpu, 4 * 1000)?;
    /// let transport = Shm::new().with_gpu(&gpu);
    /// let listener = GroupMember::listen(transport, &addresses[0], 0, 2, 1000, GroupOptions::default())?;
    /// let mut member = listener.connect(&addresses, timeout)?;
    /// // Behind the kernels of the step, which have left the weights there.
    /// member.copy_parameters_from_gpu(0, &weights.whole(), &stream)?;
    /// member.average(0, &[0, 1], timeout)?;
    /// member.copy_parameters_to_gpu(0, &weights.whole(), &stream)?;
    /// // A kernel that is launched on the stream now sees the mean.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A round is under way; there are not so many bytes; the memory is on another GPU, or holds a pinned version; the
    /// stream captures a graph; the driver refuses the copy.
    pub fn copy_parameters_to_gpu(
        &mut self,
        offset: u64,
        into: &GpuSlice,
        stream: &GpuStream,
    ) -> Result<(), Error> {
        let range = self.copied_range("copy parameters to a GPU", offset, into.bytes())?;
        into.expect_own()?;
        let memory = &mut self.memory;
        match &mut memory.buffers {
            GroupBuffers::Host(buffers) => {
                // Copies to host memory and from there are in no order by themselves.
                stream.wait_for_copies_to_host()?;
                let region = HostBytes::Region(buffers[memory.current].share());
                stream.copy_from_host(region, range.start, into, memory.copies.tickets())?;
            }
            GroupBuffers::Gpu(gpu) => {
                let from = gpu.slice(memory.current, range)?;
                stream.copy_within_before(&from, into, memory.copies.tickets())?;
            }
        }
        Ok(())
    }

    /// Has the GPU copy `from` into the parameters, from the byte `offset` of them on, behind the work that `stream`
    /// has now, and does not wait for it. The stream does not wait either: the memory that is copied from must stay as
    /// it is until the next [`average`](Self::average) has returned, which waits for the copy.
    ///
    /// # Errors
    /// A round is under way, or writes of an abandoned one are; there are not so many bytes; the memory is on another
    /// GPU; the stream captures a graph; the driver refuses the copy.
    pub fn copy_parameters_from_gpu(
        &mut self,
        offset: u64,
        from: &GpuSlice,
        stream: &GpuStream,
    ) -> Result<(), Error> {
        let range = self.copied_range("copy parameters from a GPU", offset, from.bytes())?;
        if self.peers.iter().flatten().any(|peer| peer.is_sent_parts()) {
            return Err(Error::InFlight { what: "parameters" });
        }
        let into = self.memory.parameters(range)?;
        let copies = self.memory.copies.tickets();
        match &into {
            PayloadSlice::Host(into) => {
                stream.gpu().order_copies_to_host()?;
                stream.copy_to_host(from, into, copies)?;
            }
            PayloadSlice::Gpu(into) => stream.copy_within(from, into, copies)?,
        }
        Ok(())
    }

    fn copied_range(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
    ) -> Result<Range<usize>, Error> {
        if !matches!(self.round.phase, RoundPhase::None | RoundPhase::Ended(_)) {
            return Err(Error::OutOfTurn { operation, reason: super::UNDER_WAY });
        }
        let (len, available) = (bytes as u64, self.terms.layout.bytes() as u64);
        if offset.checked_add(len).is_none_or(|end| end > available) {
            return Err(OutOfBounds { offset, len, available }.into());
        }
        Ok(offset as usize..offset as usize + bytes)
    }

    /// The error of a round that GPUs of this process hold up, if they do.
    pub(super) fn late_copies(&mut self, waited: Duration) -> Option<Error> {
        match self.is_quiet() {
            Ok(true) => {}
            Ok(false) => return Some(self.memory.copies.late(waited)),
            Err(error) => return Some(error),
        }
        let endpoints = self.peers.iter().flatten().filter_map(|peer| peer.endpoint.as_ref());
        let copies = endpoints.filter_map(Endpoint::awaited_copies).next()?;
        Some(copies.late(waited).into())
    }
}
