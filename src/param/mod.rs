//! Parameter memory: control page, frames and slots, and the operations on them.
//!
//! The owner of a shard holds [`Frames`] and a [`PeerInbox`] for each peer; peers hold a [`Pull`] and a [`Publish`],
//! state machines that post requests to an endpoint and are told of their completions. `docs/protocol.md` has the
//! layout to the byte and the argument for each fence.
#![forbid(unsafe_code)]

mod decisions;
mod delta;
mod frames;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod fuzz;
mod group;
mod handshake;
mod inbox;
mod layout;
#[cfg_attr(
    not(feature = "sim"),
    allow(dead_code, reason = "a simulated peer looks for words by their offsets")
)]
pub(crate) mod own_page;
mod pin;
mod position;
mod publish;
mod pull;
mod push;
mod sleep;

pub use decisions::{
    DECISIONS_BYTES, DecidedFrom, Decision, DecisionReader, Decisions, FollowError, Followed,
};
pub(crate) use delta::DELTA_TAG;
pub use delta::{DeltaGeometry, DeltaPull, DeltaSource, DeltaTurn, Deltas, PendingDelta, WrittenDelta};
#[cfg(any(test, fuzzing))]
pub(crate) use delta::{delta_samples, fuzz_delta};
#[cfg(test)]
pub(crate) use frames::{COMPUTED_BY_COMMITS, frame_checksum};
pub use frames::{Frames, PendingChecksum, Pinned, Progress};
pub use group::{
    GONE_ID, GroupArea, GroupHello, GroupInbox, GroupLayout, GroupOutbox, LEAVE_ID, MAX_MEMBERS, PART_ID,
    PartHeader, Ranks, ranks_word,
};
#[cfg(any(test, fuzzing))]
pub(crate) use group::{fuzz_group_hello, group_hello_samples};
pub use handshake::{
    Epoch, HandshakeError, PeerHello, PeerRole, PushGrant, QueueTicket, Welcome, WorkerProgress,
};
#[cfg(any(test, fuzzing))]
pub(crate) use handshake::{fuzz_hello, fuzz_welcome, hello_samples, welcome_samples};
pub use inbox::{PeerInbox, SlotFault};
pub use layout::{
    ControlLayout, FrameGeometry, FrameHeader, FrameLabel, LAYOUT_VERSION, Latest, SlotGeometry, SlotHeader,
};
pub use own_page::Eviction;
pub(crate) use own_page::own_words;
pub use pin::{PinCheck, PinError, Pins};
pub use position::{Joiner, RelayNotice, TreeOwner, TreePosition};
#[cfg(any(test, fuzzing))]
pub(crate) use position::{fuzz_position, position_samples};
pub use publish::{GradientMetadata, GradientSource, Publish, PublishError};
pub use pull::{Consistency, FrameSource, Pull, PullError, PullOptions, Pulled};
pub(crate) use pull::{PULL_TAG, PartialCopy, RETRIES_BEFORE_PIN};
pub use push::{Push, PushError};
pub use sleep::{SleepWord, fence_before_sleeping, fence_before_waking};
