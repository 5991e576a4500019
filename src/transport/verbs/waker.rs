//! The waker of a listener, which wakes its sleeping owner: peers' requests that are to be noticed ring it.
//!
//! A WRITE with immediate data uses up a receive of the queue pair that serves it, and completes there. The completion
//! queues of all such pairs share one channel, whose descriptor a thread can wait for. A peer spends no more receives
//! than it was told of: one that arrives where none is posted would hold up its connection, and in the end break it.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use super::device::{Device, lock};
use super::queue_pair::QueuePair;
use super::sys;

/// Instead of a sleep that the device ends at once.
const NAP: Duration = Duration::from_millis(1);

/// A completion channel, and the queue pairs whose completions it tells of.
pub(super) struct Waker {
    device: Arc<Device>,
    channel: NonNull<sys::ibv_comp_channel>,
    pairs: Mutex<Vec<Arc<QueuePair>>>,
}

// SAFETY: the library's calls on a channel may come from any thread, and it is destroyed once.
unsafe impl Send for Waker {}
// SAFETY: as above.
unsafe impl Sync for Waker {}

impl Waker {
    pub(super) fn new(device: &Arc<Device>) -> io::Result<Arc<Waker>> {
        // SAFETY: the device is open.
        let channel = unsafe { (device.library.create_comp_channel)(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let waker = Waker { device: Arc::clone(device), channel, pairs: Mutex::default() };
        rustix::io::ioctl_fionbio(waker.events(), true)?;
        Ok(Arc::new(waker))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.channel.as_ptr()
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and with it this descriptor.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Waits for this pair, too. It was made with this waker.
    pub(super) fn add(&self, pair: &Arc<QueuePair>) {
        lock(&self.pairs).push(Arc::clone(pair));
    }

    /// Waits for it no longer: when this returns, the waker does not hold the pair any more.
    pub(super) fn remove(&self, pair: &Arc<QueuePair>) {
        lock(&self.pairs).retain(|known| !Arc::ptr_eq(known, pair));
    }

    /// Sleeps until a request that is to be noticed is done, or one of `others` can be read, but no longer than
    /// `timeout`. What was done since the last call ends it at once.
    pub(super) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        if self.answer() {
            return;
        }
        let events = self.events();
        let mut sources: SmallVec<[PollFd<'_>; 4]> = SmallVec::new();
        sources.push(PollFd::new(&events, PollFlags::IN));
        sources.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        // What is longer than the system can count is for ever.
        let limit = rustix::time::Timespec::try_from(timeout).ok();
        // Interrupted or refused, it is only a shorter wait.
        let _ready = rustix::event::poll(&mut sources, limit.as_ref());
        if sources[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            // The device is gone, which its owner finds out elsewhere: this ends every wait from now on.
            std::thread::sleep(timeout.min(NAP));
        }
        self.answer();
    }

    /// Asks to be told of the next request of each peer; whether there were some since the last time.
    fn answer(&self) -> bool {
        let pairs = lock(&self.pairs);
        self.take_events(&pairs);
        // Each is to be asked, whatever the others say.
        pairs.iter().fold(false, |any, pair| any | pair.renew_receives())
    }

    fn take_events(&self, pairs: &[Arc<QueuePair>]) {
        loop {
            let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            let get = self.device.library.get_cq_event;
            // SAFETY: the channel lives, and both pointers are valid.
            if unsafe { get(self.raw(), &raw mut queue, &raw mut context) } != 0 {
                return;
            }
            // SAFETY: the queue of an event that was not acknowledged yet lives: destroying it waits for that.
            unsafe { (self.device.library.ack_cq_events)(queue, 1) };
            if let Some(pair) = pairs.iter().find(|pair| pair.serial() == context.addr()) {
                pair.was_told_of_receives();
            }
        }
    }
}

impl Drop for Waker {
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
