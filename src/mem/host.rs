//! Host memory: anonymous, on huge pages, backed by a sealed memfd that another process can map, or the caller's own.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

use super::error::check_length;
use super::{MemoryError, VolatileSlice};

/// Bytes in one ordinary page, to which payloads are aligned.
pub const PAGE_SIZE: usize = 4096;

/// Bytes in one huge page.
const HUGE_PAGE: usize = 2 << 20;

/// From this length on a mapping asks for transparent huge pages.
const HUGE_ADVICE_FROM: usize = 2 * HUGE_PAGE;

/// The owner of the mapping or the allocation.
enum Backing {
    Private(MmapRaw),
    SharedFile(MmapRaw, OwnedFd),
    /// Memory of a peer, whose descriptor is closed once it is mapped.
    OfPeer(MmapRaw),
    /// The mapping, and the dma-buf that its memory is.
    DmaBuf {
        _map: MmapRaw,
        dma_buf: OwnedFd,
    },
    /// Dropped once no region and no request uses the memory any more.
    Caller {
        _owner: Box<dyn Send + Sync>,
    },
}

/// One range of host memory; a mapping is unmapped when this is dropped.
///
/// ```
/// use slackline::internals::mem::HostMemory;
/// let memory = HostMemory::anonymous(4096)?;
/// memory.as_volatile().store_u64(8, 42);
/// assert_eq!(memory.as_volatile().load_u64(8), 42);
/// # Ok::<(), slackline::internals::mem::MemoryError>(())
/// ```
pub struct HostMemory {
    /// The first byte. Each access on the data path begins with these three, so that they are not looked up in the
    /// backing.
    pointer: *mut u8,
    bytes: usize,
    writable: bool,
    backing: Backing,
}

/// The pointer alone keeps `HostMemory` from being both by itself.
const _: () = {
    const fn is_for_all_threads<T: Send + Sync>() {}
    is_for_all_threads::<Backing>();
};

// SAFETY: the pointer is into a mapping, which belongs to no thread, or into the caller's memory, which any thread may
// use, as `HostMemory::of_caller` asks. All else is `Send`, as is checked above.
unsafe impl Send for HostMemory {}
// SAFETY: as above. All access goes through `VolatileSlice`.
unsafe impl Sync for HostMemory {}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.backing {
            Backing::Private(_) => "private",
            Backing::SharedFile(..) | Backing::OfPeer(_) => "shared",
            Backing::DmaBuf { .. } => "dma-buf",
            Backing::Caller { .. } => "caller",
        };
        f.debug_struct("HostMemory").field("kind", &kind).field("len", &self.len()).finish()
    }
}

impl HostMemory {
    /// `bytes` of zeroed private memory; transparent huge pages are asked for where it is long enough. It then begins
    /// at a multiple of their size: else a device that knows it by offsets could not translate it by huge pages.
    pub fn anonymous(bytes: usize) -> Result<Self, MemoryError> {
        check_length(bytes)?;
        // Addresses that are skipped take no memory: no page of them is touched.
        let spare = if bytes < HUGE_ADVICE_FROM { 0 } else { HUGE_PAGE };
        let length = bytes.checked_add(spare).ok_or(MemoryError::Length { bytes })?;
        let map = MmapOptions::new().len(length).map_anon().map(MmapRaw::from).map_err(|source| {
            MemoryError::Map { bytes, kind: "anonymous", source, remedy: "ask for less, or free memory" }
        })?;
        let first = if spare == 0 { 0 } else { map.as_ptr().addr().wrapping_neg() % HUGE_PAGE };
        // The used part lies inside of the mapping.
        let pointer = map.as_mut_ptr().wrapping_add(first);
        Ok(Self { pointer, bytes, writable: true, backing: Backing::Private(map) }.advised())
    }

    /// `bytes` (rounded up to 2 MiB) of zeroed private memory on explicitly reserved huge pages.
    pub fn huge_pages(bytes: usize) -> Result<Self, MemoryError> {
        check_length(bytes)?;
        let rounded = bytes.checked_next_multiple_of(HUGE_PAGE).ok_or(MemoryError::Length { bytes })?;
        check_length(rounded)?;
        let map = MmapOptions::new().len(rounded).huge(Some(21)).map_anon().map(MmapRaw::from).map_err(
            |source| MemoryError::Map {
                bytes: rounded,
                kind: "huge-page",
                source,
                remedy: "reserve pages with `sysctl vm.nr_hugepages=N` (2 MiB each), or use anonymous memory",
            },
        )?;
        Ok(Self { pointer: map.as_mut_ptr(), bytes: rounded, writable: true, backing: Backing::Private(map) })
    }

    /// `bytes` of zeroed memory in a memfd that has no name, can be passed to another process, and is sealed so
    /// that no process can change its size (a shrunken file would kill a reader with SIGBUS).
    pub fn shared(bytes: usize) -> Result<Self, MemoryError> {
        check_length(bytes)?;
        let refuse = |source: io::Error| {
            let remedy = match source.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
                Some(libc::EFBIG) => "raise the limit on the size of files (ulimit -f), or ask for less",
                _ => "ask for less, or raise the memory limit of the cgroup",
            };
            MemoryError::Map { bytes, kind: "shared", source, remedy }
        };
        // The pages of a memfd are found when they are touched. If one cannot be found, the process is killed.
        if bytes as u64 > memory_of_the_machine() {
            return Err(refuse(io::ErrorKind::OutOfMemory.into()));
        }
        // A process that makes a file longer than this is killed by SIGXFSZ.
        let longest = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if longest.is_some_and(|longest| bytes as u64 > longest) {
            return Err(refuse(rustix::io::Errno::FBIG.into()));
        }
        let refuse = |errno: rustix::io::Errno| refuse(errno.into());
        let file = rustix::fs::memfd_create("slackline", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(refuse)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(refuse)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(refuse)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file).map_err(|source| MemoryError::Map {
            bytes,
            kind: "shared",
            source,
            remedy: "ask for less, or raise the limit on address space (ulimit -v)",
        })?;
        let pointer = map.as_mut_ptr();
        Ok(Self { pointer, bytes, writable: true, backing: Backing::SharedFile(map, file) }.advised())
    }

    /// The caller's own memory where it lies: `bytes` from `pointer` on. It is not advised, sealed or mapped again.
    /// `owner` is dropped once no region and no request uses the memory any more.
    ///
    /// # Errors
    /// The length is none that there is, or the address is no multiple of 8.
    ///
    /// # Safety
    /// Until `owner` is dropped the range is memory that this process may read and write. While requests use it, or a
    /// reference that was lent for it is alive, nothing else accesses it but as that reference allows.
    pub unsafe fn of_caller(
        pointer: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, MemoryError> {
        check_length(bytes)?;
        let address = pointer.addr().get();
        if !address.is_multiple_of(size_of::<u64>()) {
            return Err(MemoryError::Unaligned { address });
        }
        let backing = Backing::Caller { _owner: owner };
        Ok(Self { pointer: pointer.as_ptr(), bytes, writable: true, backing })
    }

    /// Maps a memfd that another process passed. It must be sealed against resizing and hold at least `bytes`.
    pub fn from_peer(file: OwnedFd, bytes: usize, writable: bool) -> Result<Self, MemoryError> {
        check_length(bytes)?;
        let untrusted = |reason: String| MemoryError::Untrusted { reason };
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|errno| untrusted(format!("it has no seals ({})", io::Error::from(errno))))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(untrusted("it is not sealed against shrinking".into()));
        }
        let size = rustix::fs::fstat(&file)
            .map_err(|errno| untrusted(format!("its size cannot be read ({})", io::Error::from(errno))))?
            .st_size;
        if u64::try_from(size).map_or(true, |size| size < bytes as u64) {
            return Err(untrusted(format!("it holds {size} bytes where {bytes} were promised")));
        }
        let file = File::from(file);
        let mut options = MmapOptions::new();
        options.len(bytes);
        let map = if writable { options.map_raw(&file) } else { options.map_raw_read_only(&file) };
        let map = map.map_err(|source| MemoryError::Map {
            bytes,
            kind: "shared",
            source,
            remedy: "ask for less, or raise the limit on address space (ulimit -v)",
        })?;
        let pointer = map.as_mut_ptr();
        Ok(Self { pointer, bytes, writable, backing: Backing::OfPeer(map) }.advised())
    }

    /// From here on no process can make a new writable mapping of this memory; existing ones stay as they are.
    /// Peers that get its descriptor can only read.
    pub fn seal_against_new_writers(&self) -> Result<(), MemoryError> {
        self.seal(SealFlags::FUTURE_WRITE | SealFlags::SEAL)
    }

    /// From here on no process can add seals: a peer that gets the descriptor cannot lock others out.
    pub fn seal_against_new_seals(&self) -> Result<(), MemoryError> {
        self.seal(SealFlags::SEAL)
    }

    fn seal(&self, wanted: SealFlags) -> Result<(), MemoryError> {
        let Backing::SharedFile(_, file) = &self.backing else { return Ok(()) };
        let present = rustix::fs::fcntl_get_seals(file);
        if present.is_ok_and(|present| present.contains(wanted)) {
            return Ok(());
        }
        rustix::fs::fcntl_add_seals(file, wanted).map_err(|errno| MemoryError::Map {
            bytes: self.len(),
            kind: "shared",
            source: errno.into(),
            remedy: "Linux 5.1 or later is needed to grant memory read-only",
        })
    }

    /// Makes the kernel zero this private memory in every forked child.
    pub(super) fn wipe_on_fork(&self) -> io::Result<()> {
        let Backing::Private(map) = &self.backing else {
            return Err(io::Error::other("only private memory is wiped in forked children"));
        };
        // SAFETY: the range is exactly this mapping. The advice changes only the view of a forked child:
        // the child reads zeros, a value that any word may have.
        unsafe {
            rustix::mm::madvise(map.as_mut_ptr().cast(), map.len(), rustix::mm::Advice::LinuxWipeOnFork)?;
        }
        Ok(())
    }

    /// True for memory that other processes may have mapped.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::SharedFile(..) | Backing::OfPeer(_))
    }

    /// The descriptor to pass to a peer, if this memory can be shared at all.
    pub fn shared_file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Private(_) | Backing::OfPeer(_) | Backing::DmaBuf { .. } | Backing::Caller { .. } => {
                None
            }
            Backing::SharedFile(_, file) => Some(file.as_fd()),
        }
    }

    /// This shared memory, which RDMA devices know as this dma-buf of it from here on.
    pub(crate) fn known_as(self, dma_buf: OwnedFd) -> HostMemory {
        let HostMemory { pointer, bytes, writable, backing } = self;
        let backing = match backing {
            Backing::SharedFile(map, _) => Backing::DmaBuf { _map: map, dma_buf },
            other => other,
        };
        HostMemory { pointer, bytes, writable, backing }
    }

    /// The dma-buf that RDMA devices know it as, if they do. It begins with the memory.
    pub fn as_dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::DmaBuf { dma_buf, .. } => Some(dma_buf.as_fd()),
            _ => None,
        }
    }

    /// True for memory of the caller's.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_of_caller(&self) -> bool {
        matches!(self.backing, Backing::Caller { .. })
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// False if the mapping is read-only: a store through it would kill the process.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// All of it, for volatile access.
    #[inline]
    pub fn as_volatile(&self) -> VolatileSlice<'_> {
        // SAFETY: the range is `bytes` long, inside of its mapping (`anonymous` maps a huge page more than it uses, and
        // skips less than one), and lives as long as `self`, which the slice borrows: a mapping is unmapped, and the
        // owner of the caller's memory is dropped, with `backing`.
        unsafe { VolatileSlice::new(self.pointer, self.bytes, self.writable) }
    }

    fn advised(self) -> Self {
        if let Backing::Private(map) | Backing::SharedFile(map, _) | Backing::OfPeer(map) = &self.backing
            && map.len() >= HUGE_ADVICE_FROM
        {
            // Only advice: with it refused, the memory is slower and nothing else.
            if let Err(error) = map.advise(memmap2::Advice::HugePage) {
                tracing::debug!(bytes = self.len(), %error, "no transparent huge pages");
            }
        }
        self
    }
}

/// Bytes of memory and swap that there are in all.
fn memory_of_the_machine() -> u64 {
    let info = rustix::system::sysinfo();
    let units = u64::from(info.mem_unit);
    (info.totalram as u64).saturating_add(info.totalswap as u64).saturating_mul(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_cannot_be_shrunk_under_a_reader() {
        let memory = HostMemory::shared(8192).unwrap();
        let file = memory.shared_file().unwrap();
        assert!(rustix::fs::ftruncate(file, 4096).is_err());
        assert!(rustix::fs::ftruncate(file, 16384).is_err());
    }

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let memory = HostMemory::shared(8192).unwrap();
        let file = memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        let other = HostMemory::from_peer(file, 8192, true).unwrap();
        memory.as_volatile().store_u64(4096, 77);
        assert_eq!(other.as_volatile().load_u64(4096), 77);
    }

    #[test]
    fn memory_sealed_for_readers_cannot_be_mapped_writable() {
        let memory = HostMemory::shared(4096).unwrap();
        memory.seal_against_new_writers().unwrap();
        let file = || memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        assert!(HostMemory::from_peer(file(), 4096, true).is_err());
        let reader = HostMemory::from_peer(file(), 4096, false).unwrap();
        memory.as_volatile().store_u64(0, 5);
        assert_eq!(reader.as_volatile().load_u64(0), 5);
    }

    #[test]
    fn long_memory_begins_at_a_huge_page_and_all_of_it_can_be_used() {
        for bytes in [HUGE_ADVICE_FROM, HUGE_ADVICE_FROM + 4096, 3 * HUGE_ADVICE_FROM] {
            let memory = HostMemory::anonymous(bytes).unwrap();
            assert!(memory.as_volatile().as_ptr().addr().is_multiple_of(HUGE_PAGE) && memory.len() == bytes);
            memory.as_volatile().store_u64(0, 1);
            memory.as_volatile().store_u64(bytes - 8, 2);
            assert_eq!(memory.as_volatile().load_u64(bytes - 8), 2);
        }
    }

    #[test]
    fn an_unsealed_or_short_file_of_a_peer_is_refused() {
        let unsealed =
            rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let error = HostMemory::from_peer(unsealed, 4096, false).unwrap_err();
        assert!(error.to_string().contains("not sealed against shrinking"), "{error}");

        let memory = HostMemory::shared(4096).unwrap();
        let file = memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        let error = HostMemory::from_peer(file, 8192, false).unwrap_err();
        assert!(error.to_string().contains("holds 4096 bytes where 8192"), "{error}");
    }

    #[test]
    fn memory_of_the_caller_is_used_where_it_lies_and_then_given_back() {
        let mut words = vec![0_u64; 4].into_boxed_slice();
        let pointer = NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
        let owner = std::sync::Arc::new(words);
        let of = |pointer, bytes| {
            let owner = std::sync::Arc::clone(&owner);
            // SAFETY: the words live as long as their owner, and nothing else looks at them meanwhile.
            unsafe { HostMemory::of_caller(pointer, bytes, Box::new(owner)) }
        };
        let memory = of(pointer, 32).unwrap();
        assert!(memory.as_volatile().as_ptr() == pointer.as_ptr() && memory.len() == 32);
        assert!(memory.is_writable() && memory.shared_file().is_none());
        memory.as_volatile().store_u64(8, 7);
        assert_eq!(std::sync::Arc::strong_count(&owner), 2);
        drop(memory);
        assert_eq!((std::sync::Arc::strong_count(&owner), owner[1]), (1, 7));

        // SAFETY: inside the words.
        let odd = unsafe { pointer.add(4) };
        let error = of(odd, 8).unwrap_err();
        assert!(error.to_string().contains("multiple of 8"), "{error}");
        assert!(matches!(of(pointer, 0), Err(MemoryError::Length { bytes: 0 })));
        assert_eq!(std::sync::Arc::strong_count(&owner), 1, "what is refused is given back at once");
    }

    #[test]
    fn huge_pages_are_had_or_the_error_says_how_to_reserve_them() {
        match HostMemory::huge_pages(3 << 20) {
            Ok(memory) => {
                assert_eq!(memory.len(), 4 << 20, "rounded up to whole pages");
                memory.as_volatile().store_u64((4 << 20) - 8, 9);
                assert_eq!(memory.as_volatile().load_u64((4 << 20) - 8), 9);
            }
            Err(error) => {
                let MemoryError::Map { source, .. } = &error else { panic!("{error}") };
                // None are reserved, or the kernel has none of this size.
                let has_some = std::path::Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists();
                let missing = if has_some { libc::ENOMEM } else { libc::EINVAL };
                assert_eq!(source.raw_os_error(), Some(missing), "{error}");
                assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
            }
        }
    }

    #[test]
    fn a_limit_that_keeps_shared_memory_away_is_named_and_kills_nothing() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        use crate::diagnostic::Diagnostic as _;

        if !crate::mem::alone(
            "mem::host::tests::a_limit_that_keeps_shared_memory_away_is_named_and_kills_nothing",
        ) {
            return;
        }
        let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let memory = HostMemory::shared(4096).unwrap();
        let before = open_files();
        let file = memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        let mapped = HostMemory::from_peer(file, 4096, true).unwrap();
        memory.as_volatile().store_u64(0, 5);
        assert_eq!((open_files(), mapped.as_volatile().load_u64(0)), (before, 5));

        let under = |resource, most, bytes| {
            let Rlimit { current, maximum } = getrlimit(resource);
            setrlimit(resource, Rlimit { current: Some(most), maximum }).unwrap();
            let error = HostMemory::shared(bytes).unwrap_err();
            setrlimit(resource, Rlimit { current, maximum }).unwrap();
            error
        };
        let error = under(Resource::Nofile, 0, 4096);
        assert!(error.to_string().contains("ulimit -n") && error.is_retryable(), "{error}");
        let error = under(Resource::Fsize, 1 << 20, (1 << 20) + 1);
        assert!(error.to_string().contains("ulimit -f") && !error.is_retryable(), "{error}");
    }

    #[test]
    fn impossible_lengths_are_errors() {
        assert!(HostMemory::anonymous(0).is_err());
        assert!(HostMemory::anonymous(usize::MAX).is_err());
        for bytes in [isize::MAX as usize, 1 << 45] {
            let error = HostMemory::shared(bytes).unwrap_err();
            assert!(error.to_string().contains("ask for less"), "{error}");
        }
    }
}
