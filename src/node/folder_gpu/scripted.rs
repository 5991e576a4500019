//! Servers that fold on a GPU, over the scripted driver: no GPU is needed, and none is tested. Its kernel is a plain
//! loop over the parameters that a launch has, done late and in pieces.

#[cfg(test)]
pub(super) use tests::{
    ELEMENTS, OPTIMIZERS, PATIENCE, bits, gpu, gradient, initial, is_on_its_way, options,
    publish_while_the_gpu_rests, table, train,
};

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    use crate::clock::Version;
    use crate::cuda::{Gpu, GpuError, GpuMemory, MAX_GRADIENTS, Scripted, UNKNOWN};
    use crate::diagnostic::Diagnostic;
    use crate::kernel::{AdamParameters, Optimizer};
    use crate::node::of_gpu::{OfGpu, over_each_transport, over_gpudirect, over_rdma};
    use crate::node::{
        Checkpoint, CheckpointOptions, Error, NonFinite, Server, ServerOptions, ShardOptions, Worker,
        WorkerOptions, now,
    };
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Encoding, Table};
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    pub(in crate::node::folder_gpu) const PATIENCE: Duration = Duration::from_secs(60);
    /// Odd, and of several chunks.
    pub(in crate::node::folder_gpu) const ELEMENTS: usize = 1003;
    const CHUNK_BYTES: u64 = 1024;
    pub(in crate::node::folder_gpu) const OPTIMIZERS: [Optimizer; 4] = [
        Optimizer::Sgd { weight_decay: 0.01 },
        Optimizer::Momentum { momentum: 0.9, weight_decay: 0.01 },
        Optimizer::Adam(AdamParameters { weight_decay: 0.01, ..AdamParameters::DEFAULT }),
        Optimizer::AdamW(AdamParameters { weight_decay: 0.01, ..AdamParameters::DEFAULT }),
    ];

    pub(in crate::node::folder_gpu) fn table() -> Table {
        Table::flat(ELEMENTS as u64, ElementType::F32).unwrap()
    }

    pub(in crate::node::folder_gpu) fn initial() -> Vec<f32> {
        (0..ELEMENTS).map(|index| (index as f32 * 0.37).sin()).collect()
    }

    pub(in crate::node::folder_gpu) fn options(optimizer: Optimizer, workers: usize) -> ServerOptions {
        let memory = ShardOptions { chunk_bytes: CHUNK_BYTES, ..ShardOptions::default() };
        ServerOptions { optimizer, memory, ..ServerOptions::new(SchemeConfig::Bsp, workers, 0.05) }
    }

    /// A driver and its GPU, and a transport with that.
    pub(in crate::node::folder_gpu) fn gpu<T: OfGpu>() -> (Arc<Scripted>, Gpu, T) {
        let driver = T::driver();
        let (gpu, ..) = driver.open_gpu();
        let transport = T::with(&gpu);
        (driver, gpu, transport)
    }

    /// The regression of a sine on each worker's own half of the data: its gradient depends on all earlier folds.
    pub(in crate::node::folder_gpu) fn gradient(
        worker: usize,
        clock: usize,
        parameters: &[f32],
        gradient: &mut [f32],
    ) {
        for (index, (g, p)) in gradient.iter_mut().zip(parameters).enumerate() {
            let target = ((index * 2 + worker) as f32 * 0.11 + clock as f32).cos();
            *g = (p - target) * (1.0 + worker as f32);
        }
    }

    /// Trains with two workers under BSP, over the server's transport and one for each worker.
    pub(in crate::node::folder_gpu) fn train<T: OfGpu>(
        server: &mut Server<T>,
        workers: [T; 2],
        encoding: Encoding,
        clocks: usize,
    ) -> Vec<f32> {
        let address = server.address();
        std::thread::scope(|scope| {
            for (rank, transport) in workers.into_iter().enumerate() {
                let address = address.clone();
                scope.spawn(move || {
                    let options = WorkerOptions { encoding, ..WorkerOptions::new(SchemeConfig::Bsp) };
                    let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                    for clock in 0..clocks {
                        let mut step = worker.step(PATIENCE).unwrap();
                        let parameters = step.parameters().unwrap().to_vec();
                        let mut values = vec![0.0; ELEMENTS];
                        gradient(rank, clock, &parameters, &mut values);
                        step.encode(&values).unwrap();
                        step.publish(None, PATIENCE).unwrap();
                    }
                    worker.flush(PATIENCE).unwrap();
                });
            }
            assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap());
        });
        assert_eq!(server.status().version, Version::new(clocks as u64));
        server.parameters().unwrap()
    }

    pub(in crate::node::folder_gpu) fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn a_training_folded_on_a_gpu_ends_bit_for_bit_as_one_on_processors<T: OfGpu>() {
        for optimizer in OPTIMIZERS {
            for encoding in [Encoding::F32, Encoding::Bf16, Encoding::F16] {
                let by_processors = {
                    let options = options(optimizer, 2);
                    let mut server =
                        Server::new(T::without(), &T::address(), table(), &initial(), options).unwrap();
                    train(&mut server, [T::without(), T::without()], encoding, 6)
                };
                let (driver, _gpu, transport) = gpu::<T>();
                let sides = [gpu::<T>(), gpu::<T>()];
                let _working = driver.work_in_a_thread();
                let _their_work = sides.each_ref().map(|(driver, ..)| driver.work_in_a_thread());
                let options = options(optimizer, 2);
                let mut server = Server::new(transport, &T::address(), table(), &initial(), options).unwrap();
                let workers = sides.each_ref().map(|(_, _, transport)| transport.clone());
                let on_gpu = train(&mut server, workers, encoding, 6);
                assert_eq!(bits(&on_gpu), bits(&by_processors), "{optimizer:?}, {encoding:?}");
                assert!(driver.launches() >= 6, "the GPU has folded");
            }
        }
    }

    #[test]
    fn workers_on_another_gpu_than_the_servers_are_folded_bit_for_bit() {
        let optimizer = OPTIMIZERS[3];
        let by_processors = {
            let options = options(optimizer, 2);
            let mut server =
                Server::new(Shm::new(), &Address::random(), table(), &initial(), options).unwrap();
            train(&mut server, [Shm::new(), Shm::new()], Encoding::F32, 6)
        };
        for are_peers in [true, false] {
            let (driver, _gpu, transport) = gpu::<Shm>();
            // The GPU of each worker is the second one of its process, and the server's is the first.
            let theirs = [(); 2].map(|()| Arc::new(Scripted::new().with_two_devices(are_peers)));
            let gpus = theirs.each_ref().map(|driver| driver.open_gpu_at(1).0);
            let _working = [&driver, &theirs[0], &theirs[1]].map(|driver| driver.work_in_a_thread());
            let options = options(optimizer, 2);
            let mut server =
                Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
            let workers = gpus.each_ref().map(|gpu| Shm::new().with_gpu(gpu));
            let on_gpus = train(&mut server, workers, Encoding::F32, 6);
            assert_eq!(bits(&on_gpus), bits(&by_processors), "peers: {are_peers}");
        }
    }

    /// A worker publishes one gradient to a server whose GPU does nothing until `look` has looked. Then it folds, and
    /// the worker leaves.
    pub(in crate::node::folder_gpu) fn publish_while_the_gpu_rests(
        options: ServerOptions,
        gradient: f32,
        look: impl FnOnce(&Scripted, &mut Server<Shm>),
    ) -> (Arc<Scripted>, Server<Shm>) {
        let (driver, _gpu, transport) = gpu::<Shm>();
        let making = driver.work_in_a_thread();
        let mut server = Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
        let (address, may_publish) = (server.address(), &AtomicBool::new(false));
        let (their_driver, _their_gpu, theirs) = gpu::<Shm>();
        let _their_work = their_driver.work_in_a_thread();
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let options = WorkerOptions::new(SchemeConfig::Bsp);
                let mut worker = Worker::connect(theirs, &[address], options, PATIENCE).unwrap();
                while !may_publish.load(Relaxed) {
                    std::thread::yield_now();
                }
                let mut step = worker.step(PATIENCE).unwrap();
                step.gradient().unwrap().fill(gradient);
                step.publish(None, PATIENCE).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            // The memory of the worker's slots is made. From here on no thread does the work of the server's GPU.
            assert!(server.drive(|server| server.status().workers == 1, PATIENCE).unwrap());
            drop(making);
            may_publish.store(true, Relaxed);
            look(&driver, &mut server);
            let _working = driver.work_in_a_thread();
            assert!(server.drive(|_| working.is_finished(), PATIENCE).unwrap());
        });
        (driver, server)
    }

    #[test]
    fn a_version_is_announced_once_the_gpu_has_folded_it_and_not_before() {
        let options = options(Optimizer::Sgd { weight_decay: 0.0 }, 1);
        let (driver, server) = publish_while_the_gpu_rests(options, 1.0, |driver, server| {
            assert!(server.drive(|_| driver.launches() > 0, PATIENCE).unwrap());
            let is_published = |server: &Server<Shm>| server.status().version > Version::new(0);
            let published = server.drive(is_published, Duration::from_millis(30)).unwrap();
            assert!(!published, "the GPU has folded nothing");
        });
        let expected: Vec<f32> = initial().iter().map(|value| value - 0.05).collect();
        let _working = driver.work_in_a_thread();
        assert_eq!(bits(&server.parameters().unwrap()), bits(&expected));
    }

    #[test]
    fn a_server_ends_once_its_driver_has_not_answered_for_seconds() {
        let mut options = options(Optimizer::Sgd { weight_decay: 0.0 }, 1);
        options.memory.lease = 10 * PATIENCE;
        publish_while_the_gpu_rests(options, 1.0, |driver, server| {
            assert!(server.drive(|_| driver.launches() > 0, PATIENCE).unwrap());
            let now = now();
            let ask = |server: &mut Server<Shm>, seconds| {
                let now = now + Duration::from_secs(seconds);
                // Of many looks for the end of a fold one asks the driver.
                (0..1000).find_map(|_| server.poll(now).err())
            };
            driver.set_unanswered(Some(UNKNOWN));
            assert!(ask(server, 0).is_none() && ask(server, 4).is_none());
            // Once it has answered, the time begins again.
            driver.set_unanswered(None);
            assert!(ask(server, 9).is_none());
            driver.set_unanswered(Some(UNKNOWN));
            assert!(ask(server, 10).is_none());
            let told = ask(server, 16).expect("it would wait for ever");
            assert!(matches!(told, Error::Gpu(GpuError::Driver { code: 999, .. })), "{told}");
            driver.set_unanswered(None);
        });
    }

    #[test]
    fn a_worker_that_leaves_while_its_gradient_is_folded_takes_no_memory_away() {
        let (driver, _gpu, transport) = gpu::<Shm>();
        let making = driver.work_in_a_thread();
        let options = options(Optimizer::Sgd { weight_decay: 0.0 }, 1);
        let mut server = Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
        let (address, may_publish) = (server.address(), &AtomicBool::new(false));
        let (their_driver, their_gpu, theirs) = gpu::<Shm>();
        let _their_work = their_driver.work_in_a_thread();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let options = WorkerOptions::new(SchemeConfig::Bsp);
                let mut worker = Worker::connect(theirs, &[address], options, PATIENCE).unwrap();
                while !may_publish.load(Relaxed) {
                    std::thread::yield_now();
                }
                let mut step = worker.step(PATIENCE).unwrap();
                step.gradient().unwrap().fill(1.0);
                step.publish(None, PATIENCE).unwrap();
                drop((worker, their_gpu));
            });
            assert!(server.drive(|server| server.status().workers == 1, PATIENCE).unwrap());
            drop(making);
            may_publish.store(true, Relaxed);
            assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
            assert!(driver.launches() > 0);
            // The scripted driver fails the test if it folds memory that is not allocated any more.
            driver.finish();
            let is_published = |server: &Server<Shm>| server.status().version == Version::new(1);
            assert!(server.drive(is_published, PATIENCE).unwrap());
        });
    }

    fn a_gradient_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must<T: OfGpu>() {
        let (driver, _gpu, transport) = gpu::<T>();
        let making = driver.work_in_a_thread();
        let options = options(Optimizer::Sgd { weight_decay: 0.0 }, 1);
        let mut server = Server::new(transport, &T::address(), table(), &[1.0; ELEMENTS], options).unwrap();
        drop(making);
        let address = server.address();
        let before = driver.host_copies();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let their_driver = T::driver();
                let (gpu, raw, stream) = their_driver.open_gpu();
                let gradient = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                let options = WorkerOptions::new(SchemeConfig::Bsp);
                let transport = T::with(&gpu);
                let working = their_driver.work_in_a_thread();
                let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                let step = worker.step(PATIENCE).unwrap();
                let copied = their_driver.host_copies();
                // The stream is busy when the gradient is published, and computes it only then: 0x3f3f3f3f throughout.
                their_driver.launch_fill(raw, gradient.pointer(), 4 * ELEMENTS, 0x3f);
                // It is begun, and the worker polled until it is there, as a caller does that cannot wait in one piece.
                let begun = step.publish_from_gpu(&gradient.whole(), &stream, None, Duration::ZERO);
                assert!(begun.is_ok() || is_on_its_way(&begun), "{begun:?}");
                while worker.is_publishing() {
                    worker.poll(crate::node::now()).unwrap();
                }
                assert_eq!(their_driver.host_copies() > copied, T::IS_STAGED);
                worker.flush(PATIENCE).unwrap();
                drop(working);
            });
            let _working = driver.work_in_a_thread();
            assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
        });
        assert_eq!(driver.host_copies() > before, T::IS_STAGED && T::SERVES_FROM_GPU);
        let expected = 1.0 - 0.05 * f32::from_bits(0x3f3f_3f3f);
        let _working = driver.work_in_a_thread();
        assert_eq!(server.parameters().unwrap(), vec![expected; ELEMENTS]);
    }

    /// Whether the publish goes on, which has had no time.
    pub(in crate::node::folder_gpu) fn is_on_its_way(begun: &Result<(), Error>) -> bool {
        matches!(begun, Err(Error::Deadline { .. } | Error::Gpu(GpuError::NotCopied { .. })))
    }

    /// Slots announce nothing, on a GPU either: parts of a payload may go on any rail.
    #[cfg(feature = "verbs")]
    #[test]
    fn a_gradient_goes_to_a_gpu_on_all_rails() {
        use crate::transport::verbs::unordered::Unordered;
        const MANY: usize = 50_000;
        let (device, driver) = (Unordered::new(0, false).that_steps(), Scripted::new().with_dma_bufs());
        driver.set_flush(Some(device.flush()));
        let driver = Arc::new(driver);
        let (gpu, ..) = driver.open_gpu();
        let _working = driver.work_in_a_thread();
        let table = Table::flat(MANY as u64, ElementType::F32).unwrap();
        let options = ServerOptions {
            optimizer: Optimizer::Sgd { weight_decay: 0.0 },
            ..ServerOptions::new(SchemeConfig::Bsp, 1, 0.05)
        };
        let (verbs, theirs) = (device.verbs_over(2, 64, None), device.verbs_over(2, 64, None));
        let address = "verbs:127.0.0.1:0".parse().unwrap();
        let mut server =
            Server::new(verbs.with_gpu(&gpu), &address, table, &vec![1.0; MANY], options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let options = WorkerOptions::new(SchemeConfig::Bsp);
                let mut worker = Worker::connect(theirs, &[address], options, PATIENCE).unwrap();
                let mut step = worker.step(PATIENCE).unwrap();
                step.gradient().unwrap().fill(1.0);
                step.publish(None, PATIENCE).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
        });
        assert_eq!(server.parameters().unwrap(), vec![0.95; MANY]);
        assert!(
            device.written(2) > MANY,
            "of {} bytes {} went on the second rail",
            4 * MANY,
            device.written(2)
        );
    }

    fn a_gradient_is_announced_once_the_workers_gpu_has_copied_it<T: OfGpu>() {
        let (driver, _gpu, transport) = gpu::<T>();
        let _working = driver.work_in_a_thread();
        let options = options(Optimizer::Sgd { weight_decay: 0.0 }, 1);
        let mut server = Server::new(transport, &T::address(), table(), &[1.0; ELEMENTS], options).unwrap();
        let address = server.address();
        let (is_begun, may_copy) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let their_driver = T::driver();
                let (gpu, raw, stream) = their_driver.open_gpu();
                let gradient = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                their_driver.launch_fill(raw, gradient.pointer(), 4 * ELEMENTS, 0x3f);
                let working = their_driver.work_in_a_thread();
                let options = WorkerOptions::new(SchemeConfig::Bsp);
                let mut worker = Worker::connect(T::with(&gpu), &[address], options, PATIENCE).unwrap();
                let step = worker.step(PATIENCE).unwrap();
                drop(working);
                let begun = step.publish_from_gpu(&gradient.whole(), &stream, None, Duration::ZERO);
                is_begun.store(true, Relaxed);
                assert!(is_on_its_way(&begun), "{begun:?}");
                while !may_copy.load(Relaxed) {
                    worker.poll(now()).unwrap();
                }
                let _working = their_driver.work_in_a_thread();
                worker.flush(PATIENCE).unwrap();
                assert!(!worker.is_publishing(), "its gradient is at the server");
            });
            assert!(server.drive(|_| is_begun.load(Relaxed), PATIENCE).unwrap());
            let is_published = |server: &Server<T>| server.status().version > Version::new(0);
            let published = server.drive(is_published, Duration::from_millis(30)).unwrap();
            may_copy.store(true, Relaxed);
            assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
            assert!(!published, "the worker's GPU has copied nothing");
        });
        let expected = 1.0 - 0.05 * f32::from_bits(0x3f3f_3f3f);
        assert_eq!(server.parameters().unwrap(), vec![expected; ELEMENTS]);
    }

    fn a_fault_under_a_publish_is_told_and_is_no_loss_of_the_server<T: OfGpu>() {
        let (driver, _gpu, transport) = gpu::<T>();
        let _working = driver.work_in_a_thread();
        let options = options(Optimizer::Sgd { weight_decay: 0.0 }, 1);
        let mut server = Server::new(transport, &T::address(), table(), &initial(), options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let their_driver = T::driver();
                let (gpu, _, stream) = their_driver.open_gpu();
                let gradient = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                let working = their_driver.work_in_a_thread();
                let options = WorkerOptions::new(SchemeConfig::Bsp);
                let mut worker = Worker::connect(T::with(&gpu), &[address], options, PATIENCE).unwrap();
                let step = worker.step(PATIENCE).unwrap();
                // The copy waits for the work of the GPU, and nothing does that.
                drop(working);
                let begun = step.publish_from_gpu(&gradient.whole(), &stream, None, Duration::ZERO);
                assert!(is_on_its_way(&begun), "{begun:?}");
                their_driver.fault(crate::cuda::ILLEGAL_ADDRESS);
                let deadline = std::time::Instant::now() + PATIENCE;
                let error = loop {
                    assert!(std::time::Instant::now() < deadline, "the fault was not told");
                    match worker.poll(crate::node::now()) {
                        Ok(_) => assert!(worker.is_publishing(), "it was not copied"),
                        Err(error) => break error,
                    }
                };
                let is_told = matches!(&error, Error::Publish { .. } | Error::Gpu(_));
                assert!(is_told && !error.is_retryable() && !error.is_loss(), "{error}");
            });
            assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
        });
        assert_eq!(server.status().version, Version::new(0));
    }

    fn a_gradient_out_of_a_gpu_waits_for_the_one_in_the_background<T: OfGpu>() {
        let (driver, _gpu, transport) = gpu::<T>();
        let _working = driver.work_in_a_thread();
        let sgd = Optimizer::Sgd { weight_decay: 0.0 };
        let options = ServerOptions { scheme: SchemeConfig::Bap { staleness: 2 }.into(), ..options(sgd, 1) };
        let mut server = Server::new(transport, &T::address(), table(), &initial(), options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let their_driver = T::driver();
                let (gpu, _, stream) = their_driver.open_gpu();
                let gradient = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                let working = their_driver.work_in_a_thread();
                let options = WorkerOptions::new(SchemeConfig::Bap { staleness: 2 });
                let transport = T::with(&gpu);
                let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                let mut step = worker.step(PATIENCE).unwrap();
                step.encode(&initial()).unwrap();
                // From here on nothing does the work of the GPU: the first gradient stays on its way.
                drop(working);
                step.publish_in_background(None, PATIENCE).unwrap();
                let step = worker.step(PATIENCE).unwrap();
                let _working = their_driver.work_in_a_thread();
                step.publish_from_gpu(&gradient.whole(), &stream, None, PATIENCE).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
        });
        assert_eq!(server.status().version, Version::new(2));
    }

    fn a_fold_that_the_driver_refuses_is_made_again_and_not_taken_for_made<T: OfGpu>() {
        const CLOCKS: usize = 2;
        let run = |server: &mut Server<T>, worker: T| {
            let address = server.address();
            let (mut refused, mut left) = (0, false);
            std::thread::scope(|scope| {
                let working = scope.spawn(move || -> Result<(), Error> {
                    let options = WorkerOptions::new(SchemeConfig::Bsp);
                    let mut worker = Worker::connect(worker, &[address], options, PATIENCE)?;
                    for clock in 0..CLOCKS {
                        let mut step = worker.step(PATIENCE)?;
                        let parameters = step.parameters()?.to_vec();
                        let mut values = vec![0.0; ELEMENTS];
                        gradient(0, clock, &parameters, &mut values);
                        step.encode(&values)?;
                        step.publish(None, PATIENCE)?;
                    }
                    worker.flush(PATIENCE)
                });
                while !left && !working.is_finished() {
                    match server.drive(|server| server.status().left == 1, Duration::from_millis(50)) {
                        Ok(has_left) => left = has_left,
                        Err(_) => refused += 1,
                    }
                }
                working.join().unwrap().is_ok().then_some(refused)
            })
        };
        let options = || {
            options(Optimizer::AdamW(AdamParameters { weight_decay: 0.01, ..AdamParameters::default() }), 1)
        };
        let mut server = Server::new(T::without(), &T::address(), table(), &initial(), options()).unwrap();
        assert_eq!(run(&mut server, T::without()), Some(0));
        let expected = bits(&server.parameters().unwrap());
        for fail in Scripted::FAILURES {
            let mut made_again = 0;
            for call in 0.. {
                let (driver, _gpu, transport) = gpu::<T>();
                let (their_driver, _their_gpu, theirs) = gpu::<T>();
                let _working = [driver.work_in_a_thread(), their_driver.work_in_a_thread()];
                let mut server =
                    Server::new(transport, &T::address(), table(), &initial(), options()).unwrap();
                fail(&driver, call, crate::cuda::NOT_PERMITTED);
                let ended = run(&mut server, theirs);
                if !driver.has_failed() {
                    break;
                }
                // A call that fails elsewhere may end the worker: then there is nothing to compare.
                if let Some(refused) = ended {
                    assert_eq!(server.status().version, Version::new(CLOCKS as u64), "call {call}");
                    let parameters = match server.parameters() {
                        // The call that failed unlocks host memory: the driver takes none at its address then.
                        Err(Error::Gpu(GpuError::Host { .. })) => continue,
                        parameters => parameters.unwrap(),
                    };
                    let is_same = bits(&parameters) == expected;
                    assert!(is_same, "call {call}: other parameters than on processors");
                    made_again += refused;
                }
            }
            assert!(made_again > 0, "no fold was refused");
        }
    }

    #[cfg(feature = "checkpoint")]
    #[test]
    fn a_checkpoint_of_a_server_on_a_gpu_is_taken_up_by_one_on_processors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard.safetensors");
        let (driver, _gpu, transport) = gpu::<Shm>();
        let sides = [gpu::<Shm>(), gpu::<Shm>()];
        let _working = driver.work_in_a_thread();
        let _their_work = sides.each_ref().map(|(driver, ..)| driver.work_in_a_thread());
        let optimizer = OPTIMIZERS[2];
        let checkpoint = Some(CheckpointOptions::new(&path));
        let with_file = ServerOptions { checkpoint, ..options(optimizer, 2) };
        let mut server = Server::new(transport, &Address::random(), table(), &initial(), with_file).unwrap();
        let workers = sides.each_ref().map(|(_, _, transport)| transport.clone());
        let trained = train(&mut server, workers, Encoding::F32, 3);
        assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(3));

        let checkpoint = Checkpoint::read(&path).unwrap();
        assert_eq!(bits(checkpoint.parameters()), bits(&trained));
        // The moments, too: both go on with the same bits.
        let mut on_host =
            Server::resume(Shm::new(), &Address::random(), table(), checkpoint, options(optimizer, 2))
                .unwrap();
        assert_eq!(bits(&on_host.parameters().unwrap()), bits(&trained));
        let (other, _other_gpu, transport) = gpu::<Shm>();
        let _other_work = other.work_in_a_thread();
        let checkpoint = Checkpoint::read(&path).unwrap();
        let mut on_gpu =
            Server::resume(transport, &Address::random(), table(), checkpoint, options(optimizer, 2))
                .unwrap();
        let on = |server: &mut Server<Shm>, workers: [Shm; 2]| train_on(server, workers, 2);
        let by_processors = on(&mut on_host, [Shm::new(), Shm::new()]);
        let by_gpu = on(&mut on_gpu, sides.each_ref().map(|(_, _, transport)| transport.clone()));
        assert_eq!(bits(&by_gpu), bits(&by_processors));
    }

    /// As [`train`], of a server that has begun at a later version.
    fn train_on<T: OfGpu>(server: &mut Server<T>, workers: [T; 2], clocks: usize) -> Vec<f32> {
        let (address, begun) = (server.address(), server.status().version);
        std::thread::scope(|scope| {
            for (rank, transport) in workers.into_iter().enumerate() {
                let address = address.clone();
                scope.spawn(move || {
                    let options = WorkerOptions::new(SchemeConfig::Bsp);
                    let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                    for clock in 0..clocks {
                        let mut step = worker.step(PATIENCE).unwrap();
                        let (parameters, values) = step.borrow().unwrap();
                        gradient(rank, clock, parameters, values);
                        step.publish(None, PATIENCE).unwrap();
                    }
                    worker.flush(PATIENCE).unwrap();
                });
            }
            assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap());
        });
        assert_eq!(server.status().version.get(), begun.get() + clocks as u64);
        server.parameters().unwrap()
    }

    #[test]
    fn what_folds_on_a_gpu_do_not_have_is_refused_by_name() {
        let (driver, _gpu, transport) = gpu::<Shm>();
        let _working = driver.work_in_a_thread();
        let mut options = options(OPTIMIZERS[0], MAX_GRADIENTS + 1);
        options.memory.peers = MAX_GRADIENTS as u16 + 1;
        let made = Server::new(transport, &Address::random(), table(), &initial(), options);
        let error = made.map(drop).unwrap_err();
        assert!(matches!(error, Error::Option { option: "workers", .. }), "{error}");
    }

    #[test]
    fn checksums_of_payloads_on_a_gpu_are_refused_by_name() {
        let (driver, _gpu, transport) = gpu::<Shm>();
        let _working = driver.work_in_a_thread();
        let memory = ShardOptions { checksums: true, ..ShardOptions::default() };
        let options = ServerOptions { memory, ..options(OPTIMIZERS[0], 1) };
        let made = Server::new(transport.clone(), &Address::random(), table(), &initial(), options);
        let error = made.map(drop).unwrap_err();
        assert!(matches!(error, Error::Option { option: "checksums", .. }), "{error}");

        let options = self::options(OPTIMIZERS[0], 1);
        let mut server = Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let their_driver = Arc::new(Scripted::new());
                let (gpu, _, stream) = their_driver.open_gpu();
                let _working = their_driver.work_in_a_thread();
                let gradient = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                let plain = WorkerOptions::new(SchemeConfig::Bsp);
                let connect = |checksums, transport| {
                    let options = WorkerOptions { checksums, ..plain.clone() };
                    Worker::connect(transport, std::slice::from_ref(&address), options, PATIENCE)
                };
                // Of the parameters, which come to host memory, there is none to be checked.
                let mut worker = connect(true, Shm::new().with_gpu(&gpu)).unwrap();
                let step = worker.step(PATIENCE).unwrap();
                let refused = step.publish_from_gpu(&gradient.whole(), &stream, None, PATIENCE).unwrap_err();
                assert!(matches!(refused, Error::Gpu(GpuError::OnGpu { .. })), "{refused}");
                assert!(refused.to_string().contains("checksum"), "{refused}");
                // Out of host memory it has one, which the server cannot check: its log names the reason.
                let mut step = worker.step(PATIENCE).unwrap();
                step.gradient().unwrap().fill(1.0);
                let published = step.publish(None, PATIENCE).and_then(|()| worker.flush(PATIENCE));
                published.unwrap_err().to_string()
            });
            assert!(server.drive(|_| working.is_finished(), PATIENCE).unwrap());
            let told = working.join().unwrap();
            assert_eq!(server.status().misbehaved, 1);
            assert!(told.contains("evicted"), "{told}");
        });
    }

    #[test]
    fn each_failing_call_of_the_servers_driver_is_told_and_leaves_nothing() {
        for fail in Scripted::FAILURES {
            let mut failures = 0;
            loop {
                let driver = Arc::new(Scripted::new());
                let (gpu, ..) = driver.open_gpu();
                let transport = Shm::new().with_gpu(&gpu);
                fail(&driver, failures, crate::cuda::NOT_PERMITTED);
                let working = driver.work_in_a_thread();
                let options = ServerOptions {
                    measure_moments: true,
                    non_finite: NonFinite::Drop,
                    ..options(OPTIMIZERS[1], 1)
                };
                let made = Server::new(transport, &Address::random(), table(), &initial(), options);
                drop(working);
                let outcome = made.map(drop);
                driver.finish();
                drop(gpu);
                let has_failed = driver.has_failed();
                if let Err(error) = &outcome {
                    let is_typed = matches!(error, Error::Gpu(GpuError::Driver { code: 800, .. }));
                    assert!(is_typed, "call {failures}: {error}");
                }
                // If the call that failed was to free a resource, this one resource is left.
                assert!(driver.open() <= usize::from(has_failed), "call {failures}: {} left", driver.open());
                if !has_failed {
                    assert!(outcome.is_ok() && failures > 20, "{failures} calls");
                    break;
                }
                failures += 1;
            }
        }
    }
    over_each_transport! {
        a_training_folded_on_a_gpu_ends_bit_for_bit_as_one_on_processors,
        a_gradient_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must,
        a_gradient_is_announced_once_the_workers_gpu_has_copied_it,
        a_gradient_out_of_a_gpu_waits_for_the_one_in_the_background,
        a_fault_under_a_publish_is_told_and_is_no_loss_of_the_server,
        a_fold_that_the_driver_refuses_is_made_again_and_not_taken_for_made,
    }

    over_rdma! {
        a_gradient_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must,
        a_gradient_is_announced_once_the_workers_gpu_has_copied_it,
        a_gradient_out_of_a_gpu_waits_for_the_one_in_the_background,
        a_fault_under_a_publish_is_told_and_is_no_loss_of_the_server,
    }

    over_gpudirect! {
        a_training_folded_on_a_gpu_ends_bit_for_bit_as_one_on_processors,
        a_gradient_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must,
        a_gradient_is_announced_once_the_workers_gpu_has_copied_it,
        a_gradient_out_of_a_gpu_waits_for_the_one_in_the_background,
        a_fault_under_a_publish_is_told_and_is_no_loss_of_the_server,
        a_fold_that_the_driver_refuses_is_made_again_and_not_taken_for_made,
    }
}
