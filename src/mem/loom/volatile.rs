//! Bytes that another thread may be writing, under the model checker.
//!
//! A word access is a loom atomic's, with the ordering it was given; a copy is a loop of relaxed loads and stores,
//! word by word. Loom lets a relaxed load return any value that coherence and happens-before allow, which covers every
//! order in which a processor or a NIC may carry the loop out, short of loads that see the future.

use core::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64 as PlainU64, Ordering};

use loom::sync::atomic::AtomicU64;

use super::copy::{self, Streaming};

/// One word of the model's memory.
#[derive(Debug)]
pub(super) struct Word {
    atomic: AtomicU64,
    /// The value that was stored last, in the order in which the model ran.
    last: PlainU64,
    /// True once a thread adds to it, raises or swaps it: it may have several writers, and `last` says nothing.
    contended: AtomicBool,
}

impl Word {
    pub(super) fn new() -> Word {
        Word { atomic: AtomicU64::new(0), last: PlainU64::new(0), contended: AtomicBool::new(false) }
    }

    fn load(&self, ordering: Ordering) -> u64 {
        self.atomic.load(ordering)
    }

    /// A store of the value that the word's only writer stored last is left out. No reader can tell the two stores
    /// apart by value, so only an ordering is lost that the second might have given: the model gets weaker, never
    /// stronger, and finds every fault that it would have found. It gets a good deal smaller, too, because headers
    /// are written whole.
    fn store(&self, value: u64, ordering: Ordering) {
        let unchanged = self.last.load(Ordering::Relaxed) == value;
        if unchanged && !self.contended.load(Ordering::Relaxed) && ordering != Ordering::SeqCst {
            return;
        }
        self.atomic.store(value, ordering);
        // After the store: loom may run other threads before it, never between it and here.
        self.last.store(value, Ordering::Relaxed);
    }

    fn fetch_add(&self, add: u64) -> u64 {
        self.contended.store(true, Ordering::Relaxed);
        self.atomic.fetch_add(add, Ordering::AcqRel)
    }

    fn raise(&self, value: u64) {
        self.contended.store(true, Ordering::Relaxed);
        self.atomic.fetch_max(value, Ordering::AcqRel);
    }

    fn compare_swap(&self, compare: u64, swap: u64) -> u64 {
        self.contended.store(true, Ordering::Relaxed);
        let result = self.atomic.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        result.unwrap_or_else(|before| before)
    }

    fn swap(&self, value: u64) -> u64 {
        self.contended.store(true, Ordering::Relaxed);
        self.atomic.swap(value, Ordering::AcqRel)
    }
}

/// As outside of the model: a range of memory that others may be reading or writing right now. Over the model's words,
/// or over a caller's own bytes.
#[derive(Clone, Copy, Debug)]
pub struct VolatileSlice<'a> {
    location: Location<'a>,
    len: usize,
    writable: bool,
}

#[derive(Clone, Copy, Debug)]
enum Location<'a> {
    /// From a byte offset on.
    Words(&'a [Word], usize),
    Bytes(*mut u8, PhantomData<&'a ()>),
}

impl<'a> VolatileSlice<'a> {
    pub(super) fn of_words(words: &'a [Word], len: usize) -> Self {
        VolatileSlice { location: Location::Words(words, 0), len, writable: true }
    }

    /// Wraps a range of memory that is no part of the model.
    ///
    /// # Safety
    ///
    /// `pointer` must be valid for reads of `len` bytes (and for writes, if `writable`) for the whole of `'a`, and
    /// no Rust reference to any byte of it may exist meanwhile.
    pub unsafe fn new(pointer: *mut u8, len: usize, writable: bool) -> Self {
        VolatileSlice { location: Location::Bytes(pointer, PhantomData), len, writable }
    }

    /// Views a caller's own, exclusive bytes.
    pub fn from_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the exclusive borrow lasts for 'a.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len(), true) }
    }

    /// Views a caller's own bytes, read-only.
    pub fn from_ref(bytes: &'a [u8]) -> Self {
        // SAFETY: valid for reads for 'a, and never stored to.
        unsafe { Self::new(bytes.as_ptr().cast_mut(), bytes.len(), false) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// False if a store would kill the process.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// True if words at its begin are aligned to 8 bytes.
    pub fn is_aligned(&self) -> bool {
        match self.location {
            Location::Words(_, offset) => offset.is_multiple_of(8),
            Location::Bytes(pointer, _) => pointer.addr().is_multiple_of(8),
        }
    }

    /// The address of the first byte.
    ///
    /// # Panics
    /// If it is the model's memory, which has none: kernels are not model-checked.
    pub fn as_ptr(&self) -> *mut u8 {
        match self.location {
            Location::Words(..) => panic!("memory of a model has no address"),
            Location::Bytes(pointer, _) => pointer,
        }
    }

    /// `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn subslice(&self, offset: usize, len: usize) -> VolatileSlice<'a> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "range {offset}+{len} outside of {} bytes",
            self.len
        );
        let location = match self.location {
            Location::Words(words, begin) => Location::Words(words, begin + offset),
            Location::Bytes(pointer, owner) => Location::Bytes(pointer.wrapping_add(offset), owner),
        };
        VolatileSlice { location, len, writable: self.writable }
    }

    fn word(&self, offset: usize) -> &'a Word {
        assert!(
            offset <= self.len && self.len - offset >= 8,
            "word at {offset} outside of {} bytes",
            self.len
        );
        let Location::Words(words, begin) = self.location else {
            panic!("atomic access to bytes that are no part of the model")
        };
        assert!((begin + offset).is_multiple_of(8), "word at {offset} is not aligned to 8 bytes");
        &words[(begin + offset) / 8]
    }

    fn writable_word(&self, offset: usize) -> &'a Word {
        assert!(self.writable, "store to memory that was granted read-only");
        self.word(offset)
    }

    /// Loads the word at `offset` with the given ordering.
    pub fn load(&self, offset: usize, ordering: Ordering) -> u64 {
        self.word(offset).load(ordering)
    }

    /// Stores a word at `offset` with the given ordering.
    pub fn store(&self, offset: usize, value: u64, ordering: Ordering) {
        self.writable_word(offset).store(value, ordering);
    }

    /// [`load`](Self::load) with `Acquire`.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.load(offset, Ordering::Acquire)
    }

    /// [`store`](Self::store) with `Release`.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.store(offset, value, Ordering::Release);
    }

    /// Adds to the word at `offset` and returns its old value.
    pub fn fetch_add(&self, offset: usize, add: u64) -> u64 {
        self.writable_word(offset).fetch_add(add)
    }

    /// Raises the word at `offset` to `value` if it is smaller.
    pub fn raise(&self, offset: usize, value: u64) {
        self.writable_word(offset).raise(value);
    }

    /// Stores `swap` if the word at `offset` equals `compare`; returns its old value.
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> u64 {
        self.writable_word(offset).compare_swap(compare, swap)
    }

    /// Stores `value` in the word at `offset`, and returns its old value.
    pub fn swap(&self, offset: usize, value: u64) -> u64 {
        self.writable_word(offset).swap(value)
    }

    /// Copies everything from `source`, word by word.
    ///
    /// # Panics
    /// If the lengths differ, the memory is read-only, or the length is not whole words.
    pub fn copy_from(&self, source: VolatileSlice<'_>, streaming: Streaming) {
        assert_eq!(self.len, source.len, "copy between ranges of different lengths");
        assert!(self.writable, "copy into memory that was granted read-only");
        if let (Location::Bytes(to, _), Location::Bytes(from, _)) = (self.location, source.location) {
            // SAFETY: both ranges are valid for `len` bytes, as their constructors were promised.
            return unsafe { copy::copy_bytes(to, from, self.len, streaming) };
        }
        assert!(self.len.is_multiple_of(8), "a model copies whole words");
        for at in (0..self.len).step_by(8) {
            let value = match source.location {
                Location::Words(..) => source.word(at).load(Ordering::Relaxed),
                // SAFETY: inside a range that is valid for reads.
                Location::Bytes(from, _) => unsafe { from.add(at).cast::<u64>().read_unaligned() },
            };
            match self.location {
                Location::Words(..) => self.word(at).store(value, Ordering::Relaxed),
                // SAFETY: inside a range that is valid for writes.
                Location::Bytes(to, _) => unsafe { to.add(at).cast::<u64>().write_unaligned(value) },
            }
        }
    }

    /// Copies the caller's bytes in.
    pub fn write(&self, bytes: &[u8]) {
        self.copy_from(VolatileSlice::from_ref(bytes), Streaming::ByLength);
    }

    /// Copies out into the caller's bytes.
    pub fn read(&self, bytes: &mut [u8]) {
        VolatileSlice::from_mut(bytes).copy_from(*self, Streaming::ByLength);
    }
}
