//! A device of our own, for unit tests: it takes everything, remembers what it was asked, and tells the events that it
//! was given to tell.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use super::device::{Device, DeviceInfo, Limits, Port};
use super::gid::{Gid, GidKind};
use super::sys::{self, Library};
use crate::transport::AtomicDomain;

thread_local! {
    /// The changes of state that queue pairs of this thread were asked for.
    static MODIFIED: RefCell<Vec<(sys::ibv_qp_attr_mask, sys::ibv_qp_attr)>> = const { RefCell::new(Vec::new()) };
    /// The context to which queues and queue pairs of this thread belong: nothing completes.
    static CONTEXT: Box<sys::ibv_context> = {
        // SAFETY: null pointers, null functions, numbers, and a mutex that is never locked.
        let mut context: Box<sys::ibv_context> = unsafe { Box::new(std::mem::zeroed()) };
        context.ops.poll_cq = Some(poll_cq);
        context.ops.post_send = Some(post_send);
        context
    };
    /// The queue pairs of this thread that live.
    static PAIRS: RefCell<Vec<*mut sys::ibv_qp>> = const { RefCell::new(Vec::new()) };
    /// The error number with which queue pairs of this thread are destroyed; 0 is success.
    static DESTROYING: Cell<c_int> = const { Cell::new(0) };
    /// The events that the device will tell this thread.
    static EVENTS: RefCell<VecDeque<sys::ibv_async_event>> = const { RefCell::new(VecDeque::new()) };
    /// Events that were told and not yet acknowledged.
    static OPEN_EVENTS: Cell<usize> = const { Cell::new(0) };
}

/// The device.
pub(super) fn device() -> Arc<Device> {
    static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library {
        close_device,
        alloc_pd,
        dealloc_pd,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        reg_mr_iova2,
        dereg_mr,
        get_async_event,
        ack_async_event,
        event_type_str,
        ..Library::absent()
    });
    Device::of_library(&LIBRARY, NonNull::dangling())
}

/// Returns what the device says of itself.
pub(super) fn info(name: &str, is_active: bool, gids: Vec<Gid>) -> DeviceInfo {
    let limits = Limits {
        queue_pairs: 9,
        queue_depth: 9,
        completions: 9,
        regions: 9,
        region_bytes: 9,
        reads_served: 9,
        reads_posted: 9,
        atomics: AtomicDomain::None,
    };
    let state = if is_active { "PORT_ACTIVE" } else { "PORT_DOWN" };
    let port = Port {
        number: 1,
        is_active,
        state: state.into(),
        is_infiniband: false,
        lid: 0,
        mtu: 1024,
        message_bytes: 1 << 30,
        speed: 4,
        gids,
        partition_keys: vec![0xFFFF],
        needs_global_route: false,
    };
    DeviceInfo {
        name: name.into(),
        numa_node: Some(0),
        limits,
        is_soft_roce: true,
        firmware: String::new(),
        ports: vec![port],
    }
}

/// An address of its port.
pub(super) fn gid() -> Gid {
    let bytes = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
    Gid { index: 1, bytes, kind: GidKind::RoceV2, interface: Some("eth0".into()), is_up: true }
}

/// Returns the changes that queue pairs were asked for since this was called last, the oldest first.
pub(super) fn take_modified() -> Vec<(sys::ibv_qp_attr_mask, sys::ibv_qp_attr)> {
    MODIFIED.take()
}

fn context() -> *mut sys::ibv_context {
    CONTEXT.with(|context| (&raw const **context).cast_mut())
}

fn serial(pair: *mut sys::ibv_qp) -> usize {
    // SAFETY: it lives: it leaves the list when it is destroyed.
    unsafe { (*pair).qp_context }.addr()
}

/// The queue pairs that live, by their serials, the oldest first.
pub(super) fn pairs() -> Vec<usize> {
    PAIRS.with_borrow(|pairs| pairs.iter().map(|pair| serial(*pair)).collect())
}

/// Has the device tell this of a queue pair that lives, by its serial, or of its completion queue.
pub(super) fn tell(event_type: sys::ibv_event_type, of: usize) {
    let find = |pairs: &Vec<*mut sys::ibv_qp>| pairs.iter().copied().find(|pair| serial(*pair) == of);
    let qp = PAIRS.with_borrow(find).expect("a pair that lives");
    let mut event = sys::ibv_async_event { event_type, ..Default::default() };
    if event_type == sys::IBV_EVENT_CQ_ERR {
        // SAFETY: it lives, and its queue as long.
        event.element.cq = unsafe { (*qp).send_cq };
    } else {
        event.element.qp = qp;
    }
    EVENTS.with_borrow_mut(|events| events.push_back(event));
}

/// Has the device tell this of its only port.
pub(super) fn tell_of_port(event_type: sys::ibv_event_type) {
    let mut event = sys::ibv_async_event { event_type, ..Default::default() };
    event.element.port_num = 1;
    EVENTS.with_borrow_mut(|events| events.push_back(event));
}

/// From now on, destroying a queue pair of this thread ends with this error number.
pub(super) fn destroy_with(errno: c_int) {
    DESTROYING.set(errno);
}

/// Events that were not yet taken, and those that were and are not yet acknowledged.
pub(super) fn pending_events() -> (usize, usize) {
    (EVENTS.with_borrow(VecDeque::len), OPEN_EVENTS.get())
}

pub(super) unsafe extern "C" fn close_device(_: *mut sys::ibv_context) -> c_int {
    0
}

unsafe extern "C" fn alloc_pd(_: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    NonNull::dangling().as_ptr()
}

unsafe extern "C" fn dealloc_pd(_: *mut sys::ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn create_cq(
    _: *mut sys::ibv_context,
    _: c_int,
    cq_context: *mut c_void,
    _: *mut sys::ibv_comp_channel,
    _: c_int,
) -> *mut sys::ibv_cq {
    // SAFETY: null pointers, numbers, and a mutex that is never locked.
    let cq: sys::ibv_cq = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(sys::ibv_cq { context: context(), cq_context, ..cq }))
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: made by `create_cq`, and destroyed once.
    drop(unsafe { Box::from_raw(cq) });
    0
}

unsafe extern "C" fn create_qp(
    _: *mut sys::ibv_pd,
    attributes: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: null pointers, numbers, and a mutex that is never locked.
    let qp: sys::ibv_qp = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's structure.
    let sys::ibv_qp_init_attr { qp_context, send_cq, recv_cq, .. } = unsafe { *attributes };
    let qp = Box::into_raw(Box::new(sys::ibv_qp { context: context(), qp_context, send_cq, recv_cq, ..qp }));
    PAIRS.with_borrow_mut(|pairs| pairs.push(qp));
    qp
}

unsafe extern "C" fn modify_qp(_: *mut sys::ibv_qp, attributes: *mut sys::ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's structure.
    MODIFIED.with_borrow_mut(|modified| modified.push((mask as u32, unsafe { *attributes })));
    0
}

/// None is ever in error.
unsafe extern "C" fn query_qp(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_qp_attr,
    _: c_int,
    _: *mut sys::ibv_qp_init_attr,
) -> c_int {
    0
}

unsafe extern "C" fn poll_cq(_: *mut sys::ibv_cq, _: c_int, _: *mut sys::ibv_wc) -> c_int {
    0
}

unsafe extern "C" fn reg_mr_iova2(
    _: *mut sys::ibv_pd,
    _: *mut c_void,
    _: usize,
    _: u64,
    _: c_uint,
) -> *mut sys::ibv_mr {
    // SAFETY: null pointers and numbers.
    Box::into_raw(unsafe { Box::new(std::mem::zeroed()) })
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: made by `reg_mr_iova2`, and undone once.
    drop(unsafe { Box::from_raw(mr) });
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    PAIRS.with_borrow_mut(|pairs| pairs.retain(|pair| *pair != qp));
    // SAFETY: made by `create_qp`, and destroyed once, whether it is said to have failed or not.
    drop(unsafe { Box::from_raw(qp) });
    DESTROYING.get()
}

/// Takes all requests, and completes none.
unsafe extern "C" fn post_send(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    0
}

unsafe extern "C" fn get_async_event(_: *mut sys::ibv_context, event: *mut sys::ibv_async_event) -> c_int {
    let Some(next) = EVENTS.with_borrow_mut(VecDeque::pop_front) else { return -1 };
    OPEN_EVENTS.set(OPEN_EVENTS.get() + 1);
    // SAFETY: it points to an event of the caller's.
    unsafe { *event = next };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut sys::ibv_async_event) {
    OPEN_EVENTS.set(OPEN_EVENTS.get() - 1);
}

unsafe extern "C" fn event_type_str(_: sys::ibv_event_type) -> *const c_char {
    c"an event".as_ptr()
}
