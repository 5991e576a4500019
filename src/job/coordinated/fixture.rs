//! A coordinated job for tests, whose processes are started by others.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use super::{Caller, ComputeDevice, Coordination, CoordinatorError, Members, ServerOrder, Wish, WorkerOrder};
use crate::job::{ErrorReport, JobPlan, Role};
use crate::kernel::{Optimizer, Schedule};
use crate::node::NonFinite;
use crate::scheme::{Damping, SchemeConfig};
use crate::table::{ElementType, Encoding, Table};
use crate::transport::TransportKind;

pub(super) const WORKERS: usize = 2;
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// A caller that starts no processes, keeps the warnings, and may wish the job to stop.
#[derive(Default)]
pub(super) struct Watches {
    pub(super) warned: Vec<String>,
    pub(super) stops: bool,
}

impl Caller for Watches {
    type Error = CoordinatorError;

    fn explain(&mut self, error: CoordinatorError) -> CoordinatorError {
        error
    }

    fn command(&mut self, _: Role, _: SocketAddr) -> Result<Option<Command>, ErrorReport> {
        Ok(None)
    }

    fn tell(&mut self, _: &str) {}

    fn warn(&mut self, line: &str) {
        self.warned.push(line.into());
    }

    fn turn(&mut self, _: &Members<'_>) -> Result<Wish, CoordinatorError> {
        Ok(if self.stops { Wish::Stop } else { Wish::GoOn })
    }
}

/// A job of one server and two workers, with host memory, over shared memory.
pub(super) fn coordination(elements: usize, clocks: u64) -> Coordination {
    let plan = JobPlan::servers(1).clocks(clocks).timeout(TIMEOUT);
    let (listen, device) = (vec![TransportKind::Shm], ComputeDevice::Host);
    let table = Table::flat(elements as u64, ElementType::F32).unwrap();
    let (scheme, lease) = (SchemeConfig::Bsp, Duration::from_secs(3));
    let server = ServerOrder {
        plan: plan.clone(),
        listen,
        device,
        table,
        shard: 0,
        scheme,
        damping: Damping::None,
        additive: false,
        workers: WORKERS,
        peers: 8,
        optimizer: Optimizer::Sgd { weight_decay: 0.0 },
        learning_rate: 0.5,
        schedule: Schedule::Constant,
        threads: 1,
        sleeps: false,
        checksums: false,
        checkpoint: None,
        moments: false,
        non_finite: NonFinite::Allow,
        lease,
        gradients: None,
    };
    let worker = WorkerOrder {
        plan,
        workers: WORKERS,
        worker: 0,
        device,
        scheme,
        encoding: Encoding::F32,
        sleeps: false,
        checksums: false,
        learning_rate: 0.5,
        lease,
        own_step: None,
        group: None,
        program: String::new(),
    };
    Coordination {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        secret: None,
        server: Some(server),
        worker,
        programs: vec![String::new(); WORKERS],
        initial: vec![1.0; elements].into(),
        restarts: 0,
        strict_checkpoints: false,
        awaits_others: false,
    }
}
