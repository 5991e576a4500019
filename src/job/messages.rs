//! The messages between rank 0 and the members of a job.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error_report::ErrorReport;
use super::member::{Conversation, End};
use super::plan::JobPlan;

/// Messages within the plan's timeout by which a process of a job without servers shows that it lives: a process that
/// is silent for the whole timeout counts as lost.
const ALIVE_IN_TIMEOUT: u32 = 4;

/// The longest time between two of them.
const ALIVE_EVERY_MAX: Duration = Duration::from_secs(1);
/// The least silence after which a member counts as lost: its own timeout may be longer than rank 0's.
pub(super) const SILENCE_LEAST: Duration = Duration::from_secs(4);

/// A message of a member.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromMember {
    /// The plan with which the member was started, and the number of processes it counts.
    Plan(JobPlan, u32),
    /// The worker has run all its clocks, and all its gradients are applied.
    Finished,
    /// The member gives up, and why.
    Failed(String),
    /// The workers that are in at the server of this process.
    Workers {
        workers: Vec<u32>,
        /// The workers that have ever come to it.
        come: Vec<u32>,
    },
    /// The process lives, in a job without a server to say so of it.
    Alive,
}

/// A message of rank 0.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromCoordinator {
    /// The job is over.
    Over,
    /// The job has failed, and why.
    Abort(String),
}

/// Encodes a message of either side.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages always serialise")
}

/// The conversation of a member whose only news is the end of the job.
#[derive(Default)]
pub(super) struct EndOnly {
    /// This worker has told rank 0 that it has finished.
    finished: bool,
    /// The workers of which rank 0 was told that they are in at the server of this process, and that they have ever
    /// come to it, and how often workers had joined it by then: a worker that was lost and is back leaves both lists as
    /// they are, and rank 0 has to learn that it is in again.
    workers: (Vec<u32>, Vec<u32>, u64),
    /// The time between two words that this process lives, and when it said the last one.
    alive: Option<(Duration, Instant)>,
}

impl EndOnly {
    /// The conversation of a member of a job with this plan.
    pub(super) fn under(plan: &JobPlan) -> EndOnly {
        let every = (plan.timeout / ALIVE_IN_TIMEOUT).min(ALIVE_EVERY_MAX);
        EndOnly { alive: (plan.servers == 0).then(|| (every, Instant::now())), ..EndOnly::default() }
    }
}

impl Conversation for EndOnly {
    fn receive(&mut self, message: Vec<u8>) -> Option<End> {
        Some(match postcard::from_bytes(&message) {
            Ok(FromCoordinator::Over) => End::Dismissed,
            Ok(FromCoordinator::Abort(why)) => End::Told(why),
            Err(error) => End::Lost(format!(
                "rank 0 sent a message that this version does not understand ({error}); run the same slackline \
                 everywhere"
            )),
        })
    }

    fn due(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (every, said) = self.alive.as_mut()?;
        (now.saturating_duration_since(*said) >= *every).then(|| {
            *said = now;
            encode(&FromMember::Alive)
        })
    }

    fn finished(&mut self) -> Option<Vec<u8>> {
        let told = std::mem::replace(&mut self.finished, true);
        (!told).then(|| encode(&FromMember::Finished))
    }

    fn failed(&mut self, why: ErrorReport) -> Vec<u8> {
        encode(&FromMember::Failed(why.to_string()))
    }

    fn serves(&mut self, workers: Vec<u32>, come: Vec<u32>, joined: u64) -> Option<Vec<u8>> {
        let told = (workers, come, joined);
        (self.workers != told).then(|| {
            self.workers.clone_from(&told);
            encode(&FromMember::Workers { workers: told.0, come: told.1 })
        })
    }
}

/// Decodes arbitrary `bytes` as a message of either side.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_message(bytes: &[u8]) {
    super::coordinator::fuzz_message(bytes);
    let _end = EndOnly::default().receive(bytes.to_vec());
    if let Ok(message) = postcard::from_bytes::<FromMember>(bytes) {
        assert_eq!(postcard::from_bytes(&encode(&message)), Ok(message));
    }
    if let Ok(message) = postcard::from_bytes::<FromCoordinator>(bytes) {
        assert_eq!(postcard::from_bytes(&encode(&message)), Ok(message));
    }
}

/// Messages of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn message_samples() -> Vec<Vec<u8>> {
    let plan = JobPlan::servers(1).clocks(9);
    let of_members = [
        FromMember::Plan(plan, 3),
        FromMember::Finished,
        FromMember::Failed("why".into()),
        FromMember::Workers { workers: vec![0, 1], come: vec![0, 1, u32::MAX] },
        FromMember::Alive,
    ];
    let of_rank_0 = [FromCoordinator::Over, FromCoordinator::Abort("why".into())];
    of_members.iter().map(encode).chain(of_rank_0.iter().map(encode)).collect()
}
