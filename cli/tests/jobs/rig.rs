//! The guests of the rig in which these tests run: one, or two.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::running::Running;

/// The lease, and what a machine that is itself emulated on a busy one takes to act on it.
pub(super) const NOTICED_WITHIN: Duration = Duration::from_secs(3 + 10);

/// A job of which nearly all time is slept away. Steps are a tenth of a second long, five to an epoch.
pub(super) const SLOW: &str = "--model softmax --batch 128 --jitter constant(0.1) --timeout 30";

/// A job that learns all that there is to be learnt in forty epochs, whatever comes when. Steps are so short that those
/// on parameters of up to three clocks ago harm nothing: of 360 digits 60 runs by SSP in shared memory beside compilers
/// knew 348 or 349. With the longer steps of [`QUICK`] as many runs knew 341 to 350 after twenty epochs and 345 to 350
/// after forty: where they end hangs on who was ahead of whom.
pub(super) const CALM: &str = "--hidden 32 --optimizer sgd --learning-rate 0.1 --epochs 40 --timeout 60";

/// A job that learns all that there is to be learnt in twelve epochs in lock step.
pub(super) const QUICK: &str = "--hidden 32 --optimizer sgd --learning-rate 0.3 --timeout 60";

/// One of the guests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Guest {
    /// The guest in which the tests run.
    Here,
    There,
}

pub(super) fn environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run these tests by `cargo xtask softroce`"))
}

impl Guest {
    /// A command that is run there.
    pub(super) fn command(self, program: &str) -> Command {
        let mut command = match self {
            Guest::Here => Command::new(program),
            Guest::There => {
                let mut command = Command::new(environment("SLACKLINE_RIG_RUN"));
                command.arg(program);
                command
            }
        };
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program there, which must succeed; its output.
    pub(super) fn run(self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().expect("the program starts");
        assert!(output.status.success(), "{self:?}: {program} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the kernel's counts of the objects of its RDMA device.
    pub(super) fn objects(self) -> Vec<u64> {
        crate::objects::objects(&mut self.command("rdma"))
    }

    /// Returns how often its RDMA device has sent again.
    pub(super) fn retries(self) -> u64 {
        let device = environment("SLACKLINE_RIG_DEVICE");
        let counters = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
        self.run("cat", &[&format!("{counters}/completer_retry_err")]).trim().parse().unwrap()
    }
}

/// Faults that whatever RDMA sends from either guest meets until this is dropped.
pub(super) struct Faults;

impl Faults {
    /// As `netem` of `tc` takes them.
    pub(super) fn new(netem: &str) -> Faults {
        let faults = Faults;
        Faults::set(netem);
        faults
    }

    fn set(netem: &str) {
        let script = format!("{}/netem.sh", environment("SLACKLINE_RIG_SCRIPTS"));
        let words: Vec<&str> = netem.split(' ').filter(|word| !word.is_empty()).collect();
        for guest in [Guest::There, Guest::Here] {
            guest.run("sh", &[&[script.as_str()], &words[..]].concat());
        }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        Faults::set("");
    }
}

/// Waits until the kernel has cleaned up behind processes that are gone: a moment.
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A job that is coordinated here.
pub(super) struct Job {
    pub(super) coordinator: Running,
    pub(super) server: Running,
    pub(super) workers: Vec<Running>,
    folder: TempDir,
}

/// Begins `slackline` in a guest, which meets the others here.
pub(super) fn start(guest: Guest, wrapper: &[&str], arguments: &[&str]) -> Running {
    let slackline = [env!("CARGO_BIN_EXE_slackline")];
    let words = [wrapper, &slackline, arguments].concat();
    let meet = format!("{}:7000", environment("SLACKLINE_RIG_ADDRESS"));
    let mut command = guest.command(words[0]);
    command.args(&words[1..]).args(["--rendezvous", &meet]);
    command.env("SLACKLINE_SECRET", "known to both guests").env_remove("SLACKLINE_SECRET_FILE");
    command.env("RUST_LOG", "slackline=info").env("NO_COLOR", "1");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    Running::new(command.spawn().expect("the program starts"))
}

impl Job {
    /// Begins one with a server and two workers in these guests, and waits until it is under way.
    pub(super) fn new(server: Guest, workers: [Guest; 2], options: &str) -> Job {
        let folder = TempDir::new().unwrap();
        let json = folder.path().join("json");
        let fixed = ["train", "--coordinate", "--transport", "verbs", "--json", json.to_str().unwrap()];
        let coordinator =
            start(Guest::Here, &[], &fixed.into_iter().chain(options.split(' ')).collect::<Vec<_>>());
        let server = start(server, &[], &["serve"]);
        let workers = [0, 1].map(|role_rank| Job::work(role_rank, workers[role_rank]));
        let mut job = Job { coordinator, server, workers: workers.into(), folder };
        job.coordinator.wait_for("2 paths over verbs (it is required)");
        job
    }

    /// Starts one worker. The last that is heard of it is when it ended, in seconds since its guest was booted.
    pub(super) fn work(role_rank: usize, guest: Guest) -> Running {
        let script = r#""$@"; code=$?; read -r up _ </proc/uptime; echo "ended at $up" >&2; exit $code"#;
        start(guest, &["sh", "-c", script, "work"], &["work", "--role-rank", &role_rank.to_string()])
    }

    /// Waits for a good end of all; what the coordinator said, and the JSON that it wrote.
    pub(super) fn succeeds(self) -> (String, Value) {
        let said = self.coordinator.end(0);
        self.server.end(0);
        self.workers.into_iter().for_each(|worker| drop(worker.end(0)));
        let json = fs::read(self.folder.path().join("json")).expect("the coordinator wrote it");
        (said, serde_json::from_slice(&json).expect("JSON"))
    }
}
