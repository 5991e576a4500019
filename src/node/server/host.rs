//! A server that stands for its host: an aggregating proxy.

use super::{IncarnationStart, Server, ServerOptions};
use crate::node::folder_host::HostFolder;
use crate::node::taken::Applied;
use crate::node::{Error, ShardOptions, Worker};
use crate::time::Duration;
use crate::transport::{Address, Transport};

impl<T: Transport> Server<T> {
    /// Begins to serve the workers of one host at `address`, and stands for them at the servers of the job: an
    /// aggregating proxy. One connection per server leaves the host, and one gradient per clock, however many workers
    /// it has.
    ///
    /// In each round it sums the gradients of its workers, which are `workers` in number. `upstream`, a worker at the
    /// job's servers, publishes the sum, together with the number of gradients in it; the version that the servers make
    /// of it is the next one here, with their number, clock and parameters. No step of an optimiser is made here. The
    /// servers give each worker of the job the same weight, so hosts may have unequal numbers of workers, and a worker
    /// that dies takes its part out of the mean alone. To the servers each host is one worker: their
    /// [`ServerOptions::workers`] counts hosts.
    ///
    /// Sums are f32, rounded after each addition: first over the host's workers, then over hosts, each in the order in
    /// which they joined. The workers' gradients may be in any encoding. The whole table is one shard here, for any
    /// number of servers.
    ///
    /// `timeout` is for the first parameters. Then [`serve`](Self::serve) it until all workers have left, and drop it:
    /// as long as it is there and has no worker, the servers wait for its next gradient. Workers whose server this is
    /// lose it if it ends, and the servers evict one worker.
    ///
    /// # Errors
    /// A scheme other than BSP ([`Error::Scheme`]), gradients of `upstream` that are not f32, parameters that it reads
    /// where they lie, read-my-writes, or a `transport` with a GPU ([`Error::Option`]). Later, `serve` fails when a
    /// server of the job is lost or has evicted this host.
    ///
    /// ```
    /// use slackline::{
    ///     Address, ElementType, Server, ServerOptions, ShardOptions, Shm, Table, Worker, WorkerOptions,
    ///     scheme::SchemeConfig,
    /// };
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_secs(10);
    /// let [top, host] = [Address::random(), Address::random()];
    /// let table = Table::flat(4, ElementType::F32)?;
    /// let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5); // one host
    /// let mut server = Server::new(Shm::new(), &top, table, &[1.0; 4], options)?;
    /// let serving = std::thread::spawn(move || {
    ///     server.serve(1, timeout)?;
    ///     server.parameters()
    /// });
    ///
    /// let upstream = Worker::connect(Shm::new(), &[top], WorkerOptions::default(), timeout)?;
    /// let memory = ShardOptions::default();
    /// let mut proxy = Server::for_host(upstream, Shm::new(), &host, 1, memory, timeout)?;
    /// let proxying = std::thread::spawn(move || proxy.serve(1, timeout));
    ///
    /// let mut worker = Worker::connect(Shm::new(), &[host], WorkerOptions::default(), timeout)?;
    /// let mut step = worker.step(timeout)?;
    /// step.gradient()?.fill(1.0);
    /// step.publish(None, timeout)?;
    /// worker.flush(timeout)?;
    /// drop(worker);
    /// assert!(proxying.join().unwrap()?);
    /// assert_eq!(serving.join().unwrap()?, [0.5; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_host<U: Transport>(
        mut upstream: Worker<U>,
        transport: T,
        address: &Address,
        workers: usize,
        memory: ShardOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        if transport.gpu().is_some() {
            let (option, value) = ("transport", transport.capabilities().name.to_owned());
            let reason = "a host's gradients are summed in its own memory: use a transport without a GPU";
            return Err(Error::Option { option, value, reason });
        }
        let view = upstream.stand_for_host(timeout)?;
        let parameters = upstream.resume()?;
        let initial = parameters.parameters()?.to_vec();
        parameters.suspend();
        let (table, scheme) = (upstream.table().clone(), upstream.scheme().clone());
        let start = IncarnationStart {
            parameters: &initial,
            states: &[],
            version: view.version,
            smallest_clock: view.clock,
            folded: 0,
            applied: Applied::default(),
            learned: None,
            from: None,
            folder: Some(Box::new(HostFolder::new(upstream)?)),
        };
        // Sums: each gradient counts whole. The step size is the servers' own.
        let options = ServerOptions { additive: true, memory, ..ServerOptions::new(scheme, workers, 1.0) };
        Self::begin(transport, address, table, start, options)
    }
}
