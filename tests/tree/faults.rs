//! The tree, and the faults that hit it.

use std::time::{Duration, Instant};

use slackline::sim::Random;
use tempfile::TempDir;

use super::judging::LEASE;
use super::node::Node;
use super::wire::Wire;

/// The time for which a process is stopped, or its host cut off: longer than the lease.
const AWAY: Duration = Duration::from_secs(5);

/// All readers together make about one read in so long: each is put on record, and two processors do all of it.
const READ_EVERY: Duration = Duration::from_micros(2500);

/// The processes and their hosts.
pub(crate) struct Tree {
    wire: Wire,
    /// For each host, the time until which it is cut off.
    cut_until: Vec<Option<Instant>>,
    /// The publisher, the relays and the readers.
    nodes: Vec<Node>,
    relays: usize,
    /// The folder of their traces.
    folder: TempDir,
    begin_at: u64,
    /// Processes killed and stopped, and hosts cut off.
    pub(crate) faults: [u64; 3],
}

impl Tree {
    /// Starts a tree with so many readers.
    pub(crate) fn grow(test: &'static str, readers: usize, wire: Wire) -> Tree {
        let folder = tempfile::tempdir().expect("a folder for the traces");
        let start = |name: String, host: usize, task: String| {
            let mut node = Node::new(test, name, host, task, folder.path());
            node.start(&wire);
            node
        };
        let mut publisher = start("publisher".into(), 0, format!("publish {} 0", wire.address(0)));
        let root = publisher.address();
        publisher.task = format!("publish {root}");
        let mut nodes = vec![publisher];
        // The publisher says from whom each reads: two relays from it, two from each of them.
        let relays = wire.relays();
        for relay in 0..relays {
            let host = wire.host_of(relay);
            let mut node =
                start(format!("relay {relay}"), host, format!("relay {} {root}", wire.address(host)));
            node.task = format!("relay {} {root}", node.address());
            nodes.push(node);
        }
        // Three times a lease each says for how many readers it has room.
        std::thread::sleep(LEASE);
        let every = READ_EVERY * readers as u32;
        for reader in 0..readers {
            let task = format!("read {root} {}", every.as_micros());
            nodes.push(start(format!("reader {reader}"), wire.host_of(reader), task));
        }
        let cut_until = vec![None; wire.hosts()];
        Tree { wire, cut_until, nodes, relays, folder, begin_at: 0, faults: [0; 3] }
    }

    /// Ends all processes; the folder of their traces.
    pub(crate) fn into_traces(self) -> TempDir {
        self.folder
    }

    pub(crate) fn hosts(&self) -> usize {
        self.cut_until.len()
    }

    pub(crate) fn publisher(&self) -> &Node {
        &self.nodes[0]
    }

    pub(crate) fn relays(&self) -> &[Node] {
        &self.nodes[1..=self.relays]
    }

    pub(crate) fn readers(&self) -> &[Node] {
        &self.nodes[1 + self.relays..]
    }

    /// Whether a process runs on a host that is not cut off.
    pub(crate) fn is_there(&self, node: &Node) -> bool {
        node.runs() && self.cut_until[node.host].is_none()
    }

    /// Ends the faults whose time is over.
    pub(crate) fn recover(&mut self, now: Instant) {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        for (host, until) in self.cut_until.iter_mut().enumerate().filter(|(_, until)| is_over(**until)) {
            self.wire.network().expect("it was cut").plug(host);
            *until = None;
        }
        for node in &mut self.nodes {
            if is_over(node.paused_until) {
                node.go_on();
            }
            if is_over(node.back_at) {
                let task = node.task.clone();
                if task.starts_with("publish") {
                    self.begin_at += 1_000_000; // past all that the last one may have published
                    node.task = format!("{task} {}", self.begin_at);
                }
                node.start(&self.wire);
                node.task = task;
            }
        }
    }

    /// Kills or stops a process, or cuts its host off; says what was done.
    pub(crate) fn strike(&mut self, random: &mut Random, now: Instant) -> String {
        // One that is not there already is passed over; some reader or other nearly always is.
        let choice = (0..1000).map(|_| self.choose(random)).find(|node| self.is_there(&self.nodes[*node]));
        let Some(victim) = choice else { return "no process is there".into() };
        let network = self.wire.network();
        let kinds = if network.is_some() { 3 } else { 2 };
        let (kind, back) = (random.below(kinds), Duration::from_millis(200 + random.below(1500)));
        self.faults[kind as usize] += 1;
        let node = &mut self.nodes[victim];
        match kind {
            0 => {
                node.kill();
                node.back_at = Some(now + back);
                format!("{} is killed", node.name)
            }
            1 => {
                node.pause(now + AWAY);
                format!("{} is stopped", node.name)
            }
            _ => {
                network.expect("the third kind").unplug(node.host);
                self.cut_until[node.host] = Some(now + AWAY);
                format!("host {} of {} is cut off", node.host, node.name)
            }
        }
    }

    /// In one case of twenty the publisher, in five a relay, else a reader.
    fn choose(&self, random: &mut Random) -> usize {
        let (relays, readers) = (self.relays, self.nodes.len() - 1 - self.relays);
        match random.below(20) {
            0 => 0,
            1..=5 => 1 + random.below(relays as u64) as usize,
            _ => 1 + relays + random.below(readers as u64) as usize,
        }
    }
}
