//! Asks nodes for their metrics, all at once, and waits for none of them for long.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Answer;
use crate::metrics::{Samples, parse};

/// The longest that a node is waited for; less where the interval is shorter.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The least: a loaded machine takes its time.
const WAIT_MIN: Duration = Duration::from_millis(500);

/// The longest answer that is read.
const ANSWER_MAX: usize = 4 << 20;

/// Nodes that are asked at a time.
const AT_ONCE: usize = 64;

const HEADERS_MAX: usize = 64;

/// The addresses of a host and port, as the system's resolver finds them: it may take half a minute to find none.
type Resolve = fn(&str, u16) -> Resolved;

fn by_the_system(host: &str, port: u16) -> Resolved {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// The answer of a resolver.
type Resolved = io::Result<Vec<SocketAddr>>;

/// A node, as it was given.
#[derive(Clone, Debug)]
pub(super) struct Target {
    name: String,
    host: String,
    port: u16,
    /// Brings the answer of a resolver that has not answered yet. There is one at a time.
    resolving: Arc<Mutex<Option<Receiver<Resolved>>>>,
}

impl Target {
    /// Understands `PORT`, `:PORT` and `HOST:PORT`, with `http://` before it and `/metrics` behind it or not.
    pub(super) fn parse(text: &str) -> Result<Target, String> {
        let inner = text.strip_prefix("http://").unwrap_or(text);
        let inner = inner.strip_suffix("/metrics").unwrap_or(inner).trim_end_matches('/');
        let (host, port) = inner.rsplit_once(':').unwrap_or(("", inner));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_good = bare.is_some() || !host.contains([':', '/', '[', ']']);
        match port.parse() {
            Ok(port)
                if port > 0 && is_good && !host.contains(|c: char| c.is_control() || c.is_whitespace()) =>
            {
                let (host, name) = match (bare, host) {
                    (Some(bare), _) => (bare, inner.to_owned()),
                    (None, "") => ("127.0.0.1", format!("localhost:{port}")),
                    (None, host) => (host, inner.to_owned()),
                };
                Ok(Target { name, host: host.to_owned(), port, resolving: Arc::default() })
            }
            _ => Err("give HOST:PORT, or a PORT of this machine".into()),
        }
    }

    /// The addresses, if they are found within this time. They are looked for in a thread that nothing waits for: what
    /// it finds later is for the next question.
    fn addresses(&self, resolve: Resolve, wait: Duration) -> Option<Resolved> {
        let mut resolving = self.resolving.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match resolving.take() {
            Some(answer) => answer,
            None => {
                let (answered, answer) = channel();
                let (host, port) = (self.host.clone(), self.port);
                let thread = std::thread::Builder::new().name("slackline-resolve".into());
                // Where nothing asks any more, the answer is for no one.
                if let Err(error) = thread.spawn(move || _ = answered.send(resolve(&host, port))) {
                    return Some(Err(error));
                }
                answer
            }
        };
        match answer.recv_timeout(wait) {
            Ok(found) => Some(found),
            Err(RecvTimeoutError::Timeout) => {
                *resolving = Some(answer);
                None
            }
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("the resolver panicked"))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Asks all nodes.
pub(super) fn all(nodes: &[Target], interval: Duration) -> Vec<Answer> {
    let wait = interval.clamp(WAIT_MIN, WAIT_MAX);
    let mut answers = Vec::with_capacity(nodes.len());
    for nodes in nodes.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let asked: Vec<_> =
                nodes.iter().map(|node| scope.spawn(move || ask(node, wait, by_the_system))).collect();
            answers.extend(asked.into_iter().map(|asked| {
                let answer = asked.join().unwrap_or_else(|_| Err("the question panicked".into()));
                (answer, Instant::now())
            }));
        });
    }
    answers
}

fn ask(node: &Target, wait: Duration, resolve: Resolve) -> Result<Samples, String> {
    let deadline = Instant::now() + wait;
    let too_late = || format!("no answer within {} s", wait.as_secs_f64());
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(too_late()) } else { Ok(left) }
    };
    let describe = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => too_late(),
        io::ErrorKind::ConnectionRefused => "connection refused: no process listens there".into(),
        _ => error.to_string(),
    };
    let addresses = node.addresses(resolve, wait).ok_or_else(too_late)?;
    let mut tried = Err("the name has no address".to_owned());
    for address in addresses.map_err(|error| error.to_string())? {
        tried = TcpStream::connect_timeout(&address, left()?).map_err(describe);
        if tried.is_ok() {
            break;
        }
    }
    let mut stream = tried?;
    stream.set_write_timeout(Some(left()?)).map_err(describe)?;
    // HTTP/1.0: the answer ends where the connection does, and comes in one piece.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {node}\r\nAccept: text/plain\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(describe)?;
    let mut answer = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        stream.set_read_timeout(Some(left()?)).map_err(describe)?;
        match stream.read(&mut piece).map_err(describe)? {
            0 => break,
            _ if answer.len() > ANSWER_MAX => return Err("the answer does not end".into()),
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    understand(&answer)
}

fn understand(answer: &[u8]) -> Result<Samples, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(begin)) = response.parse(answer) else {
        return Err("what answers is no metrics server".into());
    };
    if response.code != Some(200) {
        return Err(format!("answered {} to /metrics", response.code.unwrap_or_default()));
    }
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length =
        length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse::<usize>().ok());
    let body = &answer[begin..];
    if length.is_some_and(|length| body.len() < length) {
        return Err("the answer ended early".into());
    }
    parse(&String::from_utf8_lossy(body)).map_err(|error| error.to_string())
}

/// Takes whatever `bytes` are for the answer of a node.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_answer(bytes: &[u8]) {
    if let Err(why) = understand(bytes) {
        assert!(!why.is_empty());
    }
}

/// Answers of a node and of another server.
#[cfg(any(test, fuzzing))]
pub(crate) fn answer_samples() -> Vec<Vec<u8>> {
    let answers = [
        "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nx 1\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx{y=\"z\"} 2\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    ];
    answers.map(|answer| answer.as_bytes().to_vec()).into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_answer_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..80) {
            fuzz_answer(&bytes);
            for sample in answer_samples() {
                fuzz_answer(&sample[..cut.min(sample.len())]);
            }
        }
    }

    #[test]
    fn targets_are_ports_of_this_machine_or_of_another() {
        for (text, host, port, name) in [
            ("9100", "127.0.0.1", 9100, "localhost:9100"),
            (":9100", "127.0.0.1", 9100, "localhost:9100"),
            ("node1:9100", "node1", 9100, "node1:9100"),
            ("http://node1:9100/metrics", "node1", 9100, "node1:9100"),
            ("[fd00::1]:9100", "fd00::1", 9100, "[fd00::1]:9100"),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!((target.host.as_str(), target.port, target.to_string().as_str()), (host, port, name));
        }
        for text in ["", "node1", "node1:", "node1:0", "fd00::1:9100", "a b:1", "https://a:1", "a:1/else"] {
            Target::parse(text).expect_err(text);
        }
    }

    #[test]
    fn a_resolver_that_is_slow_holds_up_no_question() {
        static BEGUN: AtomicU32 = AtomicU32::new(0);
        static ENDED: AtomicU32 = AtomicU32::new(0);
        static MAY_END: AtomicBool = AtomicBool::new(false);
        let slow: Resolve = |_, _| {
            BEGUN.fetch_add(1, SeqCst);
            let begun = Instant::now();
            while !MAY_END.load(SeqCst) && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            ENDED.fetch_add(1, SeqCst);
            Ok(Vec::new())
        };
        let node = Target::parse("node1:9100").unwrap();
        let wait = Duration::from_millis(200);
        for _ in 0..2 {
            assert_eq!(ask(&node, wait, slow).unwrap_err(), "no answer within 0.2 s");
        }
        assert_eq!(ENDED.load(SeqCst), 0, "it has waited for the resolver");
        MAY_END.store(true, SeqCst);
        assert_eq!(ask(&node, Duration::from_secs(60), slow).unwrap_err(), "the name has no address");
        assert_eq!(BEGUN.load(SeqCst), 1, "one resolver at a time");
    }
}
