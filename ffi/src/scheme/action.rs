//! The actions that schemes in C ask for.

use std::ptr::null;

use super::needs::SLACKLINE_NO_STALENESS;

/// The actions that a scheme may ask for, for the field called `kind` in `slackline_scheme_action`. Each is followed by
/// the fields that it reads.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_action {
    /// Nothing, until the next event.
    None = 0,
    /// Of a server: fold `shares` into one new version, whose step may be of no share. Each must have come, and counts
    /// once; at most 1024 at a time.
    Apply = 1,
    /// Of a server: begin to fold `shares`, as they will be folded next if they all come. It binds neither side.
    Expect = 2,
    /// Of a server: consume the gradient of `clock` of `worker` without folding it in.
    Drop = 3,
    /// Of a server: ask `worker` to abandon what it computes and to take the newest version.
    Interrupt = 4,
    /// Of a server: push the newest version to the workers that take pushes.
    Push = 5,
    /// Of a worker: bring the newest copy that is at least `version` and holds all gradients of clocks before `clock`,
    /// waiting for one if need be. `SLACKLINE_EVENT_HOLDS` answers.
    Refresh = 6,
    /// Of a worker: compute on the copy at hand and publish. `SLACKLINE_EVENT_PUBLISHED` or
    /// `SLACKLINE_EVENT_INTERRUPTED` answers.
    Compute = 7,
    /// Of a server, in a simulation alone: say how large the updates of one worker are in sum, those that were made
    /// after `version` and the one that the one gradient in `shares` would make if it were folded next.
    /// `SLACKLINE_EVENT_WEIGHED` answers. It is for schemes that need it: `weighs_updates`.
    Weigh = 8,
}

/// A gradient's part in an update.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct slackline_share {
    /// The worker that computed it.
    pub worker: u32,
    /// The weight of the gradient in the sum.
    pub weight: f32,
    /// The clock in which it was computed.
    pub clock: u64,
}

/// An action, as a callback answers it. The library has set all fields to their defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slackline_scheme_action {
    /// The bytes of this struct as the library knows it, to be left alone: a later library has more of them.
    pub size: usize,
    /// One of `enum slackline_action`; by default none.
    pub kind: u32,
    /// The worker; by default 0.
    pub worker: u32,
    /// A clock; by default 0.
    pub clock: u64,
    /// A version; by default 0.
    pub version: u64,
    /// `share_count` gradients with their weights, in any order; they stay where they are until the next callback of
    /// this half. By default NULL.
    pub shares: *const slackline_share,
    /// Number of shares; by default 0.
    pub share_count: usize,
    /// The time at which this half is to be told `SLACKLINE_EVENT_TIMEOUT`, on the scale of `now_ns`. It holds until
    /// then, or until another is named, and is later than the last such event; by default 0: none is.
    pub wake_ns: u64,
    /// Of a server, for its status only: the number of gradients that the next version waits for; by default 0: it is
    /// not chosen.
    pub waits_for: u64,
    /// Of a server, for its status only: most versions that a gradient may be behind by now; by default
    /// `SLACKLINE_NO_STALENESS`.
    pub staleness_bound: u64,
}

impl Default for slackline_scheme_action {
    fn default() -> Self {
        slackline_scheme_action {
            size: size_of::<Self>(),
            kind: slackline_action::None as u32,
            worker: 0,
            clock: 0,
            version: 0,
            shares: null(),
            share_count: 0,
            wake_ns: 0,
            waits_for: 0,
            staleness_bound: SLACKLINE_NO_STALENESS,
        }
    }
}
