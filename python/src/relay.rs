//! `slackline.Relay`.

use std::time::Instant;

use pyo3::prelude::*;

use slackline::weights::{PublisherOptions, Relay};
use slackline::{Address, Named, ShardOptions, Version};

use crate::errors::{Class, Failure, class_of};
use crate::fabric::{self, SecretSource};
use crate::names::Search;
use crate::owned::{Owned, closed_by_block};
use crate::publisher::{PyReaderStatus, differences};
use crate::wait::{in_thread, time, timeout as seconds};

/// Reads each version of a publisher or of another relay and serves it to readers of its own: the same version with the
/// same number, step, label, time and origin. A thread of the library does all of this, so that one copy for each host
/// serves all of its readers.
///
/// `upstream` is the address of an owner, or several with commas between them: if one is lost, the next is asked, and
/// the relay serves its newest version meanwhile. `address`, `transport`, `readers`, `lease` and `secret` are as for a
/// Publisher. Waits at most `timeout` seconds for the first owner.
///
/// `table` is the name of the table where the upstream has several (`Tables`); readers of the relay ask for it by the
/// same name. `deltas` and `delta_bytes` are as for a Publisher: differences for the readers of this relay. Of its
/// upstream it reads differences where there are some. With `checksums` it makes checksums of its own copies, as a
/// Publisher does.
///
/// With `tree`, `upstream` is the address of a Publisher, which says which owner this relay reads from, and sends
/// readers with `tree` to it. At most `branches` relays read from this one. Such a relay goes on with the publisher's
/// successor, under another epoch. Its address must be one at which others reach it.
///
/// Raises PeerGone or DeadlineError if no owner answers, Refused if the secret is another one, or if the relay is to
/// serve over TCP or RDMA with one of `reading_secret`: there it needs the job's. Shared memory asks for no secret.
#[pyclass(frozen, module = "slackline", name = "Relay")]
pub(crate) struct PyRelay {
    relay: Owned<Relay>,
    address: String,
}

#[pymethods]
impl PyRelay {
    #[new]
    #[pyo3(signature = (upstream, *, table="", address=None, transport="auto", readers=64, lease=3.0, timeout=30.0,
        secret=None, tree=false, branches=2, deltas=0, delta_bytes=None, checksums=false))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        upstream: &str,
        table: &str,
        address: Option<&str>,
        transport: &str,
        readers: u16,
        lease: f64,
        timeout: f64,
        secret: Option<SecretSource>,
        tree: bool,
        branches: u16,
        deltas: u8,
        delta_bytes: Option<u64>,
        checksums: bool,
    ) -> PyResult<PyRelay> {
        let (mut upstream, timeout) = (Search::of(upstream)?, seconds(timeout)?);
        let address = fabric::listen_address(py, address, transport)?;
        let lease = time("lease", lease)?;
        let memory = ShardOptions { peers: readers, lease, checksums, ..ShardOptions::default() };
        let deltas = differences(deltas, delta_bytes)?;
        let options = PublisherOptions { memory, branches, deltas, ..PublisherOptions::default() };
        let table = table.to_owned();
        let start = move |is_given_up: &_| {
            let deadline = Instant::now() + timeout;
            let upstream = upstream.until(deadline, is_given_up)?;
            let timeout = deadline.saturating_duration_since(Instant::now());
            let all = Address::Several(upstream.iter().chain([&address]).cloned().collect());
            let fabric = Named::new(fabric::fabric(secret, &all, None)?, &table);
            match (tree, &upstream[..]) {
                (false, _) => Ok(Relay::start(fabric, &upstream, &address, options, timeout)?),
                (true, [publisher]) => Ok(Relay::join(fabric, publisher, &address, options, timeout)?),
                (true, _) => {
                    let remedy = "give the publisher's address alone: it knows the other relays";
                    let cause = "a relay in a tree has one publisher";
                    Err(Failure::new(Class::BadOption, "starting a relay", cause, remedy))
                }
            }
        };
        let relay = in_thread(py, "starting a relay", start)?;
        let address = relay.address().to_string();
        Ok(PyRelay { relay: Owned::new(relay, ("the relay is closed", "make another one")), address })
    }

    /// The address at which readers reach this relay.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The newest version that it serves; 0 before its first copy. Once the relay has ended it raises the reason:
    /// EpochChanged where the versions upstream are of another publisher, LayoutMismatch where they are of another
    /// table.
    #[getter]
    fn version(&self) -> PyResult<u64> {
        let operation = "asking for the version";
        let (version, failure) = self.relay.ask(operation, |relay| (relay.version(), relay.failure()))?;
        match failure {
            None => Ok(Version::get(version)),
            Some(failure) => Err(Failure::of(class_of(&failure), &*failure).into()),
        }
    }

    /// The connected readers, each with the version that it holds.
    #[getter]
    fn readers(&self) -> PyResult<Vec<PyReaderStatus>> {
        let readers = self.relay.ask("asking for the readers", Relay::readers)?;
        Ok(readers.into_iter().map(PyReaderStatus).collect())
    }

    /// Ends the relay; its readers are told.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let relay = self.relay.take("closing the relay")?;
        py.detach(|| drop(relay));
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Relay at {}>", self.address)
    }
}

closed_by_block!(PyRelay);
