//! Connections to a shared-memory listener that are not to be let in, and its socket files.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use slackline::internals::mem::Access;
use slackline::internals::transport::shm::ShmListener;
use slackline::internals::transport::{
    Connecting, Endpoint, HANDSHAKE_TIMEOUT, Incoming, Listener, MAX_PENDING_HANDSHAKES, Offer,
};
use slackline::{Address, ConnectError, Instant, Shm, Transport};

const NOW: Instant = Instant::ORIGIN;

fn listener() -> ShmListener {
    Shm::new().listen(&Address::random()).unwrap()
}

fn unauthenticated_peer(listener: &ShmListener) -> UnixStream {
    let Address::Abstract(name) = listener.address() else { panic!("an abstract name") };
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

/// The bytes of a good hello, as a connector sends them.
fn good_hello() -> Vec<u8> {
    let address = Address::random();
    let Address::Abstract(name) = &address else { unreachable!() };
    let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let offer = Offer { message: b"what the layer above has to say".to_vec(), grants: Vec::new() };
    let mut connecting = Shm::new().connect(&address, offer).unwrap();
    let (mut stream, _) = socket.accept().unwrap();
    assert!(connecting.poll(NOW).is_pending());
    drop(connecting);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Polls until nothing more happens, and answers no peer.
fn settle(listener: &mut ShmListener, now: Instant) -> usize {
    std::iter::from_fn(|| listener.poll(now)).count()
}

/// Lets a good peer in.
fn a_good_one_gets_in(listener: &mut ShmListener) {
    let mut connecting = Shm::new().connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    let mut server = listener.poll(NOW).expect("a good one gets in").accept(Offer::default()).unwrap();
    assert!(matches!(connecting.poll(NOW), Poll::Ready(Ok(_))));
    assert!(server.check().is_err(), "and is dropped here");
}

/// Some bytes, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(step).take(len).collect()
}

#[test]
fn a_thousand_random_first_messages_are_dropped_one_by_one() {
    let mut listener = listener();
    let good = good_hello();
    for seed in 0..1000 {
        let mut bytes = noise(seed, 1 + seed as usize % 300);
        if seed % 2 == 0 {
            // Half of them begin well: magic and version.
            bytes.splice(..bytes.len().min(12), good[..12].iter().copied());
        }
        let mut stream = unauthenticated_peer(&listener);
        stream.write_all(&bytes).unwrap();
        drop(stream);
        assert_eq!(settle(&mut listener, NOW), 0, "seed {seed}");
    }
    a_good_one_gets_in(&mut listener);
}

#[test]
fn a_hello_cut_at_any_byte_is_nobody_and_a_whole_one_in_pieces_is_somebody() {
    let mut listener = listener();
    let good = good_hello();
    for len in 0..good.len() {
        let mut stream = unauthenticated_peer(&listener);
        stream.write_all(&good[..len]).unwrap();
        assert_eq!(settle(&mut listener, NOW), 0, "{len} bytes: it may go on");
        drop(stream);
        assert_eq!(settle(&mut listener, NOW), 0, "{len} bytes: it does not");
    }
    let mut stream = unauthenticated_peer(&listener);
    for (index, byte) in good.iter().enumerate() {
        assert!(listener.poll(NOW).is_none(), "{index} bytes");
        stream.write_all(&[*byte]).unwrap();
    }
    let incoming = listener.poll(NOW).expect("all of it came");
    assert_eq!(incoming.received().message, b"what the layer above has to say");
}

#[test]
fn a_length_past_its_limit_is_not_waited_for() {
    let good = good_hello();
    for at in [12, 16, 20, 24, 28] {
        for value in [u32::MAX, 1 << 31, (16 << 20) + 9000] {
            let mut listener = listener();
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let mut stream = unauthenticated_peer(&listener);
            stream.write_all(&bytes).unwrap();
            assert_eq!(settle(&mut listener, NOW), 0);
            // Dropped at once, with time standing still: the peer sees the end.
            let closed = stream.read(&mut [0; 8]);
            assert!(matches!(closed, Ok(0) | Err(_)), "field at {at}, value {value}");
        }
    }
}

#[test]
fn a_silent_peer_is_dropped_when_its_time_is_up_and_not_before() {
    let mut listener = listener();
    let mut stream = unauthenticated_peer(&listener);
    stream.set_nonblocking(true).unwrap();
    stream.write_all(&good_hello()[..20]).unwrap();
    let is_open = |mut stream: &UnixStream| {
        let read = stream.read(&mut [0; 1]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(listener.poll(NOW).is_none());
    assert!(listener.poll(NOW + (HANDSHAKE_TIMEOUT - Duration::from_nanos(1))).is_none());
    assert!(is_open(&stream));
    assert!(listener.poll(NOW + HANDSHAKE_TIMEOUT).is_none());
    assert!(!is_open(&stream));
}

#[test]
fn two_hundred_silent_unauthenticated_peers_delay_a_good_peer_and_no_more() {
    let mut listener = listener();
    let unauthenticated_peers: Vec<UnixStream> = (0..200).map(|_| unauthenticated_peer(&listener)).collect();
    let mut connecting = Shm::new().connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    // The good one is behind 200. Those that say nothing make room for it, before any time has passed.
    let mut polls = 1;
    let incoming = loop {
        if let Some(incoming) = listener.poll(NOW) {
            break incoming;
        }
        polls += 1;
        assert!(polls < 20, "the good one never gets in");
    };
    assert!(polls > 200 / MAX_PENDING_HANDSHAKES, "one poll accepts no more than the limit");
    let _server = incoming.accept(Offer::default()).unwrap();
    assert!(matches!(connecting.poll(NOW), Poll::Ready(Ok(_))));
    drop(unauthenticated_peers);
}

#[test]
fn an_unauthenticated_peer_that_stalls_does_not_hold_up_those_behind_it() {
    let mut listener = listener();
    let _silent: Vec<UnixStream> =
        (0..MAX_PENDING_HANDSHAKES - 1).map(|_| unauthenticated_peer(&listener)).collect();
    for _ in 0..10 {
        a_good_one_gets_in(&mut listener);
    }
}

/// Runs test `name` in a process where nothing else runs: true in that process.
fn alone(name: &str) -> bool {
    const ALONE: &str = "SLACKLINE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

#[test]
fn no_descriptor_is_left_behind() {
    if !alone("no_descriptor_is_left_behind") {
        return;
    }
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let shm = Shm::new();
    let round = || {
        let region = shm.allocate(4096, Access::REMOTE_READ).unwrap();
        let offer = || Offer { message: b"x".to_vec(), grants: vec![region.whole(), region.whole()] };
        let mut listener = listener();
        // One that is accepted.
        let mut connecting = shm.connect(&listener.address(), offer()).unwrap();
        assert!(connecting.poll(NOW).is_pending());
        let server = listener.poll(NOW).unwrap().accept(offer()).unwrap();
        let Poll::Ready(Ok(client)) = connecting.poll(NOW) else { panic!() };
        drop((server, client));
        // One refused, one given up, one never answered, one never polled, and peers that say no good hello.
        let mut refused = shm.connect(&listener.address(), offer()).unwrap();
        assert!(refused.poll(NOW).is_pending());
        listener.poll(NOW).unwrap().refuse("no".into());
        assert!(matches!(refused.poll(NOW), Poll::Ready(Err(ConnectError::Refused { .. }))));
        let mut given_up = shm.connect(&listener.address(), offer()).unwrap();
        assert!(given_up.poll(NOW).is_pending());
        drop(given_up);
        let mut unanswered = shm.connect(&listener.address(), offer()).unwrap();
        assert!(unanswered.poll(NOW).is_pending());
        while listener.poll(NOW).is_some() {}
        let _unpolled = shm.connect(&listener.address(), offer()).unwrap();
        unauthenticated_peer(&listener).write_all(&noise(1, 100)).unwrap();
        assert_eq!(settle(&mut listener, NOW), 0);
    };
    round();
    let before = count();
    for _ in 0..50 {
        round();
    }
    assert_eq!(count(), before);
}

/// A folder for this test alone, removed with everything in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("slackline-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let folder = Folder(path);
        folder.chmod(0o700);
        folder
    }

    fn chmod(&self, mode: u32) {
        std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn listen_at(path: &Path) -> Result<ShmListener, ConnectError> {
    Shm::new().listen(&Address::Path(path.to_owned()))
}

#[test]
fn a_socket_file_lives_as_long_as_its_listener() {
    let folder = Folder::new("lives");
    let mut listener = listen_at(&folder.socket()).unwrap();
    a_good_one_gets_in(&mut listener);
    drop(listener);
    assert!(!folder.socket().exists());
}

#[test]
fn a_folder_that_others_may_enter_is_refused_with_the_remedy() {
    let folder = Folder::new("open");
    for mode in [0o755, 0o710, 0o701] {
        folder.chmod(mode);
        let error = listen_at(&folder.socket()).err().unwrap().to_string();
        assert!(error.contains("chmod 700") && error.contains(&format!("{mode:o}")), "{error}");
    }
    assert!(listen_at(&folder.0.join("missing").join("socket")).is_err());
}

#[test]
fn the_file_of_a_dead_listener_is_replaced_and_that_of_a_living_one_is_not() {
    let folder = Folder::new("dead");
    // The standard library leaves the file behind, as a killed process does.
    drop(UnixListener::bind(folder.socket()).unwrap());
    // A test beside this one may be starting a process, whose fork holds a copy of the dead socket until it has become
    // the other program: not dead until then.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut living = loop {
        match listen_at(&folder.socket()) {
            Ok(listener) => break listener,
            Err(error) => assert!(std::time::Instant::now() < deadline, "a dead one is replaced: {error}"),
        }
        std::thread::yield_now();
    };
    let error = listen_at(&folder.socket()).err().unwrap().to_string();
    assert!(error.contains("another process listens there"), "{error}");
    assert_eq!(settle(&mut living, NOW), 0);
    a_good_one_gets_in(&mut living);
}

#[test]
fn a_file_that_is_no_socket_is_never_removed() {
    let folder = Folder::new("regular");
    std::fs::write(folder.socket(), "precious").unwrap();
    let error = listen_at(&folder.socket()).err().unwrap().to_string();
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read(folder.socket()).unwrap(), b"precious");
}

#[test]
fn a_listener_does_not_remove_a_file_that_has_replaced_its_own() {
    let folder = Folder::new("replaced");
    let listener = listen_at(&folder.socket()).unwrap();
    std::fs::remove_file(folder.socket()).unwrap();
    std::fs::write(folder.socket(), "another's").unwrap();
    drop(listener);
    assert!(folder.socket().exists());
}

#[test]
fn an_address_too_long_for_a_socket_is_an_error_that_says_so() {
    let path = Path::new("/tmp").join("x".repeat(200));
    let error = listen_at(&path).err().unwrap().to_string();
    assert!(error.contains("shorter address"), "{error}");
    let error = Shm::new().connect(&Address::Path(path), Offer::default()).err().unwrap().to_string();
    assert!(error.contains("shorter address"), "{error}");
}

#[test]
fn a_connector_waits_while_the_queue_of_the_listener_is_full() {
    let folder = Folder::new("full");
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(folder.socket()).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let first = UnixStream::connect(folder.socket()).unwrap();
    let mut connecting = Shm::new().connect(&Address::Path(folder.socket()), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    drop((rustix::net::accept(&socket).unwrap(), first));
    assert!(connecting.poll(NOW).is_pending(), "connected now, and its hello is sent");
    let second = rustix::net::accept(&socket).unwrap();
    let mut bytes = [0; 32];
    assert_eq!(rustix::net::recv(&second, &mut bytes, rustix::net::RecvFlags::empty()).unwrap().1, 32);
    assert_eq!(&bytes[..8], b"slkl-shm");
}

#[test]
fn honest_connectors_that_come_all_at_once_are_all_let_in() {
    let mut listener = listener();
    let mut connecting: Vec<_> =
        (0..200).map(|_| Shm::new().connect(&listener.address(), Offer::default()).unwrap()).collect();
    let mut came = Vec::new();
    for _ in 0..200 {
        for one in &mut connecting {
            assert!(one.poll(NOW).is_pending(), "it was dropped");
        }
        came.extend(std::iter::from_fn(|| listener.poll(NOW)));
        if came.len() == 200 {
            return;
        }
    }
    panic!("{} of 200 came", came.len());
}

#[test]
fn a_whole_hello_outlives_halves_before_and_behind_it() {
    let (mut listener, hello) = (listener(), good_hello());
    let half = |listener: &ShmListener| {
        let mut peer = unauthenticated_peer(listener);
        peer.write_all(&hello[..hello.len() / 2]).unwrap();
        peer
    };
    let mut halves: Vec<_> = (0..MAX_PENDING_HANDSHAKES).map(|_| half(&listener)).collect();
    assert!(listener.poll(NOW).is_none());
    let mut whole = unauthenticated_peer(&listener);
    whole.write_all(&hello).unwrap();
    halves.extend((1..MAX_PENDING_HANDSHAKES).map(|_| half(&listener)));
    assert!(listener.poll(NOW).is_some(), "the whole one was dropped");
}
