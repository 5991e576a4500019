//! The end of a job: the processes that were missing at its beginning, and the last message to all of its processes.

use std::time::{Duration, Instant};

use super::super::plan::Role;
use super::super::rendezvous::{MAX_MESSAGE_BYTES, MemberId};
use super::caller::Caller;
use super::causes::sentence;
use super::coordinator::{Coordinator, LAST_WORDS};
use super::entries::ProcessState;
use super::orders::{Order, json};

/// Most missing processes that are named; more of them are counted.
const MISSING_MAX: usize = 8;

/// The time between two looks at the members that are to leave.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl<C: Caller> Coordinator<C> {
    /// The processes that are not there yet, that are there no more, and that came but were refused.
    pub(super) fn missing(&self) -> String {
        let servers = (0..).map(Role::Server).zip(&self.servers);
        let servers = servers.filter(|(_, entry)| entry.address.is_none()).map(|(role, _)| role);
        let workers = (0..).map(Role::Worker).zip(&self.workers);
        let workers =
            workers.filter(|(_, entry)| entry.state == ProcessState::Starting).map(|(role, _)| role);
        let mut missing: Vec<_> = servers.chain(workers).map(|role| role.to_string()).collect();
        if missing.len() > MISSING_MAX {
            let more = missing.len() - MISSING_MAX;
            missing.truncate(MISSING_MAX);
            missing.push(format!("{more} more"));
        }
        let mut missing =
            if missing.is_empty() { String::new() } else { format!(": {}", missing.join(", ")) };
        let lost = sentence(self.losses()).cause;
        if !lost.is_empty() {
            missing += &format!("; of those that had joined were lost: {lost}");
        }
        match self.hub.refused() {
            0 => missing,
            1 => format!("{missing}; one connection was refused (RUST_LOG=warn says why)"),
            unauthenticated_peers => {
                format!(
                    "{missing}; {unauthenticated_peers} connections were refused (RUST_LOG=warn says why)"
                )
            }
        }
    }

    /// Ends all processes in good order: workers before their servers.
    pub fn leave(mut self) {
        let leave = json(&Order::Leave);
        let workers = self.roster.here().filter(|(role, _)| matches!(role, Role::Worker(_)));
        let workers: Vec<MemberId> = workers.map(|(_, member)| member).collect();
        self.dismiss(&workers, &leave);
        self.workers.iter_mut().filter_map(|entry| entry.process.as_mut()).for_each(|p| drop(p.wait()));
        let Coordinator { hub, mut servers, .. } = self;
        hub.close(&leave, LAST_WORDS);
        servers.iter_mut().filter_map(|entry| entry.process.as_mut()).for_each(|p| drop(p.wait()));
    }

    /// Ends a job that failed: servers write their last checkpoints, unless they were asked for them before, have
    /// learned nothing or diverged. Every process is told the cause before its connection closes.
    pub fn abort(mut self, cause: &str) {
        // Servers that this process started are killed below, and would lose the versions since their last checkpoint.
        if self.has_learned() {
            self.close(self.last_checkpoint_within());
        }
        // Bound to the end of the call: processes that this one started are killed after they were told.
        let Coordinator { hub, servers: _servers, workers: _workers, .. } = self;
        let mut abort = json(&Order::Abort(format!("the job failed: {cause}")));
        if abort.len() > MAX_MESSAGE_BYTES {
            abort = json(&Order::Abort("the job failed: its cause is too long to be sent".into()));
        }
        hub.close(&abort, LAST_WORDS);
    }

    /// Asks members to leave, and waits a moment for them to be gone.
    fn dismiss(&mut self, members: &[MemberId], leave: &[u8]) {
        members.iter().for_each(|member| self.hub.say(*member, leave));
        let deadline = Instant::now() + LAST_WORDS;
        while self.hub.members().any(|member| members.contains(&member.id)) && Instant::now() < deadline {
            while self.hub.poll().is_some() {}
            self.hub.wait(LOOK_EVERY);
        }
    }
}
