//! The second process of a test: the test binary runs itself again, with only the same test.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use slackline::{
    Address, Clock, ElementType, Error, Server, ServerOptions, Shm, Table, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

/// Longest time that any wait may take: far more than any of them needs.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// A dead process is noticed within this, on a machine however busy, and long before its lease is over.
pub(super) const NOTICE: Duration = Duration::from_secs(30);

/// A lease so long that no peer is let go while a test lasts.
pub(super) const LONG_LEASE: Duration = Duration::from_secs(600);

const SECOND: &str = "SLACKLINE_FAILURE_SECOND";

/// Returns the words that the second process is told, if this is that process.
pub(super) fn told() -> Option<Vec<String>> {
    Some(std::env::var(SECOND).ok()?.split(' ').map(str::to_owned).collect())
}

/// The second process. Killed if it still runs when this is dropped.
pub(super) struct Second(Child);

impl Second {
    /// Runs `claim` again in another process, which is told `words`.
    pub(super) fn start<F: Fn()>(claim: F, words: &[String]) -> Second {
        // The crate's name comes before the path that the test harness knows.
        let path = std::any::type_name_of_val(&claim);
        let (_, name) = path.split_once("::").expect("a path");
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(SECOND, words.join(" "))
            .stdout(Stdio::null())
            .spawn()
            .expect("run this binary again");
        Second(child)
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("signal a child of ours");
    }

    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.0.wait().expect("wait for a child of ours");
    }

    /// Returns whether all of its threads wait for something.
    pub(super) fn is_asleep(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("its threads");
        threads.filter_map(Result::ok).all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
        })
    }

    /// Returns how it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("wait for a child of ours")
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        wait_for("the second process to end", || self.ended())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _gone = self.0.kill();
            let _status = self.0.wait();
        }
    }
}

/// Calls `step` until it returns something.
pub(super) fn wait_for<R>(what: &str, mut step: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Calls `connect` until a process listens.
pub(super) fn retry<R>(connect: impl Fn() -> Result<R, Error>) -> R {
    wait_for("a process to listen", || match connect() {
        Ok(connected) => Some(connected),
        Err(Error::Connect(_)) => None,
        Err(error) => panic!("{error}"),
    })
}

pub(super) fn table(elements: usize) -> Table {
    Table::flat(elements as u64, ElementType::F32).unwrap()
}

/// A server of `elements` zeros at an address of its own.
pub(super) fn server(elements: usize, options: ServerOptions) -> Server<Shm> {
    Server::new(Shm::new(), &Address::random(), table(elements), &vec![0.0; elements], options).unwrap()
}

pub(super) fn worker(address: &Address, scheme: SchemeConfig) -> Worker<Shm> {
    Worker::connect(Shm::new(), std::slice::from_ref(address), WorkerOptions::new(scheme), PATIENCE).unwrap()
}

pub(super) fn drive(server: &mut Server<Shm>, what: &str, until: impl Fn(&Server<Shm>) -> bool) {
    assert!(server.drive(until, PATIENCE).unwrap(), "waited in vain for {what}");
}

/// Trains for one clock, with a gradient that is `value` everywhere.
pub(super) fn train(worker: &mut Worker<Shm>, value: f32) -> Result<Clock, Error> {
    let mut step = worker.step(PATIENCE)?;
    let view = step.view();
    step.gradient()?.fill(value);
    step.publish(None, PATIENCE)?;
    Ok(view.clock)
}

pub(super) const SCHEMES: [&str; 4] = ["bsp", "asp", "ssp", "essp"];

pub(super) fn scheme(name: &str) -> SchemeConfig {
    let settings: &[_] = if name.starts_with(['s', 'e']) { &[("staleness", "2")] } else { &[] };
    SchemeConfig::from_settings(name, settings).unwrap()
}

/// The exit codes by which a worker in a second process says which error ended it.
pub(super) const EVICTED: i32 = 42;
pub(super) const SERVER_LOST: i32 = 43;

/// A worker in the second process: trains until something goes wrong.
pub(super) fn train_until_it_fails(words: &[String]) -> ! {
    let (address, scheme) = (words[0].parse().unwrap(), scheme(&words[1]));
    let mut worker = worker(&address, scheme);
    loop {
        match train(&mut worker, 1.0) {
            Ok(_) => {}
            Err(Error::Evicted { .. }) => std::process::exit(EVICTED),
            Err(Error::ServerLost { .. }) => std::process::exit(SERVER_LOST),
            Err(error) => panic!("{error}"),
        }
    }
}
