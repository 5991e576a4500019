//! The memory that two members of a group write at each other: a page of words, and two areas for parts of
//! parameters.
//!
//! ```text
//! line 0      through, state                   the member
//! line 1      heartbeat                        its heart
//! line 2      members gone: a bit per rank     the member
//! line 3      header of the summand            the member
//! line 4      header of the mean               the member
//! ```
//!
//! A part is written as a frame is: an odd sequence, the payload, the rest of its header, an even sequence, in
//! order on one endpoint. A reader looks at the sequence again after the last byte.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use serde::{Deserialize, Serialize};

use super::HandshakeError;
use super::handshake::{check, decode, encode, is_aligned};
use super::layout::LINE;
use crate::kernel;
use crate::mem::{
    LocalSlice, MemoryRegion, OutOfBounds, PAGE_SIZE, RemoteSlice, Streaming, VolatileSlice, fence,
};
use crate::transport::{
    Endpoint, Flags, Inline, Operation, PayloadSlice, PostError, WorkRequest, WorkRequestId,
};

/// Most members of a group: a bit for each must fit one line.
pub const MAX_MEMBERS: usize = LINE * 8;

/// A set of ranks, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks([u64; 8]);

impl Ranks {
    /// Takes a rank in; true if it was not in.
    ///
    /// # Panics
    /// If it is not less than [`MAX_MEMBERS`].
    pub fn insert(&mut self, rank: usize) -> bool {
        let before = self.0;
        self.0[rank / 64] |= 1 << (rank % 64);
        before != self.0
    }

    /// Returns whether a rank is in.
    pub fn contains(&self, rank: usize) -> bool {
        rank < MAX_MEMBERS && self.0[rank / 64] >> (rank % 64) & 1 == 1
    }

    /// Returns the ranks below `members` that are in, in order.
    pub fn iter(&self, members: usize) -> impl Iterator<Item = usize> + use<> {
        let ranks = *self;
        (0..members).filter(move |rank| ranks.contains(*rank))
    }
}

/// Names a list of ranks in one word (FNV-1a).
pub fn ranks_word(ranks: &[u16]) -> u64 {
    let bytes = ranks.iter().flat_map(|rank| rank.to_le_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// The division of a group's parameters into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLayout {
    /// Parameters, f32.
    pub elements: u64,
}

impl GroupLayout {
    /// Most elements: what two areas of half of them each still leave addressable.
    pub const ELEMENTS_MAX: u64 = 1 << 40;

    /// Bytes of the page of words.
    pub const PAGE_BYTES: usize = (5 * LINE).next_multiple_of(PAGE_SIZE);

    /// Bytes of all parameters.
    pub fn bytes(&self) -> usize {
        self.elements as usize * 4
    }

    /// The bytes of the part that the member at `index` of `members` averages. Parts are cut at cache lines; where
    /// there are fewer lines than members some are empty.
    pub fn part(&self, members: usize, index: usize) -> Range<usize> {
        let lines = self.bytes().div_ceil(LINE);
        let cut = |index: usize| {
            ((lines as u128 * index as u128 / members as u128) as usize * LINE).min(self.bytes())
        };
        cut(index)..cut(index + 1)
    }

    /// Bytes from the begin of one area to that of the next: the longest part is that of a group of two.
    pub fn area_bytes(&self) -> usize {
        (self.bytes().div_ceil(LINE).div_ceil(2) * LINE).next_multiple_of(PAGE_SIZE)
    }
}

/// The first message of one member to another before any memory is shared, and the answer to it. With either go two
/// grants: the page and the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHello {
    /// Names the job; members of different ones refuse each other.
    pub run: u64,
    /// Its rank.
    pub rank: u16,
    /// Number of members.
    pub members: u16,
    /// The division of their parameters.
    pub layout: GroupLayout,
    /// The time that a member may be silent before it is taken for dead, in nanoseconds.
    pub lease_ns: u64,
    /// Whether parts carry checksums.
    pub checksums: bool,
}

/// Tells a member's message from the messages of workers and readers.
const TAG: [u8; 5] = *b"group";

impl GroupHello {
    /// Encodes the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(&(TAG, self))
    }

    /// Decodes bytes and grants of a peer that is not trusted yet: all values that are used in later computations
    /// are checked here.
    pub fn decode(bytes: &[u8], grants: &[RemoteSlice]) -> Result<GroupHello, HandshakeError> {
        let (tag, hello): ([u8; 5], GroupHello) = decode(bytes)?;
        check(tag == TAG, "it is not that of a group's member")?;
        check((1..=GroupLayout::ELEMENTS_MAX).contains(&hello.layout.elements), "parameters that cannot be")?;
        check(
            usize::from(hello.members) <= MAX_MEMBERS && hello.rank < hello.members,
            "a rank that cannot be",
        )?;
        check(
            grants.len() == 2 && grants.iter().all(is_aligned),
            "another page and areas than there should be",
        )?;
        check(
            grants.iter().all(|grant| grant.offset.checked_add(grant.len).is_some()),
            "a grant without an end",
        )?;
        check(grants[0].len >= GroupLayout::PAGE_BYTES as u64, "a page too short")?;
        check(grants[1].len >= 2 * hello.layout.area_bytes() as u64, "areas too short")?;
        Ok(hello)
    }

    /// Returns the reason why a member that said `theirs` cannot be in a group with the member that says `self`, if
    /// there is one.
    pub fn differs_from(&self, theirs: &GroupHello) -> Option<String> {
        let differ = |what: &str, theirs: String, ours: String| {
            Some(format!("its {what} is {theirs}, here it is {ours}: start all members of one job alike"))
        };
        let hex = |number: u64| format!("{number:#x}");
        if self.run != theirs.run {
            return differ("run", hex(theirs.run), hex(self.run));
        }
        if self.members != theirs.members {
            return differ("number of members", theirs.members.to_string(), self.members.to_string());
        }
        if self.layout != theirs.layout {
            let [theirs, ours] = [theirs, self].map(|hello| hello.layout.elements.to_string());
            return differ("number of parameters", theirs, ours);
        }
        if (self.lease_ns, self.checksums) != (theirs.lease_ns, theirs.checksums) {
            let show = |hello: &GroupHello| {
                format!("{:?}, {}", core::time::Duration::from_nanos(hello.lease_ns), hello.checksums)
            };
            return differ("lease and use of checksums", show(theirs), show(self));
        }
        (self.rank == theirs.rank)
            .then(|| format!("rank {} is taken by the member that was asked", self.rank))
    }
}

/// The two areas of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupArea {
    /// The writer's parameters of the part that the owner of the memory averages.
    Summand,
    /// The part that the writer has averaged.
    Mean,
}

impl GroupArea {
    fn header(self) -> usize {
        (3 + self as usize) * LINE
    }
}

const THROUGH: usize = 0;
const STATE: usize = 8;
const HEARTBEAT: usize = LINE;
const GONE: usize = 2 * LINE;

const STATE_LEFT: u64 = 2;

/// Header of a part: eight words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartHeader {
    /// Odd while the part is being written; only grows.
    pub sequence: u64,
    /// The round.
    pub round: u64,
    /// [`ranks_word`] of the members that average in it, as the writer sees it.
    pub view: u64,
    /// [`ranks_word`] of the group as the writer was told, the gone included.
    pub group: u64,
    /// Bytes of the payload.
    pub bytes: u64,
    /// CRC-64 over round, view, bytes and payload, or 0 where it is not asked for.
    pub checksum: u64,
}

impl PartHeader {
    fn to_words(self) -> [u64; 8] {
        [self.sequence, self.round, self.view, self.group, self.bytes, self.checksum, 0, 0]
    }

    fn from_words(words: [u64; 8]) -> PartHeader {
        let [sequence, round, view, group, bytes, checksum, ..] = words;
        PartHeader { sequence, round, view, group, bytes, checksum }
    }

    /// Returns the checksum of `payload` under this header; never 0.
    pub fn checksum_of(&self, payload: VolatileSlice<'_>) -> u64 {
        let mut seed = [0; 24];
        for (bytes, word) in seed.chunks_exact_mut(8).zip([self.round, self.view, self.bytes]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        kernel::crc64(payload, kernel::crc64(VolatileSlice::from_ref(&seed), 0)).max(1)
    }
}

/// The memory of a member that one other member writes. The owner only reads it and trusts nothing of it.
#[derive(Clone, Debug)]
pub struct GroupInbox {
    page: MemoryRegion,
    areas: MemoryRegion,
    layout: GroupLayout,
}

impl GroupInbox {
    /// Makes an inbox over a zeroed page, and areas.
    ///
    /// # Panics
    /// If a region is shorter than the layout needs; both are the owner's own.
    pub fn new(page: MemoryRegion, areas: MemoryRegion, layout: GroupLayout) -> GroupInbox {
        assert!(
            page.len() >= GroupLayout::PAGE_BYTES && areas.len() >= 2 * layout.area_bytes(),
            "regions too short"
        );
        GroupInbox { page, areas, layout }
    }

    /// Returns the memory that the other member is granted.
    pub fn grants(&self) -> Vec<LocalSlice> {
        vec![self.page.whole(), self.areas.whole()]
    }

    /// Rounds before this one are over for the other member. All its writes of these rounds are visible from then on,
    /// and it makes no more.
    pub fn through(&self) -> u64 {
        self.page.as_volatile().load(THROUGH, Acquire)
    }

    /// Returns whether the other member has left in order.
    pub fn has_left(&self) -> bool {
        self.page.as_volatile().load(STATE, Acquire) == STATE_LEFT
    }

    /// Changes while the other member lives.
    pub fn heartbeat(&self) -> u64 {
        self.page.as_volatile().load(HEARTBEAT, Relaxed)
    }

    /// Returns the members that the other member takes for gone. Every bit only comes, so it does not matter which
    /// of them are seen at once.
    pub fn gone(&self) -> Ranks {
        let line = self.page.as_volatile().subslice(GONE, LINE);
        Ranks(std::array::from_fn(|index| line.load(index * 8, Relaxed)))
    }

    /// Header of an area, if its content is whole.
    pub fn header(&self, area: GroupArea) -> Option<PartHeader> {
        let line = self.page.as_volatile().subslice(area.header(), LINE);
        // Acquire: the rest of the header and the payload were written before.
        let sequence = line.load(0, Acquire);
        if sequence == 0 || !sequence.is_multiple_of(2) {
            return None;
        }
        let words =
            std::array::from_fn(|index| if index == 0 { sequence } else { line.load(index * 8, Relaxed) });
        self.is_still(area, sequence).then(|| PartHeader::from_words(words))
    }

    /// The first `bytes` of an area; none if it is not so long.
    pub fn payload(&self, area: GroupArea, bytes: u64) -> Option<VolatileSlice<'_>> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= self.layout.area_bytes())?;
        Some(self.area(area).subslice(0, bytes))
    }

    /// The first `bytes` of an area, for a copy that takes a while.
    ///
    /// # Errors
    /// The area is not so long.
    pub fn slice(&self, area: GroupArea, bytes: usize) -> Result<LocalSlice, OutOfBounds> {
        let available = self.layout.area_bytes();
        if bytes > available {
            return Err(OutOfBounds { offset: 0, len: bytes as u64, available: available as u64 });
        }
        self.areas.slice(area as usize * available, bytes)
    }

    /// All of an area.
    pub fn area(&self, area: GroupArea) -> VolatileSlice<'_> {
        let bytes = self.layout.area_bytes();
        self.areas.as_volatile().subslice(area as usize * bytes, bytes)
    }

    /// Returns whether all bytes that were read of an area since its header said `sequence` belonged to that part.
    pub fn is_still(&self, area: GroupArea, sequence: u64) -> bool {
        // A word of a later part that was read brings the odd sequence before it along.
        fence(Acquire);
        self.page.as_volatile().load(area.header(), Relaxed) == sequence || mutant!("group_header")
    }
}

/// A member's side of the memory that another member holds for it.
#[derive(Clone, Debug)]
pub struct GroupOutbox {
    page: RemoteSlice,
    areas: RemoteSlice,
    layout: GroupLayout,
    sequences: [u64; 2],
}

/// A request that its poster wants to hear of has this id plus the index of the area.
pub const PART_ID: u64 = 1;

/// Id of the announcement that a member leaves.
pub const LEAVE_ID: u64 = PART_ID + 2;

/// Id of the news of the members that are gone.
pub const GONE_ID: u64 = PART_ID + 3;

impl GroupOutbox {
    /// Makes an outbox over the memory that the other member granted.
    pub fn new(grants: &[RemoteSlice], layout: GroupLayout) -> Result<GroupOutbox, OutOfBounds> {
        let [page, areas] = grants else {
            return Err(OutOfBounds { offset: 0, len: 2, available: grants.len() as u64 });
        };
        let page = page.slice(0, GroupLayout::PAGE_BYTES as u64)?;
        let areas = areas.slice(0, 2 * layout.area_bytes() as u64)?;
        for RemoteSlice { offset, len, .. } in [page, areas] {
            offset.checked_add(len).ok_or(OutOfBounds { offset, len, available: u64::MAX })?;
        }
        Ok(GroupOutbox { page, areas, layout, sequences: [0; 2] })
    }

    /// The word that a heart beats in.
    pub fn heartbeat(&self) -> Result<RemoteSlice, OutOfBounds> {
        self.page.slice(HEARTBEAT as u64, 8)
    }

    fn inline(&self, id: u64, at: usize, data: Inline, flags: Flags) -> WorkRequest {
        let RemoteSlice { key, offset, .. } = self.page;
        let remote = RemoteSlice { key, offset: offset + at as u64, len: data.len_bytes() };
        WorkRequest { id: WorkRequestId(id), operation: Operation::WriteInline { data, remote }, flags }
    }

    /// Posts a part, all of it or nothing. Of the header the sequence is filled in. The last request is signalled,
    /// with the id [`PART_ID`] plus the area's index: from then on the payload's memory is free.
    pub fn write(
        &mut self,
        endpoint: &mut impl Endpoint,
        area: GroupArea,
        header: PartHeader,
        payload: impl Into<PayloadSlice>,
    ) -> Result<(), PostError> {
        let payload = payload.into();
        let (at, sequence) = (area.header(), self.sequences[area as usize]);
        let (odd, even) = (sequence + 1, sequence + 2);
        let header = PartHeader { sequence: odd, ..header };
        let silent = |data| self.inline(0, at, data, Flags::empty());
        let begin = silent(Inline::word(odd));
        let whole = silent(Inline::line(header.to_words()));
        let announce = self.inline(PART_ID + area as u64, at, Inline::word(even), Flags::SIGNALLED);
        if payload.is_empty() {
            endpoint.post(&[begin, whole, announce])?;
        } else {
            let RemoteSlice { key, offset, .. } = self.areas;
            let offset = offset + (area as usize * self.layout.area_bytes()) as u64;
            let remote = RemoteSlice { key, offset, len: payload.len() as u64 };
            let operation = payload.write(remote, Streaming::ByLength);
            endpoint.post(&[begin, WorkRequest::unsignalled(0, operation), whole, announce])?;
        }
        self.sequences[area as usize] = even;
        Ok(())
    }

    /// Says that rounds before `round` are over.
    pub fn write_through(&self, endpoint: &mut impl Endpoint, round: u64) -> Result<(), PostError> {
        endpoint.post(&[self.inline(0, THROUGH, Inline::word(round), Flags::empty())])
    }

    /// Says which members are gone; the completion has [`GONE_ID`].
    pub fn write_gone(&self, endpoint: &mut impl Endpoint, gone: Ranks) -> Result<(), PostError> {
        endpoint.post(&[self.inline(GONE_ID, GONE, Inline::line(gone.0), Flags::SIGNALLED)])
    }

    /// Says that this member leaves; the completion has [`LEAVE_ID`].
    pub fn write_left(&self, endpoint: &mut impl Endpoint) -> Result<(), PostError> {
        endpoint.post(&[self.inline(LEAVE_ID, STATE, Inline::word(STATE_LEFT), Flags::SIGNALLED)])
    }
}

/// Decodes arbitrary `bytes` as a member's hello with two grants of the lengths in front, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_group_hello(bytes: &[u8]) {
    let Some((words, message)) = bytes.split_first_chunk::<16>() else { return };
    let (lengths, _) = words.as_chunks::<8>();
    let grant = |bytes: &[u8; 8]| RemoteSlice {
        key: crate::mem::RemoteKey(0),
        offset: 0,
        len: u64::from_le_bytes(*bytes),
    };
    let grants: Vec<RemoteSlice> = lengths.iter().map(grant).collect();
    let Ok(hello) = GroupHello::decode(message, &grants) else { return };
    let layout = hello.layout;
    assert!(GroupOutbox::new(&grants, layout).is_ok());
    for members in [1, 2, 3, usize::from(hello.members)] {
        assert_eq!(
            (layout.part(members, 0).start, layout.part(members, members - 1).end),
            (0, layout.bytes())
        );
        let part = layout.part(members, members / 2);
        assert!(part.start <= part.end && (members < 2 || part.len() <= layout.area_bytes()));
    }
    assert!(hello.differs_from(&hello).is_some(), "no member is in a group with itself");
    assert_eq!(GroupHello::decode(&hello.encode(), &grants), Ok(hello));
}

/// Hellos that are taken.
#[cfg(any(test, fuzzing))]
pub(crate) fn group_hello_samples() -> Vec<Vec<u8>> {
    let layout = GroupLayout { elements: 1000 };
    let hello = GroupHello { run: 7, rank: 1, members: 4, layout, lease_ns: 3_000_000_000, checksums: true };
    let lengths = [GroupLayout::PAGE_BYTES, 2 * layout.area_bytes()].map(|len| (len as u64).to_le_bytes());
    vec![[lengths.concat(), hello.encode()].concat()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_are_found_again_and_lists_have_names_of_their_own() {
        let mut ranks = Ranks::default();
        for rank in [0, 63, 64, 511] {
            assert!(ranks.insert(rank) && !ranks.insert(rank));
        }
        assert_eq!(ranks.iter(512).collect::<Vec<_>>(), [0, 63, 64, 511]);
        assert!(!ranks.contains(512));
        let lists: [&[u16]; 5] = [&[], &[0], &[0, 1], &[0, 256], &[1, 0]];
        for (index, one) in lists.iter().enumerate() {
            assert!(lists[..index].iter().all(|other| ranks_word(one) != ranks_word(other)));
        }
    }

    #[test]
    fn members_of_different_jobs_are_told_apart() {
        let layout = GroupLayout { elements: 9 };
        let ours = GroupHello { run: 1, rank: 0, members: 3, layout, lease_ns: 5, checksums: false };
        let theirs = GroupHello { rank: 1, ..ours };
        assert_eq!(ours.differs_from(&theirs), None);
        for (other, word) in [
            (GroupHello { run: 2, ..theirs }, "run"),
            (GroupHello { members: 4, ..theirs }, "members"),
            (GroupHello { layout: GroupLayout { elements: 10 }, ..theirs }, "parameters"),
            (GroupHello { lease_ns: 6, ..theirs }, "lease"),
            (GroupHello { checksums: true, ..theirs }, "checksums"),
            (ours, "rank"),
        ] {
            assert!(ours.differs_from(&other).unwrap().contains(word));
        }
    }

    proptest! {
        #[test]
        fn parts_cover_all_parameters_once_and_fit_their_areas(elements in 1u64..5000, members in 1usize..70) {
            let layout = GroupLayout { elements };
            let mut end = 0;
            for index in 0..members {
                let part = layout.part(members, index);
                prop_assert_eq!(part.start, end);
                prop_assert!(part.end >= part.start);
                prop_assert!(part.start.is_multiple_of(LINE) || part.is_empty());
                prop_assert!(members == 1 || part.len() <= layout.area_bytes());
                end = part.end;
            }
            prop_assert_eq!(end, layout.bytes());
        }
    }
}
