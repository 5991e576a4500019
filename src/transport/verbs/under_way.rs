//! The requests that were posted on a queue pair and not yet reported to the caller, and the memory that they own.

use std::collections::VecDeque;

use crate::transport::{PayloadMemory, WorkRequestId};

/// A work request of the device: one request of the caller, or a part of a long one.
#[derive(Clone, Copy)]
pub(super) struct DeviceRequest {
    pub(super) id: WorkRequestId,
    pub(super) kind: EntryKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// The caller gets a completion.
    Signalled,
    /// The caller gets a completion if it fails.
    Unsignalled,
    /// Not the last part of its request: the last part reports for it.
    Part,
    /// A READ before a request, which reports for it. It takes no room from the caller's requests.
    Proof,
}

/// Memory, with the number of the last request for which it is held.
pub(super) type HeldMemory = (PayloadMemory, u64);

/// The requests under way. They are numbered in the order in which they were posted, and forgotten in that order.
pub(super) struct UnderWay {
    /// The entry of each number, at the number's lowest bits. The vector grows up to its capacity, and is then reused
    /// from its start.
    entries: Vec<DeviceRequest>,
    /// The bits of a number that are its index.
    mask: u64,
    /// The greatest number of entries: the entries of the device's queue.
    room: u64,
    /// Number of the oldest entry.
    first: u64,
    /// Number of the next entry.
    end: u64,
    /// The number of entries that are proofs.
    proofs: usize,
    /// The memory of the newest request with memory. Consecutive requests in one region hold it once.
    newest: Option<HeldMemory>,
    /// The memory of requests before it, the oldest first.
    earlier: VecDeque<HeldMemory>,
}

impl UnderWay {
    /// Room for so many entries.
    pub(super) fn with_room(room: usize) -> UnderWay {
        let capacity = room.next_power_of_two();
        UnderWay {
            entries: Vec::with_capacity(capacity),
            mask: capacity as u64 - 1,
            room: room as u64,
            first: 0,
            end: 0,
            proofs: 0,
            newest: None,
            earlier: VecDeque::with_capacity(room),
        }
    }

    /// Number of the oldest entry, or of the next one if there is none.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Number of the next entry.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Entries that are not proofs.
    #[inline]
    pub(super) fn of_caller(&self) -> usize {
        (self.end - self.first) as usize - self.proofs
    }

    /// Adds the newest entry. There must be room for it.
    #[inline]
    pub(super) fn push(&mut self, entry: DeviceRequest) {
        debug_assert!(self.end - self.first < self.room);
        self.proofs += usize::from(entry.kind == EntryKind::Proof);
        let index = (self.end & self.mask) as usize;
        match self.entries.get_mut(index) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        self.end += 1;
    }

    /// Keeps memory until the entry that is added next is forgotten. If the newest memory is the same, it is kept
    /// until then instead.
    #[inline]
    pub(super) fn hold(
        &mut self,
        is_same: impl Fn(&PayloadMemory) -> bool,
        memory: impl Fn() -> PayloadMemory,
    ) {
        match &mut self.newest {
            Some((newest, last)) if is_same(newest) => *last = self.end,
            newest => {
                if let Some(before) = newest.replace((memory(), self.end)) {
                    self.earlier.push_back(before);
                }
            }
        }
    }

    /// The kind of the oldest entry.
    pub(super) fn oldest(&self) -> Option<EntryKind> {
        (!self.is_empty()).then(|| self.entries[(self.first & self.mask) as usize].kind)
    }

    /// Removes the oldest entry, and releases memory that only this entry holds.
    #[inline]
    pub(super) fn forget_oldest(&mut self) -> Option<DeviceRequest> {
        if self.is_empty() {
            return None;
        }
        let entry = self.entries[(self.first & self.mask) as usize];
        self.first += 1;
        self.proofs -= usize::from(entry.kind == EntryKind::Proof);
        while self.earlier.front().is_some_and(|(_, last)| *last < self.first) {
            self.earlier.pop_front();
        }
        if self.newest.as_ref().is_some_and(|(_, last)| *last < self.first) {
            self.newest = None;
        }
        Some(entry)
    }

    /// Removes the newest entries, which the device did not accept.
    #[cold]
    pub(super) fn truncate(&mut self, count: usize) {
        for _ in 0..count {
            self.end -= 1;
            let entry = self.entries[(self.end & self.mask) as usize];
            self.proofs -= usize::from(entry.kind == EntryKind::Proof);
        }
        self.earlier.extend(self.newest.take());
        let (first, end) = (self.first, self.end);
        self.earlier.retain_mut(|(_, last)| {
            *last = (*last).min(end.saturating_sub(1));
            end > first && *last >= first
        });
    }

    /// Removes all entries, and returns the memory that they hold.
    #[cold]
    pub(super) fn take_held(&mut self) -> Vec<HeldMemory> {
        (self.first, self.proofs) = (self.end, 0);
        self.earlier.drain(..).chain(self.newest.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion};

    fn region() -> MemoryRegion {
        MemoryRegion::new(HostMemory::anonymous(64).unwrap(), Access::LOCAL, DeviceKeys::NONE, ())
    }

    /// Adds a request with this memory.
    fn post(all: &mut UnderWay, id: u64, memory: &MemoryRegion) {
        let is_same =
            |held: &PayloadMemory| matches!(held, PayloadMemory::Host(held) if held.same_as(memory));
        all.hold(is_same, || PayloadMemory::Host(memory.clone()));
        all.push(DeviceRequest { id: WorkRequestId(id), kind: EntryKind::Signalled });
    }

    /// For each held memory, the oldest first: whether it is `one`, and the last request for which it is held.
    fn held(all: &UnderWay, one: &MemoryRegion) -> Vec<(bool, u64)> {
        let is_one =
            |memory: &PayloadMemory| matches!(memory, PayloadMemory::Host(held) if held.same_as(one));
        all.earlier.iter().chain(&all.newest).map(|(memory, last)| (is_one(memory), *last)).collect()
    }

    #[test]
    fn requests_are_forgotten_in_their_order_in_each_lap_of_the_ring() {
        for room in [1, 5, 8] {
            fill_for_many_laps(room);
        }
    }

    fn fill_for_many_laps(room: u64) {
        let mut all = UnderWay::with_room(room as usize);
        let mut oldest = 0;
        for id in 0..100 {
            let kind = if id % 7 == 0 { EntryKind::Proof } else { EntryKind::Part };
            all.push(DeviceRequest { id: WorkRequestId(id), kind });
            assert_eq!(all.end(), id + 1);
            if id + 1 >= room {
                assert_eq!(all.of_caller(), (oldest..=id).filter(|id| id % 7 != 0).count());
                assert_eq!((all.first(), all.forget_oldest().unwrap().id.0), (oldest, oldest));
                oldest += 1;
            }
        }
        let rest: Vec<u64> = std::iter::from_fn(|| all.forget_oldest().map(|entry| entry.id.0)).collect();
        assert_eq!(rest, (oldest..100).collect::<Vec<_>>());
        assert!(all.is_empty() && all.oldest().is_none());
        assert_eq!(all.entries.capacity() as u64, room.next_power_of_two(), "no allocation after the first");
    }

    #[test]
    fn memory_is_held_once_until_its_last_request_in_a_row_is_forgotten() {
        let (mut all, one, other) = (UnderWay::with_room(8), region(), region());
        for (id, memory) in [&one, &one, &other, &one, &one].into_iter().enumerate() {
            post(&mut all, id as u64, memory);
        }
        assert_eq!(held(&all, &one), [(true, 1), (false, 2), (true, 4)]);
        let mut left = Vec::new();
        while all.forget_oldest().is_some() {
            left.push(held(&all, &one).len());
        }
        assert_eq!(left, [3, 2, 1, 1, 0]);
    }

    #[test]
    fn of_what_the_device_did_not_take_nothing_is_left() {
        let (mut all, one, other) = (UnderWay::with_room(8), region(), region());
        post(&mut all, 0, &one);
        post(&mut all, 1, &one);
        all.push(DeviceRequest { id: WorkRequestId(2), kind: EntryKind::Proof });
        post(&mut all, 3, &other);
        all.truncate(3);
        assert_eq!((all.first(), all.end(), all.of_caller()), (0, 1, 1));
        assert!(held(&all, &one).iter().all(|(_, last)| *last == 0), "no longer than what is left");
        all.forget_oldest();
        assert_eq!(held(&all, &one), []);
        post(&mut all, 7, &other);
        assert_eq!((held(&all, &one), all.oldest().is_some()), (vec![(false, 1)], true));
        assert_eq!(all.take_held().len(), 1);
        assert!(all.is_empty() && held(&all, &one).is_empty());
    }
}
