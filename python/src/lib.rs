//! The Python interface of slackline: `slackline._slackline`, of which `slackline/__init__.py` makes the package.
//!
//! Every wait goes on without the interpreter, in slices of at most 100 ms between which signals are looked for. An
//! object may be used by any thread; state that threads share is behind locks, and no thread waits for the interpreter
//! while it holds one that another thread waits for with the interpreter. Making an exception is such a wait: it runs
//! code of Python. All of this holds for an interpreter without a GIL, which stops its threads for the garbage.
//!
//! Memory that a peer may write, and memory of other libraries, is never a Rust reference: it is pointers in
//! [`lease`] and `VolatileSlice`s where it is copied.

mod arguments;
mod buffer;
mod check;
mod device;
mod dlpack;
mod dtype;
mod errors;
mod fabric;
mod fork;
mod frame;
mod gpu;
mod into;
mod job;
mod lease;
mod log;
mod memory;
mod names;
mod owned;
mod pin;
mod publisher;
mod reader;
mod reading;
mod record;
mod relay;
mod server;
mod snapshot;
mod source;
mod table;
mod tables;
mod turns;
mod view;
mod wait;
mod worker;
mod working;

/// The extension module that `slackline` imports.
#[pyo3::pymodule(gil_used = false)]
mod _slackline {
    #[pymodule_export]
    use crate::check::{Verdict, Violation, check};
    #[pymodule_export]
    use crate::fabric::reading_secret;
    #[pymodule_export]
    use crate::frame::Frame;
    #[pymodule_export]
    use crate::gpu::PyGpu;
    #[pymodule_export]
    use crate::job::PyJob;
    #[pymodule_export]
    use crate::log::{start_log, stop_log, take_log};
    #[pymodule_export]
    use crate::pin::Pin;
    #[pymodule_export]
    use crate::publisher::{PyPublisher, PyReaderStatus};
    #[pymodule_export]
    use crate::reader::PyReader;
    #[pymodule_export]
    use crate::relay::PyRelay;
    #[pymodule_export]
    use crate::server::{PyServer, Status};
    #[pymodule_export]
    use crate::snapshot::Snapshot;
    #[pymodule_export]
    use crate::table::TensorSpec;
    #[pymodule_export]
    use crate::tables::PyTables;
    #[pymodule_export]
    use crate::view::ArrayView;
    #[pymodule_export]
    use crate::worker::{Gradient, PyWorker, Step};
}
