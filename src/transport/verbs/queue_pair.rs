//! Queue pairs and their completion queues.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use super::arrival_order::{ArrivalOrder, ArrivalOrderSource};
use super::device::{self, Device, QueuePairError};
use super::hello::{Pair, PortAddress};
use super::path::PathSettings;
use super::region::ProtectionDomain;
use super::sys;
use super::waker::{CompletionChannel, Waker};
use crate::mem::Access;

/// Number of retries if the other side has no receive posted (RNR). 7 would retry without end.
const RECEIVER_RETRIES: u8 = 3;
/// The code for the time that the other side must wait before such a retry: 10 ms.
const RECEIVER_TIMER: u8 = 20;
/// Receives that are posted for a peer whose requests notify this side, if the device supports so many. They are
/// posted again, and the peer is told, every 20 ms or so.
pub(super) const RECEIVES: u16 = 512;
/// Receives that are posted in one call.
const RECEIVES_AT_ONCE: usize = 64;
/// Routers that a packet may pass.
const HOPS: u8 = 64;

/// Returns a number that identifies a queue pair, or a completion queue, among all of this process, even if the
/// device reuses its numbers.
fn next_serial() -> usize {
    static SERIALS: AtomicUsize = AtomicUsize::new(1);
    SERIALS.fetch_add(1, Ordering::Relaxed)
}

/// The completion queue of one queue pair, or of several that serve peers.
pub(super) struct CompletionQueue {
    device: Arc<Device>,
    raw: NonNull<sys::ibv_cq>,
    /// The device returns it with events of the queue. If the queue has a single pair, the pair has the same serial.
    pub(super) serial: usize,
    /// The channel that reports completions, if this is wanted.
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: the library's calls on a completion queue may come from any thread, and it is destroyed once.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above: "verbs are thread safe".
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(
        device: &Arc<Device>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> io::Result<CompletionQueue> {
        let serial = next_serial();
        let entries = i32::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let raw_channel = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw());
        // The device returns it with events of the queue; it is never dereferenced.
        let context = std::ptr::without_provenance_mut(serial);
        // SAFETY: the device is open, and the channel, if there is one, lives as long as the queue.
        let raw = unsafe { (device.library.create_cq)(device.context(), entries, context, raw_channel, 0) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(CompletionQueue { device: Arc::clone(device), raw, serial, _channel: channel })
    }

    /// Makes the device report the next completion to the channel.
    pub(super) fn arm(&self) {
        // SAFETY: the completion queue lives.
        let errno = unsafe { sys::inline::req_notify_cq(self.raw.as_ptr(), false) };
        if errno != 0 {
            // An owner that waits wakes up when its timeout ends.
            tracing::warn!(errno, "the RDMA device does not tell of what is to be noticed");
        }
    }

    /// Takes as many completions as are ready and fit. After an error the queue is unusable.
    #[inline]
    pub(super) fn poll<'a>(
        &self,
        into: &'a mut [sys::ibv_wc; POLLED_AT_ONCE],
    ) -> io::Result<&'a [sys::ibv_wc]> {
        // SAFETY: the completion queue lives, and there is room for as many as are asked for.
        let count =
            unsafe { sys::inline::poll_cq(self.raw.as_ptr(), POLLED_AT_ONCE as i32, into.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) => Ok(&into[..count.min(POLLED_AT_ONCE)]),
            Err(_) => Err(io::Error::from_raw_os_error(-count)),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            // SAFETY: its queue pairs hold it, so they were destroyed before; it is destroyed once.
            let errno = unsafe { (self.device.library.destroy_cq)(self.raw.as_ptr()) };
            if errno != 0 {
                tracing::warn!(device = self.device.name, errno, "a completion queue could not be destroyed");
            }
            // No event of it remains to be taken, and no owner asks for the events that were taken.
            self.device.take_broken(self.serial);
        }
    }
}

/// A reliably connected queue pair. Its completion queue has room for all of its requests, and for the requests of
/// all other pairs whose completions go there: it cannot overrun.
pub(super) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    /// Longest inline data of requests.
    pub(super) inline_bytes: u32,
    /// The number of its first packet (PSN).
    first_packet: u32,
    /// The device returns it with events of the pair.
    serial: usize,
    /// Receives of this pair, used up or not.
    pub(super) receives: u16,
    /// Receives that were used up, until they are posted again and the peer is told.
    used: AtomicU16,
    is_destroyed: bool,
    // Dropped in this order, after the queue pair itself.
    pub(super) completions: Arc<CompletionQueue>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the library's calls on a queue pair may come from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above: "verbs are thread safe". Its other fields are atomic or do not change.
unsafe impl Sync for QueuePair {}

/// The path from this side of a connection to the other, as this side knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePairPath {
    /// This side's port, counted from 1.
    pub(super) port: u8,
    /// This side's entry in the port's table of addresses.
    pub(super) gid_index: u8,
    /// Largest packet that both sides carry, in bytes.
    pub(super) mtu: u16,
    pub(super) settings: PathSettings,
    /// This side.
    pub(super) ours: PortAddress,
    /// The other side.
    pub(super) theirs: PortAddress,
}

impl QueuePair {
    /// A pair that posts, with room for `depth` requests. Its first packet has a random number unless `first_packet`
    /// is given.
    pub(super) fn to_post(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        inline_bytes: u32,
        first_packet: Option<u32>,
    ) -> io::Result<QueuePair> {
        let mut sizes =
            sys::ibv_qp_cap { max_send_wr: depth, max_inline_data: inline_bytes, ..Default::default() };
        sizes.max_send_sge = 1;
        let completions = Arc::new(CompletionQueue::new(&domain.device, depth, None)?);
        let serial = completions.serial;
        QueuePair::new(domain, sizes, completions, serial, first_packet)
    }

    /// A pair that serves a peer. If there is a waker, the given number of the peer's requests can ring it.
    pub(super) fn to_serve(
        domain: &Arc<ProtectionDomain>,
        waker: Option<(&Arc<Waker>, u16)>,
    ) -> io::Result<QueuePair> {
        let (completions, receives) = match waker {
            Some((waker, receives)) => (waker.queue(receives)?, receives.into()),
            None => (Arc::new(CompletionQueue::new(&domain.device, 1, None)?), 0),
        };
        let serial = if waker.is_some() { next_serial() } else { completions.serial };
        // Some devices do not create a queue without entries.
        let mut sizes = sys::ibv_qp_cap { max_send_wr: 1, max_recv_wr: receives, ..Default::default() };
        (sizes.max_send_sge, sizes.max_recv_sge) = (1, receives.min(1));
        QueuePair::new(domain, sizes, completions, serial, None)
    }

    fn new(
        domain: &Arc<ProtectionDomain>,
        sizes: sys::ibv_qp_cap,
        completions: Arc<CompletionQueue>,
        serial: usize,
        first_packet: Option<u32>,
    ) -> io::Result<QueuePair> {
        let random = || getrandom::u32().map_err(|error| io::Error::other(error.to_string()));
        let first_packet = first_packet.map_or_else(random, Ok)? & 0xFF_FFFF;
        let library = domain.device.library;
        let mut attributes = sys::ibv_qp_init_attr {
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            qp_type: sys::IBV_QPT_RC,
            // The device returns it with events of the pair; it is never dereferenced.
            qp_context: std::ptr::without_provenance_mut(serial),
            cap: sizes,
            ..Default::default()
        };
        // SAFETY: the domain and the completion queue live; `attributes` is initialised.
        let create =
            |attributes: &mut sys::ibv_qp_init_attr| unsafe { (library.create_qp)(domain.raw(), attributes) };
        let mut raw = create(&mut attributes);
        let mut inline_bytes = sizes.max_inline_data;
        while raw.is_null() && inline_bytes > 0 {
            // A device that refuses so much inline data may accept less: down to a word, and then none.
            inline_bytes = if inline_bytes > 8 { (inline_bytes / 2).max(8) } else { 0 };
            attributes.cap = sys::ibv_qp_cap { max_inline_data: inline_bytes, ..sizes };
            raw = create(&mut attributes);
        }
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let inline_bytes = attributes.cap.max_inline_data;
        Ok(QueuePair {
            raw,
            inline_bytes,
            first_packet,
            serial,
            receives: sizes.max_recv_wr as u16,
            used: AtomicU16::new(0),
            is_destroyed: false,
            completions,
            domain: Arc::clone(domain),
        })
    }

    /// Returns the numbers of this pair that the other side needs.
    pub(super) fn pair(&self) -> Pair {
        Pair { number: self.number(), first_packet: self.first_packet }
    }

    /// The device's number of this pair, which another pair may get once this one is destroyed.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn modify(&self, mut attributes: sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair lives; `attributes` is initialised.
        let errno = unsafe {
            (self.domain.device.library.modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask as i32)
        };
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }

    /// From new to ready to receive requests of `peer`, with these rights.
    pub(super) fn serve(&self, path: &QueuePairPath, peer: &Pair, access: Access) -> io::Result<()> {
        let right = |right, flag| if access.contains(right) { flag } else { 0 };
        self.modify(
            sys::ibv_qp_attr {
                qp_state: sys::IBV_QPS_INIT,
                pkey_index: path.settings.pkey_index,
                port_num: path.port,
                qp_access_flags: right(Access::REMOTE_READ, sys::IBV_ACCESS_REMOTE_READ)
                    | right(Access::REMOTE_WRITE, sys::IBV_ACCESS_REMOTE_WRITE)
                    | right(Access::REMOTE_ATOMIC, sys::IBV_ACCESS_REMOTE_ATOMIC),
                ..Default::default()
            },
            sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS,
        )?;
        // The peer may use them as soon as this side can receive.
        self.post_receives(self.receives).map_err(|(_, error)| error)?;
        self.modify(
            sys::ibv_qp_attr {
                qp_state: sys::IBV_QPS_RTR,
                ah_attr: address(path),
                path_mtu: device::mtu_of_bytes(path.mtu)
                    .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?,
                dest_qp_num: peer.number,
                rq_psn: peer.first_packet,
                // As many as the other side may have under way, but no more than this device can answer.
                max_dest_rd_atomic: path.ours.reads_served.min(path.theirs.reads_posted),
                min_rnr_timer: RECEIVER_TIMER,
                ..Default::default()
            },
            sys::IBV_QP_STATE
                | sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
                | sys::IBV_QP_MAX_DEST_RD_ATOMIC
                | sys::IBV_QP_MIN_RNR_TIMER,
        )
    }

    /// From new to ready to send to `peer`.
    pub(super) fn connect(&self, path: &QueuePairPath, peer: &Pair) -> io::Result<()> {
        self.serve(path, peer, Access::LOCAL)?;
        self.make_ready_to_send(path)
    }

    /// From ready to receive to ready to send.
    pub(super) fn make_ready_to_send(&self, path: &QueuePairPath) -> io::Result<()> {
        self.modify(
            sys::ibv_qp_attr {
                qp_state: sys::IBV_QPS_RTS,
                timeout: path.settings.timeout,
                retry_cnt: path.settings.retries,
                rnr_retry: RECEIVER_RETRIES,
                sq_psn: self.first_packet,
                max_rd_atomic: path.ours.reads_posted.min(path.theirs.reads_served),
                ..Default::default()
            },
            sys::IBV_QP_STATE
                | sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Queries whether the device writes the peer's data through this pair to memory in order. Devices answer for a
    /// pair that is ready to send.
    pub(super) fn ask_arrival_order(&self) -> ArrivalOrder {
        let Some(ask) = self.domain.device.library.query_qp_data_in_order else {
            return ArrivalOrder { in_order: false, source: ArrivalOrderSource::OldLibrary };
        };
        // SAFETY: the queue pair lives. Without flags the answer is 1 or 0.
        let in_order = unsafe { ask(self.raw.as_ptr(), sys::IBV_WR_RDMA_WRITE, 0) == 1 };
        ArrivalOrder { in_order, source: ArrivalOrderSource::Driver }
    }

    /// Ends the pair: requests under way are flushed, and come back as completions in error.
    pub(super) fn end(&self) {
        let attributes = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
        // If the pair has already ended, or was never connected, no request is left to flush.
        let _over = self.modify(attributes, sys::IBV_QP_STATE);
    }

    /// Resets the pair to its first state: it accepts no more packets and touches no memory, and requests under way
    /// get no completion. False if the device fails to reset it.
    pub(super) fn reset(&self) -> bool {
        let attributes = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RESET, ..Default::default() };
        self.modify(attributes, sys::IBV_QP_STATE).is_ok()
    }

    /// Queries the device whether the pair has ended, and how: either it is in error, since the peer broke a rule or
    /// did not answer, or the device can no longer report its state.
    pub(super) fn ask_broken(&self) -> Option<QueuePairError> {
        let (mut attributes, mut made_with) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
        // SAFETY: the queue pair lives, and both pointers are valid.
        let errno = unsafe {
            let ask = self.domain.device.library.query_qp;
            ask(self.raw.as_ptr(), &raw mut attributes, sys::IBV_QP_STATE as i32, &raw mut made_with)
        };
        match errno {
            0 => (attributes.qp_state == sys::IBV_QPS_ERR).then_some(QueuePairError::Refused),
            _ => Some(QueuePairError::Failed),
        }
    }

    /// Returns how the pair ended, if the device has reported its end since the last call.
    pub(super) fn take_broken(&self) -> Option<QueuePairError> {
        let device = &self.domain.device;
        let is_shared = self.completions.serial != self.serial;
        let of_queue = is_shared.then(|| device.broken_queue(self.completions.serial)).flatten();
        device.take_broken(self.serial).max(of_queue)
    }

    /// Posts so many receives. They carry no data: the peer writes the data that they announce. An error has the
    /// number of receives that are not posted.
    fn post_receives(&self, mut count: u16) -> Result<(), (u16, io::Error)> {
        while count > 0 {
            let mut receives = [sys::ibv_recv_wr::default(); RECEIVES_AT_ONCE];
            let length = RECEIVES_AT_ONCE.min(count.into());
            // All links are derived from this pointer, and no reference to the array is made after it.
            let first = receives.as_mut_ptr();
            for index in 1..length {
                // SAFETY: both lie inside the array, which is longer than `length - 1`. The last one's link is null.
                unsafe { (*first.add(index - 1)).next = first.add(index) };
            }
            let mut bad = std::ptr::null_mut();
            // SAFETY: the queue pair lives; the chain was linked just now in an array that outlives the call, and names
            // no memory.
            let errno = unsafe { sys::inline::post_recv(self.raw.as_ptr(), first, &raw mut bad) };
            if errno != 0 {
                // The receives before the one that the device names are posted.
                let posted = bad.addr().wrapping_sub(first.addr()) / size_of::<sys::ibv_recv_wr>();
                let posted = if posted < length { posted as u16 } else { 0 };
                return Err((count - posted, io::Error::from_raw_os_error(errno)));
            }
            count -= length as u16;
        }
        Ok(())
    }

    /// Notes that the peer has used up so many receives.
    pub(super) fn count_used(&self, used: u16) {
        self.used.fetch_add(used, Ordering::Relaxed);
    }

    /// Posts the receives again that the peer has used up, once they are enough for a message to the peer, and
    /// returns their number, which the message must have. Receives that the device does not accept still count as
    /// used up.
    pub(super) fn renew_receives(&self) -> Option<u16> {
        let is_many = self.receives > 0 && self.used.load(Ordering::Relaxed) >= self.receives.div_ceil(2);
        let used = is_many.then(|| self.used.swap(0, Ordering::Relaxed))?;
        let Err((left, error)) = self.post_receives(used) else { return Some(used) };
        tracing::debug!(%error, left, "receives could not be posted");
        self.count_used(left);
        Some(used - left).filter(|posted| *posted > 0)
    }

    /// True in a forked child, which must not use the pair.
    pub(super) fn is_inherited(&self) -> bool {
        self.domain.device.is_inherited()
    }

    /// The number that identifies it among all pairs of this process.
    #[cfg(test)]
    pub(super) fn serial(&self) -> usize {
        self.serial
    }

    /// Posts requests as one chain, with one doorbell. An error has the number of requests that were posted
    /// nevertheless.
    ///
    /// # Safety
    ///
    /// Each request's `next` is null. Each list of pieces can be read during
    /// the call, and names memory that is registered in this queue pair's domain and stays so until the request has
    /// completed or the queue pair is gone.
    #[inline]
    pub(super) unsafe fn post(&self, requests: &mut [sys::ibv_send_wr]) -> Result<(), usize> {
        let mut bad = std::ptr::null_mut();
        // All links are derived from this pointer, and no reference to the requests is made after it.
        let first = requests.as_mut_ptr();
        for index in 1..requests.len() {
            // SAFETY: both lie inside the slice.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        // SAFETY: the queue pair lives, and the rest is the caller's promise.
        let errno = unsafe { sys::inline::post_send(self.raw.as_ptr(), first, &raw mut bad) };
        if errno == 0 {
            return Ok(());
        }
        let posted = (bad.addr().saturating_sub(first.addr())) / size_of::<sys::ibv_send_wr>();
        // A provider that names no request may have taken all of them before it failed.
        Err(if bad.is_null() { requests.len() } else { posted.min(requests.len()) })
    }
}

/// Completions that are taken in one call.
pub(super) const POLLED_AT_ONCE: usize = 16;

fn address(path: &QueuePairPath) -> sys::ibv_ah_attr {
    let mut address = sys::ibv_ah_attr {
        port_num: path.port,
        dlid: path.theirs.lid,
        sl: path.settings.service_level,
        ..Default::default()
    };
    // The first half of an address is its subnet. If the two subnets differ, a router is on the path.
    let is_routed = path.ours.gid[..8] != path.theirs.gid[..8];
    let needs_global_route = path.ours.needs_global_route || path.theirs.needs_global_route;
    if !path.ours.is_infiniband || needs_global_route || is_routed {
        address.is_global = 1;
        address.grh.dgid = sys::ibv_gid { raw: path.theirs.gid };
        address.grh.sgid_index = path.gid_index;
        address.grh.hop_limit = HOPS;
        address.grh.traffic_class = path.settings.traffic_class;
    }
    address
}

impl QueuePair {
    /// Destroys the pair, which must not be used afterwards. False if that failed: the device may continue to use the
    /// memory of its requests.
    pub(super) fn destroy(&mut self) -> bool {
        if self.domain.device.is_inherited() || std::mem::replace(&mut self.is_destroyed, true) {
            return true;
        }
        // SAFETY: it is destroyed once, as noted just now. When the call returns in success the device no longer
        // touches memory for it, and no event of it remains to be taken.
        let errno = unsafe { (self.domain.device.library.destroy_qp)(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::warn!(device = self.domain.device.name, errno, "a queue pair could not be destroyed");
        }
        errno == 0
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Locks that the parent's threads held at the fork are never released in the child.
            return;
        }
        self.destroy();
        // No event of it remains to be taken, and no owner asks for the events that were taken.
        self.domain.device.take_broken(self.serial);
    }
}
