//! Servers that stand for their host: a worker, the host's server or the job's server is killed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use slackline::{
    Address, Error, Server, ServerOptions, ShardOptions, Shm, Worker, WorkerOptions, scheme::SchemeConfig,
};

use super::second::{
    LONG_LEASE, NOTICE, PATIENCE, Second, drive, retry, server, table, told, train, wait_for,
};

const ELEMENTS: usize = 1000;

fn top_options(hosts: usize) -> ServerOptions {
    let mut options = ServerOptions::new(SchemeConfig::Bsp, hosts, 1.0);
    options.memory.lease = LONG_LEASE;
    options
}

/// The server of a host with so many workers, once the job's server listens.
fn proxy(top: &Address, at: &Address, workers: usize) -> Server<Shm> {
    let memory = ShardOptions { lease: LONG_LEASE, ..ShardOptions::default() };
    let upstream = connect(top);
    Server::for_host(upstream, Shm::new(), at, workers, memory, PATIENCE).unwrap()
}

fn connect(address: &Address) -> Worker<Shm> {
    let options = WorkerOptions::new(SchemeConfig::Bsp);
    retry(|| Worker::connect(Shm::new(), std::slice::from_ref(address), options.clone(), PATIENCE))
}

/// Drives a host's server until all of its workers have left.
fn serve(proxy: &mut Server<Shm>, workers: u64) -> Result<bool, Error> {
    proxy.drive(|proxy| proxy.status().left == workers, PATIENCE)
}

/// Trains until it is told to stop, and counts its clocks.
fn train_on(address: &Address, stop: &AtomicBool, clocks: &AtomicU64) {
    let mut worker = connect(address);
    while !stop.load(SeqCst) {
        train(&mut worker, 1.0).unwrap();
        clocks.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_host_goes_on_without_a_killed_worker_and_the_mean_is_that_of_the_rest() {
    if let Some(words) = told() {
        train_on(&words[0].parse().unwrap(), &AtomicBool::new(false), &AtomicU64::new(0));
    }
    let mut top = server(ELEMENTS, top_options(2));
    let (address, hosts) = (top.address(), [Address::random(), Address::random()]);
    let claim = a_host_goes_on_without_a_killed_worker_and_the_mean_is_that_of_the_rest;
    let mut victim = Second::start(claim, &[hosts[0].to_string()]);
    let (stop, clocks, left) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2], AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (index, (host, workers)) in hosts.iter().zip([2, 1]).enumerate() {
            let (address, stop, clocks, left) = (&address, &stop, &clocks[index], &left);
            scope.spawn(move || {
                let mut proxy = proxy(address, host, workers);
                let until = |proxy: &Server<Shm>| {
                    left.fetch_max(proxy.status().left, SeqCst);
                    proxy.status().left == workers as u64
                };
                assert!(proxy.drive(until, PATIENCE).unwrap());
            });
            scope.spawn(move || train_on(host, stop, clocks));
        }
        let past = |server: &Server<Shm>, clock| {
            clocks.iter().all(|clocks| clocks.load(SeqCst) >= clock) && server.status().left == 0
        };
        drive(&mut top, "all to train", |top| past(top, 30));
        victim.kill();
        drive(&mut top, "the host's server to notice", |_| left.load(SeqCst) == 1);
        let before = clocks[1].load(SeqCst);
        drive(&mut top, "the others to go on", |top| past(top, before + 30));
        stop.store(true, SeqCst);
        drive(&mut top, "all to end", |top| top.status().left == 2);
    });
    // Each gradient is 1, and so is the mean of any of them: the step size is 1.
    let (version, value) = (top.status().version.get() as f32, top.parameters().unwrap()[0]);
    assert!((value + version).abs() < 1e-3 * version, "{value} after {version} versions");
}

#[test]
fn workers_lose_a_killed_server_of_their_host_and_the_job_loses_one_host() {
    if let Some(words) = told() {
        let [top, at] = [&words[0], &words[1]].map(|word| word.parse().unwrap());
        serve(&mut proxy(&top, &at, 2), 2).unwrap();
        panic!("this server was not killed");
    }
    let mut top = server(ELEMENTS, top_options(2));
    let (address, hosts) = (top.address(), [Address::random(), Address::random()]);
    let claim = workers_lose_a_killed_server_of_their_host_and_the_job_loses_one_host;
    let mut victim = Second::start(claim, &[address.to_string(), hosts[0].to_string()]);
    let (stop, clocks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let bereft: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut worker = connect(&hosts[0]);
                    loop {
                        if let Err(error) = train(&mut worker, 1.0) {
                            break error;
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| serve(&mut proxy(&address, &hosts[1], 1), 1).unwrap());
        scope.spawn(|| train_on(&hosts[1], &stop, &clocks));
        drive(&mut top, "all to train", |_| clocks.load(SeqCst) >= 30);
        victim.kill();
        let noticed = top.drive(|top| top.status().left == 1, NOTICE).unwrap();
        assert!(noticed, "the end of the host is not noticed");
        let before = clocks.load(SeqCst);
        drive(&mut top, "the other host to go on", |_| clocks.load(SeqCst) >= before + 30);
        for worker in bereft {
            let error = worker.join().unwrap();
            assert!(matches!(error, Error::ServerLost { .. }), "{error}");
        }
        stop.store(true, SeqCst);
        drive(&mut top, "all to end", |top| top.status().left == 2);
    });
}

#[test]
fn a_host_whose_job_has_lost_its_server_says_so_and_tells_its_workers() {
    if let Some(words) = told() {
        let top = words[0].parse().unwrap();
        let mut top =
            Server::new(Shm::new(), &top, table(ELEMENTS), &[0.0; ELEMENTS], top_options(1)).unwrap();
        top.drive(|_| false, PATIENCE).unwrap();
        panic!("this server was not killed");
    }
    let [address, at] = [Address::random(), Address::random()];
    let claim = a_host_whose_job_has_lost_its_server_says_so_and_tells_its_workers;
    let mut top = Second::start(claim, &[address.to_string()]);
    let clocks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&mut proxy(&address, &at, 1), 1).expect_err("the server is gone"));
        let training = scope.spawn(|| {
            let mut worker = connect(&at);
            loop {
                match train(&mut worker, 1.0) {
                    Ok(_) => clocks.fetch_add(1, SeqCst),
                    Err(error) => break error,
                };
            }
        });
        wait_for("the worker to train", || (clocks.load(SeqCst) >= 20).then_some(()));
        top.kill();
        for error in [serving.join().unwrap(), training.join().unwrap()] {
            assert!(matches!(error, Error::ServerLost { .. }), "{error}");
        }
    });
}
