//! Unauthenticated peers of a server, while two workers train with it.

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slackline::internals::channel::{Channel, ChannelTerms, Purpose};
use slackline::weights::{Reader, ReaderOptions};
use slackline::{Address, Secret, Tcp, scheme::SchemeConfig};

use super::job::{PATIENCE, alone, multiple, wait_for};
use super::process::{self, ServerProcess};
use super::proxy::Proxy;
use super::random::{Random, Seed};
use super::unauthenticated_peer::{REFUSED_WITHIN, UnauthenticatedPeer};

/// KiB by which a server may grow at most, at any moment.
const GROWTH: u64 = 16 << 10;

const HALF_OPEN: usize = 1000;

#[test]
fn unauthenticated_peers_are_shut_out_in_time_while_training_goes_on() {
    process::is_told();
    let _alone = alone();
    let claim = unauthenticated_peers_are_shut_out_in_time_while_training_goes_on;
    allow_many_descriptors();
    let seed = Seed::of_this_run();
    let secret = Secret::random().unwrap();
    let server = ServerProcess::start(claim, &secret, SchemeConfig::Bsp, 2);
    let address = server.address();
    let (clocks, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..2).map(|_| scope.spawn(|| train(&address, &secret, &clocks, &stop))).collect();
        let stops = Stop(&stop);
        wait_for("training", || (clocks.load(SeqCst) > 20).then_some(()));
        let rates = |_attempt| {
            let undisturbed = rate(&clocks, || std::thread::sleep(Duration::from_secs(2)));
            let before = server.usage();
            let disturbed = rate(&clocks, || besiege(&server, &secret, seed.0));
            let after = server.usage();
            assert!(after.peak < before.memory + GROWTH, "{after:?} after {before:?}");
            // The machine may have become busier meanwhile.
            (disturbed, undisturbed.min(rate(&clocks, || std::thread::sleep(Duration::from_secs(2)))))
        };
        // It may also have been busy in the middle alone.
        let slow: Vec<_> = (0..3)
            .map(rates)
            .take_while(|(disturbed, undisturbed)| *disturbed <= undisturbed / 3.0)
            .collect();
        assert!(slow.len() < 3, "clocks a second, and those without: {slow:?}");
        assert_eq!((server.told().joined, server.told().workers), (2, 2), "no other peer got in, none went");
        drop(stops);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Ends the workers, also if a claim does not hold.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A worker that computes for a few milliseconds a clock, and checks every version that it gets.
fn train(address: &Address, secret: &Secret, clocks: &AtomicU64, stop: &AtomicBool) {
    let mut worker = process::worker(secret.expose(), SchemeConfig::Bsp, address).unwrap();
    while !stop.load(SeqCst) {
        process::train(&mut worker).unwrap();
        clocks.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_millis(4));
        // The other one may have ended.
        let step = match worker.step(PATIENCE) {
            Ok(step) => step,
            Err(_) if stop.load(SeqCst) => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(multiple(step.parameters().unwrap()), step.view().version.get() as f64);
    }
}

fn rate(clocks: &AtomicU64, body: impl FnOnce()) -> f64 {
    let (before, begun) = (clocks.load(SeqCst), Instant::now());
    body();
    (clocks.load(SeqCst) - before) as f64 / begun.elapsed().as_secs_f64()
}

/// Tries everything that an unauthenticated peer may try.
fn besiege(server: &ServerProcess, secret: &Secret, seed: u64) {
    let (name, before, mut random) = (server.address(), server.usage(), Random::new(seed));
    let Address::Tcp(address) = name else { panic!("a server over tcp") };
    for tcp in [Tcp::new(), Tcp::with_secret(Secret::random().unwrap())] {
        let begun = Instant::now();
        let error = Reader::connect(tcp, &name, ReaderOptions::default(), PATIENCE).err();
        let error = error.expect("a peer without the secret is not let in");
        assert!(matches!(error, slackline::Error::Connect(_)), "{error}");
        assert!(begun.elapsed() < REFUSED_WITHIN, "{error} after {:?}", begun.elapsed());
    }
    // What good peers say is said again, as it was and cut.
    let good = {
        let proxy = Proxy::recording(&name);
        let tcp = Tcp::with_secret(secret.clone());
        let mut reader = Reader::connect(tcp, &proxy.address(), ReaderOptions::default(), PATIENCE).unwrap();
        reader.refresh(0, PATIENCE).unwrap();
        proxy.recorded()
    };
    wait_for("the reader to be gone", || (server.told().readers == 0).then_some(()));
    let mut unauthenticated_peers = Vec::new();
    for lane in &good {
        assert!(lane.len() > 128, "a greeting and a message");
        unauthenticated_peers.push(UnauthenticatedPeer::says(address, lane));
        for _ in 0..20 {
            unauthenticated_peers
                .push(UnauthenticatedPeer::says(address, &lane[..random.below(lane.len() as u64) as usize]));
        }
    }
    // Noise of any length; and of any after a beginning that is right.
    for number in 0..100 {
        let mut noise: Vec<_> = (0..random.below(3000)).map(|_| random.below(256) as u8).collect();
        if number % 2 == 0 {
            noise.splice(0..0, good[0][..random.below(80) as usize].iter().copied());
        }
        unauthenticated_peers.push(UnauthenticatedPeer::says(address, &noise));
    }
    unauthenticated_peers.push(UnauthenticatedPeer::says(address, &vec![7; 4 << 20]));
    // A peer that knows the secret, and stops within the header of its first message.
    let terms = ChannelTerms { secret: Some(secret.clone()), ..ChannelTerms::new(Purpose::Transport) };
    let mut channel = Channel::connect(address, &terms).unwrap();
    wait_for("the greeting", || {
        channel.poll().unwrap();
        channel.is_open().then_some(())
    });
    let stream = channel.as_fd().try_clone_to_owned().unwrap().into();
    unauthenticated_peers.push(UnauthenticatedPeer::goes_on(stream, &[0xFF; 4]));
    for unauthenticated_peer in unauthenticated_peers {
        unauthenticated_peer.must_be_shut_out();
    }
    // A busy machine may use up the time after which unauthenticated connections are dropped.
    let gets_in_past_them = |_attempt| {
        let silent: Vec<_> = (0..HALF_OPEN).map(|_| UnauthenticatedPeer::says(address, b"")).collect();
        // A peer with the secret gets in past all of them, and few of them are kept.
        let begun = Instant::now();
        let tcp = Tcp::with_secret(secret.clone());
        drop(Reader::connect(tcp, &name, ReaderOptions::default(), PATIENCE).unwrap());
        let took = begun.elapsed();
        let kept = server.usage().descriptors - before.descriptors;
        assert!(kept < 100, "{kept} unauthenticated connections are kept");
        for unauthenticated_peer in silent {
            unauthenticated_peer.must_be_shut_out();
        }
        took < Duration::from_secs(4)
    };
    assert!((0..5).any(gets_in_past_them), "five times it was let in once they were dropped");
}

fn allow_many_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}
