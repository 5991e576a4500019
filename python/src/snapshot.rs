//! One version of a table, whole, as a mapping of names to arrays.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList};

use slackline::{Fresh, VersionTag};

use crate::errors::{Class, Failure};
use crate::lease::Lease;
use crate::record::{self, Read};
use crate::table::Layout;
use crate::view::ArrayView;

/// The memory in which the tensors of a table lie.
pub(crate) enum Storage {
    /// All of them, laid out as the table says.
    Whole(Arc<Lease>),
    /// Each in an array of the caller's; arrays on a GPU cannot be lent.
    Each(Vec<Option<Arc<Lease>>>),
}

fn on_gpu() -> Failure {
    let remedy = "use the tensor that the version was pulled into";
    Failure::new(Class::Unsupported, "looking at an array", "it is in memory of a GPU", remedy)
}

/// Tensors of a table, by name.
pub(crate) struct Tensors {
    pub(crate) layout: Arc<Layout>,
    pub(crate) storage: Storage,
    pub(crate) is_read_only: bool,
}

impl Tensors {
    fn lent(&self, index: usize) -> Result<ArrayView, Failure> {
        let spec = Arc::clone(&self.layout.specs[index]);
        let (lease, offset) = match &self.storage {
            Storage::Whole(lease) => (lease, spec.offset),
            Storage::Each(leases) => (leases[index].as_ref().ok_or_else(on_gpu)?, 0),
        };
        lease.check()?;
        Ok(ArrayView::new(Arc::clone(lease), offset, spec, self.is_read_only))
    }

    pub(crate) fn view(&self, py: Python<'_>, index: usize) -> PyResult<Py<ArrayView>> {
        Py::new(py, self.lent(index)?)
    }

    pub(crate) fn find(&self, py: Python<'_>, name: &str) -> PyResult<Py<ArrayView>> {
        let index = self.layout.find(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        self.view(py, index)
    }

    pub(crate) fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.layout.specs.iter().map(|spec| spec.name.as_str()))
    }
}

/// A view of a mapping, of the class of this name in `collections.abc`.
pub(crate) fn view_of<'py>(mapping: &Bound<'py, PyAny>, class: &str) -> PyResult<Bound<'py, PyAny>> {
    mapping.py().import("collections.abc")?.call_method1(class, (mapping,))
}

/// Gives a class that has `tensors` the methods of a mapping of names to arrays.
macro_rules! mapping {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Py<ArrayView>> {
                self.tensors.find(py, name)
            }

            fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
                let name = name.extract::<String>();
                name.is_ok_and(|name| self.tensors.layout.find(&name).is_some())
            }

            fn __len__(&self) -> usize {
                self.tensors.layout.specs.len()
            }

            fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
                self.tensors.names(py)?.try_iter()
            }

            /// The names, in the order of the table: a KeysView.
            fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                $crate::snapshot::view_of(slf, "KeysView")
            }

            /// The arrays, in the order of the table: a ValuesView.
            fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                $crate::snapshot::view_of(slf, "ValuesView")
            }

            /// Pairs of name and array, in the order of the table: an ItemsView.
            fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                $crate::snapshot::view_of(slf, "ItemsView")
            }

            /// The array of this name, or `default`.
            #[pyo3(signature = (name, default=None, /))]
            fn get(
                &self,
                py: Python<'_>,
                name: &str,
                default: Option<Py<PyAny>>,
            ) -> PyResult<Option<Py<PyAny>>> {
                match self.tensors.layout.find(name) {
                    Some(index) => Ok(Some(self.tensors.view(py, index)?.into_any())),
                    None => Ok(default),
                }
            }

            /// The tensor of this name as a numpy array, without a copy: see [`ArrayView.numpy`].
            fn numpy<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
                ArrayView::numpy(self.tensors.find(py, name)?.bind(py))
            }

            /// The tensor of this name as a torch tensor, without a copy: see [`ArrayView.torch`].
            fn torch<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
                ArrayView::torch(self.tensors.find(py, name)?.bind(py), false)
            }
        }
    };
}
pub(crate) use mapping;

/// The facts about the version that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) version: u64,
    pub(crate) epoch: u64,
    /// The incarnation of the publisher that made it; 0 from a server.
    pub(crate) origin: u64,
    pub(crate) staleness: u64,
    pub(crate) tag: VersionTag,
    pub(crate) published_ns: u64,
}

impl Facts {
    pub(crate) fn of(fresh: &Fresh) -> Facts {
        let Fresh { version, epoch, origin, behind, tag, published_ns, .. } = *fresh;
        Facts { version: version.get(), epoch, origin, staleness: behind, tag, published_ns }
    }

    /// The facts of a server about its parameters.
    pub(crate) fn of_server(version: u64, epoch: u64, staleness: u64) -> Facts {
        Facts { version, epoch, origin: 0, staleness, tag: VersionTag::default(), published_ns: 0 }
    }
}

/// Exactly one version of a table: a mapping of names to read-only arrays.
///
/// A snapshot of `pull` is a copy of its own that stays as it is; one of `pin` lies in the publisher's memory and can
/// be looked at until the pin ends.
#[pyclass(frozen, mapping, module = "slackline")]
pub(crate) struct Snapshot {
    pub(crate) tensors: Tensors,
    pub(crate) facts: Facts,
    /// There if a reader has read it.
    pub(crate) read: Option<Read>,
}

#[pymethods]
impl Snapshot {
    /// The number of the version; the first that is published is 1, or the one after the publisher's `begin_at`.
    #[getter]
    fn version(&self) -> u64 {
        self.facts.version
    }

    /// The incarnation of the owner that it was read from: of the publisher, or behind a relay of that relay.
    #[getter]
    fn epoch(&self) -> u64 {
        self.facts.epoch
    }

    /// The epoch of the publisher that made the version, also behind relays; 0 from a server, and behind a relay of a
    /// server the epoch of that server.
    #[getter]
    fn origin(&self) -> u64 {
        self.facts.origin
    }

    /// The number of versions by which it was behind the newest of the owner that it was read from, when it was read; a
    /// relay may itself be behind its publisher.
    #[getter]
    fn staleness(&self) -> u64 {
        self.facts.staleness
    }

    /// The step that the publisher gave the version; 0 if it gave none.
    #[getter]
    fn step(&self) -> u64 {
        self.facts.tag.step
    }

    /// The label that the publisher gave the version: 32 bytes, with zeros behind a shorter one.
    #[getter]
    fn label<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.facts.tag.label)
    }

    /// The time at which it was published, in nanoseconds since 1970 by the clock of the publisher's host; 0 from a
    /// server, and of version 0 of a publisher, which was not published.
    #[getter]
    fn published_ns(&self) -> u64 {
        self.facts.published_ns
    }

    /// Its age now, in seconds since it was published, by the clocks of the two hosts; None where `published_ns` is 0.
    /// (`staleness` counts versions.)
    #[getter]
    fn age(&self) -> Option<f64> {
        let published = self.facts.published_ns;
        (published > 0).then(|| (i128::from(record::time_of_day()) - i128::from(published)) as f64 / 1e9)
    }

    /// The record of this read, a line of JSON without its end: by it and the publisher's records, `check` and the
    /// program `slackline check` judge the request and the result. It computes the SHA-256 of each tensor that was read
    /// whole, as it is at this moment, without the interpreter.
    ///
    /// Raises OutOfTurn once the pin has ended, Unsupported for parameters of a worker or a server.
    fn certificate(&self, py: Python<'_>) -> PyResult<String> {
        let read = self.read.as_ref().ok_or_else(record::no_read)?;
        let specs = &self.tensors.layout.specs;
        let digests = py.detach(|| -> Result<BTreeMap<_, _>, Failure> {
            let whole = specs.iter().enumerate().filter(|(_, spec)| read.is_whole(spec));
            whole.map(|(index, spec)| Ok((spec.name.clone(), self.tensors.lent(index)?.digest()?))).collect()
        })?;
        Ok(read.certificate(&self.facts, digests).to_string())
    }

    fn __repr__(&self) -> String {
        let Facts { version, epoch, staleness, .. } = self.facts;
        let tensors = self.tensors.layout.specs.len();
        format!("<Snapshot version {version} epoch {epoch:#x} staleness {staleness}: {tensors} tensors>")
    }
}

mapping!(Snapshot);
