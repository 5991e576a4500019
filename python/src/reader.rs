//! `slackline.Reader`.

mod connecting;
mod staged;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;

use slackline::internals::node::Awaited;
use slackline::scheme::Bound as VersionBound;
use slackline::weights::{Reader, ReaderOptions};
use slackline::{Address, Error, Named};

use self::connecting::Attempts;
use self::staged::Staging;
use crate::errors::{Class, Failure};
use crate::fabric::{self, NamedFabric, SecretSource};
use crate::gpu::{self, PyGpu, Streams};
use crate::into::{self, Targets};
use crate::lease::Lease;
use crate::owned::closed_by_block;
use crate::pin::Pin;
use crate::reading::{PINNING, PULLING, Pulled, Reading, Request, Shared, hold, newest_from, pull};
use crate::record::{Asked, Read};
use crate::snapshot::{Facts, Snapshot, Storage, Tensors};
use crate::table::{self, Layout, TensorSpec};
use crate::turns::Turn;
use crate::wait::{Deadline, detached, idle as way_to_idle, in_thread};

/// Reads versions of one publisher's table, or of one server's parameters: each read is exactly one version.
///
/// `address` is the address of a Publisher or Server, or several with commas between them: the first that answers is
/// taken. Waits, at most `timeout` seconds, for it to listen. `select` is a sequence of names, or a mapping of names to
/// tuples of slices (one for each dimension, with step 1), or to None: then that part of the table alone is read, and
/// pulled; a pin is of the whole table all the same. `secret` is bytes or the path of a file: the job's secret or the
/// one of `reading_secret`; without it the environment's is taken.
///
/// `table` is the name of the table to read where the address has several (`Tables`). With `checksums` each copy of a
/// whole table is compared with the publisher's checksum, where it makes one (`Publisher(checksums=True)`): one more
/// pass over it. `idle` is "poll", which sees a version that is waited for at once and takes a processor's time, or
/// "sleep": then the publisher wakes this reader.
///
/// With `tree` the address belongs to a Publisher whose relays are in a tree: it says which owner this reader reads
/// from, a relay on the same host if there is one. `reconnect` then asks it again.
///
/// With `gpu`, a Gpu, pulls into tensors of that GPU come straight out of the owner's memory over shared memory, and by
/// RDMA if the device reaches the GPU. If it does not, and over TCP, they come by way of blocks of host memory.
/// `gpu_path` says which way they take.
///
/// One pin or pull goes on at a time; calls from several threads take turns.
///
/// Raises PeerGone if no process listens, Refused if the secrets differ or if there is no table of that name (after
/// `timeout`: it names the tables that exist), DeadlineError if it does not answer in time.
#[pyclass(frozen, module = "slackline", name = "Reader")]
pub(crate) struct PyReader {
    shared: Arc<Shared>,
    /// The table of copies, and the table of pins, which is the publisher's.
    layout: Arc<Layout>,
    whole: Arc<Layout>,
    address: String,
    staged: Mutex<Staging>,
    gpu: Option<gpu::Named>,
}

impl PyReader {
    /// Calls `with` on the reader, when other threads have left it.
    fn with<R>(
        &self,
        py: Python<'_>,
        operation: &'static str,
        deadline: Option<Deadline>,
        with: impl FnOnce(&mut Reading) -> PyResult<R>,
    ) -> PyResult<R> {
        let result = match &mut *self.lock(py, operation, deadline)? {
            Some(reading) => with(reading),
            None => Err(Failure::out_of_turn(operation, "the reader is closed", "make a new one").into()),
        };
        self.shared.settle();
        result
    }

    /// Waits until other threads have left the reader.
    fn lock(
        &self,
        py: Python<'_>,
        operation: &'static str,
        deadline: Option<Deadline>,
    ) -> PyResult<Turn<'_, Option<Reading>>> {
        crate::fork::check(self.shared.guard, operation)?;
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = self.shared.reading.wait(py, operation, deadline);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut reading = locked?;
        // A pin may have ended while another thread was in a call.
        self.shared.let_go(&mut reading);
        Ok(reading)
    }

    /// The same for a call that would release the pinned version.
    fn unpinned<R>(
        &self,
        py: Python<'_>,
        operation: &'static str,
        deadline: Deadline,
        with: impl FnOnce(&mut Reading) -> PyResult<R>,
    ) -> PyResult<R> {
        self.with(py, operation, Some(deadline), |reading| {
            match self.shared.is_pinned.load(Ordering::SeqCst) {
                false => with(reading),
                true => {
                    let cause = "a version is pinned";
                    let remedy =
                        "leave the pin, and delete the arrays that look at it, or use another reader";
                    Err(Failure::out_of_turn(operation, cause, remedy).into())
                }
            }
        })
    }

    /// Takes the reader out of the hands of the calls that are in it, which end.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Reading>> {
        let is_pinned = || {
            let remedy = "leave the pin, and delete the arrays that look at it";
            Err(Failure::out_of_turn(CLOSING, "a version is pinned", remedy).into())
        };
        crate::fork::check(self.shared.guard, CLOSING)?;
        if self.shared.has_pin() {
            return is_pinned();
        }
        self.shared.closing.begin();
        let reading = self.lock(py, CLOSING, None).and_then(|mut reading| {
            // Another thread may have pinned while this one waited.
            match self.shared.is_pinned.load(Ordering::SeqCst) {
                false => Ok(reading.take()),
                true => is_pinned(),
            }
        });
        if reading.is_err() {
            self.shared.closing.give_up();
        }
        self.shared.settle();
        reading
    }

    fn snapshot(&self, (facts, lease, asked): Pulled) -> Snapshot {
        self.read(Arc::clone(&self.layout), Storage::Whole(lease), facts, asked)
    }

    fn read(&self, layout: Arc<Layout>, storage: Storage, facts: Facts, asked: Asked) -> Snapshot {
        let read = Some(Read { asked, whole: Arc::clone(&self.whole) });
        Snapshot { tensors: Tensors { layout, storage, is_read_only: true }, facts, read }
    }

    /// Ends the reader, and waits for its thread.
    fn end(&self) {
        self.shared.closes.store(true, Ordering::SeqCst);
        self.end_staging();
    }
}

const PULLING_INTO: &str = "pulling into arrays";
const CLOSING: &str = "closing a reader";

#[pymethods]
impl PyReader {
    #[new]
    #[pyo3(signature = (address, *, table="", select=None, checksums=false, idle="poll", timeout=30.0, secret=None,
        tree=false, gpu=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        address: &str,
        table: &str,
        select: Option<&Bound<'_, PyAny>>,
        checksums: bool,
        idle: &str,
        timeout: f64,
        secret: Option<SecretSource>,
        tree: bool,
        gpu: Option<&Bound<'_, PyGpu>>,
    ) -> PyResult<PyReader> {
        let gpu = gpu::named(gpu);
        let transport_gpu = gpu.clone();
        let options =
            ReaderOptions { checksums, in_tree: tree, idle: way_to_idle(idle)?, ..ReaderOptions::default() };
        let (deadline, table) = (Deadline::after(timeout)?, table.to_owned());
        let mut attempts = Attempts::of(address, deadline)?.undivided();
        let mut reader = in_thread(py, "connecting", move |is_given_up| {
            let secret = fabric::secret(secret)?;
            let mut transports: Vec<Option<NamedFabric>> = vec![None; attempts.len()];
            let mut connect = |number: usize, address: &Address, patience| {
                let transport = match &mut transports[number] {
                    Some(transport) => transport,
                    none => {
                        let fabric = fabric::open(secret.clone(), address, transport_gpu.as_ref())?;
                        none.insert(Named::new(fabric, &table))
                    }
                };
                Ok(Reader::connect(transport.clone(), address, options, patience))
            };
            loop {
                if let Some(reader) = attempts.go_on(&mut connect)? {
                    return Ok(reader);
                }
                if deadline.left().is_zero() || is_given_up.load(Ordering::Relaxed) {
                    return Err(attempts.late());
                }
            }
        })?;
        if reader.range() != (0..reader.table().bytes()) {
            let (cause, remedy) =
                ("the server holds a shard of its table, and a Reader reads whole ones", "use a Worker");
            return Err(Failure::new(Class::Unsupported, "connecting", cause, remedy).into());
        }
        let whole = Layout::of(reader.table())?;
        let layout = match select {
            None => Arc::clone(&whole),
            Some(select) => {
                let selection = table::selection(reader.table(), select)?;
                reader.select(Some(selection)).map_err(Failure::from)?;
                Layout::of(reader.copied_table())?
            }
        };
        let (shared, staged) =
            (Arc::new(Shared::new(reader, checksums, gpu.clone())), Mutex::new(Staging::None));
        Ok(PyReader { shared, layout, whole, address: address.into(), staged, gpu })
    }

    /// The number of the newest version, by reads of 128 bytes in all, for a table of any size.
    ///
    /// It waits at most `timeout` seconds for the publisher's answer, and then raises DeadlineError. PeerGone says that
    /// the connection is over: `reconnect` makes another one.
    #[pyo3(signature = (*, timeout=30.0))]
    fn latest(&self, py: Python<'_>, timeout: f64) -> PyResult<u64> {
        const ASKING: &str = "asking for the version";
        let deadline = Deadline::after(timeout)?;
        self.with(py, ASKING, Some(deadline), |reading| {
            let (reader, closing, mut asked) = (&mut reading.reader, &reading.closing, None);
            let newest =
                closing.in_slices(py, ASKING, deadline, |slice| newest_from(reader, 0, &mut asked, slice))?;
            let seen = reader.newest_seen().map_or(VersionBound::NONE, VersionBound::version);
            let (needed, awaited) = (VersionBound::NONE, Awaited::Answer);
            let late = Error::Deadline { operation: ASKING, waited: deadline.timeout, needed, seen, awaited };
            newest.ok_or_else(|| Failure::from(late).into())
        })
    }

    /// Brings one version, whole, and returns it as a Snapshot.
    ///
    /// `max_staleness` is the most versions by which it may be behind the newest when the call ends; without it, it is
    /// at least the newest of when the call began. Both mean the newest of the owner that is read from: behind a relay
    /// that has lost its publisher, the newest of that relay. `min_version` waits for that version or a newer one,
    /// `version` for that version and no other, and excludes the other two. A version that was pulled before and is
    /// good enough is not copied again.
    ///
    /// `into` is a mapping of all names to writable arrays in C order, which are written; the snapshot then looks at
    /// them. After an error they may hold anything. Without it the snapshot has memory of its own, which is used again
    /// once nothing looks at the snapshot.
    ///
    /// Raises DeadlineError after `timeout` seconds, StaleError if `version` is overwritten, PeerGone if the publisher
    /// is lost, EpochChanged if it was started again, DigestMismatch if a checksum does not match, LayoutMismatch if
    /// `into` does not fit, BadOption if `version` is given with another bound, OutOfTurn during a pin of this reader.
    ///
    /// Tensors of a GPU in `into` (DLPack or `__cuda_array_interface__`, in C order) are written by it, behind the work
    /// that a stream has at the time of the call; later work of that stream sees the version, and the arrays
    /// of the snapshot cannot be looked at. `stream` is as for `Publisher.publish`. With a reader's `gpu` several
    /// tensors come by way of memory of that GPU; once the version is there, that copy does not look for signals.
    #[pyo3(signature = (into=None, *, max_staleness=None, min_version=0, version=None, timeout=30.0, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn pull(
        &self,
        py: Python<'_>,
        into: Option<&Bound<'_, PyAny>>,
        max_staleness: Option<u64>,
        min_version: u64,
        version: Option<u64>,
        timeout: f64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Snapshot> {
        let deadline = Deadline::after(timeout)?;
        let request = Request::of(max_staleness, min_version, version)?;
        let streams = Streams::new(stream, self.gpu.as_ref())?;
        let targets = into.map(|into| Targets::of(&self.layout, into, PULLING_INTO, &streams)).transpose()?;
        let Some(targets) = targets else {
            let pulled =
                self.unpinned(py, PULLING, deadline, |reading| pull(py, reading, request, deadline))?;
            return Ok(self.snapshot(pulled));
        };
        let (facts, asked) = self.unpinned(py, PULLING, deadline, |reading| {
            into::pull(py, reading, request, &targets, deadline)
        })?;
        Ok(self.read(Arc::clone(&self.layout), Storage::Each(targets.into_leases()), facts, asked))
    }

    /// Pins one version in the publisher's memory: a context manager that gives a Snapshot of it, without a copy. The
    /// publisher leaves it as it is until the block ends; then its arrays raise. Shared memory only: elsewhere
    /// Unsupported. The arguments are as for `pull`. It is the whole table, also of a reader with `select`.
    /// `Publisher.wait` counts the pin; once the block has ended, and the version was as it was until then, this reader
    /// holds it.
    ///
    /// An array (of numpy, say) that looks at the pinned memory and is still alive at the end of the block is a
    /// BufferError; the version stays pinned until the array is gone. A process that is silent for longer than the
    /// publisher's lease (it was stopped, say) loses the pin: the end of the block raises PeerGone then, and
    /// `Pin.is_intact` tells it before.
    #[pyo3(signature = (*, max_staleness=None, min_version=0, timeout=30.0))]
    fn pin(
        &self,
        py: Python<'_>,
        max_staleness: Option<u64>,
        min_version: u64,
        timeout: f64,
    ) -> PyResult<Pin> {
        let deadline = Deadline::after(timeout)?;
        let request = Request { max_staleness, at_least: min_version, exactly: None };
        let (facts, address, bytes, check, asked) = self.unpinned(py, PINNING, deadline, |reading| {
            let asked = reading.begin(request);
            let (facts, address, bytes, check) = hold(py, reading, request, deadline)?;
            self.shared.is_pinned.store(true, Ordering::SeqCst);
            reading.has_brought(&request, &facts);
            Ok((facts, address, bytes, check, asked.ended()))
        })?;
        let (owner, unpin) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let lease = Lease::new(std::ptr::with_exposed_provenance_mut(address), bytes, owner);
        let lease = Arc::new(lease.for_a_while("its pin has ended", move || unpin.unpin()));
        let storage = Storage::Whole(Arc::clone(&lease));
        Ok(Pin::new(self.read(Arc::clone(&self.whole), storage, facts, asked), lease, check))
    }

    /// Name, element type and shape of each tensor.
    #[getter]
    fn metadata(&self) -> Vec<TensorSpec> {
        self.layout.metadata()
    }

    /// The text that the reader was made with: the address of the owner, or several of which one is connected to.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The path of payloads to the `gpu`, and why the better paths are not in use; None without one.
    #[getter]
    fn gpu_path(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let path = |reading: &mut Reading| Ok(reading.reader.gpu_path().map(|path| path.to_string()));
        self.with(py, "asking for the way to a GPU", None, path)
    }

    /// The incarnation of the owner that is read from: of the publisher, or behind a relay of that relay.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        let epoch = |reading: &mut Reading| Ok(reading.reader.epoch());
        self.with(py, "asking for the epoch", None, epoch)
    }

    /// Connects again, once the publisher was lost, to its successor at the same address, waiting for it at most
    /// `timeout` seconds. The successor has another epoch, and its versions may have any number. Snapshots that were
    /// pulled stay. A version that is staged, or on its way, is dropped: call `prefetch` for one of the new
    /// publisher.
    ///
    /// Raises LayoutMismatch if it has another table, PeerGone if it does not come; the reader then stays as it was.
    #[pyo3(signature = (*, timeout=30.0))]
    fn reconnect(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        const RECONNECTING: &str = "connecting again";
        let deadline = Deadline::after(timeout)?;
        let mut attempts = Attempts::of(&self.address, deadline)?;
        self.unpinned(py, RECONNECTING, deadline, |reading| {
            let closing = reading.closing.clone();
            let connected = closing.in_slices(py, RECONNECTING, deadline, |_slice| {
                // A handshake is no wait that can be cut into short slices.
                let connect = |_, address: &_, patience| Ok(reading.reader.reconnect(address, patience));
                let connected = attempts.go_on(connect)?;
                if connected.is_some() {
                    reading.forget();
                    self.forget_staged();
                }
                Ok(connected)
            })?;
            connected.ok_or_else(|| attempts.late().into())
        })
    }

    /// Leaves the publisher. Snapshots that were pulled stay. Calls of other threads that wait end with OutOfTurn.
    ///
    /// Raises OutOfTurn while a version is pinned, and in a handler of a signal that has interrupted a call of this
    /// reader.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let reading = self.take(py)?;
        py.detach(|| {
            self.end();
            drop(reading);
        });
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Reader of {}: {} tensors>", self.address, self.layout.specs.len())
    }
}

closed_by_block!(PyReader);

impl Drop for PyReader {
    fn drop(&mut self) {
        if !self.shared.guard.is_inherited() {
            detached(|| self.end());
        }
    }
}
