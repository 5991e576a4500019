//! Memory of the caller's, used where it lies.

use std::fmt;
use std::ptr::NonNull;

use super::{HostMemory, MemoryError};

/// Memory of the caller's that a [`Reader`](crate::node::Reader) or a [`Worker`](crate::Worker) is to use in place,
/// such as a tensor of another library. Over RDMA the device reads and writes it, over other transports this process;
/// no copy is made on the way.
///
/// ```
/// # use std::time::Duration;
/// # use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
/// # use slackline::{Address, ElementType, Shm, Table};
/// # let timeout = Duration::from_secs(10);
/// # let table = Table::flat(4, ElementType::F32)?;
/// # let mut publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
/// # let address = publisher.address().clone();
/// # let reading = std::thread::spawn(move || {
/// #     Reader::connect(Shm::new(), &address, ReaderOptions::default(), timeout)
/// # });
/// # while !reading.is_finished() {
/// #     publisher.poll(slackline::now());
/// # }
/// # let mut reader = reading.join().expect("no panic")?;
/// use slackline::CallerMemory;
/// let weights: &'static mut [u64] = vec![0; 2].leak(); // 16 bytes that a model computes with
/// let pointer = std::ptr::NonNull::from(weights).cast::<u8>();
/// // SAFETY: the memory is never freed, and nothing but the reader looks at it.
/// reader.use_memory(unsafe { CallerMemory::new(pointer, 16, ()) })?;
/// publisher.publish(&[7; 16], timeout)?;
/// reader.begin_refresh(0);
/// while reader.poll(slackline::now())?.is_none() {
///     publisher.poll(slackline::now()); // Here both live in one thread.
/// }
/// assert_eq!(reader.bytes()?.as_ptr(), pointer.as_ptr().cast_const());
/// assert_eq!(reader.bytes()?, [7; 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CallerMemory {
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Box<dyn Send + Sync>,
}

// SAFETY: the range may be used by any thread, as `new` asks.
unsafe impl Send for CallerMemory {}
// SAFETY: as above. Nothing can be done with it but to consume it.
unsafe impl Sync for CallerMemory {}

impl CallerMemory {
    /// `bytes` from `pointer` on, which must be a multiple of 8. `owner` is dropped once nothing uses the memory any
    /// more: neither a reader or worker, which may be given other memory or dropped, nor a request that is under way.
    /// It is any value that keeps the memory alive.
    ///
    /// # Safety
    /// Until `owner` is dropped the range is initialised memory that this process may read and write from any thread,
    /// and nothing else accesses it but as the call that it is given to says, and not while a GPU copies it,
    /// ([`Reader::use_memory`](crate::node::Reader::use_memory), [`Worker::use_memory`](crate::Worker::use_memory)).
    pub unsafe fn new(pointer: NonNull<u8>, bytes: usize, owner: impl Send + Sync + 'static) -> CallerMemory {
        CallerMemory { pointer, bytes, owner: Box::new(owner) }
    }

    /// The memory, to register.
    ///
    /// # Errors
    /// The length is 0 or more than an address space holds, or the address is no multiple of 8.
    pub(crate) fn into_host_memory(self) -> Result<HostMemory, MemoryError> {
        // SAFETY: the promise of `new`; readers and workers lend references as their calls say.
        unsafe { HostMemory::of_caller(self.pointer, self.bytes, self.owner) }
    }
}

impl fmt::Debug for CallerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
