//! Memory as the work of scripted devices reaches it: their own, and that of the host.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;

use super::super::driver::{Context, DevicePointer};
use super::super::sys::IpcHandle;
use super::host::ScriptedHost;
use super::shared;

/// Bytes of addresses.
const CAPACITY: usize = 8 << 30;
/// Memory of the library's own begins at a multiple of so many bytes and has a multiple of them, as on GPUs.
const GRANULARITY: usize = 2 << 20;
/// Bytes of a page of the host.
const PAGE: usize = 4096;
/// What others have left in memory.
const LEFT: u8 = 0xCD;
/// The name of the files, before the number of the device.
const NAME: &str = "slackline-scripted-";

/// The memory of the device: addresses that the processor may not touch, and the bytes that stand behind them.
pub(super) struct ScriptedMemory {
    addresses: MmapRaw,
    /// Blocks by their first address.
    blocks: BTreeMap<DevicePointer, ScriptedBlock>,
    /// Blocks of the library's own.
    pub(super) own: usize,
    /// Blocks that there have been.
    made: u64,
    /// The number of the driver, and what it has open of others: where, and how often.
    id: u64,
    opened: BTreeMap<DevicePointer, (IpcHandle, usize)>,
    /// The device that works just now: it touches what is mapped for it alone. None where a test looks.
    pub(super) working: Option<i32>,
}

struct ScriptedBlock {
    bytes: usize,
    /// No other block ever has it.
    number: u64,
    is_managed: bool,
    /// The context that it was allocated in, if the driver says one.
    context: Option<Context>,
    /// Whether it was allocated by `cuMemAlloc`.
    is_classic: bool,
    /// The device that it is on, and the one that it is mapped for.
    ordinal: u32,
    mapped_for: i32,
    /// Whether that device may write it.
    is_writable: bool,
    /// A file, so that other drivers can be given it, in this process and in others.
    file: File,
    backing: MmapRaw,
}

impl ScriptedMemory {
    pub(super) fn new() -> ScriptedMemory {
        let addresses = MmapOptions::new().len(CAPACITY).no_reserve_swap().map_anon().expect("addresses");
        let addresses = MmapRaw::from(addresses);
        // SAFETY: the whole mapping, which nothing has a reference to.
        unsafe {
            let nothing = rustix::mm::MprotectFlags::empty();
            rustix::mm::mprotect(addresses.as_mut_ptr().cast(), CAPACITY, nothing).expect("no access");
        }
        static DRIVERS: AtomicU32 = AtomicU32::new(1);
        let (id, opened) = (shared::driver_number(DRIVERS.fetch_add(1, Relaxed)), BTreeMap::new());
        ScriptedMemory { addresses, blocks: BTreeMap::new(), own: 0, made: 0, id, opened, working: None }
    }

    fn base(&self) -> DevicePointer {
        self.addresses.as_ptr().addr() as DevicePointer
    }

    /// A block of the library's own, with its length.
    pub(super) fn allocate(&mut self, device: i32, bytes: usize) -> Option<(DevicePointer, usize)> {
        let whole = bytes.next_multiple_of(GRANULARITY);
        let begin = self.block_of(device, whole)?;
        self.write(begin, bytes)?.fill(LEFT);
        self.own += 1;
        Some((begin, whole))
    }

    /// A block of the caller's.
    pub(super) fn reserve(&mut self, device: i32, bytes: usize) -> Option<DevicePointer> {
        let begin = self.block_of(device, bytes)?;
        self.write(begin, bytes)?.fill(LEFT);
        Some(begin)
    }

    /// A block behind all others and 256 bytes from the last, which begins at a page if it is as long.
    fn block_of(&mut self, device: i32, bytes: usize) -> Option<DevicePointer> {
        let name = format!("{NAME}{device}");
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("a file"));
        file.set_len(bytes.next_multiple_of(if bytes < PAGE { 1 } else { PAGE }) as u64).expect("its length");
        self.map(device, file, bytes, true)
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
        is_free.then(|| self.map_at(device, begin, file, (bytes, true))).flatten()
    }

    /// Two blocks of the caller's, one right behind the other: the begin, and the length of each.
    pub(super) fn reserve_two(&mut self, device: i32, bytes: usize) -> Option<(DevicePointer, usize)> {
        let whole = bytes.next_multiple_of(GRANULARITY);
        let begin = self.reserve(device, whole)?;
        self.reserve_behind(begin, whole)?;
        Some((begin, whole))
    }

    /// A block whose bytes are those of a file.
    fn map(&mut self, device: i32, file: File, bytes: usize, is_writable: bool) -> Option<DevicePointer> {
        let end =
            self.blocks.last_key_value().map_or(self.base(), |(begin, block)| begin + block.bytes as u64);
        let alignment = match bytes {
            bytes if bytes < PAGE => 256,
            bytes if bytes.is_multiple_of(GRANULARITY) => GRANULARITY,
            _ => PAGE,
        };
        let begin = (end + 256).next_multiple_of(alignment as u64);
        self.map_at(device, begin, file, (bytes, is_writable))
    }

    fn map_at(
        &mut self,
        device: i32,
        begin: DevicePointer,
        file: File,
        (bytes, is_writable): (usize, bool),
    ) -> Option<DevicePointer> {
        if begin + bytes as u64 > self.base() + CAPACITY as u64 {
            return None;
        }
        let backing = MmapOptions::new().len(bytes).map_raw(&file).expect("a mapping");
        self.made += 1;
        let number = self.made;
        let ordinal = ScriptedMemory::home(file.as_fd()).unwrap_or(0) as u32;
        let block = ScriptedBlock {
            bytes,
            number,
            is_managed: false,
            context: None,
            is_classic: false,
            ordinal,
            mapped_for: device,
            is_writable,
            file,
            backing,
        };
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
        is_writable: bool,
    ) -> Option<DevicePointer> {
        let file = File::from(file.try_clone_to_owned().expect("another descriptor"));
        let is_memory = file.metadata().ok()?.len() == bytes as u64 && bytes.is_multiple_of(GRANULARITY);
        if is_memory { self.map(device, file, bytes, is_writable) } else { None }
    }

    /// What other drivers open the allocation by that begins at `pointer`.
    pub(super) fn share(&self, pointer: DevicePointer) -> Option<IpcHandle> {
        let block = self.blocks.get(&pointer).filter(|block| block.is_classic)?;
        let handle = self.handle(pointer, block);
        shared::share(handle);
        Some(handle)
    }

    /// What others open a block by, if they may.
    fn handle(&self, pointer: DevicePointer, block: &ScriptedBlock) -> IpcHandle {
        let file = [block.file.as_raw_fd() as u64, block.bytes as u64];
        shared::handle(file, [self.id, pointer, block.number])
    }

    /// True if it is of an allocation of this driver.
    pub(super) fn is_own(&self, handle: IpcHandle) -> bool {
        shared::driver(handle) == self.id
    }

    /// Opens an allocation of another driver, if `device` can have it, or counts.
    pub(super) fn open(&mut self, device: i32, handle: IpcHandle, are_peers: bool) -> Option<DevicePointer> {
        let known = self.opened.iter_mut().find(|(_, (open, _))| *open == handle);
        if let Some((begin, (_, count))) = known {
            *count += 1;
            return Some(*begin);
        }
        let (file, bytes) = shared::open(handle)?;
        let is_reached = are_peers || ScriptedMemory::home(file.as_fd()) == Some(device);
        let begin = is_reached.then(|| self.map(device, file, bytes, true)).flatten();
        let Some(begin) = begin else {
            shared::close(handle);
            return None;
        };
        self.own += 1;
        self.opened.insert(begin, (handle, 1));
        Some(begin)
    }

    /// All openings together.
    pub(super) fn opened_of_others(&self) -> usize {
        self.opened.values().map(|(_, count)| count).sum()
    }

    /// How often it is open.
    pub(super) fn opens(&self, begin: DevicePointer) -> usize {
        self.opened.get(&begin).map_or(0, |(_, count)| *count)
    }

    /// Closes it once.
    pub(super) fn close(&mut self, begin: DevicePointer) -> Option<()> {
        let (handle, count) = self.opened.get_mut(&begin)?;
        *count -= 1;
        if *count == 0 {
            shared::close(*handle);
            self.opened.remove(&begin);
            self.free(begin);
            self.own -= 1;
        }
        Some(())
    }

    /// Blocks that no device may write.
    pub(super) fn for_reading(&self) -> usize {
        self.blocks.values().filter(|block| !block.is_writable).count()
    }

    pub(super) fn free(&mut self, pointer: DevicePointer) {
        if let Some(block) = self.blocks.remove(&pointer) {
            shared::forget(self.handle(pointer, &block));
        }
    }

    pub(super) fn set(&mut self, pointer: DevicePointer, is_managed: bool, ordinal: u32) {
        let block = self.blocks.get_mut(&pointer).expect("a block");
        (block.is_managed, block.ordinal) = (is_managed, ordinal);
    }

    pub(super) fn set_classic(&mut self, pointer: DevicePointer, context: Context) {
        let block = self.blocks.get_mut(&pointer).expect("a block");
        (block.is_classic, block.context) = (true, Some(context));
    }

    /// The context that memory was allocated in, if the driver says one, and whether by `cuMemAlloc`.
    pub(super) fn allocated_in(&self, pointer: DevicePointer) -> Option<(Option<Context>, bool)> {
        self.block(pointer).map(|(_, block)| (block.context, block.is_classic))
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

    /// The bytes of a range that is inside one block, to be read.
    pub(super) fn read(&self, pointer: DevicePointer, bytes: usize) -> Option<&[u8]> {
        let (begin, block) = self.reached(pointer, bytes)?;
        let offset = (pointer - begin) as usize;
        // SAFETY: inside the mapping, which lives as long as the block. Another driver may have mapped it, too; that
        // nothing writes the range at the same time is the claim of the tests that run this.
        Some(unsafe { std::slice::from_raw_parts(block.backing.as_ptr().add(offset), bytes) })
    }

    /// The same, to be written.
    pub(super) fn write(&mut self, pointer: DevicePointer, bytes: usize) -> Option<&mut [u8]> {
        let (begin, block) = self.reached(pointer, bytes)?;
        let may_write = self.working.is_none() || block.is_writable;
        assert!(may_write, "a device writes memory that it was given for reading only");
        let offset = (pointer - begin) as usize;
        // SAFETY: as above, and nothing reads the range either.
        Some(unsafe { std::slice::from_raw_parts_mut(block.backing.as_mut_ptr().add(offset), bytes) })
    }

    /// The bytes of a range that may go on in the blocks right behind its first one.
    pub(super) fn load(&self, pointer: DevicePointer, bytes: usize) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(bytes);
        while all.len() < bytes {
            let at = pointer + all.len() as u64;
            all.extend_from_slice(self.read(at, self.run(at)?.min(bytes - all.len()))?);
        }
        Some(all)
    }

    /// Sets the bytes of such a range.
    pub(super) fn store(&mut self, pointer: DevicePointer, bytes: &[u8]) -> Option<()> {
        let (mut at, mut left) = (pointer, bytes);
        while !left.is_empty() {
            let (now, rest) = left.split_at(self.run(at)?.min(left.len()));
            self.write(at, now.len())?.copy_from_slice(now);
            (at, left) = (at + now.len() as u64, rest);
        }
        Some(())
    }

    /// The bytes from an address to the end of its block.
    fn run(&self, pointer: DevicePointer) -> Option<usize> {
        self.block(pointer).map(|(begin, block)| block.bytes - (pointer - begin) as usize)
    }

    /// The block that has a range.
    fn reached(&self, pointer: DevicePointer, bytes: usize) -> Option<(DevicePointer, &ScriptedBlock)> {
        let (begin, block) = self.block(pointer)?;
        let is_reached = self.working.is_none_or(|device| device == block.mapped_for);
        assert!(is_reached, "device {:?} touches memory that is mapped for another one", self.working);
        let end = ((pointer - begin) as usize).checked_add(bytes)?;
        (end <= block.bytes).then_some((begin, block))
    }
}

impl ScriptedHost {
    pub(super) fn read(&self, device: i32, from: usize, into: &mut [u8]) {
        self.expect(device, from, into.len(), false);
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: the range is registered, so it is mapped; that nothing writes it at the same time is the claim of the
        // tests that run this.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(from, into.len()) };
    }

    pub(super) fn write(&self, device: i32, to: usize, bytes: &[u8]) {
        self.expect(device, to, bytes.len(), true);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: as above, and nothing reads it either.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Stores a word that the processor loads.
    pub(super) fn store(&self, device: i32, to: usize, word: u64) {
        self.expect(device, to, size_of::<u64>(), true);
        // SAFETY: as above; a word of the page of a queue, which is aligned.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(to)) }.store(word, Release);
    }
}
