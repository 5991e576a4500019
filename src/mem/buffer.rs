//! Memory that is lent to requests and to its owner by turns.

use super::{Access, LocalSlice, MemoryRegion, OutOfBounds, VolatileSlice};

/// A region that no peer may reach, whose bytes its owner sees as plain values while no request uses them.
///
/// Every request in flight holds a [`LocalSlice`], and slices are counted: while there is one, nothing is lent.
#[derive(Debug)]
pub struct Buffer {
    region: MemoryRegion,
}

impl Buffer {
    /// Over a region that was registered for local use only and of which there is no other clone; `None` otherwise.
    pub fn new(region: MemoryRegion) -> Option<Buffer> {
        let exclusive = region.access() == Access::LOCAL
            && region.is_unshared()
            && !region.memory().is_shared()
            && region.memory().is_writable();
        exclusive.then_some(Buffer { region })
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The region behind it, to read. It must not be cloned: bytes may be lent.
    #[cfg(feature = "cuda")]
    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// A clone of the region behind it. While there is one, nothing is lent.
    #[cfg(feature = "cuda")]
    pub(crate) fn share(&mut self) -> MemoryRegion {
        self.region.clone()
    }

    /// A range of it for a request.
    pub fn slice(&mut self, offset: usize, len: usize) -> Result<LocalSlice, OutOfBounds> {
        self.region.slice(offset, len)
    }

    /// Its bytes, unless a request may be writing them.
    pub fn bytes(&self) -> Option<&[u8]> {
        if !self.region.is_unshared() {
            return None;
        }
        let memory = self.region.as_volatile();
        // SAFETY: [1] valid: the range is `len` bytes, zeroed at birth or initialised by the caller whose it is
        // (`CallerMemory`), and lives as long as the region that
        // `self` holds. [2] nothing writes: peers have no right to it, it has no descriptor to map again, and this
        // is the only clone of the region, so no slice and hence no request exists. [3] none can appear while the
        // result is borrowed, because `slice` and `share` take `&mut self` and nothing else hands a clone of the region
        // out: `region` has one caller, which reads.
        Some(unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) })
    }

    /// Its bytes to be copied out of, unless a request may be writing them. No reference to them is made: code of
    /// another language that was lent them may write them all the same, and then some bytes come out.
    pub fn as_volatile(&self) -> Option<VolatileSlice<'_>> {
        if !self.region.is_unshared() {
            return None;
        }
        let memory = self.region.as_volatile();
        // SAFETY: valid as in `bytes`. Nothing is written through the result: what `bytes` lends stays as it is.
        Some(unsafe { VolatileSlice::new(memory.as_ptr(), memory.len(), false) })
    }

    /// Its bytes to change, unless a request may be using them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.region.is_unshared() {
            return None;
        }
        let memory = self.region.as_volatile();
        // SAFETY: [1] to [3] as in `bytes`; [4] unique: `self` is borrowed mutably for as long as the result lives.
        Some(unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), memory.len()) })
    }

    /// As f32 values in native order; a tail that is no whole value is left out.
    pub fn f32s(&self) -> Option<&[f32]> {
        let bytes = self.bytes()?;
        // SAFETY: every bit pattern is an f32; `align_to` itself takes care of alignment, and memory begins at a page
        // or, if it is the caller's, at a multiple of 8, so nothing is cut off at the begin.
        let (head, values, _) = unsafe { bytes.align_to::<f32>() };
        debug_assert!(head.is_empty());
        Some(values)
    }

    /// As f32 values to change.
    pub fn f32s_mut(&mut self) -> Option<&mut [f32]> {
        let bytes = self.bytes_mut()?;
        // SAFETY: as in `f32s`; every f32 is also valid bytes.
        let (head, values, _) = unsafe { bytes.align_to_mut::<f32>() };
        debug_assert!(head.is_empty());
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{DeviceKeys, HostMemory};

    fn region(access: Access) -> MemoryRegion {
        MemoryRegion::new(HostMemory::anonymous(4096).unwrap(), access, DeviceKeys::NONE, ())
    }

    #[test]
    fn nothing_is_lent_while_a_request_holds_a_slice() {
        let mut buffer = Buffer::new(region(Access::LOCAL)).unwrap();
        buffer.f32s_mut().unwrap()[1] = 2.5;
        let slice = buffer.slice(0, 8).unwrap();
        assert!(buffer.bytes().is_none() && buffer.bytes_mut().is_none() && buffer.as_volatile().is_none());
        slice.as_volatile().store_u64(0, 0);
        drop(slice);
        assert_eq!(buffer.f32s().unwrap()[1], 0.0);
        assert!(!buffer.as_volatile().unwrap().is_writable());
    }

    #[test]
    fn memory_that_somebody_else_may_reach_is_no_buffer() {
        assert!(Buffer::new(region(Access::REMOTE_WRITE)).is_none());
        let shared = region(Access::LOCAL);
        let clone = shared.clone();
        assert!(Buffer::new(shared).is_none());
        drop(clone);
        let memory = HostMemory::shared(4096).unwrap();
        assert!(Buffer::new(MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ())).is_none());
    }
}
