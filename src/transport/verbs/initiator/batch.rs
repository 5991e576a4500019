//! Work requests for the device, in the layout that the device expects.

use crate::cuda::GpuSlice;
use crate::mem::{LocalSlice, RemoteSlice};
use crate::transport::PayloadMemory;
use crate::transport::verbs::sys;

/// The device requests that one call posts, in memory that the next call uses again.
pub(super) struct Batch {
    pub(super) requests: Vec<sys::ibv_send_wr>,
    /// The memory of each.
    pub(super) pieces: Vec<sys::ibv_sge>,
    /// The number of requests of this call.
    pub(super) count: usize,
}

/// The local memory of a request.
#[derive(Clone, Copy)]
pub(super) enum LocalMemory<'a> {
    Host(&'a LocalSlice),
    /// With its key on the rail.
    Gpu(&'a GpuSlice, u32),
}

#[inline]
pub(super) fn rdma(remote: &RemoteSlice, done: u64) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    // The target checks every offset: an offset that wraps around lies outside of every grant.
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: remote.offset.wrapping_add(done),
        rkey: remote.key.0 as u32,
    }
}

impl Batch {
    pub(super) fn with_capacity(room: usize) -> Batch {
        Batch { requests: Vec::with_capacity(room), pieces: Vec::with_capacity(room), count: 0 }
    }

    /// Adds a request for this local memory. It reuses the earlier request in this slot: each field that any request
    /// sets is set again, and the others stay zero. That takes half the time of making a new request and moving it
    /// here.
    #[inline]
    pub(super) fn add(&mut self, piece: sys::ibv_sge) -> &mut sys::ibv_send_wr {
        let at = self.count;
        self.count += 1;
        if at == self.requests.len() {
            self.requests.push(sys::ibv_send_wr::default());
            self.pieces.push(sys::ibv_sge::default());
        }
        self.pieces[at] = piece;
        let request = &mut self.requests[at];
        request.next = std::ptr::null_mut();
        // A request of no bytes has no list.
        request.num_sge = i32::from(piece.length > 0);
        request
    }

    /// All requests of this call, each with its list of one piece, which is not moved until the next call.
    #[inline]
    pub(super) fn named(&mut self) -> &mut [sys::ibv_send_wr] {
        let (requests, pieces) = (&mut self.requests[..self.count], self.pieces.as_mut_ptr());
        match requests {
            // Most calls post one request, while the compiler optimizes the loop for many.
            [one] => one.sg_list = pieces,
            all => {
                for (index, request) in all.iter_mut().enumerate() {
                    request.sg_list = pieces.wrapping_add(index);
                }
            }
        }
        &mut self.requests[..self.count]
    }
}

impl LocalMemory<'_> {
    #[inline]
    pub(super) fn len(self) -> usize {
        match self {
            LocalMemory::Host(slice) => slice.len(),
            LocalMemory::Gpu(slice, _) => slice.bytes(),
        }
    }

    pub(super) fn is_on_host(self) -> bool {
        matches!(self, LocalMemory::Host(_))
    }

    /// A part of this memory; the range must lie inside.
    #[inline]
    pub(super) fn piece(self, rail: usize, offset: usize, bytes: usize) -> sys::ibv_sge {
        debug_assert!(bytes <= self.len() && offset <= self.len() - bytes);
        let (addr, lkey) = match self {
            LocalMemory::Host(slice) => {
                let begin = slice.as_ptr().wrapping_add(offset);
                let key = slice.region().device_keys().local[rail];
                (begin.expose_provenance() as u64, key)
            }
            LocalMemory::Gpu(slice, key) => (slice.pointer() + offset as u64, key),
        };
        sys::ibv_sge { addr, length: bytes as u32, lkey }
    }

    /// Whether it is a range of this memory.
    #[inline]
    pub(super) fn is_of(self, memory: &PayloadMemory) -> bool {
        match (self, memory) {
            (LocalMemory::Host(slice), PayloadMemory::Host(region)) => region.same_as(slice.region()),
            (LocalMemory::Gpu(slice, _), PayloadMemory::Gpu(memory)) => memory == slice.memory(),
            _ => false,
        }
    }

    #[inline]
    #[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "there is no memory of a GPU"))]
    pub(super) fn memory(self) -> PayloadMemory {
        match self {
            LocalMemory::Host(slice) => PayloadMemory::Host(slice.region().clone()),
            LocalMemory::Gpu(slice, _) => PayloadMemory::Gpu(slice.memory().clone()),
        }
    }
}
