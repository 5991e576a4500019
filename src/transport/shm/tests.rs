//! Tests of properties that only the inside shows: users, versions, seals, descriptors, forks.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;

use super::handshake::{Inbox, Outbox, ShmMessage};
use super::socket::{self, Heard, Sent, SocketEnd};
use super::wire::{self, Hello, Segments, Terms};
use super::*;
use crate::diagnostic::Diagnostic;
use crate::mem::RemoteKey;
use crate::mem::alone;
use crate::time::Instant;
use crate::transport::wireup::{Grant, Side, WIRE_VERSION};
use crate::transport::{
    Connecting, Endpoint, Flags, Incoming, Inline, Listener, MAX_GRANTS, Offer, Operation, PostError,
    Refusal, WorkRequest,
};

const NOW: Instant = Instant::ORIGIN;

/// Both ends of a connection, made without waiting: everything happens in this thread.
fn pair(shm: &Shm, from_server: Offer) -> (ShmEndpoint, ShmEndpoint, crate::transport::Received) {
    let mut listener = shm.listen(&Address::random()).unwrap();
    let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    let server = listener.poll(NOW).expect("the hello is there").accept(from_server).unwrap();
    let Poll::Ready(Ok((client, received))) = connecting.poll(NOW) else { panic!("the answer is there") };
    (client, server, received)
}

fn raw_connection(listener: &ShmListener) -> SocketEnd {
    let link = SocketEnd::new(socket::new_socket().unwrap());
    assert!(link.connect(&socket::socket_address(&listener.address()).unwrap()).unwrap());
    link
}

/// A listening socket that sends only the bytes of the test.
fn raw_listener() -> (Address, OwnedFd) {
    let address = Address::random();
    let (socket, _) = file::listen(&address, rustix::process::geteuid().as_raw()).unwrap();
    (address, socket)
}

fn raw_accept(socket: &OwnedFd) -> SocketEnd {
    SocketEnd::new(rustix::net::accept_with(socket, rustix::net::SocketFlags::NONBLOCK).unwrap())
}

#[test]
fn a_path_at_which_no_process_can_listen_is_no_error_to_try_again() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let below = |path: &str| folder.path().join(path);
    let open = below("open");
    std::fs::create_dir(&open).unwrap();
    for (path, mode) in [(folder.path(), 0o700), (&open, 0o755)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::write(below("file"), "").unwrap();
    for path in [
        open.join("socket"),
        below("file"),
        below("file/socket"),
        below("none/socket"),
        below(&"x".repeat(200)),
    ] {
        let error = Shm::new().listen(&Address::Path(path)).err().unwrap();
        assert!(!error.is_retryable(), "{error}");
    }
    // A listener may make this file later, and another one may leave its address.
    let (shm, address) = (Shm::new(), Address::Path(below("socket")));
    assert!(shm.connect(&address, Offer::default()).err().unwrap().is_retryable());
    let _listener = shm.listen(&address).unwrap();
    assert!(shm.listen(&address).err().unwrap().is_retryable());
}

#[test]
fn a_connector_turns_away_from_a_listener_of_another_user() {
    let shm = Shm::new();
    let listener = shm.listen(&Address::random()).unwrap();
    let somebody_else = Shm { user: shm.user + 1, ..shm };
    let error = somebody_else.connect(&listener.address(), Offer::default()).err().unwrap();
    assert!(matches!(error, ConnectError::AnotherUser { .. }), "{error}");
}

#[test]
fn a_listener_turns_a_connector_of_another_user_away_unread() {
    let shm = Shm::new();
    let mut listener = Shm { user: shm.user + 1, ..shm.clone() }.listen(&Address::random()).unwrap();
    let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    assert!(listener.poll(NOW).is_none());
    let Poll::Ready(Err(error)) = connecting.poll(NOW) else { panic!("refused") };
    assert!(matches!(error, ConnectError::Closed { .. }), "{error}");
}

#[test]
fn one_poll_accepts_at_most_64_connections_of_another_user() {
    let shm = Shm::new();
    let mut listener = Shm { user: shm.user + 1, ..shm }.listen(&Address::random()).unwrap();
    let links: Vec<_> = (0..100).map(|_| raw_connection(&listener)).collect();
    let refused = || links.iter().filter(|link| link.peek().ok() != Some(Heard::Silence)).count();
    for expected in [64, 100] {
        assert!(listener.poll(NOW).is_none());
        assert_eq!(refused(), expected);
    }
}

#[test]
fn silent_connections_neither_keep_a_peer_out_nor_push_out_one_that_began() {
    let mut listener = Shm::new().listen(&Address::random()).unwrap();
    let hello = wire::frame(&Hello::Offer(nothing()), b"");
    let begun = raw_connection(&listener);
    begun.send(&hello[..10], &[]).unwrap();
    assert!(listener.poll(NOW).is_none());
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(raw_connection(&listener));
        assert!(listener.poll(NOW).is_none());
    }
    begun.send(&hello[10..], &[]).unwrap();
    assert!(listener.poll(NOW).is_some());
    let late = raw_connection(&listener);
    late.send(&hello, &[]).unwrap();
    assert!(listener.poll(NOW).is_some());
}

/// The user id of a thread is its own in Linux, so one process can be two users. Needs root; the two tests before
/// this one cover the same decisions elsewhere.
#[test]
fn the_kernel_tells_users_apart() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let shm = Shm::new();
    let mut listener = shm.listen(&Address::random()).unwrap();
    let address = listener.address();
    let unauthenticated_peer = std::thread::spawn(move || {
        let nobody = rustix::fs::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let error = Shm::new().connect(&address, Offer::default()).err().unwrap();
        assert!(matches!(error, ConnectError::AnotherUser { theirs: 0, ours: NOBODY, .. }), "{error}");
        // Not asking does not help.
        let link = SocketEnd::new(socket::new_socket().unwrap());
        assert!(link.connect(&socket::socket_address(&address).unwrap()).unwrap());
        assert!(Outbox::offer(Side::Connector, &Offer::default(), &[], None).unwrap().flush(&link).unwrap());
        link
    });
    let link = unauthenticated_peer.join().unwrap();
    assert!(listener.poll(NOW).is_none());
    assert_ne!(link.receive(&mut [0; 64], &mut Vec::new()).ok(), Some(Heard::Silence), "the link is shut");
}

/// Terms that grant nothing.
fn nothing() -> Terms {
    Terms { grants: Vec::new(), blob: Segments::default() }
}

#[test]
fn another_wire_version_is_named_on_both_sides() {
    let mut hello = wire::frame(&Hello::Offer(nothing()), b"");
    hello[8] = 99;
    // The listener's side: no peer gets in, and the reply says which version is spoken here.
    let mut listener = Shm::new().listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    link.send(&hello, &[]).unwrap();
    assert!(listener.poll(NOW).is_none());
    let mut inbox = Inbox::default();
    assert!(inbox.fill(&link).unwrap());
    let ShmMessage::Refuse(Refusal { reason, .. }) = inbox.open(None).unwrap() else { panic!("a refusal") };
    let ours = format!("speaks {WIRE_VERSION}");
    assert!(reason.contains("version 99") && reason.contains(&ours), "{reason}");

    // The connector's side.
    let (address, socket) = raw_listener();
    let mut connecting = Shm::new().connect(&address, Offer::default()).unwrap();
    raw_accept(&socket).send(&hello, &[]).unwrap();
    let Poll::Ready(Err(error)) = connecting.poll(NOW) else { panic!("it was answered") };
    assert!(matches!(error, ConnectError::Protocol { .. }));
    assert!(error.to_string().contains("version 99") && error.to_string().contains(&ours), "{error}");
}

/// An offer without memory and without a message, as a process of wire version 1 sends it: its whole prefix.
const OFFER_1: &[u8; 32] = b"slkl-shm\x01\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn a_version_1_peer_is_refused_by_name_and_reads_our_version_at_its_offset() {
    let mut listener = Shm::new().listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    link.send(OFFER_1, &[]).unwrap();
    assert!(listener.poll(NOW).is_none());
    // It reads 32 bytes, and checks the magic and then the version.
    let mut prefix = [0; 32];
    assert_eq!(link.receive(&mut prefix, &mut Vec::new()).unwrap(), Heard::Bytes(32));
    assert_eq!((&prefix[..8], &prefix[8..12]), (&OFFER_1[..8], &WIRE_VERSION.to_le_bytes()[..]));
    let mut rest = [0; 4096];
    let Heard::Bytes(bytes) = link.receive(&mut rest, &mut Vec::new()).unwrap() else { panic!("a reason") };
    assert!(String::from_utf8_lossy(&rest[..bytes]).contains("it speaks wire version 1"));

    let (address, socket) = raw_listener();
    let mut connecting = Shm::new().connect(&address, Offer::default()).unwrap();
    raw_accept(&socket).send(OFFER_1, &[]).unwrap();
    let Poll::Ready(Err(error)) = connecting.poll(NOW) else { panic!("it was answered") };
    assert!(error.to_string().contains("it speaks wire version 1"), "{error}");
}

#[test]
fn an_answer_out_of_turn_is_a_protocol_error() {
    let hello = wire::frame(&Hello::Offer(nothing()), b"");
    let (address, socket) = raw_listener();
    let mut connecting = Shm::new().connect(&address, Offer::default()).unwrap();
    raw_accept(&socket).send(&hello, &[]).unwrap();
    let Poll::Ready(Err(error)) = connecting.poll(NOW) else { panic!("it was answered") };
    assert!(matches!(error, ConnectError::Protocol { .. }), "{error}");
    let mut listener = Shm::new().listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    link.send(&wire::frame(&Hello::Accept(nothing()), b""), &[]).unwrap();
    assert!(listener.poll(NOW).is_none());
    assert!(!matches!(link.peek(), Ok(Heard::Silence)), "dropped");
}

#[test]
fn memory_granted_for_reading_cannot_be_written_whatever_its_receiver_does() {
    let shm = Shm::new();
    let region = shm.allocate(4096, Access::REMOTE_READ).unwrap();
    let mut listener = shm.listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    assert!(Outbox::offer(Side::Connector, &Offer::default(), &[], None).unwrap().flush(&link).unwrap());
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let _server = listener.poll(NOW).unwrap().accept(offer).unwrap();
    let mut files = Vec::new();
    assert!(matches!(link.receive(&mut [0; 4096], &mut files).unwrap(), Heard::Bytes(_)));
    let file = files.pop().expect("the descriptor of the region");

    assert!(HostMemory::from_peer(file.try_clone().unwrap(), 4096, true).is_err(), "no writable mapping");
    assert!(rustix::io::pwrite(&file, b"x", 0).is_err(), "no write call");
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    if let Ok(reopened) = std::fs::File::options().read(true).write(true).open(again) {
        assert!(
            HostMemory::from_peer(reopened.into(), 4096, true).is_err(),
            "opening it again does not help"
        );
    }
    assert!(rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::WRITE).is_err(), "no seals of its own");
    let reader = HostMemory::from_peer(file, 4096, false).unwrap();
    region.as_volatile().store_u64(0, 7);
    assert_eq!(reader.as_volatile().load_u64(0), 7, "its owner still writes");
}

#[test]
fn memory_granted_for_writing_cannot_be_sealed_by_its_receiver() {
    let shm = Shm::new();
    let region = shm.allocate(4096, Access::REMOTE_WRITE).unwrap();
    for _ in 0..2 {
        let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
        let _ends = pair(&shm, offer);
    }
    let file = region.memory().shared_file().unwrap();
    assert!(rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::FUTURE_WRITE).is_err());
}

#[test]
fn private_memory_is_not_registered_for_peers() {
    let memory = HostMemory::anonymous(4096).unwrap();
    let error = Shm::new().register(memory, Access::REMOTE_READ).unwrap_err();
    assert!(error.to_string().contains("use HostMemory::shared"), "{error}");
}

/// Sends an offer with `segments` and `files`, and tells whether the listener took it.
fn is_taken(segments: &[Grant], files: &[BorrowedFd<'_>]) -> bool {
    let mut listener = Shm::new().listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    let grants = segments.iter().map(|segment| Grant { bytes: 1, ..*segment }).collect();
    let terms = Terms { grants, blob: Segments { segments: segments.to_vec(), ..Segments::default() } };
    link.send(&wire::frame(&Hello::Offer(terms), b""), files).unwrap();
    listener.poll(NOW).is_some()
}

#[test]
fn descriptors_that_are_not_what_was_said_are_refused() {
    let memory = HostMemory::shared(4096).unwrap();
    let good = memory.shared_file().unwrap();
    let segment = |key, bytes| Grant { key: RemoteKey(key), offset: 0, bytes, access: Access::REMOTE_READ };
    assert!(is_taken(&[segment(1, 4096)], &[good]));
    assert!(!is_taken(&[segment(1, 4096)], &[]), "none");
    assert!(!is_taken(&[segment(1, 4096)], &[good, good]), "one too many");
    assert!(!is_taken(&[], &[good]), "one too many");
    assert!(!is_taken(&[segment(1, 4097)], &[good]), "too short");
    assert!(!is_taken(&[segment(1, u64::MAX)], &[good]), "no length at all");
    let pipe = std::io::pipe();
    assert!(!is_taken(&[segment(1, 1)], &[pipe.unwrap().0.as_fd()]), "a pipe");
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert!(!is_taken(&[segment(1, 4096)], &[unsealed.as_fd()]), "one that could be shrunk");
}

/// A write to a pipe that no process reads any more is a SIGPIPE, by which a C program dies.
#[test]
fn a_doorbell_that_is_no_eventfd_is_refused_by_either_side() {
    let offer = || Terms { blob: Segments { has_doorbell: true, ..Segments::default() }, ..nothing() };
    let doorbell = Doorbell::new(&Address::random()).unwrap();
    let files: Vec<_> = doorbell.files().collect();
    let [eventfd, word] = files.try_into().unwrap();
    let (_read, write) = std::io::pipe().unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    for (file, is_one) in [(eventfd, true), (write.as_fd(), false), (epoll.as_fd(), false), (word, false)] {
        let files = [file, word];
        let mut listener = Shm::new().listen(&Address::random()).unwrap();
        let link = raw_connection(&listener);
        link.send(&wire::frame(&Hello::Offer(offer()), b""), &files).unwrap();
        assert_eq!(listener.poll(NOW).is_some(), is_one);

        let (address, socket) = raw_listener();
        let mut connecting = Shm::new().connect(&address, Offer::default()).unwrap();
        let answering = raw_accept(&socket);
        answering.send(&wire::frame(&Hello::Accept(offer()), b""), &files).unwrap();
        let Poll::Ready(connected) = connecting.poll(NOW) else { panic!("it was answered") };
        match connected {
            Ok(_) => assert!(is_one),
            Err(error) => assert!(!is_one && error.to_string().contains("no eventfd"), "{error}"),
        }
    }
}

/// The memory of its word could be shrunk under the process that rings it.
#[test]
fn a_doorbell_whose_word_is_not_sealed_is_refused() {
    let doorbell = Doorbell::new(&Address::random()).unwrap();
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let mut listener = Shm::new().listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    let offer = Terms { blob: Segments { has_doorbell: true, ..Segments::default() }, ..nothing() };
    link.send(&wire::frame(&Hello::Offer(offer), b""), &[doorbell.as_fd(), unsealed.as_fd()]).unwrap();
    assert!(listener.poll(NOW).is_none());
    let word = doorbell.files().nth(1).unwrap();
    assert!(rustix::fs::fcntl_add_seals(word, rustix::fs::SealFlags::FUTURE_WRITE).is_err(), "it is sealed");
}

#[test]
fn a_request_that_notifies_is_no_system_call_while_its_owner_is_awake() {
    let shm = Shm::new();
    let region = shm.allocate(8, Access::REMOTE_WRITE).unwrap();
    let mut listener = shm.listen(&Address::random()).unwrap();
    assert!(listener.be_notified().unwrap());
    let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let _server = listener.poll(NOW).expect("the hello is there").accept(offer).unwrap();
    let Poll::Ready(Ok((mut client, received))) = connecting.poll(NOW) else { panic!("the answer is there") };
    let doorbell = listener.doorbell().expect("it is notified");
    let mut write = || {
        let operation = Operation::WriteInline { data: Inline::word(1), remote: received.grants[0] };
        let request = WorkRequest::unsignalled(1, operation);
        client.post(&[WorkRequest { flags: Flags::NOTIFY, ..request }]).unwrap();
        // The count of the eventfd, if it was written.
        let mut count = [0; 8];
        rustix::io::read(doorbell.as_fd(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    assert_eq!((write(), write()), (0, 0), "the owner looks before it sleeps");
    assert!(doorbell.around(|| panic!("it has something to look at")));
    let mut calls = (0, 0);
    assert!(doorbell.around(|| calls = (write(), write())));
    assert_eq!(calls, (1, 0), "the first wakes the owner");
}

#[test]
fn a_thread_that_watches_arrivals_is_woken_by_them_and_by_no_request() {
    let shm = Shm::new();
    let region = shm.allocate(8, Access::REMOTE_WRITE).unwrap();
    let mut listener = shm.listen(&Address::random()).unwrap();
    assert!(listener.watch_arrivals().is_none(), "it is not notified");
    assert!(listener.be_notified().unwrap());
    let watch = listener.watch_arrivals().unwrap();
    let arrives = || watch.wait(std::time::Duration::ZERO);
    assert!(!arrives());
    let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending() && arrives());
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let _server = listener.poll(NOW).expect("the hello is there").accept(offer).unwrap();
    let Poll::Ready(Ok((mut client, received))) = connecting.poll(NOW) else { panic!("the answer is there") };
    let operation = Operation::WriteInline { data: Inline::word(1), remote: received.grants[0] };
    let request = WorkRequest::unsignalled(1, operation);
    client.post(&[WorkRequest { flags: Flags::NOTIFY, ..request }]).unwrap();
    assert!(!arrives());
    watch.end();
    assert!(arrives() && !arrives());
}

#[test]
fn more_descriptors_than_a_handshake_holds_are_an_error() {
    let (address, socket) = raw_listener();
    let sender = std::os::unix::net::UnixStream::pair().unwrap().0;
    let link = SocketEnd::new(socket::new_socket().unwrap());
    assert!(link.connect(&socket::socket_address(&address).unwrap()).unwrap());
    let receiver = raw_accept(&socket);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let files = [sender.as_fd(); 32];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&files)));
    let bytes = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(link.as_socket(), &bytes, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let error = receiver.receive(&mut [0; 8], &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("descriptors were lost"), "{error}");
}

#[test]
fn descriptors_beyond_the_limit_of_this_process_name_that_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    if !alone("transport::shm::tests::descriptors_beyond_the_limit_of_this_process_name_that_limit") {
        return;
    }
    let (address, socket) = raw_listener();
    let link = SocketEnd::new(socket::new_socket().unwrap());
    assert!(link.connect(&socket::socket_address(&address).unwrap()).unwrap());
    let receiver = raw_accept(&socket);
    assert_eq!(link.send(b"x", &[socket.as_fd()]).unwrap(), Sent::Bytes(1));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum }).unwrap();
    let error = receiver.receive(&mut [0; 8], &mut Vec::new()).unwrap_err();
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let error = super::handshake::ShmHandshakeError::from(error).at("connect", &address);
    assert!(error.to_string().contains("this process's limit on open files (ulimit -n)"), "{error}");
}

/// The system counts the descriptors of a user that are under way. Root has no limit.
#[test]
fn peers_wait_while_too_many_descriptors_of_their_user_are_under_way() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    if !alone("transport::shm::tests::peers_wait_while_too_many_descriptors_of_their_user_are_under_way") {
        return;
    }
    if rustix::process::geteuid().is_root() {
        // The user id of a thread is its own in Linux, and this thread does all following steps.
        let other = rustix::fs::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
    }
    let shm = Shm::new();
    let region = shm.allocate(8, Access::REMOTE_READ).unwrap();
    let offer = || Offer { message: Vec::new(), grants: vec![region.whole()] };
    let mut listener = shm.listen(&Address::random()).unwrap();
    let ends = std::os::unix::net::UnixStream::pair().unwrap();
    let (sender, receiver) = (SocketEnd::new(ends.0.into()), SocketEnd::new(ends.1.into()));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    // One is under way, and not one may be.
    let crowd = || {
        assert_eq!(sender.send(b"x", &[sender.as_fd()]).unwrap(), Sent::Bytes(1));
        limit(Some(0));
    };
    let disperse = || {
        limit(current);
        assert_eq!(receiver.receive(&mut [0; 8], &mut Vec::new()).unwrap(), Heard::Bytes(1));
    };
    let mut connecting = shm.connect(&listener.address(), offer()).unwrap();
    crowd();
    for _ in 0..2 {
        assert!(connecting.poll(NOW).is_pending(), "it waits");
        let error = connecting.held_up().expect("its hello is held up").to_string();
        assert!(error.contains("os error 109") && error.contains("(ulimit -n)"), "{error}");
    }
    disperse();
    assert!(connecting.poll(NOW).is_pending() && connecting.held_up().is_none());
    let incoming = listener.poll(NOW).expect("the hello is there");
    crowd();
    let mut server = incoming.accept(offer()).unwrap();
    assert_eq!((server.poll(), server.check()), (None, Ok(())));
    assert!(connecting.poll(NOW).is_pending(), "the answer is held up");
    disperse();
    server.check().unwrap();
    assert!(matches!(connecting.poll(NOW), Poll::Ready(Ok(_))));
}

#[test]
fn a_peer_that_the_listener_has_not_taken_is_told_so_at_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Path(folder.path().join("socket"));
    let at = socket::socket_address(&address).unwrap();
    let full = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    let full = full.unwrap();
    rustix::net::bind(&full, &at).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let first = SocketEnd::new(socket::new_socket().unwrap());
    assert!(first.connect(&at).unwrap());
    let mut connecting = Shm::new().connect(&address, Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending() && !connecting.is_accepted());
    let error = ConnectError::no_answer(address).to_string();
    assert!(error.contains("the process that listens there takes no connections"), "{error}");
    drop(raw_accept(&full));
    assert!(connecting.poll(NOW).is_pending() && connecting.is_accepted());
}

#[test]
fn a_peer_that_sleeps_grants_as_many_regions_as_one_that_does_not() {
    let (shm, doorbell) = (Shm::new(), Doorbell::new(&Address::random()).unwrap());
    let regions: Vec<_> =
        (0..MAX_GRANTS).map(|_| shm.allocate(64, Access::REMOTE_READ).unwrap().whole()).collect();
    let offer = Offer { grants: regions, ..Offer::default() };
    let mut listener = shm.listen(&Address::random()).unwrap();
    let mut connecting = shm.connect_to_be_woken(&listener.address(), offer, &doorbell).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    let incoming = listener.poll(NOW).expect("the hello is there");
    assert_eq!(incoming.received().grants.len(), MAX_GRANTS);
}

#[test]
fn bytes_after_the_handshake_end_the_connection() {
    let shm = Shm::new();
    let mut listener = shm.listen(&Address::random()).unwrap();
    let link = raw_connection(&listener);
    assert!(Outbox::offer(Side::Connector, &Offer::default(), &[], None).unwrap().flush(&link).unwrap());
    let mut server = listener.poll(NOW).unwrap().accept(Offer::default()).unwrap();
    server.check().unwrap();
    link.send(b"x", &[]).unwrap();
    let error = server.check().unwrap_err();
    assert!(error.reason.contains("broke the protocol"), "{error}");
}

#[test]
fn a_long_answer_never_blocks_and_is_carried_on_by_poll() {
    let shm = Shm::new();
    let mut listener = shm.listen(&Address::random()).unwrap();
    let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    let message = vec![7; crate::transport::MAX_MESSAGE_BYTES];
    let offer = Offer { message, grants: Vec::new() };
    let mut server = listener.poll(NOW).unwrap().accept(offer).unwrap();
    let received = loop {
        if let Poll::Ready(result) = connecting.poll(NOW) {
            break result.unwrap().1;
        }
        assert_eq!(server.poll(), None);
    };
    assert_eq!(received.message.len(), crate::transport::MAX_MESSAGE_BYTES);
}

#[test]
fn what_a_forked_child_inherits_is_dead_there_and_alive_here() {
    if !alone("transport::shm::tests::what_a_forked_child_inherits_is_dead_there_and_alive_here") {
        return;
    }
    let shm = Shm::new();
    let region = shm.allocate(4096, Access::REMOTE_WRITE).unwrap();
    let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
    let (mut client, mut server, received) = pair(&shm, offer);
    let word = received.grants[0].slice(0, 8).unwrap();
    let mut heartbeat_word = client.heartbeat_word(&word).unwrap();
    let mut listener = shm.listen(&Address::random()).unwrap();
    let write = |client: &mut ShmEndpoint, value| {
        let operation = Operation::WriteInline { data: Inline::word(value), remote: word };
        client.post(&[WorkRequest::unsignalled(1, operation)])
    };
    // SAFETY: no other thread was running, so the child finds no lock held in any call; it leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let dead = Err(crate::transport::Disconnected { reason: socket::FORKED });
        let posted = matches!(write(&mut client, 666), Err(PostError::Disconnected(gone)) if Err(gone.clone()) == dead);
        let all = posted
            && client.check() == dead
            && client.map(&word).is_none()
            && heartbeat_word.set(667) == dead
            && listener.poll(NOW).is_none();
        // Dropping the child's copies must not end the parent's connection.
        drop((client, server, listener));
        // SAFETY: ends this process without running what belongs to its parent.
        unsafe { libc::_exit(if all { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: the pid is that of our child; `status` is live.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "everything was dead in the child");
    assert_eq!(region.as_volatile().load_u64(0), 0);
    client.check().unwrap();
    server.check().unwrap();
    write(&mut client, 5).unwrap();
    assert_eq!(region.as_volatile().load_u64(0), 5);
    heartbeat_word.set(6).unwrap();
    let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    assert!(listener.poll(NOW).is_some());
}

#[test]
fn a_peer_is_woken_at_its_doorbell_and_one_that_is_gone_harms_no_owner() {
    let (shm, doorbell) = (Shm::new(), Doorbell::new(&Address::random()).unwrap());
    let mut listener = shm.listen(&Address::random()).unwrap();
    let mut connecting = shm.connect_to_be_woken(&listener.address(), Offer::default(), &doorbell).unwrap();
    assert!(connecting.poll(NOW).is_pending());
    let mut server = listener.poll(NOW).expect("the hello is there").accept(Offer::default()).unwrap();
    let Poll::Ready(Ok((client, _))) = connecting.poll(NOW) else { panic!("the answer is there") };
    server.wake();
    assert!(doorbell.wait(&[], std::time::Duration::from_secs(60)));
    // An owner that never looks lets it run full: 2^64 - 2 is the most that an eventfd counts to.
    rustix::io::write(doorbell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    doorbell.around(|| server.wake());
    drop((client, doorbell));
    server.wake();
    assert!(server.check().is_err());
}

#[test]
fn a_connection_ends_with_its_owner_even_if_a_forked_child_holds_a_copy() {
    let (client, mut server, _) = pair(&Shm::new(), Offer::default());
    // SAFETY: the child only sleeps in the kernel, until it is killed below.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; `pause` and `_exit` are async-signal-safe.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
    }
    drop(client);
    let gone = server.check();
    // SAFETY: the pid is that of our child, not yet waited for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    assert!(gone.is_err());
}
