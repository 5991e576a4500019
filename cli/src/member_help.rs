//! The ends of the help of `slackline serve` and `slackline work`.

/// Both commands end with these.
pub(crate) const EXIT_CODES: &str =
    "Exit codes: 0 the job is over, 1 it failed or could not be joined, 2 options that cannot be used.";

/// Those of `slackline serve`.
pub(crate) const SERVE_EXAMPLES: &str = "Examples:
  slackline serve --rendezvous 10.0.0.1:7000 --secret-file job.secret
      a server of the job whose `slackline train --coordinate` waits at that address
  slackline serve --rendezvous 127.0.0.1:7000 --role-rank 1
      shard 1 of a job on this host, which needs no secret
  mpirun -n 1 slackline train --coordinate : -n 1 slackline serve : -n 2 slackline work
      a role for each process of a launcher

Exit codes: 0 the job is over, 1 it failed or could not be joined, 2 options that cannot be used.";

/// Those of `slackline work`.
pub(crate) const WORK_EXAMPLES: &str = "Examples:
  slackline work --rendezvous 10.0.0.1:7000 --secret-file job.secret
      a worker of the job whose `slackline train --coordinate` waits at that address
  slackline work --rendezvous 127.0.0.1:7000 --role-rank 1
      worker 1 of a job on this host, such as one that was killed and is started again
  mpirun -n 1 slackline train --coordinate : -n 1 slackline serve : -n 2 slackline work
      a role for each process of a launcher

Exit codes: 0 the job is over, 1 it failed or could not be joined, 2 options that cannot be used.";
