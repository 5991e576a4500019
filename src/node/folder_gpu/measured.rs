//! Servers that measure gradients on a GPU, and leave out gradients that are not finite, over the scripted driver: no
//! GPU is needed, and none is tested.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::super::super::aggregate::{FoldArray, FoldJob, Input, Measured};
    use super::super::super::folder::Folder;
    use super::super::GpuFolder;
    use super::super::scripted::{
        ELEMENTS, OPTIMIZERS, PATIENCE, bits, gpu, initial, options, publish_while_the_gpu_rests, table,
        train,
    };
    use crate::clock::{Clock, Version, WorkerId};
    use crate::cuda::{GpuKernels, GpuMemory, NOT_PERMITTED, Scripted};
    use crate::kernel::{AdamParameters, Optimizer};
    use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion};
    use crate::node::{NonFinite, Server, ServerOptions, ServerStatus, Worker, WorkerOptions};
    use crate::param::{PeerInbox, SlotGeometry};
    use crate::scheme::dbw::{Choice, Delivery, StepRule};
    use crate::scheme::{GradientId, SchemeConfig};
    use crate::table::Encoding;
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::{Address, PayloadMemory, PayloadSlice};

    const SGD: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };

    fn measuring(optimizer: Optimizer, workers: usize) -> ServerOptions {
        ServerOptions { measure_moments: true, ..options(optimizer, workers) }
    }

    /// As `docs/gpu.md` promises of the squares; a variance is a difference of them.
    fn assert_agree(ours: ServerStatus, theirs: ServerStatus) {
        let [our_norm, their_norm] = [ours, theirs].map(|status| status.mean_norm_squared.unwrap());
        assert!((our_norm - their_norm).abs() <= 2e-6 * their_norm, "{our_norm} and {their_norm}");
        let [our_variance, their_variance] = [ours, theirs].map(|status| status.variance.unwrap());
        let most = 1e-5 * (their_variance + their_norm);
        assert!((our_variance - their_variance).abs() <= most, "{our_variance} and {their_variance}");
    }

    #[test]
    fn a_gpu_measures_gradients_as_processors_do() {
        for optimizer in OPTIMIZERS {
            for encoding in [Encoding::F32, Encoding::Bf16, Encoding::F16] {
                let options = measuring(optimizer, 2);
                let mut server =
                    Server::new(Shm::new(), &Address::random(), table(), &initial(), options).unwrap();
                let by_processors = train(&mut server, [Shm::new(), Shm::new()], encoding, 3);
                let theirs = server.status();
                let (driver, _gpu, transport) = gpu::<Shm>();
                let sides = [gpu::<Shm>(), gpu::<Shm>()];
                let _working = driver.work_in_a_thread();
                let _their_work = sides.each_ref().map(|(driver, ..)| driver.work_in_a_thread());
                let options = measuring(optimizer, 2);
                let mut server =
                    Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
                let workers = sides.each_ref().map(|(_, _, transport)| transport.clone());
                let on_gpu = train(&mut server, workers, encoding, 3);
                assert_eq!(bits(&on_gpu), bits(&by_processors), "{optimizer:?}, {encoding:?}");
                assert_agree(server.status(), theirs);
            }
        }
    }

    #[test]
    fn what_a_gpu_measures_is_read_once_it_is_measured_and_not_before() {
        let (_driver, server) = publish_while_the_gpu_rests(measuring(SGD, 1), 0.5, |driver, server| {
            assert!(server.drive(|_| driver.launches() > 1, PATIENCE).unwrap());
            let is_told = |server: &Server<Shm>| server.status().mean_norm_squared.is_some();
            let told = server.drive(is_told, Duration::from_millis(30)).unwrap();
            assert!(!told, "the GPU has measured nothing: {:?}", server.status().mean_norm_squared);
        });
        assert_eq!(server.status().mean_norm_squared, Some(0.25 * ELEMENTS as f64));
    }

    #[test]
    fn a_run_whose_measuring_is_refused_is_folded_and_measured_again() {
        for fail in Scripted::FAILURES {
            let (mut call, mut made_again) = (0, 0);
            loop {
                let (driver, _gpu, transport) = gpu::<Shm>();
                let (their_driver, _their_gpu, theirs) = gpu::<Shm>();
                let _working = [driver.work_in_a_thread(), their_driver.work_in_a_thread()];
                let options = measuring(SGD, 1);
                let mut server =
                    Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
                fail(&driver, call, NOT_PERMITTED);
                let address = server.address();
                let (mut refused, mut left) = (0, false);
                let ended = std::thread::scope(|scope| {
                    let working = scope.spawn(move || {
                        let options = WorkerOptions::new(SchemeConfig::Bsp);
                        let mut worker = Worker::connect(theirs, &[address], options, PATIENCE)?;
                        let mut step = worker.step(PATIENCE)?;
                        step.gradient()?.fill(0.5);
                        step.publish(None, PATIENCE)?;
                        worker.flush(PATIENCE)
                    });
                    while !left && !working.is_finished() {
                        match server.drive(|server| server.status().left == 1, Duration::from_millis(50)) {
                            Ok(has_left) => left = has_left,
                            Err(_) => refused += 1,
                        }
                    }
                    working.join().unwrap()
                });
                if !driver.has_failed() {
                    break;
                }
                if ended.is_ok() {
                    let expected = Some(0.25 * ELEMENTS as f64);
                    assert_eq!(server.status().mean_norm_squared, expected, "call {call}");
                    made_again += refused;
                }
                call += 1;
            }
            assert!(made_again > 0, "no run was refused");
        }
    }

    /// Zeroed host memory of a node.
    fn region(bytes: usize) -> MemoryRegion {
        let memory = HostMemory::anonymous(bytes).unwrap();
        MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ())
    }

    #[test]
    fn no_more_measured_runs_are_under_way_than_have_room_for_what_they_find() {
        const CHUNKS: usize = 3 * GpuKernels::MEASURED_RUNS;
        const CHUNK_ELEMENTS: usize = 16;
        /// The word by which a worker says how many chunks have landed; the test below sees that it is this one.
        const LANDED: usize = 8;
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let mut folder = GpuFolder::new(&gpu, &SGD, true, false).unwrap();
        let elements = CHUNKS * CHUNK_ELEMENTS;
        let memory = || GpuMemory::allocate(&gpu, 4 * elements).unwrap();
        let ([from, to], slot) = ([memory(), memory()], GpuMemory::allocate(&gpu, 4096 * 4).unwrap());
        let value = |index: usize| 1.0 + (index / CHUNK_ELEMENTS) as f32;
        let bytes: Vec<u8> = (0..elements).flat_map(|index| value(index).to_le_bytes()).collect();
        driver.set_bytes(slot.pointer(), &bytes);
        driver.set_bytes(from.pointer(), &vec![0; bytes.len()]);
        let geometry = SlotGeometry {
            slots: 1,
            encoding: Encoding::F32,
            elements: elements as u64,
            chunk_elements: CHUNK_ELEMENTS as u64,
        };
        let (page, clock) = (region(PeerInbox::page_bytes(1)), Clock::new(0));
        let inbox = PeerInbox::new(page.clone(), Some((PayloadMemory::Gpu(slot), geometry)), clock);
        let gradient = GradientId { worker: WorkerId(0), clock };
        let payload = inbox.payload(clock).unwrap();
        let mut job = Some(FoldJob {
            inputs: vec![Input { gradient, inbox: inbox.clone(), clock, payload, weight: 1.0 }],
            encoding: Encoding::F32,
            optimizer: SGD,
            learning_rate: 1.0,
            step: 1,
            parameters: FoldArray {
                from: PayloadSlice::Gpu(from.whole()),
                to: PayloadSlice::Gpu(to.whole()),
            },
            states: Vec::new(),
            chunk_bytes: 4 * CHUNK_ELEMENTS,
            streaming: false,
            progress: None,
            bound: AtomicBool::new(false),
            measured: Some(Measured::default()),
        });
        folder.begin(&mut |_| Ok(job.take().expect("it is begun once"))).unwrap();
        // Each chunk lands alone, and the GPU does nothing meanwhile.
        for landed in 1..=CHUNKS {
            page.as_volatile().store_u64(LANDED, landed as u64);
            assert_eq!(inbox.landed(clock), landed);
            folder.advance(1).unwrap();
        }
        assert_eq!(driver.launches(), 2 * GpuKernels::MEASURED_RUNS, "a fold and its sums for each cell");
        while !folder.is_complete() {
            driver.finish();
            folder.advance(1).unwrap();
        }
        let square = |index: usize| f64::from(value(index)) * f64::from(value(index));
        let expected: f64 = (0..elements).map(square).sum();
        assert_eq!(folder.moments().unwrap().sum_norm_squared, expected);
    }

    #[test]
    fn a_scheme_that_measures_gradients_chooses_by_what_a_gpu_has_measured() {
        const CLOCKS: u64 = 12;
        let scheme = SchemeConfig::Dbw {
            delivery: Delivery::Wait,
            choice: Choice::Dynamic { window: 2, loss_growth: 1.0 },
            steps: StepRule::Constant,
        };
        let (driver, _gpu, transport) = gpu::<Shm>();
        let _working = driver.work_in_a_thread();
        let options = ServerOptions { scheme: scheme.into(), ..options(SGD, 2) };
        let mut server = Server::new(transport, &Address::random(), table(), &initial(), options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let address = address.clone();
                scope.spawn(move || {
                    let (driver, _gpu, transport) = gpu::<Shm>();
                    let _working = driver.work_in_a_thread();
                    let options = WorkerOptions::new(scheme);
                    let mut worker_of = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                    for _ in 0..CLOCKS {
                        let mut step = worker_of.step(PATIENCE).unwrap();
                        let value = worker as f32 + 1.0;
                        step.encode(&[value; ELEMENTS]).unwrap();
                        step.publish(Some(value), PATIENCE).unwrap();
                    }
                });
            }
            assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap());
        });
        let status = server.status();
        assert!(status.waits_for.is_some() && status.version > Version::new(4), "{status:?}");
        // The gradients are 1 and 2 throughout: the variance of two of them is a half for each element.
        let variance = status.variance.unwrap() / ELEMENTS as f64;
        assert!((variance - 0.5).abs() < 1e-5, "{variance}");
    }

    /// Two workers under BSP, of which one publishes `odd` in one element of its second gradient.
    fn with_odd_gradient(
        server: &mut Server<Shm>,
        workers: [Shm; 2],
        encoding: Encoding,
        odd: f32,
    ) -> (ServerStatus, Vec<u32>) {
        let address = server.address();
        std::thread::scope(|scope| {
            for (rank, transport) in workers.into_iter().enumerate() {
                let address = address.clone();
                scope.spawn(move || {
                    let options = WorkerOptions { encoding, ..WorkerOptions::new(SchemeConfig::Bsp) };
                    let mut worker = Worker::connect(transport, &[address], options, PATIENCE)?;
                    for clock in 0..4 {
                        let mut step = worker.step(PATIENCE)?;
                        let mut values = vec![0.25 + rank as f32; ELEMENTS];
                        if (rank, clock) == (0, 1) {
                            values[ELEMENTS - 1] = odd;
                        }
                        step.encode(&values)?;
                        step.publish(None, PATIENCE)?;
                    }
                    worker.flush(PATIENCE)
                });
            }
            assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap());
        });
        (server.status(), bits(&server.parameters().unwrap()))
    }

    fn compare(options: impl Fn() -> ServerOptions, encoding: Encoding, odd: f32) -> [ServerStatus; 2] {
        let mut server = Server::new(Shm::new(), &Address::random(), table(), &initial(), options()).unwrap();
        let (theirs, by_processors) = with_odd_gradient(&mut server, [Shm::new(), Shm::new()], encoding, odd);
        let (driver, _gpu, transport) = gpu::<Shm>();
        let sides = [gpu::<Shm>(), gpu::<Shm>()];
        let _working = driver.work_in_a_thread();
        let _their_work = sides.each_ref().map(|(driver, ..)| driver.work_in_a_thread());
        let mut server = Server::new(transport, &Address::random(), table(), &initial(), options()).unwrap();
        let workers = sides.each_ref().map(|(_, _, transport)| transport.clone());
        let (ours, on_gpu) = with_odd_gradient(&mut server, workers, encoding, odd);
        let is_nan = |bits: &u32| f32::from_bits(*bits).is_nan();
        let same = on_gpu.iter().zip(&by_processors).all(|(a, b)| a == b || (is_nan(a) && is_nan(b)));
        assert!(same || options().non_finite == NonFinite::Refuse, "{encoding:?}, {odd}: other parameters");
        [ours, theirs]
    }

    #[test]
    fn a_gpu_finds_the_gradient_that_is_not_finite_and_leaves_it_out() {
        for (encoding, odd) in [
            (Encoding::F32, f32::NAN),
            (Encoding::F32, f32::NEG_INFINITY),
            (Encoding::Bf16, f32::NAN),
            (Encoding::F16, 1e6), // more than the largest half
        ] {
            for optimizer in [SGD, OPTIMIZERS[2]] {
                let of = |non_finite| move || ServerOptions { non_finite, ..options(optimizer, 2) };
                for status in compare(of(NonFinite::Drop), encoding, odd) {
                    assert_eq!(
                        (status.non_finite, status.dropped, status.diverged),
                        (1, 1, None),
                        "{status:?}"
                    );
                }
            }
            let refuse = || ServerOptions { non_finite: NonFinite::Refuse, ..options(SGD, 2) };
            for status in compare(refuse, encoding, odd) {
                assert_eq!(
                    (status.non_finite, status.misbehaved, status.diverged),
                    (1, 1, None),
                    "{status:?}"
                );
            }
        }
    }

    #[test]
    fn no_gradient_is_left_out_where_finite_ones_make_a_parameter_infinite() {
        let drop = || ServerOptions { non_finite: NonFinite::Drop, learning_rate: 3.0, ..options(SGD, 2) };
        for status in compare(drop, Encoding::F32, f32::MAX) {
            assert_eq!((status.non_finite, status.dropped), (0, 0), "{status:?}");
            assert_eq!(status.diverged, Some(Version::new(2)), "{status:?}");
        }
    }

    #[test]
    fn a_second_moment_that_overflows_is_told_on_a_cpu_and_on_a_gpu() {
        let adam = || options(Optimizer::Adam(AdamParameters::DEFAULT), 2);
        for status in compare(adam, Encoding::F32, 1e25) {
            assert_eq!(status.diverged, Some(Version::new(2)), "{status:?}");
        }
    }
}
