//! Servers, workers, publishers and readers over shared memory, in one process.

mod node {
    mod decided;
    mod fork;
    mod host;
    mod memory;
    mod own_scheme;
    mod polled;
    mod step;
}

#[path = "../examples/custom_scheme.rs"]
mod custom_scheme;
#[path = "../examples/groups.rs"]
mod groups;
#[path = "node/host_job.rs"]
mod host_job;
#[path = "node/only_worker.rs"]
mod only_worker;
#[path = "../examples/publish_weights.rs"]
mod publish_weights;
#[path = "../examples/simulate.rs"]
mod simulate;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackline::group::{GroupMember, GroupOptions};
use slackline::internals::mem::{Access, HostMemory, MemoryRegion};
use slackline::internals::transport::shm::{ShmConnecting, ShmEndpoint, ShmListener};
use slackline::internals::transport::{Capabilities, Offer, RegisterError};
use slackline::optim::Optimizer;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{
    Address, ConnectError, ElementType, Encoding, Error, Server, ServerOptions, Shm, Table, Tcp, Transport,
    Version, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use only_worker::TIMEOUT;

/// A gradient that depends on everything it should: the parameters, the clock and the worker.
fn gradient_of(parameters: &[f32], worker: usize, clock: u64, gradient: &mut [f32]) {
    for (index, (g, p)) in gradient.iter_mut().zip(parameters).enumerate() {
        let target = ((index * 7 + worker * 3) as f32 * 0.01).sin() + clock as f32 * 0.001;
        *g = p - target;
    }
}

struct Run {
    options: ServerOptions,
    elements: usize,
    workers: usize,
    clocks: u64,
    chunk_bytes: u64,
}

impl Run {
    /// Trains with threads as workers and returns the parameters and each worker's staleness counts.
    fn go(mut self, encoding: Encoding) -> (Vec<f32>, Vec<Vec<u64>>) {
        let address = Address::random();
        let table = Table::flat(self.elements as u64, ElementType::F32).unwrap();
        self.options.memory.chunk_bytes = self.chunk_bytes;
        let scheme = self.options.scheme.clone();
        let initial = vec![0.5; self.elements];
        let mut server = Server::new(Shm::new(), &address, table, &initial, self.options).unwrap();
        let workers = self.workers as u64;
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                assert!(server.drive(|server| server.status().left == workers, TIMEOUT).unwrap());
                server.parameters().unwrap()
            });
            let handles: Vec<_> = (0..self.workers)
                .map(|index| {
                    let address = address.clone();
                    let options =
                        WorkerOptions { encoding, checksums: true, ..WorkerOptions::new(scheme.clone()) };
                    let clocks = self.clocks;
                    scope.spawn(move || {
                        let mut worker = Worker::connect(Shm::new(), &[address], options, TIMEOUT).unwrap();
                        let mut gradient = vec![0.0; worker.table().bytes() as usize / 4];
                        for _ in 0..clocks {
                            let mut step = worker.step(TIMEOUT).unwrap();
                            let view = step.view();
                            gradient_of(step.parameters().unwrap(), index, view.clock.get(), &mut gradient);
                            step.encode(&gradient).unwrap();
                            step.publish(Some(1.0), TIMEOUT).unwrap();
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
}

/// The same by a plain loop, the gradients of all workers averaged.
fn serial(
    optimizer: Optimizer,
    learning_rate: f32,
    elements: usize,
    workers: usize,
    clocks: u64,
) -> Vec<f32> {
    let mut parameters = vec![0.5f32; elements];
    let mut first = vec![0.0f32; elements];
    let mut second = vec![0.0f32; elements];
    let mut gradients = vec![vec![0.0f32; elements]; workers];
    for clock in 0..clocks {
        for (worker, gradient) in gradients.iter_mut().enumerate() {
            gradient_of(&parameters, worker, clock, gradient);
        }
        let step = (clock + 1) as i32;
        for index in 0..elements {
            let weight = 1.0 / workers as f32;
            let mut g = weight * gradients[0][index];
            for gradient in &gradients[1..] {
                g += weight * gradient[index];
            }
            let p = &mut parameters[index];
            match optimizer {
                Optimizer::Sgd { weight_decay } => {
                    if weight_decay != 0.0 {
                        g += weight_decay * *p;
                    }
                    *p -= learning_rate * g;
                }
                Optimizer::Momentum { momentum, weight_decay } => {
                    if weight_decay != 0.0 {
                        g += weight_decay * *p;
                    }
                    first[index] = momentum * first[index] + g;
                    *p -= learning_rate * first[index];
                }
                Optimizer::Adam(_) => unreachable!("not used here"),
                Optimizer::AdamW(adam) => {
                    let (b1, b2) = (f64::from(adam.beta1), f64::from(adam.beta2));
                    *p -= (f64::from(learning_rate) * f64::from(adam.weight_decay)) as f32 * *p;
                    first[index] = adam.beta1 * first[index] + ((1.0 - b1) as f32) * g;
                    second[index] = adam.beta2 * second[index] + (((1.0 - b2) as f32) * g) * g;
                    let rate = (f64::from(learning_rate) / (1.0 - b1.powi(step))) as f32;
                    let correction = (1.0 - b2.powi(step)).sqrt() as f32;
                    *p -= rate * (first[index] / (second[index].sqrt() / correction + adam.epsilon));
                }
            }
        }
    }
    parameters
}

#[test]
fn one_worker_under_bsp_gives_bit_for_bit_what_a_serial_loop_gives() {
    let optimizers = [
        Optimizer::Sgd { weight_decay: 0.0 },
        Optimizer::Momentum { momentum: 0.9, weight_decay: 0.01 },
        Optimizer::AdamW(slackline::optim::AdamParameters { weight_decay: 0.1, ..Default::default() }),
    ];
    for optimizer in optimizers {
        for threads in [1, 3] {
            let options =
                ServerOptions { optimizer, threads, ..ServerOptions::new(SchemeConfig::Bsp, 1, 0.1) };
            let run = Run { options, elements: 5_003, workers: 1, clocks: 30, chunk_bytes: 4096 };
            let (parameters, staleness) = run.go(Encoding::F32);
            let expected = serial(optimizer, 0.1, 5_003, 1, 30);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert!(bits(&parameters) == bits(&expected), "{optimizer:?} with {threads} threads");
            assert_eq!(staleness, [[30]], "under BSP nothing is stale");
        }
    }
}

#[test]
fn four_workers_under_bsp_give_the_serial_large_batch_run() {
    let optimizer = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
    let options = ServerOptions { optimizer, threads: 2, ..ServerOptions::new(SchemeConfig::Bsp, 4, 0.05) };
    let run = Run { options, elements: 3_000, workers: 4, clocks: 40, chunk_bytes: 2048 };
    let (parameters, _) = run.go(Encoding::F32);
    let expected = serial(optimizer, 0.05, 3_000, 4, 40);
    // Relative to the largest value: sums are made in the order in which workers joined, and values near zero differ
    // by the rounding of larger ones.
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    for (got, want) in parameters.iter().zip(&expected) {
        assert!((got - want).abs() <= 1e-5 * largest, "{got} against {want}");
    }
}

#[test]
fn every_scheme_keeps_its_bound_and_converges() {
    for scheme in [SchemeConfig::Asp, SchemeConfig::Ssp { staleness: 2 }, SchemeConfig::Essp { staleness: 2 }]
    {
        let options = ServerOptions::new(scheme, 3, 0.1);
        let run = Run { options, elements: 2_000, workers: 3, clocks: 150, chunk_bytes: 1024 };
        let (parameters, staleness) = run.go(Encoding::F32);
        for counts in &staleness {
            assert_eq!(counts.iter().sum::<u64>(), 150, "{scheme}");
            if let Some(bound) = scheme.staleness() {
                assert!(counts.len() as u64 <= bound + 1, "{scheme}: {counts:?}");
            }
        }
        // The fixed point is the mean of the workers' targets.
        let target =
            |index: usize| (0..3).map(|w| ((index * 7 + w * 3) as f32 * 0.01).sin()).sum::<f32>() / 3.0;
        for (index, got) in parameters.iter().enumerate() {
            assert!((got - target(index)).abs() < 0.3, "{scheme}: {got} against {}", target(index));
        }
    }
}

#[test]
fn a_server_whose_optimiser_has_a_constant_out_of_its_range_is_refused() {
    let table = || Table::flat(16, ElementType::F32).unwrap();
    for (optimizer, name) in [
        (Optimizer::Momentum { momentum: 1.0, weight_decay: 0.0 }, "momentum"),
        (Optimizer::Sgd { weight_decay: -1.0 }, "weight_decay"),
    ] {
        let options = ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 1, 0.1) };
        let server = Server::new(Shm::new(), &Address::random(), table(), &[0.0; 16], options);
        let error = server.err().expect("no server");
        assert!(matches!(error, Error::Option { option, .. } if option == name), "{error}");
    }
}

#[test]
fn gradients_in_half_precision_are_folded_like_their_f32_values() {
    for encoding in [Encoding::Bf16, Encoding::F16] {
        let options = ServerOptions::new(SchemeConfig::Bsp, 2, 0.1);
        let run = Run { options, elements: 1_001, workers: 2, clocks: 20, chunk_bytes: 256 };
        let (parameters, _) = run.go(encoding);
        let expected = serial(Optimizer::Sgd { weight_decay: 0.0 }, 0.1, 1_001, 2, 20);
        for (got, want) in parameters.iter().zip(&expected) {
            assert!((got - want).abs() < 0.01, "{encoding:?}: {got} against {want}");
        }
    }
}

#[test]
fn a_worker_over_three_servers_sees_one_table() {
    let table = Table::builder()
        .tensor("a", &[100], ElementType::F32)
        .tensor("b", &[33], ElementType::F32)
        .build()
        .unwrap();
    let ranges = table.shards(3).unwrap();
    let addresses: Vec<_> = (0..3).map(|_| Address::random()).collect();
    let initial: Vec<f32> = (0..133).map(|value| value as f32).collect();
    std::thread::scope(|scope| {
        let servers: Vec<_> = (0..3)
            .map(|index| {
                let options = ServerOptions {
                    shard: (index as u16, 3),
                    ..ServerOptions::new(SchemeConfig::Bsp, 1, 1.0)
                };
                let own = &initial[ranges[index].start as usize / 4..ranges[index].end as usize / 4];
                let mut server =
                    Server::new(Shm::new(), &addresses[index], table.clone(), own, options).unwrap();
                scope.spawn(move || {
                    assert!(server.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
                    server.parameters().unwrap()
                })
            })
            .collect();
        let mut shuffled = addresses.clone();
        shuffled.rotate_left(1);
        let mut worker =
            Worker::connect(Shm::new(), &shuffled, WorkerOptions::new(SchemeConfig::Bsp), TIMEOUT).unwrap();
        let mut step = worker.step(TIMEOUT).unwrap();
        assert_eq!(step.parameters().unwrap(), initial);
        step.gradient().unwrap().copy_from_slice(&vec![1.0; 133]);
        step.publish(None, TIMEOUT).unwrap();
        let view = worker.step(TIMEOUT).unwrap().view();
        assert_eq!((view.clock.get(), view.version.get(), view.staleness()), (1, 1, 0));
        drop(worker);
        let all: Vec<f32> = servers.into_iter().flat_map(|server| server.join().unwrap()).collect();
        assert_eq!(all, initial.iter().map(|value| value - 1.0).collect::<Vec<_>>());
    });
}

#[test]
fn a_borrowed_slot_and_an_in_place_read_copy_nothing_and_change_no_number() {
    let address = Address::random();
    let table = Table::flat(1000, ElementType::F32).unwrap();
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5);
    let mut server = Server::new(Shm::new(), &address, table, &vec![1.0; 1000], options).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
            server.parameters().unwrap()
        });
        let options =
            WorkerOptions { read: slackline::ReadMode::InPlace, ..WorkerOptions::new(SchemeConfig::Bsp) };
        let mut worker = Worker::connect(Shm::new(), &[address], options, TIMEOUT).unwrap();
        let mut values = vec![0u8; 4000];
        for _ in 0..3 {
            let mut step = worker.step(TIMEOUT).unwrap();
            step.in_place(0).unwrap().read(&mut values);
            let slots: Vec<_> = step.borrow_slots(TIMEOUT).unwrap().collect();
            slots[0].as_volatile().write(&values);
            step.publish_slots(None, TIMEOUT).unwrap();
        }
        worker.flush(TIMEOUT).unwrap();
        let statistics = worker.statistics().clone();
        assert_eq!((statistics.bytes_published, statistics.bytes_pulled, statistics.clocks), (0, 0, 3));
        drop(worker);
        assert_eq!(serving.join().unwrap(), vec![0.125; 1000]);
    });
}

#[test]
fn a_reader_is_never_staler_than_it_asked_and_copies_only_when_it_must() {
    let address = Address::random();
    let table = Table::flat(64, ElementType::Bf16).unwrap();
    let mut publisher = Publisher::new(Shm::new(), &address, table, PublisherOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let (to_reader, steps) = std::sync::mpsc::channel::<u64>();
        let (to_publisher, done) = std::sync::mpsc::channel::<()>();
        let reading = scope.spawn(move || {
            let mut reader =
                Reader::connect(Shm::new(), &address, ReaderOptions::default(), TIMEOUT).unwrap();
            assert!(matches!(reader.bytes(), Err(Error::OutOfTurn { .. })));
            let mut copies = Vec::new();
            for version in steps {
                let fresh = reader.refresh(2, TIMEOUT).unwrap();
                assert_eq!(fresh.version.get() + fresh.behind, version);
                assert!(fresh.behind <= 2);
                assert_eq!(reader.bytes().unwrap(), [fresh.version.get() as u8; 128]);
                copies.push(fresh.copied);
                to_publisher.send(()).unwrap();
            }
            copies
        });
        publisher.drive(|publisher| publisher.readers().len() == 1, TIMEOUT).unwrap();
        for version in 1..=7u64 {
            assert_eq!(publisher.publish(&[version as u8; 128], TIMEOUT).unwrap(), Version::new(version));
            to_reader.send(version).unwrap();
            done.recv().unwrap();
        }
        drop(to_reader);
        assert_eq!(reading.join().unwrap(), [true, false, false, true, false, false, true]);
    });
}

#[test]
fn a_pinned_frame_is_left_alone_and_a_publisher_with_no_free_one_says_so() {
    let address = Address::random();
    let table = Table::flat(16, ElementType::F32).unwrap();
    let mut options = PublisherOptions::default();
    options.memory.frames = 2;
    let mut publisher = Publisher::new(Shm::new(), &address, table, options).unwrap();
    std::thread::scope(|scope| {
        let (pinned, is_pinned) = std::sync::mpsc::channel::<()>();
        let (let_go, may_let_go) = std::sync::mpsc::channel::<()>();
        let reading = scope.spawn(move || {
            let mut reader =
                Reader::connect(Shm::new(), &address, ReaderOptions::default(), TIMEOUT).unwrap();
            let frame = reader.pin(slackline::scheme::Bound::version(Version::new(1)), TIMEOUT).unwrap();
            pinned.send(()).unwrap();
            may_let_go.recv().unwrap();
            let mut bytes = [0; 64];
            frame.bytes().unwrap().read(&mut bytes);
            assert!(frame.is_intact());
            assert_eq!((frame.pulled().version, bytes), (Version::new(1), [1; 64]));
            drop(frame);
            pinned.send(()).unwrap();
        });
        publisher.publish(&[1; 64], TIMEOUT).unwrap();
        publisher.drive(|publisher| publisher.readers().len() == 1, TIMEOUT).unwrap();
        is_pinned.recv().unwrap();
        publisher.publish(&[2; 64], TIMEOUT).unwrap();
        let error = publisher.publish(&[3; 64], Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::Pinned { version, .. } if version.get() == 3), "{error}");
        let_go.send(()).unwrap();
        is_pinned.recv().unwrap();
        publisher.publish(&[3; 64], TIMEOUT).unwrap();
        reading.join().unwrap();
    });
}

/// Shared memory that notes what access is given to what it allocates.
#[derive(Clone)]
struct Noting(Shm, Arc<Mutex<Vec<Access>>>);

impl Transport for Noting {
    type Endpoint = ShmEndpoint;
    type Listener = ShmListener;
    type Connecting = ShmConnecting;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.1.lock().unwrap().push(access);
        self.0.allocate(bytes, access)
    }

    fn listen(&self, address: &Address) -> Result<ShmListener, ConnectError> {
        self.0.listen(address)
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<ShmConnecting, ConnectError> {
        self.0.connect(address, offer)
    }
}

#[test]
fn memory_is_relaxed_only_where_no_earlier_write_warns_of_a_later_one() {
    let noting = || Noting(Shm::new(), Arc::default());
    let relaxed = |noting: &Noting| {
        let all = noting.1.lock().unwrap();
        let writable = all.iter().filter(|access| access.contains(Access::REMOTE_WRITE));
        (writable.clone().filter(|access| access.contains(Access::RELAXED)).count(), writable.count())
    };
    // A server's slots are, and nothing that it pushes into: the odd sequence comes first.
    let (address, table) = (Address::random(), Table::flat(64, ElementType::F32).unwrap());
    let scheme = SchemeConfig::Essp { staleness: 1 };
    let (server, worker) = (noting(), noting());
    let options = ServerOptions::new(scheme, 1, 0.1);
    let mut serving = Server::new(server.clone(), &address, table, &[0.0; 64], options).unwrap();
    let transport = worker.clone();
    let joining = std::thread::spawn(move || {
        Worker::connect(transport, &[address], WorkerOptions::new(scheme), TIMEOUT).map(drop).unwrap();
    });
    assert!(serving.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
    joining.join().unwrap();
    assert_eq!((relaxed(&server).0, relaxed(&worker)), (1, (0, 2)));

    // Nor are the areas of a group, whose parts come after one, too.
    let members: Vec<_> = (0..2)
        .map(|rank| {
            let noting = noting();
            let listening =
                GroupMember::listen(noting.clone(), &Address::random(), rank, 2, 64, GroupOptions::default());
            (noting, listening.unwrap())
        })
        .collect();
    let addresses: Vec<_> = members.iter().map(|(_, listening)| listening.address()).collect();
    std::thread::scope(|scope| {
        for (noting, listening) in members {
            let addresses = &addresses;
            scope.spawn(move || {
                let _member = listening.connect(addresses, TIMEOUT).unwrap();
                assert_eq!(relaxed(&noting), (0, 2));
            });
        }
    });
}

/// A publisher of 64 bytes that a thread of its own looks after, and what is run beside it.
fn beside_a_publisher<T: Transport + Clone>(
    transport: &T,
    address: &Address,
    run: impl FnOnce(&Mutex<Publisher<T>>, &Address),
) {
    let table = Table::flat(16, ElementType::F32).unwrap();
    let publisher = Publisher::new(transport.clone(), address, table, PublisherOptions::default()).unwrap();
    let (at, publisher, stop) = (publisher.address(), Mutex::new(publisher), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                publisher.lock().unwrap().poll(slackline::now());
                std::thread::yield_now();
            }
        });
        run(&publisher, &at);
        stop.store(true, SeqCst);
    });
}

fn pulls_into_memory_of_its_own<T: Transport + Clone>(transport: &T, address: &Address) {
    beside_a_publisher(transport, address, |publisher, at| {
        let mut reader = Reader::connect(transport.clone(), at, ReaderOptions::default(), TIMEOUT).unwrap();
        let mut memory = [9; 64];
        for version in 1..=5u8 {
            publisher.lock().unwrap().publish(&[version; 64], TIMEOUT).unwrap();
            let fresh = reader.pull_into(&mut memory, Wanted::newest().max_staleness(0), TIMEOUT).unwrap();
            assert_eq!((fresh.version.get(), fresh.behind, memory), (u64::from(version), 0, [version; 64]));
        }
        let mut pull =
            |wanted, timeout| reader.pull_into(&mut memory, wanted, timeout).map(|it| it.version.get());
        let version = Version::new(5);
        for wanted in [Wanted::exactly(version), Wanted::at_least(version).max_staleness(9)] {
            assert_eq!(pull(wanted, TIMEOUT).unwrap(), 5);
        }
        for wanted in [Wanted::exactly(version.next()), Wanted::at_least(version.next())] {
            let late = pull(wanted, Duration::from_millis(20)).unwrap_err();
            assert!(matches!(late, Error::Deadline { .. }), "{late}");
        }
        let error = reader.pull_into(&mut memory[1..], Wanted::newest(), TIMEOUT).unwrap_err();
        assert!(matches!(error, Error::Length { given: 63, expected: 64, .. }), "{error}");
    });
}

#[test]
fn a_reader_pulls_into_memory_of_its_own_over_shared_memory_and_tcp() {
    pulls_into_memory_of_its_own(&Shm::new(), &Address::random());
    pulls_into_memory_of_its_own(&Tcp::new(), &"127.0.0.1:0".parse().unwrap());
}

#[test]
fn a_version_that_is_written_in_place_is_seen_once_it_is_committed() {
    beside_a_publisher(&Shm::new(), &Address::random(), |publisher, at| {
        let mut reader = Reader::connect(Shm::new(), at, ReaderOptions::default(), TIMEOUT).unwrap();
        let none = publisher.lock().unwrap().publish_commit().unwrap_err();
        assert!(matches!(none, Error::OutOfTurn { .. }), "{none}");
        for version in 1..=5u8 {
            {
                let mut publisher = publisher.lock().unwrap();
                publisher.publish_begin(TIMEOUT).unwrap().subslice(0, 32).write(&[version; 32]);
            }
            // The thread looks after readers meanwhile.
            assert_eq!(reader.refresh(0, TIMEOUT).unwrap().version.get(), u64::from(version) - 1);
            assert_eq!(reader.bytes().unwrap(), [version - 1; 64]);
            let mut publisher = publisher.lock().unwrap();
            publisher.publish_begin(TIMEOUT).unwrap().subslice(32, 32).write(&[version; 32]);
            assert_eq!(publisher.publish_commit().unwrap().get(), u64::from(version));
        }
        assert_eq!(reader.refresh(0, TIMEOUT).unwrap().version.get(), 5);
        assert_eq!(reader.bytes().unwrap(), [5; 64]);
    });
}

#[test]
fn a_version_that_is_given_up_is_never_seen_and_its_number_is_used_again() {
    beside_a_publisher(&Shm::new(), &Address::random(), |publisher, at| {
        let mut reader = Reader::connect(Shm::new(), at, ReaderOptions::default(), TIMEOUT).unwrap();
        for version in 1..=5u8 {
            // More often than there are frames.
            for _ in 0..4 {
                let mut publisher = publisher.lock().unwrap();
                publisher.publish_begin(TIMEOUT).unwrap().subslice(0, 32).write(&[0xff; 32]);
                publisher.publish_abort();
                let none = publisher.publish_commit().unwrap_err();
                assert!(matches!(none, Error::OutOfTurn { .. }), "{none}");
            }
            assert_eq!(reader.refresh(0, TIMEOUT).unwrap().version.get(), u64::from(version) - 1);
            assert_eq!(reader.bytes().unwrap(), [version - 1; 64]);
            let mut publisher = publisher.lock().unwrap();
            assert_eq!(publisher.publish(&[version; 64], TIMEOUT).unwrap().get(), u64::from(version));
        }
        publisher.lock().unwrap().publish_abort();
        assert_eq!(reader.refresh(0, TIMEOUT).unwrap().version.get(), 5);
        assert_eq!(reader.bytes().unwrap(), [5; 64]);
    });
}

#[test]
fn what_a_reader_holds_stays_until_it_lets_go_or_reads_something_else() {
    beside_a_publisher(&Shm::new(), &Address::random(), |publisher, at| {
        let mut reader = Reader::connect(Shm::new(), at, ReaderOptions::default(), TIMEOUT).unwrap();
        let publish = |value: u8| publisher.lock().unwrap().publish(&[value; 64], TIMEOUT).unwrap();
        publish(1);
        assert_eq!(reader.hold(Bound::version(Version::new(1)), TIMEOUT).unwrap().version, Version::new(1));
        for value in 2..9 {
            publish(value);
        }
        let mut seen = [0; 64];
        reader.held().unwrap().read(&mut seen);
        assert!(reader.is_intact() && seen == [1; 64], "{seen:?}");
        reader.release();
        assert!(reader.held().is_none() && !reader.is_intact());
        assert_eq!(reader.hold(Bound::NONE, TIMEOUT).unwrap().version, Version::new(8));
        reader.refresh_to(Version::new(8), TIMEOUT).unwrap();
        assert!(reader.held().is_none());
    });
}
