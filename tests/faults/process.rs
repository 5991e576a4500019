//! Processes of a test: the test binary runs itself again, with only the same test.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use slackline::{
    Address, ElementType, Secret, Server, ServerOptions, ServerStatus, Table, Tcp, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

use super::job::{PATIENCE, pattern, wait_for};

const CHILD: &str = "SLACKLINE_FAULTS_CHILD";

pub(super) const ELEMENTS: usize = 2000;

/// Whether this is a second process; then it does what it was told, and never returns.
pub(super) fn is_told() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let words: Vec<_> = told.split(' ').collect();
    // Not to outlive the test: its end of the pipe closes with it.
    std::thread::spawn(|| {
        let _ended = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    match words[..] {
        ["serve", secret, scheme, workers, path] => {
            serve(secret, config(scheme), workers.parse().unwrap(), Path::new(path))
        }
        ["work", secret, scheme, address] => loop {
            let mut worker = worker(secret, config(scheme), &address.parse().unwrap()).unwrap();
            while train(&mut worker).is_ok() {}
        },
        _ => panic!("{told}"),
    }
}

fn config(name: &str) -> SchemeConfig {
    name.parse().unwrap()
}

pub(super) fn secret(text: &str) -> Secret {
    Secret::from_text(text, "the test").unwrap()
}

pub(super) fn worker(
    text: &str,
    scheme: SchemeConfig,
    address: &Address,
) -> Result<Worker<Tcp>, slackline::Error> {
    let options = WorkerOptions { checksums: true, ..WorkerOptions::new(scheme) };
    Worker::connect(Tcp::with_secret(secret(text)), std::slice::from_ref(address), options, PATIENCE)
}

pub(super) fn train(worker: &mut Worker<Tcp>) -> Result<(), slackline::Error> {
    let mut step = worker.step(PATIENCE)?;
    for (index, value) in step.gradient()?.iter_mut().enumerate() {
        *value = pattern(index);
    }
    step.publish(None, PATIENCE)
}

fn serve(text: &str, scheme: SchemeConfig, workers: usize, path: &Path) -> ! {
    let mut options = ServerOptions::new(scheme, workers, -1.0);
    options.memory.checksums = true;
    options.memory.chunk_bytes = 4096;
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    let any_port = "127.0.0.1:0".parse().unwrap();
    let tcp = Tcp::with_secret(secret(text));
    let mut server = Server::new(tcp, &any_port, table, &[0.0; ELEMENTS], options).unwrap();
    let partial = path.with_extension("partial");
    loop {
        let ServerStatus { workers, readers, joined, .. } = server.status();
        std::fs::write(&partial, format!("{} {workers} {readers} {joined}", server.address())).unwrap();
        std::fs::rename(&partial, path).unwrap();
        server.drive(|_| false, Duration::from_millis(20)).unwrap();
    }
}

/// A process that was told something. Killed when it is dropped.
pub(super) struct Process(pub(super) std::process::Child);

impl Process {
    pub(super) fn start<F: Fn()>(claim: F, words: &str) -> Process {
        // The crate's name comes before the path that the test harness knows.
        let path = std::any::type_name_of_val(&claim);
        let (_, name) = path.split_once("::").expect("a path");
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(CHILD, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("run this binary again");
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A server in a process of its own.
pub(super) struct ServerProcess {
    process: Process,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// Counts that a server tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) workers: u64,
    pub(super) readers: u64,
    pub(super) joined: u64,
}

/// Resources of the system that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// KiB of memory, and the most that it ever was.
    pub(super) memory: u64,
    pub(super) peak: u64,
    pub(super) threads: u64,
    pub(super) descriptors: u64,
}

impl ServerProcess {
    pub(super) fn start<F: Fn()>(
        claim: F,
        secret: &Secret,
        scheme: SchemeConfig,
        workers: usize,
    ) -> ServerProcess {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("told");
        let words = format!("serve {} {} {workers} {}", secret.expose(), scheme.name(), file.display());
        let process = Process::start(claim, &words);
        wait_for("the server to tell its address", || file.exists().then_some(()));
        ServerProcess { process, file, _folder: folder }
    }

    pub(super) fn address(&self) -> Address {
        std::fs::read_to_string(&self.file).unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    pub(super) fn told(&self) -> Told {
        let text = std::fs::read_to_string(&self.file).unwrap();
        let mut numbers = text.split(' ').skip(1).map(|word| word.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Told { workers: next(), readers: next(), joined: next() }
    }

    pub(super) fn usage(&self) -> Usage {
        let folder = format!("/proc/{}", self.process.0.id());
        let status = std::fs::read_to_string(format!("{folder}/status")).unwrap();
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let descriptors = std::fs::read_dir(format!("{folder}/fd")).unwrap().count() as u64;
        Usage { memory: line("VmRSS:"), peak: line("VmHWM:"), threads: line("Threads:"), descriptors }
    }
}
