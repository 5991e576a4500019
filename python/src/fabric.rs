//! The transports of one object, and its addresses.

use std::net::SocketAddr;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use slackline::internals::job::transports::rdma_options;
use slackline::{Address, Mixed, Named, Secret, Shm, Tcp, Verbs, VerbsOptions};

use crate::arguments::wrong_type;
use crate::errors::{Class, Failure};
use crate::gpu;
use crate::names::Search;
use crate::wait::in_thread;

/// The transports of publishers, readers and relays, whose table has a name, or an empty one.
pub(crate) type NamedFabric = Named<Mixed>;

/// The secret of a job: its text, or a file that holds it.
pub(crate) enum SecretSource {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl FromPyObject<'_, '_> for SecretSource {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<SecretSource> {
        let bytes = given.extract().map(SecretSource::Bytes);
        let source = bytes.or_else(|_| given.extract().map(SecretSource::File));
        source.map_err(|_| wrong_type(&given, "give bytes, or the path of a file"))
    }
}

/// Reads the secret; without one, the environment's (`SLACKLINE_SECRET_FILE`, `SLACKLINE_SECRET`).
pub(crate) fn secret(source: Option<SecretSource>) -> Result<Option<Secret>, Failure> {
    let secret = match source {
        None => return Ok(Secret::from_environment()?),
        Some(SecretSource::File(path)) => Secret::from_file(&path)?,
        Some(SecretSource::Bytes(bytes)) => {
            let remedy = "give text, or the path of a file";
            let text = std::str::from_utf8(&bytes);
            let text = text.map_err(|_| {
                Failure::new(Class::BadOption, "reading the secret", "it is not UTF-8", remedy)
            })?;
            Secret::from_text(text, "the argument `secret`")?
        }
    };
    // The environment may demand encryption (`SLACKLINE_TCP_ENCRYPT`).
    Ok(Secret::demanding(Some(secret), false)?)
}

/// Opens the transports to listen at `address`. RDMA is looked for only if the address is of that kind. With a GPU,
/// payloads are on it.
pub(crate) fn fabric(
    source: Option<SecretSource>,
    address: &Address,
    gpu: Option<&gpu::Named>,
) -> Result<Mixed, Failure> {
    open(secret(source)?, address, gpu)
}

/// The secret for processes that only read, made of the job's: bytes for the argument `secret` of a Reader, or for a
/// file or a variable of the environment that it takes its secret from. With it a process reads over TCP and RDMA, and
/// is nothing else: as a publisher, a relay, a server, a worker or a member of a job it is refused. It does not tell
/// the job's secret.
///
/// `secret` is bytes or the path of a file; without it the environment's is taken. Raises Refused if there is none, or
/// if it cannot be one.
#[pyfunction]
#[pyo3(signature = (secret=None))]
pub(crate) fn reading_secret(py: Python<'_>, secret: Option<SecretSource>) -> PyResult<Bound<'_, PyBytes>> {
    let secret = self::secret(secret)?.ok_or_else(|| {
        let remedy = "give the job's secret, or set SLACKLINE_SECRET_FILE";
        Failure::new(Class::Refused, "making a secret for readers", "there is no secret", remedy)
    })?;
    Ok(PyBytes::new(py, secret.reading().expose().as_bytes()))
}

/// As [`fabric`], with a secret that was read.
pub(crate) fn open(
    secret: Option<Secret>,
    address: &Address,
    gpu: Option<&gpu::Named>,
) -> Result<Mixed, Failure> {
    let mixed = Mixed::new(Shm::new(), secret.clone().map_or_else(Tcp::new, Tcp::with_secret));
    let mixed = match rdma(address) {
        Some(peer) => {
            let options = rdma_options().map_err(|error| Failure::of(Class::BadOption, &error))?;
            mixed.with_verbs(Verbs::open(VerbsOptions { secret, peer: Some(peer.ip()), ..options })?)
        }
        None => mixed,
    };
    // The last one: all of its transports take the GPU.
    Ok(match gpu {
        Some(gpu) => mixed.with_gpu(&gpu.gpu),
        None => mixed,
    })
}

fn rdma(address: &Address) -> Option<SocketAddr> {
    match address {
        Address::Verbs(socket) => Some(*socket),
        Address::Several(addresses) => addresses.iter().find_map(rdma),
        _ => None,
    }
}

/// The address to listen at: the given one, or a new one of the transport.
pub(crate) fn listen_address(py: Python<'_>, address: Option<&str>, transport: &str) -> PyResult<Address> {
    let refuse = |cause: String, remedy: &str| {
        Err(Failure::new(Class::BadOption, "choosing an address", cause, remedy).into())
    };
    let Some(text) = address else {
        return match transport {
            "auto" | "shm" => Ok(Address::random()),
            "tcp" => Ok(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))),
            "verbs" => refuse("there is no address for verbs".into(), "give address=\"verbs:IP:PORT\""),
            other => refuse(format!("there is no transport {other:?}"), "use auto, shm, tcp or verbs"),
        };
    };
    let search = Search::of(text)?;
    let mut addresses = match search.known() {
        Some(addresses) => addresses,
        None => in_thread(py, "finding a host", move |_| search.once())?,
    };
    let address = match addresses.len() {
        1 => addresses.remove(0),
        _ => Address::Several(addresses),
    };
    let fits = match transport {
        "auto" => true,
        "shm" => matches!(address, Address::Abstract(_) | Address::Path(_)),
        "tcp" => matches!(address, Address::Tcp(_)),
        "verbs" => matches!(address, Address::Verbs(_)),
        other => return refuse(format!("there is no transport {other:?}"), "use auto, shm, tcp or verbs"),
    };
    match fits {
        true => Ok(address),
        false => refuse(format!("{address} is no address of {transport}"), "use transport=\"auto\""),
    }
}
