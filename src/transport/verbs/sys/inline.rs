//! The functions that `<infiniband/verbs.h>` defines as `static inline`: calls through the tables that a provider
//! fills.
//!
//! They do the same as in the header, except that an operation which a provider lacks returns `EOPNOTSUPP` instead of
//! a jump to null.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::bindings::*;

/// The value of `abi_compat` if the context is the last field of a [`verbs_context`].
const ABI_IS_EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// Posts a chain of requests; returns 0, or an error number with `bad` set to the first request that was not posted.
///
/// # Safety
///
/// `queue` is a live queue pair; `first` begins a chain of requests that ends in null, whose lists of pieces are valid
/// for this call and whose memory is registered and stays so until each has completed; `bad` may be written.
#[inline]
pub(crate) unsafe fn post_send(
    queue: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise; a live queue pair has a live context.
    match unsafe { (*(*queue).context).ops.post_send } {
        // SAFETY: the caller's promise.
        Some(post_send) => unsafe { post_send(queue, first, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts a chain of receives; returns 0, or an error number with `bad` set to the first receive that was not posted.
///
/// # Safety
///
/// As for [`post_send`].
#[inline]
pub(crate) unsafe fn post_recv(
    queue: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise; a live queue pair has a live context.
    match unsafe { (*(*queue).context).ops.post_recv } {
        // SAFETY: the caller's promise.
        Some(post_recv) => unsafe { post_recv(queue, first, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Takes up to `most` completions; returns their number, or a negative number if that failed.
///
/// # Safety
///
/// `queue` is a live completion queue; `completions` has room for `most`, and only as many as are returned are
/// initialised.
#[inline]
pub(crate) unsafe fn poll_cq(queue: *mut ibv_cq, most: c_int, completions: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise; a live completion queue has a live context.
    match unsafe { (*(*queue).context).ops.poll_cq } {
        // SAFETY: the caller's promise.
        Some(poll_cq) => unsafe { poll_cq(queue, most, completions) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Requests one event at the next completion (if `solicited_only`, at the next solicited one or the next in error);
/// returns 0, or an error number.
///
/// # Safety
///
/// `queue` is a live completion queue.
#[inline]
pub(crate) unsafe fn req_notify_cq(queue: *mut ibv_cq, solicited_only: bool) -> c_int {
    // SAFETY: the caller's promise; a live completion queue has a live context.
    match unsafe { (*(*queue).context).ops.req_notify_cq } {
        // SAFETY: the caller's promise.
        Some(req_notify_cq) => unsafe { req_notify_cq(queue, c_int::from(solicited_only)) },
        None => libc::EOPNOTSUPP,
    }
}

/// Allocates a memory window; returns null, with `errno` set, if that failed. Windows of type 2 are bound by posting
/// `IBV_WR_BIND_MW`.
///
/// # Safety
///
/// `domain` is a live protection domain.
pub(crate) unsafe fn alloc_mw(domain: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's promise; a live protection domain has a live context.
    match unsafe { (*(*domain).context).ops.alloc_mw } {
        // SAFETY: the caller's promise.
        Some(alloc_mw) => unsafe { alloc_mw(domain, kind) },
        None => {
            // SAFETY: this thread's own.
            unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
            ptr::null_mut()
        }
    }
}

/// Frees a memory window; returns 0, or an error number.
///
/// # Safety
///
/// `window` is from [`alloc_mw`], and is not used again if this succeeds.
pub(crate) unsafe fn dealloc_mw(window: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's promise; a live window has a live context.
    match unsafe { (*(*window).context).ops.dealloc_mw } {
        // SAFETY: the caller's promise.
        Some(dealloc_mw) => unsafe { dealloc_mw(window) },
        None => libc::EOPNOTSUPP,
    }
}

/// The key after `rkey`: the owner may choose only its last 8 bits.
pub(crate) fn inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// The structure around a context, with the operations that were added after the first table; null if there is none.
///
/// # Safety
///
/// `context` is live.
pub(crate) unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller's promise.
    if unsafe { (*context).abi_compat } != ABI_IS_EXTENDED {
        return ptr::null_mut();
    }
    // SAFETY: the provider's promise: the context is a field of that structure.
    unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// The function that all versions of the library export.
pub(super) type CompatQueryPort =
    unsafe extern "C" fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;

/// [`Library::query_port`](super::Library::query_port).
///
/// # Safety
///
/// `context` is live, and `compat_query_port` is of the library that opened it.
pub(super) unsafe fn query_port(
    compat_query_port: CompatQueryPort,
    context: *mut ibv_context,
    port: u8,
    attributes: &mut ibv_port_attr,
) -> c_int {
    *attributes = ibv_port_attr::default();
    // SAFETY: the caller's promise. The structure grows at its beginning, so that missing fields lie before the
    // existing ones, and `sz` counts from its end.
    let query_port = unsafe {
        let outer = verbs_get_ctx(context);
        let bytes = size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
        if outer.is_null() || (*outer).sz < bytes { None } else { (*outer).query_port }
    };
    match query_port {
        // SAFETY: the caller's promise; the function writes no more bytes than the given size.
        Some(query_port) => unsafe { query_port(context, port, attributes, size_of::<ibv_port_attr>()) },
        // SAFETY: the caller's promise; the function writes the older structure, which is the beginning of this one.
        None => unsafe { compat_query_port(context, port, ptr::from_mut(attributes).cast()) },
    }
}
