//! Claims whose servers are other processes: how these are started, asked and ended.

use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command};

use slackline::Address;

use super::fixture::{Fixture, PATIENCE, wait_for};
use super::here::{Answer, Ask, Here, Serving, this_process};
use super::process::Second;
use super::server::Server;

/// The variable with the address at which the process that asks listens.
const ASKED_FROM: &str = "SLACKLINE_TEST_ASKED_FROM";
/// The claim whose test a process runs to serve.
const SERVING: &str = "the_server_is_another_process";
/// Most bytes that are sent at once: a message of a handshake, and what stands before it.
const BYTES_MAX: u64 = 64 << 20;

/// `F` with its servers in other processes. Its module has the name of `F`'s and `_apart` behind it.
pub(crate) struct Apart<F>(PhantomData<F>);

impl<F: Fixture> Fixture for Apart<F> {
    type Transport = F::Transport;
    type Payloads = F::Payloads;
    const MODULE: &'static str = F::MODULE;
    /// Fewer: `F` itself has seen all of them.
    const ROUNDS: u64 = F::ROUNDS / 4;
    const AHEAD: u64 = F::AHEAD;
    const ADDS: u64 = F::ADDS / 4;
    const KEYS_ARE_OF_ONE_CONNECTION: bool = F::KEYS_ARE_OF_ONE_CONNECTION;
    const GRANTS_END_WITH_THEIR_PART: bool = F::GRANTS_END_WITH_THEIR_PART;
    const WRITTEN_MAY_BE_READ: bool = F::WRITTEN_MAY_BE_READ;
    const ACCESS_VIOLATIONS_ARE_COUNTED: bool = F::ACCESS_VIOLATIONS_ARE_COUNTED;
    const ALLOCATES_NOTHING: bool = F::ALLOCATES_NOTHING;

    fn transport() -> F::Transport {
        F::transport()
    }

    fn address() -> Address {
        F::address()
    }

    fn transport_to_serve(transport: &F::Transport) -> F::Transport {
        F::transport_to_serve(transport)
    }

    fn serving(_: &F::Transport) -> Box<dyn Serving> {
        Box::new(Elsewhere::start::<F>())
    }

    fn start(command: &mut Command) -> io::Result<Child> {
        F::start(command)
    }
}

/// Returns the address at which processes of another host reach this one, if there is another host.
pub(crate) fn own_address() -> IpAddr {
    let address = std::env::var("SLACKLINE_RIG_ADDRESS").ok();
    address.map_or(Ipv4Addr::LOCALHOST.into(), |text| text.parse().expect("an address"))
}

/// A process that serves, with a [`Here`] of its own. It ends with this value.
struct Elsewhere {
    process: Second,
    stream: TcpStream,
}

impl Elsewhere {
    fn start<F: Fixture>() -> Elsewhere {
        let listener = TcpListener::bind((own_address(), 0)).expect("listen for the other process");
        let address = listener.local_addr().expect("where").to_string();
        let test = format!("{}_apart::{SERVING}", F::MODULE);
        let mut process = Second::run::<F>(&test, ASKED_FROM, &address);
        listener.set_nonblocking(true).expect("a listener that does not block");
        let (stream, _) = wait_for("the other process to call", || {
            let ended = process.0.try_wait().expect("wait");
            assert!(ended.is_none(), "the other process, which runs {test}, has ended: {ended:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
            listener.accept().ok()
        });
        stream.set_nonblocking(false).expect("a stream that blocks");
        stream.set_read_timeout(Some(2 * PATIENCE)).expect("a stream with a deadline");
        Elsewhere { process, stream: prepared(stream) }
    }
}

impl Serving for Elsewhere {
    /// An error, too, if the process is gone.
    fn answer(&mut self, ask: Ask, bytes: &[u8]) -> Answer {
        let head = postcard::to_allocvec(&ask).expect("it can be written");
        let answer = send(&mut self.stream, &head, bytes).and_then(|()| receive(&mut self.stream));
        let (head, bytes) =
            answer.and_then(|answer| answer.ok_or(ErrorKind::UnexpectedEof.into())).map_err(|error| {
                // An answer that comes after all is none to the next question.
                let _gone_already = self.stream.shutdown(Shutdown::Both);
                format!("the other process: {error}")
            })?;
        let reply: Result<_, String> = postcard::from_bytes(&head).expect("an answer");
        Ok((reply?, bytes))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // It ends by itself once no process can ask any more. Its end is looked at, unless this is no good one either.
        let _gone_already = self.stream.shutdown(Shutdown::Both);
        if !std::thread::panicking() {
            self.process.wait();
        }
    }
}

/// Answers the process that started this one, until it asks no more. False if no process did.
fn serve<F: Fixture>() -> bool {
    let Ok(address) = std::env::var(ASKED_FROM) else { return false };
    let mut stream = prepared(TcpStream::connect(address).expect("call back"));
    let mut here = Here::<F>::new(F::transport_to_serve(&F::transport()));
    while let Some((head, bytes)) = receive(&mut stream).expect("what is asked") {
        let ask = postcard::from_bytes(&head).expect("something asked");
        let (reply, bytes) = match here.answer(ask, &bytes) {
            Ok((reply, bytes)) => (Ok(reply), bytes),
            Err(error) => (Err(error), Vec::new()),
        };
        let head = postcard::to_allocvec(&reply).expect("it can be written");
        send(&mut stream, &head, &bytes).expect("the process that asked waits for the answer");
    }
    true
}

/// Returns the answer of [`this_process`] in the process of the server.
pub(crate) fn process_of<F: Fixture>(server: &Server<F>) -> String {
    let (reply, _) = server.try_ask(Ask::Process, &[]).expect("an answer");
    reply.text.expect("a name")
}

pub(crate) fn the_server_is_another_process<F: Fixture>() {
    if !serve::<F>() {
        let server = Server::<F>::new(&F::transport());
        let process = process_of(&server);
        assert_ne!(process, this_process());
        assert_eq!(process, process_of(&server), "and the same one all the time");
    }
}

fn prepared(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("a stream without delay");
    stream.set_write_timeout(Some(2 * PATIENCE)).expect("a stream with a deadline");
    stream
}

/// Lengths of both parts, then both.
fn send(stream: &mut TcpStream, head: &[u8], bytes: &[u8]) -> io::Result<()> {
    let lengths = [head.len() as u64, bytes.len() as u64];
    stream.write_all(&[lengths[0].to_le_bytes(), lengths[1].to_le_bytes()].concat())?;
    stream.write_all(head)?;
    stream.write_all(bytes)
}

/// None once the other side asks no more.
fn receive(stream: &mut TcpStream) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    if stream.peek(&mut [0])? == 0 {
        return Ok(None);
    }
    let mut lengths = [[0; 8]; 2];
    lengths.iter_mut().try_for_each(|length| stream.read_exact(length))?;
    let mut part = |length: [u8; 8]| {
        let length = u64::from_le_bytes(length);
        assert!(length <= BYTES_MAX, "{length} bytes");
        let mut bytes = vec![0; length as usize];
        stream.read_exact(&mut bytes).map(|()| bytes)
    };
    Ok(Some((part(lengths[0])?, part(lengths[1])?)))
}
