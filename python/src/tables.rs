//! `slackline.Tables`: several publishers behind one address.

use pyo3::prelude::*;

use slackline::weights::PublisherOptions;
use slackline::{Error, Mixed, ShardOptions, Tables, Version};

use crate::errors::Failure;
use crate::fabric::{self, SecretSource};
use crate::owned::{Owned, closed_by_block};
use crate::publisher::{PyPublisher, differences};
use crate::wait::{idle as way_to_idle, time};

/// One address at which several publishers serve a table each, by name: the weights of a model and its adapters, say.
/// Each table has tensors, versions, readers and options of its own; `Reader(tables.address, table=name)` reads it.
///
/// `address`, `transport` and `secret` are as for a Publisher. Publishers that are open go on after `close`, until they
/// are closed themselves.
///
/// Raises Refused if an address beyond this host has no secret, BadOption if the address is of another host, its folder
/// is missing or the rights do not suffice, and PeerGone if another process listens there or the name of its host is
/// not found.
#[pyclass(frozen, module = "slackline", name = "Tables")]
pub(crate) struct PyTables {
    tables: Owned<Tables<Mixed>>,
    address: String,
}

#[pymethods]
impl PyTables {
    #[new]
    #[pyo3(signature = (*, address=None, transport="auto", secret=None))]
    fn new(
        py: Python<'_>,
        address: Option<&str>,
        transport: &str,
        secret: Option<SecretSource>,
    ) -> PyResult<PyTables> {
        let address = fabric::listen_address(py, address, transport)?;
        let tables = py.detach(|| -> Result<_, Failure> {
            Ok(Tables::listen(fabric::fabric(secret, &address, None)?, &address).map_err(Error::from)?)
        })?;
        let address = tables.address().to_string();
        Ok(PyTables { tables: Owned::new(tables, ("the tables are closed", "make new ones")), address })
    }

    /// Begins to serve a table by this name (at most 255 bytes), and returns its Publisher. `table` and the options
    /// are as for a Publisher. A name is free again once its publisher is closed.
    ///
    /// Raises PeerGone if a table of this name is served already, LayoutMismatch if the table cannot be.
    #[pyo3(signature = (name, table, *, frames=3, readers=64, lease=3.0, begin_at=0, branches=2, deltas=0,
        delta_bytes=None, checksums=false, idle="sleep"))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn publisher(
        &self,
        py: Python<'_>,
        name: &str,
        table: &Bound<'_, PyAny>,
        frames: u8,
        readers: u16,
        lease: f64,
        begin_at: u64,
        branches: u16,
        deltas: u8,
        delta_bytes: Option<u64>,
        checksums: bool,
        idle: &str,
    ) -> PyResult<PyPublisher> {
        let memory = ShardOptions {
            frames,
            peers: readers,
            lease: time("lease", lease)?,
            checksums,
            idle: way_to_idle(idle)?,
            ..ShardOptions::default()
        };
        let (begin_at, deltas) = (Version::new(begin_at), differences(deltas, delta_bytes)?);
        let options = PublisherOptions { memory, begin_at, deltas, branches, ..PublisherOptions::default() };
        let (named, address) =
            self.tables.ask("publishing a table", |tables| (tables.named(name), tables.address().clone()))?;
        PyPublisher::begin(py, table, &address, options, (None, None), || Ok(named))
    }

    /// The address at which all tables are reached.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The names of the tables that are served now, in order.
    #[getter]
    fn names(&self) -> PyResult<Vec<String>> {
        Ok(self.tables.ask("asking for the names", Tables::names)?)
    }

    /// Takes no further publishers in; the address is free once all of them are closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let tables = self.tables.take("closing the tables")?;
        py.detach(|| drop(tables));
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Tables at {}>", self.address)
    }
}

closed_by_block!(PyTables);
