//! The worker loop of every job: it connects to the servers, and connects again to servers that come back.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::JobError;
use super::member::{Conversation, End, JobMember};
use super::plan::{JobPlan, deadline_after};
use super::rendezvous::MemberRole;
use crate::clock::Clock;
#[cfg(feature = "cuda")]
use crate::cuda::{GpuSlice, GpuStream};
use crate::diagnostic::Diagnostic;
use crate::node::{Error, Step, Worker, WorkerOptions, now};
use crate::transport::mixed::Mixed;
use crate::transport::{Address, ConnectError, TransportKind};

/// The longest time that the first attempt to connect to the servers may take: a server may be about to announce a new
/// address. Each attempt without an answer in its time doubles the time of the next attempt, since a server may take
/// long to register its memory.
pub(super) const ATTEMPT: Duration = Duration::from_secs(2);

/// The time between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Most refused or failed requests at one clock after which a worker connects again. A server that ends refuses
/// requests. A server whose memory is not as this worker believes refuses them for ever, and so may a device that has
/// lost its link.
const FAILURES_MAX: u32 = 3;

/// The longest time for which a worker that has finished does not look after its connections.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// True if the error may pass once a server is replaced, or comes of the end of the job.
pub(super) fn is_passing(error: &Error) -> bool {
    error.is_loss() || matches!(error, Error::Deadline { .. } | Error::Connect(_))
}

/// True if an attempt to connect ended because its time was over.
fn has_no_answer(error: &Error) -> bool {
    match error {
        Error::Deadline { .. } => true,
        // An attempt that the system held up all the time may succeed later, too.
        Error::Connect(ConnectError::System { source, .. }) => {
            source.kind() == ErrorKind::TimedOut || source.raw_os_error() == Some(libc::ETOOMANYREFS)
        }
        _ => false,
    }
}

/// Returns the error to report of two attempts. The last one may have had next to no time: where it had no answer, the
/// error of the one before says more.
fn telling(before: Option<Error>, last: Error) -> Error {
    before.filter(|_| has_no_answer(&last)).unwrap_or(last)
}

impl<C: Conversation> JobMember<C> {
    /// Connects a worker to the servers once all of them are up, at most the plan's timeout.
    pub(super) fn connect(&self, plan: &JobPlan, options: WorkerOptions) -> Result<Worker<Mixed>, JobError> {
        self.with_servers(plan, |addresses, left| {
            Worker::connect(self.transports.open(), addresses, options.clone(), left)
        })
    }

    /// Connects a worker again once all servers are up, wherever they are by then, at most the plan's timeout.
    pub(super) fn reconnect(&self, plan: &JobPlan, worker: &mut Worker<Mixed>) -> Result<(), JobError> {
        self.with_servers(plan, |addresses, left| worker.reconnect(addresses, left))
    }

    /// Waits until all servers are up and connects to them by `connect`, which is given their addresses and the time
    /// that is left. Tries again while servers may still be replaced, and where no path leads by RDMA.
    fn with_servers<R>(
        &self,
        plan: &JobPlan,
        mut connect: impl FnMut(&[Address], Duration) -> Result<R, Error>,
    ) -> Result<R, JobError> {
        let deadline = deadline_after(plan.timeout);
        let (mut before, mut attempt) = (None, ATTEMPT);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let choices = self.reach(MemberRole::Server, plan.servers as usize, plan.transport, left)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let addresses: Vec<Address> = choices.iter().map(|choice| choice.address.clone()).collect();
            // There may be no path by RDMA, and then another transport takes a part of the time, too.
            let by_rdma = choices.iter().any(|choice| choice.kind == TransportKind::Verbs);
            let may_pass_over = plan.transport.is_none() && by_rdma;
            // The address of a server that has just died may not have been replaced yet.
            let within = if plan.reconnect || may_pass_over { left.min(attempt) } else { left };
            let error = match connect(&addresses, within) {
                Ok(connected) => {
                    self.no_paths().forget_passing();
                    let choices = (0..).zip(choices).collect();
                    self.tell(|conversation| conversation.connected(MemberRole::Server, choices));
                    return Ok(connected);
                }
                Err(Error::Connect(error)) if self.pass_over(plan, &error).is_some() => continue,
                Err(error) => {
                    attempt = if has_no_answer(&error) { attempt.saturating_mul(2) } else { attempt };
                    telling(before.take(), error)
                }
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let may_pass = match plan.reconnect {
                true => is_passing(&error),
                false => may_pass_over && (has_no_answer(&error) || error.retry_after().is_some()),
            };
            if !may_pass || left.is_zero() {
                return Err(error.into());
            }
            tracing::debug!(%error, "connecting again");
            before = Some(error);
            // Otherwise a server that refuses permanently would be asked a thousand times a second.
            std::thread::sleep(left.min(TRY_EVERY));
        }
    }

    /// Says that this worker has finished, and looks after its connections until the membership ends, at most
    /// `timeout`.
    pub(super) fn attend(&self, worker: &mut Worker<Mixed>, timeout: Duration) -> Result<Option<End>, Error> {
        self.tell(C::finished);
        let deadline = deadline_after(timeout);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(end) = self.wait_for_the_end(left.min(LOOK_EVERY)) {
                return Ok(Some(end));
            }
            if let Err(error) = worker.poll(now()) {
                // A server that hears of the end before this worker leaves at once.
                let moment = if is_passing(&error) { ATTEMPT } else { Duration::ZERO };
                return self.wait_for_the_end(moment).map_or(Err(error), |end| Ok(Some(end)));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

/// A worker that connects again to servers that come back, if the plan says so.
pub(super) struct WorkerLoop<C: Conversation> {
    member: Arc<JobMember<C>>,
    plan: JobPlan,
    pub(super) worker: Worker<Mixed>,
    loss: ServerLoss,
}

/// The loss of a server that the next step has to recover from.
#[derive(Debug)]
struct ServerLoss {
    /// Servers that are lost may come back.
    reconnect: bool,
    error: Option<Error>,
    /// The clock of the worker, and the requests that were refused or failed since it came there.
    clock: Clock,
    failures: u32,
}

impl ServerLoss {
    fn new(reconnect: bool, clock: Clock) -> ServerLoss {
        ServerLoss { reconnect, error: None, clock, failures: 0 }
    }

    /// Keeps the loss of a server that may come back: the result is `None` then. Any other error is passed on.
    fn keep<R>(&mut self, result: Result<R, Error>) -> Result<Option<R>, Error> {
        match result {
            Err(error) if self.reconnect && error.is_loss() => {
                self.failures += u32::from(error.is_failed_request());
                if self.failures > FAILURES_MAX {
                    return Err(error);
                }
                self.error = Some(error);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// The worker is connected again, at this clock.
    fn recovered(&mut self, clock: Clock) {
        self.error = None;
        self.reach(clock);
    }

    /// The worker is at this clock: failures at earlier clocks do not count any more.
    fn reach(&mut self, clock: Clock) {
        if clock > self.clock {
            (self.clock, self.failures) = (clock, 0);
        }
    }
}

impl<C: Conversation> WorkerLoop<C> {
    /// The loop of a worker that is connected.
    pub(super) fn new(member: Arc<JobMember<C>>, plan: JobPlan, worker: Worker<Mixed>) -> WorkerLoop<C> {
        let loss = ServerLoss::new(plan.reconnect, worker.clock());
        WorkerLoop { member, plan, worker, loss }
    }

    /// Connects again if a server was lost, and then waits as the scheme says for parameters and begins the next clock
    /// on them: [`step`](Self::step) lends it. False once all clocks of the plan are done and all gradients applied.
    pub(super) fn begin(&mut self) -> Result<bool, JobError> {
        self.while_connected(|worker, plan| {
            // The clock of the worker says which step it is at: it may begin late, and after a loss it goes on where
            // the servers are.
            let is_done = plan.clocks.is_some_and(|clocks| worker.clock().get() >= clocks);
            match is_done {
                true => worker.flush(plan.timeout)?,
                false => drop(worker.step(plan.timeout)?.suspend()),
            }
            Ok(!is_done)
        })
    }

    /// Connects again if a server was lost, and then waits until all gradients are applied.
    pub(super) fn flush(&mut self) -> Result<(), JobError> {
        self.while_connected(|worker, plan| worker.flush(plan.timeout))
    }

    /// Connects again if a server was lost, and then does `part`; both again where that loses a server that may come
    /// back.
    fn while_connected<R>(
        &mut self,
        part: impl Fn(&mut Worker<Mixed>, &JobPlan) -> Result<R, Error>,
    ) -> Result<R, JobError> {
        loop {
            self.recover()?;
            self.loss.reach(self.worker.clock());
            let done = part(&mut self.worker, &self.plan);
            if let Some(done) = self.loss.keep(done)? {
                return Ok(done);
            }
        }
    }

    /// The step that [`begin`](Self::begin) has begun.
    pub(super) fn step(&mut self) -> Result<LoopStep<'_>, Error> {
        Ok(LoopStep { step: self.worker.resume()?, timeout: self.plan.timeout, loss: &mut self.loss })
    }

    /// Says that this worker has finished and stays until the membership ends: while it is in, the others' gradients
    /// keep their weight. `None` if a server was lost that may come back, which waits for all workers and may lack this
    /// one's last gradients: begin again.
    pub(super) fn attend(&mut self) -> Result<Option<End>, Error> {
        loop {
            let attended = self.member.attend(&mut self.worker, self.plan.timeout);
            match self.loss.keep(attended)? {
                Some(None) => {}
                Some(end) => return Ok(end),
                None => return Ok(None),
            }
        }
    }

    /// Connects again if a server was lost.
    fn recover(&mut self) -> Result<(), JobError> {
        if let Some(error) = &self.loss.error {
            tracing::warn!(%error, "connecting again");
            self.member.reconnect(&self.plan, &mut self.worker)?;
            self.loss.recovered(self.worker.clock());
        }
        Ok(())
    }

    /// True if a server was lost and this worker is not connected again.
    pub(super) fn is_lost(&self) -> bool {
        self.loss.error.is_some()
    }
}

/// One clock of a worker whose servers may be lost and come back.
pub(super) struct LoopStep<'a> {
    pub(super) step: Step<'a, Mixed>,
    timeout: Duration,
    loss: &'a mut ServerLoss,
}

impl LoopStep<'_> {
    /// Publishes the gradient, in the background where the scheme goes on meanwhile: false if a server was lost that
    /// may come back.
    pub(super) fn publish(self, loss: Option<f32>) -> Result<bool, Error> {
        let published = self.step.publish_in_background(loss, self.timeout);
        Ok(self.loss.keep(published)?.is_some())
    }

    /// Publishes the gradient out of memory of a GPU: false if a server was lost that may come back.
    #[cfg(feature = "cuda")]
    pub(super) fn publish_from_gpu(
        self,
        from: &GpuSlice,
        stream: &GpuStream,
        loss: Option<f32>,
    ) -> Result<bool, Error> {
        let published = self.step.publish_from_gpu(from, stream, loss, self.timeout);
        Ok(self.loss.keep(published)?.is_some())
    }

    /// Abandons the clock, which is begun again.
    pub(super) fn abandon(self) -> Result<(), Error> {
        let abandoned = self.step.abandon();
        self.loss.keep(abandoned).map(drop)
    }

    /// Ends the clock with an error of its computation, unless that is the loss of a server that may come back.
    pub(super) fn fail(self, error: Error) -> Result<(), Error> {
        drop(self.step);
        self.loss.keep(Err::<(), _>(error)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::messages::{EndOnly, FromCoordinator, encode};
    use crate::job::rendezvous::{Host, Hub, HubOptions, Introduction};
    use crate::node::{Server, ServerOptions};
    use crate::param::PullError;
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::transport::{CompletionError, Disconnected};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A member of this role, while the thread of a test polls the hub.
    fn join(hub: &mut Hub, role: MemberRole) -> JobMember<EndOnly> {
        let (address, introduction) = (hub.address().to_string(), Introduction::new(role, Host::own()));
        let join = || JobMember::join(&address, introduction, None, EndOnly::default(), PATIENCE);
        std::thread::scope(|scope| {
            let joining = scope.spawn(join);
            poll_until(hub, || joining.is_finished());
            joining.join().unwrap().unwrap()
        })
    }

    fn poll_until(hub: &mut Hub, until: impl Fn() -> bool) {
        while !until() {
            while hub.poll().is_some() {}
            hub.wait(Duration::from_millis(5));
        }
    }

    fn hub() -> Hub {
        Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap()
    }

    #[test]
    fn a_worker_gives_servers_that_take_long_to_answer_ever_more_time() {
        let mut hub = hub();
        let [server, worker] = [MemberRole::Server, MemberRole::Worker].map(|role| join(&mut hub, role));
        server.announce(vec![Address::random()], None);
        let plan = JobPlan::servers(1).reconnect(true).timeout(Duration::from_secs(10));
        let mut given = Vec::new();
        // It registers its memory for that long.
        let connect = |addresses: &[Address], within| {
            given.push(within);
            match within < Duration::from_secs(3) {
                true => Err(Error::Connect(ConnectError::no_answer(addresses[0].clone()))),
                false => Ok(()),
            }
        };
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| worker.with_servers(&plan, connect));
            poll_until(&mut hub, || connecting.is_finished());
            connecting.join().unwrap().unwrap();
        });
        assert_eq!(given, [ATTEMPT, 2 * ATTEMPT]);
    }

    #[test]
    fn waiting_for_servers_takes_from_the_time_for_connecting_to_them() {
        const LATE: Duration = Duration::from_secs(1);
        let mut hub = hub();
        let [server, worker] = [MemberRole::Server, MemberRole::Worker].map(|role| join(&mut hub, role));
        let plan = JobPlan::servers(1).timeout(PATIENCE);
        let mut given = None;
        std::thread::scope(|scope| {
            let connect = |_: &[Address], within| {
                given = Some(within);
                Ok(())
            };
            let connecting = scope.spawn(|| worker.with_servers(&plan, connect));
            let until = Instant::now() + LATE;
            poll_until(&mut hub, || Instant::now() > until);
            server.announce(vec![Address::random()], None);
            poll_until(&mut hub, || connecting.is_finished());
            connecting.join().unwrap().unwrap();
        });
        assert!(given.is_some_and(|within| within < PATIENCE - LATE / 2), "{given:?}");
    }

    #[test]
    fn a_worker_that_loses_the_server_before_it_hears_of_the_end_ends_well() {
        let (mut hub, address) = (hub(), Address::random());
        let member = join(&mut hub, MemberRole::Worker);
        let id = hub.members().next().unwrap().id;
        let table = Table::flat(1, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
        let mut server = Server::new(Mixed::default(), &address, table, &[4.0], options).unwrap();
        std::thread::scope(|scope| {
            let attending = scope.spawn(|| {
                let options = WorkerOptions::new(SchemeConfig::Asp);
                let mut worker = Worker::connect(Mixed::default(), &[address], options, PATIENCE).unwrap();
                member.attend(&mut worker, Duration::MAX)
            });
            assert!(server.drive(|server| server.status().workers == 1, PATIENCE).unwrap());
            drop(server);
            // The word of the end is late.
            let until = Instant::now() + Duration::from_millis(300);
            poll_until(&mut hub, || Instant::now() > until);
            hub.say(id, &encode(&FromCoordinator::Over));
            poll_until(&mut hub, || attending.is_finished());
            assert_eq!(attending.join().unwrap().unwrap(), Some(End::Dismissed));
        });
    }

    #[test]
    fn a_refusal_is_told_though_the_last_attempt_had_no_time_for_an_answer() {
        let address = Address::random();
        let refused = |reason: &str| {
            let (address, reason) = (address.clone(), reason.to_owned());
            Error::Connect(ConnectError::Refused { address, retry_after: None, reason })
        };
        let timed_out = || Error::Connect(ConnectError::no_answer(address.clone()));
        let said = |error: Error| error.to_string();
        assert!(said(telling(Some(refused("another scheme")), timed_out())).contains("another scheme"));
        assert!(said(telling(Some(refused("another scheme")), refused("full"))).contains("full"));
        assert_eq!(said(telling(None, timed_out())), said(timed_out()));
    }

    #[test]
    fn a_lost_server_is_waited_for_only_where_the_plan_says_so() {
        let lost = || Error::ServerLost {
            shard: 0,
            shards: 1,
            address: Address::random(),
            source: Disconnected { reason: "killed" },
        };
        let mut waits = ServerLoss::new(true, Clock::new(0));
        assert!(matches!(waits.keep(Ok(7)), Ok(Some(7))));
        assert!(matches!(waits.keep(Err::<u8, _>(lost())), Ok(None)));
        assert!(waits.error.as_ref().is_some_and(Error::is_loss));
        let replaced = Error::Pull { shard: 0, source: PullError::Epoch { expected: 1, found: 2 } };
        assert!(replaced.is_retryable() && matches!(waits.keep(Err::<u8, _>(replaced)), Ok(None)));
        // As soft-RoCE does where its link goes down.
        let failed = CompletionError::Device { status: 2, vendor_error: 0 };
        let failed = Error::Pull { shard: 0, source: PullError::Completion(failed) };
        assert!(failed.is_retryable() && matches!(waits.keep(Err::<u8, _>(failed)), Ok(None)));
        let other = Error::InFlight { what: "gradient" };
        assert!(waits.keep(Err::<u8, _>(other)).is_err(), "it is no loss");
        let mut ends = ServerLoss::new(false, Clock::new(0));
        assert!(ends.keep(Err::<u8, _>(lost())).is_err() && ends.error.is_none());
    }

    #[test]
    fn a_server_that_refuses_again_and_again_at_one_clock_is_an_error() {
        let refuse = |loss: &mut ServerLoss| {
            let source = PullError::Completion(CompletionError::RemoteAccess);
            loss.keep(Err::<u8, _>(Error::Pull { shard: 0, source }))
        };
        let mut loss = ServerLoss::new(true, Clock::new(0));
        for clock in 1..10 {
            assert!(matches!(refuse(&mut loss), Ok(None)), "servers may end at any clock");
            loss.recovered(Clock::new(clock));
        }
        for _ in 0..FAILURES_MAX {
            assert!(matches!(refuse(&mut loss), Ok(None)));
            loss.recovered(Clock::new(9));
        }
        let mut advanced = ServerLoss { error: None, ..loss };
        let error = refuse(&mut loss).unwrap_err();
        assert!(error.to_string().contains("the target refused access"), "{error}");
        advanced.reach(Clock::new(100_000));
        assert!(matches!(refuse(&mut advanced), Ok(None)), "steps were done since");
    }
}
