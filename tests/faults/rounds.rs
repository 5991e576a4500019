//! A thousand peers that come and die: one in twenty is a process that is killed (those take longest to start), the
//! others are connections that are cut, or given up, in the midst of what they say.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use slackline::weights::{Reader, ReaderOptions};
use slackline::{Address, Secret, Tcp, Worker, WorkerOptions, scheme::SchemeConfig};
use socket2::SockRef;

use super::job::{PATIENCE, alone, wait_for};
use super::process::{self, Process, ServerProcess, Usage};
use super::proxy::Proxy;
use super::random::{Random, Seed};

const ROUNDS: u64 = 1000;
const WARM_UP: u64 = 50;

/// One round in so many is a process that is killed.
const PROCESS_EVERY: u64 = 20;

/// KiB that an allocator may keep: far less than a thousand of anything that leaks.
const MARGIN: u64 = 4 << 10;

#[test]
fn a_thousand_peers_that_die_at_any_moment_leave_the_server_as_it_was() {
    process::is_told();
    let _alone = alone();
    let claim = a_thousand_peers_that_die_at_any_moment_leave_the_server_as_it_was;
    let seed = Seed::of_this_run();
    let secret = Secret::random().unwrap();
    let server = ServerProcess::start(claim, &secret, SchemeConfig::Asp, 1);
    let address = server.address();
    let good = {
        let proxy = Proxy::recording(&address);
        let mut worker = process::worker(secret.expose(), SchemeConfig::Asp, &proxy.address()).unwrap();
        process::train(&mut worker).unwrap();
        proxy.recorded()
    };
    let mut random = Random::new(seed.0);
    let mut round = |number: u64| {
        if number.is_multiple_of(PROCESS_EVERY) {
            let mut killed = Process::start(
                claim,
                &format!("work {} {} {address}", secret.expose(), SchemeConfig::Asp.name()),
            );
            std::thread::sleep(Duration::from_millis(random.below(60)));
            killed.0.kill().unwrap();
        } else if number % 2 == 1 {
            half_said(&address, &good, &mut random);
        } else {
            given_up(&address, &secret, &mut random);
        }
    };
    (1..=WARM_UP).for_each(&mut round);
    let before = settled(&server, None);
    (1..=ROUNDS).for_each(&mut round);
    let after = settled(&server, Some(before));
    assert!(after.memory <= before.memory + MARGIN, "{after:?} after {before:?}");
    let mut worker = process::worker(secret.expose(), SchemeConfig::Asp, &address).unwrap();
    for _ in 0..3 {
        process::train(&mut worker).unwrap();
    }
    worker.flush(PATIENCE).unwrap();
}

/// Says the beginning of what a good worker says, and closes or resets the connection.
fn half_said(address: &Address, good: &[Vec<u8>], random: &mut Random) {
    let Address::Tcp(address) = address else { panic!("a server over tcp") };
    let mut stream = TcpStream::connect(address).unwrap();
    let lane = &good[random.below(good.len() as u64) as usize];
    let said = random.below(lane.len() as u64 + 1) as usize;
    // It may be shut out before it has said all.
    let _sent = stream.write_all(&lane[..said]);
    std::thread::sleep(Duration::from_micros(random.below(1000)));
    if random.below(2) == 0 {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Connects in earnest, and gives up in the handshake or soon after.
fn given_up(address: &Address, secret: &Secret, random: &mut Random) {
    let tcp = Tcp::with_secret(secret.clone());
    let timeout = Duration::from_micros(random.below(6000));
    if random.below(2) == 0 {
        if let Ok(mut reader) = Reader::connect(tcp, address, ReaderOptions::default(), timeout) {
            let _late = reader.refresh(0, timeout);
        }
        return;
    }
    let options = WorkerOptions { checksums: true, ..WorkerOptions::new(SchemeConfig::Asp) };
    let Ok(mut worker) = Worker::connect(tcp, std::slice::from_ref(address), options, timeout) else {
        return;
    };
    for _ in 0..random.below(4) {
        if worker.step(timeout).and_then(|step| step.publish(None, timeout)).is_err() {
            return;
        }
    }
}

/// Waits until the server has noticed that all peers are gone, and returns the resources that it holds then: as many
/// threads and descriptors as `before`, if that is given.
fn settled(server: &ServerProcess, before: Option<Usage>) -> Usage {
    let mut last = server.usage();
    wait_for(&format!("the server to let go of all peers, as {before:?}"), || {
        // Handshakes that stand still are dropped after five seconds; two like looks are too close together.
        std::thread::sleep(Duration::from_millis(300));
        let usage = server.usage();
        let told = server.told();
        let held = |usage: Usage| (usage.threads, usage.descriptors);
        let same = held(usage) == before.map_or(held(last), held);
        last = usage;
        (told.workers + told.readers == 0 && same).then_some(usage)
    })
}
