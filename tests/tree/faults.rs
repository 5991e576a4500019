//! The tree, and the faults that hit it.

use std::time::{Duration, Instant};

use slackline::sim::Random;
use tempfile::TempDir;

use super::node::Node;
use crate::namespaces::Hosts;

/// The time for which a process is stopped, or its host cut off: longer than the lease.
const AWAY: Duration = Duration::from_secs(5);

/// Readers that take a host, and the fewest hosts beside the publisher's.
const READERS_PER_HOST: usize = 25;
const HOSTS_MIN: usize = 5;

/// Relays of each of these hosts.
const RELAYS_PER_HOST: usize = 2;

/// All readers together make about one read in so long: each is put on record, and two processors do all of it.
const READ_EVERY: Duration = Duration::from_micros(2500);

/// The processes and their hosts: the publisher on the first, relays and readers on the others.
pub(crate) struct Tree {
    spaces: Hosts,
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
    pub(crate) fn grow(readers: usize) -> Tree {
        let others = readers.div_ceil(READERS_PER_HOST).max(HOSTS_MIN);
        let spaces = Hosts::new((others + 1).try_into().expect("fewer hosts"));
        // The hosts first: they may replace this process.
        let folder = tempfile::tempdir().expect("a folder for the traces");
        let start = |name: String, host: usize, task: String| {
            let mut node = Node::new(name, host, task, folder.path());
            node.start(&spaces[host]);
            node
        };
        let mut publisher = start("publisher".into(), 0, format!("publish {}:0 0", spaces[0].address()));
        let root = publisher.address();
        publisher.task = format!("publish {root}");
        let mut nodes = vec![publisher];
        // The publisher says from whom each reads: two relays from it, two from each of them.
        let relays = others * RELAYS_PER_HOST;
        for relay in 0..relays {
            let host = 1 + relay % others;
            let mut node =
                start(format!("relay {relay}"), host, format!("relay {}:0 {root}", spaces[host].address()));
            node.task = format!("relay {} {root}", node.address());
            nodes.push(node);
        }
        let every = READ_EVERY * readers as u32;
        for reader in 0..readers {
            let task = format!("read {root} {}", every.as_micros());
            nodes.push(start(format!("reader {reader}"), 1 + reader % others, task));
        }
        let cut_until = vec![None; others + 1];
        Tree { spaces, cut_until, nodes, relays, folder, begin_at: 0, faults: [0; 3] }
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
            self.spaces.plug(host);
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
                node.start(&self.spaces[node.host]);
                node.task = task;
            }
        }
    }

    /// Kills or stops a process, or cuts its host off; says what was done.
    pub(crate) fn strike(&mut self, random: &mut Random, now: Instant) -> String {
        // One that is not there already is passed over; some reader or other nearly always is.
        let choice = (0..1000).map(|_| self.choose(random)).find(|node| self.is_there(&self.nodes[*node]));
        let Some(victim) = choice else { return "no process is there".into() };
        let (kind, back) = (random.below(3), Duration::from_millis(200 + random.below(1500)));
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
                self.spaces.unplug(node.host);
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
