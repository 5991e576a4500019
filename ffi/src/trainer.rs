//! The training of a member of a group: see [`slackline::group::GroupTrainer`].

use std::ffi::c_void;
use std::time::Duration;

use slackline::group::GroupTrainer;
use slackline::internals::job::LocalOptimizer;
use slackline::scheme::{Groups, SchemeConfig};
use slackline::{Advance, Error};

use crate::compute::{Compute, slackline_compute};
use crate::error::{Failure, slackline_status};
use crate::group::{Grouping, slackline_group};
use crate::handle::{call, with};
use crate::options::slackline_server_options;
use crate::sized::{Measured, SizedOut, sized};

/// What an advance of the training did, for the field called `kind`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_advance_kind {
    /// Nothing: `compute` gave up. The next advance makes the same step.
    GaveUp = 0,
    /// The parameters have made a step.
    Stepped = 1,
    /// The parameters are their group's mean.
    Averaged = 2,
}

/// The result of an advance of the training. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_advance {
    /// `sizeof(struct slackline_advance)`.
    pub size: usize,
    /// One of `enum slackline_advance_kind`.
    pub kind: u64,
    /// Of a step, the loss before it; otherwise NaN.
    pub loss: f64,
    /// Of an average, the number of its round; otherwise 0.
    pub round: u64,
    /// The number of steps that were made so far.
    pub clock: u64,
    /// 1 if the next advance makes an average: a worker that has made all its steps makes it before it leaves.
    pub averages_next: u64,
}

impl Default for slackline_advance {
    fn default() -> Self {
        let kind = slackline_advance_kind::GaveUp as u64;
        slackline_advance {
            size: size_of::<Self>(),
            kind,
            loss: f64::NAN,
            round: 0,
            clock: 0,
            averages_next: 0,
        }
    }
}

impl Measured for slackline_advance {
    const FIRST: usize = 48;
}

impl slackline_advance {
    fn of(advance: Option<Advance>, trainer: &GroupTrainer) -> Self {
        let (clock, averages_next) = (trainer.clock().get(), trainer.averages_next().into());
        let now = slackline_advance { clock, averages_next, ..Default::default() };
        match advance {
            None => now,
            Some(Advance::Stepped { loss }) => {
                let kind = slackline_advance_kind::Stepped as u64;
                slackline_advance { kind, loss: loss.into(), ..now }
            }
            Some(Advance::Averaged { round }) => {
                slackline_advance { kind: slackline_advance_kind::Averaged as u64, round, ..now }
            }
        }
    }
}

/// Has the member train by DS-Sync from now on: `slackline_group_advance` makes the steps of an optimiser of its own,
/// and the averages with the members of each round. It begins with the parameters that the member has, which are the
/// same at all members if they have set them so. A member that has made a round, or has one under way, cannot train.
///
/// Of `options` it looks at `scheme`, such as "ds-sync(group=2, partition=random, seed=7, period=4)", the same at all
/// members, and at the optimiser with its settings, `learning_rate` and `schedule`. The other settings are a server's.
/// Rounds that the program names itself, `slackline_group_average` and `slackline_group_abandon`, are out of turn
/// afterwards. After `SLACKLINE_STATUS_MEMORY` the group can only be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_train(
    group: *mut slackline_group,
    options: *const slackline_server_options,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let options = unsafe { sized(options, "options")?.translate()? };
        let Some(scheme @ SchemeConfig::DsSync { group: size, partition, .. }) = options.scheme.built_in()
        else {
            let message = format!("scheme {} has servers; use ds-sync in a group", options.scheme);
            return Err(Failure::bad_argument(message));
        };
        let train = |grouping: &mut Grouping| {
            // What cannot be is found before the training takes the member.
            let member = grouping.member_by_hand()?;
            member.has_made_no_round()?;
            Groups::new(member.members(), size, partition)?;
            let (optimizer, rate) = (options.optimizer, options.learning_rate);
            LocalOptimizer::new(optimizer, rate, 1)?;
            grouping.train(|member| GroupTrainer::new(member, scheme, optimizer, rate, options.schedule))
        };
        // SAFETY: the contract.
        unsafe { with(group, train) }
    })
}

/// Makes a step or an average, whichever is next. `compute` is called, in this thread and with the number of the step,
/// where a step is next; it calls no function of this group. `advance`, unless NULL, is told what it was;
/// `advance->size` must be set.
///
/// After `SLACKLINE_STATUS_DEADLINE` it may be called again and goes on where it was. `SLACKLINE_STATUS_EVICTED` says
/// that the others took this member for dead and go on without it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_group_advance(
    group: *mut slackline_group,
    compute: slackline_compute,
    context: *mut c_void,
    timeout_ms: u64,
    advance: *mut slackline_advance,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (out, compute) =
            unsafe { (SizedOut::wanted(advance, "advance")?, Compute::new(compute, context)?) };
        let timeout = Duration::from_millis(timeout_ms);
        let make = |grouping: &mut Grouping| {
            let trainer = grouping.trainer()?;
            let mut gave_up = false;
            let run = |step: u64, parameters: &[f32], gradient: &mut [f32]| {
                compute.run(step, parameters, gradient).ok_or_else(|| {
                    gave_up = true;
                    Error::OutOfTurn { operation: "advance", reason: "compute gave up" }
                })
            };
            let advance = match trainer.advance(run, timeout) {
                Err(_) if gave_up => None,
                advance => Some(advance?),
            };
            Ok::<_, Failure>(slackline_advance::of(advance, trainer))
        };
        // SAFETY: the contract.
        let advance = unsafe { with(group, make)? };
        out.into_iter().for_each(|out| out.set(advance));
        Ok(())
    })
}
