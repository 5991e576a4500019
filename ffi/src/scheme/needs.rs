//! The state with which schemes in C begin, and what they need.

use slackline::scheme::{Needs, Start};
use slackline::{Clock, Version};

/// A staleness that is not given: schemes that take one use their default, the others take none.
pub const SLACKLINE_NO_STALENESS: u64 = 0xffff_ffff_ffff_ffff;

/// The state with which a server's half begins; all 0 for that of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slackline_scheme_start {
    /// The bytes of this struct as the library knows it.
    pub size: usize,
    /// Workers of the job. No action is asked for before so many different ones have joined.
    pub workers: u64,
    /// The clock at which workers begin.
    pub clock: u64,
    /// The version that workers find.
    pub version: u64,
}

impl slackline_scheme_start {
    pub(super) const NONE: Start = Start { workers: 0, clock: Clock::new(0), newest: Version::new(0) };

    pub(super) fn of(start: Start) -> slackline_scheme_start {
        slackline_scheme_start {
            size: size_of::<slackline_scheme_start>(),
            workers: start.workers as u64,
            clock: start.clock.get(),
            version: start.newest.get(),
        }
    }
}

/// The needs and promises of a scheme, as a callback answers them. The library has set all fields to their defaults:
/// those of `base`, or without one those that are said here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slackline_scheme_needs {
    /// The bytes of this struct as the library knows it, to be left alone.
    pub size: usize,
    /// Most clocks that a copy may be behind its reader, which the simulator holds the scheme to; by default
    /// `SLACKLINE_NO_STALENESS`.
    pub staleness: u64,
    /// Gradients that a worker may have on their way, 1 to 65535; by default 2.
    pub slots: u64,
    /// Not 0: workers take copies that the server pushes. By default 0.
    pub pushes: u64,
    /// Not 0: the server interrupts workers. By default 0.
    pub interrupts: u64,
    /// Not 0: workers wait for `SLACKLINE_EVENT_CONSUMED`. By default 0.
    pub waits_for_own: u64,
    /// Not 0: the server is told `SLACKLINE_EVENT_SEEN`. By default 0.
    pub reports_reads: u64,
    /// Not 0: the largest magnitude of each gradient is measured. By default 0.
    pub measures_magnitude: u64,
    /// Not 0: norm and variance of gradients are measured. By default 0.
    pub measures_moments: u64,
    /// Not 0: each gradient is folded in, those of one worker in the order of their clocks, which the simulator holds
    /// the scheme to. By default 0.
    pub folds_all_in_order: u64,
    /// Not 0: decisions are about versions, so that of several servers one decides for all (`slackline_server_follow`).
    /// By default 0.
    pub counts_versions: u64,
    /// Not 0: the server asks for `SLACKLINE_ACTION_WEIGH`. A simulation answers; a server keeps no updates, and
    /// refuses the scheme. By default 0.
    pub weighs_updates: u64,
}

impl slackline_scheme_needs {
    pub(super) fn of(needs: Needs) -> slackline_scheme_needs {
        slackline_scheme_needs {
            size: size_of::<slackline_scheme_needs>(),
            staleness: needs.staleness.unwrap_or(SLACKLINE_NO_STALENESS),
            slots: needs.slots.into(),
            pushes: needs.pushes.into(),
            interrupts: needs.interrupts.into(),
            waits_for_own: needs.waits_for_own.into(),
            reports_reads: needs.reports_reads.into(),
            measures_magnitude: needs.measures_magnitude.into(),
            measures_moments: needs.measures_moments.into(),
            folds_all_in_order: needs.folds_all_in_order.into(),
            counts_versions: needs.counts_versions.into(),
            weighs_updates: needs.weighs_updates.into(),
        }
    }

    pub(super) fn translate(&self) -> Result<Needs, String> {
        let slots = u16::try_from(self.slots).ok().filter(|slots| *slots > 0);
        Ok(Needs {
            staleness: (self.staleness != SLACKLINE_NO_STALENESS).then_some(self.staleness),
            slots: slots.ok_or_else(|| format!("it cannot need {} slots: use 1 to 65535", self.slots))?,
            pushes: self.pushes != 0,
            interrupts: self.interrupts != 0,
            waits_for_own: self.waits_for_own != 0,
            reports_reads: self.reports_reads != 0,
            measures_magnitude: self.measures_magnitude != 0,
            measures_moments: self.measures_moments != 0,
            folds_all_in_order: self.folds_all_in_order != 0,
            counts_versions: self.counts_versions != 0,
            weighs_updates: self.weighs_updates != 0,
        })
    }
}
