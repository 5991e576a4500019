//! Joining the servers of all shards, at one clock.

use std::sync::Arc;

use super::{ReadMode, WorkerOptions};
use crate::clock::{Clock, Version};
use crate::diagnostic::Diagnostic;
use crate::node::link::{Link, NewPeer};
use crate::node::runtime::Runtime;
use crate::node::shard::random_word;
use crate::node::wait::retry;
use crate::node::{Awaited, Error};
use crate::param::{Epoch, PeerRole, WorkerProgress};
use crate::scheme::{AnyScheme, Bound, Needs, SchemeConfigError};
use crate::table::Table;
use crate::time::{Duration, Instant};
use crate::transport::{Address, ConnectError, Doorbell, Endpoint, Transport};

/// The versions that a worker which comes back had reached.
pub(super) struct Reached<'a> {
    pub(super) clock: Clock,
    /// For each shard: the incarnation that it was connected to last, and the newest version that it has seen of that
    /// incarnation.
    pub(super) shards: &'a [(Epoch, Version)],
}

/// The worker that joins.
pub(super) struct JoiningWorker<'a> {
    pub(super) options: &'a WorkerOptions,
    pub(super) scheme: &'a AnyScheme,
    pub(super) identity: u64,
}

/// The scheme of a worker: the scheme that its options name, or else the servers'. Each server refuses a worker of
/// another scheme, so it is enough to ask one of them.
pub(super) async fn scheme<T: Transport>(
    transport: &T,
    servers: &[Address],
    options: &WorkerOptions,
    timeout: Duration,
) -> Result<AnyScheme, Error> {
    if let Some(scheme) = &options.scheme {
        scheme.check()?;
        return Ok(scheme.clone());
    }
    let address = servers.first().ok_or_else(no_server)?;
    let runtime = Runtime::of(transport);
    let deadline = runtime.now() + timeout;
    let may_pass = |error: &Error| options.waits_for_server && error.is_no_listener();
    let ask = async || Link::<T::Endpoint>::ask(transport, address, deadline - runtime.now()).await;
    let text = retry(&runtime, deadline, may_pass, ask).await?.scheme.ok_or_else(|| {
        let reason = format!("{address} is a publisher, which takes readers and no workers");
        Error::Shards { reason }
    })?;
    let scheme = options.schemes.make(&text)?;
    if scheme.to_string() != text {
        let reason =
            format!("the registry made {scheme} of {text}: have it print the settings that it was given");
        return Err(SchemeConfigError::Custom { scheme: scheme.name().to_owned(), reason }.into());
    }
    scheme.check()?;
    Ok(scheme)
}

fn no_server() -> Error {
    Error::Shards { reason: "no server was given".into() }
}

/// Longest time that a server may take to notice that a peer has left.
pub(super) const LEAVING: Duration = Duration::from_millis(50);

/// The most that a worker begins later than it must, so as to begin at the same clock everywhere.
const MARGIN_MAX: u64 = 1 << 20;

struct ServerJoin<'a, T> {
    transport: &'a T,
    runtime: Runtime,
    role: PeerRole,
    wants_push: bool,
    doorbell: Option<Arc<Doorbell>>,
    deadline: Instant,
    timeout: Duration,
}

/// Connects to all shards and returns the connections in their order. A worker that comes back keeps trying until
/// `timeout` has passed: a server may be on its way, too.
pub(super) async fn join<T: Transport>(
    transport: &T,
    servers: &[Address],
    JoiningWorker { options, scheme, identity }: JoiningWorker<'_>,
    reached: Option<Reached<'_>>,
    timeout: Duration,
) -> Result<Vec<Link<T::Endpoint>>, Error> {
    let session = random_word();
    let role = PeerRole::Worker { encoding: options.encoding, scheme: scheme.to_string(), identity, session };
    let Needs { pushes: wants_push, staleness, counts_versions, .. } = scheme.needs();
    let runtime = Runtime::of(transport);
    let deadline = runtime.now() + timeout;
    let doorbell = options.idle.doorbell(&runtime, servers.first().ok_or_else(no_server)?)?;
    let joining = ServerJoin { transport, runtime, role, wants_push, doorbell, deadline, timeout };
    let may_pass_first =
        |error: &Error| error.is_refused_for_now() || (options.waits_for_server && error.is_no_listener());
    let mut links = Vec::with_capacity(servers.len());
    for address in servers {
        links.push(match &reached {
            None => joining.retry(may_pass_first, async || joining.connect(address, None).await).await?,
            Some(reached) => {
                joining.retry(may_pass, async || joining.connect_again(address, reached).await).await?
            }
        });
    }
    links.sort_by_key(|link| link.welcome.shard);
    check_shards(&links)?;
    // Where one server decides, its clock is the clock of all, and the others learn of it a little later.
    if staleness.is_some() || counts_versions {
        joining.meet(&mut links, staleness.unwrap_or(0)).await?;
    }
    Ok(links)
}

/// Returns the clock at which a worker begins. All shards are at one clock, unless the scheme never waits.
pub(super) fn clock<E: Endpoint>(links: &[Link<E>]) -> Clock {
    links.iter().map(|link| link.welcome.clock).max().unwrap_or_default()
}

/// True if a worker that comes back may get in later. It was let in before, so that each refusal may pass: the
/// server may not have noticed yet that it was gone.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Connect(ConnectError::Refused { .. })) || error.is_retryable()
}

impl<T: Transport> ServerJoin<'_, T> {
    fn left(&self) -> Duration {
        self.deadline - self.runtime.now()
    }

    async fn connect(
        &self,
        address: &Address,
        resume: Option<WorkerProgress>,
    ) -> Result<Link<T::Endpoint>, Error> {
        let (role, doorbell) = (self.role.clone(), self.doorbell.clone());
        let peer = NewPeer { role, wants_push: self.wants_push, doorbell, ticket: None };
        Link::connect(self.transport, address, peer, resume, self.left()).await
    }

    /// Asks first which shard it is, for each is told of its own versions.
    async fn connect_again(
        &self,
        address: &Address,
        reached: &Reached<'_>,
    ) -> Result<Link<T::Endpoint>, Error> {
        let welcome = Link::<T::Endpoint>::ask(self.transport, address, self.left()).await?;
        let seen = reached.shards.get(usize::from(welcome.shard));
        let (epoch, version) = seen.copied().unwrap_or((welcome.epoch, Version::new(0)));
        self.connect(address, Some(WorkerProgress { clock: reached.clock, epoch, version })).await
    }

    async fn retry<R>(
        &self,
        may_pass: impl Fn(&Error) -> bool,
        connect: impl AsyncFn() -> Result<R, Error>,
    ) -> Result<R, Error> {
        retry(&self.runtime, self.deadline, may_pass, connect).await
    }

    /// Brings all shards to one clock, the clock of the next gradient for all of them.
    ///
    /// Shards move on one by one, so a worker that comes late, or comes back, may find them at different clocks;
    /// and a restored shard stands where its checkpoint was written. The worker leaves the shards that are not at the
    /// latest clock and joins them again, and asks to begin at that clock: a worker may begin later than it must, for
    /// it then waits for the others and they do not wait for it. If a shard has moved past the requested clock
    /// meanwhile, the worker asks for a later one, with a larger step each time: the shards that it is in hold the
    /// others within its bound, so that a large enough step is past every clock that they can reach while the request
    /// is on its way.
    async fn meet(&self, links: &mut Vec<Link<T::Endpoint>>, staleness: u64) -> Result<(), Error> {
        let mut margin = 0;
        loop {
            let latest = clock(links);
            let Some(behind) =
                links.iter().map(|link| link.welcome.clock).min().filter(|least| *least < latest)
            else {
                return Ok(());
            };
            let target = Clock::new(latest.get().saturating_add(margin));
            if self.left().is_zero() {
                let operation = "joining all shards at one clock";
                let (needed, seen) = (Bound::clock(target), Bound::clock(behind));
                let awaited = Awaited::Workers;
                return Err(Error::Deadline { operation, waited: self.timeout, needed, seen, awaited });
            }
            // The shards furthest behind first: the shards ahead hold the others back longest.
            let mut order: Vec<usize> = (0..links.len()).collect();
            order.sort_by_key(|index| links[*index].welcome.clock);
            for index in order {
                if links[index].welcome.clock == target {
                    continue;
                }
                let (address, epoch) = (links[index].address.clone(), links[index].welcome.epoch);
                let clock = links[index].welcome.clock;
                tracing::info!(%address, clock = clock.get(), to = target.get(), "joining again: the shards differ");
                drop(links.remove(index));
                self.runtime.sleep(LEAVING.min(self.left())).await;
                // Its versions were told of already, if there was anything to tell.
                let resume = WorkerProgress { clock: target, epoch, version: Version::new(0) };
                let connect = async || self.connect(&address, Some(resume)).await;
                links.insert(index, self.retry(may_pass, connect).await?);
            }
            margin = (2 * margin).max(staleness.saturating_add(1)).min(MARGIN_MAX);
        }
    }
}

/// Checks that reading in place is possible, if it is asked for.
pub(super) fn check_read_mode<E: Endpoint>(
    links: &[Link<E>],
    options: &WorkerOptions,
    scheme: &AnyScheme,
) -> Result<(), Error> {
    if options.read != ReadMode::InPlace {
        return Ok(());
    }
    if let Some(step) = options.own_step {
        let reason = "reading in place shows what the servers hold: read copies, or leave it out";
        return Err(Error::Option { option: "own_step", value: step.to_string(), reason });
    }
    links.iter().try_for_each(Link::expect_in_place)?;
    if scheme.needs().pushes {
        let reason = "pushes copies: reading in place has nothing to add";
        return Err(Error::Scheme { scheme: scheme.clone(), reason });
    }
    Ok(())
}

/// Checks that the servers hold the shards of one table, each once.
pub(super) fn check_shards<E: Endpoint>(links: &[Link<E>]) -> Result<Table, Error> {
    let wrong = |reason: String| Error::Shards { reason };
    let first = links.first().ok_or_else(no_server)?;
    if usize::from(first.welcome.shards) != links.len() {
        return Err(wrong(format!("there are {} shards and {} servers", first.welcome.shards, links.len())));
    }
    for (index, link) in links.iter().enumerate() {
        if usize::from(link.welcome.shard) != index || link.welcome.shards != first.welcome.shards {
            return Err(wrong(format!("shard {index} is missing or there twice")));
        }
        if link.welcome.table != first.welcome.table {
            return Err(wrong(format!("{} and {} hold different tables", first.address, link.address)));
        }
    }
    Ok(first.welcome.table.clone())
}
