//! `slackline.Job`: a process's part in a job of many.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use slackline::internals::mem::ForkGuard;
use slackline::{Job, JobError, JobPlan, Placement, Role, TransportKind, WorkerOptions};

use crate::errors::{Class, Failure};
use crate::gpu::{self, PyGpu};
use crate::server::{self, Status};
use crate::snapshot::{Facts, Snapshot, Storage, Tensors};
use crate::table::Layout;
use crate::wait::{Deadline, idle as way_to_idle, in_slices, in_thread, timeout as seconds};
use crate::worker::PyWorker;

/// The part of this process in the job that a launcher (torchrun, Slurm, mpirun, an indexed Job of Kubernetes,
/// `slackline launch`) has started: `Job.from_env()`. The first ranks are servers, the others are workers.
#[pyclass(frozen, module = "slackline", name = "Job")]
pub(crate) struct PyJob {
    job: Arc<Job>,
    local_rank: Option<u32>,
    timeout: Duration,
    gpu: Option<gpu::Named>,
    guard: ForkGuard,
}

#[pymethods]
impl PyJob {
    /// Joins the job. All processes call it with the same `servers`, `transport` and `per_host`. `timeout`, in
    /// seconds, is the longest that joining, waiting for the servers and connecting to them may each take. A worker's
    /// step, publish, flush and finish have timeouts of their own, 30 s by default, and `serve` has none. Raises
    /// OutOfTurn if no launcher has started this process, Refused if the secrets differ, JobFailed if the job has
    /// failed.
    ///
    /// With `gpu`, a Gpu, the payloads of this process are in its memory, as for a Server and a Worker. If the
    /// RDMA devices of a server do not reach its GPU, other hosts reach it over TCP; with transport="verbs" its
    /// payloads are in host memory instead.
    ///
    /// With `per_host`, a thread of the first worker of each host sums the gradients of all workers there over shared
    /// memory, and hands on one sum: one connection leaves the host. Under BSP alone.
    #[staticmethod]
    #[pyo3(signature = (*, servers=1, transport="auto", timeout=60.0, gpu=None, per_host=false))]
    fn from_env(
        py: Python<'_>,
        servers: u32,
        transport: &str,
        timeout: f64,
        gpu: Option<&Bound<'_, PyGpu>>,
        per_host: bool,
    ) -> PyResult<PyJob> {
        let gpu = gpu::named(gpu);
        let timeout = seconds(timeout)?;
        let plan = JobPlan::servers(servers).timeout(timeout).per_host(per_host);
        let plan = match transport {
            "auto" => plan,
            "shm" => plan.transport(TransportKind::Shm),
            "tcp" => plan.transport(TransportKind::Tcp),
            "verbs" => plan.transport(TransportKind::Verbs),
            other => {
                let cause = format_args!("there is no transport {other:?}");
                let remedy = "use auto, shm, tcp or verbs";
                return Err(Failure::new(Class::BadOption, "joining the job", cause, remedy).into());
            }
        };
        let placement = Placement::from_env().map_err(|error| Failure::from(JobError::from(error)))?;
        let local_rank = placement.and_then(|placement| placement.local_rank);
        let job = in_thread(py, "joining the job", move |_| Ok(Job::from_env(plan)?))?;
        let job = match &gpu {
            Some(gpu) => job.with_gpu(&gpu.gpu),
            None => job,
        };
        Ok(PyJob { job: Arc::new(job), local_rank, timeout, gpu, guard: ForkGuard::new() })
    }

    /// "server" or "worker".
    #[getter]
    fn role(&self) -> &'static str {
        match self.job.role() {
            Role::Server(_) => "server",
            Role::Worker(_) => "worker",
        }
    }

    /// The number of this process, from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.job.rank()
    }

    /// The number of processes of the job.
    #[getter]
    fn world_size(&self) -> usize {
        self.job.servers() + self.job.workers()
    }

    /// The number of this process on its host, from 0; None if the launcher does not say it.
    #[getter]
    fn local_rank(&self) -> Option<u32> {
        self.local_rank
    }

    /// The number of servers.
    #[getter]
    fn servers(&self) -> usize {
        self.job.servers()
    }

    /// The number of workers.
    #[getter]
    fn workers(&self) -> usize {
        self.job.workers()
    }

    /// Serves this process's shard of the parameters until the job is over, however long that takes, and returns them
    /// (as one array `shard` if there are several servers) with the last status. The arguments are as for a Server;
    /// `initial` has the whole table. A job has no use for a server that cannot be made: it fails, too, with the cause.
    #[pyo3(signature = (initial, *, scheme="bsp", learning_rate=0.1, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        idle="poll"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn serve(
        &self,
        py: Python<'_>,
        initial: &Bound<'_, PyAny>,
        scheme: &str,
        learning_rate: f32,
        optimizer: &str,
        momentum: f32,
        weight_decay: f32,
        idle: &str,
    ) -> PyResult<(Snapshot, Status)> {
        crate::fork::check(self.guard, "serving")?;
        let job = &self.job;
        let read = || -> PyResult<_> {
            let workers = job.workers();
            let mut options =
                server::options(scheme, workers, learning_rate, optimizer, momentum, weight_decay)?;
            options.memory.idle = way_to_idle(idle)?;
            let (table, values) = server::initial(initial)?;
            let layout = Layout::of(&table)?;
            Ok((options, table, values, layout))
        };
        let (options, table, values, mut layout) = read().inspect_err(|error| {
            let why = error.value(py).to_string();
            py.detach(|| job.give_up_serving(&why));
        })?;
        let starting = Arc::clone(job);
        let (mut server, _resumed) =
            in_thread(py, "serving", move |_| Ok(starting.server(table, &values, options)?))?;
        let mut drive = |slice| Ok(job.drive(&mut server, slice)?.then_some(()));
        while in_slices(py, Deadline::of(self.timeout), &mut drive)?.is_none() {}
        let (parameters, status) = (server.parameters().map_err(Failure::from)?, server.status());
        if self.job.servers() > 1 {
            let shard = slackline::Table::builder().tensor(
                "shard",
                &[parameters.len() as u64],
                slackline::ElementType::F32,
            );
            layout = Layout::of(&shard.build().map_err(Failure::from)?)?;
        }
        let facts = Facts::of_server(status.version.get(), server.epoch(), 0);
        let storage = Storage::Whole(Arc::new(server::lend_values(&parameters)?));
        Ok((
            Snapshot { tensors: Tensors { layout, storage, is_read_only: true }, facts, read: None },
            Status(status),
        ))
    }

    /// Connects this worker to the servers, once all of them are up. `idle` is as for a Worker.
    #[pyo3(signature = (*, idle="poll"))]
    fn worker(&self, py: Python<'_>, idle: &str) -> PyResult<PyWorker> {
        crate::fork::check(self.guard, "connecting")?;
        let (job, idle) = (Arc::clone(&self.job), way_to_idle(idle)?);
        let options = WorkerOptions { idle, ..WorkerOptions::default() };
        let worker = in_thread(py, "connecting", move |_| Ok(job.connect(options)?))?;
        Ok(PyWorker::of(worker, Some(Arc::clone(&self.job)), self.gpu.clone())?)
    }

    fn __repr__(&self) -> String {
        format!("<Job: rank {} is {}>", self.job.rank(), self.job.role())
    }
}

impl Drop for PyJob {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its connections are the parent's.
        if self.guard.is_inherited() {
            std::mem::forget(Arc::clone(&self.job));
        }
    }
}
