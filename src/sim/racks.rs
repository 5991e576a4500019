//! A network of racks: a graph of links that averages share, fairly.

use std::collections::BTreeMap;

use super::{SimError, nanos};

/// Workers in racks below a core that never is the bottleneck, for jobs whose workers average among themselves.
///
/// The first `size` workers are in the first rack, the next in the second, and so on. A flow uses the links of its
/// sender and its receiver, and between two racks also the links of both racks to the core; each link carries each
/// direction for itself. Flows share links by max-min fairness, as long-lived TCP flows do by and large: the rates of
/// all grow alike until a link is full, which settles the flows that cross it, and so on. The flows of one ring have
/// one rate, the rate of the slowest.
#[derive(Clone, Debug, PartialEq)]
pub struct Racks {
    /// Workers in each rack.
    pub size: usize,
    /// Bytes per second of a rack's link to the core, each way.
    pub uplink: f64,
    /// Bytes per second, each way, of the links of the first workers, where they differ from
    /// [`worker_bandwidth`](super::Network::worker_bandwidth).
    pub links: Vec<f64>,
    /// Flows of others that never end, each from one rack to another.
    pub others: Vec<(usize, usize)>,
    /// How a group averages.
    pub average: Collective,
}

/// Ways to average among the members of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collective {
    /// In a ring of all, by rank: of `g` members each sends `2 (g - 1) / g` of the message.
    #[default]
    Ring,
    /// First each rack reduces its part in a ring and scatters it, then rings across racks average the parts, then each
    /// rack gathers them.
    Hierarchical,
}

/// Rings that run at once, and the messages that each waits for before the next may begin.
#[derive(Debug)]
struct Phase {
    rings: Vec<Ring>,
    /// The messages that follow each other in one ring.
    messages: usize,
}

#[derive(Clone, Debug)]
struct Ring {
    /// The links that it crosses, each with the number of its flows there.
    crosses: Vec<(usize, f64)>,
    /// Bytes that each of its flows still has to carry.
    left: f64,
    /// Bytes per nanosecond.
    rate: f64,
}

/// An average that is on the links.
#[derive(Debug)]
struct Transfer {
    /// Its flows begin at this time: before, its first messages are on their way.
    begins: u64,
    rings: Vec<Ring>,
    /// The phases that follow, the next one last, each with the time that its messages take.
    later: Vec<(Phase, u64)>,
}

/// The name of an average: its round, and its smallest member.
pub(super) type AverageKey = (u64, usize);

/// The links of racks, and the flows on them.
#[derive(Debug)]
pub(super) struct Flows {
    racks: Racks,
    workers: usize,
    /// Bytes per nanosecond of each link: up and down of each worker, then up and down of each rack.
    capacity: Vec<f64>,
    others: Vec<Vec<(usize, f64)>>,
    transfers: BTreeMap<AverageKey, Transfer>,
    /// The time that `left` is true of.
    at: u64,
}

impl Racks {
    /// Refuses settings that no network has.
    pub(super) fn check(&self, workers: usize) -> Result<(), SimError> {
        let fault = |setting, value: String, remedy| Err(SimError::Setting { setting, value, remedy });
        if self.size == 0 {
            return fault("racks", "0 workers in each".into(), "use 1 or more");
        }
        let mut rates = self.links.iter().chain([&self.uplink]);
        if let Some(rate) = rates.find(|rate| !(**rate > 0.0 && rate.is_finite())) {
            return fault("racks", format!("{rate} bytes/s"), "rates are finite and above 0");
        }
        let racks = workers.div_ceil(self.size);
        let mut ends = self.others.iter().flat_map(|(from, to)| [*from, *to]);
        match ends.find(|rack| *rack >= racks) {
            Some(rack) => {
                fault("racks", format!("a flow of rack {rack}"), "racks count from 0, and there are fewer")
            }
            None => Ok(()),
        }
    }

    fn rack(&self, worker: usize) -> usize {
        worker / self.size
    }

    /// The phases of an average among `members`, in order.
    fn phases(&self, members: &[usize], bytes: f64, workers: usize) -> Vec<Phase> {
        let ring = |members: &[usize], bytes: f64| Ring {
            crosses: self.crosses(members, workers),
            left: bytes / members.len() as f64,
            rate: 0.0,
        };
        let by_rack: Vec<&[usize]> = members.chunk_by(|a, b| self.rack(*a) == self.rack(*b)).collect();
        let least = by_rack.iter().map(|rack| rack.len()).min().unwrap_or(1);
        if self.average == Collective::Ring || by_rack.len() == 1 || least == members.len() {
            let steps = 2 * (members.len() - 1);
            return vec![Phase { rings: vec![ring(members, bytes * steps as f64)], messages: steps }];
        }
        let within = || {
            let most = by_rack.iter().map(|rack| rack.len() - 1).max().unwrap_or(0);
            let rings = by_rack.iter().filter(|rack| rack.len() > 1);
            Phase {
                rings: rings.map(|rack| ring(rack, bytes * (rack.len() - 1) as f64)).collect(),
                messages: most,
            }
        };
        // Of uneven racks as many members go across as the smallest has.
        let across = (0..least).map(|at| by_rack.iter().map(|rack| rack[at]).collect::<Vec<_>>());
        let steps = 2 * (by_rack.len() - 1);
        let rings = across.map(|members| ring(&members, bytes / least as f64 * steps as f64)).collect();
        vec![within(), Phase { rings, messages: steps }, within()]
    }

    /// The links that the flows of a ring cross, with their number.
    fn crosses(&self, members: &[usize], workers: usize) -> Vec<(usize, f64)> {
        let mut counts = BTreeMap::new();
        for (from, to) in members.iter().zip(members.iter().cycle().skip(1)) {
            let (left, entered) = (self.rack(*from), self.rack(*to));
            let own = [*from, workers + to];
            let core = if left == entered {
                None
            } else {
                Some([2 * workers + 2 * left, 2 * workers + 2 * entered + 1])
            };
            own.into_iter()
                .chain(core.into_iter().flatten())
                .for_each(|link| *counts.entry(link).or_insert(0.0) += 1.0);
        }
        counts.into_iter().collect()
    }
}

impl Flows {
    pub(super) fn new(racks: &Racks, workers: usize, bandwidth: Option<f64>) -> Flows {
        let of_worker =
            |worker: usize| racks.links.get(worker).copied().or(bandwidth).unwrap_or(f64::INFINITY);
        let own = (0..workers).chain(0..workers).map(of_worker);
        let to_core = std::iter::repeat_n(racks.uplink, 2 * workers.div_ceil(racks.size));
        let core = 2 * workers;
        let other = |(from, to): &(usize, usize)| vec![(core + 2 * from, 1.0), (core + 2 * to + 1, 1.0)];
        Flows {
            workers,
            capacity: own.chain(to_core).map(|rate| rate / 1e9).collect(),
            others: racks.others.iter().map(other).collect(),
            racks: racks.clone(),
            transfers: BTreeMap::new(),
            at: 0,
        }
    }

    /// Begins an average at `now`; `latency` is asked for the time of each message that another one waits for. Returns
    /// the time at which to [`advance`](Self::advance).
    pub(super) fn begin(
        &mut self,
        now: u64,
        key: AverageKey,
        members: &[usize],
        bytes: u64,
        mut latency: impl FnMut() -> u64,
    ) -> Option<u64> {
        self.carry(now);
        let phases = self.racks.phases(members, bytes as f64, self.workers);
        let timed = |phase: Phase| {
            let latency = (0..phase.messages).map(|_| latency()).fold(0, u64::saturating_add);
            (phase, latency)
        };
        let mut later: Vec<(Phase, u64)> = phases.into_iter().map(timed).collect();
        later.reverse();
        let mut transfer = Transfer { begins: now, rings: Vec::new(), later };
        transfer.go_on(now);
        self.transfers.insert(key, transfer);
        self.settle(now)
    }

    /// Advances the flows on the links to `now`. Returns the averages that have arrived, and the next time to call it.
    pub(super) fn advance(&mut self, now: u64) -> (Vec<AverageKey>, Option<u64>) {
        self.carry(now);
        let mut done = Vec::new();
        for (key, transfer) in &mut self.transfers {
            while transfer.begins <= now && transfer.rings.iter().all(Ring::is_done) {
                if !transfer.go_on(now) {
                    done.push(*key);
                    break;
                }
            }
        }
        done.iter().for_each(|key| drop(self.transfers.remove(key)));
        (done, self.settle(now))
    }

    fn carry(&mut self, now: u64) {
        let time = now.saturating_sub(std::mem::replace(&mut self.at, now)) as f64;
        for ring in self.transfers.values_mut().flat_map(|transfer| &mut transfer.rings) {
            // An infinite rate for no time carries all remaining bytes.
            let carried = if ring.rate.is_infinite() { ring.left } else { ring.rate * time };
            ring.left -= carried;
        }
    }

    /// Shares the links out again. Returns when the next ring begins or ends.
    fn settle(&mut self, now: u64) -> Option<u64> {
        let Flows { capacity, others, transfers, .. } = self;
        let mut free = capacity.clone();
        let mut waiting: Vec<&[(usize, f64)]> = others.iter().map(Vec::as_slice).collect();
        let mut rings = Vec::new();
        for transfer in transfers.values_mut().filter(|transfer| transfer.begins <= now) {
            for Ring { crosses, rate, .. } in transfer.rings.iter_mut().filter(|ring| !ring.is_done()) {
                waiting.push(crosses);
                rings.push(rate);
            }
        }
        let rates = share(&mut free, &waiting);
        rings.into_iter().zip(&rates[others.len()..]).for_each(|(ring, rate)| *ring = *rate);
        transfers.values().map(|transfer| transfer.next(now)).min()
    }
}

/// The max-min fair rates of rings, given the links that each crosses.
fn share(free: &mut [f64], rings: &[&[(usize, f64)]]) -> Vec<f64> {
    let mut rates = vec![f64::INFINITY; rings.len()];
    let mut load = vec![0.0; free.len()];
    let mut unsettled: Vec<usize> = (0..rings.len()).collect();
    loop {
        load.fill(0.0);
        for (link, flows) in unsettled.iter().flat_map(|ring| rings[*ring]) {
            load[*link] += flows;
        }
        // The share of each flow of the link that is full first.
        let shares = free.iter().zip(&load).filter(|(_, load)| **load > 0.0).map(|(free, load)| free / load);
        let least = shares.fold(f64::INFINITY, f64::min);
        if least.is_infinite() {
            return rates;
        }
        let is_full =
            |link: usize, free: &[f64]| load[link] > 0.0 && free[link] / load[link] <= least * (1.0 + 1e-12);
        let full: Vec<bool> = (0..load.len()).map(|link| is_full(link, free)).collect();
        unsettled.retain(|ring| {
            let is_settled = rings[*ring].iter().any(|(link, _)| full[*link]);
            if is_settled {
                rates[*ring] = least;
                rings[*ring]
                    .iter()
                    .for_each(|(link, flows)| free[*link] = (free[*link] - flows * least).max(0.0));
            }
            !is_settled
        });
    }
}

impl Ring {
    /// True if less than a nanosecond's worth is left, to which times are rounded.
    fn is_done(&self) -> bool {
        self.left <= self.rate * 0.5 || self.left <= 0.0
    }
}

impl Transfer {
    /// Goes on to the next phase, if there is one.
    fn go_on(&mut self, now: u64) -> bool {
        let Some((phase, latency)) = self.later.pop() else { return false };
        (self.rings, self.begins) = (phase.rings, now.saturating_add(latency));
        true
    }

    /// The time at which it begins or is done with a ring.
    fn next(&self, now: u64) -> u64 {
        if self.begins > now {
            return self.begins;
        }
        let ends = self.rings.iter().filter(|ring| !ring.is_done());
        let time = ends.map(|ring| nanos(ring.left / ring.rate / 1e9)).min().unwrap_or(0);
        now.saturating_add(time)
    }
}
