//! Aggregating proxies: a server on each host sums its workers' gradients, over shared memory below and TCP above.

use slackline::{NonFinite, ReadMode};

use super::super::*;
use crate::host_job::{
    Compute, HostsJob, bits, connect, memory, sums_of_integers_are_those_of_the_job_without_proxies, train,
};

/// Plain loops: first over the workers of each host, then over hosts, each addition rounded to f32.
#[test]
fn sums_are_made_host_by_host_in_the_order_of_joining_to_the_bit() {
    let optimizer = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
    let options = ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 1, 0.1) };
    let (hosts, elements, clocks): (&[usize], _, _) = (&[2, 3, 1], 1003, 6);
    let job = HostsJob { hosts, options, elements, clocks, compute: gradient_of };
    let (got, status) = job.over_proxies(Tcp::new(), "127.0.0.1:0");

    let (mut parameters, mut momenta) = (vec![0.5f32; elements], vec![0f32; elements]);
    for clock in 0..clocks {
        let mut gradients = vec![vec![0f32; elements]; 6];
        for (worker, gradient) in gradients.iter_mut().enumerate() {
            gradient_of(&parameters, worker, clock, gradient);
        }
        for index in 0..elements {
            let of = |worker: usize| gradients[worker][index];
            let sums = [of(0) + of(1), of(2) + of(3) + of(4), of(5)];
            let weight = 1.0f32 / 6.0;
            let mean = weight * sums[0] + weight * sums[1] + weight * sums[2];
            momenta[index] = 0.9 * momenta[index] + mean;
            parameters[index] -= 0.1 * momenta[index];
        }
    }
    assert_eq!(bits(&got), bits(&parameters));
    // The loss of each worker counts alike, too: the mean of 0, 1, ... 5. All gradients are counted.
    assert_eq!((status.loss, status.gradients, status.folded), (Some(2.5), 6, 6 * clocks));
}

#[test]
fn sums_of_integers_over_tcp_are_those_of_the_job_without_proxies() {
    sums_of_integers_are_those_of_the_job_without_proxies(Tcp::new(), "127.0.0.1:0");
}

#[test]
fn a_job_over_proxies_trains_to_the_parameters_of_one_without_them() {
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.1);
    let job = HostsJob { hosts: &[2, 2], options, elements: 1000, clocks: 20, compute: gradient_of };
    let (over_proxies, flat) = (job.over_proxies(Tcp::new(), "127.0.0.1:0").0, job.flat());
    // Each of 20 steps may round a few times more or less, at values of about 1.
    let worst = over_proxies.iter().zip(&flat).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(worst <= 20.0 * 4.0 * f32::EPSILON, "{worst}");
}

#[test]
fn sums_that_add_up_count_whole() {
    let options = ServerOptions { additive: true, ..ServerOptions::new(SchemeConfig::Bsp, 1, 1.0) };
    let compute: Compute = |_, worker, _, gradient| gradient.fill((1 << worker) as f32);
    let job = HostsJob { hosts: &[2, 1], options, elements: 10, clocks: 3, compute };
    assert_eq!(job.over_proxies(Tcp::new(), "127.0.0.1:0").0, [0.5 - 3.0 * 7.0; 10]);
}

/// The workers' encoding ends at the proxy: what it hands on is f32.
#[test]
fn workers_of_a_host_may_round_their_gradients() {
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 1.0);
    let job = HostsJob { hosts: &[2], options, elements: 100, clocks: 1, compute: gradient_of };
    let mut top = job.top(Tcp::new(), "127.0.0.1:0", 1);
    let upstream = [top.address()];
    let parameters = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(top.drive(|top| top.status().left == 1, TIMEOUT).unwrap());
            top.parameters().unwrap()
        });
        let upstream = Worker::connect(Tcp::new(), &upstream, WorkerOptions::default(), TIMEOUT).unwrap();
        let at = Address::random();
        let mut proxy = Server::for_host(upstream, Shm::new(), &at, 2, memory(), TIMEOUT).unwrap();
        scope.spawn(move || assert!(proxy.drive(|proxy| proxy.status().left == 2, TIMEOUT).unwrap()));
        // Each has eight bits, as bf16 keeps them, and their sum has more.
        for value in [1.0, 1.0 / 512.0] {
            let address = std::slice::from_ref(&at);
            let options = WorkerOptions { encoding: Encoding::Bf16, ..WorkerOptions::default() };
            let mut worker = Worker::connect(Shm::new(), address, options, TIMEOUT).unwrap();
            scope.spawn(move || {
                let mut step = worker.step(TIMEOUT).unwrap();
                step.encode(&[value; 100]).unwrap();
                step.publish(None, TIMEOUT).unwrap();
                worker.flush(TIMEOUT).unwrap();
            });
        }
        serving.join().unwrap()
    });
    assert_eq!(parameters, [0.5 - (1.0 + 1.0 / 512.0) / 2.0; 100]);
}

/// One that is not finite takes all of its host's along: the sum cannot be taken apart any more.
#[test]
fn a_gradient_that_is_not_finite_is_left_out_with_all_of_its_host() {
    let options =
        ServerOptions { non_finite: NonFinite::Drop, ..ServerOptions::new(SchemeConfig::Bsp, 1, 1.0) };
    let compute: Compute = |_, worker, clock, gradient| {
        gradient.fill(if worker == 1 && clock == 1 { f32::NAN } else { 4.0 });
    };
    let job = HostsJob { hosts: &[2, 2], options, elements: 10, clocks: 3, compute };
    // Clocks 0 and 2: 4. Clock 1: the two gradients that are left, at the weight of one in four.
    assert_eq!(job.over_proxies(Tcp::new(), "127.0.0.1:0").0, [0.5 - 4.0 - 2.0 - 4.0; 10]);
}

/// A worker that leaves a host takes its part out of the mean, and no more than that.
#[test]
fn each_worker_that_is_in_has_the_same_weight_when_one_leaves_a_host() {
    let options = ServerOptions::new(SchemeConfig::Bsp, 2, 1.0);
    let job = HostsJob { hosts: &[2, 1], options, elements: 1, clocks: 1, compute: gradient_of };
    let mut top = job.top(Tcp::new(), "127.0.0.1:0", 2);
    let address = top.address();
    let parameters = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(top.drive(|top| top.status().left == 2, TIMEOUT).unwrap());
            top.parameters().unwrap()
        });
        let connected = job.hosts.iter().map(|size| {
            let address = std::slice::from_ref(&address);
            let upstream = Worker::connect(Tcp::new(), address, WorkerOptions::default(), TIMEOUT).unwrap();
            let at = Address::random();
            let proxy = Server::for_host(upstream, Shm::new(), &at, *size, memory(), TIMEOUT);
            let (mut proxy, left) = (proxy.unwrap(), *size as u64);
            scope.spawn(move || assert!(proxy.drive(|proxy| proxy.status().left == left, TIMEOUT).unwrap()));
            (0..*size).map(|_| connect(&at)).collect::<Vec<_>>()
        });
        // Each worker's gradient is its own number. The one of the 2 leaves after a clock.
        let workers: Vec<_> = connected.flatten().collect();
        for (mut worker, (value, clocks)) in workers.into_iter().zip([(1.0, 3), (2.0, 1), (6.0, 3)]) {
            scope.spawn(move || {
                for _ in 0..clocks {
                    let mut step = worker.step(TIMEOUT).unwrap();
                    step.gradient().unwrap().fill(value);
                    step.publish(None, TIMEOUT).unwrap();
                }
                worker.flush(TIMEOUT).unwrap();
            });
        }
        serving.join().unwrap()
    });
    // The mean of 1, 2 and 6, then twice that of 1 and 6.
    assert_eq!(parameters, [0.5 - 3.0 - 3.5 - 3.5]);
}

/// Workers 1, 2 and 4 at one proxy, and 8 beside it at a second one, which sums the two.
#[test]
fn a_proxy_may_stand_for_proxies() {
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 1.0);
    let job = HostsJob { hosts: &[3, 1], options, elements: 100, clocks: 1, compute: gradient_of };
    let mut top = job.top(Tcp::new(), "127.0.0.1:0", 1);
    let address = top.address();
    let parameters = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(top.drive(|top| top.status().left == 1, TIMEOUT).unwrap());
            top.parameters().unwrap()
        });
        let upstream = Worker::connect(Tcp::new(), &[address], WorkerOptions::default(), TIMEOUT).unwrap();
        let (rack, host) = (Address::random(), Address::random());
        let mut proxy = Server::for_host(upstream, Shm::new(), &rack, 2, memory(), TIMEOUT).unwrap();
        scope.spawn(move || assert!(proxy.drive(|proxy| proxy.status().left == 2, TIMEOUT).unwrap()));
        let upstream = connect(&rack);
        let mut proxy = Server::for_host(upstream, Shm::new(), &host, 3, memory(), TIMEOUT).unwrap();
        scope.spawn(move || assert!(proxy.drive(|proxy| proxy.status().left == 3, TIMEOUT).unwrap()));
        let compute: Compute = |_, worker, _, gradient| gradient.fill((1 << worker) as f32);
        for (worker, at) in [&host, &host, &host, &rack].into_iter().enumerate() {
            let connected = connect(at);
            scope.spawn(move || train(connected, worker, 3, compute));
        }
        serving.join().unwrap()
    });
    // Three times the mean of 1, 2, 4 and 8.
    assert_eq!(parameters, [0.5 - 3.0 * 3.75; 100]);
}

/// A worker that comes from another job is ahead of this one's servers: its sum would be of another clock.
#[test]
fn a_proxy_whose_workers_are_not_at_the_clock_of_the_servers_gives_up() {
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 1.0);
    let job = HostsJob { hosts: &[1], options, elements: 10, clocks: 1, compute: gradient_of };
    std::thread::scope(|scope| {
        let start = || {
            let mut top = job.top(Shm::new(), &Address::random().to_string(), 1);
            let address = top.address();
            scope.spawn(move || assert!(top.drive(|top| top.status().left == 1, TIMEOUT).unwrap()));
            let upstream =
                Worker::connect(Shm::new(), &[address], WorkerOptions::default(), TIMEOUT).unwrap();
            let at = Address::random();
            let mut proxy = Server::for_host(upstream, Shm::new(), &at, 1, memory(), TIMEOUT).unwrap();
            (at, scope.spawn(move || proxy.drive(|proxy| proxy.status().left == 1, TIMEOUT)))
        };
        let (at, first) = start();
        let mut worker = connect(&at);
        for _ in 0..3 {
            worker.step(TIMEOUT).unwrap().publish(None, TIMEOUT).unwrap();
        }
        worker.flush(TIMEOUT).unwrap();
        let (at, second) = start();
        worker.reconnect(&[at], TIMEOUT).unwrap();
        assert!(first.join().unwrap().unwrap());
        worker.step(TIMEOUT).unwrap().publish(None, TIMEOUT).unwrap();
        let error = second.join().unwrap().expect_err("the servers are at clock 0").to_string();
        assert!(error.contains("not at one clock and version"), "{error}");
    });
}

#[test]
fn a_proxy_refuses_what_it_cannot_sum_by_name() {
    let refusal = |scheme: &str, options: WorkerOptions| {
        let scheme: SchemeConfig = scheme.parse().unwrap();
        let table = Table::flat(10, ElementType::F32).unwrap();
        let options_of_server = ServerOptions::new(scheme, 1, 0.5);
        let mut server =
            Server::new(Shm::new(), &Address::random(), table, &[0.0; 10], options_of_server).unwrap();
        let address = [server.address()];
        std::thread::scope(|scope| {
            let refused = scope.spawn(move || {
                let upstream = Worker::connect(Shm::new(), &address, options, TIMEOUT).unwrap();
                let at = Address::random();
                let proxy = Server::for_host(upstream, Shm::new(), &at, 1, memory(), TIMEOUT);
                proxy.err().expect("it is refused").to_string()
            });
            assert!(server.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
            refused.join().unwrap()
        })
    };
    for scheme in ["asp", "ssp(2)", "essp(2)", "bap(2)", "vap(0.5)", "dbw", "abs", "delay(1)"] {
        let refusal = refusal(scheme, WorkerOptions::default());
        let name = scheme.split('(').next().unwrap();
        assert!(refusal.contains(name) && refusal.contains("host"), "{refusal}");
    }
    let bf16 = WorkerOptions { encoding: Encoding::Bf16, ..WorkerOptions::default() };
    let in_place = WorkerOptions { read: ReadMode::InPlace, ..WorkerOptions::default() };
    let own = WorkerOptions { own_step: Some(0.5), ..WorkerOptions::default() };
    for (option, options) in [("encoding", bf16), ("read", in_place), ("own_step", own)] {
        let refusal = refusal("bsp", options);
        assert!(refusal.starts_with(&format!("option {option} cannot be")), "{refusal}");
    }
}
