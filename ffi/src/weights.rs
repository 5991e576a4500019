//! The weights plane beyond publishing and refreshing: tags, readers, selections, snapshots and relays.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Range;
use std::time::Duration;

use slackline::weights::{PublisherOptions, ReaderStatus, Relay, Snapshot};
use slackline::{Address, Mixed, Named, Selection, Version, VersionTag};

use crate::error::{Failure, slackline_status};
use crate::fabric::fabric;
use crate::handle::{
    Handle, Opaque, Out, OutArray, call, create, destroy, lend_text, opaque, slice, slice_mut, text, value,
    with,
};
use crate::options::{self, slackline_publisher_options, slackline_tensor, version_number};
use crate::publisher::{Publishing, slackline_publisher};
use crate::reader::{Reading, slackline_reader, wanted};
use crate::sized::{SizedOut, sized_or_default};
use crate::status::{slackline_fresh, slackline_reader_status, slackline_tag};
use crate::table::{OutRange, Tensors, range_of};

/// Any number of versions behind the newest.
pub const SLACKLINE_ANY_STALENESS: u64 = 0xffff_ffff_ffff_ffff;

/// Sets the tag of the next version, which the next publish or commit takes. Versions without one have a tag of zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_set_tag(
    publisher: *mut slackline_publisher,
    tag: *const slackline_tag,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let tag = unsafe { value(tag, "tag")? }.ok_or_else(|| Failure::null("tag"))?;
        let set = |publishing: &mut Publishing| {
            publishing.tag = VersionTag { step: tag.step, label: tag.label };
            Ok(())
        };
        // SAFETY: the contract.
        unsafe { with(publisher, set) }
    })
}

/// Writes the statuses of at most `room` readers to `statuses`, and the number of all present readers to `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_readers(
    publisher: *const slackline_publisher,
    statuses: *mut slackline_reader_status,
    room: usize,
    count: *mut usize,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe { readers(publisher, Publishing::readers, statuses, room, count) })
}

/// Writes the statuses of the readers that `ask` finds.
///
/// # Safety
///
/// The contract.
unsafe fn readers<H: Opaque>(
    owner: *const H,
    ask: impl FnOnce(&H::Value) -> Vec<ReaderStatus>,
    statuses: *mut slackline_reader_status,
    room: usize,
    count: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: the contract.
    let (to, count) = unsafe { (slice_mut(statuses, room, "statuses")?, Out::new(count, "count")?) };
    // SAFETY: the contract.
    let readers = unsafe { with(owner, |owner| Ok(ask(owner)))? };
    for (to, reader) in to.iter_mut().zip(&readers) {
        let (holds, pins) = (version_number(reader.holds), version_number(reader.pins));
        *to = slackline_reader_status { peer: reader.peer.into(), holds, pins, behind: reader.behind };
    }
    count.set(readers.len());
    Ok(())
}

/// Waits until at least `readers` readers hold `version` or a newer one, as a copy or in place, and looks after readers
/// meanwhile. `SLACKLINE_STATUS_DEADLINE` says that they did not within `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_wait(
    publisher: *mut slackline_publisher,
    version: u64,
    readers: usize,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let (version, timeout) = (Version::new(version), Duration::from_millis(timeout_ms));
        let holding =
            |statuses: &[ReaderStatus]| statuses.iter().filter(|reader| reader.has(version)).count();
        let wait = |publishing: &mut Publishing| {
            if publishing.look_until(timeout, |statuses, _joined| holding(statuses) >= readers)? {
                return Ok(());
            }
            let message = format!(
                "waiting until {readers} readers hold version {} did not end within {timeout:?}: {} do; call again",
                version.get(),
                holding(&publishing.readers())
            );
            Err(Failure::new(slackline_status::Deadline, message))
        };
        // SAFETY: the contract.
        unsafe { with(publisher, wait) }
    })
}

/// A tensor of which a reader wants a part.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_slice {
    /// UTF-8, ending in a zero.
    pub name: *const c_char,
    /// The first index of each dimension, outermost first. NULL, with `end`: the whole tensor.
    pub begin: *const u64,
    /// The index behind the last one of each dimension.
    pub end: *const u64,
    /// Number of dimensions of `begin` and `end`: those of the tensor.
    pub rank: usize,
}

/// The name of a tensor, and the range of each dimension; `None` for all of it.
type NamedSlice<'a> = (&'a str, Option<Vec<Range<u64>>>);

/// # Safety
///
/// The contract of [`slackline_slice`].
unsafe fn ranges(slice_of: &slackline_slice) -> Result<NamedSlice<'_>, Failure> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(slice_of.name, "a slice's name")? };
    if slice_of.begin.is_null() && slice_of.end.is_null() {
        return Ok((name, None));
    }
    // SAFETY: the caller's promise.
    let (begin, end) = unsafe {
        (slice(slice_of.begin, slice_of.rank, "begin")?, slice(slice_of.end, slice_of.rank, "end")?)
    };
    Ok((name, Some(begin.iter().zip(end).map(|(begin, end)| *begin..*end).collect())))
}

/// Reads these slices from now on, `count` of them, in their order, and not the whole table; 0 reads all of it again.
/// `slackline_reader_table` goes on to describe the owner's table; a snapshot has a table of its own. There is no copy
/// to read until the next refresh has ended, and that copies to memory of the reader's: what
/// `slackline_reader_use_memory` gave is released. Checksums are not checked of a part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_select(
    reader: *mut slackline_reader,
    slices: *const slackline_slice,
    count: usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let slices = unsafe { slice(slices, count, "the array of slices")? };
        // SAFETY: the contract.
        let slices: Vec<_> = slices.iter().map(|one| unsafe { ranges(one) }).collect::<Result<_, _>>()?;
        let select = |reading: &mut Reading| {
            let reader = reading.unpinned()?;
            let mut selection = Selection::of(reader.table());
            for (name, ranges) in &slices {
                selection = match ranges {
                    None => selection.tensor(name),
                    Some(ranges) => selection.slice(name, ranges),
                };
            }
            let selection = if slices.is_empty() { None } else { Some(selection.build()?) };
            reader.select(selection)?;
            reading.forget();
            Ok(())
        };
        // SAFETY: the contract.
        unsafe { with(reader, select) }
    })
}

/// Finds which bytes of a version tensor number `tensor` of the owner's table is: where it lies in what
/// `slackline_reader_bytes` and `slackline_reader_pin` lend of a publisher's table. A publisher may align its tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_tensor_range(
    reader: *const slackline_reader,
    tensor: usize,
    begin: *mut u64,
    end: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutRange::new(begin, end)? };
        // SAFETY: the contract.
        out.set(unsafe { with(reader, |reading| range_of(reading.reader.table(), tensor))? });
        Ok(())
    })
}

/// Connects again, after the loss of the owner, to its successor at `address`, which must have the same table. Waits
/// for one that does not listen yet. What the successor publishes has another epoch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_reconnect(
    reader: *mut slackline_reader,
    address: *const c_char,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let address = unsafe { options::address(address)? };
        let timeout = Duration::from_millis(timeout_ms);
        let reconnect = |reading: &mut Reading| {
            let reconnected = reading.unpinned()?.reconnect(&address, timeout);
            // The reader is connected also where a GPU keeps the caller's memory.
            if matches!(reconnected, Ok(()) | Err(slackline::Error::InFlight { .. })) {
                reading.forget();
            }
            Ok(reconnected?)
        };
        // SAFETY: the contract.
        unsafe { with(reader, reconnect) }
    })
}

/// One whole version in memory of its own, which stays as it is until it is destroyed: a program serves one and reads
/// the next meanwhile. It may outlive its reader.
///
/// Thread-safety: its bytes may be read by any number of threads at once, until one of them destroys it.
pub struct slackline_snapshot(Handle<Held>);

/// A snapshot, and its table as C reads it.
pub(crate) struct Held {
    pub(crate) snapshot: Snapshot,
    tensors: Tensors,
    /// The record of the read, once it was asked for.
    certificate: Option<CString>,
}

impl Held {
    pub(crate) fn certificate(&mut self) -> &CStr {
        // JSON has no zero in its text.
        let record = || CString::new(self.snapshot.certificate().to_string()).unwrap_or_default();
        self.certificate.get_or_insert_with(record)
    }
}

opaque!(slackline_snapshot: Held);

/// Copies a version into memory of its own: the newest once it is at least `at_least`, and at most `max_staleness`
/// versions behind the newest when the copy is complete (`SLACKLINE_ANY_STALENESS`: the newest at the time of the
/// call). If `exactly` is not 0 it is the version `at_least` and no other, which is an error once no frame holds it any
/// more. The snapshot is the caller's, to be destroyed; on failure it is NULL.
///
/// After `SLACKLINE_STATUS_DEADLINE` nothing is under way: the next call asks again, and keeps only what was copied
/// whole of the same version. With a `timeout_ms` of 0 it may never succeed, nor may refresh, pull, newest and pin. A
/// program that does not wait calls `slackline_reader_begin_refresh` and `slackline_reader_poll`, which go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_snapshot(
    reader: *mut slackline_reader,
    at_least: u64,
    max_staleness: u64,
    exactly: u32,
    timeout_ms: u64,
    snapshot: *mut *mut slackline_snapshot,
) -> slackline_status {
    let take = || {
        let wanted = wanted(at_least, max_staleness, exactly);
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let snapshot = unsafe { with(reader, |reading| reading.snapshot(wanted, timeout))? };
        let tensors = Tensors::of(snapshot.table())?;
        Ok(Held { snapshot, tensors, certificate: None })
    };
    // SAFETY: the contract.
    unsafe { create(snapshot, take) }
}

/// Lends the bytes, `len` of them, laid out as `slackline_snapshot_table` says. Valid, and unchanging, until it is
/// destroyed. `fresh`, unless NULL, is told which version it is; `fresh->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_snapshot_bytes(
    snapshot: *const slackline_snapshot,
    bytes: *mut *const c_void,
    len: *mut usize,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (out, told) = unsafe { (OutArray::new(bytes, len, "bytes")?, SizedOut::wanted(fresh, "fresh")?) };
        let lend = |held: &mut Held| {
            let bytes = held.snapshot.bytes();
            Ok(((bytes.as_ptr().cast(), bytes.len()), slackline_fresh::of(held.snapshot.fresh())))
        };
        // SAFETY: the contract.
        let (bytes, fresh) = unsafe { with(snapshot, lend)? };
        out.set(bytes);
        if let Some(told) = told {
            told.set(fresh);
        }
        Ok(())
    })
}

/// Lends the table of the bytes, `count` tensors: the selected slices, or the whole table.
/// `slackline_snapshot_tensor` says where each lies. Valid until the snapshot is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_snapshot_table(
    snapshot: *const slackline_snapshot,
    tensors: *mut *const slackline_tensor,
    count: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(tensors, count, "tensors")? };
        let lend = |held: &mut Held| {
            let tensors = held.tensors.as_slice();
            Ok((tensors.as_ptr(), tensors.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(snapshot, lend)? });
        Ok(())
    })
}

/// Lends the bytes of one tensor of a snapshot. Valid until the snapshot is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_snapshot_tensor(
    snapshot: *const slackline_snapshot,
    name: *const c_char,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (out, name) = unsafe { (OutArray::new(bytes, len, "bytes")?, text(name, "name")?) };
        let lend = |held: &mut Held| {
            let bytes = held.snapshot.tensor(name);
            let bytes = bytes.ok_or_else(|| Failure::bad_argument(format!("there is no tensor `{name}`")))?;
            Ok((bytes.as_ptr().cast(), bytes.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(snapshot, lend)? });
        Ok(())
    })
}

/// Ends the snapshot: its memory is used for a later one. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_snapshot_destroy(snapshot: *mut slackline_snapshot) {
    // SAFETY: the contract.
    unsafe { destroy(snapshot) };
}

/// Reads each version of a publisher or of another relay, and serves it to readers of its own: the same version with
/// the same number, tag, time and origin. A thread of the library does all of this.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_relay(Handle<Passing>);

/// A relay and its address as C reads it.
pub(crate) struct Passing {
    relay: Relay,
    address: CString,
}

opaque!(slackline_relay: Passing);

/// Connects to the first of `count` addresses in `upstream` that answers within `timeout_ms`, and serves at
/// `address`, which is as for a publisher. If the owner upstream is lost later, the next address is tried. `options`,
/// whose `frames` and `chunk_bytes` are the owner's whatever they say, may be NULL. The relay is the caller's, to be
/// destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_relay_start(
    upstream: *const *const c_char,
    count: usize,
    address: *const c_char,
    options: *const slackline_publisher_options,
    timeout_ms: u64,
    relay: *mut *mut slackline_relay,
) -> slackline_status {
    let start = || {
        // SAFETY: the contract.
        let options = unsafe { relay_options(options)? };
        // SAFETY: the contract.
        let upstream = unsafe { slice(upstream, count, "upstream")? };
        // SAFETY: the contract.
        let upstream: Vec<Address> =
            upstream.iter().map(|address| unsafe { options::address(*address) }).collect::<Result<_, _>>()?;
        let relay = |fabric, address: &Address, options, timeout| {
            Relay::start(fabric, &upstream, address, options, timeout)
        };
        // SAFETY: the contract.
        unsafe { passing(&upstream, address, &options, timeout_ms, relay) }
    };
    // SAFETY: the contract.
    unsafe { create(relay, start) }
}

/// Joins the tree that the publisher at `publisher` arranges of its relays, waiting up to `timeout_ms` for it, and
/// serves at `address`, which is as for a publisher, and must be one at which others reach it. The publisher says
/// from whom the relay reads, and sends readers with `in_tree` to it; if its owner is lost, it says so again.
/// `options` is as for `slackline_relay_start`. The relay is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_relay_join(
    publisher: *const c_char,
    address: *const c_char,
    options: *const slackline_publisher_options,
    timeout_ms: u64,
    relay: *mut *mut slackline_relay,
) -> slackline_status {
    let start = || {
        // SAFETY: the contract.
        let options = unsafe { relay_options(options)? };
        // SAFETY: the contract.
        let publisher = unsafe { options::address(publisher)? };
        let relay = |fabric, address: &Address, options, timeout| {
            Relay::join(fabric, &publisher, address, options, timeout)
        };
        // SAFETY: the contract.
        unsafe { passing(std::slice::from_ref(&publisher), address, &options, timeout_ms, relay) }
    };
    // SAFETY: the contract.
    unsafe { create(relay, start) }
}

/// Reads the options of a relay.
///
/// # Safety
///
/// As for [`slackline_relay_start`].
unsafe fn relay_options(
    options: *const slackline_publisher_options,
) -> Result<slackline_publisher_options, Failure> {
    // SAFETY: the contract.
    let options = unsafe { sized_or_default(options, "options")? };
    // SAFETY: the contract.
    unsafe { options.expect_on_host("a relay")? };
    Ok(options)
}

/// Makes a relay of what the caller said, which reads from one of `upstream`.
///
/// # Safety
///
/// As for [`slackline_relay_start`].
unsafe fn passing(
    upstream: &[Address],
    address: *const c_char,
    options: &slackline_publisher_options,
    timeout_ms: u64,
    relay: impl FnOnce(Named<Mixed>, &Address, PublisherOptions, Duration) -> Result<Relay, slackline::Error>,
) -> Result<Passing, Failure> {
    // SAFETY: the contract.
    let address = unsafe { options::listen_address(address)? };
    // SAFETY: the contract.
    let secret = unsafe { options::secret(options.secret, options.secret_file, options.encrypt)? };
    let all: Vec<Address> = upstream.iter().chain([&address]).cloned().collect();
    // SAFETY: the contract.
    let name = unsafe { options::table_name(options.table)? };
    let fabric = Named::new(fabric(secret, &all)?, name);
    let relay = relay(fabric, &address, options.translate()?, Duration::from_millis(timeout_ms))?;
    let address = CString::new(relay.address().to_string()).unwrap_or_default();
    Ok(Passing { relay, address })
}

/// Lends the address at which readers reach this relay. It is valid until the relay is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_relay_address(
    relay: *const slackline_relay,
    address: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(relay, address, "address", |passing| &passing.address) }
}

/// Sets `version` to the newest version that the relay serves. Of a relay that has ended the call fails with the status
/// and the message of the cause.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_relay_version(
    relay: *const slackline_relay,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(version, "version")? };
        let ask = |passing: &mut Passing| match passing.relay.failure() {
            Some(failure) => Err(Failure::of_node(&failure)),
            None => Ok(passing.relay.version().get()),
        };
        // SAFETY: the contract.
        out.set(unsafe { with(relay, ask)? });
        Ok(())
    })
}

/// Writes the statuses of at most `room` readers of the relay to `statuses`, and the number of all that are in to
/// `count`. Those of a relay that has ended are the last ones that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_relay_readers(
    relay: *const slackline_relay,
    statuses: *mut slackline_reader_status,
    room: usize,
    count: *mut usize,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe { readers(relay, |passing| passing.relay.readers(), statuses, room, count) })
}

/// Ends the relay; its readers are told. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_relay_destroy(relay: *mut slackline_relay) {
    // SAFETY: the contract.
    unsafe { destroy(relay) };
}
