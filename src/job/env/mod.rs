//! The rank of this process in a job that a launcher, or a person, has started on one host or many.
//!
//! [`placement`] is a function of the flags and the environment, both given to it. It asks, in this order:
//!
//! 1. the flags: `--rank`, `--world-size`, `--local-rank`, `--rendezvous`;
//! 2. `SLACKLINE_RANK`, `SLACKLINE_WORLD_SIZE`, `SLACKLINE_LOCAL_RANK`, `SLACKLINE_RENDEZVOUS`;
//! 3. torchrun: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`;
//! 4. a step of Slurm: `SLURM_STEP_ID`, `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`, `SLURM_LOCALID`;
//! 5. Open MPI: `OMPI_COMM_WORLD_RANK`, `.._SIZE`, `.._LOCAL_RANK`, `.._LOCAL_SIZE`;
//! 6. PMI, as MPICH's Hydra and Intel MPI set it: `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS`;
//! 7. PMIx: `PMIX_RANK`, which comes without a size;
//! 8. ps-lite, as MXNet, BytePS and dmlc-core's trackers set it: `DMLC_ROLE`, `DMLC_NUM_SERVER`, `DMLC_NUM_WORKER`,
//!    `DMLC_SERVER_ID` or `DMLC_WORKER_ID` (or `DMLC_TASK_ID`), `DMLC_PS_ROOT_URI`, `DMLC_PS_ROOT_PORT`;
//! 9. an indexed Job of Kubernetes: `JOB_COMPLETION_INDEX`, beside `SLACKLINE_WORLD_SIZE` and `SLACKLINE_RENDEZVOUS`.
//!
//! A process inherits the variables of every launcher above it. Slurm is always the outer one: any other launcher
//! was started within its allocation, and wins. A launcher that started a single process (`srun --pty bash`) says
//! nothing about a job started from there. All other contradictions are errors. A batch script is no step: Slurm
//! gives it a rank but no `SLURM_STEP_ID`, and it goes unplaced.
//!
//! `docs/launchers.md` has the recipes, and which of these variables were seen under which launcher.

mod claims;
mod dmlc;
mod endpoint;
mod environment;
mod error;
mod flags;
mod slurm;
#[cfg(test)]
mod tests;

use std::fmt;

pub use endpoint::{PORTS, RendezvousEndpoint, RendezvousEndpointError};
pub use environment::environment;
pub use error::LaunchError;
pub use flags::LaunchFlags;

use claims::Claim;

/// The rank of a process in its job, and where it meets the others.
///
/// The default describes a process that is alone in its job. A program that gets its rank from its user, and not from a
/// launcher, fills in the rest:
///
/// ```
/// use slackline::{RendezvousEndpoint, Placement};
///
/// let rendezvous: RendezvousEndpoint = "node1:21000".parse()?;
/// let rendezvous = Some(rendezvous);
/// let placement = Placement { rank: 2, world: 3, rendezvous, ..Placement::default() };
/// assert_eq!(placement.servers, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The rank of this process in the job, from 0.
    pub rank: u32,
    /// Number of processes of the job.
    pub world: u32,
    /// The rank of this process on its host, if that is known.
    pub local_rank: Option<u32>,
    /// Number of processes of the job on this host, if that is known.
    pub local_world: Option<u32>,
    /// The address at which all can meet rank 0. `None` only for a process that is alone in its job.
    pub rendezvous: Option<RendezvousEndpoint>,
    /// The number of servers, if the launcher says it: they have the first ranks.
    pub servers: Option<u32>,
    /// The launcher that said so, or the flags.
    #[doc(hidden)]
    pub source: Source,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement {
            rank: 0,
            world: 1,
            local_rank: None,
            local_world: None,
            rendezvous: None,
            servers: None,
            source: Source::Flags,
        }
    }
}

impl Placement {
    /// The placement of this process, as the environment says; `None` if no launcher started it.
    ///
    /// # Errors
    /// The variables contradict each other or are incomplete.
    pub fn from_env() -> Result<Option<Placement>, LaunchError> {
        placement(&LaunchFlags::default(), environment())
    }

    /// Whether all processes of the job are known to be on this host.
    #[doc(hidden)]
    pub fn is_one_host(&self) -> bool {
        self.world <= self.local_world.unwrap_or(1)
    }
}

/// The launchers and settings that tell a process its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The flags, or the variables that stand for them.
    Flags,
    /// torchrun, or a launcher that sets the same variables.
    Torchrun,
    /// A step of Slurm.
    Slurm,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A process manager that speaks PMI.
    Pmi,
    /// A process manager that speaks PMIx.
    Pmix,
    /// A tracker or launcher that sets the variables of ps-lite.
    Dmlc,
    /// An indexed Job of Kubernetes.
    Kubernetes,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Flags => "flags",
            Source::Torchrun => "torchrun",
            Source::Slurm => "Slurm (srun)",
            Source::OpenMpi => "Open MPI (mpirun)",
            Source::Pmi => "PMI (Hydra)",
            Source::Pmix => "PMIx",
            Source::Dmlc => "ps-lite (DMLC_ROLE)",
            Source::Kubernetes => "Kubernetes (indexed Job)",
        })
    }
}

/// Finds out where this process stands; none if no launcher started it and no flag says so.
///
/// ```
/// use slackline::internals::job::env::{LaunchFlags, placement};
///
/// let under_srun = |name: &str| {
///     let value = match name {
///         "SLURM_JOB_ID" => "100",
///         "SLURM_STEP_ID" => "0",
///         "SLURM_PROCID" => "2",
///         "SLURM_STEP_NUM_TASKS" => "8",
///         "SLURM_STEP_TASKS_PER_NODE" => "2(x4)",
///         "SLURM_STEP_NODELIST" => "node[003-006]",
///         _ => return None,
///     };
///     Some(value.to_owned())
/// };
/// let placement = placement(&LaunchFlags::default(), under_srun)?.unwrap();
/// assert_eq!((placement.rank, placement.world), (2, 8));
/// assert_eq!(placement.rendezvous.unwrap().to_string(), "node003:22080");
/// # Ok::<(), slackline::LaunchError>(())
/// ```
pub fn placement(
    flags: &LaunchFlags,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<Placement>, LaunchError> {
    // `NAME= command` is how a shell takes a variable away for one command.
    let env = |name: &str| env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let told = flags.rendezvous(env)?;
    let Some(claim) = claims::settle(flags, &env)? else { return Ok(None) };
    let Claim { rank, world, local_rank, local_world, source } = claim;
    let rendezvous = match told {
        Some(told) => Some(told),
        None if world == 1 => None,
        None => Some(endpoint::find(&claim, &env)?),
    };
    let servers = if source == Source::Dmlc { dmlc::servers(&env)? } else { None };
    Ok(Some(Placement { rank, world, local_rank, local_world, rendezvous, servers, source }))
}
