//! Messages of peers before any memory is shared.
//!
//! A message is a magic word and the layout version, so that peers of different versions can say so to each other,
//! and a body behind it that only peers of one version decode.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::decisions::{DECISIONS_BYTES, DecidedFrom, Followed};
use super::delta::DeltaGeometry;
use super::layout::{ControlLayout, FrameGeometry, LAYOUT_VERSION, MAGIC, SlotGeometry};
use super::position::Joiner;
#[cfg(any(test, fuzzing))]
use super::position::joiner_sample;
use crate::clock::{Clock, Version};
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::mem::RemoteSlice;
use crate::scheme;
use crate::table::{Encoding, Table};
use crate::transport::NAMED;

/// The name of one incarnation of a server, which is the time from its start to its end: a random number.
pub type Epoch = u64;

/// A message that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The message is not one of ours.
    #[error("its message is not slackline's")]
    Foreign,
    /// The peer asks for a table by its name, and there is one without a name.
    #[error("it asks for a table by its name, and here is one without a name: {}", remedy_of(self))]
    ByName,
    /// The peer has another version of this library.
    #[error("it speaks layout version {theirs}, this process version {LAYOUT_VERSION}: {}", remedy_of(self))]
    Version {
        /// The layout version that it speaks.
        theirs: u64,
    },
    /// The message begins well and is damaged behind that.
    #[error("its message is damaged: {reason}")]
    Damaged {
        /// The fault of the message.
        reason: &'static str,
    },
}

impl Diagnostic for HandshakeError {
    fn operation(&self) -> &'static str {
        "connecting"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            HandshakeError::Version { .. } => Some("run the same slackline on both sides".into()),
            HandshakeError::ByName => Some("connect without a name".into()),
            HandshakeError::Foreign | HandshakeError::Damaged { .. } => None,
        }
    }
}

/// The role that a peer asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerRole {
    /// Publishes gradients in this encoding and reads parameters.
    Worker {
        /// Encoding of its gradients.
        encoding: Encoding,
        /// The text of the scheme it keeps; must be the server's.
        scheme: String,
        /// Names the worker across its connections: its rank, or a random number with the highest bit set. Its
        /// gradients are applied at most once under this name.
        identity: u64,
        /// Names the connections that it makes to all shards together: a random number.
        session: u64,
    },
    /// Serves another shard, and follows the decisions of this one.
    Follower {
        /// The text of its scheme; must be the decider's.
        scheme: String,
        /// Its shard.
        shard: u16,
        /// Its position in the decisions, if it has followed before.
        followed: Option<Followed>,
    },
    /// Reads parameters.
    Reader,
    /// Only asks for a description of the table, and leaves.
    Inquirer,
    /// Only asks a publisher which owners to read from, and leaves: the answer is a
    /// [`TreePosition`](super::TreePosition).
    Joiner(Joiner),
}

/// A peer's own frames, that the owner shall push into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushGrant {
    /// Layout of the control page granted first.
    pub layout: ControlLayout,
    /// Layout of the frames granted second.
    pub geometry: FrameGeometry,
}

/// The progress of a worker that was in before. A server that restarted can be behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerProgress {
    /// Its gradients of clocks before this one were announced to all shards: it begins here, or later.
    pub clock: Clock,
    /// The incarnation of this shard's owner that it was connected to last.
    pub epoch: Epoch,
    /// The newest version that it has seen of that incarnation.
    pub version: Version,
}

impl WorkerProgress {
    /// The last clock, for which no gradient is published: the word that counts chunks has 40 bits for a clock. At
    /// 1,000 clocks a second that is 34 years.
    pub const CLOCK_MAX: Clock = Clock::new((1 << 40) - 1);
    /// The most that a worker may be ahead of a shard.
    pub const AHEAD_MAX: u64 = 1 << 32;
}

/// The ticket that a reader shows each time that it asks for room, so that it keeps its position in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueTicket {
    /// A random number, the same each time that the reader asks.
    pub number: u64,
    /// The time in nanoseconds for which it goes on asking.
    pub left_ns: u64,
}

/// The first message of a peer. With a [`PushGrant`] it grants a control page and frames, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerHello {
    /// The role that it asks for.
    pub role: PeerRole,
    /// The frames that new versions are to be pushed to, for a worker that wants that.
    pub push: Option<PushGrant>,
    /// The clock and the version at which it wants to go on, for a worker that comes back.
    pub resume: Option<WorkerProgress>,
    /// Whether it sleeps while it waits, and is to be woken when there is news for it.
    pub sleeps: bool,
    /// A reader that asks again, if there is no room for it.
    pub ticket: Option<QueueTicket>,
}

/// The message of a peer that grants nothing, is new, polls while it waits, and does not ask again.
impl From<PeerRole> for PeerHello {
    fn from(role: PeerRole) -> PeerHello {
        PeerHello { role, push: None, resume: None, sleeps: false, ticket: None }
    }
}

/// The owner's answer. Grants that go with it, in this order: the control page, the frames, the peer's page and, for a
/// worker, its slots, or for a follower, the decisions, or for a reader, the differences if there are any; none for an
/// inquirer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// This incarnation of the owner.
    pub epoch: Epoch,
    /// The peer's line of the control page; a worker's id.
    pub peer: u16,
    /// Tells this peer from earlier and later peers of the same line, in any incarnation of the owner.
    pub generation: u64,
    /// The clock a worker begins at.
    pub clock: Clock,
    /// The whole table.
    pub table: Table,
    /// The number of this shard in the table, counted from 0.
    pub shard: u16,
    /// Number of shards of the table.
    pub shards: u16,
    /// Layout of the control page.
    pub layout: ControlLayout,
    /// Layout of the frames.
    pub geometry: FrameGeometry,
    /// Layout of a worker's slots.
    pub slots: Option<SlotGeometry>,
    /// The time that a peer may be silent before it is taken for dead, in nanoseconds.
    pub lease_ns: u64,
    /// The text of the scheme that the owner keeps, if it takes workers.
    pub scheme: Option<String>,
    /// The position in the decisions at which a follower begins.
    pub decided: Option<DecidedFrom>,
    /// Layout of the differences that a publisher keeps for readers.
    pub deltas: Option<DeltaGeometry>,
}

pub(super) fn encode(body: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&LAYOUT_VERSION.to_le_bytes());
    // Serialising to a Vec cannot fail for types without maps of unknown length, and there are none.
    postcard::to_extend(body, bytes).expect("handshake messages always serialise")
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, HandshakeError> {
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(HandshakeError::Foreign)?;
    if magic == NAMED {
        return Err(HandshakeError::ByName);
    }
    if u64::from_le_bytes(*magic) != MAGIC {
        return Err(HandshakeError::Foreign);
    }
    let (version, body) = rest.split_first_chunk::<8>().ok_or(HandshakeError::Foreign)?;
    let theirs = u64::from_le_bytes(*version);
    if theirs != LAYOUT_VERSION {
        return Err(HandshakeError::Version { theirs });
    }
    let (value, rest) = postcard::take_from_bytes(body)
        .map_err(|_| HandshakeError::Damaged { reason: "its body does not decode" })?;
    if rest.is_empty() { Ok(value) } else { Err(HandshakeError::Damaged { reason: "bytes behind its end" }) }
}

pub(super) fn check(condition: bool, reason: &'static str) -> Result<(), HandshakeError> {
    if condition { Ok(()) } else { Err(HandshakeError::Damaged { reason }) }
}

/// Words are reached where they lie: a grant must begin where they can.
pub(super) fn is_aligned(grant: &RemoteSlice) -> bool {
    grant.offset.is_multiple_of(super::layout::LINE as u64)
}

impl PeerHello {
    /// Encodes the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes bytes and grants of a peer that is not trusted yet: all values that are used in later computations
    /// are checked here.
    pub fn decode(bytes: &[u8], grants: &[RemoteSlice]) -> Result<PeerHello, HandshakeError> {
        let hello: PeerHello = decode(bytes)?;
        if let PeerRole::Worker { scheme, .. } | PeerRole::Follower { scheme, .. } = &hello.role {
            check(scheme::is_text(scheme), "a scheme that cannot be")?;
        }
        if let PeerRole::Joiner(joiner) = &hello.role {
            joiner.check()?;
        }
        if let Some(resume) = &hello.resume {
            // The progress is counted: a peer that only reads, whose secret may open reading alone, has none.
            check(matches!(hello.role, PeerRole::Worker { .. }), "the progress of a peer that is no worker")?;
            check(resume.clock <= WorkerProgress::CLOCK_MAX, "a clock that no worker can have reached")?;
            check(resume.version <= super::Latest::VERSION_MAX, "a version that no worker can have seen")?;
        }
        check(grants.iter().all(is_aligned), "a grant that does not begin at a cache line")?;
        match &hello.push {
            None => check(grants.is_empty(), "grants that no peer asked for")?,
            Some(push) => {
                check(matches!(hello.role, PeerRole::Worker { .. }), "a push to a peer that is no worker")?;
                check(
                    push.geometry.is_sound() && push.layout.frames == push.geometry.frames,
                    "frames that cannot be",
                )?;
                check(grants.len() == 2, "a push needs two grants")?;
                check(grants[0].len >= push.layout.bytes() as u64, "a control page too short")?;
                check(grants[1].len >= push.geometry.bytes(), "frames too short")?;
            }
        }
        Ok(hello)
    }
}

impl Welcome {
    /// Encodes the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes bytes and grants of a server: all values that are used in later computations are checked here.
    pub fn decode(bytes: &[u8], role: &PeerRole, grants: &[RemoteSlice]) -> Result<Welcome, HandshakeError> {
        let welcome: Welcome = decode(bytes)?;
        check(welcome.clock <= WorkerProgress::CLOCK_MAX, "a clock past the last one")?;
        check(welcome.scheme.as_deref().is_none_or(scheme::is_text), "a scheme that cannot be")?;
        check(
            welcome.geometry.is_sound() && welcome.layout.frames == welcome.geometry.frames,
            "frames that cannot be",
        )?;
        check(welcome.peer < welcome.layout.peers, "a peer number out of range")?;
        let range = welcome
            .range()
            .ok_or(HandshakeError::Damaged { reason: "a shard that the table does not have" })?;
        check(
            range.end - range.start == welcome.geometry.payload_bytes,
            "frames of another length than the shard",
        )?;
        if *role == PeerRole::Inquirer {
            return Ok(welcome);
        }
        check(grants.iter().all(is_aligned), "a grant that does not begin at a cache line")?;
        let wants_slots = matches!(role, PeerRole::Worker { .. });
        let follows = matches!(role, PeerRole::Follower { .. });
        check(
            grants.len() == 3 + usize::from(wants_slots || follows || welcome.deltas.is_some()),
            "another number of grants than there should be",
        )?;
        check(grants[0].len >= welcome.layout.bytes() as u64, "a control page too short")?;
        check(grants[1].len >= welcome.geometry.bytes(), "frames too short")?;
        let count = welcome.slots.map_or(0, |slots| slots.slots);
        check(grants[2].len >= super::PeerInbox::page_bytes(count) as u64, "a peer's page too short")?;
        if let Some(deltas) = &welcome.deltas {
            let is_sound = deltas.is_sound() && deltas.slot_bytes <= welcome.geometry.payload_bytes;
            check(*role == PeerRole::Reader && is_sound, "differences that cannot be")?;
            check(grants[3].len >= deltas.bytes(), "differences too short")?;
        }
        if follows {
            let from =
                welcome.decided.ok_or(HandshakeError::Damaged { reason: "no begin for a follower" })?;
            check(from.version <= super::Latest::VERSION_MAX, "a version past the last one")?;
            check(grants[3].len >= DECISIONS_BYTES as u64, "decisions too short")?;
        }
        if let PeerRole::Worker { encoding, .. } = role {
            let slots = welcome.slots.ok_or(HandshakeError::Damaged { reason: "no slots for a worker" })?;
            check(slots.is_sound() && slots.encoding == *encoding, "slots that cannot be")?;
            check(
                slots.elements * 4 == welcome.geometry.payload_bytes,
                "slots of another length than the shard",
            )?;
            check(
                slots.chunk_elements * 4 == welcome.geometry.chunk_bytes,
                "slots cut otherwise than the frames",
            )?;
            check(grants[3].len >= slots.bytes(), "slots too short")?;
        }
        Ok(welcome)
    }

    /// The bytes of the table that this shard holds.
    pub fn range(&self) -> Option<std::ops::Range<u64>> {
        self.table.shards(usize::from(self.shards)).ok()?.get(usize::from(self.shard)).cloned()
    }
}

/// Grants and a message out of bytes: the role, how many grants, the begin and the length of each, and the rest.
#[cfg(any(test, fuzzing))]
fn take_apart(bytes: &[u8]) -> (PeerRole, Vec<RemoteSlice>, &[u8]) {
    let ([role, count], mut rest) = bytes.split_first_chunk::<2>().unwrap_or((&[0; 2], bytes));
    let mut grants = Vec::new();
    while grants.len() < usize::from(count % 6) {
        let Some((words, behind)) = rest.split_first_chunk::<16>() else { break };
        let (words, _) = words.as_chunks::<8>();
        let [offset, len] = [words[0], words[1]].map(u64::from_le_bytes);
        grants.push(RemoteSlice { key: crate::mem::RemoteKey(grants.len() as u64), offset, len });
        rest = behind;
    }
    let worker = |encoding| PeerRole::Worker { encoding, scheme: "bsp".into(), identity: 1, session: 2 };
    let role = match role % 6 {
        0 => PeerRole::Reader,
        5 => PeerRole::Follower { scheme: "bsp".into(), shard: 1, followed: None },
        1 => PeerRole::Inquirer,
        2 => worker(Encoding::F32),
        3 => worker(Encoding::Bf16),
        _ => worker(Encoding::F16),
    };
    (role, grants, rest)
}

/// Bytes that [`take_apart`] takes apart again.
#[cfg(any(test, fuzzing))]
fn put_together(role: u8, lengths: &[u64], message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![role, lengths.len() as u8];
    for len in lengths {
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(len.to_le_bytes());
    }
    bytes.extend(message);
    bytes
}

/// Checks that a grant is as long as frames or slots of these sizes need, without any overflow.
#[cfg(any(test, fuzzing))]
fn assert_holds(grant: &RemoteSlice, count: u64, bytes: u64, stride: u64) {
    assert!(bytes > 0 && stride >= bytes && u128::from(stride) * u128::from(count) <= u128::from(grant.len));
}

/// Decodes arbitrary `bytes` as a peer's hello with its grants, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let (_, grants, message) = take_apart(bytes);
    let Ok(hello) = PeerHello::decode(message, &grants) else { return };
    if let Some(PushGrant { layout, geometry }) = &hello.push {
        assert_holds(&grants[0], 1, layout.bytes() as u64, layout.bytes() as u64);
        assert_holds(&grants[1], geometry.frames.into(), geometry.payload_bytes, geometry.stride());
        assert!(layout.frame_header(geometry.frames - 1) + super::layout::LINE <= layout.bytes());
    }
    assert_eq!(PeerHello::decode(&hello.encode(), &grants), Ok(hello));
}

/// Decodes arbitrary `bytes` as an owner's welcome with its grants, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_welcome(bytes: &[u8]) {
    let (role, grants, message) = take_apart(bytes);
    let Ok(welcome) = Welcome::decode(message, &role, &grants) else { return };
    let range = welcome.range().expect("a shard of the table");
    assert!(range.start < range.end && range.end <= welcome.table.bytes());
    let last = welcome.table.tensors().last().expect("a table is not empty").range();
    assert_eq!(last.end, welcome.table.bytes());
    let geometry = &welcome.geometry;
    assert!(geometry.chunks() as u64 * geometry.chunk_bytes >= geometry.payload_bytes);
    if role != PeerRole::Inquirer {
        assert_holds(&grants[0], 1, welcome.layout.bytes() as u64, welcome.layout.bytes() as u64);
        assert!(welcome.layout.peer_line(welcome.peer) < welcome.layout.frame_header(0));
        assert_holds(&grants[1], geometry.frames.into(), geometry.payload_bytes, geometry.stride());
    }
    if let Some(deltas) = welcome.deltas.filter(|_| role != PeerRole::Inquirer) {
        let slots = (deltas.table_bytes() as u64, u64::from(deltas.slots), deltas.slot_bytes);
        assert!(u128::from(slots.0) + u128::from(slots.1) * u128::from(slots.2) <= u128::from(grants[3].len));
    }
    if matches!(role, PeerRole::Follower { .. }) {
        assert!(grants[3].len >= DECISIONS_BYTES as u64 && welcome.decided.is_some());
    }
    if matches!(role, PeerRole::Worker { .. }) {
        let slots = welcome.slots.expect("a worker has slots");
        assert_holds(&grants[3], slots.slots.into(), slots.payload_bytes(), slots.stride());
        let last = super::layout::inbox::slot_header(usize::from(slots.slots) - 1);
        assert!((last + super::layout::LINE) as u64 <= grants[2].len);
        assert!(slots.slot_of(welcome.clock) < usize::from(slots.slots));
        assert_eq!(slots.chunks(), geometry.chunks());
    }
    assert_eq!(Welcome::decode(&welcome.encode(), &role, &grants), Ok(welcome));
}

/// Hellos that are taken.
#[cfg(any(test, fuzzing))]
pub(crate) fn hello_samples() -> Vec<Vec<u8>> {
    let layout = ControlLayout { peers: 0, frames: 2 };
    let geometry = FrameGeometry { frames: 2, payload_bytes: 400, chunk_bytes: 128 };
    let scheme = "ssp(3)".into();
    let role = PeerRole::Worker { encoding: Encoding::Bf16, scheme, identity: u64::MAX, session: 3 };
    let resume = WorkerProgress { clock: Clock::new(5), epoch: 6, version: Version::new(7) };
    let ticket = Some(QueueTicket { number: u64::MAX, left_ns: 1 });
    let plain = PeerHello { ticket, ..PeerRole::Reader.into() };
    let push = Some(PushGrant { layout, geometry });
    let full = PeerHello { role, push, resume: Some(resume), sleeps: true, ticket: None };
    let role =
        PeerRole::Follower { scheme: "dbw".into(), shard: 1, followed: Some(Followed { epoch: 6, next: 8 }) };
    let follower = PeerHello::from(role);
    let joiner = PeerHello::from(PeerRole::Joiner(joiner_sample()));
    vec![
        put_together(0, &[], &joiner.encode()),
        put_together(0, &[], &plain.encode()),
        put_together(0, &[], &follower.encode()),
        put_together(0, &[4096, 2 * 4096], &full.encode()),
    ]
}

/// Returns a welcome to a reader.
#[cfg(any(test, fuzzing))]
fn welcome_sample() -> Welcome {
    Welcome {
        epoch: 7,
        peer: 1,
        generation: 2,
        clock: Clock::new(3),
        table: Table::flat(100, crate::table::ElementType::F32).expect("a table"),
        shard: 0,
        shards: 1,
        layout: ControlLayout { peers: 4, frames: 3 },
        geometry: FrameGeometry { frames: 3, payload_bytes: 400, chunk_bytes: 128 },
        slots: None,
        lease_ns: 1,
        scheme: Some("bsp".into()),
        decided: None,
        deltas: None,
    }
}

/// Welcomes that are taken, by two readers, an inquirer, two workers and a follower.
#[cfg(any(test, fuzzing))]
pub(crate) fn welcome_samples() -> Vec<Vec<u8>> {
    let welcome = welcome_sample();
    let read_by = |role| put_together(role, &[4096, 3 * 4096, 4096], &welcome.encode());
    let worked_by = |role, encoding| {
        let slots = SlotGeometry { slots: 2, encoding, elements: 100, chunk_elements: 32 };
        let welcome = Welcome { slots: Some(slots), ..welcome.clone() };
        put_together(role, &[4096, 3 * 4096, 4096, 2 * 4096], &welcome.encode())
    };
    let decided = Some(DecidedFrom { next: 5, version: Version::new(4), goes_on: false });
    let followed = Welcome { decided, ..welcome.clone() };
    let followed = put_together(5, &[4096, 3 * 4096, 4096, DECISIONS_BYTES as u64], &followed.encode());
    let deltas = Some(DeltaGeometry { slots: 2, slot_bytes: 30, unit: 4 });
    let kept = Welcome { scheme: None, deltas, ..welcome.clone() };
    let kept = put_together(0, &[4096, 3 * 4096, 4096, 3 * 4096], &kept.encode());
    vec![kept, read_by(0), read_by(1), worked_by(2, Encoding::F32), worked_by(3, Encoding::Bf16), followed]
}

#[cfg(test)]
mod tests {
    use super::super::layout::{MAX_CHUNKS, landed_word};
    use super::*;
    use crate::mem::RemoteKey;
    use proptest::prelude::*;

    fn welcome() -> (Welcome, Vec<RemoteSlice>) {
        let welcome = Welcome { scheme: None, ..welcome_sample() };
        let grant = |len| RemoteSlice { key: RemoteKey(1), offset: 0, len };
        (welcome, vec![grant(4096), grant(3 * 4096), grant(4096)])
    }

    #[test]
    fn messages_round_trip() {
        let (welcome, grants) = welcome();
        assert_eq!(Welcome::decode(&welcome.encode(), &PeerRole::Reader, &grants), Ok(welcome));
        let hello = PeerHello::from(PeerRole::Reader);
        assert_eq!(PeerHello::decode(&hello.encode(), &[]), Ok(hello));
    }

    #[test]
    fn a_peer_of_another_layout_version_is_told_both_versions() {
        let mut bytes = PeerHello::from(PeerRole::Reader).encode();
        bytes[8] = 99;
        let error = PeerHello::decode(&bytes, &[]).unwrap_err();
        assert_eq!(error, HandshakeError::Version { theirs: 99 });
        let both = format!("layout version 99, this process version {LAYOUT_VERSION}");
        assert!(error.to_string().contains(&both), "{error}");
    }

    #[test]
    fn a_clock_or_version_that_nobody_can_have_reached_is_refused() {
        let resume = WorkerProgress {
            clock: WorkerProgress::CLOCK_MAX,
            epoch: 1,
            version: super::super::Latest::VERSION_MAX,
        };
        let (encoding, identity, session) = (Encoding::F32, 1, 2);
        let role = PeerRole::Worker { encoding, scheme: "bsp".into(), identity, session };
        let hello = |resume| PeerHello { resume: Some(resume), ..role.clone().into() };
        assert!(PeerHello::decode(&hello(resume).encode(), &[]).is_ok());
        for resume in [
            WorkerProgress { clock: resume.clock.next(), ..resume },
            WorkerProgress { clock: Clock::new(u64::MAX), ..resume },
            WorkerProgress { version: resume.version.next(), ..resume },
        ] {
            assert!(PeerHello::decode(&hello(resume).encode(), &[]).is_err(), "{resume:?}");
        }
    }

    /// Checks that a hello is heard of a worker, and of no peer with another role.
    fn expect_of_workers_alone(is_heard: impl Fn(PeerRole) -> bool) {
        let scheme = || "ssp(3)".to_owned();
        let (encoding, identity, session) = (Encoding::F32, 1, 2);
        assert!(is_heard(PeerRole::Worker { encoding, scheme: scheme(), identity, session }));
        for role in [
            PeerRole::Inquirer,
            PeerRole::Joiner(joiner_sample()),
            PeerRole::Reader,
            PeerRole::Follower { scheme: scheme(), shard: 1, followed: None },
        ] {
            assert!(!is_heard(role.clone()), "{role:?}");
        }
    }

    #[test]
    fn a_peer_that_is_no_worker_tells_of_no_progress() {
        expect_of_workers_alone(|role| {
            let resume = WorkerProgress { clock: Clock::new(5), epoch: 6, version: Version::new(7) };
            let hello = PeerHello { resume: Some(resume), ..role.into() };
            PeerHello::decode(&hello.encode(), &[]).is_ok()
        });
    }

    #[test]
    fn a_push_to_a_peer_that_is_no_worker_is_refused() {
        let layout = ControlLayout { peers: 0, frames: 2 };
        let geometry = FrameGeometry { frames: 2, payload_bytes: 400, chunk_bytes: 128 };
        let grant = |len| RemoteSlice { key: RemoteKey(1), offset: 0, len };
        let grants = [grant(4096), grant(2 * 4096)];
        expect_of_workers_alone(|role| {
            let hello = PeerHello { push: Some(PushGrant { layout, geometry }), ..role.into() };
            PeerHello::decode(&hello.encode(), &grants).is_ok()
        });
    }

    #[test]
    fn an_owners_clock_past_the_last_is_refused_and_every_other_fits_its_word() {
        let (welcome, grants) = welcome();
        for (clock, is_good) in [(WorkerProgress::CLOCK_MAX, true), (WorkerProgress::CLOCK_MAX.next(), false)]
        {
            let welcome = Welcome { clock, ..welcome.clone() };
            assert_eq!(Welcome::decode(&welcome.encode(), &PeerRole::Reader, &grants).is_ok(), is_good);
            assert_eq!(landed_word(clock.get(), MAX_CHUNKS).checked_shr(24) == Some(clock.get()), is_good);
        }
    }

    #[test]
    fn a_text_that_no_scheme_can_have_is_refused() {
        let hears = |scheme: &str| {
            let (welcome, grants) = welcome();
            let welcome = Welcome { scheme: Some(scheme.into()), ..welcome };
            let heard = Welcome::decode(&welcome.encode(), &PeerRole::Reader, &grants).is_ok();
            let role =
                PeerRole::Worker { encoding: Encoding::F32, scheme: scheme.into(), identity: 0, session: 0 };
            let hello = PeerHello::from(role);
            assert_eq!(PeerHello::decode(&hello.encode(), &[]).is_ok(), heard, "{scheme:?}");
            heard
        };
        assert!(hears("bsp") && hears("of-its-own(a=1)") && hears(&"x".repeat(256)));
        assert!(!hears("") && !hears(&"x".repeat(257)) && !hears("a\nline"));
    }

    #[test]
    fn grants_shorter_than_the_geometry_are_refused() {
        let (welcome, grants) = welcome();
        for index in 0..grants.len() {
            let mut short = grants.clone();
            short[index].len = 64;
            assert!(Welcome::decode(&welcome.encode(), &PeerRole::Reader, &short).is_err());
        }
        assert!(Welcome::decode(&welcome.encode(), &PeerRole::Reader, &grants[..2]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_peer_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            good in any::<bool>(),
        ) {
            if good {
                bytes.splice(0..0, [MAGIC.to_le_bytes(), LAYOUT_VERSION.to_le_bytes()].concat());
            }
            for role in 0..6 {
                for grants in 0..5 {
                    let bytes = put_together(role, &[u64::MAX; 4][..grants], &bytes);
                    fuzz_hello(&bytes);
                    fuzz_welcome(&bytes);
                }
            }
        }

        #[test]
        fn a_damaged_message_never_panics(at: prop::sample::Index, value in any::<u8>()) {
            for (samples, fuzz) in
                [(hello_samples(), fuzz_hello as fn(&[u8])), (welcome_samples(), fuzz_welcome)]
            {
                for mut bytes in samples {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                    fuzz(&bytes);
                }
            }
        }
    }
}
