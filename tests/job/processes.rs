//! The processes of a job: this test binary, started again with the variables of a launcher.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackline::{RendezvousEndpoint, Secret};

/// The longest time that a job may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Names the program that a process of a job runs; the test's other processes do not have it.
pub(crate) const PROGRAM: &str = "SLACKLINE_TEST_PROGRAM";

/// The processes of one job. Those that still run are killed when it is dropped.
pub(crate) struct Processes(pub(crate) Vec<Child>);

/// The end of one process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Processes {
    /// Starts a job of `world` processes that meet on `host`, each of which runs `program` with these variables.
    pub(crate) fn start(
        host: impl Into<IpAddr>,
        program: &str,
        world: usize,
        variables: &[(&str, &str)],
    ) -> Processes {
        let meeting = Meeting::at(host.into());
        Processes((0..world).map(|rank| meeting.start(program, rank, world, variables)).collect())
    }

    /// Waits for the end of all processes, in the order of their ranks.
    pub(crate) fn end(mut self) -> Vec<Ended> {
        let deadline = Instant::now() + PATIENCE;
        let mut ended = Vec::new();
        for (rank, child) in self.0.iter_mut().enumerate() {
            let status = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status,
                    None => assert!(Instant::now() < deadline, "rank {rank} does not end"),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            let (mut stdout, mut stderr) = (String::new(), String::new());
            child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            ended.push(Ended { succeeded: status.success(), stdout, stderr });
        }
        ended
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended cannot be killed.
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

/// The address at which the processes of a job meet, and their secret.
pub(crate) struct Meeting {
    address: RendezvousEndpoint,
    secret: Secret,
}

impl Meeting {
    /// A port of `host` that no process listens at.
    pub(crate) fn at(host: IpAddr) -> Meeting {
        let address = RendezvousEndpoint::free(host).unwrap();
        Meeting { address, secret: Secret::random().unwrap() }
    }

    /// Starts one process of a job of `world`.
    pub(crate) fn start(
        &self,
        program: &str,
        rank: usize,
        world: usize,
        variables: &[(&str, &str)],
    ) -> Child {
        Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "a_process_runs_the_program_of_its_job", "--nocapture", "--test-threads=1"])
            .env(PROGRAM, program)
            .env("SLACKLINE_RANK", rank.to_string())
            .env("SLACKLINE_WORLD_SIZE", world.to_string())
            .env("SLACKLINE_RENDEZVOUS", self.address.to_string())
            .env("SLACKLINE_SECRET", self.secret.expose())
            .env_remove("SLACKLINE_SECRET_FILE")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run this binary again")
    }
}

/// Panics with all that the processes wrote if one has failed or printed to stderr, where the library prints nothing.
pub(crate) fn all_succeeded(ended: &[Ended]) {
    assert!(ended.iter().all(|ended| ended.succeeded && ended.stderr.is_empty()), "{ended:#?}");
}
