//! The calls of the device's library.

use std::os::fd::{AsRawFd, OwnedFd};

use super::ports::compat_query_port;
use super::receives::{ack_cq_events, create_comp_channel, destroy_comp_channel, get_cq_event};
use super::undoing::dealloc_pd;
use super::*;

/// Finds a range of addresses in memory of GPUs: returns a descriptor for its pages, if the range is there.
pub(super) type Peermem = Arc<dyn Fn(u64, usize) -> Option<OwnedFd> + Send + Sync>;

pub(super) static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library {
    close_device: scripted::close_device,
    alloc_pd,
    dealloc_pd,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    create_qp,
    modify_qp,
    query_qp,
    destroy_qp,
    reg_mr_iova2,
    reg_dmabuf_mr: Some(reg_dmabuf_mr),
    dereg_mr,
    get_async_event,
    ack_async_event,
    event_type_str: scripted::event_type_str,
    compat_query_port,
    port_state_str: scripted::event_type_str,
    query_gid_ex: scripted::query_gid_ex,
    query_pkey: scripted::query_pkey,
    query_qp_data_in_order: Some(query_qp_data_in_order),
    ..Library::absent()
});

pub(super) fn state(context: *mut sys::ibv_context) -> std::sync::MutexGuard<'static, DeviceState> {
    // SAFETY: each handle of this library points to a world, which is never freed.
    lock(unsafe { &(*context.cast_const().cast::<World>()).state })
}

unsafe extern "C" fn alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    let pd = Box::into_raw(Box::new(sys::ibv_pd { context, handle: 0 }));
    state(context).domains.insert(pd.addr());
    pd
}

unsafe extern "C" fn create_cq(
    context: *mut sys::ibv_context,
    _: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    _: c_int,
) -> *mut sys::ibv_cq {
    // SAFETY: null pointers, numbers, and a mutex that is never locked.
    let cq: sys::ibv_cq = unsafe { std::mem::zeroed() };
    let cq = Box::into_raw(Box::new(sys::ibv_cq { context, cq_context, channel, ..cq }));
    if !channel.is_null() {
        state(context).channels.add(cq, channel);
    }
    cq
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: made by `create_cq`, and destroyed once.
    let cq = unsafe { Box::from_raw(cq) };
    undoing::wait(cq.context);
    let (mut state, address) = (state(cq.context), (&raw const *cq).addr());
    state.completions.remove(&address);
    state.channels.remove(address);
    0
}

unsafe extern "C" fn create_qp(
    pd: *mut sys::ibv_pd,
    attributes: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: null pointers, numbers, and a mutex that is never locked.
    let qp: sys::ibv_qp = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's structures.
    let (context, sys::ibv_qp_init_attr { qp_context, send_cq, recv_cq, .. }) =
        unsafe { ((*pd).context, *attributes) };
    let mut state = state(context);
    let number = state.next;
    state.next += 1;
    let made = sys::ibv_qp { context, qp_context, send_cq, recv_cq, qp_num: number, ..qp };
    let qp = Box::into_raw(Box::new(made));
    state.pairs.push(ScriptedPair {
        address: qp.expose_provenance(),
        queue: send_cq.addr(),
        receive_queue: recv_cq.addr(),
        domain: pd.addr(),
        number,
        port: 0,
        state: sys::IBV_QPS_RESET,
        peer: 0,
        access: 0,
        receives: 0,
        requests: VecDeque::new(),
    });
    qp
}

/// Waits until the neighbour has answered or is gone. False if it is gone.
fn finds_neighbour(context: *mut sys::ibv_context) -> bool {
    let look = || state(context).neighbour;
    if look() == Neighbour::IsSilent {
        state(context).waiting += 1;
        while look() == Neighbour::IsSilent {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        state(context).waiting -= 1;
    }
    look() == Neighbour::Answers
}

unsafe extern "C" fn modify_qp(
    qp: *mut sys::ibv_qp,
    attributes: *mut sys::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's structures.
    let (context, attributes) = unsafe { ((*qp).context, *attributes) };
    let is_state = mask as u32 & sys::IBV_QP_STATE != 0;
    if is_state && attributes.qp_state == sys::IBV_QPS_RTR && !finds_neighbour(context) {
        return libc::ETIMEDOUT;
    }
    let mut state = state(context);
    let Some(pair) = state.pair(qp).filter(|_| is_state) else { return 0 };
    if attributes.qp_state == sys::IBV_QPS_RESET && state.undoing.refuses_reset {
        return libc::EIO;
    }
    state.pairs[pair].state = attributes.qp_state;
    if mask as u32 & sys::IBV_QP_ACCESS_FLAGS != 0 {
        state.pairs[pair].access = attributes.qp_access_flags;
    }
    if mask as u32 & sys::IBV_QP_PORT != 0 {
        state.pairs[pair].port = attributes.port_num;
    }
    if mask as u32 & sys::IBV_QP_DEST_QPN != 0 {
        state.pairs[pair].peer = attributes.dest_qp_num;
    }
    if attributes.qp_state == sys::IBV_QPS_ERR {
        state.fail(pair, usize::MAX, sys::IBV_WC_WR_FLUSH_ERR);
    }
    0
}

unsafe extern "C" fn query_qp(
    qp: *mut sys::ibv_qp,
    attributes: *mut sys::ibv_qp_attr,
    _: c_int,
    _: *mut sys::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's structures.
    let mut state = state(unsafe { (*qp).context });
    state.state_queries += 1;
    if let Some(pair) = state.pair(qp) {
        // SAFETY: as above.
        unsafe { (*attributes).qp_state = state.pairs[pair].state };
    }
    0
}

unsafe extern "C" fn query_qp_data_in_order(
    qp: *mut sys::ibv_qp,
    operation: sys::ibv_wr_opcode,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's structure.
    let mut state = state(unsafe { (*qp).context });
    let is_ready = state.pair(qp).is_some_and(|pair| state.pairs[pair].state == sys::IBV_QPS_RTS);
    let is_asked = operation == sys::IBV_WR_RDMA_WRITE && flags == 0;
    c_int::from(is_ready && is_asked && state.says_in_order)
}

unsafe extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    // SAFETY: made by `create_qp`, and destroyed once.
    let qp = unsafe { Box::from_raw(qp) };
    undoing::wait(qp.context);
    let mut state = state(qp.context);
    if let Some(pair) = state.pairs.iter().position(|pair| pair.number == qp.qp_num) {
        state.leave_late(pair);
        state.pairs.remove(pair);
    }
    if state.dies_with_a_pair {
        let event_type = sys::IBV_EVENT_DEVICE_FATAL;
        state.events.push_back(sys::ibv_async_event { event_type, ..Default::default() });
    }
    state.destroying
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut sys::ibv_pd,
    address: *mut c_void,
    length: usize,
    first: u64,
    access: c_uint,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller's structure.
    let peermem = state(unsafe { (*pd).context }).peermem.clone();
    if let Some(buffer) = peermem.and_then(|memory| memory(address.addr() as u64, length)) {
        // SAFETY: the descriptor is open.
        return unsafe { reg_dmabuf_mr(pd, 0, length, first, buffer.as_raw_fd(), access as c_int) };
    }
    let (domain, address) = (pd.addr(), address.expose_provenance());
    register(pd, Region { domain, address, first, bytes: length, access, mapping: None })
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut sys::ibv_pd,
    offset: u64,
    length: usize,
    first: u64,
    buffer: c_int,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller's descriptor, which is open.
    let buffer = unsafe { BorrowedFd::borrow_raw(buffer) };
    let begin = rustix::fs::tell(buffer).unwrap_or(0) + offset;
    let end = rustix::fs::fstat(buffer).map_or(0, |stat| stat.st_size as u64);
    if !(first ^ offset).is_multiple_of(PAGE_SIZE as u64) || begin.saturating_add(length as u64) > end {
        return refuse(libc::EINVAL);
    }
    let Ok(mapping) = MmapOptions::new().offset(begin).len(length).map_raw(&buffer) else {
        return refuse(libc::ENOMEM);
    };
    let (domain, address) = (pd.addr(), mapping.as_mut_ptr().expose_provenance());
    let (access, mapping) = (access as u32, Some(Arc::new(mapping)));
    register(pd, Region { domain, address, first, bytes: length, access, mapping })
}

fn refuse(errno: c_int) -> *mut sys::ibv_mr {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

fn register(pd: *mut sys::ibv_pd, region: Region) -> *mut sys::ibv_mr {
    // SAFETY: the caller's structure.
    let context = unsafe { (*pd).context };
    undoing::wait_to_register(context);
    let mut state = state(context);
    if state.registering != 0 {
        return refuse(state.registering);
    }
    let key = state.next;
    state.next += 1;
    let (addr, length) = (std::ptr::with_exposed_provenance_mut(region.address), region.bytes);
    state.regions.insert(key, region);
    Box::into_raw(Box::new(sys::ibv_mr { context, pd, addr, length, handle: 0, lkey: key, rkey: key }))
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: made by `reg_mr_iova2`, and deregistered once.
    let mr = unsafe { Box::from_raw(mr) };
    undoing::wait(mr.context);
    state(mr.context).end_region(mr.rkey);
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    let Some(next) = state(context).events.pop_front() else { return -1 };
    // SAFETY: it points to an event of the caller.
    unsafe { *event = next };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut sys::ibv_async_event) {}

/// The peer's memory that a request names, and the atomic to execute there.
struct ScriptedTarget {
    remote: u64,
    key: u32,
    atomic: Option<ScriptedAtomic>,
}

impl ScriptedTarget {
    /// # Safety
    ///
    /// The union has the member of its operation.
    unsafe fn of(asked: &sys::ibv_send_wr) -> ScriptedTarget {
        if ![sys::IBV_WR_ATOMIC_FETCH_AND_ADD, sys::IBV_WR_ATOMIC_CMP_AND_SWP].contains(&asked.opcode) {
            // SAFETY: the caller's promise.
            let target = unsafe { asked.wr.rdma };
            return ScriptedTarget { remote: target.remote_addr, key: target.rkey, atomic: None };
        }
        // SAFETY: as above.
        let target = unsafe { asked.wr.atomic };
        let atomic = match asked.opcode {
            sys::IBV_WR_ATOMIC_FETCH_AND_ADD => ScriptedAtomic::Add(target.compare_add),
            _ => ScriptedAtomic::CompareSwap(target.compare_add, target.swap),
        };
        ScriptedTarget { remote: target.remote_addr, key: target.rkey, atomic: Some(atomic) }
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's structures.
    let mut state = state(unsafe { (*qp).context });
    let Some(pair) = state.pair(qp) else { return libc::EINVAL };
    let mut next = NonNull::new(first);
    while let Some(request) = next {
        // SAFETY: the caller's chain, its lists of pieces, and the member of the union that its operation has.
        let (asked, piece, target) = unsafe {
            let asked = request.as_ref();
            let piece = (asked.num_sge > 0).then(|| *asked.sg_list);
            (asked, piece, ScriptedTarget::of(asked))
        };
        let bytes = piece.map_or(0, |piece| piece.length as usize);
        let Some((address, is_gpu)) = piece.map_or(Some((0, false)), |piece| state.local(&piece)) else {
            return libc::EINVAL;
        };
        if target.atomic.is_some() && bytes != size_of::<u64>() {
            return libc::EINVAL;
        }
        let is_of_gpu = state.regions.get(&target.key).is_some_and(|region| region.mapping.is_some());
        let is_read = asked.opcode == sys::IBV_WR_RDMA_READ || target.atomic.is_some();
        let written = if is_read { 0 } else { bytes };
        let port = state.pairs[pair].port;
        *state.ports.written.entry(port).or_default() += written;
        let is = |flag: sys::ibv_send_flags| asked.send_flags & flag != 0;
        let packet = |offset: usize| {
            let packet = ScriptedPacket::AtPoster(address + offset, (written - offset).min(PACKET_BYTES));
            let is_in_request = is(sys::IBV_SEND_INLINE);
            (offset, if is_in_request { ScriptedPacket::Sent(packet.send()) } else { packet })
        };
        state.pairs[pair].requests.push_back(ScriptedRequest {
            number: asked.wr_id,
            is_signalled: is(sys::IBV_SEND_SIGNALED),
            is_fenced: is(sys::IBV_SEND_FENCE),
            reads_into: is_read.then_some((address, is_gpu)),
            is_of_gpu,
            bytes,
            atomic: target.atomic,
            remote: target.remote,
            key: target.key,
            packets: (0..written).step_by(PACKET_BYTES).map(packet).collect(),
            is_to_notify: asked.opcode == sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            is_read: false,
            is_told: false,
        });
        next = NonNull::new(asked.next);
    }
    0
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, most: c_int, into: *mut sys::ibv_wc) -> c_int {
    // SAFETY: the caller's structure.
    let mut state = state(unsafe { (*cq).context });
    let Some(completions) = state.completions.get_mut(&cq.addr()) else { return 0 };
    let count = completions.len().min(usize::try_from(most).unwrap_or(0));
    for (index, completion) in completions.drain(..count).enumerate() {
        // SAFETY: the caller has room for so many completions.
        unsafe { into.add(index).write(completion) };
    }
    count as c_int
}
