//! Versions on a GPU that readers and workers have pinned, on scripted drivers: no GPU is needed, and none is tested.

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::super::scripted::{
        BYTES, PATIENCE, PUBLISHER, Scene, Side, on_two_gpus, publisher, scene, table,
    };
    use crate::clock::{Version, VersionTag};
    use crate::cuda::{GpuError, GpuMemory};
    #[cfg(feature = "verbs")]
    use crate::node::of_gpu::GpuDirect;
    use crate::node::of_gpu::OfGpu;
    use crate::node::{
        BackgroundPublisher, Error, PinnedFrame, Publisher, PublisherOptions, ReadMode, Reader,
        ReaderOptions, Server, ServerOptions, ShardOptions, Wanted, Worker, WorkerOptions,
    };
    use crate::param::{PinError, RETRIES_BEFORE_PIN};
    use crate::scheme::{Bound, SchemeConfig};
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;

    /// Many times as many versions as there are frames.
    const MANY: u8 = 20;
    /// The line of a reader that has pinned a version.
    const PINNED: &str = "it has pinned";

    fn reader_of<T: OfGpu>(address: Address, into: &Side<T>) -> Reader<T> {
        Reader::connect(into.transport.clone(), &address, ReaderOptions::default(), PATIENCE).unwrap()
    }

    fn memory_of(pinned: &PinnedFrame<'_>) -> GpuMemory {
        GpuMemory::try_from(pinned).unwrap()
    }

    /// The bytes that a kernel of the reader's sees now.
    fn seen<T: OfGpu>(into: &Side<T>, memory: &GpuMemory) -> Vec<u8> {
        into.driver.launch_copy(into.raw, into.weights.pointer(), memory.pointer(), memory.bytes());
        into.driver.finish();
        into.bytes()
    }

    #[test]
    fn a_late_kernel_sees_the_version_that_is_pinned_however_many_follow() {
        for scene in [scene::<Shm>(), on_two_gpus(true)] {
            let mut reader = reader_of(scene.publisher.address(), &scene.into);
            let first = scene.publish(1);
            // It is being copied while the one before it is pinned.
            let mut second = scene.begin(2);
            let pinned = reader.pin(Bound::version(first), PATIENCE).unwrap();
            let memory = memory_of(&pinned);
            assert_eq!((pinned.version(), memory.bytes()), (first, BYTES));
            let Side { driver, raw, weights, stream, .. } = &scene.into;
            driver.launch_copy(*raw, weights.pointer(), memory.pointer(), BYTES);
            let working = scene.from.driver.work_in_a_thread();
            second.wait(PATIENCE).unwrap();
            drop(working);
            for value in 3..=MANY {
                scene.publish(value);
            }
            driver.finish();
            assert!(pinned.is_intact() && scene.into.bytes() == [1; BYTES]);
            drop((pinned, memory));
            let newest = reader.pin(Bound::NONE, PATIENCE).unwrap();
            assert_eq!(newest.version(), Version::new(MANY.into()));
            assert_eq!(seen(&scene.into, &memory_of(&newest)), [MANY; BYTES]);
            assert_eq!((stream.gpu().host_bytes_copied(), driver.host_copies()), (0, 0));
        }
    }

    fn is_not_mapped<T: OfGpu>(mut scene: Scene<T>) {
        let error = scene.reader.pin(Bound::NONE, PATIENCE).map(drop).unwrap_err();
        assert!(matches!(error, Error::Pin { source: PinError::NotMapped, .. }), "{error}");
        assert!(error.to_string().contains("pull a copy"), "{error}");
    }

    #[test]
    fn a_frame_that_the_readers_gpu_does_not_reach_is_refused_with_a_remedy() {
        is_not_mapped(scene::<Tcp>());
        is_not_mapped(on_two_gpus(false));
        #[cfg(feature = "verbs")]
        is_not_mapped(scene::<GpuDirect>());
    }

    #[test]
    fn processors_and_gpus_are_told_which_of_them_reads_a_pinned_frame() {
        let on_gpu = |error: Error| {
            assert!(matches!(error, Error::Pin { source: PinError::OnGpu, .. }), "{error}");
            assert!(error.to_string().contains("GpuMemory::try_from"), "{error}");
        };
        let mut scene = scene::<Shm>();
        on_gpu(scene.reader.pin(Bound::NONE, PATIENCE).unwrap().bytes().map(drop).unwrap_err());
        on_gpu(scene.reader.hold(Bound::NONE, PATIENCE).map(drop).unwrap_err());

        let host = Publisher::new(Shm::new(), &Address::random(), table(), PublisherOptions::default());
        let host = host.unwrap().into_background().unwrap();
        host.publish(&[5; BYTES], VersionTag::default(), PATIENCE).unwrap();
        let mut reader = reader_of(host.address(), &scene.into);
        let pinned = reader.pin(Bound::NONE, PATIENCE).unwrap();
        let mut bytes = [0; BYTES];
        pinned.bytes().unwrap().read(&mut bytes);
        assert_eq!(bytes, [5; BYTES]);
        let error = GpuMemory::try_from(&pinned).map(drop).unwrap_err();
        assert!(matches!(error, Error::Pin { source: PinError::OnHost, .. }), "{error}");
        assert!(error.to_string().contains("PinnedFrame::bytes"), "{error}");
    }

    #[test]
    fn nothing_is_copied_into_the_memory_of_a_pinned_version() {
        let mut scene = scene::<Shm>();
        let version = scene.publish(1);
        let mut reader = reader_of(scene.publisher.address(), &scene.into);
        let pinned = reader.pin(Bound::version(version), PATIENCE).unwrap();
        let memory = memory_of(&pinned);
        let next = scene.publish(2);
        let _working = scene.into.driver.work_in_a_thread();
        let snapshot = scene.reader.snapshot(Wanted::exactly(next), PATIENCE).unwrap();
        let Side { stream, weights, .. } = &scene.into;
        for part in [memory.whole(), memory.slice(1, 5).unwrap()] {
            let error = snapshot.copy_to_gpu(0, &part, stream).unwrap_err();
            assert!(matches!(error, Error::Gpu(GpuError::Lent { .. })), "{error}");
        }
        let into = memory.whole();
        let error = scene.reader.pull_to_gpu(Wanted::newest(), &into, stream, PATIENCE).unwrap_err();
        assert!(matches!(error, Error::Gpu(GpuError::Lent { .. })), "{error}");
        assert!(pinned.is_intact() && scene.into.driver.bytes(memory.pointer(), BYTES) == [1; BYTES]);
        // The connection lives.
        scene.reader.pull_to_gpu(Wanted::exactly(next), &weights.whole(), stream, PATIENCE).unwrap();
        assert_eq!(scene.into.bytes(), [2; BYTES]);
    }

    #[test]
    fn memory_of_a_pinned_version_stays_mapped_while_a_kernel_may_read_it() {
        let scene = scene::<Shm>();
        scene.publish(1);
        let mut reader = reader_of(scene.publisher.address(), &scene.into);
        let memory = memory_of(&reader.pin(Bound::NONE, PATIENCE).unwrap());
        let Scene { publisher, reader: other, from, into } = scene;
        drop((reader, other, publisher));
        // The version is not pinned any more: something is there, and nothing faults.
        assert_eq!(seen(&into, &memory), [1; BYTES]);
        drop(memory);
        for Side { driver, stream, weights, transport, .. } in [from, into] {
            driver.finish();
            drop((stream, weights, transport));
            assert_eq!(driver.open(), 0);
        }
    }

    #[test]
    fn what_a_late_copy_lets_go_of_is_not_a_later_pin() {
        let (into, options) = (Side::<Shm>::new(), PublisherOptions::default());
        let publisher = Publisher::new(Shm::new(), &Address::random(), table(), options).unwrap();
        let publisher = publisher.into_background().unwrap();
        let lap = || {
            for value in 0..MANY {
                publisher.publish(&[value; BYTES], VersionTag::default(), PATIENCE).unwrap();
            }
        };
        let mut reader = reader_of(publisher.address(), &into);
        let Side { driver, stream, weights, .. } = &into;
        let late = Duration::from_secs(2);
        std::thread::scope(|scope| {
            let pulling = scope.spawn(|| {
                let pulled = reader.pull_to_gpu(Wanted::newest(), &weights.whole(), stream, late);
                let is_late = matches!(pulled, Err(Error::Gpu(GpuError::NotCopied { cause: None, .. })));
                assert!(is_late, "{pulled:?}");
            });
            // Each copy but the last one is lapped, and that one is of a frame that is pinned.
            for copy in 1.. {
                while driver.host_copies() < copy && !pulling.is_finished() {
                    std::thread::yield_now();
                }
                if copy as u64 > RETRIES_BEFORE_PIN || pulling.is_finished() {
                    break;
                }
                lap();
                driver.finish();
            }
        });
        let held = reader.hold(Bound::NONE, Duration::from_millis(20)).or_else(|_| {
            driver.finish();
            reader.hold(Bound::NONE, PATIENCE)
        });
        held.unwrap();
        driver.finish();
        // Any call that moves requests on.
        reader.newest(PATIENCE).unwrap();
        lap();
        assert!(reader.is_intact());
    }

    /// A publisher of two frames, of which the older one can be pinned.
    struct TwoFrames {
        publisher: BackgroundPublisher<Shm>,
        from: Side<Shm>,
    }

    impl TwoFrames {
        fn new() -> TwoFrames {
            let from = Side::new();
            let memory = ShardOptions { frames: 2, ..ShardOptions::default() };
            let options = PublisherOptions { memory, ..PublisherOptions::default() };
            let publisher = publisher(&from, options).unwrap().into_background().unwrap();
            TwoFrames { publisher, from }
        }

        /// Publishes the next version, waiting so long for a frame.
        fn publish(&self, timeout: Duration) -> Result<Version, Error> {
            let Side { driver, stream, weights, .. } = &self.from;
            let mut draft = self.publisher.draft(timeout)?;
            draft.copy_from_gpu(0, &weights.whole(), stream)?;
            let _working = driver.work_in_a_thread();
            draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)
        }

        /// A reader has pinned the newest version, which the version after the next has to wait for.
        fn expect_pinned(&self) {
            self.publish(PATIENCE).unwrap();
            let error = self.publish(Duration::from_millis(20)).unwrap_err();
            assert!(matches!(error, Error::Pinned { .. }), "{error}");
        }
    }

    #[test]
    fn a_reader_that_is_dropped_or_killed_gives_its_frame_on_a_gpu_back() {
        let owner = TwoFrames::new();
        let mut reader = reader_of(owner.publisher.address(), &Side::<Shm>::new());
        std::mem::forget(reader.pin(Bound::NONE, PATIENCE).unwrap());
        owner.expect_pinned();
        drop(reader);
        owner.publish(PATIENCE).unwrap();

        let reader = "node::reader::gpu::pinned::tests::the_reader_that_is_killed";
        let mut reading = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", reader, "--ignored", "--nocapture"])
            .env(PUBLISHER, owner.publisher.address().to_string())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(reading.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().contains(PINNED)), "it never pinned a version");
        owner.expect_pinned();
        reading.kill().unwrap();
        reading.wait().unwrap();
        owner.publish(PATIENCE).unwrap();
    }

    #[test]
    #[ignore = "it is a process of the test above"]
    fn the_reader_that_is_killed() {
        let Ok(publisher) = std::env::var(PUBLISHER) else { return };
        let into = Side::<Shm>::new();
        let mut reader = reader_of(publisher.parse().unwrap(), &into);
        let pinned = reader.pin(Bound::NONE, PATIENCE).unwrap();
        let _memory = memory_of(&pinned);
        writeln!(std::io::stdout(), "{PINNED}").unwrap();
        // Until its input is closed.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    }

    #[test]
    fn parameters_that_a_gpu_folds_are_pinned_by_readers_and_workers() {
        let (owner, into) = (Side::<Shm>::new(), Side::<Shm>::new());
        let _working = [&owner, &into].map(|side| side.driver.work_in_a_thread());
        let initial = [1.0_f32, 2.0];
        let (table, options) =
            (Table::flat(2, ElementType::F32).unwrap(), ServerOptions::new(SchemeConfig::Bsp, 1, 0.5));
        let address = Address::random();
        let mut server = Server::new(owner.transport.clone(), &address, table, &initial, options).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.drive(|_| is_over.load(Relaxed), 6 * PATIENCE));
            let connect = |read| {
                let options = WorkerOptions { read, ..WorkerOptions::default() };
                Worker::connect(into.transport.clone(), std::slice::from_ref(&address), options, PATIENCE)
            };
            let error = connect(ReadMode::InPlace).map(drop).unwrap_err();
            assert!(matches!(error, Error::Pin { source: PinError::OnGpu, .. }), "{error}");
            let mut worker = connect(ReadMode::Copy).unwrap();
            let values = |pinned: &PinnedFrame<'_>| {
                let memory = memory_of(pinned);
                let bytes = into.driver.bytes(memory.pointer(), memory.bytes());
                [0, 4].map(|at| f32::from_le_bytes(*bytes[at..].first_chunk().unwrap()))
            };
            let mut reader = reader_of(address.clone(), &into);
            let pinned = reader.pin(Bound::NONE, PATIENCE).unwrap();
            for _ in 0..MANY {
                let mut step = worker.step(PATIENCE).unwrap();
                step.gradient().unwrap().fill(2.0);
                step.publish(None, PATIENCE).unwrap();
            }
            worker.flush(PATIENCE).unwrap();
            assert!(pinned.is_intact() && values(&pinned) == initial);
            let newest = worker.pin(0, Bound::version(Version::new(MANY.into())), PATIENCE).unwrap();
            assert_eq!(values(&newest), initial.map(|value| value - f32::from(MANY)));
            is_over.store(true, Relaxed);
            assert!(serving.join().unwrap().unwrap());
        });
    }
}
