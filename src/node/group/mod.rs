//! Averaging parameters inside groups without a server: DS-Sync (Wang et al., arXiv 2007.03298), one-sided.
//!
//! Every member holds all parameters. A round averages the parameters of a few members: each writes its parameters of
//! part `j` into the memory of the `j`th of them, which sums, divides, and writes the result into the memory of all.
//! Each read is proved whole as a pull is. `docs/schemes.md` has the layout and the argument.

mod error;
mod heartbeat;
mod join;
mod memory;
#[cfg(feature = "cuda")]
mod on_gpu;
mod peer;
mod round;
mod watch;

pub use error::GroupError;
use heartbeat::GroupHeartbeat;
pub use join::GroupListener;
use memory::GroupMemory;
pub use peer::Absence;
use peer::GroupPeer;
use round::{Round, RoundPhase};

use smallvec::SmallVec;

use super::Error;
use super::runtime::{Runtime, complete};
use super::wait::{WaitTurn, wait};
use crate::param::{GroupHello, Ranks};
use crate::scheme::Groups;
use crate::time::{Duration, Instant};
use crate::transport::{Address, Endpoint, Transport};

/// Settings of a group's members; the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// The time that a member may be silent before it is taken for dead.
    pub lease: Duration,
    /// Whether each part carries a checksum: one more pass over it on each side.
    pub checksums: bool,
    /// Names the job: members of different ones refuse each other.
    pub run: u64,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions { lease: Duration::from_secs(3), checksums: false, run: 0 }
    }
}

/// The outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Averaged {
    /// The round.
    pub round: u64,
    /// Number of members whose parameters are in the mean, this one's among them.
    pub members: usize,
    /// True if there is no mean, because a member died or gave up in the middle of the round: the parameters are as
    /// before.
    pub skipped: bool,
}

/// Counts of a member's work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStatistics {
    /// Rounds that ended, skipped ones among them.
    pub rounds: u64,
    /// Rounds without a mean.
    pub skipped: u64,
    /// Number of times that a round began again without a member that was gone.
    pub restarts: u64,
    /// Number of times that a part was written again while it was read.
    pub retries: u64,
    /// Bytes of parameters written to others.
    pub bytes: u64,
    /// Time in rounds.
    pub wait: Duration,
}

/// A member of a group that averages its parameters with others.
///
/// One round is: change [`parameters_mut`](Self::parameters_mut), then [`average`](Self::average). A program with a
/// loop of its own calls [`start_average`](Self::start_average), then [`poll`](Self::poll) until that returns the
/// outcome.
///
/// ```
/// use slackline::group::{GroupMember, GroupOptions};
/// use slackline::{Address, Shm};
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(20);
/// let listen = |rank| GroupMember::listen(Shm::new(), &Address::random(), rank, 2, 1000, GroupOptions::default());
/// let listeners = [listen(0)?, listen(1)?];
/// let addresses = listeners.each_ref().map(|listener| listener.address());
/// let run = |(rank, listener): (usize, slackline::group::GroupListener<Shm>)| {
///     let addresses = addresses.clone();
///     std::thread::spawn(move || {
///         let mut member = listener.connect(&addresses, timeout)?;
///         member.parameters_mut()?.fill(rank as f32);
///         let averaged = member.average(0, &[0, 1], timeout)?;
///         assert_eq!((averaged.members, averaged.skipped), (2, false));
///         let first = member.parameters()?[0];
///         member.leave(timeout)?;
///         Ok::<f32, slackline::Error>(first)
///     })
/// };
/// for member in listeners.into_iter().enumerate().map(run).collect::<Vec<_>>() {
///     assert_eq!(member.join().unwrap()?, 0.5);
/// }
/// # Ok::<(), slackline::Error>(())
/// ```
pub struct GroupMember<T: Transport> {
    /// Declared before the connections, so that it is dropped first: a member that is gone has no heart.
    heartbeat: GroupHeartbeat,
    listener: T::Listener,
    runtime: Runtime,
    terms: GroupHello,
    lease: Duration,
    /// The other members by rank; `None` for this member itself.
    peers: Vec<Option<GroupPeer<T::Endpoint>>>,
    gone: Ranks,
    memory: GroupMemory,
    round: Round,
    /// Rounds before this one are over.
    through: u64,
    /// Why the others go on without this member.
    ended: Option<GroupError>,
    /// A member may seem silent only because this member has not seen all arrived bytes.
    is_in_doubt: bool,
    /// True once the member leaves: the others' words about it do not matter any more.
    is_leaving: bool,
    statistics: GroupStatistics,
    /// Beats that the heart missed before this time had no consequence.
    forgiven: Instant,
    /// The time of the last poll.
    now: Instant,
    read: Instant,
    checked: Instant,
}

const UNDER_WAY: &str = "a round is under way: wait for its end, or abandon it";

/// Turns of the state machines in one poll, before its caller has its turn.
const TURNS: usize = 8;

impl<T: Transport> GroupMember<T> {
    /// Begins to listen at `address` as the member `rank` of `members`, each with `elements` parameters. Then
    /// [`GroupListener::connect`] meets the others. Over a transport with a GPU (`Shm::with_gpu`, say) the parameters
    /// of this member are there. Others may have theirs in host memory: the means have the same bits. The memory of the
    /// parameters is allocated before this listens, so no member counts on one without room for them.
    ///
    /// # Errors
    /// An argument is out of its range, the address cannot be listened at, there is no memory for the parameters, or a
    /// GPU is to average the parameters of more than 256 members or to compute checksums.
    pub fn listen(
        transport: T,
        address: &Address,
        rank: usize,
        members: usize,
        elements: usize,
        options: GroupOptions,
    ) -> Result<GroupListener<T>, Error> {
        GroupListener::new(transport, address, rank, members, elements, options)
    }

    fn assemble(
        runtime: Runtime,
        listener: T::Listener,
        terms: GroupHello,
        lease: Duration,
        heartbeat: GroupHeartbeat,
        peers: Vec<Option<GroupPeer<T::Endpoint>>>,
        memory: GroupMemory,
    ) -> Self {
        let round = Round::new(peers.len());
        GroupMember {
            heartbeat,
            now: runtime.now(),
            runtime,
            listener,
            terms,
            lease,
            peers,
            gone: Ranks::default(),
            memory,
            round,
            through: 0,
            ended: None,
            is_in_doubt: false,
            is_leaving: false,
            statistics: GroupStatistics::default(),
            forgiven: Instant::ORIGIN,
            read: Instant::ORIGIN,
            checked: Instant::ORIGIN,
        }
    }

    /// This member's rank.
    pub fn rank(&self) -> usize {
        usize::from(self.terms.rank)
    }

    /// Returns the number of members at the begin.
    #[doc(hidden)]
    pub fn members(&self) -> usize {
        self.peers.len()
    }

    /// Returns the ranks of the members that are alive, this member among them, in order.
    #[doc(hidden)]
    pub fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members()).filter(|rank| !self.gone.contains(*rank))
    }

    /// The name of the transport to each member, in order of rank; `None` for this one, and for lost members.
    pub(crate) fn transports(&self) -> impl Iterator<Item = Option<&'static str>> + '_ {
        self.peers.iter().map(|peer| Some(peer.as_ref()?.endpoint.as_ref()?.transport()))
    }

    /// Returns the reason why a member is gone, if it is.
    #[doc(hidden)]
    pub fn absence(&self, rank: usize) -> Option<&Absence> {
        self.peers.get(rank)?.as_ref()?.absence.as_ref()
    }

    /// Returns the counts of the work so far.
    pub fn statistics(&self) -> &GroupStatistics {
        &self.statistics
    }

    /// The parameters: this member's own, or the mean since the last round.
    ///
    /// # Errors
    /// They are on a GPU (`GpuError::OnGpu`), a copy of a GPU is under way that uses them, or one was not made.
    pub fn parameters(&self) -> Result<&[f32], Error> {
        self.memory.values()
    }

    /// The parameters, to change them between rounds. They lie elsewhere after each round.
    ///
    /// # Errors
    /// A round is under way, or writes of an abandoned one are; as [`parameters`](Self::parameters).
    pub fn parameters_mut(&mut self) -> Result<&mut [f32], Error> {
        if !matches!(self.round.phase, RoundPhase::None | RoundPhase::Ended(_)) {
            return Err(Error::OutOfTurn { operation: "change parameters", reason: UNDER_WAY });
        }
        self.memory.values_mut()
    }

    /// Checks that no round was made or is under way: the rounds of a training count from 0.
    #[doc(hidden)]
    pub fn has_made_no_round(&self) -> Result<(), Error> {
        if self.through == 0 && matches!(self.round.phase, RoundPhase::None) {
            return Ok(());
        }
        let reason = "it has made rounds, and those of a training count from 0: train before the first round";
        Err(Error::OutOfTurn { operation: "train", reason })
    }

    /// Averages the parameters over the members `group` (ranks in order, with this member's; the same list at all of
    /// them), waiting at most `timeout`. Rounds are numbered upwards, the same everywhere; numbers may be left out.
    ///
    /// Members that are gone are left out of the mean. After [`GroupError::Deadline`] it may be called again for the
    /// same round and goes on where it was; [`abandon`](Self::abandon) gives it up. So it may after errors of a GPU
    /// that has not made its copies by then (`GpuError::NotCopied`) or that refuses one. After a fault of the GPU each
    /// later call tells it again: drop the member, and the others go on once its connections end.
    ///
    /// # Errors
    /// [`GroupError::Deadline`]: members have not sent their parts within `timeout`. [`GroupError::CutOff`]: the others
    /// have dropped this member. [`GroupError::Disagree`]: a member averages the same round in another group. The
    /// errors of [`start_average`](Self::start_average), and of a GPU that copies the parameters.
    pub fn average(&mut self, round: u64, group: &[usize], timeout: Duration) -> Result<Averaged, Error> {
        if matches!(self.round.phase, RoundPhase::None) || self.round.number != round {
            self.start_average(round, group)?;
        }
        let runtime = self.runtime.clone();
        let averaged = wait(&runtime, runtime.now() + timeout, |now| {
            let progress = self.turn(now)?;
            Ok(self.take().map_or(WaitTurn::of(progress), WaitTurn::Done))
        });
        match complete(averaged)? {
            Some(averaged) => Ok(averaged),
            None => Err(self.late(round, timeout)),
        }
    }

    fn late(&mut self, round: u64, waited: Duration) -> Error {
        #[cfg(feature = "cuda")]
        if let Some(late) = self.late_copies(waited) {
            return late;
        }
        GroupError::Deadline { round, waited, missing: self.missing() }.into()
    }

    /// [`average`](Self::average) with the group that this member is in by `groups`: it carries out a
    /// [`WorkerAction::Average`](crate::scheme::WorkerAction::Average).
    #[doc(hidden)]
    pub fn average_round(
        &mut self,
        groups: &Groups,
        round: u64,
        timeout: Duration,
    ) -> Result<Averaged, Error> {
        let group: SmallVec<[usize; 16]> = groups.members(self.rank(), round).collect();
        self.average(round, &group, timeout)
    }

    /// Begins a round: [`poll`](Self::poll) moves it on.
    ///
    /// # Errors
    /// A round is under way, or this one is over; `group` is no list of ranks in order with this member's among them; a
    /// GPU fails that is to copy the parameters, and then the round has begun.
    pub fn start_average(&mut self, round: u64, group: &[usize]) -> Result<(), Error> {
        let operation = "begin a round";
        if !matches!(self.round.phase, RoundPhase::None) {
            let reason = "another one is under way: wait for its end and take it, or abandon it";
            return Err(Error::OutOfTurn { operation, reason });
        }
        if round < self.through || round == u64::MAX {
            return Err(Error::OutOfTurn {
                operation,
                reason: "it is over already: rounds are numbered upwards",
            });
        }
        let is_sorted = group.is_sorted_by(|one, next| one < next);
        if !is_sorted || !group.contains(&self.rank()) || group.iter().any(|rank| *rank >= self.members()) {
            return Err(Error::Option {
                option: "group",
                value: format!("{group:?}"),
                reason: "it is a list of ranks in order, each once, this member's own among them",
            });
        }
        self.round.begin(round, group);
        self.begin().map(drop)
    }

    /// Does all work that needs no waiting: takes parts, sends parts, notices which members are gone. Returns the
    /// outcome of the round once, when it has ended. A program that computes between rounds need not call it there.
    ///
    /// # Errors
    /// [`GroupError::CutOff`]: the others have dropped this member. [`GroupError::Disagree`]: a member averages the
    /// same round in another group. The errors of a GPU that copies the parameters.
    pub fn poll(&mut self, now: Instant) -> Result<Option<Averaged>, Error> {
        self.turn(now)?;
        Ok(self.take())
    }

    /// The same, and leaves the outcome to [`take`](Self::take): true if it made progress.
    fn turn(&mut self, now: Instant) -> Result<bool, Error> {
        if let Some(why) = &self.ended {
            return Err(why.clone().into());
        }
        let is_averaging = !matches!(self.round.phase, RoundPhase::None | RoundPhase::Ended(_));
        let begun = *self.round.begun.get_or_insert(now);
        let mut progress = self.watch(now)?;
        for _ in 0..TURNS {
            let turned = self.attend(now)? | self.advance()?;
            progress |= turned;
            if !turned {
                break;
            }
        }
        if is_averaging && matches!(self.round.phase, RoundPhase::Ended(_)) {
            self.statistics.wait += now - begun;
        }
        Ok(progress)
    }

    /// Returns the outcome of the round, once it has ended.
    fn take(&mut self) -> Option<Averaged> {
        let RoundPhase::Ended(averaged) = self.round.phase else { return None };
        self.round.phase = RoundPhase::None;
        Some(averaged)
    }

    /// Gives up the round that is under way, and tells the others; the parameters are as before, unless the round
    /// had ended. They can be changed as soon as they are no longer being sent to any member.
    #[doc(hidden)]
    pub fn abandon(&mut self) -> Result<Option<Averaged>, Error> {
        let is_averaging = matches!(self.round.phase, RoundPhase::Forming | RoundPhase::Averaging);
        let is_open = is_averaging || matches!(self.round.phase, RoundPhase::Ending(_));
        if let Some(begun) = self.round.begun.filter(|_| is_open) {
            self.statistics.wait += self.now - begun;
        }
        if is_averaging {
            self.end(true);
        }
        if self.ended.is_none() {
            self.attend(self.now)?;
        }
        let (RoundPhase::Ending(averaged) | RoundPhase::Ended(averaged)) = self.round.phase else {
            return Ok(None);
        };
        self.round.phase = RoundPhase::None;
        Ok(Some(averaged))
    }

    /// Leaves in order: the others go on without this member, and do not take it for an accident. Gives up a round
    /// that is under way. [`GroupError::Unheard`] names the members that have not heard of it within `timeout`.
    ///
    /// # Errors
    /// [`GroupError::Unheard`], and the errors of [`poll`](Self::poll). The member has left all the same.
    pub fn leave(mut self, timeout: Duration) -> Result<(), Error> {
        self.abandon()?;
        self.is_leaving = true;
        for peer in self.peers.iter_mut().flatten() {
            peer.leaving_is_due = peer.is_alive();
        }
        let runtime = self.runtime.clone();
        let told = wait(&runtime, runtime.now() + timeout, |now| {
            let progress = self.turn(now)?;
            Ok(match self.peers.iter().flatten().all(GroupPeer::has_all) {
                true => WaitTurn::Done(()),
                false => WaitTurn::of(progress),
            })
        });
        let is_told = complete(told)?.is_some();
        let missed = |rank: &usize| self.peers[*rank].as_ref().is_some_and(|peer| peer.has_missed_leaving);
        let mut ranks: Vec<usize> = (0..self.members()).filter(missed).collect();
        if !is_told {
            ranks.extend(self.unreached());
            ranks.sort_unstable();
        }
        match ranks.is_empty() {
            true => Ok(()),
            false => Err(GroupError::Unheard { ranks, waited: timeout }.into()),
        }
    }
}
