//! The relay: a reader that serves the versions that it reads.

mod announcer;
mod pace;
mod passing;

use std::sync::Arc;

use self::passing::InTree;
#[cfg_attr(not(feature = "sim"), allow(unused_imports, reason = "a simulator drives it by itself"))]
pub(crate) use self::passing::Passing;
use self::passing::{RelayReport, RelayState};
use super::runtime::complete;
use super::{Error, PublisherOptions, ReaderStatus};
use crate::clock::Version;
use crate::mem::{ForkGuard, OwnThread};
use crate::time::Duration;
use crate::transport::{Address, Transport};

/// Reads each version of a publisher or of another relay, and serves it to readers and relays of its own: the same
/// version with the same number, tag, time and origin. Only the epoch is its own, since its memory is.
///
/// A version is passed on chunk by chunk as it lands, and is taken by no reader before it is proved to be whole. A
/// relay holds the versions that its readers read, as a publisher does, so that one copy for each host serves all of
/// its local readers. A thread of its own does all of this.
///
/// A relay whose owner is lost continues to serve its newest version and connects to the next of its upstream
/// addresses, such as the publisher after a relay. It ends if it finds another origin, another table or a server that
/// has started again there: the numbers of its versions would mean something else. Its readers are told so, and it
/// says why ([`failure`](Self::failure)).
///
/// ```
/// use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted};
/// use slackline::{Address, ElementType, Shm, Table, VersionTag};
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(10);
/// let table = Table::flat(8, ElementType::F32)?;
/// let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default())?;
/// let publisher = publisher.into_background()?;
/// let upstream = [publisher.address()];
/// let relay = Relay::start(Shm::new(), &upstream, &Address::random(), PublisherOptions::default(), timeout)?;
/// let mut reader = Reader::connect(Shm::new(), relay.address(), ReaderOptions::default(), timeout)?;
///
/// let version = publisher.publish(&[7; 32], VersionTag::step(100), timeout)?;
/// let snapshot = reader.snapshot(Wanted::at_least(version), timeout)?;
/// assert_eq!((snapshot.bytes(), snapshot.fresh().tag.step), (&[7; 32][..], 100));
/// assert_eq!(snapshot.fresh().origin, publisher.epoch());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    address: Address,
    state: Arc<RelayState>,
    thread: Option<OwnThread>,
    guard: ForkGuard,
}

/// Time between two attempts of a relay to begin, or of one in a tree to begin again.
const BEGIN_AGAIN: Duration = Duration::from_millis(100);

/// Longest time of one attempt to begin again: a relay that is dropped waits for it.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);

impl Relay {
    /// Connects to the first of `upstream` that answers within `timeout`, and begins to serve at `address`. Readers
    /// that connect before its first copy is there wait for it. The number of frames and the length of chunks are the
    /// upstream's; `options` does not change them.
    ///
    /// # Errors
    /// No upstream answers; it holds a shard only, not the whole table; `address` cannot be had.
    pub fn start<T: Transport + Clone>(
        transport: T,
        upstream: &[Address],
        address: &Address,
        options: PublisherOptions,
        timeout: Duration,
    ) -> Result<Relay, Error> {
        let passing = complete(Passing::begin(transport, upstream, address, options, timeout))?;
        Self::run(passing, |_| None)
    }

    /// Joins the tree that the publisher at `publisher` arranges of its relays, and begins to serve at `address`. The
    /// publisher says which owner this relay reads from: a relay on the same host if there is one, else the owner
    /// nearest to the publisher that has a branch left ([`PublisherOptions::branches`]) and to which versions do not
    /// come slowly. The relay announces itself three times in a lease of the publisher's, and moves when it is told
    /// to, or when its owner is lost. Readers find it by
    /// [`ReaderOptions::in_tree`](crate::node::ReaderOptions::in_tree).
    ///
    /// `address` is told to others: it must be one at which they reach it. If the publisher has a successor at its
    /// address, the relay ends its readers' connections and begins again with the successor's versions.
    ///
    /// ```
    /// use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted};
    /// use slackline::{Address, ElementType, Shm, Table, VersionTag};
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_secs(10);
    /// let (options, table) = (PublisherOptions::default(), Table::flat(8, ElementType::F32)?);
    /// let publisher = Publisher::new(Shm::new(), &Address::random(), table, options.clone())?;
    /// let publisher = publisher.into_background()?;
    /// let root = publisher.address();
    /// let relay = Relay::join(Shm::new(), &root, &Address::random(), options, timeout)?;
    ///
    /// let in_tree = ReaderOptions { in_tree: true, ..ReaderOptions::default() };
    /// let mut reader = Reader::connect(Shm::new(), &root, in_tree, timeout)?;
    /// let version = publisher.publish(&[7; 32], VersionTag::step(100), timeout)?;
    /// assert_eq!(reader.snapshot(Wanted::at_least(version), timeout)?.bytes(), [7; 32]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The publisher does not answer within `timeout`, or none of the owners that it names lets the relay in;
    /// `address` cannot be had, or names no host.
    pub fn join<T: Transport + Clone>(
        transport: T,
        publisher: &Address,
        address: &Address,
        options: PublisherOptions,
        timeout: Duration,
    ) -> Result<Relay, Error> {
        if names_no_host(address) {
            let reason = "other hosts cannot reach it: give the address of one of this host's interfaces";
            return Err(Error::Option { option: "address", value: address.to_string(), reason });
        }
        let mut tree = InTree { transport, publisher: publisher.clone(), address: address.clone(), options };
        let passing = complete(tree.begin(timeout))?;
        tree.address = passing.address();
        Self::run(passing, move |state| {
            while !state.is_over() {
                match complete(tree.begin(timeout.min(BEGIN_WITHIN))) {
                    Ok(passing) => return Some(passing),
                    Err(error) => tracing::warn!(%error, "the relay cannot begin again yet"),
                }
                std::thread::sleep(BEGIN_AGAIN);
            }
            None
        })
    }

    /// Runs a relay in a thread. If the versions upstream come from another publisher, `again` starts the relay once
    /// more.
    fn run<T: Transport>(
        mut passing: Passing<T>,
        again: impl Fn(&RelayState) -> Option<Passing<T>> + Send + 'static,
    ) -> Result<Relay, Error> {
        let (address, state) = (passing.address(), Arc::new(RelayState::default()));
        let told = state.clone();
        let thread = OwnThread::start("slackline-relay", move || {
            while let Err(error) = complete(passing.run(|| told.is_over(), |publisher| told.note(publisher)))
            {
                // Its address is free, and its readers are told, before it begins once more.
                drop(passing);
                told.report().readers.clear();
                let begun = matches!(error, Error::AnotherPublisher | Error::AnotherTable { .. })
                    .then(|| again(&told))
                    .flatten();
                passing = match begun {
                    Some(begun) => begun,
                    None => {
                        tracing::error!(%error, "the relay ends");
                        told.report().failure = Some(Arc::new(error));
                        return;
                    }
                };
            }
        });
        let thread = thread.map_err(|source| Error::Thread { what: "the relay", source })?;
        Ok(Relay { address, state, thread: Some(thread), guard: ForkGuard::new() })
    }

    /// Returns the address at which readers reach this relay.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The last report of the relay's thread. In a forked child, where its lock may be held for ever, the default.
    fn told<R: Default>(&self, look: impl FnOnce(&RelayReport) -> R) -> R {
        if self.guard.is_inherited() { R::default() } else { look(&self.state.report()) }
    }

    /// The newest version that it serves; 0 in a forked child, which serves none.
    pub fn version(&self) -> Version {
        self.told(|report| report.version)
    }

    /// The readers that are in, each with the version that it holds.
    pub fn readers(&self) -> Vec<ReaderStatus> {
        self.told(|report| report.readers.clone())
    }

    /// The reason why it has ended, if it has.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.told(|report| report.failure.clone())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _has_panicked = thread.end(|| self.state.end());
        }
    }
}

/// Whether it is a socket on every address of this host.
fn names_no_host(address: &Address) -> bool {
    match address {
        Address::Tcp(socket) | Address::Verbs(socket) => socket.ip().is_unspecified(),
        Address::Several(addresses) => addresses.iter().any(names_no_host),
        _ => false,
    }
}
