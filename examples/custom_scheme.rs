//! A scheme written outside of the library, SSP whose bound shrinks, under a real server and in the simulator.

use std::time::Duration;

use slackline::{
    Address, Clock, ElementType, Error, Instant, Server, ServerOptions, Shm, Table, Transport, Worker,
    WorkerOptions, scheme::*,
};

const TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const NAME: &str = "shrinking-ssp";
pub(crate) const SCHEME: ShrinkingSsp = ShrinkingSsp { first: 4, every: 10 };

/// A copy may be `first` clocks behind at the beginning, and one less after each `every` clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShrinkingSsp {
    first: u64,
    every: u64,
}

impl ShrinkingSsp {
    pub(crate) fn bound(&self, clock: Clock) -> u64 {
        self.first.saturating_sub(clock.get() / self.every)
    }

    pub(crate) fn make(settings: &str) -> Result<AnyScheme, SchemeConfigError> {
        let numbers: Vec<u64> = settings.split(", ").filter_map(|number| number.parse().ok()).collect();
        let reason = format!("cannot read {settings:?}: write two numbers, such as 4, 10");
        match numbers[..] {
            [first, every] if every > 0 => Ok(ShrinkingSsp { first, every }.into()),
            _ => Err(SchemeConfigError::Custom { scheme: NAME.into(), reason }),
        }
    }
}

impl Scheme for ShrinkingSsp {
    fn name(&self) -> &str {
        NAME
    }

    fn settings(&self) -> String {
        format!("{}, {}", self.first, self.every)
    }

    fn needs(&self) -> Needs {
        Needs { staleness: Some(self.first), folds_all_in_order: true, ..Needs::default() }
    }

    /// The server folds each gradient as it comes, as that of SSP does.
    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        Scheme::server(&SchemeConfig::Asp, start)
    }

    fn worker(&self) -> Box<dyn WorkerScheme> {
        Box::new(Half { scheme: *self, clock: Clock::new(0), held: None, due: None })
    }
}

/// The worker's half: it computes on its copy while that is fresh enough for its clock.
struct Half {
    scheme: ShrinkingSsp,
    clock: Clock,
    held: Option<Clock>,
    due: Option<WorkerAction>,
}

impl WorkerScheme for Half {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => (self.clock, self.held) = (clock, None),
            WorkerEvent::Holds { smallest_clock, .. } => self.held = Some(smallest_clock),
            WorkerEvent::Published { .. } => self.clock = self.clock.next(),
            _ => return,
        }
        let needed = Clock::new(self.clock.get().saturating_sub(self.scheme.bound(self.clock)));
        self.due = Some(match self.held {
            Some(held) if held >= needed => WorkerAction::Compute,
            _ => WorkerAction::Refresh { bound: Bound::clock(needed) },
        });
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        self.due.take()
    }
}

/// Trains with two workers, which learn the scheme from the server, and returns the parameters.
pub(crate) fn train<T: Transport>(new: fn() -> T, at: Address) -> Result<Vec<f32>, Error> {
    let (table, options) = (Table::flat(16, ElementType::F32)?, ServerOptions::new(SCHEME, 2, 0.1));
    let mut server = Server::new(new(), &at, table, &[0.0; 16], options)?;
    let address = [server.address()];
    let work = || -> Result<(), Error> {
        let schemes = Registry::default().with(NAME, ShrinkingSsp::make);
        let options = WorkerOptions { schemes, ..WorkerOptions::default() };
        let mut worker = Worker::connect(new(), &address, options, TIMEOUT)?;
        for _ in 0..60 {
            let mut step = worker.step(TIMEOUT)?;
            assert!(step.view().staleness() <= SCHEME.bound(step.view().clock));
            let (parameters, gradient) = step.borrow()?;
            gradient.iter_mut().zip(parameters).for_each(|(g, p)| *g = p - 1.0);
            step.publish(None, TIMEOUT)?;
        }
        worker.flush(TIMEOUT)
    };
    std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        server.serve(2, TIMEOUT)?;
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))?;
        server.parameters()
    })
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("trained: {:?}", train(Shm::new, Address::random())?);
    println!("simulated: {} s", slackline::sim::Cluster::new(SCHEME, 8, 1).run()?.end);
    Ok(())
}
