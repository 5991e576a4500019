//! The device's receives, which immediate data completes, and the channels that report this.

use std::collections::HashSet;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::calls::state;
use super::*;

/// The completion queues that have a channel, and their events.
#[derive(Default)]
pub(super) struct Channels {
    /// The address of each queue's channel, by the address of the queue.
    of_queues: HashMap<usize, usize>,
    /// Queues that will report their next completion.
    armed: HashSet<usize>,
    /// Queues with an event that was not taken yet.
    told: VecDeque<usize>,
}

impl Channels {
    pub(super) fn add(&mut self, queue: *mut sys::ibv_cq, channel: *mut sys::ibv_comp_channel) {
        self.of_queues.insert(queue.expose_provenance(), channel.expose_provenance());
    }

    pub(super) fn remove(&mut self, queue: usize) {
        self.of_queues.remove(&queue);
        self.armed.remove(&queue);
        self.told.retain(|told| *told != queue);
    }

    /// Notes that a receive has completed at a queue.
    fn tell(&mut self, queue: usize) {
        let Some(channel) = self.of_queues.get(&queue).filter(|_| self.armed.remove(&queue)) else { return };
        self.told.push_back(queue);
        let channel = std::ptr::with_exposed_provenance::<sys::ibv_comp_channel>(*channel);
        // SAFETY: a channel lives for as long as its queues.
        let readable = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
        rustix::io::write(readable, &1_u64.to_ne_bytes()).expect("a count that nothing has exhausted");
    }

    /// The next queue with an event at a channel.
    fn next(&mut self, channel: usize) -> Option<usize> {
        let is_of_channel = |queue: &usize| self.of_queues.get(queue) == Some(&channel);
        let index = self.told.iter().position(is_of_channel)?;
        self.told.remove(index)
    }
}

impl DeviceState {
    /// Completes a receive of the pair of this number. False if it has none.
    pub(super) fn use_receive(&mut self, number: u32) -> bool {
        // A pair that has ended receives nothing; the poster learns of the end in another way.
        let serves = |pair: &&mut ScriptedPair| pair.number == number && pair.is_receiving();
        let Some(pair) = self.pairs.iter_mut().find(serves) else { return true };
        let Some(left) = pair.receives.checked_sub(1) else { return false };
        pair.receives = left;
        let queue = pair.receive_queue;
        self.complete_receive(queue, number, sys::IBV_WC_SUCCESS);
        true
    }

    /// A pair that ends returns its receives.
    pub(super) fn flush_receives(&mut self, pair: usize) {
        let ScriptedPair { receive_queue, number, receives, .. } = &mut self.pairs[pair];
        let (queue, number) = (*receive_queue, *number);
        for _ in 0..std::mem::take(receives) {
            self.complete_receive(queue, number, sys::IBV_WC_WR_FLUSH_ERR);
        }
    }

    fn complete_receive(&mut self, queue: usize, number: u32, status: sys::ibv_wc_status) {
        let opcode = sys::IBV_WC_RECV_RDMA_WITH_IMM;
        let received = sys::ibv_wc { status, opcode, qp_num: number, ..Default::default() };
        self.completions.entry(queue).or_default().push_back(received);
        self.channels.tell(queue);
    }
}

pub(super) unsafe extern "C" fn create_comp_channel(
    context: *mut sys::ibv_context,
) -> *mut sys::ibv_comp_channel {
    let Ok(event) = eventfd(0, EventfdFlags::CLOEXEC) else { return std::ptr::null_mut() };
    Box::into_raw(Box::new(sys::ibv_comp_channel { context, fd: event.into_raw_fd(), refcnt: 0 }))
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    // SAFETY: made by `create_comp_channel`, and destroyed once.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: its own descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(channel.fd) });
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's structure, and its descriptor, which lives as long.
    let (context, readable) = unsafe { ((*channel).context, BorrowedFd::borrow_raw((*channel).fd)) };
    let mut state = state(context);
    let Some(told) = state.channels.next(channel.addr()) else {
        // The descriptor is readable again from the next event on.
        let _nothing = rustix::io::read(readable, &mut [0; 8]);
        return -1;
    };
    let told = std::ptr::with_exposed_provenance_mut::<sys::ibv_cq>(told);
    // SAFETY: the caller's pointers; the queue lives, since it is removed from here when it is destroyed.
    unsafe { (*cq, *cq_context) = (told, (*told).cq_context) };
    0
}

pub(super) unsafe extern "C" fn ack_cq_events(_: *mut sys::ibv_cq, _: c_uint) {}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, _: c_int) -> c_int {
    // SAFETY: the caller's structure.
    let mut state = state(unsafe { (*cq).context });
    state.channels.armed.insert(cq.addr());
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_recv_wr,
    _: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's structure.
    let mut state = state(unsafe { (*qp).context });
    let Some(pair) = state.pair(qp) else { return libc::EINVAL };
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller's chain.
        next = unsafe { (*next).next };
        state.pairs[pair].receives += 1;
    }
    0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::tests::connect_to;
    use super::*;
    use crate::mem::{Access, MemoryRegion, Streaming};
    use crate::transport::{
        Address, Endpoint, Flags, Inline, Listener, Offer, Operation, Transport, WorkRequest,
    };

    /// Enough bytes that two rails share the payload.
    const PAYLOAD_BYTES: usize = 41 * PACKET_BYTES;

    /// As many words as receives.
    const WORDS: u64 = 2 * DEPTH as u64;

    /// A payload and the word that announces it, to an owner that sleeps. The owner wakes once both have arrived,
    /// even if a part of the payload goes over another rail.
    #[test]
    fn an_owner_is_woken_once_the_word_and_all_that_it_announces_are_there() {
        for (rails, seed) in (0..40).map(|index| (1 + index % 2, index as u64)) {
            let device = Unordered::new(seed, false);
            let verbs = device.verbs_over(rails, DEPTH as usize, None);
            let mut listener = verbs.listen(&Address::Verbs(([127, 0, 0, 1], 0).into())).unwrap();
            assert!(listener.be_notified().unwrap());
            let access = [Access::REMOTE_WRITE, Access::REMOTE_WRITE | Access::RELAXED];
            let [word, payload] = access.map(|access| verbs.allocate(PAYLOAD_BYTES, access).unwrap());
            let grants = [&word, &payload].map(MemoryRegion::whole);
            let offer = || Offer { message: Vec::new(), grants: grants.to_vec() };
            let ([mut poster, mut owner], [granted, _]) =
                connect_to(&verbs, &mut listener, offer, Vec::new());
            let source = verbs.allocate(PAYLOAD_BYTES, Access::LOCAL).unwrap().whole();
            let mut told = 0;
            for round in 1..=WORDS {
                (0..PAYLOAD_BYTES / 8).for_each(|index| source.as_volatile().store_u64(index * 8, round));
                let (local, remote) = (source.clone(), granted[1]);
                let write = Operation::Write { local, remote, streaming: Streaming::Never };
                let announcement = Operation::WriteInline {
                    data: Inline::word(round),
                    remote: granted[0].slice(0, 8).unwrap(),
                };
                let mut batch =
                    [WorkRequest::unsignalled(0, write), WorkRequest::signalled(round, announcement)];
                batch[1].flags |= Flags::NOTIFY;
                poster.post(&batch).unwrap();
                let mut is_complete = false;
                while device.step() || !is_complete {
                    is_complete |= poster.poll().is_some_and(|completion| completion.result.is_ok());
                    if lock(&device.world.state).channels.told.is_empty() {
                        continue;
                    }
                    told += 1;
                    assert_eq!(word.as_volatile().load_u64(0), round, "seed {seed}");
                    let is_there = |index: usize| payload.as_volatile().load_u64(index * 8) == round;
                    assert!((0..PAYLOAD_BYTES / 8).all(is_there), "seed {seed}");
                    listener.wait(Duration::from_secs(3600));
                    owner.check().unwrap();
                    poster.check().unwrap();
                }
            }
            assert_eq!(told, WORDS, "each word has woken the owner");
        }
    }
}
