//! The scheduler: runs the nodes by turns as the network's time passes, and makes the faults of the plan.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use super::judge::FabricJudge;
use super::net::{HostId, Net, NetEvent, Outside, SharedNet, lock};
use super::nodes::Incarnation;
use super::plan::{Plan, PlannedFault};
use super::random::EventHash;
use super::transport::SimTransport;
use crate::node::runtime::Runtime;
use crate::scheme::AnyScheme;
use crate::time::{Duration, Instant};

/// The results of a run.
pub(super) struct RunOutcome {
    pub(super) trace: EventHash,
    pub(super) events: u64,
    pub(super) virtual_time: Duration,
    pub(super) versions: u64,
    pub(super) views: u64,
    pub(super) errors: u64,
}

/// More events than any run that ends has: thousands are usual.
const EVENTS_MAX: u64 = 20_000_000;

struct FabricScheduler {
    plan: Rc<Plan>,
    net: SharedNet,
    judge: Rc<RefCell<FabricJudge>>,
    /// The programs of all hosts: one for each incarnation.
    programs: Vec<Option<Program>>,
}

/// The program of one host, which runs until it lets time pass whenever it is polled.
type Program = Pin<Box<dyn Future<Output = ()>>>;

/// Plays one run to its end, held to the promises of `promised`.
pub(super) fn play(seed: u64, plan: Plan, promised: AnyScheme) -> Result<RunOutcome, String> {
    let net = Arc::new(Mutex::new(Net::new(seed, plan.distribution.clone(), false)));
    let plan = Rc::new(plan);
    let judge = Rc::new(RefCell::new(FabricJudge::new(&plan, promised)));
    let mut scheduler = FabricScheduler {
        plan: Rc::clone(&plan),
        net: Arc::clone(&net),
        judge: Rc::clone(&judge),
        programs: Vec::new(),
    };
    let played = catch_unwind(AssertUnwindSafe(|| scheduler.play()));
    let laggards = judge.borrow().laggards();
    scheduler.programs.clear();
    judge.borrow_mut().check_records();
    let net = lock(&net);
    let judge = judge.borrow();
    let at = Duration::from_nanos(net.now);
    match (played, judge.failure()) {
        (Err(panic), _) => Err(format!("a node panicked after {at:?}: {}", message(&*panic))),
        (Ok(_), Some(failure)) => Err(format!("after {at:?}: {failure}")),
        (Ok(Err(stuck)), None) => Err(format!("after {at:?}: {stuck}; {laggards} not there")),
        (Ok(Ok(())), None) => {
            let mut trace = net.trace;
            trace.note(judge.trace.hash());
            Ok(RunOutcome {
                trace,
                events: net.events,
                virtual_time: at,
                versions: judge.published,
                views: judge.views,
                errors: judge.errors,
            })
        }
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say why")
}

impl FabricScheduler {
    fn play(&mut self) -> Result<(), String> {
        for node in 0..self.plan.nodes() {
            self.start(node);
        }
        for (index, (at, _)) in self.plan.faults.iter().enumerate() {
            lock(&self.net).schedule(*at, NetEvent::PlannedFault { index });
        }
        loop {
            let (next, now, events, registrations) = {
                let mut net = lock(&self.net);
                let next = net.next();
                (next, net.now, net.events, std::mem::take(&mut net.registrations))
            };
            for nanos in registrations {
                self.judge.borrow_mut().held_up(Duration::from_nanos(nanos));
            }
            match next {
                None => return Err("nothing moves any more".into()),
                Some(Outside::Wake(host)) => self.resume(host),
                Some(Outside::Beat(heartbeat)) => self.beat(heartbeat),
                Some(Outside::PlannedFault(index)) => self.strike(index),
            }
            let evictions = std::mem::take(&mut lock(&self.net).evictions);
            for node in evictions {
                self.judge.borrow_mut().evicted(node, Instant::from_nanos(now));
            }
            if self.judge.borrow().failure().is_some() || self.is_empty() {
                return Ok(());
            }
            if now > self.plan.limit {
                return Err("it does not converge".into());
            }
            if events > EVENTS_MAX {
                return Err(format!("{events} events, and no end"));
            }
        }
    }

    /// True if all programs have ended.
    fn is_empty(&self) -> bool {
        self.programs.iter().all(Option::is_none)
    }

    /// Begins an incarnation of `node`.
    fn start(&mut self, node: usize) {
        let mut net = lock(&self.net);
        let host = net.add_host(node);
        let delay = net.random.between(0, 200_000);
        net.sleep(host, delay, false);
        drop(net);
        let incarnation = Incarnation {
            plan: Rc::clone(&self.plan),
            judge: Rc::clone(&self.judge),
            net: Arc::clone(&self.net),
            node,
            host,
            runtime: Runtime::of(&SimTransport::of(&self.net, host)),
            connecting: Cell::new(None),
        };
        self.programs.push(Some(Box::pin(incarnation.run())));
    }

    fn resume(&mut self, host: HostId) {
        let Some(program) = &mut self.programs[host] else { return };
        if program.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.programs[host] = None;
            let mut net = lock(&self.net);
            // It has closed its connections.
            net.hosts[host].is_alive = false;
        }
    }

    fn beat(&mut self, heartbeat: usize) {
        let mut net = lock(&self.net);
        let heart = &mut net.hearts[heartbeat];
        heart.count += 1;
        let (count, interval, heartbeat_word) = (heart.count, heart.interval, heart.heartbeat_word.take());
        drop(net);
        let Some(mut heartbeat_word) = heartbeat_word else { return };
        // A heartbeat word whose connection is gone has no peer to tell.
        if heartbeat_word.set(count).is_ok() {
            let mut net = lock(&self.net);
            net.hearts[heartbeat].heartbeat_word = Some(heartbeat_word);
            net.schedule_in(interval, NetEvent::Beat { heartbeat });
        }
    }

    fn strike(&mut self, index: usize) {
        let (_, fault) = self.plan.faults[index];
        let mut net = lock(&self.net);
        let now = net.at();
        let after = |nanos| now + Duration::from_nanos(nanos);
        match fault {
            PlannedFault::Crash { node, notice_max } => {
                let Some(host) = net.living(node) else { return };
                if self.judge.borrow().is_over() {
                    return;
                }
                let (least, _) = net.distribution.notice;
                let usual = std::mem::replace(&mut net.distribution.notice, (least, notice_max.max(least)));
                net.kill(host);
                net.distribution.notice = usual;
                drop(net);
                // Its resources are dropped without a message: to the network it is dead already.
                self.programs[host] = None;
                let later = &self.plan.faults[index..];
                let returns = later
                    .iter()
                    .any(|(_, fault)| matches!(fault, PlannedFault::Return { node: back } if *back == node));
                let mut judge = self.judge.borrow_mut();
                if let Some(worker) = node.checked_sub(self.plan.servers)
                    && worker < self.plan.workers
                {
                    judge.crashed(worker, returns);
                } else if self.plan.is_owner(node) {
                    if node < self.plan.servers {
                        judge.ended(node);
                    }
                    judge.harm(now);
                    judge.causes.all_lost(now);
                }
                judge.unrest(now);
            }
            PlannedFault::Return { node } => {
                let is_free = net.living(node).is_none();
                drop(net);
                if is_free && !self.judge.borrow().is_over() {
                    self.judge.borrow_mut().unrest(now);
                    if self.plan.is_owner(node) {
                        // Words out of its new memory name another incarnation.
                        self.judge.borrow_mut().causes.all_lost(now);
                    }
                    self.start(node);
                }
            }
            PlannedFault::Freeze { node, nanos } => {
                let Some(host) = net.living(node) else { return };
                net.freeze(host, nanos);
                self.judge.borrow_mut().freeze(node, now, after(nanos));
            }
            PlannedFault::Stall { from, to, nanos } => {
                net.stall(from, to, nanos);
                let mut judge = self.judge.borrow_mut();
                judge.harm(after(nanos));
                judge.causes.outage(from, now, after(nanos));
                judge.causes.outage(to, now, after(nanos));
            }
            PlannedFault::Cut { one: one_node, other: other_node } => {
                if let (Some(one), Some(other)) = (net.living(one_node), net.living(other_node)) {
                    net.cut(one, other);
                    let notice = Duration::from_nanos(net.distribution.notice.1);
                    let mut judge = self.judge.borrow_mut();
                    judge.harm(now);
                    judge.causes.lost(one_node, now + notice);
                    judge.causes.lost(other_node, now + notice);
                }
            }
            PlannedFault::Pin { node, nanos } => {
                if let Some(host) = net.living(node) {
                    net.pin(host, nanos);
                }
            }
            PlannedFault::Calm => {
                net.mend();
                self.judge.borrow_mut().calm(now);
            }
        }
    }
}
