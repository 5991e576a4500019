//! Jobs of many processes: each finds its part, meets the others and trains, on one host or many, over any transport.
//!
//! All processes of a job run one program, under torchrun, Slurm, Open MPI, MPICH or `slackline launch`; [`mod@env`]
//! says which variables are read. Rank 0 keeps the rendezvous, the first ranks serve the shards of the table and the
//! rest compute. Each pair of processes talks over the best transport that it has: shared memory on one host, RDMA
//! where both have it and a path leads from one to the other, TCP otherwise.
//!
//! The [first page](crate) shows such a program, and `examples/parameter_server.rs` is a complete one.
//!
//! A host beyond loopback needs a secret that all processes of the job share: a file of mode 600 that
//! `SLACKLINE_SECRET_FILE` names, or `SLACKLINE_SECRET` itself.
#![forbid(unsafe_code)]

pub mod choose;
pub mod coordinated;
mod coordinator;
pub mod env;
mod error;
mod error_report;
mod group;
mod local;
pub mod member;
mod messages;
mod no_paths;
mod per_host;
mod plan;
pub mod rendezvous;
mod roster;
#[cfg(all(test, feature = "cuda", feature = "tcp"))]
mod scripted;
mod served_workers;
mod server;
mod server_loop;
pub mod transports;
mod worker;
mod worker_loop;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub use error::JobError;
pub use error_report::ErrorReport;
pub use group::{Advance, GroupTrainer};
pub use local::{LocalOptimizer, LocalSteps};
pub use plan::{JobPlan, Resume, Role};
pub use server::Served;
pub use worker::{JobStep, JobWorker, Published};

pub use crate::channel::{Secret, SecretError};
use coordinator::{Attendance, CoordinatorThread};
use env::{Placement, RendezvousEndpoint};
use member::JobMember;
use messages::{EndOnly, FromMember, encode};
#[cfg(any(test, fuzzing))]
pub(crate) use messages::{fuzz_message, message_samples};
use per_host::HostThread;
use rendezvous::{Host, Introduction, RendezvousError};
pub use rendezvous::{MemberRole, listen_address};

#[cfg(feature = "cuda")]
use crate::cuda::Gpu;
use crate::transport::TransportKind;

/// One process's part in a job. Dropping it leaves the job; at rank 0 it ends the job.
pub struct Job {
    plan: JobPlan,
    role: Role,
    rank: u32,
    workers: u32,
    /// The server of this host, if it is this worker's. It ends before this member leaves.
    host: Mutex<Option<HostThread>>,
    // Declared before the coordinator: this member leaves before rank 0 waits for the others to leave.
    member: Arc<JobMember<EndOnly>>,
    coordinator: Option<CoordinatorThread>,
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(coordinator) = &self.coordinator {
            coordinator.abandon();
        }
    }
}

impl Job {
    /// Joins the job in which a launcher has started this process, with the secret that the environment holds.
    ///
    /// # Errors
    /// [`JobError::NotLaunched`] if no launcher has; otherwise as [`join`](Self::join).
    pub fn from_env(plan: JobPlan) -> Result<Job, JobError> {
        let placement = Placement::from_env()?.ok_or(JobError::NotLaunched)?;
        Job::join(plan, &placement, Secret::from_environment()?)
    }

    /// Joins the job at this placement. Blocks until rank 0 has let this process in, at most the plan's timeout.
    ///
    /// # Errors
    /// There is no such rank, the plan leaves no worker, rank 0 cannot be reached in time, the secrets differ, or the
    /// rank is taken.
    pub fn join(plan: JobPlan, placement: &Placement, secret: Option<Secret>) -> Result<Job, JobError> {
        let Placement { rank, world, .. } = *placement;
        plan.transport.map_or(Ok(()), TransportKind::check_built)?;
        let servers = plan.servers;
        if let Some(launched) = placement.servers.filter(|launched| *launched != servers) {
            return Err(JobError::OtherServers { servers, launched, launcher: placement.source });
        }
        if rank >= world {
            return Err(JobError::NoSuchRank { rank, world });
        }
        let workers = world.checked_sub(servers).filter(|workers| *workers > 0);
        let workers = workers.ok_or(JobError::NoWorker { world, servers })?;
        plan.check_per_host()?;
        if world as usize > rendezvous::MAX_MEMBERS {
            return Err(JobError::TooLarge { world });
        }
        let rendezvous = match &placement.rendezvous {
            Some(rendezvous) => rendezvous.to_string(),
            // It meets no other process.
            None if world == 1 => own_rendezvous()?.to_string(),
            None => return Err(JobError::NotLaunched),
        };
        let coordinator = match rank {
            0 => Some(listen(&rendezvous, &plan, placement, secret.clone())?),
            _ => None,
        };
        let (role, member_role, role_rank) = match rank < servers {
            true => (Role::Server(rank), MemberRole::Server, rank),
            false => (Role::Worker(rank - servers), MemberRole::Worker, rank - servers),
        };
        let introduction = Introduction {
            role_rank: Some(role_rank),
            rank: Some(rank),
            ..Introduction::new(member_role, Host::own())
        };
        let conversation = EndOnly::under(&plan);
        let member = JobMember::join(&rendezvous, introduction, secret, conversation, plan.timeout)?;
        member.send(encode(&FromMember::Plan(plan.clone(), world)));
        tracing::info!(rank, world, %role, rendezvous, "joined the job");
        let (host, member) = (Mutex::new(None), Arc::new(member));
        Ok(Job { plan, role, rank, workers, host, member, coordinator })
    }

    /// The same with a GPU, named before this process serves or connects. A server has its frames, slots and states
    /// there and folds there; a worker publishes out of it ([`JobStep::publish_from_gpu`]); a member of a group
    /// ([`group`](Self::group)) has its parameters there. Processes of one host map each other's memory. Those of
    /// others are reached by RDMA, whose devices read and write memory of GPUs themselves where they and the drivers
    /// can, or by way of host memory, by RDMA or TCP. So is a worker on the host of the server that names no GPU or
    /// does not see the server's (`CUDA_VISIBLE_DEVICES`). With a GPU that [requires](Gpu::require_gpudirect) a direct
    /// way, ways that stage are passed over.
    ///
    /// A server whose devices do not reach its GPU is reached over TCP from other hosts, and by RDMA only where the
    /// plan asks for that alone ([`JobPlan::transport`]). Then its payloads are in host memory, and it folds by
    /// processors, as without a GPU.
    #[cfg(feature = "cuda")]
    pub fn with_gpu(self, gpu: &Gpu) -> Job {
        let serves_from_there = matches!(self.role, Role::Server(_)) && self.plan.serves_from_gpus();
        self.member.transports.use_gpu(gpu, serves_from_there);
        self
    }

    /// The part of this process.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of servers.
    pub fn servers(&self) -> usize {
        self.plan.servers as usize
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers as usize
    }

    /// True at rank 0, which keeps the rendezvous.
    #[doc(hidden)]
    pub fn is_coordinator(&self) -> bool {
        self.coordinator.is_some()
    }
}

/// A rendezvous for a process that is alone in its job.
fn own_rendezvous() -> Result<RendezvousEndpoint, RendezvousError> {
    let host = Ipv4Addr::LOCALHOST.into();
    let failed = |source| RendezvousError::Listen { address: SocketAddr::new(host, 0), source };
    RendezvousEndpoint::free(host).map_err(failed)
}

/// Opens the rendezvous, at rank 0.
fn listen(
    rendezvous: &str,
    plan: &JobPlan,
    placement: &Placement,
    secret: Option<Secret>,
) -> Result<CoordinatorThread, JobError> {
    let address = listen_address(rendezvous, Instant::now() + plan.timeout, placement.is_one_host())?;
    let attendance = Attendance::new(plan.clone(), placement.world, Instant::now());
    let hub = attendance.listen(address, secret)?;
    CoordinatorThread::start(hub, attendance)
}
