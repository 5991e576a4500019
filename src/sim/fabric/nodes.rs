//! The programs of the nodes of a run: the futures of their ordinary calls, repeated in spite of all faults.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::judge::{Base, FabricJudge, PublishedVersion};
use super::net::{HostId, SharedNet, lock};
use super::plan::Plan;
use super::transport::SimTransport;
use super::values;
use crate::clock::{Version, VersionTag};
use crate::node::runtime::Runtime;
use crate::node::{
    Error, Fresh, LinkStatus, Passing, Publisher, PublisherOptions, Reader, ReaderOptions, Server,
    ServerOptions, ShardOptions, Wanted, Worker, WorkerOptions,
};
use crate::table::{ElementType, Table};
use crate::time::{Duration, Instant};
use crate::trace::{Certificate, TraceRecord};
use crate::transport::Address;

/// One incarnation of a node, as its program sees the world.
#[derive(Clone)]
pub(super) struct Incarnation {
    pub(super) plan: Rc<Plan>,
    pub(super) judge: Rc<RefCell<FabricJudge>>,
    pub(super) net: SharedNet,
    pub(super) node: usize,
    pub(super) host: HostId,
    pub(super) runtime: Runtime,
    /// The begin of the call that connected, until the next call has looked at the connections.
    pub(super) connecting: Cell<Option<Instant>>,
}

/// Returns the address at which the server of a shard listens, in all its incarnations.
fn address(shard: usize) -> Address {
    Address::Abstract(format!("server-{shard}"))
}

/// Returns the address at which a relay serves, in all its incarnations.
fn relay_address(index: usize) -> Address {
    Address::Abstract(format!("relay-{index}"))
}

impl Incarnation {
    /// Runs the node's program until its end.
    pub(super) async fn run(self) {
        let first_reader = self.plan.servers + self.plan.workers;
        let ended = if self.node < self.plan.servers {
            if self.plan.publishes() { self.publish().await } else { self.serve().await }
        } else if self.node < first_reader {
            self.work().await;
            Ok(())
        } else if let Some(relay) = self.node.checked_sub(first_reader + self.plan.readers) {
            self.relay(relay).await
        } else {
            self.read(self.node - first_reader).await;
            Ok(())
        };
        if let Err(error) = ended {
            self.judge.borrow_mut().fail(format!("node {}: {error}", self.node));
        }
    }

    fn transport(&self) -> SimTransport {
        SimTransport::of(&self.net, self.host)
    }

    fn is_over(&self) -> bool {
        self.judge.borrow().is_over()
    }

    fn draw(&self, least: u64, most: u64) -> u64 {
        lock(&self.net).random.between(least, most)
    }

    /// Draws the longest time that the next call may take.
    fn timeout(&self) -> Duration {
        Duration::from_millis(lock(&self.net).random.pick(&[2, 20, 200, 2_000]))
    }

    async fn pause(&self, least: u64, most: u64) {
        self.runtime.sleep(Duration::from_nanos(self.draw(least, most))).await;
    }

    fn now(&self) -> Instant {
        lock(&self.net).at()
    }

    /// Makes a call and has it judged.
    async fn call<R>(
        &self,
        name: &str,
        timeout: Duration,
        call: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let from = self.now();
        // Of several connections one may end while another one is still being made, and this call finds it.
        let since = self.connecting.take().unwrap_or(from);
        let result = call.await;
        let mut judge = self.judge.borrow_mut();
        judge.returned(self.node, name, from, self.now(), timeout);
        match &result {
            Ok(_) if matches!(name, "connect" | "reconnect") => self.connecting.set(Some(from)),
            Ok(_) => {}
            Err(error) => judge.erred(self.node, name, error, since),
        }
        result
    }

    async fn serve(&self) -> Result<(), Error> {
        // A server that follows the decisions of another begins again with it.
        while self.serve_once().await? {}
        Ok(())
    }

    /// Runs one incarnation of a server. True if it is to begin again, since its deciding server has.
    async fn serve_once(&self) -> Result<bool, Error> {
        let plan = &self.plan;
        let table = Table::flat(plan.elements, ElementType::F32)?;
        let range = table.shards(plan.servers)?[self.node].clone();
        let initial = self.judge.borrow().initial(self.node, (range.end - range.start) as usize / 4);
        let is_first = self.host < plan.nodes();
        let options = ServerOptions {
            shard: (self.node as u16, plan.servers as u16),
            memory: self.memory(),
            ..ServerOptions::new(plan.scheme.clone(), plan.quorum[usize::from(!is_first)], 1.0)
        };
        let mut server = Server::new(self.transport(), &address(self.node), table, &initial, options)?;
        self.judge.borrow_mut().born(self.node, server.epoch(), &initial);
        let seen = Cell::new(server.status().version);
        let is_done = |server: &Server<SimTransport>| {
            self.observe(server, &seen);
            self.judge.borrow_mut().members(server.status().workers);
            self.is_over() && self.workers_alive() == 0
        };
        loop {
            if !server.is_following() {
                match server.follow_async(&address(0), Duration::from_millis(20)).await {
                    Ok(()) => {
                        let version = server.status().version;
                        seen.set(version);
                        self.judge.borrow_mut().follows(server.epoch(), server.decider(), version.get());
                    }
                    Err(Error::AnotherIncarnation { .. }) => {
                        self.judge.borrow_mut().begins_again(self.node, server.decider(), self.now());
                        return Ok(true);
                    }
                    Err(Error::Deadline { .. } | Error::Connect(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            match server.drive_async(is_done, Duration::from_millis(10)).await {
                Ok(true) => return Ok(false),
                Ok(false) => {}
                Err(Error::ServerLost { .. } | Error::Evicted { .. }) if server.follows() => {}
                Err(error) => return Err(error),
            }
            let alive = self.workers_alive();
            self.judge.borrow_mut().status(&server.status(), self.now(), alive);
        }
    }

    /// Has the judge look at the work of the last poll of a server, which had made the versions up to `seen` before.
    fn observe(&self, server: &Server<SimTransport>, seen: &Cell<Version>) {
        let (mut judge, epoch) = (self.judge.borrow_mut(), server.epoch());
        server.dropped().iter().for_each(|gradient| judge.dropped(epoch, *gradient));
        let (version, smallest_clock, shares, payload) = server.newest();
        if version > seen.replace(version) {
            let payload = payload.as_volatile();
            judge.published(&PublishedVersion { epoch, version, smallest_clock, shares, payload });
        }
    }

    fn memory(&self) -> ShardOptions {
        ShardOptions {
            peers: self.plan.peers() as u16,
            frames: self.plan.frames,
            chunk_bytes: 64,
            lease: self.plan.lease,
            checksums: self.plan.checksums,
            ..ShardOptions::default()
        }
    }

    /// Publishes versions, each of one value throughout, or, where differences are kept, of a value of its own here and
    /// there; line by line.
    async fn publish(&self) -> Result<(), Error> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let table = Table::flat(self.plan.elements, ElementType::F32)?;
        let bytes = table.bytes() as usize;
        let memory = self.memory();
        let options = PublisherOptions { memory, deltas: self.plan.deltas, ..PublisherOptions::default() };
        let mut publisher = Publisher::new(self.transport(), &address(0), table, options)?;
        self.judge.borrow_mut().born(0, publisher.epoch(), &vec![0.0; bytes / 4]);
        let last = 4 * self.plan.goal;
        let mut values = vec![0.0f32; bytes / 4];
        for version in 1..=last {
            let value = (1000 * self.host as u64 + version) as f32;
            let changes: Vec<bool> =
                values.iter().map(|_| self.plan.deltas.is_none() || self.draw(0, 9) == 0).collect();
            let values_now = values.iter_mut().zip(changes);
            values_now.filter(|(_, changes)| *changes).for_each(|(one, _)| *one = value);
            let words: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.judge.borrow_mut().publishes(publisher.epoch(), words.clone(), version == last);
            // Now and then it gives a version up, which has another content when it comes again.
            if self.draw(0, 7) == 0 {
                let memory = publisher.publish_begin_async(PATIENCE).await?;
                for (at, line) in (0..).step_by(64).zip(words.chunks(64)) {
                    memory.subslice(at, line.len()).write(&vec![0xff; line.len()]);
                    self.pause(100, self.plan.distribution.latency.1).await;
                }
                publisher.publish_abort();
            }
            let memory = publisher.publish_begin_async(PATIENCE).await?;
            for (at, line) in (0..).step_by(64).zip(words.chunks(64)) {
                memory.subslice(at, line.len()).write(line);
                if self.draw(0, 3) == 0 {
                    self.pause(100, self.plan.distribution.latency.1).await;
                }
            }
            let record = publisher.publish_commit_recorded(VersionTag::step(version))?;
            self.judge.borrow_mut().recorded(TraceRecord::Publication(record), self.now());
            self.judge.borrow_mut().has_published(publisher.epoch());
            let rest = Duration::from_nanos(self.draw(self.plan.compute.0, self.plan.compute.1));
            publisher.drive_async(|_| false, rest).await?;
        }
        while !publisher.drive_async(|_| self.is_over(), Duration::from_millis(10)).await? {}
        Ok(())
    }

    fn workers_alive(&self) -> usize {
        let net = lock(&self.net);
        let workers = self.plan.servers..self.plan.servers + self.plan.workers;
        net.hosts.iter().filter(|host| host.is_alive && workers.contains(&host.node)).count()
    }

    async fn work(&self) {
        let index = self.node - self.plan.servers;
        let servers: Vec<_> = (0..self.plan.servers).map(address).collect();
        let options = WorkerOptions {
            checksums: self.plan.checksums,
            identity: Some(index as u32),
            ..WorkerOptions::new(self.plan.scheme.clone())
        };
        while !self.is_over() {
            let timeout = self.timeout();
            self.judge.borrow_mut().unrest(self.now());
            let connect = Worker::connect_async(self.transport(), &servers, options.clone(), timeout);
            let Ok(mut worker) = self.call("connect", timeout, connect).await else {
                // One of several servers may have taken it in.
                self.judge.borrow_mut().leaves();
                self.pause(10_000, 5_000_000).await;
                continue;
            };
            self.joined(index, &worker);
            self.session(index, &mut worker, &servers).await;
            self.judge.borrow_mut().leaves();
            drop(worker);
            self.judge.borrow_mut().unrest(self.now());
        }
    }

    fn joined(&self, index: usize, worker: &Worker<SimTransport>) {
        self.judge.borrow_mut().joined(index, worker.links().map(|link| (link.epoch, link.peer)));
    }

    /// Whether a worker begins its next step while a gradient is on its way.
    fn goes_on(&self) -> bool {
        self.plan.scheme.built_in().is_some_and(|scheme| scheme.publishes_in_background())
    }

    /// Works until the job is over or the worker is to begin again.
    async fn session(&self, index: usize, worker: &mut Worker<SimTransport>, servers: &[Address]) {
        let mut published = None;
        // The gradient of the clock before, where a step begins while it is on its way. After the loss of a server it
        // may be void.
        let mut on_its_way = None;
        let goes_on = self.goes_on();
        while !self.is_over() {
            let timeout = self.timeout();
            let step = async { Ok(worker.step_async(timeout).await?.suspend()) };
            let began = self.call("step", timeout, step).await;
            let view = match began {
                Ok(view) => view,
                Err(Error::Deadline { .. }) => continue,
                Err(_) if self.come_back(index, worker, servers).await => {
                    (published, on_its_way) = (None, None);
                    continue;
                }
                Err(_) => return,
            };
            // `step` finishes a publish that was not in time.
            if let Some((number, clock)) = published.take()
                && clock < view.clock.get()
            {
                self.judge.borrow_mut().announced(index, number);
            }
            let bases = self.look_at(index, worker, &view);
            let is_done = self.judge.borrow().is_there(&view);
            match self.compute(index, worker, is_done).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) if self.come_back(index, worker, servers).await => {
                    on_its_way = None;
                    continue;
                }
                Err(_) => return,
            }
            let Some(number) = self.judge.borrow_mut().computed(index, view.clock.get(), bases) else {
                // So many cannot be told apart. It has done its part, unless something goes wrong again and again.
                if !is_done && !self.judge.borrow().is_liar(index) {
                    self.judge
                        .borrow_mut()
                        .fail(format!("worker {index} computes for ever at {}", view.clock.get()));
                }
                return;
            };
            let fill = |worker: &mut Worker<SimTransport>| {
                let mut step = worker.resume()?;
                values::fill(step.gradient()?, index, number);
                step.suspend();
                Ok::<_, Error>(())
            };
            if let Err(error) = fill(worker) {
                return self.judge.borrow_mut().fail(format!("worker {index}: {error}"));
            }
            published = Some((number, view.clock.get()));
            let timeout = self.timeout();
            // It falls about as fast as gradients of this size promise, so that the schemes that learn from it
            // choose.
            let loss = 1e12 / (1.0 + view.clock.get() as f32);
            let publish = async { worker.resume()?.publish_in_background_async(Some(loss), timeout).await };
            match self.call("publish", timeout, publish).await {
                Ok(()) => {
                    published = None;
                    let out = if goes_on { on_its_way.replace(number) } else { Some(number) };
                    out.into_iter().for_each(|number| self.judge.borrow_mut().announced(index, number));
                }
                Err(Error::Deadline { .. }) => {}
                Err(_) if self.come_back(index, worker, servers).await => {
                    (published, on_its_way) = (None, None);
                }
                Err(_) => return,
            }
            if self.draw(0, 9) == 0 {
                let timeout = self.timeout();
                match self.call("flush", timeout, worker.flush_async(timeout)).await {
                    Ok(()) if published.is_none() => {
                        let mut judge = self.judge.borrow_mut();
                        on_its_way.take().into_iter().for_each(|number| judge.announced(index, number));
                        judge.flushed(index);
                    }
                    Ok(()) | Err(Error::Deadline { .. }) => {}
                    Err(_) if self.come_back(index, worker, servers).await => {
                        (published, on_its_way) = (None, None);
                    }
                    Err(_) => return,
                }
            }
        }
    }

    /// Lets the time pass that a gradient takes. False if a server had it abandoned.
    async fn compute(
        &self,
        index: usize,
        worker: &mut Worker<SimTransport>,
        is_done: bool,
    ) -> Result<bool, Error> {
        const PARTS: u64 = 4;
        let (mut least, mut most) = self.plan.compute;
        if self.plan.slow == Some(index) {
            (least, most) = (8 * least, 8 * most);
        }
        if is_done {
            // A worker that has reached the goal goes on, so that the others are not alone, but slowly.
            (least, most) = (10_000_000, 30_000_000);
        }
        // Now and then a worker does not ask.
        if !(self.plan.scheme.needs().interrupts || self.goes_on()) || self.draw(0, 4) == 0 {
            self.pause(least, most).await;
            return Ok(true);
        }
        let mut step = worker.resume()?;
        for _ in 0..PARTS {
            self.pause(least / PARTS, most / PARTS).await;
            if self.call("should_stop", Duration::ZERO, async { step.should_stop() }).await? {
                self.call("abandon", Duration::ZERO, async { step.abandon() }).await?;
                self.judge.borrow_mut().abandoned(index);
                return Ok(false);
            }
        }
        step.suspend();
        Ok(true)
    }

    /// Shows the parameters of `step` to the judge, and returns the values that a gradient is computed from.
    fn look_at(
        &self,
        index: usize,
        worker: &mut Worker<SimTransport>,
        view: &crate::node::View,
    ) -> Vec<Base> {
        let base =
            |link: LinkStatus| Base { epoch: link.epoch, version: link.version.get(), peer: link.peer };
        let bases: Vec<_> = worker.links().map(base).collect();
        let bytes = |worker: &mut Worker<SimTransport>| {
            let step = worker.resume()?;
            let bytes: Vec<u8> = step.parameters()?.iter().flat_map(|value| value.to_le_bytes()).collect();
            step.suspend();
            Ok::<_, Error>(bytes)
        };
        match bytes(worker) {
            Ok(bytes) => {
                let ranges = worker.shards();
                let copies: Vec<_> = bases
                    .iter()
                    .zip(ranges)
                    .map(|(base, range)| (base.epoch, base.version, &bytes[range]))
                    .collect();
                self.judge.borrow_mut().viewed(index, view, &copies);
            }
            Err(error) => self.judge.borrow_mut().fail(format!("worker {index}: {error}")),
        }
        bases
    }

    /// Connects again with the same worker; false if it is to begin with a new one.
    async fn come_back(&self, index: usize, worker: &mut Worker<SimTransport>, servers: &[Address]) -> bool {
        self.judge.borrow_mut().leaves();
        for _ in 0..self.draw(0, 5) {
            if self.is_over() {
                return false;
            }
            let timeout = self.timeout();
            self.judge.borrow_mut().unrest(self.now());
            let reconnect = worker.reconnect_async(servers, timeout);
            if self.call("reconnect", timeout, reconnect).await.is_ok() {
                self.joined(index, worker);
                self.judge.borrow_mut().unrest(self.now());
                return true;
            }
            self.pause(10_000, 3_000_000).await;
        }
        false
    }

    /// Passes a publisher's versions on.
    async fn relay(&self, index: usize) -> Result<(), Error> {
        let own = relay_address(index);
        let mut upstream: Vec<_> = (0..index).rev().map(relay_address).chain([address(0)]).collect();
        while !self.is_over() {
            let timeout = self.timeout();
            let turns = self.draw(0, upstream.len() as u64 - 1) as usize;
            upstream.rotate_left(turns);
            let memory = self.memory();
            let options =
                PublisherOptions { memory, deltas: self.plan.deltas, ..PublisherOptions::default() };
            let begin = Passing::begin(self.transport(), &upstream, &own, options, timeout);
            let Ok(mut passing) = self.call("relay", timeout, begin).await else {
                self.pause(10_000, 5_000_000).await;
                continue;
            };
            let tell = |publisher: &Publisher<SimTransport>| {
                let (version, label, payload) = publisher.served().expect("the fabric has host memory alone");
                let payload = payload.as_volatile();
                self.judge.borrow_mut().relayed(publisher.epoch(), version.get(), label.origin, payload);
            };
            match passing.run(|| self.is_over(), tell).await {
                Ok(()) => return Ok(()),
                // The publisher has a successor: it begins again, and its readers lose their connections.
                Err(Error::AnotherPublisher) if self.judge.borrow().has_successor() => {
                    self.judge.borrow_mut().causes.all_lost(self.now());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Draws the owner that a reader reads from.
    fn owner_to_read(&self) -> Address {
        match self.plan.relays {
            0 => address(0),
            relays => match self.draw(0, relays as u64) {
                0 => address(0),
                relay => relay_address(relay as usize - 1),
            },
        }
    }

    /// Connects a reader, or connects it again after the loss of its owner: it continues the copy that was under way.
    async fn connect_reader(
        &self,
        before: Option<Reader<SimTransport>>,
    ) -> Result<Reader<SimTransport>, Error> {
        let (timeout, address) = (self.timeout(), self.owner_to_read());
        match before.filter(|_| self.draw(0, 3) > 0) {
            Some(mut reader) => {
                let reconnect = reader.reconnect_async(&address, true, timeout);
                self.call("reconnect", timeout, reconnect).await?;
                Ok(reader)
            }
            None => {
                let options = ReaderOptions::default();
                let connect = Reader::connect_async(self.transport(), &address, options, timeout);
                self.call("connect", timeout, connect).await
            }
        }
    }

    async fn read(&self, index: usize) {
        let mut before = None;
        while !self.is_over() {
            let Ok(mut reader) = self.connect_reader(before.take()).await else {
                self.pause(10_000, 5_000_000).await;
                continue;
            };
            while !self.is_over() {
                self.pause(1_000, 3_000_000).await;
                let (timeout, may_lag) = (self.timeout(), self.draw(0, 3));
                let least = self.judge.borrow().newest(reader.epoch()).saturating_sub(may_lag);
                // Each other time it copies into memory of its own.
                if may_lag % 2 == 1 {
                    let wanted = Wanted::newest().max_staleness(may_lag);
                    match self.call("snapshot", timeout, reader.snapshot_async(wanted, timeout)).await {
                        Ok(snapshot) => self.has_read(
                            index,
                            least,
                            snapshot.fresh(),
                            snapshot.bytes(),
                            Some(snapshot.certificate()),
                        ),
                        Err(Error::Deadline { .. }) => {}
                        Err(_) => break,
                    }
                    continue;
                }
                match self.call("refresh", timeout, reader.refresh_async(may_lag, timeout)).await {
                    Ok(fresh) => match reader.bytes() {
                        Ok(bytes) => self.has_read(index, least, &fresh, bytes, None),
                        Err(error) => self.judge.borrow_mut().fail(format!("the reader: {error}")),
                    },
                    Err(Error::Deadline { .. }) => {}
                    Err(_) => break,
                }
            }
            before = Some(reader).filter(|_| self.plan.publishes());
        }
    }

    /// Has the judge look at a copy.
    fn has_read(
        &self,
        index: usize,
        least: u64,
        fresh: &Fresh,
        bytes: &[u8],
        certificate: Option<Certificate>,
    ) {
        let mut judge = self.judge.borrow_mut();
        if !self.plan.publishes() {
            return judge.read(index, fresh.epoch, fresh.version.get(), least, bytes);
        }
        if let Err(what) = judge.relays.gave(fresh.epoch, fresh.origin, fresh.version.get()) {
            return judge.fail(what);
        }
        judge.read(index, fresh.origin, fresh.version.get(), least, bytes);
        if let Some(certificate) = certificate {
            judge.recorded(TraceRecord::Certificate(certificate), self.now());
        }
    }
}
