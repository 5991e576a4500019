//! Helpers of all claims: groups that have met, deadlines, members that are threads.

use std::time::{Duration, Instant};

use slackline::group::{Averaged, GroupListener, GroupMember, GroupOptions};
use slackline::{Address, Error, Transport};

/// Longest time that any wait may take: far more than any of them needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A transport under test.
pub(crate) trait Fixture: 'static {
    type Transport: Transport;
    /// The module of the test binary that holds this transport's tests, for tests that run processes of their own.
    const MODULE: &'static str;
    fn transport() -> Self::Transport;
    /// Returns an address for the member of this rank, at which no process listens.
    fn address(rank: usize) -> Address;
}

pub(crate) type Member<F> = GroupMember<<F as Fixture>::Transport>;
pub(crate) type Listening<F> = GroupListener<<F as Fixture>::Transport>;

pub(crate) fn listen<F: Fixture>(
    rank: usize,
    members: usize,
    elements: usize,
    options: GroupOptions,
) -> Listening<F> {
    let address = F::address(rank);
    GroupMember::listen(F::transport(), &address, rank, members, elements, options).expect("listen")
}

/// All members, met.
pub(crate) fn meet<F: Fixture>(members: usize, elements: usize, options: GroupOptions) -> Vec<Member<F>> {
    let listeners: Vec<_> = (0..members).map(|rank| listen::<F>(rank, members, elements, options)).collect();
    let addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    std::thread::scope(|scope| {
        let connect = |listener: Listening<F>| {
            let addresses = &addresses;
            scope.spawn(move || listener.connect(addresses, PATIENCE).expect("meet"))
        };
        let members: Vec<_> = listeners.into_iter().map(connect).collect();
        members.into_iter().map(|member| member.join().unwrap()).collect()
    })
}

/// Runs each member in a thread of its own, and returns what they return, in order of rank.
pub(crate) fn each<F: Fixture, R: Send>(
    members: Vec<Member<F>>,
    run: impl Fn(Member<F>) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = members.into_iter().map(|member| scope.spawn(move || run(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// One turn of a member that is driven by hand.
pub(crate) fn turn<F: Fixture>(member: &mut Member<F>) -> Result<Option<Averaged>, Error> {
    member.poll(slackline::now())
}

/// Calls `step` until it returns something.
pub(crate) fn wait_for<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Some parameters, different for each member.
pub(crate) fn pattern(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 13) as f32 * 0.01).sin() + rank as f32
}

pub(crate) fn fill<F: Fixture>(member: &mut Member<F>) {
    let rank = member.rank();
    for (index, value) in member.parameters_mut().unwrap().iter_mut().enumerate() {
        *value = pattern(rank, index);
    }
}

/// Asserts that the parameters are the plain mean of those that `ranks` were filled with.
pub(crate) fn assert_mean(parameters: &[f32], ranks: &[usize]) {
    for (index, got) in parameters.iter().enumerate() {
        let sum: f64 = ranks.iter().map(|rank| f64::from(pattern(*rank, index))).sum();
        let mean = sum / ranks.len() as f64;
        assert!(
            (f64::from(*got) - mean).abs() < 1e-5 * (1.0 + mean.abs()),
            "{got} against {mean} at {index}"
        );
    }
}

pub(crate) fn bits(parameters: &[f32]) -> Vec<u32> {
    parameters.iter().map(|value| value.to_bits()).collect()
}
