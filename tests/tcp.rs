//! Servers, workers, publishers and readers over TCP: nothing is mapped, and nothing completes before it is polled.

use std::time::Duration;

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, ElementType, Server, ServerOptions, Table, Tcp, Version, Worker, WorkerOptions,
    scheme::SchemeConfig,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const LEARNING_RATE: f32 = 0.1;

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn target(index: usize, worker: usize) -> f32 {
    ((index * 7 + worker * 3) as f32 * 0.01).sin()
}

fn gradient_of(parameters: &[f32], worker: usize, gradient: &mut [f32]) {
    for (index, (g, p)) in gradient.iter_mut().zip(parameters).enumerate() {
        *g = p - target(index, worker);
    }
}

/// Trains with threads as workers, each with a transport of its own, and returns the parameters and each worker's
/// staleness counts.
fn train(
    scheme: SchemeConfig,
    elements: usize,
    workers: usize,
    clocks: u64,
    chunk_bytes: u64,
) -> (Vec<f32>, Vec<Vec<u64>>) {
    let table = Table::flat(elements as u64, ElementType::F32).unwrap();
    let mut options = ServerOptions::new(scheme, workers, LEARNING_RATE);
    options.memory.chunk_bytes = chunk_bytes;
    options.memory.checksums = true;
    let mut server = Server::new(Tcp::new(), &any_port(), table, &vec![0.5; elements], options).unwrap();
    let address = server.address();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().left == workers as u64, TIMEOUT).unwrap());
            server.parameters().unwrap()
        });
        let handles: Vec<_> = (0..workers)
            .map(|index| {
                let address = address.clone();
                scope.spawn(move || {
                    let options = WorkerOptions { checksums: true, ..WorkerOptions::new(scheme) };
                    let mut worker = Worker::connect(Tcp::new(), &[address], options, TIMEOUT).unwrap();
                    let mut gradient = vec![0.0; elements];
                    for _ in 0..clocks {
                        let mut step = worker.step(TIMEOUT).unwrap();
                        gradient_of(step.parameters().unwrap(), index, &mut gradient);
                        step.encode(&gradient).unwrap();
                        step.publish(None, TIMEOUT).unwrap();
                    }
                    worker.flush(TIMEOUT).unwrap();
                    worker.statistics().staleness.clone()
                })
            })
            .collect();
        let counts = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
        (serving.join().unwrap(), counts)
    })
}

#[test]
fn one_worker_under_bsp_gives_bit_for_bit_what_a_serial_loop_gives() {
    // 400 kB in seven chunks, and a tail.
    let (elements, clocks) = (100_003, 12);
    let (parameters, staleness) = train(SchemeConfig::Bsp, elements, 1, clocks, 64 << 10);
    let mut expected = vec![0.5f32; elements];
    let mut gradient = vec![0.0; elements];
    for _ in 0..clocks {
        gradient_of(&expected, 0, &mut gradient);
        for (p, g) in expected.iter_mut().zip(&gradient) {
            *p -= LEARNING_RATE * g;
        }
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(bits(&parameters) == bits(&expected));
    assert_eq!(staleness, [[clocks]], "under BSP nothing is stale");
}

#[test]
fn every_scheme_keeps_its_bound_and_converges() {
    for scheme in [
        SchemeConfig::Bsp,
        SchemeConfig::Asp,
        SchemeConfig::Ssp { staleness: 2 },
        SchemeConfig::Essp { staleness: 2 },
    ] {
        let (parameters, staleness) = train(scheme, 20_000, 2, 100, 16 << 10);
        for counts in &staleness {
            assert_eq!(counts.iter().sum::<u64>(), 100, "{scheme}");
            if let Some(bound) = scheme.staleness() {
                assert!(counts.len() as u64 <= bound + 1, "{scheme}: {counts:?}");
            }
        }
        for (index, got) in parameters.iter().enumerate() {
            let mean = (target(index, 0) + target(index, 1)) / 2.0;
            assert!((got - mean).abs() < 0.3, "{scheme}: {got} against {mean}");
        }
    }
}

#[test]
fn a_reader_is_never_staler_than_it_asked() {
    let table = Table::flat(500_000, ElementType::Bf16).unwrap();
    let mut publisher = Publisher::new(Tcp::new(), &any_port(), table, PublisherOptions::default()).unwrap();
    let address = publisher.address();
    std::thread::scope(|scope| {
        let (to_reader, steps) = std::sync::mpsc::channel::<u64>();
        let (to_publisher, done) = std::sync::mpsc::channel::<()>();
        let reading = scope.spawn(move || {
            let mut reader =
                Reader::connect(Tcp::new(), &address, ReaderOptions::default(), TIMEOUT).unwrap();
            for version in steps {
                let fresh = reader.refresh(2, TIMEOUT).unwrap();
                assert!(fresh.version.get() + 2 >= version, "{fresh:?} of {version}");
                assert!(reader.bytes().unwrap().iter().all(|byte| *byte == fresh.version.get() as u8));
                to_publisher.send(()).unwrap();
            }
        });
        assert!(publisher.drive(|publisher| publisher.readers().len() == 1, TIMEOUT).unwrap());
        for version in 1..=20u64 {
            assert_eq!(
                publisher.publish(&[version as u8; 1_000_000], TIMEOUT).unwrap(),
                Version::new(version)
            );
            to_reader.send(version).unwrap();
            done.recv().unwrap();
        }
        drop(to_reader);
        reading.join().unwrap();
    });
}
