//! Claims about the rendezvous.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::*;
use crate::channel::{Channel, ChannelTerms, Purpose, Secret};
use crate::job::env::RendezvousEndpoint;
use crate::transport::HANDSHAKE_TIMEOUT;

const TIMEOUT: Duration = Duration::from_secs(60);

fn hub(options: HubOptions) -> Hub {
    Hub::listen("127.0.0.1:0".parse().unwrap(), options).unwrap()
}

fn join(hub: &Hub, introduction: Introduction) -> JoinHandle<Result<Membership, RendezvousError>> {
    let address = hub.address().to_string();
    std::thread::spawn(move || Membership::join(&address, introduction, None, TIMEOUT))
}

fn worker() -> Introduction {
    Introduction::new(MemberRole::Worker, Host::own())
}

/// Polls the hub until `until` takes an event.
fn wait_for<R>(hub: &mut Hub, mut until: impl FnMut(&mut Hub, HubEvent) -> Option<R>) -> R {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match hub.poll() {
            Some(event) => {
                if let Some(result) = until(hub, event) {
                    return result;
                }
            }
            None => hub.wait(Duration::from_millis(10)),
        }
        assert!(Instant::now() < deadline, "nothing came");
    }
}

fn joined(_: &mut Hub, event: HubEvent) -> Option<Member> {
    if let HubEvent::Joined(member) = event { Some(member) } else { None }
}

fn left(_: &mut Hub, event: HubEvent) -> Option<Member> {
    if let HubEvent::Left { member, .. } = event { Some(member) } else { None }
}

/// Runs the hub until a thread ends.
fn finish<R>(hub: &mut Hub, thread: JoinHandle<R>) -> R {
    let deadline = Instant::now() + TIMEOUT;
    while !thread.is_finished() {
        while hub.poll().is_some() {}
        hub.wait(Duration::from_millis(5));
        assert!(Instant::now() < deadline, "it does not end");
    }
    thread.join().unwrap()
}

#[test]
fn a_member_that_goes_on_talking_holds_no_caller() {
    let mut hub = hub(HubOptions::default());
    let thread = join(&hub, worker());
    wait_for(&mut hub, joined);
    let mut member = finish(&mut hub, thread).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_stopped = stop.clone();
    let talk = std::thread::spawn(move || {
        while !is_stopped.load(std::sync::atomic::Ordering::Relaxed) && member.say(b"again").is_ok() {
            // The hub's messages are read, or the connection would fill.
            while member.poll().is_ok_and(|event| event.is_some()) {}
        }
    });
    let said = |_: &mut Hub, event: HubEvent| matches!(event, HubEvent::Said(..)).then_some(());
    for _ in 0..100 {
        wait_for(&mut hub, said);
        let most = std::iter::from_fn(|| hub.poll()).take(1000).count();
        assert!(most < 1000, "one look at one member is no more than a few events");
    }
    let begun = Instant::now();
    hub.close(b"the end", Duration::from_millis(100));
    assert!(begun.elapsed() < TIMEOUT / 2);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    talk.join().unwrap();
}

#[test]
fn everybody_learns_of_everybody_and_ranks_are_given_in_order() {
    let mut hub = hub(HubOptions::default());
    let threads: Vec<_> = (0..5).map(|_| join(&hub, worker())).collect();
    let mut ranks = HashSet::new();
    for _ in 0..5 {
        ranks.insert(wait_for(&mut hub, joined).role_rank);
    }
    assert_eq!(ranks, (0..5).collect());
    let mut members: Vec<_> = threads.into_iter().map(|thread| finish(&mut hub, thread).unwrap()).collect();
    members[2].announce(vec!["@there".parse().unwrap()], None).unwrap();
    let role_rank = members[2].role_rank();
    for member in &mut members {
        let deadline = Instant::now() + TIMEOUT;
        while !member.members().iter().any(|member| !member.addresses.is_empty()) {
            while hub.poll().is_some() {}
            member.poll().unwrap();
            assert!(Instant::now() < deadline, "not told");
        }
        let who = member.members().iter().find(|member| !member.addresses.is_empty()).unwrap();
        assert_eq!((who.role_rank, who.addresses[0].to_string()), (role_rank, "@there".into()));
        assert_eq!(member.members().len(), 5);
        assert_eq!(member.epoch(), hub.epoch());
    }
}

#[test]
fn a_member_that_returns_has_its_rank_and_a_new_generation() {
    let mut hub = hub(HubOptions::default());
    let introduction = Introduction { role_rank: Some(3), rank: Some(7), ..worker() };
    let mut ids = HashSet::new();
    for generation in 0..3 {
        let thread = join(&hub, introduction.clone());
        let member = wait_for(&mut hub, joined);
        assert_eq!((member.role_rank, member.rank, member.generation), (3, Some(7), generation));
        assert!(ids.insert(member.id));
        let mut member_itself = finish(&mut hub, thread).unwrap();
        assert_eq!(member_itself.was_up(), generation == 2);
        if generation == 1 {
            member_itself.announce(vec![Address::random()], None).unwrap();
            wait_for(&mut hub, |_, event| matches!(event, HubEvent::Announced(_)).then_some(()));
        }
        drop(member_itself);
        assert_eq!(wait_for(&mut hub, left).id, member.id);
    }
}

#[test]
fn a_rank_that_is_taken_is_waited_for() {
    let mut hub = hub(HubOptions::default());
    let introduction = Introduction { role_rank: Some(0), ..worker() };
    let first = join(&hub, introduction.clone());
    wait_for(&mut hub, joined);
    let first = finish(&mut hub, first).unwrap();
    let second = join(&hub, introduction);
    let deadline = Instant::now() + TIMEOUT;
    while hub.refused() == 0 {
        assert!(hub.poll().is_none() && Instant::now() < deadline);
    }
    drop(first);
    assert_eq!(finish(&mut hub, second).unwrap().generation(), 1);
}

#[test]
fn the_reason_of_a_refusal_is_told_though_rank_0_is_gone_since() {
    let is_told = |error: &String| {
        error.contains("it refused until it was gone: worker 0 is there already")
            && error.contains("start no more processes than the job has ranks")
    };
    // It is refused and then tries once more within its time, which a busy machine may use up.
    let errors: Vec<_> = [3, 10, 30]
        .into_iter()
        .map(refused_until_rank_0_is_gone)
        .take_while(|error| !is_told(error))
        .collect();
    assert!(errors.len() < 3, "{errors:?}");
}

/// The error of a worker that is refused, and has so many seconds to join.
fn refused_until_rank_0_is_gone(seconds: u64) -> String {
    let mut hub = hub(HubOptions::default());
    let introduction = Introduction { role_rank: Some(0), ..worker() };
    let first = join(&hub, introduction.clone());
    wait_for(&mut hub, joined);
    let _first = finish(&mut hub, first).unwrap();
    let address = hub.address().to_string();
    let timeout = Duration::from_secs(seconds);
    let second = std::thread::spawn(move || Membership::join(&address, introduction, None, timeout));
    while hub.refused() == 0 && !second.is_finished() {
        assert!(hub.poll().is_none());
        hub.wait(Duration::from_millis(5));
    }
    drop(hub);
    second.join().unwrap().err().expect("no free rank").to_string()
}

#[test]
fn a_full_job_says_so_by_the_deadline() {
    let mut hub = hub(HubOptions { ranks: vec![(MemberRole::Server, 1)], ..HubOptions::default() });
    let address = hub.address().to_string();
    let beyond = Introduction { role_rank: Some(1), ..Introduction::new(MemberRole::Server, Host::own()) };
    let thread = join(&hub, beyond);
    let error = finish(&mut hub, thread).err().expect("refused");
    assert!(matches!(&error, RendezvousError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("the job has ranks for 1 servers"), "{error}");
    let _first = join(&hub, Introduction::new(MemberRole::Server, Host::own()));
    wait_for(&mut hub, joined);
    let mut refusal = |seconds| {
        let (address, timeout) = (address.clone(), Duration::from_secs_f64(seconds));
        let introduction = Introduction::new(MemberRole::Server, Host::own());
        let thread = std::thread::spawn(move || Membership::join(&address, introduction, None, timeout));
        // It is told at its first try. The deadline cuts the last try short: by then the hub does not answer any
        // more.
        let before = hub.refused();
        while hub.refused() == before && !thread.is_finished() {
            assert!(hub.poll().is_none());
            hub.wait(Duration::from_millis(5));
        }
        thread.join().unwrap().err().expect("no free rank").to_string()
    };
    // It asks until its deadline, before which a busy hub may not have come to it.
    let is_told = |error: &String| {
        error.contains("ranks for 1 servers")
            && error.contains("start no more processes than the job has ranks")
    };
    let errors: Vec<_> =
        [0.3, 3.0, 30.0].into_iter().map(&mut refusal).take_while(|error| !is_told(error)).collect();
    assert!(errors.len() < 3, "{errors:?}");
}

#[test]
fn messages_go_both_ways_in_order() {
    let mut hub = hub(HubOptions::default());
    let thread = join(&hub, worker());
    let id = wait_for(&mut hub, joined).id;
    let mut member = finish(&mut hub, thread).unwrap();
    let messages: Vec<Vec<u8>> = (0..20).map(|n| vec![n; usize::from(n) * 40_000]).collect();
    for message in &messages {
        member.say(message).unwrap();
        hub.say(id, message);
    }
    assert!(member.say(&vec![0; MAX_MESSAGE_BYTES + 1]).is_err());
    let (mut at_hub, mut at_member) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + TIMEOUT;
    while at_hub.len() < 20 || at_member.len() < 20 {
        if let Some(HubEvent::Said(from, message)) = hub.poll() {
            assert_eq!(from, id);
            at_hub.push(message);
        }
        if let Some(MemberEvent::Said(message)) = member.poll().unwrap() {
            at_member.push(message);
        }
        assert!(Instant::now() < deadline, "not all arrived");
    }
    assert!(at_hub == messages && at_member == messages);
}

#[test]
fn a_late_rendezvous_is_waited_for_and_one_that_never_comes_is_an_error() {
    let RendezvousEndpoint { port, .. } = RendezvousEndpoint::free([127, 0, 0, 1].into()).unwrap();
    let port = SocketAddr::from(([127, 0, 0, 1], port));
    let error = Membership::join(&port.to_string(), worker(), None, Duration::from_millis(200)).err();
    let error = error.expect("no process listens there").to_string();
    assert!(error.contains("is rank 0 running"), "{error}");
    let error =
        Membership::join("no.such.host.invalid:1", worker(), None, Duration::from_millis(30)).err().unwrap();
    assert!(matches!(error, RendezvousError::Resolve { .. }), "{error}");
    let text = port.to_string();
    let thread = std::thread::spawn(move || Membership::join(&text, worker(), None, TIMEOUT));
    std::thread::sleep(Duration::from_millis(120));
    let mut hub = Hub::listen(port, HubOptions::default()).unwrap();
    finish(&mut hub, thread).unwrap();
}

#[test]
fn without_a_secret_only_loopback_is_served_and_a_wrong_one_is_told() {
    let error = Hub::listen("0.0.0.0:0".parse().unwrap(), HubOptions::default()).err().unwrap();
    assert!(error.to_string().contains("secret"), "{error}");
    let secret = Some(Secret::random().unwrap());
    let mut hub = hub(HubOptions { secret, ..HubOptions::default() });
    let thread = join(&hub, worker());
    let error = finish(&mut hub, thread).err().expect("it knows no secret");
    assert!(error.to_string().contains("do not know the same secret"), "{error}");
    assert_eq!(hub.members().count(), 0);
}

/// Reads until the hub's last message, which must come before the end of the connection.
fn hear_the_cause(member: &mut Membership) {
    let mut last = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while last != b"the cause" {
        match member.poll() {
            Ok(Some(MemberEvent::Said(message))) => last = message,
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("it was not told the cause: {error}"),
        }
        assert!(Instant::now() < deadline, "nothing came");
    }
}

#[test]
fn the_last_message_of_a_hub_reaches_a_member_that_is_slow_to_read() {
    // The system takes a peer that reads nothing for gone after this time, and sealing takes a busy machine seconds.
    let silence = Duration::from_secs(15);
    let mut hub = hub(HubOptions { silence, ..HubOptions::default() });
    let thread = join(&hub, worker());
    let id = wait_for(&mut hub, joined).id;
    let mut slow = finish(&mut hub, thread).unwrap();
    slow.allow_silence(silence);
    // More than the sockets hold, and input that the hub has not read: a socket closed then would reset the connection.
    let large = vec![7; MAX_MESSAGE_BYTES];
    (0..8).for_each(|_| hub.say(id, &large));
    slow.say(&large).unwrap();
    let end = std::thread::spawn(move || hub.close(b"the cause", TIMEOUT));
    hear_the_cause(&mut slow);
    drop(slow);
    end.join().unwrap();
}

#[test]
fn a_member_that_joins_while_a_hub_closes_is_told_the_cause() {
    let mut hub = hub(HubOptions::default());
    let address = hub.address().to_string();
    let thread = join(&hub, worker());
    wait_for(&mut hub, joined);
    let mut first = finish(&mut hub, thread).unwrap();
    let end = std::thread::spawn(move || hub.close(b"the cause", TIMEOUT));
    hear_the_cause(&mut first);
    // The hub stays as long as the first one does.
    hear_the_cause(&mut Membership::join(&address, worker(), None, TIMEOUT).unwrap());
    drop(first);
    end.join().unwrap();
}

/// A connection that has sent its first bytes: the system does not show silent connections to the hub.
fn begin(hub: &Hub) -> TcpStream {
    let mut stream = TcpStream::connect(hub.address()).unwrap();
    stream.write_all(b"s").unwrap();
    stream
}

#[test]
fn unauthenticated_peers_keep_nobody_out() {
    // They are gone within the time that a handshake may take, which a busy machine may use up.
    let is_shown = |_attempt| unauthenticated_peers_keep_somebody_out_for() < HANDSHAKE_TIMEOUT;
    assert!((0..10).any(is_shown), "ten times they were waited for");
}

/// Returns the time that a worker takes to join while many unauthenticated connections are pending.
fn unauthenticated_peers_keep_somebody_out_for() -> Duration {
    let mut hub = hub(HubOptions::default());
    let mut slow = Vec::new();
    for _ in 0..300 {
        slow.push(begin(&hub));
        assert!(hub.poll().is_none());
    }
    let mut rude = TcpStream::connect(hub.address()).unwrap();
    rude.write_all(&[0x5A; 100]).unwrap();
    let begun = Instant::now();
    let thread = join(&hub, worker());
    wait_for(&mut hub, joined);
    let took = begun.elapsed();
    finish(&mut hub, thread).unwrap();
    assert!(hub.refused() >= 300 - 64);
    // All are gone within the time that a handshake may take.
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT + TIMEOUT;
    while hub.refused() < 301 {
        while hub.poll().is_some() {}
        hub.wait(Duration::from_millis(50));
        assert!(Instant::now() < deadline, "{} refused", hub.refused());
    }
    rude.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut rest = Vec::new();
    let _ended = rude.read_to_end(&mut rest);
    assert!(rest.len() <= 64, "it was told {} bytes", rest.len());
    drop(slow);
    took
}

#[test]
fn one_poll_accepts_at_most_64_connections() {
    let mut hub = hub(HubOptions::default());
    let _slow: Vec<_> = (0..100).map(|_| begin(&hub)).collect();
    // With more than 64 of them, some are dropped.
    assert!(hub.poll().is_none());
    assert_eq!(hub.refused(), 0);
    assert!(hub.poll().is_none());
    assert_eq!(hub.refused(), 100 - 64);
}

#[test]
fn connections_without_a_hello_do_not_push_out_a_slow_newcomer() {
    let is_shown = |_attempt| they_come_while_a_newcomer_is_slow();
    // The newcomer has five seconds for its handshake, and a busy machine may use them up.
    assert!((0..10).any(is_shown), "ten handshakes took longer than a hub waits");
}

/// False if the handshake took longer than a hub waits for one: then the newcomer may be dropped for that reason.
fn they_come_while_a_newcomer_is_slow() -> bool {
    let mut hub = hub(HubOptions::default());
    let begun = Instant::now();
    let mut channel = Channel::connect(hub.address(), &ChannelTerms::new(Purpose::Rendezvous)).unwrap();
    assert_eq!(channel.poll().unwrap(), None);
    assert!(hub.poll().is_none());
    let mut slow = Vec::new();
    for _ in 0..300 {
        slow.push(begin(&hub));
        assert!(hub.poll().is_none());
    }
    let deadline = Instant::now() + TIMEOUT;
    while !channel.is_open() {
        if let Err(error) = channel.poll() {
            assert!(begun.elapsed() >= HANDSHAKE_TIMEOUT, "it was dropped: {error}");
            return false;
        }
        assert!(hub.poll().is_none() && Instant::now() < deadline);
    }
    true
}
