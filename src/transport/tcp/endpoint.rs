//! One connected peer, as its user holds it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::connection::{Connection, lock};
use super::engine::{Command, Engine};
use super::heartbeat::HeartbeatLane;
use super::hello::Lane;
use super::initiator::{Broken, ENDED, Initiator};
use super::socket::Socket;
use crate::channel;
#[cfg(feature = "cuda")]
use crate::cuda::Tickets;
use crate::mem::{ForkGuard, LocalSlice, RemoteSlice};
use crate::transport::doorbell::Doorbell;
use crate::transport::staging::StagedPosting;
use crate::transport::{
    Disconnected, Endpoint, GpuPath, HeartbeatWord, PostError, Remains, WorkCompletion, WorkRequest,
};

pub(super) const FORKED: &str = "used in a forked child; connect again there";
const INHERITED: Disconnected = Disconnected { reason: FORKED };
const CLOSED: &str = "this side closed the connection";

/// One connected peer, reached over TCP.
pub struct TcpEndpoint {
    connection: Arc<Connection>,
    /// The lane of this side's requests; none on the accepting side until the peer has dialled it.
    pub(super) data: Option<Initiator>,
    /// The staging in front of that lane, where this side has a GPU.
    staged: Option<Box<StagedPosting>>,
    pub(super) heartbeat: Arc<Mutex<HeartbeatLane>>,
    /// The thread that serves the peer's requests; none if the peer was granted nothing.
    engine: Option<Arc<Engine>>,
    queue_depth: usize,
    /// True once the thread was told that the connection is over.
    is_forgotten: bool,
    guard: ForkGuard,
}

impl TcpEndpoint {
    /// The connecting side: all of its lanes are there.
    pub(super) fn connected(
        connection: Arc<Connection>,
        data: Socket,
        heartbeat: Option<Socket>,
        engine: Option<Arc<Engine>>,
        queue_depth: usize,
        doorbell: Option<Arc<Doorbell>>,
    ) -> TcpEndpoint {
        let mut data = Initiator::new(data, connection.theirs.blob.epoch, queue_depth);
        if let Some(doorbell) = doorbell {
            data.set_doorbell(doorbell);
        }
        let staged = staged(&connection, queue_depth);
        TcpEndpoint {
            data: Some(data),
            staged,
            heartbeat: Arc::new(Mutex::new(HeartbeatLane::new(Arc::clone(&connection), heartbeat))),
            engine,
            connection,
            queue_depth,
            is_forgotten: false,
            guard: ForkGuard::new(),
        }
    }

    /// The accepting side: lanes for its own requests come when the peer has dialled them.
    pub(super) fn accepted(
        connection: Arc<Connection>,
        engine: Arc<Engine>,
        queue_depth: usize,
    ) -> TcpEndpoint {
        let staged = staged(&connection, queue_depth);
        TcpEndpoint {
            data: None,
            staged,
            heartbeat: Arc::new(Mutex::new(HeartbeatLane::new(Arc::clone(&connection), None))),
            engine: Some(engine),
            connection,
            queue_depth,
            is_forgotten: false,
            guard: ForkGuard::new(),
        }
    }

    /// Takes the lane for requests, if it stands by now.
    #[inline]
    fn take_data(&mut self) {
        if self.data.is_none() && !self.connection.theirs.grants.is_empty() {
            self.data = take_lane(&self.connection, self.queue_depth);
        }
    }

    /// Makes the end of any part of the connection the end of all of it.
    #[inline]
    fn settle(&mut self) {
        let broken = self.data.as_ref().and_then(Initiator::broken);
        if broken.is_some() || self.connection.over().is_some() {
            self.end(broken);
        }
    }

    #[cold]
    fn end(&mut self, broken: Option<Broken>) {
        let reason = broken.map(|Broken(reason)| reason);
        // The end of the other lanes, which follows, tells less.
        reason.filter(|reason| *reason != ENDED).into_iter().for_each(|reason| self.connection.fail(reason));
        // The lane for heartbeats may hold the reason why the peer closed them, if the other lane had no room for it.
        lock(&self.heartbeat).look();
        reason.into_iter().for_each(|reason| self.connection.fail(reason));
        if let (Some(data), Some(over)) = (&mut self.data, self.connection.over()) {
            data.end(Broken(over.reason));
        }
        if !self.is_forgotten {
            self.is_forgotten = true;
            lock(&self.heartbeat).close();
            if let Some(engine) = &self.engine {
                engine.tell(Command::Forget(Arc::clone(&self.connection)));
            }
        }
    }
}

fn staged(connection: &Connection, queue_depth: usize) -> Option<Box<StagedPosting>> {
    StagedPosting::new(connection.gpu.as_ref()?, connection.longest_grant(), queue_depth)
}

#[cold]
fn take_lane(connection: &Connection, queue_depth: usize) -> Option<Initiator> {
    let socket = connection.reverse(Lane::ReverseData).take()?;
    Some(Initiator::new(socket, connection.theirs.blob.epoch, queue_depth))
}

impl Endpoint for TcpEndpoint {
    #[inline]
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        if self.guard.is_inherited() {
            return Err(INHERITED.into());
        }
        self.settle();
        self.connection.check()?;
        let depth = self.queue_depth;
        if batch.len() > depth {
            return Err(PostError::BatchTooLong { batch: batch.len(), depth });
        }
        for (index, request) in batch.iter().enumerate() {
            let gpu = self.connection.gpu.as_ref();
            let checked = gpu.map_or_else(|| request.check(), |gpu| request.check_with(gpu));
            checked.map_err(|reason| PostError::Malformed { index, reason })?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        let grants_nothing = self.connection.theirs.grants.is_empty();
        self.take_data();
        let Some(data) = &mut self.data else {
            if grants_nothing {
                return Err(PostError::Malformed { index: 0, reason: "the peer granted nothing" });
            }
            // The peer dials the lane right after it was accepted.
            return Err(PostError::QueueFull { free: 0, batch: batch.len() });
        };
        let posted = match &mut self.staged {
            Some(staged) => staged.post(data, batch),
            None => data.post(batch),
        };
        self.settle();
        posted
    }

    #[inline]
    fn poll(&mut self) -> Option<WorkCompletion> {
        if self.guard.is_inherited() {
            return None;
        }
        if self.connection.over().is_some() {
            self.settle();
        }
        let data = self.data.as_mut()?;
        let completion = match &mut self.staged {
            Some(staged) => staged.poll(data),
            None => data.poll(),
        };
        self.settle();
        completion
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        if self.guard.is_inherited() {
            return Err(INHERITED);
        }
        if self.connection.over().is_none() {
            // A peer that goes, or lets this side go, closes the lanes that the progress thread serves as well, which
            // tells the connection: it costs a system call for each lane and look only where there are none.
            let is_told = self.engine.is_some();
            self.take_data();
            match (&mut self.data, &mut self.staged) {
                (Some(data), Some(staged)) if !staged.is_idle() => staged.advance(data),
                (Some(data), _) if !(is_told && data.is_idle()) => data.advance(),
                _ => {}
            }
            if !is_told {
                lock(&self.heartbeat).look();
            }
        }
        self.settle();
        self.connection.check()
    }

    fn map(&self, _remote: &RemoteSlice) -> Option<LocalSlice> {
        None
    }

    fn transport(&self) -> &'static str {
        super::NAME
    }

    fn gpu_path(&self) -> Option<GpuPath> {
        self.connection.gpu.as_ref().map(|_| super::GPU_PATH.clone())
    }

    #[cfg(feature = "cuda")]
    fn awaited_copies(&self) -> Option<&Tickets> {
        self.staged.as_ref()?.awaited_copies()
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        if self.guard.is_inherited() {
            return Err(INHERITED.into());
        }
        self.connection.check()?;
        if !self.connection.is_writable_word(word) {
            let reason = "a heartbeat word is one granted, aligned, writable word";
            return Err(PostError::Malformed { index: 0, reason });
        }
        Ok(Box::new(TcpHeartbeatWord {
            heartbeat: Arc::clone(&self.heartbeat),
            word: *word,
            guard: self.guard,
        }))
    }

    fn wake(&mut self) {
        if let (Some(engine), None, false) = (&self.engine, self.connection.over(), self.guard.is_inherited())
        {
            engine.wake(&self.connection);
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.data.as_ref().map(|data| data.socket().as_fd())
    }

    fn hear_wake(&mut self) {
        if self.guard.is_inherited() {
            return;
        }
        if let Some(data) = &mut self.data {
            data.advance();
        }
        self.settle();
    }

    fn allow_silence(&mut self, lease: Duration) {
        // Lanes are made for that much.
        if lease <= channel::SILENCE_MIN || self.guard.is_inherited() {
            return;
        }
        self.connection.allow_silence(lease);
        self.data.iter().for_each(|data| self.connection.allow_silence_on(data.socket()));
        lock(&self.heartbeat).allow_silence();
        if let Some(engine) = &self.engine {
            engine.tell(Command::AllowSilence(Arc::clone(&self.connection)));
        }
    }

    fn count_arrivals(&mut self) {
        self.connection.count_arrivals();
    }

    fn arrivals(&self) -> Option<u64> {
        self.connection.arrivals()
    }

    fn close(mut self, code: u64) -> Option<Remains> {
        if let (Some(engine), None, false) = (&self.engine, self.connection.over(), self.guard.is_inherited())
        {
            let owners = [self.data.take().map(Initiator::into_socket), lock(&self.heartbeat).take()];
            engine.tell(Command::Part(Arc::clone(&self.connection), code, owners));
            self.is_forgotten = true;
        }
        None
    }

    fn close_code(&self) -> Option<u64> {
        let code = self.data.as_ref().and_then(Initiator::close_code);
        if self.guard.is_inherited() {
            // A thread of the parent may have held the other lane's lock when that forked.
            return code;
        }
        code.or_else(|| lock(&self.heartbeat).close_code())
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        if !self.guard.is_inherited() {
            self.connection.fail(CLOSED);
            self.data = None;
            self.end(None);
        }
    }
}

/// A word at the peer, for as long as the connection lasts.
struct TcpHeartbeatWord {
    heartbeat: Arc<Mutex<HeartbeatLane>>,
    word: RemoteSlice,
    guard: ForkGuard,
}

impl HeartbeatWord for TcpHeartbeatWord {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        if self.guard.is_inherited() {
            return Err(INHERITED);
        }
        lock(&self.heartbeat).set(&self.word, value)
    }
}
