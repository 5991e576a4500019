//! Bytes that another thread, process or device may be writing.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use super::copy::{self, Streaming, Way};
use super::fence;

/// A range of memory that a peer (a NIC, a GPU, another process) may be reading or writing right now.
///
/// It never lends `&[u8]` or `&mut [u8]`: words go in and out by atomic access, longer ranges by copying. A
/// copy may be a mixture of old and new bytes unless a protocol above says otherwise; it is always *some*
/// bytes, never undefined behaviour a compiler could act on.
///
/// Bounds and alignment are checked at every access, and a violation panics.
// Offsets that come from a peer are checked by `LocalSlice` and `MemoryRegion::slice` before they get here.
#[derive(Clone, Copy, Debug)]
pub struct VolatileSlice<'a> {
    pointer: *mut u8,
    len: usize,
    writable: bool,
    owner: PhantomData<&'a ()>,
}

impl<'a> VolatileSlice<'a> {
    /// Wraps a range of mapped memory.
    ///
    /// # Safety
    ///
    /// `pointer` must be valid for reads of `len` bytes (and for writes, if `writable`) for the whole of `'a`, and
    /// no Rust reference to any byte of it may exist meanwhile.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn new(pointer: *mut u8, len: usize, writable: bool) -> Self {
        VolatileSlice { pointer, len, writable, owner: PhantomData }
    }

    /// Views a caller's own, exclusive bytes as a volatile slice, so that one code path serves both.
    ///
    /// A slice is copied freely and written through by all of its copies, so it stays on its thread: two threads that
    /// copy into the same bytes would race. Each thread makes its own slice of memory that may be shared.
    ///
    /// ```compile_fail,E0277
    /// use slackline::internals::mem::VolatileSlice;
    ///
    /// let mut bytes = [0; 64];
    /// let slice = VolatileSlice::from_mut(&mut bytes);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || slice.write(&[1; 64]));
    ///     scope.spawn(move || slice.write(&[2; 64]));
    /// });
    /// ```
    #[doc(hidden)]
    pub fn from_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the exclusive borrow lasts for 'a, so the range is valid and nothing else refers to it.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len(), true) }
    }

    /// Views a caller's own bytes as a read-only volatile slice.
    #[doc(hidden)]
    pub fn from_ref(bytes: &'a [u8]) -> Self {
        // SAFETY: valid for reads for 'a; `writable` is false, so no access through it ever stores, and the shared
        // reference it came from is never invalidated.
        unsafe { Self::new(bytes.as_ptr().cast_mut(), bytes.len(), false) }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the range is empty.
    #[doc(hidden)]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// False if a store would kill the process.
    #[doc(hidden)]
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// True if words at its begin are aligned to 8 bytes.
    #[doc(hidden)]
    #[inline]
    pub fn is_aligned(&self) -> bool {
        self.pointer.addr().is_multiple_of(8)
    }

    /// The address of the first byte, for kernels and foreign code. Reading and writing through it is the
    /// caller's argument to make; this only tells where.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range does not lie inside.
    #[inline]
    pub fn subslice(&self, offset: usize, len: usize) -> VolatileSlice<'a> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "range {offset}+{len} outside of {} bytes",
            self.len
        );
        // SAFETY: checked just above to lie inside a range that was valid for 'a.
        unsafe { Self::new(self.pointer.add(offset), len, self.writable) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &'a AtomicU64 {
        assert!(
            offset <= self.len && self.len - offset >= 8,
            "word at {offset} outside of {} bytes",
            self.len
        );
        let pointer = self.pointer.wrapping_add(offset);
        assert!(pointer.addr().is_multiple_of(8), "word at {offset} is not aligned to 8 bytes");
        // SAFETY: inside the range and aligned, both checked just above; the range is valid for 'a; `AtomicU64` has
        // the size of a word and allows others to change it. On a read-only mapping only loads reach it
        // (`writable_word` is the only way to the rest).
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
    }

    #[inline]
    pub(super) fn writable_word(&self, offset: usize) -> &'a AtomicU64 {
        assert!(self.writable, "store to memory that was granted read-only");
        self.word(offset)
    }

    /// Loads the little-endian word at `offset` with the given ordering.
    ///
    /// # Panics
    /// If it does not lie inside or is not aligned to 8 bytes.
    #[doc(hidden)]
    #[inline]
    pub fn load(&self, offset: usize, ordering: Ordering) -> u64 {
        u64::from_le(fence::load(self.word(offset), ordering))
    }

    /// Stores a little-endian word at `offset` with the given ordering.
    ///
    /// # Panics
    /// If it does not lie inside, is not aligned to 8 bytes, or the memory is read-only.
    #[doc(hidden)]
    #[inline]
    pub fn store(&self, offset: usize, value: u64, ordering: Ordering) {
        fence::store(self.writable_word(offset), value.to_le(), ordering);
    }

    /// [`load`](Self::load) with `Acquire`.
    #[doc(hidden)]
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.load(offset, Ordering::Acquire)
    }

    /// [`store`](Self::store) with `Release`.
    #[doc(hidden)]
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.store(offset, value, Ordering::Release);
    }

    /// Adds to the word at `offset` and returns its old value. Atomic among CPUs only.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    #[doc(hidden)]
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> u64 {
        let word = self.writable_word(offset);
        if cfg!(target_endian = "little") {
            return fence::update(|| word.fetch_add(add, Ordering::AcqRel));
        }
        let step = |old: u64| Some(u64::from_le(old).wrapping_add(add).to_le());
        match fence::update(|| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step)) {
            Ok(old) | Err(old) => u64::from_le(old),
        }
    }

    /// Raises the word at `offset` to `value` if it is smaller. Atomic among CPUs only.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    #[doc(hidden)]
    #[inline]
    pub fn raise(&self, offset: usize, value: u64) {
        let word = self.writable_word(offset);
        if cfg!(target_endian = "little") {
            fence::update(|| word.fetch_max(value, Ordering::AcqRel));
            return;
        }
        let step = |old: u64| (u64::from_le(old) < value).then(|| value.to_le());
        let _unchanged = fence::update(|| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step));
    }

    /// Stores `swap` if the word at `offset` equals `compare`; returns its old value.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    #[doc(hidden)]
    #[inline]
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> u64 {
        let word = self.writable_word(offset);
        let exchange =
            || word.compare_exchange(compare.to_le(), swap.to_le(), Ordering::AcqRel, Ordering::Acquire);
        match fence::update(exchange) {
            Ok(before) | Err(before) => u64::from_le(before),
        }
    }

    /// Stores `value` in the word at `offset`, and returns its old value. Atomic among CPUs only.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    #[doc(hidden)]
    #[inline]
    pub fn swap(&self, offset: usize, value: u64) -> u64 {
        let word = self.writable_word(offset);
        u64::from_le(fence::update(|| word.swap(value.to_le(), Ordering::AcqRel)))
    }

    /// Copies everything from `source`, which must be as long as this slice; the ranges may overlap only by being
    /// one and the same. An aligned range of 8 bytes is copied as one word.
    ///
    /// # Panics
    /// If the lengths differ or the memory is read-only.
    #[doc(hidden)]
    #[inline]
    pub fn copy_from(&self, source: VolatileSlice<'_>, streaming: Streaming) {
        assert_eq!(self.len, source.len, "copy between ranges of different lengths");
        assert!(self.writable, "copy into memory that was granted read-only");
        // SAFETY: both ranges are valid for `len` bytes, the destination for writes, as their constructors were
        // promised; `copy_bytes` works on raw pointers and forms no reference.
        unsafe { copy::copy_bytes(self.pointer, source.pointer, self.len, streaming) }
    }

    /// [`copy_from`](Self::copy_from) in a way of the caller's choice, cut among so many threads: for tests and
    /// measurements.
    ///
    /// # Panics
    /// As [`copy_from`](Self::copy_from).
    #[doc(hidden)]
    pub fn copy_by(&self, source: VolatileSlice<'_>, way: Way, threads: usize) {
        assert_eq!(self.len, source.len, "copy between ranges of different lengths");
        assert!(self.writable, "copy into memory that was granted read-only");
        // SAFETY: as in `copy_from`.
        unsafe { copy::copy_by(self.pointer, source.pointer, self.len, way, threads) }
    }

    /// Copies the caller's bytes in.
    ///
    /// # Panics
    /// If the lengths differ or the memory is read-only.
    #[inline]
    pub fn write(&self, bytes: &[u8]) {
        self.copy_from(VolatileSlice::from_ref(bytes), Streaming::ByLength);
    }

    /// Copies out into the caller's bytes.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn read(&self, bytes: &mut [u8]) {
        VolatileSlice::from_mut(bytes).copy_from(*self, Streaming::ByLength);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::HostMemory;

    #[test]
    fn words_are_little_endian() {
        let memory = HostMemory::anonymous(16).unwrap();
        memory.as_volatile().store_u64(8, 0x0102_0304_0506_0708);
        let mut bytes = [0; 8];
        memory.as_volatile().subslice(8, 8).read(&mut bytes);
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn atomics_return_what_was_there() {
        let memory = HostMemory::anonymous(16).unwrap();
        let slice = memory.as_volatile();
        assert_eq!(slice.fetch_add(0, 5), 0);
        assert_eq!(slice.fetch_add(0, u64::MAX), 5);
        assert_eq!(slice.compare_swap(0, 4, 9), 4);
        assert_eq!(slice.compare_swap(0, 4, 1), 9);
        slice.raise(0, 7);
        assert_eq!(slice.load_u64(0), 9);
        slice.raise(0, 10);
        assert_eq!(slice.swap(0, 11), 10);
        assert_eq!(slice.load_u64(0), 11);
    }

    #[test]
    #[should_panic(expected = "outside of")]
    fn a_word_past_the_end_panics() {
        HostMemory::anonymous(16).unwrap().as_volatile().load_u64(16);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_word_panics() {
        HostMemory::anonymous(32).unwrap().as_volatile().load_u64(4);
    }

    #[test]
    #[should_panic(expected = "outside of")]
    fn a_range_that_overflows_panics() {
        HostMemory::anonymous(16).unwrap().as_volatile().subslice(8, usize::MAX);
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn a_store_to_a_read_only_view_panics() {
        VolatileSlice::from_ref(&[0; 64]).subslice(0, 8).write(&[1; 8]);
    }
}
