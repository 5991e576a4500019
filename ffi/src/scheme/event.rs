//! The events that schemes in C are told of.

use slackline::scheme::{ServerEvent, WorkerEvent};
use slackline::{Clock, Instant};

/// The events that a scheme is told of, for the field called `kind` in `slackline_scheme_event`. Each is followed by
/// the fields that it sets. More may come: a callback does nothing at a number that it does not know.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_event {
    /// At a server: a worker is in. `worker`, `clock` at which it begins, `returns`. At a worker: it is in, and begins
    /// everything again at `clock`; copies from before count no more.
    Joined = 0,
    /// At a server: a worker left or was evicted; its gradients that were not applied are void. `worker`.
    Left = 1,
    /// At a server: a gradient has come whole; those of one worker come in the order of their clocks. `worker`,
    /// `clock`, `version` from which it was computed, `loss`, `magnitude`.
    Arrived = 2,
    /// At a server: a worker holds a copy of `version` or a later one; told where the scheme `reports_reads`. `worker`,
    /// `version`.
    Seen = 3,
    /// At a server: what `SLACKLINE_ACTION_APPLY` asked for is done and can be read. `version`, `loss`,
    /// `mean_norm_squared`, `variance`, `learning_rate`.
    Applied = 4,
    /// At both: the time that `wake_ns` named has come.
    Timeout = 5,
    /// At a worker: it holds a copy that it asked for. `version`, and `clock`: all gradients of earlier clocks are in
    /// it.
    Holds = 6,
    /// At a worker: the gradient of its clock is announced, and the clock moves on by one. `magnitude`.
    Published = 7,
    /// At a worker: what it computed is abandoned, as the server asked. The clock stays.
    Interrupted = 8,
    /// At a worker: the server has consumed its gradients of clocks before `clock`.
    Consumed = 9,
    /// At a worker: so many `workers` are in.
    Membership = 10,
    /// At a server: the answer to `SLACKLINE_ACTION_WEIGH`. `worker` and `clock` of the gradient, `magnitude` of the
    /// sum: the largest of its elements, which is infinite where time alone is simulated.
    Weighed = 11,
}

/// An event, as a callback is given it. Fields that its kind does not set are 0, or NaN where they are numbers with a
/// fraction; those may be NaN in any case, where they were not measured.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct slackline_scheme_event {
    /// The bytes of this struct as the library knows it: a later library has more of them.
    pub size: usize,
    /// One of `enum slackline_event`.
    pub kind: u32,
    /// The worker, by a small number; that of a worker that has left is given to the next one that comes.
    pub worker: u32,
    /// The time, in nanoseconds since some moment; only grows. In a simulation it is virtual.
    pub now_ns: u64,
    /// A clock.
    pub clock: u64,
    /// A version.
    pub version: u64,
    /// 1 if the worker was in before, perhaps by another number.
    pub returns: u64,
    /// Number of workers.
    pub workers: u64,
    /// The loss that came with the gradient, or the mean of those in an update.
    pub loss: f64,
    /// Largest magnitude of a gradient's elements, where the scheme `measures_magnitude`; or of the updates that were
    /// weighed.
    pub magnitude: f64,
    /// Squared Euclidean norm of the mean gradient, where the scheme `measures_moments`.
    pub mean_norm_squared: f64,
    /// Trace of the covariance of one gradient, where the scheme `measures_moments`.
    pub variance: f64,
    /// The step size that the update was made with.
    pub learning_rate: f64,
}

impl slackline_scheme_event {
    pub(super) fn new(kind: slackline_event, now: Instant) -> slackline_scheme_event {
        slackline_scheme_event {
            size: size_of::<slackline_scheme_event>(),
            kind: kind as u32,
            worker: 0,
            now_ns: now.as_nanos(),
            clock: 0,
            version: 0,
            returns: 0,
            workers: 0,
            loss: f64::NAN,
            magnitude: f64::NAN,
            mean_norm_squared: f64::NAN,
            variance: f64::NAN,
            learning_rate: f64::NAN,
        }
    }

    /// The event as C is told it; `None` for one that C has no name for.
    pub(super) fn at_server(now: Instant, event: ServerEvent) -> Option<slackline_scheme_event> {
        let new = |kind| slackline_scheme_event::new(kind, now);
        let number = |number: Option<f64>| number.unwrap_or(f64::NAN);
        Some(match event {
            ServerEvent::Joined { worker, clock, returns } => slackline_scheme_event {
                worker: worker.0,
                clock: clock.get(),
                returns: returns.into(),
                ..new(slackline_event::Joined)
            },
            ServerEvent::Left { worker } => {
                slackline_scheme_event { worker: worker.0, ..new(slackline_event::Left) }
            }
            ServerEvent::Arrived { gradient, base, loss, magnitude } => slackline_scheme_event {
                worker: gradient.worker.0,
                clock: gradient.clock.get(),
                version: base.get(),
                loss: number(loss.map(f64::from)),
                magnitude: number(magnitude.map(f64::from)),
                ..new(slackline_event::Arrived)
            },
            ServerEvent::Seen { worker, version } => slackline_scheme_event {
                worker: worker.0,
                version: version.get(),
                ..new(slackline_event::Seen)
            },
            ServerEvent::Weighed { gradient, largest } => slackline_scheme_event {
                worker: gradient.worker.0,
                clock: gradient.clock.get(),
                magnitude: largest,
                ..new(slackline_event::Weighed)
            },
            ServerEvent::Applied { version, statistics } => slackline_scheme_event {
                version: version.get(),
                loss: number(statistics.loss),
                mean_norm_squared: number(statistics.mean_norm_squared),
                variance: number(statistics.variance),
                learning_rate: number(statistics.learning_rate),
                ..new(slackline_event::Applied)
            },
            _ => return None,
        })
    }

    /// As [`at_server`](Self::at_server), at a worker.
    pub(super) fn at_worker(now: Instant, event: WorkerEvent) -> Option<slackline_scheme_event> {
        let new = |kind| slackline_scheme_event::new(kind, now);
        let at = |kind, clock: Clock| slackline_scheme_event { clock: clock.get(), ..new(kind) };
        Some(match event {
            WorkerEvent::Joined { clock } => at(slackline_event::Joined, clock),
            WorkerEvent::Holds { version, smallest_clock } => slackline_scheme_event {
                version: version.get(),
                ..at(slackline_event::Holds, smallest_clock)
            },
            WorkerEvent::Published { magnitude } => slackline_scheme_event {
                magnitude: magnitude.map_or(f64::NAN, f64::from),
                ..new(slackline_event::Published)
            },
            WorkerEvent::Interrupted => new(slackline_event::Interrupted),
            WorkerEvent::Consumed { clock } => at(slackline_event::Consumed, clock),
            WorkerEvent::Membership { workers } => {
                slackline_scheme_event { workers: workers as u64, ..new(slackline_event::Membership) }
            }
            _ => return None,
        })
    }
}
