//! A member of a group whose parameters are on a GPU, and what its means are to be.

use slackline::gpu::{Gpu, GpuMemory};
use slackline::group::{GroupListener, GroupMember, GroupOptions};
use slackline::internals::cuda::BareGpu;
use slackline::{Address, Transport};

use super::{Outcome, PATIENCE};

pub(crate) const GROUP: [usize; 3] = [0, 1, 2];
pub(crate) const ROUNDS: u64 = 5;
/// Odd, and of three parts of which none is a third.
pub(crate) const ELEMENTS: usize = 300_011;

/// The member of the other process, which finds the others at these addresses.
pub(crate) fn join<T: Transport>(
    gpu: &Gpu,
    transport: T,
    own: Address,
    others: &str,
    answer: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    let listener = listen(transport, 2, own)?;
    let mut addresses = others.split(' ').map(str::parse).collect::<Result<Vec<Address>, _>>()?;
    addresses.push(listener.address());
    answer()?;
    average_on_gpu(listener.connect(&addresses, PATIENCE)?, gpu)
}

pub(crate) fn listen<T: Transport>(transport: T, rank: usize, address: Address) -> Outcome<GroupListener<T>> {
    let options = GroupOptions { lease: PATIENCE, ..GroupOptions::default() };
    Ok(GroupMember::listen(transport, &address, rank, GROUP.len(), ELEMENTS, options)?)
}

/// All rounds of a member on a GPU: each from memory of the caller's there, and back.
pub(crate) fn average_on_gpu<T: Transport>(mut member: GroupMember<T>, gpu: &Gpu) -> Outcome<()> {
    let (mut bare, weights) = (BareGpu::new(gpu, 4 * ELEMENTS)?, GpuMemory::allocate(gpu, 4 * ELEMENTS)?);
    for round in 0..ROUNDS {
        bare.write(&weights.whole(), &bytes_of(&values(member.rank(), round)))?;
        member.copy_parameters_from_gpu(0, &weights.whole(), &bare.stream()?)?;
        assert_eq!(member.average(round, &GROUP, PATIENCE)?.members, GROUP.len());
        member.copy_parameters_to_gpu(0, &weights.whole(), &bare.stream()?)?;
        assert!(bare.read(&weights.whole())? == mean(round), "round {round} has other bits");
    }
    Ok(member.leave(PATIENCE)?)
}

/// Numbers of all sizes, the smallest and infinities among them.
pub(crate) fn values(rank: usize, round: u64) -> Vec<f32> {
    let value = |index: usize| match (index + round as usize) % 13 {
        0 => -0.0,
        1 => f32::MAX,
        2 if rank == 0 => f32::INFINITY,
        3 => f32::from_bits(1 + (rank * 7 + index % 1000) as u32),
        _ => ((rank * 31 + index * 7) as f32 * 0.37 + round as f32).sin() * 1e3,
    };
    (0..ELEMENTS).map(value).collect()
}

/// The mean of a round, as a plain loop makes it.
pub(crate) fn mean(round: u64) -> Vec<u8> {
    let [one, two, three] = GROUP.map(|rank| values(rank, round));
    let mean = |index: usize| (one[index] + two[index] + three[index]) / 3.0;
    bytes_of(&(0..ELEMENTS).map(mean).collect::<Vec<f32>>())
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
