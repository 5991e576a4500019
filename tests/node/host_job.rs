//! A job of several hosts: over an aggregating proxy on each of them, and without.

use slackline::scheme::SchemeConfig;
use slackline::{
    Address, ElementType, Server, ServerOptions, ServerStatus, ShardOptions, Shm, Table, Transport, Worker,
    WorkerOptions,
};

use crate::only_worker::TIMEOUT;

/// Computes a gradient from parameters, worker and clock.
pub(crate) type Compute = fn(&[f32], usize, u64, &mut [f32]);

/// A job of one server, some hosts and their workers.
pub(crate) struct HostsJob<'a> {
    /// The number of workers of each host.
    pub(crate) hosts: &'a [usize],
    pub(crate) options: ServerOptions,
    pub(crate) elements: usize,
    pub(crate) clocks: u64,
    pub(crate) compute: Compute,
}

/// Small enough for several in each vector.
pub(crate) fn memory() -> ShardOptions {
    ShardOptions { chunk_bytes: 256, ..ShardOptions::default() }
}

/// Trains for so many clocks; each view is the one that BSP promises.
pub(crate) fn train(mut worker: Worker<Shm>, index: usize, clocks: u64, compute: Compute) {
    for clock in 0..clocks {
        let mut step = worker.step(TIMEOUT).unwrap();
        let view = step.view();
        assert_eq!((view.clock.get(), view.version.get(), view.staleness()), (clock, clock, 0));
        let (parameters, gradient) = step.borrow().unwrap();
        compute(parameters, index, clock, gradient);
        step.publish(Some(index as f32), TIMEOUT).unwrap();
    }
    worker.flush(TIMEOUT).unwrap();
}

/// Connects one after the other, so that their order is known.
pub(crate) fn connect(address: &Address) -> Worker<Shm> {
    let options = WorkerOptions { checksums: true, ..WorkerOptions::new(SchemeConfig::Bsp) };
    Worker::connect(Shm::new(), std::slice::from_ref(address), options, TIMEOUT).unwrap()
}

impl HostsJob<'_> {
    pub(crate) fn top<T: Transport>(&self, transport: T, address: &str, peers: usize) -> Server<T> {
        let table = Table::flat(self.elements as u64, ElementType::F32).unwrap();
        let mut options = ServerOptions { workers: peers, ..self.options.clone() };
        options.memory.chunk_bytes = 512;
        Server::new(transport, &address.parse().unwrap(), table, &vec![0.5; self.elements], options).unwrap()
    }

    /// Trains over one proxy for each host, which reaches the server over `above`, and returns the parameters and the
    /// last status.
    pub(crate) fn over_proxies<T: Transport + Clone>(
        &self,
        above: T,
        address: &str,
    ) -> (Vec<f32>, ServerStatus) {
        let hosts = self.hosts.len();
        let mut top = self.top(above.clone(), address, hosts);
        let address = top.address();
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                assert!(top.drive(|top| top.status().left == hosts as u64, TIMEOUT).unwrap());
                assert_eq!((top.status().misbehaved, top.status().joined), (0, hosts as u64));
                (top.parameters().unwrap(), top.status())
            });
            let mut first = 0;
            for size in self.hosts {
                let options = WorkerOptions { checksums: true, ..WorkerOptions::default() };
                let upstream =
                    Worker::connect(above.clone(), std::slice::from_ref(&address), options, TIMEOUT);
                let (below, at) = (Shm::new(), Address::random());
                let proxy = Server::for_host(upstream.unwrap(), below, &at, *size, memory(), TIMEOUT);
                let (mut proxy, left) = (proxy.unwrap(), *size as u64);
                scope.spawn(move || {
                    assert!(proxy.drive(|proxy| proxy.status().left == left, TIMEOUT).unwrap())
                });
                for worker in first..first + size {
                    let connected = connect(&at);
                    scope.spawn(move || train(connected, worker, self.clocks, self.compute));
                }
                first += size;
            }
            serving.join().unwrap()
        })
    }

    /// Trains with each worker at the server itself.
    pub(crate) fn flat(&self) -> Vec<f32> {
        let workers = self.hosts.iter().sum();
        let mut top = self.top(Shm::new(), &Address::random().to_string(), workers);
        let address = top.address();
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                assert!(top.drive(|top| top.status().left == workers as u64, TIMEOUT).unwrap());
                top.parameters().unwrap()
            });
            for worker in 0..workers {
                let connected = connect(&address);
                scope.spawn(move || train(connected, worker, self.clocks, self.compute));
            }
            serving.join().unwrap()
        })
    }
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Where no addition rounds, the order of additions is none of the result.
pub(crate) fn sums_of_integers_are_those_of_the_job_without_proxies<T: Transport + Clone>(
    above: T,
    at: &str,
) {
    let compute: Compute = |_, worker, clock, gradient| {
        for (index, value) in gradient.iter_mut().enumerate() {
            *value = ((index * 13 + worker * 101 + clock as usize * 7) % 257) as f32 - 128.0;
        }
    };
    for hosts in [&[2, 2][..], &[1, 3], &[4]] {
        let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5);
        let job = HostsJob { hosts, options, elements: 300, clocks: 5, compute };
        assert_eq!(bits(&job.over_proxies(above.clone(), at).0), bits(&job.flat()), "{hosts:?}");
    }
}
