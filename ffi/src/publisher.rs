//! The publisher: see [`slackline::weights::Publisher`].

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use slackline::gpu::{GpuError, GpuMemory, GpuSlice, GpuStream, Publishing as Copying};
use slackline::internals::mem::{Streaming, VolatileSlice};
use slackline::internals::node::Backoff;
use slackline::weights::{
    BackgroundPublisher, Draft, Publication, Publisher, PublisherOptions, ReaderStatus,
};
use slackline::{Address, Error, Named, Table, Version, VersionTag, now};

use crate::error::{Failure, slackline_status};
use crate::fabric::{NamedFabric, fabric};
use crate::gpu::on_gpu;
use crate::handle::{Handle, Out, OutArray, call, create, destroy, lend_text, opaque, slice, with};
use crate::options::{self, slackline_publisher_options, slackline_tensor};
use crate::sized::{SizedOut, set_default, sized_or_default};
use crate::status::slackline_publisher_status;
use crate::table::{OutRange, range_of};

/// Publishes versions of a table that its owner made itself. Unless `background` was set in its options, it has no
/// thread that looks after readers: it does while `slackline_publisher_progress`, `serve`, `wait` or `publish` is
/// called, which must be more often than the lease.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_publisher(Handle<Publishing>);

/// A publisher and its address as C reads it.
pub(crate) struct Publishing {
    publisher: Looked,
    /// The tag of the next version.
    pub(crate) tag: VersionTag,
    address: CString,
    /// The record that was lent last.
    publication: CString,
    /// The version that GPUs still copy.
    copying: Option<Copying>,
}

/// A publisher whose readers its calls look after, or a thread.
enum Looked {
    ByCalls(Box<Publisher<NamedFabric>>),
    ByThread(BackgroundPublisher<NamedFabric>, Option<Draft<NamedFabric>>),
}

impl Looked {
    fn publish(&mut self, bytes: &[u8], tag: VersionTag, timeout: Duration) -> Result<Version, Error> {
        self.expect_length(bytes)?;
        match self {
            Looked::ByCalls(publisher) => publisher.publish_tagged(bytes, tag, timeout),
            Looked::ByThread(publisher, draft) => {
                // As the other does, it writes over memory that was lent.
                *draft = None;
                publisher.publish(bytes, tag, timeout)
            }
        }
    }

    fn publish_recorded(
        &mut self,
        bytes: &[u8],
        tag: VersionTag,
        timeout: Duration,
    ) -> Result<Publication, Error> {
        self.expect_length(bytes)?;
        let source = VolatileSlice::from_ref(bytes);
        match self {
            Looked::ByCalls(publisher) => {
                publisher.publish_begin(timeout)?.copy_from(source, Streaming::ByLength);
                publisher.publish_commit_recorded(tag)
            }
            Looked::ByThread(publisher, draft) => {
                *draft = None;
                let mut next = publisher.draft(timeout)?;
                next.memory()?.copy_from(source, Streaming::ByLength);
                next.commit_recorded(tag)
            }
        }
    }

    /// Fails if these are not the bytes of a version, before the begun version is given up for them.
    fn expect_length(&self, bytes: &[u8]) -> Result<(), Error> {
        let expected = match self {
            Looked::ByCalls(publisher) => publisher.table().bytes() as usize,
            Looked::ByThread(publisher, _) => publisher.bytes(),
        };
        if bytes.len() == expected {
            Ok(())
        } else {
            Err(Error::Length { given: bytes.len(), expected, unit: "bytes" })
        }
    }

    fn begin(&mut self, timeout: Duration) -> Result<(*mut u8, usize), Error> {
        let memory = match self {
            Looked::ByCalls(publisher) => publisher.publish_begin(timeout)?,
            Looked::ByThread(publisher, draft) => match draft {
                Some(draft) => draft.memory()?,
                None => draft.insert(publisher.draft(timeout)?).memory()?,
            },
        };
        Ok((memory.as_ptr(), memory.len()))
    }

    fn commit(&mut self, tag: VersionTag) -> Result<Version, Error> {
        match self {
            Looked::ByCalls(publisher) => publisher.publish_commit_tagged(tag),
            Looked::ByThread(_, draft) => copied(draft)?.commit(tag),
        }
    }

    fn commit_recorded(&mut self, tag: VersionTag) -> Result<Publication, Error> {
        match self {
            Looked::ByCalls(publisher) => publisher.publish_commit_recorded(tag),
            Looked::ByThread(_, draft) => copied(draft)?.commit_recorded(tag),
        }
    }

    fn abort(&mut self) {
        match self {
            Looked::ByCalls(publisher) => publisher.publish_abort(),
            Looked::ByThread(_, draft) => *draft = None,
        }
    }

    /// Looks after the readers once, if no thread does; true if anything happened.
    fn progress(&mut self) -> bool {
        match self {
            Looked::ByCalls(publisher) => publisher.poll(now()),
            Looked::ByThread(..) => false,
        }
    }

    fn readers(&self) -> Vec<ReaderStatus> {
        match self {
            Looked::ByCalls(publisher) => publisher.readers(),
            Looked::ByThread(publisher, _) => publisher.readers(),
        }
    }

    fn joined(&self) -> u64 {
        match self {
            Looked::ByCalls(publisher) => publisher.joined(),
            Looked::ByThread(publisher, _) => publisher.joined(),
        }
    }

    fn table(&self) -> Table {
        match self {
            Looked::ByCalls(publisher) => publisher.table().clone(),
            Looked::ByThread(publisher, _) => publisher.table(),
        }
    }

    fn status(&self) -> slackline_publisher_status {
        let (version, epoch) = match self {
            Looked::ByCalls(publisher) => (publisher.version(), publisher.epoch()),
            Looked::ByThread(publisher, _) => (publisher.version(), publisher.epoch()),
        };
        slackline_publisher_status {
            size: size_of::<slackline_publisher_status>(),
            version: version.get(),
            readers: self.readers().len() as u64,
            joined: self.joined(),
            epoch,
        }
    }
}

const NO_THREAD: &str = "copies of a GPU take a publisher with a thread: set `background` in its options";

/// Takes the version that was begun, to be committed at once: it stays while a GPU copies into it, and is given up if a
/// copy has failed.
fn copied(draft: &mut Option<Draft<NamedFabric>>) -> Result<Draft<NamedFabric>, Error> {
    if let Err(error) = draft.as_mut().map_or(Ok(()), Draft::expect_copied) {
        if !matches!(error, Error::OutOfTurn { .. }) {
            *draft = None;
        }
        return Err(error);
    }
    begun(draft)
}

/// Takes the version that was begun.
fn begun(draft: &mut Option<Draft<NamedFabric>>) -> Result<Draft<NamedFabric>, Error> {
    let reason = "call `slackline_publisher_begin` first";
    draft.take().ok_or(Error::OutOfTurn { operation: "publish", reason })
}

impl Publishing {
    pub(crate) fn begin(
        fabric: NamedFabric,
        address: &Address,
        table: Table,
        options: &slackline_publisher_options,
        gpu_memory: Option<GpuMemory>,
    ) -> Result<Publishing, Failure> {
        let library_options = PublisherOptions { gpu_memory, ..options.translate()? };
        let publisher = Publisher::new(fabric, address, table, library_options)?;
        let address = CString::new(publisher.address().to_string()).unwrap_or_default();
        let publisher = match options.background {
            0 => Looked::ByCalls(Box::new(publisher)),
            _ => Looked::ByThread(publisher.into_background()?, None),
        };
        let (tag, publication) = (VersionTag::default(), CString::default());
        Ok(Publishing { publisher, tag, address, publication, copying: None })
    }

    /// Publishes a version with the tag, which the next one does not have.
    fn tagged(
        &mut self,
        publish: impl FnOnce(&mut Looked, VersionTag) -> Result<Version, Error>,
    ) -> Result<Version, Failure> {
        let version = publish(&mut self.publisher, self.tag)?;
        self.tag = VersionTag::default();
        Ok(version)
    }

    /// As `slackline_publisher_publish`; the number of the version, and its record.
    pub(crate) fn publish_recorded(
        &mut self,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<(u64, *const c_char), Failure> {
        let publication = self.publisher.publish_recorded(bytes, self.tag, timeout)?;
        Ok(self.lend(&publication))
    }

    /// As `slackline_publisher_commit`; the number of the version, and its record.
    pub(crate) fn commit_recorded(&mut self) -> Result<(u64, *const c_char), Failure> {
        let publication = self.publisher.commit_recorded(self.tag)?;
        Ok(self.lend(&publication))
    }

    /// Has a GPU copy into the next version, which is begun if it was not.
    pub(crate) fn copy_from_gpu(
        &mut self,
        offset: u64,
        from: &GpuSlice,
        stream: &GpuStream,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let Looked::ByThread(publisher, draft) = &mut self.publisher else {
            return Err(Failure::bad_argument(NO_THREAD));
        };
        let draft = match draft {
            Some(draft) => draft,
            None => draft.insert(publisher.draft(timeout)?),
        };
        draft.copy_from_gpu(offset, from, stream).map_err(Failure::of_own_range)
    }

    /// Publishes the begun version once it is copied, and waits for that.
    pub(crate) fn commit_when_copied(&mut self, timeout: Duration) -> Result<Version, Failure> {
        let Looked::ByThread(_, draft) = &mut self.publisher else {
            return Err(Failure::bad_argument(NO_THREAD));
        };
        let mut copying = match (self.copying.take(), &draft) {
            (Some(copying), None) => copying,
            _ => begun(draft)?.commit_when_copied(std::mem::take(&mut self.tag)),
        };
        let published = copying.wait(timeout);
        if matches!(published, Err(Error::Gpu(GpuError::NotCopied { .. }))) {
            self.copying = Some(copying);
        }
        Ok(published?)
    }

    fn lend(&mut self, publication: &Publication) -> (u64, *const c_char) {
        self.tag = VersionTag::default();
        // JSON has no zero in its text.
        self.publication = CString::new(publication.to_string()).unwrap_or_default();
        (publication.version.get(), self.publication.as_ptr())
    }

    pub(crate) fn readers(&self) -> Vec<ReaderStatus> {
        self.publisher.readers()
    }

    /// Looks after readers until `until` returns true for the present readers and the number that ever joined; false if
    /// `timeout` has passed before.
    pub(crate) fn look_until(
        &mut self,
        timeout: Duration,
        until: impl Fn(&[ReaderStatus], u64) -> bool,
    ) -> Result<bool, Error> {
        let publisher = match &mut self.publisher {
            Looked::ByCalls(publisher) => {
                return publisher.drive(|owner| until(&owner.readers(), owner.joined()), timeout);
            }
            Looked::ByThread(publisher, _) => publisher,
        };
        let (deadline, mut backoff) = (now() + timeout, Backoff::new());
        while !until(&publisher.readers(), publisher.joined()) {
            if now() >= deadline {
                return Ok(false);
            }
            backoff.wait();
        }
        Ok(true)
    }
}

opaque!(slackline_publisher: Publishing);

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_options_init(
    options: *mut slackline_publisher_options,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Begins to serve a table at `address`, which is as for a server; version 0 is all zeros. `options` may be NULL. The
/// publisher is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_create(
    address: *const c_char,
    tensors: *const slackline_tensor,
    tensor_count: usize,
    options: *const slackline_publisher_options,
    publisher: *mut *mut slackline_publisher,
) -> slackline_status {
    let begin = || {
        // SAFETY: the contract.
        let options = unsafe { sized_or_default(options, "options")? };
        // SAFETY: the contract.
        let (gpu_memory, address) = unsafe { (options.frames()?, options::listen_address(address)?) };
        // SAFETY: the contract.
        let table = unsafe { options::aligned_table(tensors, tensor_count, options.alignment)? };
        // SAFETY: the contract.
        let secret = unsafe { options::secret(options.secret, options.secret_file, options.encrypt)? };
        // SAFETY: the contract.
        let name = unsafe { options::table_name(options.table)? };
        // SAFETY: the contract.
        let fabric = unsafe { on_gpu(fabric(secret, std::slice::from_ref(&address))?, options.gpu)? };
        let fabric = Named::new(fabric, name);
        Publishing::begin(fabric, &address, table, &options, gpu_memory)
    };
    // SAFETY: the contract.
    unsafe { create(publisher, begin) }
}

/// Lends the address at which readers reach this publisher. It is valid until the publisher is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_address(
    publisher: *const slackline_publisher,
    address: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(publisher, address, "address", |publishing| &publishing.address) }
}

/// Finds the bytes of tensor number `tensor` in a version: its range in the memory that `slackline_publisher_begin`
/// lends and `slackline_publisher_publish` takes, with the `alignment` of the options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_tensor_range(
    publisher: *const slackline_publisher,
    tensor: usize,
    begin: *mut u64,
    end: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutRange::new(begin, end)? };
        // SAFETY: the contract.
        out.set(unsafe { with(publisher, |publishing| range_of(&publishing.publisher.table(), tensor))? });
        Ok(())
    })
}

/// Publishes `bytes`, the whole table, as the next version, whose number `version`, unless NULL, becomes. It is copied.
/// Waits only if readers pin all other frames; `SLACKLINE_STATUS_PINNED` says that they did for `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_publish(
    publisher: *mut slackline_publisher,
    bytes: *const c_void,
    len: usize,
    timeout_ms: u64,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (bytes, out) =
            unsafe { (slice(bytes.cast::<u8>(), len, "bytes")?, Out::wanted(version, "version")?) };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let version = unsafe {
            with(publisher, |publishing| {
                publishing.tagged(|publisher, tag| publisher.publish(bytes, tag, timeout))
            })?
        };
        out.into_iter().for_each(|out| out.set(version.get()));
        Ok(())
    })
}

/// Lends the memory of the next version, `len` bytes, the whole table, to be written in place and then published by
/// `slackline_publisher_commit`: nothing is copied. It holds some old version. Until the commit readers see the version
/// before, and `slackline_publisher_progress` may be called. Called again, it lends the same memory, with the bytes
/// that were written there. Waits only if readers pin all other frames, as `slackline_publisher_publish` does. Valid
/// until the next commit, abort, publish or destroy of this publisher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_begin(
    publisher: *mut slackline_publisher,
    timeout_ms: u64,
    bytes: *mut *mut c_void,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(bytes, len, "bytes")? };
        let timeout = Duration::from_millis(timeout_ms);
        let begin = |publishing: &mut Publishing| {
            let (memory, len) = publishing.publisher.begin(timeout)?;
            Ok((memory.cast(), len))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(publisher, begin)? });
        Ok(())
    })
}

/// Publishes the memory that `slackline_publisher_begin` lent as the next version; `version`, unless NULL, becomes its
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_commit(
    publisher: *mut slackline_publisher,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::wanted(version, "version")? };
        // SAFETY: the contract.
        let version = unsafe {
            with(publisher, |publishing| publishing.tagged(|publisher, tag| publisher.commit(tag)))?
        };
        out.into_iter().for_each(|out| out.set(version.get()));
        Ok(())
    })
}

/// Gives up the memory that `slackline_publisher_begin` lent: the bytes that were written there are never published,
/// readers keep the version before it, and the next version has the number that this one would have had. For a copy
/// into that memory which has failed. Without memory that is lent it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_abort(publisher: *mut slackline_publisher) -> slackline_status {
    call(|| {
        let abort = |publishing: &mut Publishing| {
            publishing.publisher.abort();
            Ok(())
        };
        // SAFETY: the contract.
        unsafe { with(publisher, abort) }
    })
}

/// Takes readers in and notices readers that are gone, without waiting. `progressed`, unless NULL, becomes 1 if
/// anything happened and 0 if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_progress(
    publisher: *mut slackline_publisher,
    progressed: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::wanted(progressed, "progressed")? };
        // SAFETY: the contract.
        let progress = unsafe { with(publisher, |publishing| Ok(publishing.publisher.progress()))? };
        if let Some(out) = out {
            out.set(progress.into());
        }
        Ok(())
    })
}

/// Looks after readers until `until_joined` in all have joined since the publisher was created and `until_left` of them
/// have left, or `timeout_ms` has passed: that is `SLACKLINE_STATUS_DEADLINE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_serve(
    publisher: *mut slackline_publisher,
    until_joined: u64,
    until_left: u64,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        let left_of = |readers: &[ReaderStatus], joined: u64| joined.saturating_sub(readers.len() as u64);
        let until = |readers: &[ReaderStatus], joined| {
            joined >= until_joined && left_of(readers, joined) >= until_left
        };
        let serve = |publishing: &mut Publishing| {
            if publishing.look_until(timeout, until)? {
                return Ok(());
            }
            let joined = publishing.publisher.joined();
            let left = left_of(&publishing.readers(), joined);
            let message = format!(
                "waiting until {until_joined} readers have joined and {until_left} have left did not end within \
                 {timeout:?}: {joined} have joined, {left} have left; call again"
            );
            Err(Failure::new(slackline_status::Deadline, message))
        };
        // SAFETY: the contract.
        unsafe { with(publisher, serve) }
    })
}

/// Writes the present state to `status`. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_get_status(
    publisher: *const slackline_publisher,
    status: *mut slackline_publisher_status,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { SizedOut::new(status, "status")? };
        // SAFETY: the contract.
        out.set(unsafe { with(publisher, |publishing| Ok(publishing.publisher.status()))? });
        Ok(())
    })
}

/// Ends the publisher; its readers are told. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_destroy(publisher: *mut slackline_publisher) {
    // SAFETY: the contract.
    unsafe { destroy(publisher) };
}
