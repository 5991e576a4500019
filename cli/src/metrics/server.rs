//! A very small HTTP server: one thread, a bounded number of connections, a deadline for each.
//!
//! One thread suffices because it never waits for a client: it polls all of them. (tiny_http, the usual choice, gives
//! each connection a thread and no deadline, so that slow clients add up.) What a request says is left to `httparse`.

use slackline::Diagnostic;
use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Registry, render};

/// Connections at a time; more wait until one ends, which takes no longer than its deadline.
const CONNECTIONS_MAX: usize = 32;

/// Longest time that a client may take from connecting to having read its answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// The longest request that is read.
pub(super) const REQUEST_MAX: usize = 8192;

/// The most headers of a request.
const HEADERS_MAX: usize = 64;

/// Reads and writes for one client in a row: one that sends without end does not keep the others waiting.
const STEPS_MAX: usize = 64;

/// Time for which no connection is taken after one could not be, as when this process has no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The format of the metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const HELP: &str = "A slackline node. Its metrics, for Prometheus and `slackline top`, are at /metrics\n";

/// Metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is in use by another socket.
    #[error(
        "metrics cannot be served at {_0}: the address is in use; {}",
        self.remedy().unwrap_or_default()
    )]
    InUse(SocketAddr),
    /// Anything else.
    #[error("metrics cannot be served at {address}: {error}; {}", self.remedy().unwrap_or_default())]
    Io {
        /// The address that was asked for.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
}

impl Diagnostic for ServeError {
    fn operation(&self) -> &'static str {
        "serving metrics"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ServeError::Io { .. } => "choose an address of this machine for --metrics".into(),
            ServeError::InUse(_) => "choose another port for --metrics".into(),
        })
    }
}

/// Serves what a registry holds, until dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    /// Its end wakes the thread up, and tells it to leave.
    alive: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Begins to serve. Port 0 is whichever is free.
    pub fn start(address: SocketAddr, registry: Registry) -> Result<MetricsServer, ServeError> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => ServeError::InUse(address),
            _ => ServeError::Io { address, error },
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (alive, stop) = UnixStream::pair().map_err(failed)?;
        let thread = std::thread::Builder::new().name("metrics".into());
        let thread = thread.spawn(move || serve(&listener, &stop, &registry)).map_err(failed)?;
        Ok(MetricsServer { address: bound, alive: Some(alive), thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and must not become one here.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, stop: &UnixStream, registry: &Registry) {
    let mut connections: Vec<Connection> = Vec::with_capacity(CONNECTIONS_MAX);
    let mut paused_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        connections.retain(|connection| now < connection.deadline);
        paused_until = paused_until.filter(|until| now < *until);
        let accepts = connections.len() < CONNECTIONS_MAX && paused_until.is_none();

        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(
            connections.iter().map(|connection| PollFd::new(&connection.stream, connection.awaits())),
        );
        if accepts {
            polled.push(PollFd::new(listener, PollFlags::IN));
        }
        let next = connections.iter().map(|connection| connection.deadline).chain(paused_until).min();
        let timeout =
            next.map(|at| Timespec::try_from(at - now).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
        // Interrupted, or out of memory: look again.
        if poll(&mut polled, timeout.as_ref()).is_err() {
            std::thread::yield_now();
            continue;
        }
        let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let mut ready_connections = ready[1..].iter();
        connections.retain_mut(|connection| {
            !ready_connections.next().is_some_and(|ready| *ready) || connection.go_on(registry)
        });
        if accepts && ready.last() == Some(&true) {
            match listener.accept().and_then(|(stream, _)| Connection::new(stream)) {
                Ok(connection) => connections.push(connection),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
                Err(_) => paused_until = Some(Instant::now() + PAUSE),
            }
        }
    }
}

enum Phase {
    /// The part of the request that has come.
    Reads(Vec<u8>),
    /// The answer, and how much of it went out.
    Writes(Vec<u8>, usize),
    /// All went out; the client closes. Closing first could cost it the answer.
    Ends,
}

struct Connection {
    stream: TcpStream,
    deadline: Instant,
    phase: Phase,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, deadline: Instant::now() + DEADLINE, phase: Phase::Reads(Vec::new()) })
    }

    fn awaits(&self) -> PollFlags {
        if matches!(self.phase, Phase::Writes(..)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Does what can be done without waiting; false once there is nothing left to do.
    fn go_on(&mut self, registry: &Registry) -> bool {
        for _ in 0..STEPS_MAX {
            match self.step(registry) {
                Ok(goes_on) if goes_on => {}
                Ok(_) => return false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn step(&mut self, registry: &Registry) -> io::Result<bool> {
        match &mut self.phase {
            Phase::Reads(request) => {
                let mut piece = [0; 1024];
                let read = self.stream.read(&mut piece)?;
                request.extend_from_slice(&piece[..read]);
                if read == 0 {
                    return Ok(false);
                }
                if let Some(answer) = answer(request, registry) {
                    self.phase = Phase::Writes(answer, 0);
                }
            }
            Phase::Writes(answer, written) if *written < answer.len() => {
                *written += self.stream.write(&answer[*written..])?;
            }
            Phase::Writes(..) => {
                self.stream.shutdown(Shutdown::Write)?;
                self.phase = Phase::Ends;
            }
            Phase::Ends => return Ok(self.stream.read(&mut [0; 1024])? > 0),
        }
        Ok(true)
    }
}

/// The answer to a request, unless more of it must come.
pub(super) fn answer(request: &[u8], registry: &Registry) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match parsed.parse(request) {
        Ok(httparse::Status::Partial) if request.len() < REQUEST_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            ("431 Request Header Fields Too Large", plain, "too long\n".into())
        }
        Err(_) => ("400 Bad Request", plain, "not understood\n".into()),
        Ok(httparse::Status::Complete(_)) => {
            let path = parsed.path.unwrap_or_default().split('?').next();
            match (parsed.method, path) {
                (Some("GET" | "HEAD"), Some("/metrics")) => {
                    let (metrics, age) = registry.snapshot();
                    ("200 OK", OPEN_METRICS, render(metrics, age))
                }
                (Some("GET" | "HEAD"), Some("/")) => ("200 OK", plain, HELP.into()),
                (Some("GET" | "HEAD"), _) => ("404 Not Found", plain, HELP.into()),
                _ => ("405 Method Not Allowed\r\nAllow: GET, HEAD", plain, "only GET\n".into()),
            }
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if parsed.method == Some("HEAD") { String::new() } else { body };
    Some((head + &body).into_bytes())
}
