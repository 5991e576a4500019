//! The wakers of a listener, one for each of its devices, which wake its sleeping owner: peers' requests with a
//! notice ring the waker of the device through which they arrive.
//!
//! A WRITE with immediate data uses up a receive of the queue pair that serves it, and completes there. The
//! completions of many pairs go to one queue, and all queues of a device share one channel, and a thread can wait for
//! the channel's descriptor: to wake up costs calls only for the queues with events, however many peers are silent.
//!
//! Each pair has its own receives, and a peer uses no more than were announced to it: they are posted again before it
//! is told. A request that arrives without a posted receive delays its connection, and finally breaks it. If the
//! receives were shared, a peer that uses too many would break the connections of the others.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use super::device::{Device, lock};
use super::queue_pair::{CompletionQueue, POLLED_AT_ONCE, QueuePair};
use super::sys;

/// The length of a sleep if the device would end a wait at once.
const NAP: Duration = Duration::from_millis(1);

/// Completions for which a queue has room, if the device supports so many: the receives of 64 pairs.
const QUEUE_ENTRIES: u32 = 64 * super::queue_pair::RECEIVES as u32;

/// A completion channel.
pub(super) struct CompletionChannel {
    device: Arc<Device>,
    raw: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: the library's calls on a channel may come from any thread, and it is destroyed once.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    fn new(device: &Arc<Device>) -> io::Result<Arc<CompletionChannel>> {
        // SAFETY: the device is open.
        let raw = unsafe { (device.library.create_comp_channel)(device.context()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = CompletionChannel { device: Arc::clone(device), raw };
        rustix::io::ioctl_fionbio(channel.events(), true)?;
        Ok(Arc::new(channel))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.raw.as_ptr()
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and with it this descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The serial of the next queue with an event, if there is one. A queue raises one event, until it is armed.
    fn next(&self) -> Option<usize> {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let get = self.device.library.get_cq_event;
        // SAFETY: the channel lives, and both pointers are valid.
        if unsafe { get(self.raw(), &raw mut queue, &raw mut context) } != 0 {
            return None;
        }
        // SAFETY: the queue of an unacknowledged event lives: destroying the queue waits for the acknowledgement.
        unsafe { (self.device.library.ack_cq_events)(queue, 1) };
        Some(context.addr())
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            // SAFETY: its completion queues hold it, so it is destroyed last, and once.
            let errno = unsafe { (self.device.library.destroy_comp_channel)(self.raw()) };
            if errno != 0 {
                tracing::warn!(
                    device = self.device.name,
                    errno,
                    "a completion channel could not be destroyed"
                );
            }
        }
    }
}

/// The waker of one device of a listener.
pub(super) struct Waker {
    channel: Arc<CompletionChannel>,
    /// Completions for which each queue has room.
    entries: u32,
    queues: Mutex<Vec<WakerQueue>>,
}

/// A completion queue, and the pairs whose completions go there, by their numbers.
struct WakerQueue {
    completions: Arc<CompletionQueue>,
    pairs: HashMap<u32, Arc<QueuePair>>,
}

impl WakerQueue {
    /// Takes the completions, and counts the used receives of each pair.
    fn take(&self) {
        // The number of a pair, its used receives, and whether the pair has ended.
        let mut used: SmallVec<[(u32, u16, bool); POLLED_AT_ONCE]> = SmallVec::new();
        let mut completions = [sys::ibv_wc::default(); POLLED_AT_ONCE];
        while let Ok(taken) = self.completions.poll(&mut completions)
            && !taken.is_empty()
        {
            for completion in taken {
                let is_over = completion.status != sys::IBV_WC_SUCCESS;
                match used.iter_mut().find(|(number, ..)| *number == completion.qp_num) {
                    Some((_, count, was_over)) => (*count, *was_over) = (*count + 1, *was_over | is_over),
                    None => used.push((completion.qp_num, 1, is_over)),
                }
            }
        }
        for (number, count, is_over) in &used {
            // A pair that has ended returns all its receives, and needs none. Its owner learns of the end from the
            // device or from the peer.
            if let (Some(pair), false) = (self.pairs.get(number), is_over) {
                pair.count_used(*count);
            }
        }
    }
}

impl Waker {
    /// `most` is the number of completions for which a queue of the device has room.
    pub(super) fn new(device: &Arc<Device>, most: u32) -> io::Result<Arc<Waker>> {
        let (channel, entries) = (CompletionChannel::new(device)?, QUEUE_ENTRIES.min(most));
        Ok(Arc::new(Waker { channel, entries, queues: Mutex::default() }))
    }

    /// A queue with room for the completions of one more pair, which has so many receives.
    pub(super) fn queue(&self, receives: u16) -> io::Result<Arc<CompletionQueue>> {
        let pairs = (self.entries / u32::from(receives.max(1))).max(1) as usize;
        let mut queues = lock(&self.queues);
        let device = &self.channel.device;
        // Each pair of a queue holds the queue, until the pair is destroyed.
        let has_room = |queue: &&WakerQueue| {
            let is_over = device.broken_queue(queue.completions.serial).is_some();
            Arc::strong_count(&queue.completions) <= pairs && !is_over
        };
        if let Some(queue) = queues.iter().find(has_room) {
            return Ok(Arc::clone(&queue.completions));
        }
        let entries = self.entries.max(receives.into());
        let completions = Arc::new(CompletionQueue::new(device, entries, Some(Arc::clone(&self.channel)))?);
        completions.arm();
        queues.push(WakerQueue { completions: Arc::clone(&completions), pairs: HashMap::new() });
        Ok(completions)
    }

    /// Adds a pair that serves no peer yet, and that was made with a queue of this waker.
    pub(super) fn add(&self, pair: &Arc<QueuePair>) {
        let mut queues = lock(&self.queues);
        if let Some(queue) =
            queues.iter_mut().find(|queue| queue.completions.serial == pair.completions.serial)
        {
            // Completions that are left from an earlier pair with the same number are not this pair's.
            queue.take();
            queue.pairs.insert(pair.number(), Arc::clone(pair));
        }
    }

    /// Removes a pair: when this returns, the waker no longer holds it.
    pub(super) fn remove(&self, pair: &Arc<QueuePair>) {
        for queue in lock(&self.queues).iter_mut() {
            queue.pairs.retain(|_, known| !Arc::ptr_eq(known, pair));
        }
    }

    /// Arms the queues again that raised an event. True if there were any since the last call.
    fn answer(&self) -> bool {
        // Each queue raises one event, until it is armed here again: further events are for the next call, so that
        // peers which continue to send do not keep this call from ending.
        let most = lock(&self.queues).len();
        let mut has_some = false;
        for serial in std::iter::from_fn(|| self.channel.next()).take(most) {
            // True even if another thread, which made a pair, has already taken the completions.
            has_some = true;
            let queues = lock(&self.queues);
            if let Some(queue) = queues.iter().find(|queue| queue.completions.serial == serial) {
                // Armed first, so that completions that arrive after `take` raise an event.
                queue.completions.arm();
                queue.take();
            }
        }
        has_some
    }
}

/// Sleeps until a request with a notice for one of these wakers is complete, or one of `others` can be read, but no
/// longer than `timeout`. A request that completed since the last call ends the sleep at once.
pub(super) fn wait(wakers: &[Arc<Waker>], others: &[BorrowedFd<'_>], timeout: Duration) {
    // Every waker must answer, even if another one already had events.
    let answer = || wakers.iter().filter(|waker| waker.answer()).count() > 0;
    if answer() {
        return;
    }
    let events = wakers.iter().map(|waker| waker.channel.events()).chain(others.iter().copied());
    let sources = events.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
    let mut sources: SmallVec<[PollFd<'_>; 4]> = sources.collect();
    // A timeout that the system cannot represent never ends.
    let limit = rustix::time::Timespec::try_from(timeout).ok();
    // If the call is interrupted or refused, the wait is only shorter.
    let _ready = rustix::event::poll(&mut sources, limit.as_ref());
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    if sources.iter().take(wakers.len()).any(|source| source.revents().intersects(gone)) {
        // A device is gone, which the owner notices elsewhere: this ends every wait from now on at once.
        std::thread::sleep(timeout.min(NAP));
    }
    answer();
}
