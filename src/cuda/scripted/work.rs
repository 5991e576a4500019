//! Memory of the scripted device, and the work of its streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Release};

use memmap2::MmapOptions;

use super::super::driver::DevicePointer;
use super::ScriptedState;

/// Bytes of the device.
const CAPACITY: usize = 16 << 20;
/// A copy is made in so many pieces.
const PIECES: usize = 3;

/// Work that a stream has.
pub(super) enum StreamWork {
    Record(u64),
    Wait(u64),
    ToHost { host: usize, device: DevicePointer, bytes: usize, done: usize },
    FromHost { host: usize, device: DevicePointer, bytes: usize, done: usize },
    Word { host: usize, value: u64 },
    Fill { pointer: DevicePointer, bytes: usize, value: u8 },
    Kernel { to: DevicePointer, from: DevicePointer, bytes: usize },
}

/// The memory of the device: addresses that nobody may touch, and the bytes that stand behind them.
pub(super) struct ScriptedMemory {
    addresses: memmap2::MmapRaw,
    bytes: Vec<u8>,
    /// Blocks by their first address: bytes, whether it is managed, the ordinal of its device.
    blocks: BTreeMap<DevicePointer, (usize, bool, u32)>,
    /// Blocks of the library's own.
    pub(super) own: usize,
}

impl ScriptedMemory {
    pub(super) fn new() -> ScriptedMemory {
        let addresses = MmapOptions::new().len(CAPACITY).map_anon().expect("addresses");
        let addresses = memmap2::MmapRaw::from(addresses);
        // SAFETY: the whole mapping, which nothing has a reference to.
        unsafe {
            let nothing = rustix::mm::MprotectFlags::empty();
            rustix::mm::mprotect(addresses.as_mut_ptr().cast(), CAPACITY, nothing).expect("no access");
        }
        ScriptedMemory { addresses, bytes: vec![0; CAPACITY], blocks: BTreeMap::new(), own: 0 }
    }

    fn base(&self) -> DevicePointer {
        self.addresses.as_ptr().addr() as DevicePointer
    }

    /// A block of its own, behind all others and 256 bytes from the last.
    pub(super) fn reserve(&mut self, bytes: usize) -> Option<DevicePointer> {
        let end = self.blocks.last_key_value().map_or(self.base(), |(begin, block)| begin + block.0 as u64);
        let begin = (end + 256).next_multiple_of(256);
        (begin + bytes as u64 <= self.base() + CAPACITY as u64).then(|| {
            self.blocks.insert(begin, (bytes, false, 0));
            begin
        })
    }

    pub(super) fn free(&mut self, pointer: DevicePointer) {
        self.blocks.remove(&pointer);
    }

    pub(super) fn set(&mut self, pointer: DevicePointer, is_managed: bool, ordinal: u32) {
        let block = self.blocks.get_mut(&pointer).expect("a block");
        (block.1, block.2) = (is_managed, ordinal);
    }

    fn block(&self, pointer: DevicePointer) -> Option<(DevicePointer, (usize, bool, u32))> {
        let (begin, block) = self.blocks.range(..=pointer).next_back()?;
        (pointer < begin + block.0 as u64).then_some((*begin, *block))
    }

    pub(super) fn kind(&self, pointer: DevicePointer) -> Option<(bool, u32)> {
        self.block(pointer).map(|(_, (_, is_managed, ordinal))| (is_managed, ordinal))
    }

    pub(super) fn range(&self, pointer: DevicePointer) -> Option<(DevicePointer, usize)> {
        self.block(pointer).map(|(begin, (bytes, ..))| (begin, bytes))
    }

    /// The bytes of a range that is inside one block.
    pub(super) fn at(&mut self, pointer: DevicePointer, bytes: usize) -> Option<&mut [u8]> {
        let (begin, length) = self.range(pointer)?;
        let offset = (pointer - self.base()) as usize;
        (pointer + bytes as u64 <= begin + length as u64).then(|| &mut self.bytes[offset..offset + bytes])
    }
}

impl ScriptedState {
    /// True if the work before this record of an event is not done.
    pub(super) fn is_ahead(&self, record: u64) -> bool {
        let is_it = |work: &StreamWork| matches!(work, StreamWork::Record(other) if *other == record);
        record == u64::MAX || self.streams.values().any(|stream| stream.work.iter().any(is_it))
    }

    fn is_ready(&self, stream: usize) -> bool {
        match self.streams[&stream].work.front() {
            None => false,
            Some(StreamWork::Wait(record)) => !self.is_ahead(*record),
            Some(_) => true,
        }
    }

    /// Does one piece of work of a stream that chance picks.
    pub(super) fn work(&mut self) -> bool {
        let mut ready: Vec<usize> =
            self.streams.keys().copied().filter(|stream| self.is_ready(*stream)).collect();
        ready.sort_unstable();
        if ready.is_empty() {
            return false;
        }
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let stream = ready[(self.random % ready.len() as u64) as usize];
        let mut work =
            self.streams.get_mut(&stream).and_then(|stream| stream.work.pop_front()).expect("work");
        if !self.piece(&mut work) {
            self.streams.get_mut(&stream).expect("the stream").work.push_front(work);
        }
        true
    }

    /// Does a piece; true if the work is done.
    fn piece(&mut self, work: &mut StreamWork) -> bool {
        match work {
            StreamWork::Record(_) | StreamWork::Wait(_) => true,
            StreamWork::ToHost { host, device, bytes, done }
            | StreamWork::FromHost { host, device, bytes, done } => {
                let piece = bytes.div_ceil(PIECES).min(*bytes - *done);
                let (from, at) = (*device + *done as u64, *host + *done);
                let is_registered =
                    |(begin, length): (&usize, &usize)| *begin <= at && at + piece <= begin + length;
                assert!(self.registered.iter().any(is_registered), "a copy of memory that is not locked");
                let is_outwards = matches!(work, StreamWork::ToHost { .. });
                let device = self.device.at(from, piece).expect("a copy of memory that is not allocated");
                let host = std::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: the range is registered, so it is mapped; that nothing else uses it is the claim of the tests
                // that run this.
                unsafe {
                    match is_outwards {
                        true => host.copy_from_nonoverlapping(device.as_ptr(), piece),
                        false => device.as_mut_ptr().copy_from_nonoverlapping(host, piece),
                    }
                }
                let (StreamWork::ToHost { bytes, done, .. } | StreamWork::FromHost { bytes, done, .. }) =
                    work
                else {
                    return true;
                };
                *done += piece;
                done == bytes
            }
            StreamWork::Word { host, value } => {
                // SAFETY: a word of the page of a queue, which is registered while the queue is.
                unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(*host)) }
                    .store(*value, Release);
                true
            }
            StreamWork::Fill { pointer, bytes, value } => {
                self.device.at(*pointer, *bytes).expect("memory of the device").fill(*value);
                true
            }
            StreamWork::Kernel { to, from, bytes } => {
                let copied = self.device.at(*from, *bytes).expect("memory of the device").to_vec();
                self.device.at(*to, *bytes).expect("memory of the device").copy_from_slice(&copied);
                true
            }
        }
    }
}
