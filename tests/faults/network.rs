//! Networks that are slow, that break, and that fall silent.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{ElementType, Error, Table, Tcp, Version, scheme::SchemeConfig};

use super::job::{Job, PATIENCE, SCHEMES, alone, multiple, timed, wait_for};
use super::proxy::{Fault, Proxy};

/// A broken connection is noticed within seconds, to which a busy machine may add many. Left to itself the system
/// takes a quarter of an hour over one that has fallen silent.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Trains two workers for so many clocks, the second through a proxy that does this to what passes. Both leave when
/// both are done. The parameters, as bits, and how long it took.
fn train(job: Job, clocks: u64, fault: Fault) -> (Vec<u32>, Duration) {
    let (took, parameters, status) = job.serve(|address, watch| {
        let proxy = Proxy::new(address, 1);
        proxy.set(fault);
        let done = Barrier::new(2);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for at in [address.clone(), proxy.address()] {
                let done = &done;
                scope.spawn(move || {
                    let mut worker = watch.connect(&at, PATIENCE).unwrap();
                    for _ in 0..clocks {
                        watch.train(&mut worker, PATIENCE).unwrap();
                    }
                    worker.flush(PATIENCE).unwrap();
                    done.wait();
                });
            }
        });
        begun.elapsed()
    });
    assert_eq!((status.folded, status.dropped), (2 * clocks, 0), "{fault:?}");
    (parameters.iter().map(|value| value.to_bits()).collect(), took)
}

#[test]
fn a_slow_or_trickling_network_slows_training_and_changes_no_bit_of_it() {
    let _alone = alone();
    for scheme in SCHEMES {
        let job = Job::new(scheme, 600);
        let (undisturbed, _) = train(job, 20, Fault::None);
        for fault in [Fault::Delay(Duration::from_millis(3)), Fault::Trickle(100)] {
            let (disturbed, took) = train(job, 20, fault);
            assert!(undisturbed == disturbed, "{scheme} {fault:?}");
            // 20 gradients of 2,400 bytes at 100 a millisecond, or 20 round trips of 6 ms.
            assert!(took > Duration::from_millis(120), "{scheme} {fault:?} took {took:?}: was it there?");
        }
    }
}

/// Breaks a worker's connection in the middle of training: what it is told, how long after, and that the other one
/// goes on to the end.
fn broken(job: Job, fault: Fault, timeout: Duration) -> (Error, Duration) {
    let clocks = 60;
    let (told, parameters, status) = job.serve(|address, watch| {
        let proxy = Proxy::new(address, 1);
        std::thread::scope(|scope| {
            let surviving = scope.spawn(|| {
                let mut worker = watch.connect(address, PATIENCE).unwrap();
                for _ in 0..clocks {
                    watch.train(&mut worker, PATIENCE).unwrap();
                }
                worker.flush(PATIENCE).unwrap();
            });
            let mut worker = watch.connect(&proxy.address(), PATIENCE).unwrap();
            for _ in 0..20 {
                watch.train(&mut worker, PATIENCE).unwrap();
            }
            proxy.set(fault);
            let begun = Instant::now();
            let error = loop {
                match watch.train(&mut worker, timeout) {
                    Ok(()) => {}
                    // It is not known to be lost yet.
                    Err(Error::Deadline { .. }) => {}
                    Err(Error::OutOfTurn { .. }) => panic!("a deadline leaves a worker where it was"),
                    Err(error) => break error,
                }
                assert!(begun.elapsed() < PATIENCE, "{fault:?} is never noticed");
            };
            let took = begun.elapsed();
            surviving.join().unwrap();
            (error, took)
        })
    });
    // Each clock of the survivor is in it, and up to 21 and some of the victim. Its last one may be void, which is
    // counted, too.
    let counted = status.folded + status.voided;
    let unit = multiple(&parameters);
    match job.scheme {
        SchemeConfig::Bsp => assert_eq!(unit, clocks as f64, "{fault:?}"),
        _ => assert!(counted >= clocks + 20 && counted < clocks + 30, "{fault:?}: {status:?}"),
    }
    told
}

#[test]
fn a_worker_whose_connection_breaks_is_told_at_once_and_the_other_finishes() {
    let _alone = alone();
    for scheme in SCHEMES {
        for fault in [Fault::Cut, Fault::Reset] {
            let (error, took) = broken(Job::new(scheme, 5000), fault, PATIENCE);
            assert!(matches!(error, Error::ServerLost { .. }), "{scheme} {fault:?}: {error}");
            assert!(took < NOTICED_WITHIN, "{scheme} {fault:?} took {took:?}");
        }
    }
}

#[test]
fn a_worker_on_a_silent_network_is_told_in_seconds_and_the_other_finishes() {
    let _alone = alone();
    for scheme in SCHEMES {
        let (error, took) = broken(Job::new(scheme, 5000), Fault::HalfOpen, Duration::from_millis(500));
        assert!(matches!(error, Error::ServerLost { .. }), "{scheme}: {error}");
        assert!(took < NOTICED_WITHIN, "{scheme} took {took:?}");
    }
}

#[test]
fn calls_over_a_stalled_network_meet_their_deadline_and_the_other_finishes() {
    let _alone = alone();
    let timeout = Duration::from_millis(300);
    for scheme in SCHEMES {
        Job { lease: Duration::from_secs(1), ..Job::new(scheme, 5000) }.serve(|address, watch| {
            let proxy = Proxy::new(address, 1);
            std::thread::scope(|scope| {
                let surviving = scope.spawn(|| {
                    let mut worker = watch.connect(address, PATIENCE).unwrap();
                    for _ in 0..60 {
                        watch.train(&mut worker, PATIENCE).unwrap();
                    }
                });
                let mut worker = watch.connect(&proxy.address(), PATIENCE).unwrap();
                for _ in 0..20 {
                    watch.train(&mut worker, PATIENCE).unwrap();
                }
                proxy.set(Fault::Stall);
                let mut refused = 0;
                while refused < 5 {
                    match watch.train(&mut worker, timeout) {
                        Ok(()) => {}
                        Err(Error::Deadline { .. } | Error::ServerLost { .. }) => refused += 1,
                        Err(error) => panic!("{scheme}: {error}"),
                    }
                }
                // The connection is made by the system; nothing is ever said on it.
                let error = watch.connect(&proxy.address(), timeout).err().expect("no server answers");
                assert!(matches!(error, Error::Deadline { .. }), "{scheme}: {error}");
                let again = [proxy.address()];
                let error = timed("reconnect", timeout, || worker.reconnect(&again, timeout)).err();
                assert!(error.is_some(), "{scheme}: no server answers");
                surviving.join().unwrap();
            });
        });
    }
}

#[test]
fn a_server_drops_a_worker_whose_host_is_gone_long_before_a_long_lease_ends() {
    let _alone = alone();
    Job { lease: Duration::from_secs(600), ..Job::new(SchemeConfig::Bsp, 100) }.serve(|address, watch| {
        let proxy = Proxy::new(address, 1);
        let _worker = watch.connect(&proxy.address(), PATIENCE).unwrap();
        wait_for("the worker", || (watch.status().workers == 1).then_some(()));
        proxy.set(Fault::HalfOpen);
        let begun = Instant::now();
        wait_for("the worker to be let go", || (watch.status().left == 1).then_some(()));
        let took = begun.elapsed();
        assert!(took < NOTICED_WITHIN, "{took:?}");
    });
}

/// Its requests are still on their way when the deadline has passed: the next call waits for them, and for no others.
#[test]
fn a_reader_goes_on_after_a_deadline_that_passed_with_requests_in_flight() {
    let _alone = alone();
    let any_port = "127.0.0.1:0".parse().unwrap();
    let table = Table::flat(16, ElementType::F32).unwrap();
    let mut publisher = Publisher::new(Tcp::new(), &any_port, table, PublisherOptions::default()).unwrap();
    let proxy = Proxy::new(&publisher.address(), 1);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let options = ReaderOptions::default();
            let mut reader = Reader::connect(Tcp::new(), &proxy.address(), options, PATIENCE).unwrap();
            proxy.set(Fault::Delay(Duration::from_millis(20)));
            for _ in 0..3 {
                let late = reader.refresh_to(Version::new(1), Duration::from_millis(5));
                assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
            }
            assert_eq!(reader.refresh_to(Version::new(0), PATIENCE).unwrap().version, Version::new(0));
        });
        publisher
            .drive(|publisher| publisher.joined() == 1 && publisher.readers().is_empty(), PATIENCE)
            .unwrap();
        reading.join().unwrap();
    });
}
