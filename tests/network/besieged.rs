//! A job that trains beside one listener: its rounds are counted, and honest workers come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackline::internals::job::rendezvous::{Host, Hub, HubOptions, Introduction, MemberRole, Membership};
use slackline::{
    Address, ElementType, Secret, Server, ServerOptions, Shm, Table, Tcp, Transport, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

/// Parameters of the job.
const ELEMENTS: usize = 16 << 10;

/// Workers that train all the time.
const WORKERS: usize = 2;

/// Time for which a worker computes in each round. It sleeps: in a job it computes on a processor of its own.
const COMPUTING: Duration = Duration::from_millis(1);

/// Longest time that anything may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// A listener of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Besieged {
    /// The rendezvous of a job that runs over shared memory.
    Hub,
    /// The owner of a shard over shared memory.
    Shm,
    /// The owner of a shard over TCP.
    Tcp,
}

/// The job, with its listener in this process.
pub(crate) struct Job {
    /// The address at which the besieged listener listens.
    pub(crate) address: Address,
    join: Box<dyn Fn()>,
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Job {
    pub(crate) fn start(besieged: Besieged) -> Job {
        match besieged {
            Besieged::Shm => Job::train(Shm::new(), Address::random()),
            Besieged::Tcp => {
                Job::train(Tcp::with_secret(Secret::random().unwrap()), "127.0.0.1:0".parse().unwrap())
            }
            Besieged::Hub => {
                let mut job = Job::train(Shm::new(), Address::random());
                let secret = Some(Secret::random().unwrap());
                let options = HubOptions { secret: secret.clone(), ..HubOptions::default() };
                let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), options).unwrap();
                let address = hub.address();
                let stop = Arc::clone(&job.stop);
                job.threads.push(std::thread::spawn(move || {
                    while !stop.load(SeqCst) {
                        while hub.poll().is_some() {}
                        hub.wait(Duration::from_millis(20));
                    }
                }));
                job.address = Address::Tcp(address);
                job.join = Box::new(move || {
                    let introduction = Introduction::new(MemberRole::Worker, Host::own());
                    Membership::join(&address.to_string(), introduction, secret.clone(), PATIENCE).unwrap();
                });
                job
            }
        }
    }

    fn train<T: Transport + Clone>(transport: T, at: Address) -> Job {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Asp, WORKERS, 0.1);
        let mut server = Server::new(transport.clone(), &at, table, &vec![0.0; ELEMENTS], options).unwrap();
        let (address, rounds) = (server.address(), Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let mut threads = vec![std::thread::spawn(move || {
            while !ended.load(SeqCst) {
                server.drive(|_| ended.load(SeqCst), Duration::from_millis(100)).unwrap();
            }
        })];
        for _ in 0..WORKERS {
            let (transport, address, rounds) = (transport.clone(), address.clone(), Arc::clone(&rounds));
            let stop = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || {
                let mut worker = enter(&transport, &address);
                while !stop.load(SeqCst) {
                    std::thread::sleep(COMPUTING);
                    // The server may have ended first.
                    match round(&mut worker) {
                        Ok(()) => rounds.fetch_add(1, SeqCst),
                        Err(_) if stop.load(SeqCst) => return,
                        Err(error) => panic!("{error}"),
                    };
                }
            }));
        }
        let join = {
            let address = address.clone();
            Box::new(move || round(&mut enter(&transport, &address)).unwrap())
        };
        Job { address, join, rounds, stop, threads }
    }

    /// Rounds of all workers so far.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(SeqCst)
    }

    /// Lets an honest worker join and leave again; how long joining took.
    pub(crate) fn join(&self) -> Duration {
        let begun = Instant::now();
        (self.join)();
        begun.elapsed()
    }
}

fn enter<T: Transport + Clone>(transport: &T, address: &Address) -> Worker<T> {
    let options = WorkerOptions::new(SchemeConfig::Asp);
    Worker::connect(transport.clone(), std::slice::from_ref(address), options, PATIENCE).unwrap()
}

fn round<T: Transport>(worker: &mut Worker<T>) -> Result<(), slackline::Error> {
    let mut step = worker.step(PATIENCE)?;
    step.gradient()?.fill(0.001);
    step.publish(None, PATIENCE)
}

impl Drop for Job {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "a process of the job failed");
        }
    }
}
