//! The messages between rank 0 and the members of a job.

use serde::{Deserialize, Serialize};

use super::error_report::ErrorReport;
use super::member::{Conversation, End};
use super::plan::JobPlan;

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
        /// Those that have ever come to it.
        come: Vec<u32>,
    },
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
    /// come to it.
    workers: (Vec<u32>, Vec<u32>),
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

    fn finished(&mut self) -> Option<Vec<u8>> {
        let told = std::mem::replace(&mut self.finished, true);
        (!told).then(|| encode(&FromMember::Finished))
    }

    fn failed(&mut self, why: ErrorReport) -> Vec<u8> {
        encode(&FromMember::Failed(why.to_string()))
    }

    fn serves(&mut self, workers: Vec<u32>, come: Vec<u32>) -> Option<Vec<u8>> {
        let told = (workers, come);
        (self.workers != told).then(|| {
            self.workers.clone_from(&told);
            encode(&FromMember::Workers { workers: told.0, come: told.1 })
        })
    }
}

/// Takes whatever `bytes` are for a message of either side.
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
    ];
    let of_rank_0 = [FromCoordinator::Over, FromCoordinator::Abort("why".into())];
    of_members.iter().map(encode).chain(of_rank_0.iter().map(encode)).collect()
}
