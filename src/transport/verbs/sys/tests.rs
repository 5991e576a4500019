//! The inline functions against a scripted provider, and the library if there is one.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::library::{Library, LibraryError};
use super::{bindings::*, inline};

// ---------------------------------------------------------------------- the library

#[test]
fn without_the_library_the_error_says_why_and_what_to_install() {
    let error = Library::open(c"libibverbs-that-nobody-has.so.1").err().unwrap();
    assert!(matches!(&error, LibraryError::NotInstalled { .. }));
    let text = error.to_string();
    let (what, remedy) = text.rsplit_once("; ").unwrap();
    assert!(what.starts_with("cannot open libibverbs.so.1: libibverbs-that-nobody-has.so.1: "), "{text}");
    assert!(remedy.starts_with("install libibverbs1 and ibverbs-providers"), "{text}");
}

#[test]
fn a_library_that_lacks_a_function_is_too_old_and_the_error_names_it() {
    let error = Library::open(c"libc.so.6").err().unwrap();
    let expected = LibraryError::TooOld { symbol: "ibv_get_device_list", version: "IBVERBS_1.1" };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("no ibv_get_device_list of version IBVERBS_1.1; install "), "{error}");
}

#[test]
fn the_library_lists_devices_where_it_is_installed_and_says_so_where_not() {
    let library = match Library::get() {
        Ok(library) => library,
        Err(error) => {
            assert!(matches!(&error, LibraryError::NotInstalled { .. }), "{error}");
            assert!(error.to_string().contains("; install libibverbs1"), "{error}");
            return;
        }
    };
    assert!(ptr::eq(library, Library::get().unwrap()), "opened once");
    // SAFETY: a function without state, whose answer is never freed.
    let text = unsafe { CStr::from_ptr((library.wc_status_str)(IBV_WC_RETRY_EXC_ERR)) };
    assert_eq!(text.to_str().unwrap(), "transport retry counter exceeded");
    let mut count = -1;
    // SAFETY: the list is null or ends in null, and holds devices until it is freed.
    unsafe {
        let list = (library.get_device_list)(&mut count);
        if list.is_null() {
            // The kernel has no RDMA at all.
            return;
        }
        for index in 0..usize::try_from(count).unwrap() {
            let name = CStr::from_ptr((library.get_device_name)(*list.add(index)));
            assert!(!name.is_empty());
        }
        (library.free_device_list)(list);
    }
}

// ---------------------------------------------------------------------- a provider of our own

thread_local! {
    /// The last call that the provider got: the operation, and its arguments as numbers.
    static CALL: Cell<Option<(&'static str, [usize; 3])>> = const { Cell::new(None) };
}

fn called(operation: &'static str, arguments: [usize; 3]) {
    assert_eq!(CALL.replace(Some((operation, arguments))), None);
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    called("post_send", [qp.addr(), wr.addr(), bad.addr()]);
    1
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    called("post_recv", [qp.addr(), wr.addr(), bad.addr()]);
    2
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    called("poll_cq", [cq.addr(), most as usize, wc.addr()]);
    3
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    called("req_notify_cq", [cq.addr(), solicited_only as usize, 0]);
    4
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    called("alloc_mw", [pd.addr(), kind as usize, 0]);
    ptr::without_provenance_mut(64)
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    called("dealloc_mw", [mw.addr(), 0, 0]);
    6
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    called("query_port", [context.addr(), port.into(), bytes]);
    // SAFETY: the caller's structure, which it has just cleared.
    unsafe { assert_eq!((*attributes).lid, 0) };
    // SAFETY: as above.
    unsafe { (*attributes).link_layer = IBV_LINK_LAYER_ETHERNET as u8 };
    7
}

unsafe extern "C" fn old_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut _compat_ibv_port_attr,
) -> c_int {
    called("old_query_port", [context.addr(), port.into(), attributes.addr()]);
    8
}

/// A context with a filled table, inside its extended structure.
fn provider() -> Box<verbs_context> {
    // SAFETY: null pointers, null functions, numbers, and a mutex that is never locked.
    let mut outer: Box<verbs_context> = unsafe { Box::new(std::mem::zeroed()) };
    let ops = &mut outer.context.ops;
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.alloc_mw = Some(alloc_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    outer.query_port = Some(query_port);
    outer.sz = size_of::<verbs_context>();
    outer.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    outer
}

/// An object of such a context, of a type that has only pointers and numbers.
fn of<T>(context: *mut ibv_context, set: impl Fn(&mut T, *mut ibv_context)) -> Box<T> {
    // SAFETY: as for the provider.
    let mut object: Box<T> = unsafe { Box::new(std::mem::zeroed()) };
    set(&mut object, context);
    object
}

#[test]
fn each_inline_calls_its_operation_with_its_arguments() {
    let mut outer = provider();
    let context = &raw mut outer.context;
    let mut qp = of::<ibv_qp>(context, |qp, context| qp.context = context);
    let mut cq = of::<ibv_cq>(context, |cq, context| cq.context = context);
    let mut pd = of::<ibv_pd>(context, |pd, context| pd.context = context);
    let mut mw = of::<ibv_mw>(context, |mw, context| mw.context = context);
    let (qp, cq, pd, mw) = (&raw mut *qp, &raw mut *cq, &raw mut *pd, &raw mut *mw);
    let (mut send, mut receive) = (ibv_send_wr::default(), ibv_recv_wr::default());
    let (send, receive) = (&raw mut send, &raw mut receive);
    let (mut bad_send, mut bad_receive) = (ptr::null_mut(), ptr::null_mut());
    let (bad_send, bad_receive) = (&raw mut bad_send, &raw mut bad_receive);
    let mut wc = ibv_wc::default();
    let wc = &raw mut wc;
    // SAFETY: live objects of a live context; the provider reads none of them.
    unsafe {
        assert_eq!(inline::post_send(qp, send, bad_send), 1);
        assert_eq!(CALL.take(), Some(("post_send", [qp.addr(), send.addr(), bad_send.addr()])));
        assert_eq!(inline::post_recv(qp, receive, bad_receive), 2);
        assert_eq!(CALL.take(), Some(("post_recv", [qp.addr(), receive.addr(), bad_receive.addr()])));
        assert_eq!(inline::poll_cq(cq, 16, wc), 3);
        assert_eq!(CALL.take(), Some(("poll_cq", [cq.addr(), 16, wc.addr()])));
        assert_eq!(inline::req_notify_cq(cq, true), 4);
        assert_eq!(CALL.take(), Some(("req_notify_cq", [cq.addr(), 1, 0])));
        assert_eq!(inline::req_notify_cq(cq, false), 4);
        assert_eq!(CALL.take(), Some(("req_notify_cq", [cq.addr(), 0, 0])));
        assert_eq!(inline::alloc_mw(pd, IBV_MW_TYPE_2).addr(), 64);
        assert_eq!(CALL.take(), Some(("alloc_mw", [pd.addr(), 2, 0])));
        assert_eq!(inline::dealloc_mw(mw), 6);
        assert_eq!(CALL.take(), Some(("dealloc_mw", [mw.addr(), 0, 0])));
    }
}

#[test]
fn what_a_provider_lacks_is_an_error_and_not_a_crash() {
    let mut outer = provider();
    // SAFETY: null functions.
    outer.context.ops = unsafe { std::mem::zeroed() };
    let context = &raw mut outer.context;
    let mut qp = of::<ibv_qp>(context, |qp, context| qp.context = context);
    let mut cq = of::<ibv_cq>(context, |cq, context| cq.context = context);
    let mut pd = of::<ibv_pd>(context, |pd, context| pd.context = context);
    let mut mw = of::<ibv_mw>(context, |mw, context| mw.context = context);
    // SAFETY: live objects of a live context; nothing is called.
    unsafe {
        assert_eq!(inline::post_send(&raw mut *qp, ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        assert_eq!(inline::post_recv(&raw mut *qp, ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        assert_eq!(inline::poll_cq(&raw mut *cq, 1, ptr::null_mut()), -libc::EOPNOTSUPP);
        assert_eq!(inline::req_notify_cq(&raw mut *cq, false), libc::EOPNOTSUPP);
        assert!(inline::alloc_mw(&raw mut *pd, IBV_MW_TYPE_2).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(inline::dealloc_mw(&raw mut *mw), libc::EOPNOTSUPP);
    }
}

#[test]
fn a_port_is_asked_through_the_newest_function_that_there_is() {
    let mut outer = provider();
    let outer = &raw mut *outer;
    // SAFETY: a field of the provider's structure.
    let context = unsafe { &raw mut (*outer).context };
    let mut attributes = ibv_port_attr { lid: 9, ..ibv_port_attr::default() };
    let attributes_addr = (&raw const attributes).addr();
    // SAFETY: a live context, here and below.
    let ask = move |attributes: &mut ibv_port_attr| unsafe {
        inline::query_port(old_query_port, context, 1, attributes)
    };
    assert_eq!(ask(&mut attributes), 7);
    let bytes = size_of::<ibv_port_attr>();
    assert_eq!(CALL.take(), Some(("query_port", [context.addr(), 1, bytes])));
    assert_eq!(u32::from(attributes.link_layer), IBV_LINK_LAYER_ETHERNET);

    let old = Some(("old_query_port", [context.addr(), 1, attributes_addr]));
    // SAFETY: no other code uses it meanwhile, here and below.
    unsafe { (*outer).query_port = None };
    assert_eq!((ask(&mut attributes), CALL.take()), (8, old));
    assert_eq!(attributes.link_layer, 0, "what was there before is cleared");
    // SAFETY: as above.
    unsafe { (*outer).query_port = Some(query_port) };
    // SAFETY: as above.
    unsafe { (*outer).sz = size_of::<verbs_context>() - offset_of!(verbs_context, query_port) - 1 };
    assert_eq!((ask(&mut attributes), CALL.take()), (8, old), "too old to have the field");
    // SAFETY: as above.
    unsafe { (*outer).sz = size_of::<verbs_context>() - offset_of!(verbs_context, query_port) };
    // SAFETY: as above.
    unsafe { (*context).abi_compat = ptr::null_mut() };
    assert_eq!((ask(&mut attributes), CALL.take()), (8, old), "too old to have the structure");
}

#[test]
fn the_key_of_a_window_changes_in_its_last_byte_alone() {
    assert_eq!(inline::inc_rkey(0x1234_56fe), 0x1234_56ff);
    assert_eq!(inline::inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(inline::inc_rkey(u32::MAX), 0xffff_ff00);
}
