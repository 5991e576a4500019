//! The errors of a job.

use std::borrow::Cow;
use std::time::Duration;

use super::env::{LaunchError, Source};
use super::member::{End, WaitError};
use super::rendezvous;
use super::transports::NoRdma;
use crate::channel::SecretError;
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::node;
use crate::transport::NotBuilt;

/// A job, or this process's part in it, has failed. The text names the cause and the remedy; [`Diagnostic`] says them
/// to programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The variables of the launcher contradict each other or are incomplete.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The secret of the job cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No launcher has started this process.
    #[error("no launcher has started this process, and a job needs a server and a worker; {}", self.help())]
    NotLaunched,
    /// The job has more processes than one job can have.
    #[error("a job of {world} processes is too large; {}", remedy_of(self))]
    TooLarge {
        /// The number of processes.
        world: u32,
    },
    /// An earlier run left a checkpoint, or there is none to go on from.
    #[error("{0}")]
    Resume(String),
    /// The coordinator sent an order that does not fit this process.
    #[error("{_0}; {}", self.help())]
    Order(&'static str),
    /// The plan does not fit the number of processes.
    #[error(
        "no worker is left: the world size is {world}, and the number of servers {servers}; {}",
        remedy_of(self)
    )]
    NoWorker {
        /// The number of processes.
        world: u32,
        /// The number of servers in the plan.
        servers: u32,
    },
    /// The placement has a rank that the job does not have.
    #[error("there is no rank {rank} of {world}; {}", self.help())]
    NoSuchRank {
        /// The rank of this process.
        rank: u32,
        /// The number of processes.
        world: u32,
    },
    /// The plan has another number of servers than the launcher started.
    #[error("the plan's number of servers is {servers}, and {launcher} started {launched}; {}", self.help())]
    OtherServers {
        /// The number of servers in the plan.
        servers: u32,
        /// The number of servers that the launcher says.
        launched: u32,
        /// The launcher.
        launcher: Source,
    },
    /// The plan has no server.
    #[error("a plan of 0 servers has no server to connect to; {}", self.help())]
    NoServer,
    /// The plan has servers, and the call is for workers alone.
    #[error("a group is for plans of 0 servers, and this one has {servers}; {}", self.help())]
    HasServers {
        /// The number of servers in the plan.
        servers: u32,
    },
    /// The call is for the other role.
    #[error("this process is {role}, and {call} is for a {wanted}; {}", self.help())]
    OtherRole {
        /// The role of this process, for people.
        role: String,
        /// The purpose of the call.
        call: &'static str,
        /// The role that the call is for.
        wanted: &'static str,
    },
    /// The plan has a proxy on each host, and something that does not go with it.
    #[error("a plan with per_host {reason}; {}", self.help())]
    PerHost {
        /// The part of the plan that contradicts it, as a predicate.
        reason: &'static str,
    },
    /// The processes cannot meet.
    #[error(transparent)]
    Rendezvous(#[from] rendezvous::RendezvousError),
    /// A wait for the other processes has failed, or no transport reaches them.
    #[error(transparent)]
    Wait(WaitError),
    /// The job failed: the cause, as rank 0 told it.
    #[error("the job has failed: {0}")]
    Failed(String),
    /// The job has no rank for this process: the reason, as rank 0 told it.
    #[error("{0}")]
    Refused(String),
    /// Rank 0 is gone and told no cause.
    #[error("{0}")]
    Lost(String),
    /// RDMA is required, and this process has none.
    #[error("RDMA is required and not available: {0}")]
    NoRdma(#[from] NoRdma),
    /// The library was built without the transport that is required.
    #[error(transparent)]
    NotBuilt(#[from] NotBuilt),
    /// The number of initial values is not the number of elements of the table.
    #[error("the table has {elements} elements and {values} initial values were given; {}", self.help())]
    InitialValues {
        /// Elements of the table.
        elements: u64,
        /// Values given.
        values: usize,
    },
    /// The servers did not come back.
    #[error("the servers did not come back within {waited:?}: {last}; {}", self.help())]
    NotBack {
        /// The length of the wait.
        waited: Duration,
        /// The error of the last attempt.
        last: String,
        /// The time after which to try again, if a server refused for now.
        retry_after: Option<Duration>,
    },
    /// A round of averaging did not end.
    #[error("round {round} did not end within {waited:?}: workers {workers:?} are alive and late; {}", self.help())]
    Late {
        /// The number of the round.
        round: u64,
        /// The length of the wait.
        waited: Duration,
        /// The workers whose parts are missing.
        workers: Vec<usize>,
    },
    /// An operation of the server or of the worker has failed.
    #[error(transparent)]
    Node(#[from] node::Error),
}

impl Diagnostic for JobError {
    fn operation(&self) -> &'static str {
        match self {
            JobError::Node(error) => error.operation(),
            JobError::Launch(_) | JobError::NotLaunched | JobError::Secret(_) => "reading the environment",
            JobError::TooLarge { .. }
            | JobError::NoWorker { .. }
            | JobError::NoSuchRank { .. }
            | JobError::Rendezvous(_)
            | JobError::Refused(_) => "joining the job",
            JobError::Resume(_) | JobError::InitialValues { .. } => "starting the server",
            JobError::NoServer
            | JobError::PerHost { .. }
            | JobError::OtherServers { .. }
            | JobError::HasServers { .. }
            | JobError::OtherRole { .. } => "checking the role",
            JobError::NotBuilt(error) => error.operation(),
            JobError::Wait(_) | JobError::NoRdma(_) => "reaching the other processes",
            JobError::NotBack { .. } => "reconnecting",
            JobError::Failed(_) | JobError::Lost(_) | JobError::Order(_) => "running the job",
            JobError::Late { .. } => "averaging in a group",
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            JobError::Node(error) => error.remedy(),
            JobError::Launch(error) => error.remedy(),
            JobError::Secret(error) => error.remedy(),
            JobError::Rendezvous(error) => error.remedy(),
            JobError::NotBuilt(error) => error.remedy(),
            JobError::NoRdma(error) => error.remedy(),
            JobError::Wait(error) => error.remedy(),
            JobError::TooLarge { .. } => Some(format!("start at most {}", rendezvous::MAX_MEMBERS).into()),
            JobError::NoWorker { servers, .. } => {
                Some(format!("start at least {} processes", servers + 1).into())
            }
            error => Some(error.help()).filter(|text| !text.is_empty()).map(Cow::from),
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            JobError::Node(error) => error.is_retryable(),
            JobError::Wait(error) => error.is_retryable(),
            JobError::Rendezvous(error) => error.is_retryable(),
            JobError::NotBack { .. } | JobError::Late { .. } => true,
            _ => false,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            JobError::Node(error) => error.retry_after(),
            JobError::NotBack { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl JobError {
    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            JobError::NotLaunched => {
                "start the program with torchrun, srun, mpirun or `slackline launch -n 3 -- PROGRAM`, or set \
                 SLACKLINE_RANK, SLACKLINE_WORLD_SIZE and SLACKLINE_RENDEZVOUS"
            }
            JobError::Order { .. } => "run the same slackline everywhere",
            JobError::Late { .. } => "use a longer timeout",
            JobError::NoServer => "use a plan with a server, or a group",
            JobError::PerHost { .. } => "leave one of the two out",
            JobError::NoSuchRank { .. } => "ranks count from 0 and are less than the number of processes",
            JobError::OtherServers { .. } => "make the two the same",
            JobError::HasServers { .. } => "leave the servers out of the plan",
            JobError::OtherRole { .. } => "ask the job for its role first",
            JobError::InitialValues { .. } => "give one for each",
            JobError::NotBack { .. } => "start them again sooner, or use a longer timeout",
            _ => "",
        }
    }
}

impl End {
    /// The result of a process whose job has ended so.
    pub(super) fn into_result(self) -> Result<(), JobError> {
        match self {
            End::Dismissed => Ok(()),
            End::Told(why) => Err(JobError::Failed(why)),
            End::Refused(why) => Err(JobError::Refused(why)),
            End::Lost(why) => Err(JobError::Lost(why)),
        }
    }
}

impl From<WaitError> for JobError {
    fn from(error: WaitError) -> JobError {
        match error {
            WaitError::Ended(End::Told(why)) => JobError::Failed(why),
            WaitError::Ended(End::Refused(why)) => JobError::Refused(why),
            WaitError::Ended(End::Lost(why)) => JobError::Lost(why),
            error => JobError::Wait(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{ElementType, Table};
    use crate::transport::{Address, ConnectError, TransportKind};

    #[test]
    fn every_error_of_a_start_ends_in_its_remedy_and_names_its_operation() {
        let (path, source) = ("secret".into(), std::io::Error::from_raw_os_error(libc::ENOENT));
        let (name, value) = ("RANK", "x".to_owned());
        let table = Table::flat(16, ElementType::F32).unwrap();
        let errors: [Box<dyn Diagnostic>; 9] = [
            Box::new(JobError::from(SecretError::Unreadable { path, source })),
            Box::new(JobError::from(LaunchError::Number { name, value })),
            Box::new(JobError::from(rendezvous::RendezvousError::NeedsSecret {
                address: "192.0.2.1:7".parse().unwrap(),
            })),
            Box::new(JobError::NoWorker { world: 1, servers: 1 }),
            Box::new(JobError::from(node::Error::from(table.shards(9).unwrap_err()))),
            Box::new(Table::flat(0, ElementType::F32).unwrap_err()),
            Box::new("nowhere".parse::<Address>().unwrap_err()),
            Box::new(JobError::NoServer),
            Box::new(JobError::from(NotBuilt { transport: TransportKind::Tcp })),
        ];
        for error in errors {
            let remedy = error.remedy().expect("there is a remedy");
            assert!(error.to_string().ends_with(&*remedy), "{error} / {remedy}");
            assert!(!remedy.is_empty() && !error.operation().is_empty() && !error.is_retryable());
        }
    }

    #[test]
    fn a_job_whose_server_refuses_for_now_says_when_to_try_again() {
        let after = Some(Duration::from_millis(30));
        let refused = |retry_after| {
            let (address, reason) = (Address::random(), "no room".to_owned());
            JobError::from(node::Error::from(ConnectError::Refused { address, retry_after, reason }))
        };
        let not_back =
            |retry_after| JobError::NotBack { waited: Duration::ZERO, last: String::new(), retry_after };
        assert_eq!([refused(after), not_back(after)].map(|error| error.retry_after()), [after; 2]);
        assert_eq!([refused(None), not_back(None)].map(|error| error.retry_after()), [None; 2]);
        assert_eq!(JobError::NotLaunched.retry_after(), None);
    }
}
