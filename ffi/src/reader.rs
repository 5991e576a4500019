//! The reader: see [`slackline::weights::Reader`].

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use slackline::internals::node::Asked;
use slackline::weights::{Reader, Snapshot, Wanted};
use slackline::{Fresh, Named, Version, VolatileSlice, scheme::Bound};

use crate::error::{Failure, slackline_status};
use crate::fabric::{NamedFabric, fabric};
use crate::gpu::on_gpu;
use crate::handle::{Handle, Out, OutArray, call, create, destroy, opaque, slice_mut, with};
use crate::memory::{Release, caller_memory, slackline_release};
use crate::options::{self, slackline_reader_options, slackline_tensor};
use crate::sized::{SizedOut, set_default, sized_or_default};
use crate::status::slackline_fresh;
use crate::table::{OutRange, Tensors};
use crate::weights::SLACKLINE_ANY_STALENESS;

/// Reads versions of one publisher's table, or of one server's shard. A thread of its own tells the owner that it
/// lives.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_reader(Handle<Reading>);

/// A reader, and its owner's table as C reads it.
pub(crate) struct Reading {
    pub(crate) reader: Reader<NamedFabric>,
    tensors: Tensors,
    /// How the refresh was asked for that has begun and was not waited for.
    begun: Option<Asked>,
    /// The last read that is no snapshot: how it was asked for, and which version came.
    last: Option<(Asked, Fresh)>,
    /// The record that was lent last.
    certificate: CString,
}

impl Reading {
    /// The reader, for a call that would overwrite or release the pinned memory.
    pub(crate) fn unpinned(&mut self) -> Result<&mut Reader<NamedFabric>, Failure> {
        match self.reader.held() {
            None => Ok(&mut self.reader),
            Some(_) => Err(Failure::new(
                slackline_status::OutOfTurn,
                "cannot read now: a version is pinned; call slackline_reader_unpin first",
            )),
        }
    }

    /// Reads the version that `operation` wants, and records the read. `is_refresh` is as for
    /// [`Reader::begin_record`](slackline::weights::Reader::begin_record).
    fn read(
        &mut self,
        (wanted, is_refresh): (Wanted, bool),
        operation: impl FnOnce(&mut Reader<NamedFabric>) -> Result<Fresh, Failure>,
    ) -> Result<Fresh, Failure> {
        let reader = self.unpinned()?;
        let asked = reader.begin_record(wanted, is_refresh);
        let fresh = operation(reader);
        self.forget();
        Ok(self.end(asked, fresh?))
    }

    /// Takes a snapshot, which abandons a refresh that has begun.
    pub(crate) fn snapshot(&mut self, wanted: Wanted, timeout: Duration) -> Result<Snapshot, Failure> {
        self.unpinned()?;
        self.begun = None;
        Ok(self.reader.snapshot(wanted, timeout)?)
    }

    /// Forgets the recorded reads: their results are void.
    pub(crate) fn forget(&mut self) {
        (self.begun, self.last) = (None, None);
    }

    /// The record of the last read, of which these are the bytes.
    pub(crate) fn certify(&mut self, bytes: VolatileSlice<'_>) -> Result<*const c_char, Failure> {
        let no_read =
            "there is no read to put on record: call refresh, pull or pin first, or ask the snapshot";
        let (asked, fresh) = self.last.ok_or_else(|| Failure::new(slackline_status::OutOfTurn, no_read))?;
        let expected = self.reader.held().map_or(self.reader.copy_bytes(), |held| held.len());
        if bytes.len() != expected {
            let given = bytes.len();
            return Err(Failure::bad_argument(format!("{given} bytes were given: the read gave {expected}")));
        }
        let certificate = self.reader.certify(asked, &fresh, bytes);
        // JSON has no zero in its text.
        self.certificate = CString::new(certificate.to_string()).unwrap_or_default();
        Ok(self.certificate.as_ptr())
    }

    /// Puts the end of a read on record.
    fn end(&mut self, asked: Asked, fresh: Fresh) -> Fresh {
        self.last = Some((self.reader.end_record(asked), fresh));
        fresh
    }
}

opaque!(slackline_reader: Reading);

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_options_init(
    options: *mut slackline_reader_options,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Connects to a publisher or a server, waiting for one as `slackline_worker_connect` does. `options` may be NULL.
/// The reader is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_connect(
    address: *const c_char,
    options: *const slackline_reader_options,
    timeout_ms: u64,
    reader: *mut *mut slackline_reader,
) -> slackline_status {
    let connect = || {
        // SAFETY: the contract.
        let (address, options) =
            unsafe { (options::address(address)?, sized_or_default(options, "options")?) };
        // SAFETY: the contract.
        let secret = unsafe { options::secret(options.secret, options.secret_file, options.encrypt)? };
        // SAFETY: the contract.
        let name = unsafe { options::table_name(options.table)? };
        // SAFETY: the contract.
        let fabric = unsafe { on_gpu(fabric(secret, std::slice::from_ref(&address))?, options.gpu)? };
        let fabric = Named::new(fabric, name);
        let timeout = Duration::from_millis(timeout_ms);
        let reader = Reader::connect(fabric, &address, options.translate()?, timeout)?;
        let tensors = Tensors::of(reader.table())?;
        Ok(Reading { reader, tensors, begun: None, last: None, certificate: CString::default() })
    };
    // SAFETY: the contract.
    unsafe { create(reader, connect) }
}

/// Has refreshes copy into memory of the caller's from now on, where it lies: `bytes` from `memory` on, as many as a
/// version has. `memory` is a multiple of 8, and over RDMA it is registered with the device. `slackline_reader_bytes`
/// is `SLACKLINE_STATUS_OUT_OF_TURN` until the next refresh.
///
/// The memory stays valid, and no other code reads or writes it from the begin of a refresh until its end (until the
/// end of a later one if it failed or was abandoned, since its requests may go on writing), until `release` (which may
/// be NULL) is called with `context`: when other memory was given, `slackline_reader_select` was called, or the reader
/// was destroyed, and no request uses it any more. After a failure `release` was called, and the reader has the memory
/// that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_use_memory(
    reader: *mut slackline_reader,
    memory: *mut c_void,
    bytes: usize,
    release: slackline_release,
    context: *mut c_void,
) -> slackline_status {
    let owner = Release::new(release, context);
    call(|| {
        // SAFETY: the contract.
        let memory = unsafe { caller_memory(memory, bytes, owner) }.ok_or_else(|| Failure::null("memory"))?;
        // SAFETY: the contract.
        unsafe {
            with(reader, |reading| {
                reading.unpinned()?.use_memory(memory)?;
                reading.forget();
                Ok(())
            })
        }
    })
}

/// Makes sure that the reader's copy is at most `max_staleness` versions behind the newest. A copy that is fresh
/// enough already is kept. `fresh`, unless NULL, receives its description; `fresh->size` must be set. After a failure
/// there may be nothing to read until a refresh works again. After `SLACKLINE_STATUS_DEADLINE` the refresh has ended;
/// a refresh that `slackline_reader_begin_refresh` begins continues from call to call of `slackline_reader_poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_refresh(
    reader: *mut slackline_reader,
    max_staleness: u64,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    let wanted = (Wanted::newest().max_staleness(max_staleness), true);
    // SAFETY: the contract.
    call(|| unsafe { read(reader, wanted, fresh, |reader| Ok(reader.refresh(max_staleness, timeout)?)) })
}

/// Waits for `version` or a newer one, and copies the newest; otherwise as `slackline_reader_refresh`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_refresh_to(
    reader: *mut slackline_reader,
    version: u64,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let (version, timeout) = (Version::new(version), Duration::from_millis(timeout_ms));
    let wanted = (Wanted::at_least(version), true);
    // SAFETY: the contract.
    call(|| unsafe { read(reader, wanted, fresh, |reader| Ok(reader.refresh_to(version, timeout)?)) })
}

/// # Safety
///
/// The contract.
pub(crate) unsafe fn read(
    reader: *mut slackline_reader,
    wanted: (Wanted, bool),
    fresh: *mut slackline_fresh,
    operation: impl FnOnce(&mut Reader<NamedFabric>) -> Result<Fresh, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the contract.
    let out = unsafe { SizedOut::wanted(fresh, "fresh")? };
    // SAFETY: the contract.
    let fresh = unsafe { with(reader, |reading| reading.read(wanted, operation))? };
    tell(out, fresh);
    Ok(())
}

fn tell(out: Option<SizedOut<slackline_fresh>>, fresh: Fresh) {
    if let Some(out) = out {
        out.set(slackline_fresh::of(&fresh));
    }
}

/// Begins a `slackline_reader_refresh`, and does not wait for it: `slackline_reader_poll` drives it forward, and the
/// calling thread may do something else in between. There is no copy to read from the moment when a newer version
/// is found until the refresh has ended. A call that pins, pulls, refreshes or takes a snapshot abandons it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_begin_refresh(
    reader: *mut slackline_reader,
    max_staleness: u64,
) -> slackline_status {
    call(|| {
        let begin = |reading: &mut Reading| {
            let reader = reading.unpinned()?;
            let asked = reader.begin_record(Wanted::newest().max_staleness(max_staleness), true);
            reader.begin_refresh(max_staleness);
            (reading.begun, reading.last) = (Some(asked), None);
            Ok(())
        };
        // SAFETY: the contract.
        unsafe { with(reader, begin) }
    })
}

/// Moves the refresh that `slackline_reader_begin_refresh` began on as far as it goes without waiting, and looks
/// after the connection. Sets `done` to 1 once the version is in the copy, which `fresh`, unless NULL, is then told
/// (`fresh->size` must be set); to 0 before that, and while there is no refresh. After a failure the refresh has
/// ended.
///
/// Over TCP and RDMA a copy that would come too late pins its frame until it has ended: a publisher may wait for a
/// frame while a refresh that has begun is not moved on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_poll(
    reader: *mut slackline_reader,
    done: *mut u32,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (is_done, out) = unsafe { (Out::new(done, "done")?, SizedOut::wanted(fresh, "fresh")?) };
        let poll = |reading: &mut Reading| {
            let fresh = reading.reader.poll(slackline::now())?;
            Ok(fresh.map(|fresh| match reading.begun.take() {
                Some(asked) => reading.end(asked, fresh),
                None => fresh,
            }))
        };
        // SAFETY: the contract.
        let fresh = unsafe { with(reader, poll)? };
        is_done.set(fresh.is_some().into());
        if let Some(fresh) = fresh {
            tell(out, fresh);
        }
        Ok(())
    })
}

/// The reader's copy, `len` bytes. Valid, and unchanging, until the next refresh of this reader, also one that is only
/// begun, its next `slackline_reader_pull`, `slackline_reader_select`, `slackline_reader_use_memory` or
/// `slackline_reader_reconnect`, or its destroy. No call on the reader changes a snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_bytes(
    reader: *const slackline_reader,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(bytes, len, "bytes")? };
        let lend = |reading: &mut Reading| {
            let bytes = reading.reader.bytes()?;
            Ok((bytes.as_ptr().cast(), bytes.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(reader, lend)? });
        Ok(())
    })
}

/// Copies a version that is at most `max_staleness` versions behind the newest to `bytes`, memory of the caller's of
/// exactly `len` bytes, beside the copy that `slackline_reader_bytes` lends: one copy over shared memory, two over
/// TCP and RDMA, the first of them to the reader's copy. `fresh`, unless NULL, receives its description;
/// `fresh->size` must be set. After a failure `bytes` may hold anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_pull(
    reader: *mut slackline_reader,
    bytes: *mut c_void,
    len: usize,
    max_staleness: u64,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    call(|| {
        let wanted = Wanted::newest().max_staleness(max_staleness);
        // SAFETY: the contract.
        unsafe { pull(reader, (bytes, len), wanted, timeout, fresh) }
    })
}

/// The same of the version that `at_least`, `max_staleness` and `exactly` name, as for `slackline_reader_snapshot`. If
/// `exactly` is not 0 there are two copies over shared memory, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_pull_version(
    reader: *mut slackline_reader,
    bytes: *mut c_void,
    len: usize,
    at_least: u64,
    max_staleness: u64,
    exactly: u32,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    call(|| {
        let wanted = wanted(at_least, max_staleness, exactly);
        // SAFETY: the contract.
        unsafe { pull(reader, (bytes, len), wanted, timeout, fresh) }
    })
}

/// The version that these three name.
pub(crate) fn wanted(at_least: u64, max_staleness: u64, exactly: u32) -> Wanted {
    let version = Version::new(at_least);
    let wanted = if exactly == 0 { Wanted::at_least(version) } else { Wanted::exactly(version) };
    match max_staleness {
        SLACKLINE_ANY_STALENESS => wanted,
        most => wanted.max_staleness(most),
    }
}

/// # Safety
/// The contract.
unsafe fn pull(
    reader: *mut slackline_reader,
    (bytes, len): (*mut c_void, usize),
    wanted: Wanted,
    timeout: Duration,
    fresh: *mut slackline_fresh,
) -> Result<(), Failure> {
    // SAFETY: the contract.
    let into = unsafe { slice_mut(bytes.cast::<u8>(), len, "bytes")? };
    // SAFETY: the contract.
    unsafe { read(reader, (wanted, false), fresh, |reader| Ok(reader.pull_into(into, wanted, timeout)?)) }
}

/// Sets `version` to the number of the newest version. Nothing is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_newest(
    reader: *mut slackline_reader,
    timeout_ms: u64,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(version, "version")? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        out.set(unsafe { with(reader, |reading| Ok(reading.reader.newest(timeout)?))? }.get());
        Ok(())
    })
}

/// Pins the newest version in the owner's own memory, once it is `version` or a newer one, and lends it, `len` bytes:
/// nothing is copied, and the owner writes other frames meanwhile. Only over shared memory, and of versions in host
/// memory; elsewhere it is `SLACKLINE_STATUS_UNSUPPORTED`. `fresh`, unless NULL, receives its description;
/// `fresh->size` must be set. Valid, and to be read only, until `slackline_reader_unpin` or destroy; until then
/// refresh, pull and pin are out of turn. Any number of threads may read the memory at once, until one of them unpins
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_pin(
    reader: *mut slackline_reader,
    version: u64,
    timeout_ms: u64,
    bytes: *mut *const c_void,
    len: *mut usize,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(bytes, len, "bytes")? };
        let (version, timeout) = (Version::new(version), Duration::from_millis(timeout_ms));
        let pin = |reader: &mut Reader<NamedFabric>| {
            reader.hold(Bound::version(version), timeout)?;
            let held = reader.held().zip(reader.held_fresh());
            let (memory, fresh) =
                held.ok_or_else(|| Failure::new(slackline_status::Internal, "no frame is held"))?;
            out.set((memory.as_ptr().cast_const().cast(), memory.len()));
            Ok(fresh)
        };
        // SAFETY: the contract.
        unsafe { read(reader, (Wanted::at_least(version), false), fresh, pin) }
    })
}

/// Sets `intact` to 1 if all reads so far of the memory that `slackline_reader_pin` lent saw that version, and to 0 if
/// not. It always was, unless this process was stopped for longer than its lease and the owner took it
/// for dead: ask after the last byte was read, before anything is made of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_is_intact(
    reader: *const slackline_reader,
    intact: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(intact, "intact")? };
        // SAFETY: the contract.
        out.set(unsafe { with(reader, |reading| Ok(reading.reader.is_intact()))? }.into());
        Ok(())
    })
}

/// Releases the version that `slackline_reader_pin` has pinned. Does nothing if none is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_unpin(reader: *mut slackline_reader) -> slackline_status {
    call(|| {
        let unpin = |reading: &mut Reading| {
            if reading.reader.held().is_some() {
                reading.reader.release();
                reading.forget();
            }
            Ok(())
        };
        // SAFETY: the contract.
        unsafe { with(reader, unpin) }
    })
}

/// Lends the table of the owner, `count` tensors with their names and shapes. Valid, and unchanging, until this
/// reader is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_table(
    reader: *const slackline_reader,
    tensors: *mut *const slackline_tensor,
    count: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(tensors, count, "tensors")? };
        // The array is memory of its own behind the reader: other calls that borrow the reader do not touch it.
        let lend = |reading: &mut Reading| {
            let tensors = reading.tensors.as_slice();
            Ok((tensors.as_ptr(), tensors.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(reader, lend)? });
        Ok(())
    })
}

/// Sets `begin` and `end` to the bytes of the table's flat space that this reader reads: all of a publisher's table,
/// or a server's shard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_range(
    reader: *const slackline_reader,
    begin: *mut u64,
    end: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutRange::new(begin, end)? };
        // SAFETY: the contract.
        out.set(unsafe { with(reader, |reading| Ok(reading.reader.range()))? });
        Ok(())
    })
}

/// Disconnects the reader and frees it. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_destroy(reader: *mut slackline_reader) {
    // SAFETY: the contract.
    unsafe { destroy(reader) };
}
