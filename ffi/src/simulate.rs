//! The simulator: see [`slackline::sim::Cluster`].

use std::ffi::c_char;
use std::ptr::null;

use slackline::optim::Optimizer;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, ClusterReport, Distribution, Network, Problem, Quadratic, Until};

use crate::error::{Failure, slackline_status};
use crate::handle::{call, text};
use crate::options::{self, DAMPINGS, named, slackline_damping};
use crate::scheme::SLACKLINE_NO_STALENESS;
use crate::sized::{Measured, SizedOut, set_default, sized};

/// Most parameters of a problem: each worker has a gradient of its own in memory.
const PARAMETERS_MAX: usize = 1 << 24;

/// The ends of a simulation, for the field called `until`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_until {
    /// Every worker has completed `clocks`. Not for schemes that interrupt workers.
    Clocks = 0,
    /// So many `versions` were made.
    Versions = 1,
    /// So many `seconds` have passed.
    Seconds = 2,
    /// The loss of the problem is `loss` or less; after `seconds` it stops anyway.
    Loss = 3,
}

/// A job to simulate. Set `size`, call `slackline_simulate_options_init`, change what should differ.
///
/// Times are texts: "1", "exp(1)" (mean), "shifted-exp(0.5, 0.5)" (shift, and mean of the rest), "pareto(2, 0.5)"
/// (shape and scale), "uniform(0.5, 1.5)", or "trace:FILE", in seconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_simulate_options {
    /// `sizeof(struct slackline_simulate_options)`.
    pub size: usize,
    /// The scheme, as a server's; "ds-sync", which has no server, can be simulated, too. By default "bsp".
    pub scheme: *const c_char,
    /// Number of workers; by default 1.
    pub workers: u64,
    /// Everything random follows from it; by default 1.
    pub seed: u64,
    /// The time that a gradient takes; by default "1".
    pub compute: *const c_char,
    /// The time that each message takes, one way; by default "0".
    pub latency: *const c_char,
    /// Bytes per second of each worker's link, each way; by default 0: without limit.
    pub worker_bandwidth: f64,
    /// Bytes per second of the server's link, each way; by default 0: without limit.
    pub server_bandwidth: f64,
    /// Bytes of a gradient, and of a copy of the parameters; by default 0: four for each parameter.
    pub message_bytes: u64,
    /// Number of parameters of a quadratic problem that the workers learn; by default 0: time alone is simulated.
    pub parameters: u64,
    /// The ratio of the greatest curvature of the problem to the smallest; by default 10.
    pub condition: f64,
    /// The variance of a gradient, summed over its elements; by default 1.
    pub variance: f64,
    /// The step size of SGD; by default 0.1.
    pub learning_rate: f64,
    /// One of `enum slackline_damping`; by default none.
    pub damping: u64,
    /// One of `enum slackline_until`; by default clocks.
    pub until: u64,
    /// By default 100.
    pub clocks: u64,
    /// By default 100.
    pub versions: u64,
    /// By default 10000.
    pub seconds: f64,
    /// By default 0.1.
    pub loss: f64,
    /// As of `struct slackline_server_options`; without a server it counts the worker's steps. By default NULL: the
    /// step size is constant.
    pub schedule: *const c_char,
    /// Not 0: each gradient counts whole, as of `struct slackline_server_options`. By default 0.
    pub additive: u64,
    /// Not 0: workers see their own gradients before the server has folded them in. It is for SGD without momentum. By
    /// default 0.
    pub read_my_writes: u64,
    /// The momentum of SGD, from 0 to below 1; by default 0: plain SGD.
    pub momentum: f64,
    /// The weight decay of SGD, an L2 penalty; by default 0.
    pub weight_decay: f64,
}

impl Default for slackline_simulate_options {
    fn default() -> Self {
        let learning_rate = Cluster::new(SchemeConfig::Bsp, 1, 1).learning_rate;
        slackline_simulate_options {
            size: size_of::<Self>(),
            scheme: c"bsp".as_ptr(),
            workers: 1,
            seed: 1,
            compute: c"1".as_ptr(),
            latency: c"0".as_ptr(),
            worker_bandwidth: 0.0,
            server_bandwidth: 0.0,
            message_bytes: 0,
            parameters: 0,
            condition: 10.0,
            variance: 1.0,
            learning_rate: learning_rate.into(),
            damping: slackline_damping::None as u64,
            until: slackline_until::Clocks as u64,
            clocks: 100,
            versions: 100,
            seconds: 10_000.0,
            loss: 0.1,
            schedule: null(),
            additive: 0,
            read_my_writes: 0,
            momentum: 0.0,
            weight_decay: 0.0,
        }
    }
}

/// The result of a simulation. Times are virtual, in seconds. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_simulate_report {
    /// `sizeof(struct slackline_simulate_report)`.
    pub size: usize,
    /// The time at which it ended.
    pub end: f64,
    /// The time at which the loss was reached; NaN if it was not, or none was asked for.
    pub reached: f64,
    /// Updates applied; without a server, rounds that all workers have averaged.
    pub versions: u64,
    /// Gradients that all workers have published.
    pub gradients: u64,
    /// Gradients that were consumed without being folded in.
    pub dropped: u64,
    /// Computations that were abandoned because the server asked.
    pub interrupted: u64,
    /// Bytes of all gradients and copies.
    pub bytes: u64,
    /// The time of all workers over the clocks that they have completed.
    pub mean_time_per_clock: f64,
    /// Seconds that all workers together spent on what they published.
    pub computing: f64,
    /// Seconds that they spent on what they abandoned.
    pub wasted: f64,
    /// Seconds that they spent on anything else.
    pub waiting: f64,
    /// Number of clocks by which parameters were stale when a worker computed on them, in the mean; 0 is as fresh as
    /// can be. NaN if none did.
    pub mean_staleness: f64,
    /// The most of these.
    pub most_staleness: u64,
    /// Number of versions between the one that a gradient was computed on and the one that it was added to, in the
    /// mean; NaN without gradients.
    pub mean_lag: f64,
    /// The loss of the newest parameters; NaN without a problem.
    pub loss: f64,
    /// Hash of all that happened: two runs with the same hash were the same run.
    pub trace_hash: u64,
}

impl slackline_simulate_report {
    fn of(report: &ClusterReport) -> Self {
        let sum = |part: fn(&slackline::sim::OfWorker) -> f64| report.of_workers.iter().map(part).sum();
        // In the histogram -1 is as fresh as can be.
        let behind = |oldest: i64| u64::try_from(-1 - oldest).unwrap_or(0);
        slackline_simulate_report {
            size: size_of::<Self>(),
            end: report.end,
            reached: report.reached.unwrap_or(f64::NAN),
            versions: report.versions,
            gradients: report.gradients,
            dropped: report.counts.dropped,
            interrupted: report.counts.interrupted,
            bytes: report.counts.bytes,
            mean_time_per_clock: report.mean_time_per_clock,
            computing: sum(|worker| worker.computing),
            wasted: sum(|worker| worker.wasted),
            waiting: sum(|worker| worker.waiting),
            mean_staleness: report.staleness.mean().map_or(f64::NAN, |mean| -1.0 - mean),
            most_staleness: report.staleness.min().map_or(0, behind),
            mean_lag: report.lag.mean().unwrap_or(f64::NAN),
            loss: report.curve.last().map_or(f64::NAN, |point| point.loss),
            trace_hash: report.trace_hash,
        }
    }
}

impl Measured for slackline_simulate_options {
    const FIRST: usize = 152;
}
impl Measured for slackline_simulate_report {
    const FIRST: usize = 136;
}

impl slackline_simulate_options {
    /// The problem to learn, if there is one.
    fn problem(&self) -> Result<Option<Box<dyn Problem>>, Failure> {
        let parameters =
            usize::try_from(self.parameters).ok().filter(|parameters| *parameters <= PARAMETERS_MAX);
        match parameters {
            Some(0) => Ok(None),
            Some(parameters) => {
                Ok(Some(Box::new(Quadratic::new(parameters, self.condition, self.variance, self.seed))))
            }
            None => Err(Failure::bad_argument(format!(
                "options->parameters cannot be {}: use at most {PARAMETERS_MAX}",
                self.parameters
            ))),
        }
    }

    /// The rule by which gradients move the parameters.
    fn optimizer(&self) -> Optimizer {
        let (momentum, weight_decay) = (self.momentum as f32, self.weight_decay as f32);
        match momentum == 0.0 {
            true => Optimizer::Sgd { weight_decay },
            false => Optimizer::Momentum { momentum, weight_decay },
        }
    }

    /// # Safety
    ///
    /// The texts are as for [`text`].
    unsafe fn translate(&self) -> Result<Cluster, Failure> {
        // SAFETY: the caller's promise.
        let scheme = unsafe { options::scheme(self.scheme, SLACKLINE_NO_STALENESS)? };
        // SAFETY: the caller's promise.
        let (compute, latency) =
            unsafe { (time(self.compute, "options->compute")?, time(self.latency, "options->latency")?) };
        let unless_zero = |bandwidth: f64| (bandwidth != 0.0).then_some(bandwidth);
        let network = Network {
            latency,
            worker_bandwidth: unless_zero(self.worker_bandwidth),
            server_bandwidth: unless_zero(self.server_bandwidth),
            message_bytes: (self.message_bytes > 0).then_some(self.message_bytes),
            racks: None,
        };
        let until = [
            (slackline_until::Clocks as u64, Until::Clocks(self.clocks)),
            (slackline_until::Versions as u64, Until::Versions(self.versions)),
            (slackline_until::Seconds as u64, Until::Seconds(self.seconds)),
            (slackline_until::Loss as u64, Until::Loss { target: self.loss, within: self.seconds }),
        ];
        let mut cluster =
            Cluster::new(scheme, usize::try_from(self.workers).unwrap_or(usize::MAX), self.seed);
        cluster.compute = compute;
        cluster.network = network;
        cluster.damping = named(DAMPINGS, self.damping, "setting of damping")?;
        cluster.until = named(until, self.until, "setting of until")?;
        cluster.learning_rate = self.learning_rate as f32;
        // SAFETY: the caller's promise.
        cluster.schedule = unsafe { options::schedule(self.schedule)? };
        cluster.additive = self.additive != 0;
        cluster.read_my_writes = self.read_my_writes != 0;
        cluster.optimizer = self.optimizer();
        cluster.problem = self.problem()?;
        Ok(cluster)
    }
}

/// A distribution of times.
///
/// # Safety
///
/// As for [`text`].
unsafe fn time(pointer: *const c_char, what: &str) -> Result<Distribution, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { text(pointer, what)? }.parse()?)
}

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_simulate_options_init(
    options: *mut slackline_simulate_options,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Simulates a whole job in virtual time, in the calling thread, and writes to `report` how it went; `report->size`
/// must be set. A scheme of `slackline_scheme_register` runs by the same callbacks as in a real job, and any scheme is
/// held to its promises at every event: one that breaks them, or that would wait for ever, is
/// `SLACKLINE_STATUS_SCHEME`, with the seed that replays it in the message. It takes as long as there are events, and
/// has no timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_simulate(
    options: *const slackline_simulate_options,
    report: *mut slackline_simulate_report,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (options, out) = unsafe { (sized(options, "options")?, SizedOut::new(report, "report")?) };
        // SAFETY: the contract.
        let cluster = unsafe { options.translate()? };
        out.set(slackline_simulate_report::of(&cluster.run()?));
        Ok(())
    })
}
