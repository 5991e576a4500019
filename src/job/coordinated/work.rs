//! A worker of a coordinated job with servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::member::End;
use super::super::per_host::HostThread;
use super::super::worker_loop::{LoopStep, WorkerLoop};
use super::super::{JobError, LocalSteps};
use super::WorkerOrder;
use super::member::{CoordinatedMember, Talk};
use super::reports::WorkerReport;
#[cfg(feature = "cuda")]
use crate::cuda::{GpuSlice, GpuStream};
use crate::node::{Error, Idle, ShardOptions, Step, Worker, WorkerOptions};
use crate::scheme::SchemeConfig;
use crate::table::Encoding;
use crate::transport::mixed::Mixed;

/// The time between two updates of a worker's report.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(50);

/// The work of a worker of a coordinated job with servers.
pub struct ServerWork {
    member: CoordinatedMember,
    work: WorkerLoop<Talk>,
    gradients: Gradients,
    /// The server of this host, if it is this worker's. It ends after the worker has left.
    _host: Option<HostThread>,
}

/// The question whether to stop, because a server wants the step abandoned. Asking also moves on a gradient that is on
/// its way.
type Stop<'a> = &'a mut dyn FnMut() -> Result<bool, Error>;

/// The computation of one gradient: it is given the number of a batch, the parameters and the memory for the gradient,
/// and returns the loss. Where it may be stopped it is also given the question, and returns `None` once the answer is
/// yes.
type Compute<'a> = &'a mut dyn FnMut(u64, &[f32], &mut [f32], Option<Stop<'_>>) -> Result<Option<f32>, Error>;

/// The computation of one gradient on a GPU: it is given the number of a batch and the question whether to stop.
/// Parameters and gradient are at [`GpuBuffers`].
#[cfg(feature = "cuda")]
type ComputeOnGpu<'a> = &'a mut dyn FnMut(u64, Stop<'_>) -> Result<Option<f32>, Error>;

/// The memory that a computation on a GPU reads and writes: all parameters and the whole gradient, in f32, and the
/// stream that orders it.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub struct GpuBuffers {
    /// The destination of the parameters.
    pub parameters: GpuSlice,
    /// The gradient to publish.
    pub gradient: GpuSlice,
    /// Copies to the parameters precede later work of the stream; the gradient is published behind the stream's work.
    pub stream: GpuStream,
}

/// One step: the loss, or `None` if it was abandoned or its server is lost.
type MakeStep<'a> = &'a mut dyn FnMut(LoopStep<'_>, &mut Gradients) -> Result<Option<f32>, Error>;

/// The reader of a worker's counters, with the mean loss since the last call if there was a gradient.
type Observe<'a> = &'a mut dyn FnMut(&Worker<Mixed>, Option<f64>);

impl CoordinatedMember {
    /// Connects a worker to the servers of its job, once all of them are up; to the proxy of its host, where the plan
    /// has one on each.
    ///
    /// # Errors
    /// The servers do not come up within the timeout of `order`, or no transport reaches one.
    pub fn connect(&self, order: WorkerOrder) -> Result<ServerWork, JobError> {
        let (lease, checksums) = (order.lease, order.checksums);
        let idle = if order.sleeps { Idle::Sleep } else { Idle::Poll };
        let options = WorkerOptions {
            encoding: order.encoding,
            checksums,
            own_step: order.own_step,
            idle,
            // Started again, it is the same worker to the servers.
            identity: u32::try_from(order.worker).ok(),
            ..WorkerOptions::new(order.scheme)
        };
        let mut host = None;
        let worker = match order.plan.per_host {
            true => {
                let memory = ShardOptions { lease, checksums, idle, ..ShardOptions::default() };
                self.member.connect_on_host(&order.plan, order.workers, &mut host, memory, options)?
            }
            false => self.member.connect(&order.plan, options)?,
        };
        let elements = (worker.table().bytes() / 4) as usize;
        let gradients = Gradients::new(order.scheme, order.learning_rate, order.encoding, elements);
        let work = WorkerLoop::new(Arc::clone(&self.member), order.plan, worker);
        Ok(ServerWork { member: self.clone(), work, gradients, _host: host })
    }
}

/// The gradients of a worker, with the memory that it keeps from one step to the next.
struct Gradients {
    /// Each step is one computation that is never stopped: it reads the parameters where they were pulled to.
    is_plain: bool,
    /// Gradients are published as they are computed.
    is_f32: bool,
    /// Batches of one step.
    batches: u64,
    local: LocalSteps,
    /// A copy of the parameters, for steps that ask in between whether to stop.
    base: Vec<f32>,
    /// A gradient that is encoded, or may be given up; none where it is computed where it is published from.
    gradient: Vec<f32>,
}

impl Gradients {
    fn new(scheme: SchemeConfig, learning_rate: f32, encoding: Encoding, elements: usize) -> Gradients {
        let batches = u64::from(scheme.local_steps());
        let is_plain = !(scheme.interrupts() || scheme.publishes_in_background()) && batches == 1;
        let local = LocalSteps::new(batches, learning_rate);
        let is_f32 = encoding == Encoding::F32;
        let elements = if is_plain && is_f32 { 0 } else { elements };
        Gradients { is_plain, is_f32, batches, local, base: Vec::new(), gradient: vec![0.0; elements] }
    }

    /// Computes the gradient of a step where it is published from. Returns the loss, or `None` if the step is to be
    /// abandoned.
    fn compute(&mut self, step: &mut Step<'_, Mixed>, compute: Compute<'_>) -> Result<Option<f32>, Error> {
        let clock = step.view().clock.get();
        if self.is_plain && self.is_f32 {
            let (parameters, gradient) = step.borrow()?;
            return compute(clock, parameters, gradient, None);
        }
        let loss = if self.is_plain {
            compute(clock, step.parameters()?, &mut self.gradient, None)?
        } else {
            self.base.clear();
            self.base.extend_from_slice(step.parameters()?);
            let first = clock * self.batches;
            self.local.gradient(&self.base, &mut self.gradient, |number, parameters, gradient| {
                compute(first + number, parameters, gradient, Some(&mut || step.should_stop()))
            })?
        };
        if loss.is_some() {
            step.encode(&self.gradient)?;
        }
        Ok(loss)
    }
}

impl ServerWork {
    /// Trains until all clocks of the order are done, and then stays until the job is over: while it is in, the others'
    /// gradients keep their weight. If the order says so, it connects again to servers that were lost and come back,
    /// and goes on at the clock at which they are.
    ///
    /// `compute` is given the number of a batch, the parameters and the memory for the gradient, and returns the loss;
    /// it is called once for each local step. Under a scheme that interrupts, makes several local steps or publishes in
    /// the background it is also given a question whether to stop, which it asks now and then; it returns `None` once
    /// the answer is yes. `observe` is called about twenty times a second, between two steps, with the mean loss since
    /// its last call if there was a gradient.
    ///
    /// # Errors
    /// A wait was longer than the timeout of the order, or a server is lost that is not waited for.
    pub fn run(&mut self, compute: Compute<'_>, observe: Observe<'_>) -> Result<End, JobError> {
        let make = &mut |mut step: LoopStep<'_>, gradients: &mut Gradients| {
            let computed = gradients.compute(&mut step.step, compute);
            end_step(step, computed, |step, loss| step.publish(Some(loss)))
        };
        self.run_steps(make, observe)
    }

    /// The same with gradients that are computed on the process's GPU and published out of it, one batch to a step.
    /// Under schemes that publish in the background it does not.
    ///
    /// # Errors
    /// As [`run`](Self::run); the GPU fails, or refuses a copy.
    #[cfg(feature = "cuda")]
    pub fn run_on_gpu(
        &mut self,
        buffers: &GpuBuffers,
        compute: ComputeOnGpu<'_>,
        observe: Observe<'_>,
    ) -> Result<End, JobError> {
        let GpuBuffers { parameters, gradient, stream } = buffers;
        let make = &mut |mut step: LoopStep<'_>, _: &mut Gradients| {
            let own = &mut step.step;
            let batch = own.view().clock.get();
            let computed = own
                .copy_parameters_to_gpu(0, parameters, stream)
                .and_then(|()| compute(batch, &mut || own.should_stop()));
            end_step(step, computed, |step, loss| step.publish_from_gpu(gradient, stream, Some(loss)))
        };
        self.run_steps(make, observe)
    }

    fn run_steps(&mut self, make: MakeStep<'_>, observe: Observe<'_>) -> Result<End, JobError> {
        self.member.report(WorkerReport::default());
        loop {
            if let Some(end) = self.train(make, observe)? {
                return Ok(end);
            }
            self.member.report(self.report());
            match self.work.attend() {
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                // The coordinator decides how a job continues that has lost a server.
                Err(_) => return Ok(self.member.wait_for_the_end()),
            }
        }
    }

    /// Trains until all clocks are done, or until the job is over.
    fn train(&mut self, make: MakeStep<'_>, observe: Observe<'_>) -> Result<Option<End>, JobError> {
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        while self.work.begin()? {
            if let Some(loss) = make(self.work.step()?, &mut self.gradients)? {
                (sum, count) = (sum + f64::from(loss), count + 1);
            }
            // Cheap next to a step, but there may be thousands of steps between two reports.
            if reported.elapsed() >= REPORT_EVERY {
                let loss = (count > 0).then(|| sum / f64::from(count));
                self.member.report(WorkerReport { loss, ..self.report() });
                observe(&self.work.worker, loss);
                (sum, count, reported) = (0.0, 0, Instant::now());
                if let Some(end) = self.member.end() {
                    return Ok(Some(end));
                }
            }
        }
        Ok(None)
    }

    fn report(&self) -> WorkerReport {
        WorkerReport::of(self.work.worker.clock(), self.work.worker.statistics())
    }
}

/// Publishes the gradient of a step, abandons the step, or ends it with its error.
fn end_step<'a>(
    step: LoopStep<'a>,
    computed: Result<Option<f32>, Error>,
    publish: impl FnOnce(LoopStep<'a>, f32) -> Result<bool, Error>,
) -> Result<Option<f32>, Error> {
    match computed {
        Ok(Some(loss)) => Ok(publish(step, loss)?.then_some(loss)),
        Ok(None) => step.abandon().map(|()| None),
        Err(error) => step.fail(error).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Server, ServerOptions};
    use crate::table::{ElementType, Table};
    use crate::transport::Address;

    /// The parameter of a server, 4 at first, after one clock of one worker at a step size of 0.5, and whether the
    /// worker copied it. The loss is half its square: each step halves it. `asked` is given the number of the batch and
    /// whether the step could be stopped.
    fn after_one_clock(scheme: &str, mut asked: impl FnMut(u64, bool) + Send) -> (f32, bool) {
        let scheme: SchemeConfig = scheme.parse().unwrap();
        let (address, timeout) = (Address::random(), Duration::from_secs(30));
        let table = Table::flat(1, ElementType::F32).unwrap();
        let options = ServerOptions::new(scheme, 1, 0.5);
        let mut server = Server::new(Mixed::default(), &address, table, &[4.0], options).unwrap();
        let copied = std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let options = WorkerOptions::new(scheme);
                let mut worker = Worker::connect(Mixed::default(), &[address], options, timeout).unwrap();
                let mut gradients = Gradients::new(scheme, 0.5, Encoding::F32, 1);
                let mut step = worker.step(timeout).unwrap();
                let halve: Compute<'_> = &mut |batch, parameters, gradient, stop| {
                    asked(batch, stop.is_some());
                    assert!(!stop.map_or(Ok(false), |stop| stop())?);
                    gradient.copy_from_slice(parameters);
                    Ok(Some(parameters[0] * parameters[0] / 2.0))
                };
                let loss = gradients.compute(&mut step, halve).unwrap();
                step.publish(loss, timeout).unwrap();
                !gradients.base.is_empty()
            });
            assert!(server.serve(1, timeout).unwrap());
            working.join().unwrap()
        });
        (server.parameters().unwrap()[0], copied)
    }

    #[test]
    fn a_plain_step_reads_its_parameters_in_place() {
        let mut calls = Vec::new();
        let after = after_one_clock("bsp", |batch, may_stop| calls.push((batch, may_stop)));
        assert_eq!((after, calls), ((2.0, false), vec![(0, false)]));
    }

    #[test]
    fn a_gradient_of_local_steps_moves_the_server_as_far_as_the_worker() {
        let mut calls = Vec::new();
        let scheme = "abs(k=1, local-steps=2)";
        let after = after_one_clock(scheme, |batch, may_stop| calls.push((batch, may_stop)));
        assert_eq!((after, calls), ((1.0, true), vec![(0, true), (1, true)]));
    }
}
