//! Networks that flip bits: an error, as often as it takes, but never a wrong byte.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{Address, ElementType, Error, ShardOptions, Table, Tcp, Version};

use super::job::{Job, PATIENCE, SCHEMES, alone, multiple, timed};
use super::proxy::{Fault, Proxy, Towards};
use super::random::Seed;

/// Longest time that a call over a broken network may take.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Bits to flip before a claim is believed.
const FLIPS: u64 = 40;

/// Trains through a proxy that flips bits, connecting again whenever something was noticed, until enough were flipped;
/// how often something was noticed. All that both workers see, and what there is in the end, is checked.
fn train(job: Job, every: u64, towards: Towards, seed: u64) -> u64 {
    let (noticed, parameters, status) = job.serve(|address, watch| {
        let proxy = Proxy::new(address, seed);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let surviving = scope.spawn(|| {
                let mut worker = watch.connect(address, PATIENCE).unwrap();
                while !stop.load(SeqCst) {
                    watch.train(&mut worker, PATIENCE).unwrap();
                }
            });
            let stops = Stop(&stop);
            let mut worker = watch.connect(&proxy.address(), PATIENCE).unwrap();
            proxy.set(Fault::Corrupt { every, towards });
            let (mut noticed, begun) = (0, Instant::now());
            while proxy.flipped() < FLIPS {
                if watch.train(&mut worker, TIMEOUT).is_err() {
                    noticed += 1;
                    let again = [proxy.address()];
                    while timed("reconnect", TIMEOUT, || worker.reconnect(&again, TIMEOUT)).is_err() {}
                }
                assert!(begun.elapsed() < PATIENCE, "only {} flips", proxy.flipped());
            }
            drop((stops, worker));
            surviving.join().unwrap();
            noticed
        })
    });
    assert!(multiple(&parameters) <= status.folded as f64);
    noticed
}

/// Ends the other worker, also if a claim does not hold.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn survives(elements: usize, every: u64) {
    let _alone = alone();
    let seed = Seed::of_this_run();
    for scheme in SCHEMES {
        for towards in [Towards::Server, Towards::Client] {
            let noticed = train(Job::new(scheme, elements), every, towards, seed.0);
            assert!(noticed > 0, "{scheme} {towards:?}: {FLIPS} flips and no peer noticed any");
        }
    }
}

#[test]
fn no_flipped_bit_of_a_gradient_or_of_parameters_is_ever_accepted() {
    survives(8192, 100_000);
}

#[test]
fn no_flipped_bit_of_a_header_a_clock_or_a_version_is_ever_believed() {
    survives(16, 3_000);
}

#[test]
fn a_reader_hands_out_no_damaged_version_and_no_damaged_number() {
    let _alone = alone();
    let seed = Seed::of_this_run();
    for (bytes, every) in [(64u64, 1_000), (100_000, 300_000)] {
        let memory = ShardOptions { checksums: true, ..ShardOptions::default() };
        let options = PublisherOptions { memory, ..PublisherOptions::default() };
        let table = Table::flat(bytes / 2, ElementType::Bf16).unwrap();
        let any_port = "127.0.0.1:0".parse().unwrap();
        let mut publisher = Publisher::new(Tcp::new(), &any_port, table, options).unwrap();
        let (proxy, epoch) = (Proxy::new(&publisher.address(), seed.0), publisher.epoch());
        let (begun_to, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let _stops = Stop(&stop);
                let (good, bad) = read(&proxy, epoch, &begun_to, every);
                assert!(good > 0 && bad > 0, "{good} versions, {bad} errors");
            });
            while !stop.load(SeqCst) {
                let next = publisher.version().next();
                begun_to.store(next.get(), SeqCst);
                publisher.publish(&vec![next.get() as u8; bytes as usize], PATIENCE).unwrap();
                publisher.drive(|_| stop.load(SeqCst), Duration::from_millis(2)).unwrap();
            }
            reading.join().unwrap();
        });
    }
}

/// Reads until enough bits were flipped: how many reads were good, and how many errors.
fn read(proxy: &Proxy, epoch: u64, begun_to: &AtomicU64, every: u64) -> (u64, u64) {
    let connect = |address: &Address| {
        let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
        timed("connect", TIMEOUT, || Reader::connect(Tcp::new(), address, options, TIMEOUT))
    };
    let (mut good, mut bad, begun) = (0, 0, Instant::now());
    proxy.set(Fault::Corrupt { every, towards: Towards::Both });
    'connections: while proxy.flipped() < 4 * FLIPS {
        assert!(begun.elapsed() < PATIENCE, "only {} flips", proxy.flipped());
        let Ok(mut reader) = connect(&proxy.address()) else {
            bad += 1;
            continue;
        };
        let mut last = Version::new(0);
        while proxy.flipped() < 4 * FLIPS {
            match timed("refresh", TIMEOUT, || reader.refresh(1, TIMEOUT)) {
                Ok(fresh) => {
                    good += 1;
                    let newest = begun_to.load(SeqCst);
                    assert!(
                        fresh.version.get() + fresh.behind <= newest,
                        "{fresh:?}, where {newest} is the newest"
                    );
                    assert!(fresh.version >= last && fresh.epoch == epoch, "{fresh:?} after {last:?}");
                    last = fresh.version;
                    let held = reader.bytes().unwrap();
                    assert!(held.iter().all(|byte| *byte == last.get() as u8), "a wrong byte in {fresh:?}");
                }
                Err(Error::Deadline { .. }) => bad += 1,
                Err(_) => {
                    bad += 1;
                    continue 'connections;
                }
            }
        }
    }
    (good, bad)
}
