//! Workers that average their parameters without a server: see [`slackline::group::GroupMember`].

use std::ffi::{CString, c_char};
use std::time::Duration;

use slackline::Error;
use slackline::group::{Averaged, GroupListener, GroupMember, GroupOptions, GroupTrainer};
use slackline::scheme::{Groups, Partition};

use crate::error::{Failure, slackline_status};
use crate::fabric::{Fabric, fabric};
use crate::handle::{Handle, Out, OutArray, call, copy_out, create, destroy, lend_text, opaque, slice, with};
use crate::job::slackline_job;
use crate::options::{self, milliseconds, named};
use crate::sized::{Measured, SizedOut, set_default, sized_or_default};
use crate::status::nanoseconds;
use crate::worker::read_addresses;

/// One member of a group whose members all hold all parameters and average them in rounds, without a server. One round
/// is: change the parameters, then average. A thread of its own tells the others that it lives, however long it
/// computes.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_group(Handle<Grouping>);

/// A member, and its address as C reads it.
pub(crate) struct Grouping {
    state: State,
    address: CString,
    elements: usize,
}

enum State {
    /// With the number of members.
    Listening(Box<GroupListener<Fabric>>, usize),
    Member(Box<GroupMember<Fabric>>),
    Trainer(Box<GroupTrainer>),
    /// It has left, or could not meet the others.
    Over,
}

const OVER: &str = "it has left, or did not meet the others: destroy it";

impl Grouping {
    fn member(&mut self) -> Result<&mut GroupMember<Fabric>, Failure> {
        match &mut self.state {
            State::Member(member) => Ok(member),
            State::Trainer(trainer) => Ok(trainer.member_mut()),
            State::Listening(..) => {
                Err(out_of_turn("it has not met the others: call slackline_group_connect"))
            }
            State::Over => Err(out_of_turn(OVER)),
        }
    }

    /// The member, for rounds that the program names itself.
    pub(crate) fn member_by_hand(&mut self) -> Result<&mut GroupMember<Fabric>, Failure> {
        match &self.state {
            State::Trainer(_) => {
                Err(out_of_turn("its training names the rounds: call slackline_group_advance"))
            }
            _ => self.member(),
        }
    }

    /// Has `make` make the training of the member, where there is one whose rounds the program has named so far.
    pub(crate) fn train(
        &mut self,
        make: impl FnOnce(GroupMember<Fabric>) -> Result<GroupTrainer, Error>,
    ) -> Result<(), Failure> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Member(member) => {
                let trainer = make(*member).map_err(|error| Failure::from(error).for_good())?;
                self.state = State::Trainer(Box::new(trainer));
            }
            state => self.state = state,
        }
        Ok(())
    }

    /// The training of the member.
    pub(crate) fn trainer(&mut self) -> Result<&mut GroupTrainer, Failure> {
        match &mut self.state {
            State::Trainer(trainer) => Ok(trainer),
            _ => Err(out_of_turn("it does not train: call slackline_group_train")),
        }
    }
}

fn out_of_turn(reason: &str) -> Failure {
    Failure::new(slackline_status::OutOfTurn, format!("this member of a group cannot do that now: {reason}"))
}

opaque!(slackline_group: Grouping);

/// The partitions of workers into groups, for the parameter called `partition`. `slackline_group_train` knows more of
/// them by their names.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_partition {
    /// The number of workers is a power of the group's size; after as many rounds as the power says, every member has
    /// the mean of all.
    Digits = 0,
    /// The two partitions of 4 workers into pairs that the code of DS-Sync's authors has.
    Authors = 1,
    /// Any number of workers: as digits, with groups that lack the ranks that do not exist.
    Uneven = 2,
}

/// Settings of a group, the same in all its members. Set `size`, call `slackline_group_options_init`, then change
/// fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_group_options {
    /// `sizeof(struct slackline_group_options)`.
    pub size: usize,
    /// The time in milliseconds after which a silent member is taken for dead; by default 3000.
    pub lease_ms: u64,
    /// Not 0: each part carries a checksum. By default 0.
    pub checksums: u64,
    /// Names the job: members of different ones refuse each other. By default 0.
    pub run: u64,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// Not 0: parameters are encrypted over TCP, and not only the handshakes. This needs a secret. Peers
    /// that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are encrypted if
    /// SLACKLINE_TCP_ENCRYPT is 1.
    pub encrypt: u64,
}

impl Default for slackline_group_options {
    fn default() -> Self {
        let GroupOptions { lease, checksums, run } = GroupOptions::default();
        slackline_group_options {
            size: size_of::<Self>(),
            lease_ms: milliseconds(lease),
            checksums: checksums.into(),
            run,
            secret: std::ptr::null(),
            secret_file: std::ptr::null(),
            encrypt: 0,
        }
    }
}

impl slackline_group_options {
    fn translate(&self) -> GroupOptions {
        GroupOptions {
            lease: Duration::from_millis(self.lease_ms),
            checksums: self.checksums != 0,
            run: self.run,
        }
    }
}

/// The result of a round. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_averaged {
    /// `sizeof(struct slackline_averaged)`.
    pub size: usize,
    /// The round.
    pub round: u64,
    /// Number of members whose parameters are in the mean, this member among them.
    pub members: u64,
    /// 1 if there is no mean, because a member died or gave up in the middle of the round: the parameters are as
    /// before.
    pub skipped: u64,
}

impl slackline_averaged {
    fn of(averaged: Averaged) -> Self {
        slackline_averaged {
            size: size_of::<Self>(),
            round: averaged.round,
            members: averaged.members as u64,
            skipped: averaged.skipped.into(),
        }
    }
}

/// The state of a member of a group. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_group_status {
    /// `sizeof(struct slackline_group_status)`.
    pub size: usize,
    /// This member's rank.
    pub rank: u64,
    /// Number of members at the beginning.
    pub members: u64,
    /// Number of members that are still there, this one among them.
    pub alive: u64,
    /// Rounds that ended, skipped ones among them.
    pub rounds: u64,
    /// Rounds without a mean.
    pub skipped: u64,
    /// Number of times that a round began again without a member that was gone.
    pub restarts: u64,
    /// Parts that were written again while they were read.
    pub retries: u64,
    /// Bytes of parameters written to others.
    pub bytes: u64,
    /// Nanoseconds in rounds.
    pub wait_ns: u64,
}

impl Measured for slackline_group_options {
    const FIRST: usize = 48;
}
impl Measured for slackline_averaged {
    const FIRST: usize = 32;
}
impl Measured for slackline_group_status {
    const FIRST: usize = 80;
}

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_options_init(
    options: *mut slackline_group_options,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Begins to listen at `address`, which is as for a server, as the member `rank` of `members`, each with `elements`
/// parameters, all zero at first. Then `slackline_group_connect` meets the others. `options` may be NULL. The group is
/// the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_listen(
    address: *const c_char,
    rank: usize,
    members: usize,
    elements: usize,
    options: *const slackline_group_options,
    group: *mut *mut slackline_group,
) -> slackline_status {
    let listen = || {
        // SAFETY: the contract.
        let (address, options) =
            unsafe { (options::listen_address(address)?, sized_or_default(options, "options")?) };
        // SAFETY: the contract.
        let secret = unsafe { options::secret(options.secret, options.secret_file, options.encrypt)? };
        let fabric = fabric(secret, std::slice::from_ref(&address))?;
        let listener = GroupMember::listen(fabric, &address, rank, members, elements, options.translate())?;
        let address = CString::new(listener.address().to_string()).unwrap_or_default();
        Ok(Grouping { state: State::Listening(Box::new(listener), members), address, elements })
    };
    // SAFETY: the contract.
    unsafe { create(group, listen) }
}

/// Meets all workers of a job without servers (`servers` 0 in its options), each with `elements` parameters. The rank
/// of this member is the number of this worker. `options` may be NULL; `secret`, `secret_file` and `encrypt` in it are
/// not looked at: they are the job's. Call `slackline_job_finish` with no worker once `slackline_group_leave` has
/// returned. The group is the caller's, to be destroyed before the job is; on failure it is NULL. A job with a GPU that
/// would have the parameters there is `SLACKLINE_STATUS_UNSUPPORTED`: leave its GPU out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_group(
    job: *const slackline_job,
    elements: usize,
    options: *const slackline_group_options,
    group: *mut *mut slackline_group,
) -> slackline_status {
    let meet = || {
        // SAFETY: the contract.
        let options = unsafe { sized_or_default(options, "options")? }.translate();
        // SAFETY: the contract.
        let member = unsafe { with(job, |job| Ok(job.group(elements, options)?))? };
        // Parameters on the GPU of the job are refused by name: C has no calls for them.
        member.parameters()?;
        Ok(Grouping { state: State::Member(Box::new(member)), address: CString::default(), elements })
    };
    // SAFETY: the contract.
    unsafe { create(group, meet) }
}

/// Lends the address at which the others reach this member; empty for a member of a job. It is valid until the group
/// is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_address(
    group: *const slackline_group,
    address: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(group, address, "address", |grouping| &grouping.address) }
}

/// Meets the other members, which may start in any order: `addresses` are the addresses of all members, in order of
/// rank, of the transports that this member listens at. Where they cannot be read, or are not as many as the members,
/// that is `SLACKLINE_STATUS_BAD_ARGUMENT` and the member listens on. After any other failure the group can only be
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_connect(
    group: *mut slackline_group,
    addresses: *const *const c_char,
    address_count: usize,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let addresses = unsafe { read_addresses(addresses, address_count)? };
        let timeout = Duration::from_millis(timeout_ms);
        let connect = |grouping: &mut Grouping| match std::mem::replace(&mut grouping.state, State::Over) {
            State::Listening(listener, members) if addresses.len() == members => {
                let met = listener.connect(&addresses, timeout);
                grouping.state =
                    State::Member(Box::new(met.map_err(|error| Failure::from(error).for_good())?));
                Ok(())
            }
            state => {
                let failure = match &state {
                    State::Listening(_, members) => Failure::bad_argument(format!(
                        "{} addresses were given for {members} members: give one for each, in order of rank",
                        addresses.len()
                    )),
                    State::Over => out_of_turn(OVER),
                    _ => out_of_turn("it has met the others before"),
                };
                grouping.state = state;
                Err(failure)
            }
        };
        // SAFETY: the contract.
        unsafe { with(group, connect) }
    })
}

/// The parameters of this member, `len` values, to be read and changed in place: its own, or the mean since the last
/// round. Valid until the next `slackline_group_average`, `slackline_group_train`, `slackline_group_advance`, leave or
/// destroy; they lie elsewhere after each round. While a round is under way it is out of turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_parameters(
    group: *mut slackline_group,
    parameters: *mut *mut f32,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(parameters, len, "parameters")? };
        // The array is memory of its own behind the member: other calls but average do not touch it.
        let lend = |grouping: &mut Grouping| {
            let elements = grouping.elements;
            let parameters = grouping.member()?.parameters_mut()?;
            Ok((parameters.as_mut_ptr(), parameters.len().min(elements)))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(group, lend)? });
        Ok(())
    })
}

/// Averages the parameters over the members `ranks`, in order and with this member's, the same list at all of them.
/// Rounds are numbered upwards, the same everywhere; numbers may be left out. Members that are gone are left out of
/// the mean. `averaged`, unless NULL, is told how it ended; `averaged->size` must be set.
///
/// After `SLACKLINE_STATUS_DEADLINE` it may be called again for the same round and continues; with a `timeout_ms` of
/// 0 it does the work that needs no waiting. `SLACKLINE_STATUS_EVICTED` says that the others took this member for
/// dead and go on without it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_average(
    group: *mut slackline_group,
    round: u64,
    ranks: *const usize,
    rank_count: usize,
    timeout_ms: u64,
    averaged: *mut slackline_averaged,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (ranks, out) =
            unsafe { (slice(ranks, rank_count, "ranks")?, SizedOut::wanted(averaged, "averaged")?) };
        let timeout = Duration::from_millis(timeout_ms);
        let average =
            |grouping: &mut Grouping| Ok(grouping.member_by_hand()?.average(round, ranks, timeout)?);
        // SAFETY: the contract.
        let averaged = unsafe { with(group, average)? };
        out.into_iter().for_each(|out| out.set(slackline_averaged::of(averaged)));
        Ok(())
    })
}

/// Gives up the round that is under way, and tells the others: the parameters are as before, unless the round had
/// ended. `averaged`, unless NULL, is told how it ended, with 0 `members` if none was under way; `averaged->size` must
/// be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_abandon(
    group: *mut slackline_group,
    averaged: *mut slackline_averaged,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { SizedOut::wanted(averaged, "averaged")? };
        // SAFETY: the contract.
        let averaged = unsafe { with(group, |grouping| Ok(grouping.member_by_hand()?.abandon()?))? };
        let averaged = averaged.map(slackline_averaged::of).unwrap_or_default();
        out.into_iter().for_each(|out| out.set(averaged));
        Ok(())
    })
}

/// Sets `alive` to 1 if the member `rank` is there, and to 0 if it is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_is_alive(
    group: *const slackline_group,
    rank: usize,
    alive: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(alive, "alive")? };
        let is_alive = |grouping: &mut Grouping| Ok(grouping.member()?.alive().any(|alive| alive == rank));
        // SAFETY: the contract.
        out.set(unsafe { with(group, is_alive)? }.into());
        Ok(())
    })
}

/// Writes the present state to `status`. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_get_status(
    group: *const slackline_group,
    status: *mut slackline_group_status,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { SizedOut::new(status, "status")? };
        let ask = |grouping: &mut Grouping| {
            let member = grouping.member()?;
            let statistics = member.statistics();
            Ok(slackline_group_status {
                size: size_of::<slackline_group_status>(),
                rank: member.rank() as u64,
                members: member.members() as u64,
                alive: member.alive().count() as u64,
                rounds: statistics.rounds,
                skipped: statistics.skipped,
                restarts: statistics.restarts,
                retries: statistics.retries,
                bytes: statistics.bytes,
                wait_ns: nanoseconds(statistics.wait),
            })
        };
        // SAFETY: the contract.
        out.set(unsafe { with(group, ask)? });
        Ok(())
    })
}

/// Leaves in order: the others go on without this member, and do not take it for an accident. Gives up a round that is
/// under way. `SLACKLINE_STATUS_DEADLINE` says that some have not heard of it; they find out by themselves. Copy the
/// parameters first; afterwards the group can only be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_leave(
    group: *mut slackline_group,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        let leave = |grouping: &mut Grouping| {
            grouping.member()?;
            match std::mem::replace(&mut grouping.state, State::Over) {
                State::Member(member) => Ok(member.leave(timeout)?),
                State::Trainer(trainer) => Ok(trainer.into_member().leave(timeout)?),
                State::Listening(..) | State::Over => Ok(()),
            }
        };
        // SAFETY: the contract.
        unsafe { with(group, leave) }
    })
}

/// Frees the member. The others lose a member that has not left as soon as they find its connection closed. NULL does
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_destroy(group: *mut slackline_group) {
    // SAFETY: the contract.
    unsafe { destroy(group) };
}

/// Finds the members that average with the member `rank` of `workers` in a round of DS-Sync with groups of `group`,
/// by a `partition` of `enum slackline_partition`. Writes the ranks, in order and `rank` among them, to `ranks`,
/// which has room for `group`, and how many they are to `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_ranks(
    workers: usize,
    group: u16,
    partition: u32,
    rank: usize,
    round: u64,
    ranks: *mut usize,
    count: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(count, "count")? };
        let known = [
            (slackline_partition::Digits as u64, Partition::Digits),
            (slackline_partition::Authors as u64, Partition::Authors),
            (slackline_partition::Uneven as u64, Partition::Uneven),
        ];
        let groups = Groups::new(workers, group, named(known, partition.into(), "partition")?)?;
        if rank >= workers {
            let message = format!("there is no rank {rank} of {workers}: they count from 0");
            return Err(Failure::bad_argument(message));
        }
        let members: Vec<usize> = groups.members(rank, round).collect();
        // SAFETY: the contract; the list is memory of this call.
        unsafe { copy_out(&members, ranks, members.len(), "ranks")? };
        out.set(members.len());
        Ok(())
    })
}
