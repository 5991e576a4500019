//! The sockets that the thread of the engine waits at, and the events that it looks for at each.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::channel::Channel;
use crate::transport::tcp::connection::Connection;
use crate::transport::tcp::target::Target;
use rustix::event::epoll;

/// Something that events come from.
pub(super) enum EventSource {
    Finishing(Channel, Arc<Connection>),
    Lane(Target),
}

pub(super) struct SourceEntry {
    /// Grows with every source that this entry has held, so that an event of an earlier one is known.
    pub(super) generation: u32,
    pub(super) interest: epoll::EventFlags,
    pub(super) source: Option<EventSource>,
}

impl EventSource {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        match self {
            EventSource::Finishing(_, connection) => connection,
            EventSource::Lane(target) => target.connection(),
        }
    }

    /// The way in which the system tells of it. Of heartbeats it tells once: each lane is read to its end, and the
    /// system's own second look at it would cost half as much as to read it. The end of a lane is told by itself.
    pub(super) fn told(&self) -> epoll::EventFlags {
        match self {
            EventSource::Lane(target) if target.socket().is_timed() => {
                epoll::EventFlags::ET | epoll::EventFlags::RDHUP
            }
            _ => epoll::EventFlags::empty(),
        }
    }
}

impl AsFd for EventSource {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            EventSource::Finishing(channel, _) => channel.as_fd(),
            EventSource::Lane(target) => target.socket().as_fd(),
        }
    }
}
