//! One shard as a worker sees it: the link to its server, and the own copy of its parameters.

use super::options::WorkerOptions;
use crate::clock::{Clock, Version};
use crate::node::Error;
use crate::node::link::Link;
use crate::param::Epoch;
use crate::scheme::{Bound, Needs};
use crate::transport::Transport;

pub(super) struct Part<T: Transport> {
    pub(super) link: Link<T::Endpoint>,
    /// The offset of its shard in the table, in bytes.
    pub(super) begin: usize,
    pub(super) bytes: usize,
    pub(super) version: Version,
    pub(super) smallest_clock: Clock,
    pub(super) behind: u64,
    /// The copy at hand holds, or shows, this worker's gradients of clocks before this one.
    pub(super) shows: Clock,
    /// A copy must be at least this version: a computation on an earlier one was abandoned.
    pub(super) least: Version,
    pub(super) refreshed: bool,
    pub(super) published: bool,
    pub(super) bytes_published: u64,
    pub(super) bytes_pulled: u64,
}

impl<T: Transport> Part<T> {
    /// Makes the parts over the connections to all shards, in order.
    pub(super) fn of(links: Vec<Link<T::Endpoint>>, options: &WorkerOptions, needs: &Needs) -> Vec<Self> {
        let part = |mut link: Link<T::Endpoint>| {
            let range = link.welcome.range().unwrap_or_default();
            if let Some(publish) = &mut link.publish {
                publish.set_checksums(options.checksums);
                publish.watch_consumed(needs.waits_for_own);
            }
            let shows = link.published();
            Part {
                link,
                begin: range.start as usize,
                bytes: (range.end - range.start) as usize,
                version: Version::new(0),
                smallest_clock: Clock::new(0),
                behind: 0,
                shows,
                least: Version::new(0),
                refreshed: false,
                published: false,
                bytes_published: 0,
                bytes_pulled: 0,
            }
        };
        links.into_iter().map(part).collect()
    }

    /// Returns the bound that a copy of this shard must satisfy where the scheme asks for `bound`.
    pub(super) fn bound(&self, bound: Bound) -> Bound {
        Bound { version: bound.version.max(self.least), ..bound }
    }

    /// The incarnation of the server that it is connected to, and the newest version that it knows of.
    pub(super) fn reached(&mut self) -> (Epoch, Version) {
        let copied = self.link.refreshing().seen().unwrap_or(Bound::NONE).version;
        (self.link.welcome.epoch, self.version.max(self.link.line.seen.version).max(copied))
    }
}

/// Has each copy say which of this worker's gradients it holds, where that is wanted.
pub(super) fn ask_included<T: Transport>(
    parts: &mut [Part<T>],
    options: &WorkerOptions,
) -> Result<(), Error> {
    match options.own_step {
        None => Ok(()),
        Some(_) => parts.iter_mut().try_for_each(|part| part.link.ask_included()),
    }
}
