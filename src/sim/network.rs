//! The network between workers and server: how long messages take, and how they queue.

use super::distribution::{Distribution, Sampler};
use super::faults::{Direction, Faults};
use super::nanos;
use super::racks::{AverageKey, Flows, Racks};
use super::random::Random;

/// The network. By default it takes no time at all.
///
/// A message begins to arrive one latency after it was sent and has arrived once its last byte has; a worker's link
/// carries its messages one after the other in each direction, and nothing overtakes on one connection. The server's
/// link takes messages first come, first served, in each direction: with `n` that come at once the last has waited for
/// `n - 1` others, which is in-cast. Whichever link is the narrowest sets the pace of a message. Requests, credits and
/// interrupts have no size.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The latency of each message, one way.
    pub latency: Distribution,
    /// Bytes per second of each worker's link, each way; `None`: without limit.
    pub worker_bandwidth: Option<f64>,
    /// Bytes per second of the server's link, each way; `None`: without limit.
    pub server_bandwidth: Option<f64>,
    /// Bytes of a gradient, and of a copy of the parameters; `None`: four for each parameter of the problem.
    pub message_bytes: Option<u64>,
    /// Racks whose links workers share while they average; for schemes without a server. `None`: no two groups share a
    /// link.
    pub racks: Option<Racks>,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            latency: Distribution::Constant { seconds: 0.0 },
            worker_bandwidth: None,
            server_bandwidth: None,
            message_bytes: None,
            racks: None,
        }
    }
}

/// The arrival of a message: when it arrives, and when it arrives again, if it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageDelivery {
    pub(super) at: u64,
    pub(super) again: Option<u64>,
}

/// A message on its way to the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Passage {
    /// Nothing holds it up.
    Arrives(MessageDelivery),
    /// It comes to the server's link at `first`, and its own link can deliver it by `last`.
    Reaches { first: u64, last: u64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct NetworkLink {
    /// The time at which the link can take the next message.
    free: u64,
    /// The time at which the last message began to arrive.
    first: u64,
    /// The time at which the last message had arrived.
    last: u64,
}

/// The links, and the messages on them.
#[derive(Debug)]
pub(super) struct Wires {
    latency: Distribution,
    sampler: Sampler,
    random: Random,
    /// Nanoseconds per byte.
    worker_pace: f64,
    server_pace: f64,
    faults: Faults,
    up: Vec<NetworkLink>,
    down: Vec<NetworkLink>,
    ingress: u64,
    egress: u64,
    flows: Option<Flows>,
    /// How often the links of racks were shared out again.
    number: u64,
    pub(super) lost: u64,
}

/// When an average is there.
#[derive(Clone, Copy, Debug)]
pub(super) enum AverageTime {
    At(u64),
    /// That depends on the others: ask [`Wires::advance`] at this time, unless it was told of a higher number since.
    Ask {
        at: Option<u64>,
        number: u64,
    },
}

impl Wires {
    pub(super) fn new(network: &Network, faults: &Faults, workers: usize, seed: u64) -> Wires {
        let pace = |bandwidth: Option<f64>| bandwidth.map_or(0.0, |bandwidth| 1e9 / bandwidth);
        Wires {
            latency: network.latency.clone(),
            sampler: Sampler::new(&network.latency, seed, super::LATENCY, 0, 1),
            random: Random::stream(seed, super::FAULTS, 0),
            worker_pace: pace(network.worker_bandwidth),
            server_pace: pace(network.server_bandwidth),
            faults: faults.clone(),
            up: vec![NetworkLink::default(); workers],
            down: vec![NetworkLink::default(); workers],
            ingress: 0,
            egress: 0,
            flows: network.racks.as_ref().map(|racks| Flows::new(racks, workers, network.worker_bandwidth)),
            number: 0,
            lost: 0,
        }
    }

    /// A worker connects again: nothing of the old connection holds it up.
    pub(super) fn connect(&mut self, worker: usize) {
        self.up[worker] = NetworkLink::default();
        self.down[worker] = NetworkLink::default();
    }

    /// Sends from a worker to the server.
    pub(super) fn send_up(&mut self, now: u64, worker: usize, bytes: u64) -> Passage {
        let delay = self.delay();
        let own = time(bytes, self.worker_pace);
        let start = now.max(self.up[worker].free);
        let first = self.held(worker, Direction::Up, start.saturating_add(delay).max(self.up[worker].first));
        let link = &mut self.up[worker];
        link.free = start.saturating_add(own);
        link.first = first;
        let last = first.saturating_add(own);
        if self.server_pace > 0.0 {
            return Passage::Reaches { first, last };
        }
        Passage::Arrives(self.arrive(worker, last))
    }

    /// Processes the messages that have come to the server's link.
    pub(super) fn take_in(&mut self, now: u64, last: u64, worker: usize, bytes: u64) -> MessageDelivery {
        if bytes == 0 {
            return self.arrive(worker, last);
        }
        self.ingress = now.max(self.ingress).saturating_add(time(bytes, self.server_pace));
        self.arrive(worker, last.max(self.ingress))
    }

    fn arrive(&mut self, worker: usize, at: u64) -> MessageDelivery {
        let link = &mut self.up[worker];
        link.last = link.last.max(at);
        let at = link.last;
        MessageDelivery { at, again: self.again(at) }
    }

    /// Sends from the server to a worker.
    pub(super) fn send_down(&mut self, now: u64, worker: usize, bytes: u64) -> MessageDelivery {
        let delay = self.delay();
        let mut start = now;
        if bytes > 0 {
            start = now.max(self.egress);
            self.egress = start.saturating_add(time(bytes, self.server_pace));
        }
        let first =
            self.held(worker, Direction::Down, start.saturating_add(delay).max(self.down[worker].first));
        let by_server = first.saturating_add(time(bytes, self.server_pace));
        let own = time(bytes, self.worker_pace);
        let link = &mut self.down[worker];
        link.first = first;
        link.free = first.max(link.free).saturating_add(own);
        link.last = link.last.max(link.free).max(by_server);
        let at = link.last;
        MessageDelivery { at, again: self.again(at) }
    }

    /// A group of workers begins at `now` to reduce and gather `bytes` among its members. Without racks it is in a
    /// ring that shares its links with no other.
    pub(super) fn average(
        &mut self,
        now: u64,
        key: AverageKey,
        members: &[usize],
        bytes: u64,
    ) -> AverageTime {
        let reached = members.iter().fold(now, |at, worker| {
            self.held(*worker, Direction::Down, self.held(*worker, Direction::Up, at))
        });
        if let Some(mut flows) = self.flows.take() {
            let mut held = reached - now;
            let latency = || self.delay().saturating_add(std::mem::take(&mut held));
            let at = flows.begin(now, key, members, bytes, latency);
            (self.flows, self.number) = (Some(flows), self.number + 1);
            return AverageTime::Ask { at, number: self.number };
        }
        let steps = 2 * (members.len() as u64 - 1);
        let latency = (0..steps).map(|_| self.delay()).fold(0, u64::saturating_add);
        let bytes = bytes as f64 * steps as f64 / members.len() as f64;
        AverageTime::At(
            reached.saturating_add(latency).saturating_add((bytes * self.worker_pace).round() as u64),
        )
    }

    /// The averages that are there at `now`, and when to ask again. Nothing if the links were shared out again since
    /// `number`.
    pub(super) fn advance(&mut self, now: u64, number: u64) -> Option<(Vec<AverageKey>, AverageTime)> {
        let flows = self.flows.as_mut().filter(|_| number == self.number)?;
        let (done, at) = flows.advance(now);
        self.number += 1;
        Some((done, AverageTime::Ask { at, number: self.number }))
    }

    /// The latency of a message and of all attempts that were lost.
    fn delay(&mut self) -> u64 {
        let mut delay = nanos(self.sampler.draw(&self.latency));
        if self.faults.loss > 0.0 {
            while self.random.unit() < self.faults.loss {
                self.lost += 1;
                delay = delay.saturating_add(nanos(self.faults.retransmission));
            }
        }
        delay
    }

    fn again(&mut self, at: u64) -> Option<u64> {
        let replays = self.faults.replay > 0.0 && self.random.unit() < self.faults.replay;
        replays.then(|| at.saturating_add(nanos(self.sampler.draw(&self.latency))))
    }

    /// Returns the time at which a message that would arrive at `at` does arrive, with partitions.
    fn held(&self, worker: usize, direction: Direction, mut at: u64) -> u64 {
        loop {
            let holds = self.faults.partitions.iter().find(|partition| {
                partition.direction == direction
                    && partition.workers.contains(&worker)
                    && (nanos(partition.from)..nanos(partition.until)).contains(&at)
            });
            match holds {
                Some(partition) => at = nanos(partition.until),
                None => return at,
            }
        }
    }
}

fn time(bytes: u64, pace: f64) -> u64 {
    (bytes as f64 * pace).round() as u64
}
