//! A scripted device for unit tests: it accepts every call, records the calls, and reports the events that a test
//! gives it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use super::device::{Device, DeviceInfo, Limits, Port};
use super::gid::{Gid, GidKind};
use super::sys::{self, Library};
use crate::transport::AtomicDomain;

thread_local! {
    /// The requested changes of state of this thread's queue pairs.
    static MODIFIED: RefCell<Vec<(sys::ibv_qp_attr_mask, sys::ibv_qp_attr)>> = const { RefCell::new(Vec::new()) };
    /// The context to which queues and queue pairs of this thread belong: nothing completes.
    static CONTEXT: Box<sys::ibv_context> = {
        // SAFETY: null pointers, null functions, numbers, and a mutex that is never locked.
        let mut context: Box<sys::ibv_context> = unsafe { Box::new(std::mem::zeroed()) };
        context.ops.poll_cq = Some(poll_cq);
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
        context.ops.req_notify_cq = Some(req_notify_cq);
        context
    };
    /// The queue pairs of this thread that live.
    static PAIRS: RefCell<Vec<*mut sys::ibv_qp>> = const { RefCell::new(Vec::new()) };
    /// The error number with which queue pairs of this thread are destroyed; 0 is success.
    static DESTROYING: Cell<c_int> = const { Cell::new(0) };
    /// The error number of state queries of this thread's queue pairs; 0 is success.
    static ASKING: Cell<c_int> = const { Cell::new(0) };
    /// The only partition key of the port.
    static PARTITION: Cell<u16> = const { Cell::new(0xFFFF) };
    /// The most inline data of a queue pair of this thread: a pair with more is refused.
    static INLINE_MAX: Cell<u32> = const { Cell::new(u32::MAX) };
    /// The flags of registrations of this thread.
    static FLAGS: RefCell<Vec<c_uint>> = const { RefCell::new(Vec::new()) };
    /// The answer of the port to queries: its LID, and the one entry of its table of GIDs, by index.
    static PORT: Cell<(u16, (u16, Ipv4Addr))> = const { Cell::new((0, (1, Ipv4Addr::new(10, 0, 0, 1)))) };
    /// The events that the device will report to this thread.
    static EVENTS: RefCell<VecDeque<sys::ibv_async_event>> = const { RefCell::new(VecDeque::new()) };
    /// Events that were taken and not yet acknowledged.
    static OPEN_EVENTS: Cell<usize> = const { Cell::new(0) };
    /// Calls of the library that this thread has made.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Requests with a notice, by the queues in which they complete and the numbers of their pairs.
    static NOTICED: RefCell<VecDeque<(*mut sys::ibv_cq, u32)>> = const { RefCell::new(VecDeque::new()) };
    /// Requests with a notice that arrive as soon as a queue is armed, one each time.
    static STREAMED: Cell<usize> = const { Cell::new(0) };
    /// Regions of this thread that are still registered before one is refused.
    static REGIONS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The number of times that queues were armed.
    static ARMINGS: Cell<usize> = const { Cell::new(0) };
    /// Queues that must report the next completion to their channel.
    static ARMED: RefCell<Vec<*mut sys::ibv_cq>> = const { RefCell::new(Vec::new()) };
    /// Queues that have reported a completion to their channel.
    static TOLD: RefCell<VecDeque<*mut sys::ibv_cq>> = const { RefCell::new(VecDeque::new()) };
    /// Receives that are still posted before one is refused.
    static RECEIVES_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Receives that were posted, by the number of the pair.
    static POSTED: RefCell<Vec<(u32, usize)>> = const { RefCell::new(Vec::new()) };
}

/// The device.
pub(super) fn device() -> Arc<Device> {
    static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library {
        close_device,
        alloc_pd,
        dealloc_pd,
        create_comp_channel,
        destroy_comp_channel,
        get_cq_event,
        ack_cq_events,
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
        compat_query_port,
        query_gid_ex,
        query_pkey,
        port_state_str: event_type_str,
        ..Library::absent()
    });
    Device::of_library(&LIBRARY, NonNull::new(context()).expect("a box"))
}

/// Returns the attributes of the device.
pub(super) fn info(name: &str, is_active: bool, gids: Vec<Gid>) -> DeviceInfo {
    let limits = Limits {
        queue_pairs: 9,
        completion_queues: 9,
        domains: 9,
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
        breaks_silently: true,
        firmware: String::new(),
        ports: vec![port],
    }
}

/// An address of its port.
pub(super) fn gid() -> Gid {
    let bytes = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
    Gid { index: 1, bytes, kind: GidKind::RoceV2, interface: Some("eth0".into()), is_up: true, is_own: true }
}

/// Returns the requested changes of queue pairs since the last call, the oldest first.
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

/// Makes the device raise this event for a living queue pair, by its serial, or for its completion queue.
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

/// Makes the device raise this event for its only port.
pub(super) fn tell_of_port(event_type: sys::ibv_event_type) {
    let mut event = sys::ibv_async_event { event_type, ..Default::default() };
    event.element.port_num = 1;
    EVENTS.with_borrow_mut(|events| events.push_back(event));
}

/// Completes a request with a notice of the peer that this pair, by its serial, serves.
pub(super) fn notice(of: usize) {
    let find = |pairs: &Vec<*mut sys::ibv_qp>| pairs.iter().copied().find(|pair| serial(*pair) == of);
    let pair = PAIRS.with_borrow(find).expect("a pair that lives");
    // SAFETY: it lives, and its queue as long.
    let (queue, number) = unsafe { ((*pair).recv_cq, (*pair).qp_num) };
    NOTICED.with_borrow_mut(|noticed| noticed.push_back((queue, number)));
    let armed = ARMED.with_borrow(|armed| armed.iter().position(|armed| *armed == queue));
    if let Some(index) = armed {
        ARMED.with_borrow_mut(|armed| armed.swap_remove(index));
        TOLD.with_borrow_mut(|told| told.push_back(queue));
        // SAFETY: a queue that was armed has a channel, and it lives.
        let channel = unsafe { BorrowedFd::borrow_raw((*(*queue).channel).fd) };
        rustix::io::write(channel, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// From now on, a request with a notice arrives whenever a queue is armed, so many times.
pub(super) fn stream(requests: usize) {
    STREAMED.set(requests);
}

/// Returns how often queues were armed since the last call.
pub(super) fn take_armings() -> usize {
    ARMINGS.take()
}

/// From now on, so many regions are registered, and the next one is refused.
pub(super) fn register_only(regions: usize) {
    REGIONS_LEFT.set(regions);
}

/// From now on, so many receives are posted, and the next one is refused.
pub(super) fn receive_only(receives: usize) {
    RECEIVES_LEFT.set(receives);
}

/// Calls of the library that this thread has made since the last call of this function.
pub(super) fn take_calls() -> u64 {
    CALLS.take()
}

/// Receives that were posted since the last call, by the number of the pair, in order.
pub(super) fn take_posted() -> Vec<(u32, usize)> {
    POSTED.take()
}

fn count_call() {
    CALLS.set(CALLS.get() + 1);
}

/// From now on, the port is in this partition only.
pub(super) fn set_partition(key: u16) {
    PARTITION.set(key);
}

/// From now on, the port has this LID and this address, at an index of its table.
pub(super) fn set_port(lid: u16, index: u16, address: Ipv4Addr) {
    PORT.set((lid, (index, address)));
}

/// From now on, queue pairs of this thread support at most so much inline data.
pub(super) fn take_inline(bytes: u32) {
    INLINE_MAX.set(bytes);
}

/// Returns the flags of all registrations since the last call, the oldest first.
pub(super) fn take_flags() -> Vec<c_uint> {
    FLAGS.take()
}

/// From now on, the destruction of a queue pair of this thread ends with this error number.
pub(super) fn destroy_with(errno: c_int) {
    DESTROYING.set(errno);
}

/// From now on, a state query of a queue pair of this thread ends with this error number.
pub(super) fn ask_with(errno: c_int) {
    ASKING.set(errno);
}

/// The number of events that were not yet taken, and of events that were taken and not yet acknowledged.
pub(super) fn pending_events() -> (usize, usize) {
    (EVENTS.with_borrow(VecDeque::len), OPEN_EVENTS.get())
}

pub(super) unsafe extern "C" fn close_device(_: *mut sys::ibv_context) -> c_int {
    count_call();
    0
}

unsafe extern "C" fn alloc_pd(_: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    count_call();
    NonNull::dangling().as_ptr()
}

unsafe extern "C" fn dealloc_pd(_: *mut sys::ibv_pd) -> c_int {
    count_call();
    0
}

unsafe extern "C" fn compat_query_port(
    _: *mut sys::ibv_context,
    _: u8,
    attributes: *mut sys::_compat_ibv_port_attr,
) -> c_int {
    count_call();
    // SAFETY: the caller's structure begins with this one's fields, and is longer.
    let attributes = unsafe { &mut *attributes.cast::<sys::ibv_port_attr>() };
    (attributes.lid, attributes.gid_tbl_len, attributes.pkey_tbl_len) = (PORT.get().0, 8, 1);
    (attributes.state, attributes.active_mtu) = (sys::IBV_PORT_ACTIVE, sys::IBV_MTU_1024);
    0
}

pub(super) unsafe extern "C" fn query_gid_ex(
    _: *mut sys::ibv_context,
    _: u32,
    index: u32,
    entry: *mut sys::ibv_gid_entry,
    _: u32,
    _: usize,
) -> c_int {
    count_call();
    let (at, address) = PORT.get().1;
    if index != u32::from(at) {
        return libc::ENODATA;
    }
    // SAFETY: the caller's structure.
    let entry = unsafe { &mut *entry };
    entry.gid.raw = address.to_ipv6_mapped().octets();
    entry.gid_type = sys::IBV_GID_TYPE_ROCE_V2;
    0
}

pub(super) unsafe extern "C" fn query_pkey(
    _: *mut sys::ibv_context,
    _: u8,
    _: c_int,
    key: *mut u16,
) -> c_int {
    count_call();
    // SAFETY: the caller's word.
    unsafe { *key = PARTITION.get().to_be() };
    0
}

unsafe extern "C" fn create_cq(
    _: *mut sys::ibv_context,
    _: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    _: c_int,
) -> *mut sys::ibv_cq {
    count_call();
    // SAFETY: null pointers, numbers, and a mutex that is never locked.
    let cq: sys::ibv_cq = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(sys::ibv_cq { context: context(), cq_context, channel, ..cq }))
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    count_call();
    ARMED.with_borrow_mut(|armed| armed.retain(|armed| *armed != cq));
    // SAFETY: made by `create_cq`, and destroyed once.
    drop(unsafe { Box::from_raw(cq) });
    0
}

unsafe extern "C" fn create_qp(
    _: *mut sys::ibv_pd,
    attributes: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    count_call();
    // SAFETY: null pointers, numbers, and a mutex that is never locked.
    let qp: sys::ibv_qp = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's structure.
    let sys::ibv_qp_init_attr { qp_context, send_cq, recv_cq, cap, .. } = unsafe { *attributes };
    if cap.max_inline_data > INLINE_MAX.get() {
        return std::ptr::null_mut();
    }
    let context = context();
    let number = PAIRS.with_borrow(|pairs| pairs.len() as u32) + 1;
    let qp = sys::ibv_qp { context, qp_context, send_cq, recv_cq, qp_num: number, ..qp };
    let qp = Box::into_raw(Box::new(qp));
    PAIRS.with_borrow_mut(|pairs| pairs.push(qp));
    qp
}

unsafe extern "C" fn modify_qp(_: *mut sys::ibv_qp, attributes: *mut sys::ibv_qp_attr, mask: c_int) -> c_int {
    count_call();
    // SAFETY: the caller's structure.
    MODIFIED.with_borrow_mut(|modified| modified.push((mask as u32, unsafe { *attributes })));
    0
}

/// No queue pair is ever in error.
unsafe extern "C" fn query_qp(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_qp_attr,
    _: c_int,
    _: *mut sys::ibv_qp_init_attr,
) -> c_int {
    count_call();
    ASKING.get()
}

/// Returns the requests with a notice, one at a time.
unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, _: c_int, into: *mut sys::ibv_wc) -> c_int {
    count_call();
    let find = |noticed: &VecDeque<(*mut sys::ibv_cq, u32)>| noticed.iter().position(|(of, _)| *of == cq);
    let Some(index) = NOTICED.with_borrow(find) else { return 0 };
    let (_, number) = NOTICED.with_borrow_mut(|noticed| noticed.remove(index)).expect("found just now");
    // SAFETY: the caller has room for one.
    unsafe { *into = sys::ibv_wc { status: sys::IBV_WC_SUCCESS, qp_num: number, ..Default::default() } };
    1
}

unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, _: c_int) -> c_int {
    count_call();
    ARMINGS.set(ARMINGS.get() + 1);
    let Some(left) = STREAMED.get().checked_sub(1) else {
        ARMED.with_borrow_mut(|armed| armed.push(cq));
        return 0;
    };
    STREAMED.set(left);
    // SAFETY: each lives: it leaves the list when it is destroyed.
    let is_of_queue = |pair: &&*mut sys::ibv_qp| unsafe { (***pair).recv_cq } == cq;
    let pair =
        PAIRS.with_borrow(|pairs| pairs.iter().find(is_of_queue).copied()).expect("a pair of the queue");
    // SAFETY: as above.
    let number = unsafe { (*pair).qp_num };
    NOTICED.with_borrow_mut(|noticed| noticed.push_back((cq, number)));
    TOLD.with_borrow_mut(|told| told.push_back(cq));
    0
}

unsafe extern "C" fn create_comp_channel(_: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    count_call();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    // SAFETY: null pointers and numbers.
    let channel: sys::ibv_comp_channel = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(sys::ibv_comp_channel { fd: event.into_raw_fd(), ..channel }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    count_call();
    // SAFETY: made by `create_comp_channel`, and destroyed once.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: its own descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(channel.fd) });
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    count_call();
    let Some(told) = TOLD.with_borrow_mut(VecDeque::pop_front) else {
        // SAFETY: the channel lives, and its descriptor with it.
        let event = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
        let _nothing = rustix::io::read(event, &mut [0; 8]);
        return -1;
    };
    // SAFETY: the caller's pointers; the queue lives.
    unsafe { (*cq, *cq_context) = (told, (*told).cq_context) };
    0
}

unsafe extern "C" fn ack_cq_events(_: *mut sys::ibv_cq, _: c_uint) {
    count_call();
}

unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    count_call();
    let (mut next, mut count, left) = (first, 0, RECEIVES_LEFT.get());
    while !next.is_null() && count < left {
        // SAFETY: the caller's chain.
        (next, count) = (unsafe { (*next).next }, count + 1);
    }
    RECEIVES_LEFT.set(left - count);
    // SAFETY: it lives.
    POSTED.with_borrow_mut(|posted| posted.push((unsafe { (*qp).qp_num }, count)));
    if next.is_null() {
        return 0;
    }
    // SAFETY: the caller's pointer.
    unsafe { *bad = next };
    libc::ENOMEM
}

unsafe extern "C" fn reg_mr_iova2(
    _: *mut sys::ibv_pd,
    _: *mut c_void,
    _: usize,
    _: u64,
    flags: c_uint,
) -> *mut sys::ibv_mr {
    count_call();
    let Some(left) = REGIONS_LEFT.get().checked_sub(1) else {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return std::ptr::null_mut();
    };
    REGIONS_LEFT.set(left);
    FLAGS.with_borrow_mut(|all| all.push(flags));
    // SAFETY: null pointers and numbers.
    Box::into_raw(unsafe { Box::new(std::mem::zeroed()) })
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    count_call();
    // SAFETY: made by `reg_mr_iova2`, and deregistered once.
    drop(unsafe { Box::from_raw(mr) });
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    count_call();
    PAIRS.with_borrow_mut(|pairs| pairs.retain(|pair| *pair != qp));
    // SAFETY: made by `create_qp`, and destroyed once, even if the call reports a failure.
    drop(unsafe { Box::from_raw(qp) });
    DESTROYING.get()
}

/// Accepts all requests, and completes none.
unsafe extern "C" fn post_send(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    count_call();
    0
}

unsafe extern "C" fn get_async_event(_: *mut sys::ibv_context, event: *mut sys::ibv_async_event) -> c_int {
    count_call();
    let Some(next) = EVENTS.with_borrow_mut(VecDeque::pop_front) else { return -1 };
    OPEN_EVENTS.set(OPEN_EVENTS.get() + 1);
    // SAFETY: it points to an event of the caller.
    unsafe { *event = next };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut sys::ibv_async_event) {
    count_call();
    OPEN_EVENTS.set(OPEN_EVENTS.get() - 1);
}

pub(super) unsafe extern "C" fn event_type_str(_: sys::ibv_event_type) -> *const c_char {
    count_call();
    c"an event".as_ptr()
}
