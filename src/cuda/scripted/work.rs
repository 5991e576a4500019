//! Memory of the scripted device, and the work of its streams.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Release};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;

use super::super::driver::DevicePointer;
use super::super::sys::Code;
use super::ScriptedState;
use super::kernel::{Memory, ScriptedKernel};

/// Bytes of the device.
const CAPACITY: usize = 256 << 20;
/// Memory of the library's own is a multiple of so many bytes.
pub(super) const GRANULARITY: usize = 16 << 10;
/// Bytes of a page of the host.
const PAGE: usize = 4096;
/// The name of the files, before the number of the device.
const NAME: &str = "slackline-scripted-";
/// A copy is made in so many pieces.
const PIECES: usize = 3;

/// Work that a stream has.
pub(super) enum StreamWork {
    Record(u64),
    Wait(u64),
    ToHost { host: usize, device: DevicePointer, bytes: usize, done: usize },
    FromHost { host: usize, device: DevicePointer, bytes: usize, done: usize },
    Within { to: DevicePointer, from: DevicePointer, bytes: usize, done: usize },
    Launch { kernel: ScriptedKernel, done: usize },
    Word { host: usize, value: u64 },
    Fill { pointer: DevicePointer, bytes: usize, value: u8 },
    Kernel { to: DevicePointer, from: DevicePointer, bytes: usize },
}

/// The memory of the device: addresses that nobody may touch, and the bytes that stand behind them.
pub(super) struct ScriptedMemory {
    addresses: MmapRaw,
    /// Blocks by their first address.
    blocks: BTreeMap<DevicePointer, ScriptedBlock>,
    /// Blocks of the library's own.
    pub(super) own: usize,
    /// Blocks that there have been.
    made: u64,
    /// The device that works just now: it touches what is mapped for it alone. None where a test looks.
    pub(super) working: Option<i32>,
}

struct ScriptedBlock {
    bytes: usize,
    /// No other block ever has it.
    number: u64,
    is_managed: bool,
    /// The device that it is on, and the one that it is mapped for.
    ordinal: u32,
    mapped_for: i32,
    /// A file, so that other drivers can be given it, in this process and in others.
    file: File,
    backing: MmapRaw,
}

impl ScriptedMemory {
    pub(super) fn new() -> ScriptedMemory {
        let addresses = MmapOptions::new().len(CAPACITY).map_anon().expect("addresses");
        let addresses = MmapRaw::from(addresses);
        // SAFETY: the whole mapping, which nothing has a reference to.
        unsafe {
            let nothing = rustix::mm::MprotectFlags::empty();
            rustix::mm::mprotect(addresses.as_mut_ptr().cast(), CAPACITY, nothing).expect("no access");
        }
        ScriptedMemory { addresses, blocks: BTreeMap::new(), own: 0, made: 0, working: None }
    }

    fn base(&self) -> DevicePointer {
        self.addresses.as_ptr().addr() as DevicePointer
    }

    /// A block of its own, behind all others and 256 bytes from the last, which begins at a page if it is as long. It
    /// holds what others have left there.
    pub(super) fn reserve(&mut self, device: i32, bytes: usize) -> Option<DevicePointer> {
        let name = format!("{NAME}{device}");
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("a file"));
        file.set_len(bytes.next_multiple_of(if bytes < PAGE { 1 } else { PAGE }) as u64).expect("its length");
        let begin = self.map(device, file, bytes)?;
        self.at(begin, bytes)?.fill(0xCD);
        Some(begin)
    }

    /// The device that memory is on, by the name of its file.
    pub(super) fn home(file: BorrowedFd<'_>) -> Option<i32> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let (_, device) = path.to_str()?.split_once(NAME)?;
        device.split(' ').next()?.parse().ok()
    }

    /// The same right behind another one, as pieces of one segment are.
    pub(super) fn reserve_behind(&mut self, pointer: DevicePointer, bytes: usize) -> Option<DevicePointer> {
        let block = self.blocks.get(&pointer)?;
        let device = block.mapped_for;
        let begin = pointer + block.bytes as u64;
        let name = format!("{NAME}{}", block.mapped_for);
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).ok()?);
        file.set_len(bytes as u64).ok()?;
        let is_free = self.blocks.range(begin..begin + bytes as u64).next().is_none();
        is_free.then(|| self.map_at(device, begin, file, bytes)).flatten()
    }

    /// A block whose bytes are those of a file.
    fn map(&mut self, device: i32, file: File, bytes: usize) -> Option<DevicePointer> {
        let end =
            self.blocks.last_key_value().map_or(self.base(), |(begin, block)| begin + block.bytes as u64);
        let begin = (end + 256).next_multiple_of(if bytes < PAGE { 256 } else { PAGE as u64 });
        self.map_at(device, begin, file, bytes)
    }

    fn map_at(
        &mut self,
        device: i32,
        begin: DevicePointer,
        file: File,
        bytes: usize,
    ) -> Option<DevicePointer> {
        if begin + bytes as u64 > self.base() + CAPACITY as u64 {
            return None;
        }
        let backing = MmapOptions::new().len(bytes).map_raw(&file).expect("a mapping");
        self.made += 1;
        let number = self.made;
        let ordinal = ScriptedMemory::home(file.as_fd()).unwrap_or(0) as u32;
        let block =
            ScriptedBlock { bytes, number, is_managed: false, ordinal, mapped_for: device, file, backing };
        self.blocks.insert(begin, block);
        Some(begin)
    }

    /// A descriptor for whole pages of a block, as far as they are its own: what the file has from where it stands on.
    pub(super) fn dma_buf(&self, pointer: DevicePointer, bytes: usize) -> Option<OwnedFd> {
        let (begin, block) = self.block(pointer)?;
        let (page, offset) = (PAGE as u64, pointer - begin);
        let is_whole = pointer.is_multiple_of(page) && bytes.is_multiple_of(PAGE);
        let is_inside = offset as usize + bytes <= block.bytes.next_multiple_of(PAGE);
        // Another description of the file, which stands elsewhere.
        let path = format!("/proc/self/fd/{}", block.file.as_raw_fd());
        let mut file = File::options().read(true).write(true).open(path).ok()?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        (is_whole && is_inside).then(|| file.into())
    }

    pub(super) fn number(&self, pointer: DevicePointer) -> Option<u64> {
        self.block(pointer).map(|(_, block)| block.number)
    }

    pub(super) fn export(&self, pointer: DevicePointer) -> Option<OwnedFd> {
        Some(self.blocks.get(&pointer)?.file.try_clone().expect("another descriptor").into())
    }

    /// As the driver does, takes all of what was exported, and nothing else.
    pub(super) fn import(
        &mut self,
        device: i32,
        file: BorrowedFd<'_>,
        bytes: usize,
    ) -> Option<DevicePointer> {
        let file = File::from(file.try_clone_to_owned().expect("another descriptor"));
        let is_memory = file.metadata().ok()?.len() == bytes as u64 && bytes.is_multiple_of(GRANULARITY);
        if is_memory { self.map(device, file, bytes) } else { None }
    }

    pub(super) fn free(&mut self, pointer: DevicePointer) {
        self.blocks.remove(&pointer);
    }

    pub(super) fn set(&mut self, pointer: DevicePointer, is_managed: bool, ordinal: u32) {
        let block = self.blocks.get_mut(&pointer).expect("a block");
        (block.is_managed, block.ordinal) = (is_managed, ordinal);
    }

    fn block(&self, pointer: DevicePointer) -> Option<(DevicePointer, &ScriptedBlock)> {
        let (begin, block) = self.blocks.range(..=pointer).next_back()?;
        (pointer < begin + block.bytes as u64).then_some((*begin, block))
    }

    pub(super) fn kind(&self, pointer: DevicePointer) -> Option<(bool, u32)> {
        self.block(pointer).map(|(_, block)| (block.is_managed, block.ordinal))
    }

    pub(super) fn range(&self, pointer: DevicePointer) -> Option<(DevicePointer, usize)> {
        self.block(pointer).map(|(begin, block)| (begin, block.bytes))
    }

    /// The bytes of a range that is inside one block.
    pub(super) fn at(&mut self, pointer: DevicePointer, bytes: usize) -> Option<&mut [u8]> {
        let (begin, block) = self.block(pointer)?;
        let is_reached = self.working.is_none_or(|device| device == block.mapped_for);
        assert!(is_reached, "device {:?} touches memory that is mapped for another one", self.working);
        let offset = (pointer - begin) as usize;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= block.bytes);
        // SAFETY: inside the mapping, which lives as long as the block. Another driver may have mapped it, too; that
        // nothing uses the range at the same time is the claim of the tests that run this.
        is_inside
            .then(|| unsafe { std::slice::from_raw_parts_mut(block.backing.as_mut_ptr().add(offset), bytes) })
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
        self.device.working = Some(self.device_of(self.streams[&stream].context));
        let is_done = self.piece(&mut work);
        self.device.working = None;
        if !is_done {
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
            StreamWork::Within { to, from, bytes, done } => {
                let piece = bytes.div_ceil(PIECES).min(*bytes - *done);
                let (to, from) = (*to + *done as u64, *from + *done as u64);
                let copied =
                    self.device.at(from, piece).expect("a copy of memory that is not allocated").to_vec();
                self.device
                    .at(to, piece)
                    .expect("a copy to memory that is not allocated")
                    .copy_from_slice(&copied);
                *done += piece;
                done == bytes
            }
            StreamWork::Launch { kernel, .. } if !kernel.is_there(&self.device) => {
                self.fault = Some(Code::ILLEGAL_ADDRESS);
                true
            }
            StreamWork::Launch { kernel, done } => {
                let count = kernel.count();
                let piece = count.div_ceil(PIECES).min(count - *done);
                let mut memory = Memory { device: &mut self.device, registered: &self.registered };
                kernel.run(*done..*done + piece, &mut memory);
                *done += piece;
                *done == count
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
