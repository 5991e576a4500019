//! The end of a job: what was missing for its beginning, and the last message to all of its processes.

use std::time::Instant;

use slackline::job::rendezvous::MemberId;

use super::causes::sentence;
use super::{Coordinator, LAST_WORDS, State, TICK};
use crate::commands::train::Who;
use crate::commands::train::messages::{Order, json};
use crate::failure::{Failure, split};

/// Most missing processes that are named; more of them are counted.
const MISSING_MAX: usize = 8;

impl Coordinator<'_> {
    /// Who is not there yet, who is there no more, and who came but was turned away.
    pub(super) fn missing(&self) -> String {
        let servers = self.servers.iter().enumerate().filter(|(_, shard)| shard.address.is_none());
        let servers = servers.map(|(shard, _)| Who::Server(shard).to_string());
        let workers = self.workers.iter().enumerate().filter(|(_, place)| place.state == State::Starting);
        let workers = workers.map(|(worker, _)| Who::Worker(worker).to_string());
        let mut missing: Vec<_> = servers.chain(workers).collect();
        if missing.len() > MISSING_MAX {
            let more = missing.len() - MISSING_MAX;
            missing.truncate(MISSING_MAX);
            missing.push(format!("{more} more"));
        }
        let mut missing =
            if missing.is_empty() { String::new() } else { format!(": {}", missing.join(", ")) };
        let lost = sentence(self.losses());
        if !lost.is_empty() {
            let (lost, _) = split(&lost);
            missing += &format!("; of those that had joined were lost: {lost}");
        }
        match self.hub.turned_away() {
            0 => missing,
            1 => format!("{missing}; one connection was turned away (RUST_LOG=warn says why)"),
            strangers => {
                format!("{missing}; {strangers} connections were turned away (RUST_LOG=warn says why)")
            }
        }
    }

    /// Ends all processes in good order: workers before their servers.
    pub(super) fn leave(mut self) {
        let leave = json(&Order::Leave);
        let workers: Vec<_> = self.workers.iter().filter_map(|place| place.member).collect();
        self.dismiss(&workers, &leave);
        self.workers.iter_mut().filter_map(|place| place.process.as_mut()).for_each(|p| drop(p.wait()));
        let Coordinator { hub, mut servers, .. } = self;
        hub.close(&leave, LAST_WORDS);
        servers.iter_mut().filter_map(|shard| shard.process.as_mut()).for_each(|p| drop(p.wait()));
    }

    /// Ends a job that failed: every process is told the cause before its connection closes.
    pub(super) fn abort(self, failure: &Failure) {
        let Coordinator { hub, .. } = self;
        hub.close(&json(&Order::Abort(format!("the job failed: {}", failure.text()))), LAST_WORDS);
    }

    /// Asks members to leave, and waits a moment for them to be gone.
    fn dismiss(&mut self, members: &[MemberId], leave: &[u8]) {
        members.iter().for_each(|member| self.hub.say(*member, leave));
        let deadline = Instant::now() + LAST_WORDS;
        while self.hub.members().any(|member| members.contains(&member.id)) && Instant::now() < deadline {
            while self.hub.poll().is_some() {}
            self.hub.wait(TICK);
        }
    }
}
