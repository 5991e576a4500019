//! The job that a simulation runs.

use std::ops::Range;

use super::engine::SimEngine;
use super::{ClusterReport, Distribution, Faults, Network, Problem, SimError};
use crate::clock::{Clock, Version, WorkerId};
use crate::kernel::{Optimizer, Schedule};
use crate::scheme::{
    AnyScheme, Damping, Groups, NO_SUM, SchemeConfig, ServerScheme, Start, WorkerScheme, adds_up, damped,
    summed,
};

/// A job to simulate: [`new`](Self::new), change fields, [`run`](Self::run).
pub struct Cluster {
    /// The scheme.
    pub scheme: AnyScheme,
    /// The effect of a gradient's staleness on its weight; without a server it has none.
    pub damping: Damping,
    /// Each gradient counts with weight 1 instead of the scheme's weight: updates add up. Only where every gradient is
    /// folded in.
    pub additive: bool,
    /// The number of workers, up to [`MAX_WORKERS`](super::MAX_WORKERS); with a problem, a scheme may fold up to
    /// [`MAX_GRADIENTS`](crate::kernel::MAX_GRADIENTS) gradients at once.
    pub workers: usize,
    /// Everything random follows from it.
    pub seed: u64,
    /// The time that a gradient takes; with local steps, the time of each step.
    pub compute: Distribution,
    /// The factors by which each worker's times are longer than the distribution says; 1 for workers beyond the end of
    /// the list.
    pub factors: Vec<f64>,
    /// The time, in seconds, at which each worker begins, though all are in from the first moment; 0 for workers beyond
    /// the end of the list. Even workers that begin at different times stay apart: nothing but a bound brings them
    /// together.
    pub starts: Vec<f64>,
    /// Workers that become slower, or faster, on the way.
    pub changes: Vec<Change>,
    /// The network that carries messages.
    pub network: Network,
    /// The faults of workers and of the network.
    pub faults: Faults,
    /// Workers see their own gradients before the server has folded them in: each adds the gradients that its copy
    /// lacks, at the weight `1/workers`, or 1 if updates add up. With SGD only.
    pub read_my_writes: bool,
    /// The end of the simulation.
    pub until: Until,
    /// The problem to learn; `None`: time alone is simulated.
    pub problem: Option<Box<dyn Problem>>,
    /// The rule by which gradients move the parameters.
    pub optimizer: Optimizer,
    /// The step size of the optimiser.
    pub learning_rate: f32,
    /// How the step size falls, by the version that an update is made on; without a server, by the worker's steps.
    pub schedule: Schedule,
    /// Seconds between two points of the loss curve, each taken at the first version after; `None`: the mean time of a
    /// computation, or its median where the mean is infinite.
    pub evaluate_every: Option<f64>,
}

/// Some workers change their pace.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The time, in seconds. Computations that run already are not touched.
    pub at: f64,
    /// The workers.
    pub workers: Range<usize>,
    /// The factor by which their times grow: 2 is half as fast, 0.5 twice as fast.
    pub factor: f64,
}

/// The condition at which a simulation stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// Every worker that is in has completed so many clocks. Not for schemes that interrupt workers: these may never
    /// do.
    Clocks(u64),
    /// So many versions were made.
    Versions(u64),
    /// So many seconds have passed.
    Seconds(f64),
    /// A point of the loss curve is at `target` or below.
    Loss {
        /// The loss to be reached.
        target: f64,
        /// Seconds after which it stops anyway.
        within: f64,
    },
}

/// The remedy where a worker does not exist.
const FEWER: &str = "workers count from 0, and there are fewer";

impl Cluster {
    /// Makes a job of workers that compute for one second each time, with a network that takes no time, no faults and
    /// nothing to learn; SGD of step size 0.1, until all workers have completed 100 clocks.
    pub fn new(scheme: impl Into<AnyScheme>, workers: usize, seed: u64) -> Cluster {
        Cluster {
            scheme: scheme.into(),
            damping: Damping::None,
            additive: false,
            workers,
            seed,
            compute: Distribution::Constant { seconds: 1.0 },
            factors: Vec::new(),
            starts: Vec::new(),
            changes: Vec::new(),
            network: Network::default(),
            faults: Faults::default(),
            read_my_writes: false,
            until: Until::Clocks(100),
            problem: None,
            optimizer: Optimizer::Sgd { weight_decay: 0.0 },
            learning_rate: 0.1,
            schedule: Schedule::Constant,
            evaluate_every: None,
        }
    }

    /// Simulates it.
    ///
    /// # Errors
    /// A setting of it, or of its scheme, cannot be; the scheme broke a promise ([`SimError::Broken`]), waits for ever
    /// ([`SimError::Stuck`]) or gave up.
    pub fn run(self) -> Result<ClusterReport, SimError> {
        self.check()?;
        self.scheme.check()?;
        let scheme = self.scheme.clone();
        if let Some(SchemeConfig::DsSync { group, partition, .. }) = scheme.built_in() {
            let groups = Groups::new(self.workers, group, partition)?;
            let members = |worker, round| groups.members(worker, round).collect();
            return SimEngine::new(self, None, Some(&members), &mut |_| scheme.worker()).run();
        }
        let start = Start { workers: self.workers, clock: Clock::new(0), newest: Version::new(0) };
        let server = damped(summed(scheme.server(start)?, self.additive), self.damping, start.newest);
        SimEngine::new(self, Some(server), None, &mut |_| scheme.worker()).run()
    }

    /// Simulates it with other halves than its scheme's, held to the promises of its scheme. Nothing is damped
    /// but what `server` damps itself.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn run_with(
        self,
        server: Box<dyn ServerScheme>,
        worker: &mut dyn FnMut(WorkerId) -> Box<dyn WorkerScheme>,
    ) -> Result<ClusterReport, SimError> {
        self.check()?;
        SimEngine::new(self, Some(server), None, worker).run()
    }

    /// Simulates it without a server, in groups of the caller's own: `members` says which workers average with
    /// `worker` in a round, `worker` itself among them.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn run_in_groups(
        self,
        members: &dyn Fn(usize, u64) -> Vec<usize>,
        worker: &mut dyn FnMut(WorkerId) -> Box<dyn WorkerScheme>,
    ) -> Result<ClusterReport, SimError> {
        self.check()?;
        SimEngine::new(self, None, Some(members), worker).run()
    }

    /// Returns the fault of its settings, if there is one.
    ///
    /// # Errors
    /// The first setting that cannot be, with the values that can.
    pub fn check(&self) -> Result<(), SimError> {
        let Faults { lifetime, downtime, .. } = &self.faults;
        let distributions =
            [Some(&self.compute), Some(&self.network.latency), lifetime.as_ref(), downtime.as_ref()];
        distributions.into_iter().flatten().try_for_each(Distribution::check)?;
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let bandwidth = |value: Option<f64>| value.is_none_or(positive);
        let probability = |value: f64| (0.0..1.0).contains(&value);
        let faults = &self.faults;
        let holds = |sound: bool, setting, value: &dyn ToString, remedy| match sound {
            true => Ok(()),
            false => Err(SimError::Setting { setting, value: value.to_string(), remedy }),
        };
        let workers = 1..=super::MAX_WORKERS;
        holds(workers.contains(&self.workers), "workers", &self.workers, "use 1 to 1000000")?;
        holds(
            self.compute.mean() > 0.0,
            "compute",
            &self.compute,
            "if nothing took time, time would never pass: use a distribution with a mean above 0",
        )?;
        let lives = lifetime.as_ref().is_none_or(|distribution| distribution.mean() > 0.0);
        let value = lifetime.as_ref().map_or(String::new(), Distribution::to_string);
        holds(
            lives,
            "lifetime",
            &value,
            "no worker would ever do anything: use a distribution with a mean above 0",
        )?;
        for factor in &self.factors {
            holds(positive(*factor), "a factor of a worker's times", factor, "it is finite and above 0")?;
        }
        for start in &self.starts {
            holds(
                not_negative(*start),
                "the start of a worker",
                start,
                "it is in seconds, finite, at least 0",
            )?;
        }
        for change in &self.changes {
            holds(
                positive(change.factor),
                "the factor of a change",
                &change.factor,
                "it is finite and above 0",
            )?;
            holds(not_negative(change.at), "the time of a change", &change.at, "it is finite, at least 0")?;
            self.holds_workers("the workers of a change", &change.workers)?;
        }
        let Network { worker_bandwidth, server_bandwidth, .. } = self.network;
        for (setting, value) in
            [("worker bandwidth", worker_bandwidth), ("server bandwidth", server_bandwidth)]
        {
            let text = value.unwrap_or_default();
            holds(bandwidth(value), setting, &text, "it is in bytes per second, finite and above 0")?;
        }
        holds(probability(faults.loss), "loss", &faults.loss, "a probability from 0 to below 1")?;
        holds(probability(faults.replay), "replay", &faults.replay, "a probability from 0 to below 1")?;
        let times = [
            ("retransmission", faults.retransmission),
            ("detection", faults.detection),
            ("evaluate_every", self.evaluate_every.unwrap_or(0.0)),
        ];
        for (setting, value) in times {
            holds(not_negative(value), setting, &value, "it is in seconds, finite, at least 0")?;
        }
        for crash in &faults.crashes {
            holds(crash.worker < self.workers, "the worker of a crash", &crash.worker, FEWER)?;
            let times = not_negative(crash.at) && crash.back.is_none_or(|back| back >= crash.at);
            holds(times, "the time of a crash", &crash.at, "it is at least 0, and the return comes later")?;
        }
        for partition in &faults.partitions {
            self.holds_workers("the workers of a partition", &partition.workers)?;
            let times = not_negative(partition.from) && partition.until >= partition.from;
            holds(times, "the time of a partition", &partition.from, "it is at least 0, and the end later")?;
        }
        let has_server = self.scheme.built_in().is_none_or(|scheme| scheme.has_server());
        let rate = self.learning_rate;
        holds(rate.is_finite() && rate > 0.0, "learning_rate", &rate, "it is finite and above 0")?;
        self.optimizer.check().map_err(|error| SimError::Setting {
            setting: error.option,
            value: error.value.to_string(),
            remedy: error.reason,
        })?;
        holds(
            matches!(self.optimizer, Optimizer::Sgd { .. })
                || self.scheme.built_in().is_none_or(|scheme| !scheme.requires_sgd()),
            "optimizer",
            &format!("{} with {}", self.optimizer.name(), self.scheme),
            "the scheme takes each update for a step of plain SGD: use sgd",
        )?;
        holds(
            self.optimizer.step_of_sgd(rate).is_some()
                || self.scheme.built_in().is_none_or(|scheme| !scheme.requires_step_size()),
            "optimizer",
            &format!("{} with {}", self.optimizer.name(), self.scheme),
            "the scheme takes each update for a step along the gradient: use sgd or momentum",
        )?;
        let has_local_steps = self.scheme.built_in().is_some_and(|scheme| scheme.local_steps() > 1);
        let (schedule, falls) = (self.schedule.to_string(), self.schedule != Schedule::Constant);
        holds(
            self.schedule.check().is_ok(),
            "schedule",
            &schedule,
            "see slackline::optim::Schedule for what it may be",
        )?;
        holds(
            !(falls && self.read_my_writes),
            "schedule",
            &format!("{schedule} with read_my_writes"),
            "a worker does not know the step size that its gradient will be folded in with: leave out one of the two",
        )?;
        holds(
            !(falls && has_local_steps),
            "schedule",
            &format!("{schedule} with local steps"),
            "those are made with the first step size: leave out one of the two",
        )?;
        holds(
            !self.read_my_writes || matches!(self.optimizer, Optimizer::Sgd { .. }),
            "read_my_writes",
            &"used with this optimiser",
            "what a gradient will do to the parameters is known before only with SGD",
        )?;
        holds(
            !self.read_my_writes || self.scheme.needs().folds_all_in_order,
            "read_my_writes",
            &format!("used with {}", self.scheme),
            "what a worker wrote is not always folded in there, or not in order or with this weight: leave it out, or \
             use bsp, asp, ssp, essp, bap or vap",
        )?;
        holds(
            !self.read_my_writes || self.damping == Damping::None,
            "read_my_writes",
            &"used with damping",
            "the server folds in less of a gradient than its worker has added: leave out one of the two",
        )?;
        holds(
            !has_local_steps || matches!(self.optimizer, Optimizer::Sgd { .. }),
            "optimizer",
            &format!("{} with local steps", self.optimizer.name()),
            "those are plain SGD on a worker's own copy, and the server's are to be the same: use sgd",
        )?;
        if let Some(racks) = &self.network.racks {
            let remedy = "messages to a server take no link of a rack: use ds-sync, or leave it out";
            holds(!has_server, "racks", &format!("used with {}", self.scheme), remedy)?;
            racks.check(self.workers)?;
        }
        holds(
            !self.additive || (has_server && adds_up(&self.scheme.needs())),
            "additive",
            &format!("used with {}", self.scheme),
            NO_SUM,
        )?;
        holds(
            self.damping == Damping::None || has_server,
            "damping",
            &format!("used with {}", self.scheme),
            "it has no server that would weigh gradients: leave it out",
        )?;
        self.check_end()
    }

    fn check_end(&self) -> Result<(), SimError> {
        let fault = |value: &dyn ToString, remedy| {
            Err(SimError::Setting { setting: "until", value: value.to_string(), remedy })
        };
        match self.until {
            Until::Clocks(0) | Until::Versions(0) => {
                fault(&0, "it would end before it begins: use 1 or more")
            }
            Until::Clocks(clocks) if self.scheme.needs().interrupts => fault(
                &format!("{clocks} clocks under {}", self.scheme),
                "it interrupts workers, and some may never complete a clock: use versions or seconds",
            ),
            Until::Seconds(value) | Until::Loss { within: value, .. }
                if !value.is_finite() || value <= 0.0 =>
            {
                fault(&value, "it is in seconds, finite and above 0")
            }
            Until::Loss { target, .. } if self.problem.is_none() => {
                fault(&format!("a loss of {target}"), "there is no loss without a problem: set one")
            }
            _ => Ok(()),
        }
    }

    fn holds_workers(&self, setting: &'static str, workers: &Range<usize>) -> Result<(), SimError> {
        if workers.start <= workers.end && workers.end <= self.workers {
            return Ok(());
        }
        let value = match workers.len() {
            0 => format!("{}..{}", workers.start, workers.end),
            1 => workers.start.to_string(),
            _ => format!("{}-{}", workers.start, workers.end - 1),
        };
        Err(SimError::Setting { setting, value, remedy: FEWER })
    }
}
