//! Workers of a server on a GPU, over the scripted driver: pushes to them, and a server that is restarted under them.
//! No GPU is needed, and none is tested.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    use super::super::scripted::{
        ELEMENTS, OPTIMIZERS, PATIENCE, bits, gpu, gradient, initial, is_on_its_way, options, table,
    };
    use crate::node::of_gpu::{OfGpu, over_each_transport, over_gpudirect};
    use crate::node::{Server, ServerOptions, Worker, WorkerOptions};
    use crate::scheme::SchemeConfig;

    /// The bits of the parameters in each version.
    type Versions = BTreeMap<u64, Vec<u32>>;

    /// Two workers publish by turns, each gradient after the server has been asked for the version before. Returns the
    /// versions of the server, and the versions that the workers got.
    fn take_turns<T: OfGpu>(mut server: Server<T>, workers: [T; 2]) -> (Versions, Versions) {
        const CLOCKS: usize = 4;
        let scheme = SchemeConfig::Essp { staleness: 1 };
        let (address, newest) = (server.address(), &AtomicU64::new(0));
        let mut versions = Versions::from([(0, bits(&initial()))]);
        let given = std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let connect = |transport| {
                    let (servers, options) = (std::slice::from_ref(&address), WorkerOptions::new(scheme));
                    Worker::connect(transport, servers, options, PATIENCE).unwrap()
                };
                let (mut workers, mut given) = (workers.map(connect), Versions::new());
                for turn in 0..2 * CLOCKS {
                    let (clock, rank) = (turn / 2, turn % 2);
                    let mut step = workers[rank].step(PATIENCE).unwrap();
                    let version = step.view().version.get();
                    assert!(step.view().staleness() <= 1 && version <= turn as u64);
                    let parameters = bits(step.parameters().unwrap());
                    let known = given.entry(version).or_insert_with(|| parameters.clone());
                    assert!(*known == parameters, "worker {rank} has another version {version}");
                    let mut values = vec![0.0; ELEMENTS];
                    gradient(rank, clock, &initial(), &mut values);
                    step.encode(&values).unwrap();
                    step.publish(None, PATIENCE).unwrap();
                    let begun = Instant::now();
                    while newest.load(Relaxed) <= turn as u64 {
                        assert!(begun.elapsed() < PATIENCE, "no version holds the gradient");
                        std::thread::yield_now();
                    }
                }
                given
            });
            while server.status().left < 2 {
                let known = server.status().version;
                let is_news = |server: &Server<T>| server.status().version != known || working.is_finished();
                assert!(server.drive(is_news, PATIENCE).unwrap());
                versions.insert(server.status().version.get(), bits(&server.parameters().unwrap()));
                newest.store(server.status().version.get(), Relaxed);
            }
            working.join().unwrap()
        });
        assert_eq!(versions.len(), 2 * CLOCKS + 1);
        (versions, given)
    }

    fn what_is_pushed_out_of_a_gpu_are_the_versions_that_processors_make<T: OfGpu>() {
        let options = || ServerOptions {
            scheme: SchemeConfig::Essp { staleness: 1 }.into(),
            ..options(OPTIMIZERS[3], 2)
        };
        let make = |transport| Server::new(transport, &T::address(), table(), &initial(), options()).unwrap();
        let (by_processors, _) = take_turns(make(T::without()), [T::without(), T::without()]);
        let (driver, _gpu, transport) = gpu::<T>();
        let sides = [gpu::<T>(), gpu::<T>()];
        let _working = driver.work_in_a_thread();
        let _their_work = sides.each_ref().map(|(driver, ..)| driver.work_in_a_thread());
        let (on_gpu, given) = take_turns(make(transport), sides.each_ref().map(|side| side.2.clone()));
        assert!(on_gpu == by_processors, "the GPU has folded otherwise");
        assert!(given.len() > 2, "of {} versions workers have {}", on_gpu.len(), given.len());
        for (version, parameters) in given {
            assert!(on_gpu[&version] == parameters, "workers have another version {version} than the server");
        }
    }

    #[cfg(feature = "checkpoint")]
    fn workers_come_back_to_a_server_that_is_restarted_on_another_gpu<T: OfGpu>() {
        use std::sync::atomic::AtomicUsize;
        use std::sync::mpsc;
        use std::time::Duration;

        use crate::clock::Version;
        use crate::cuda::GpuMemory;
        use crate::node::{Checkpoint, CheckpointOptions, now};

        /// Clocks before the restart, and as many after it.
        const CLOCKS: usize = 2;
        let train = |worker: &mut Worker<T>, rank: usize, clocks: std::ops::Range<usize>| {
            for clock in clocks {
                let mut step = worker.step(PATIENCE).unwrap();
                let (parameters, mut values) = (step.parameters().unwrap().to_vec(), vec![0.0; ELEMENTS]);
                gradient(rank, clock, &parameters, &mut values);
                step.encode(&values).unwrap();
                step.publish(None, PATIENCE).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
        };
        let trained = |is_on_gpu: bool| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("shard.safetensors");
            let options = || {
                let checkpoint = Some(CheckpointOptions::new(&path));
                ServerOptions { checkpoint, ..options(OPTIMIZERS[2], 2) }
            };
            let [first, second] = [(); 2].map(|()| gpu::<T>());
            let _working = [&first, &second].map(|(driver, ..)| driver.work_in_a_thread());
            let [before, after] = [&first, &second].map(|(.., transport)| match is_on_gpu {
                true => transport.clone(),
                false => T::without(),
            });
            let mut server = Server::new(before, &T::address(), table(), &initial(), options()).unwrap();
            let (address, waiting) = (server.address(), &AtomicUsize::new(0));
            std::thread::scope(|scope| {
                let restarted = [0, 1].map(|rank| {
                    let (address, (restarted, addresses)) = (address.clone(), mpsc::channel());
                    scope.spawn(move || {
                        let driver = T::driver();
                        let (gpu, _, stream) = driver.open_gpu();
                        let lost = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                        let transport = if is_on_gpu { T::with(&gpu) } else { T::without() };
                        let working = driver.work_in_a_thread();
                        let options = WorkerOptions::new(SchemeConfig::Bsp);
                        let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                        train(&mut worker, rank, 0..CLOCKS);
                        if is_on_gpu && rank == 0 {
                            // The server ends under a gradient that nothing copies yet.
                            let step = worker.step(PATIENCE).unwrap();
                            drop(working);
                            let begun = step.publish_from_gpu(&lost.whole(), &stream, None, Duration::ZERO);
                            assert!(is_on_its_way(&begun), "{begun:?}");
                            waiting.fetch_add(1, Relaxed);
                            let deadline = Instant::now() + PATIENCE;
                            let told = loop {
                                assert!(Instant::now() < deadline, "the loss was not told");
                                match worker.poll(now()) {
                                    Ok(_) => assert!(worker.is_publishing(), "nothing has copied it"),
                                    Err(error) => break error,
                                }
                            };
                            assert!(told.is_loss(), "{told}");
                        } else {
                            waiting.fetch_add(1, Relaxed);
                        }
                        let address = addresses.recv_timeout(PATIENCE).unwrap();
                        let _working = driver.work_in_a_thread();
                        worker.reconnect(&[address], PATIENCE).unwrap();
                        train(&mut worker, rank, CLOCKS..2 * CLOCKS);
                        assert_eq!(worker.statistics().reconnects, 1);
                    });
                    restarted
                });
                assert!(server.drive(|_| waiting.load(Relaxed) == 2, PATIENCE).unwrap());
                assert_eq!(server.finish_checkpoint(PATIENCE).unwrap(), Version::new(CLOCKS as u64));
                drop(server);
                let checkpoint = Checkpoint::read(&path).unwrap();
                let mut server =
                    Server::resume(after, &T::address(), table(), checkpoint, options()).unwrap();
                restarted.iter().for_each(|worker| worker.send(server.address()).unwrap());
                assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap());
                assert_eq!(server.status().version, Version::new(2 * CLOCKS as u64));
                let launched = [&first, &second].map(|(driver, ..)| driver.launches() >= CLOCKS);
                assert_eq!(launched, [is_on_gpu; 2], "which GPU has folded");
                bits(&server.parameters().unwrap())
            })
        };
        assert!(trained(true) == trained(false), "other parameters than on processors");
    }

    over_each_transport! {
        what_is_pushed_out_of_a_gpu_are_the_versions_that_processors_make,
        #[cfg(feature = "checkpoint")]
        workers_come_back_to_a_server_that_is_restarted_on_another_gpu,
    }

    over_gpudirect! {
        what_is_pushed_out_of_a_gpu_are_the_versions_that_processors_make,
        #[cfg(feature = "checkpoint")]
        workers_come_back_to_a_server_that_is_restarted_on_another_gpu,
    }
}
