//! Versions that go from one process's GPU memory to another's over shared memory, on scripted drivers: no GPU is
//! needed, and none is tested. The publisher and the reader have a driver each, as two processes have.

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::clock::{Version, VersionTag};
    use crate::cuda::{GpuError, GpuMemory, GpuStream, Scripted};
    use crate::node::{
        BackgroundPublisher, DeltaOptions, Error, Publisher, PublisherOptions, Reader, ReaderOptions,
        ShardOptions, Wanted,
    };
    use crate::param::PullOptions;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::{Address, ConnectError};

    const PATIENCE: Duration = Duration::from_secs(10);
    /// Odd, so that frames do not end where pages do.
    const BYTES: usize = 40_001;

    /// One side: its driver, and memory of the size of the table.
    struct Side {
        driver: Arc<Scripted>,
        raw: usize,
        stream: GpuStream,
        weights: GpuMemory,
        transport: Shm,
    }

    impl Side {
        fn new() -> Side {
            let driver = Arc::new(Scripted::new());
            let (gpu, raw, stream) = driver.open_gpu();
            let weights = GpuMemory::allocate(&gpu, BYTES).unwrap();
            let transport = Shm::new().with_gpu(&gpu);
            Side { driver, raw, stream, weights, transport }
        }

        fn bytes(&self) -> Vec<u8> {
            self.driver.bytes(self.weights.pointer(), BYTES)
        }
    }

    struct Scene {
        publisher: BackgroundPublisher<Shm>,
        reader: Reader<Shm>,
        from: Side,
        into: Side,
    }

    fn table() -> Table {
        Table::flat(BYTES as u64, ElementType::U8).unwrap()
    }

    fn publisher(side: &Side, options: PublisherOptions) -> Result<Publisher<Shm>, Error> {
        let _working = side.driver.work_in_a_thread();
        Publisher::new(side.transport.clone(), &Address::random(), table(), options)
    }

    fn scene() -> Scene {
        let (from, into) = (Side::new(), Side::new());
        let publisher = publisher(&from, PublisherOptions::default()).unwrap().into_background().unwrap();
        let options = ReaderOptions::default();
        let reader =
            Reader::connect(into.transport.clone(), &publisher.address(), options, PATIENCE).unwrap();
        Scene { publisher, reader, from, into }
    }

    impl Scene {
        /// Has the trainer's kernel fill the weights with `value`, and publishes them once a thread does the work.
        fn begin(&self, value: u8) -> crate::node::Publishing {
            let Side { driver, raw, stream, weights, .. } = &self.from;
            driver.launch_fill(*raw, weights.pointer(), BYTES, value);
            let mut draft = self.publisher.draft(PATIENCE).unwrap();
            draft.copy_from_gpu(0, &weights.whole(), stream).unwrap();
            draft.commit_when_copied(VersionTag::step(value.into()))
        }

        fn publish(&self, value: u8) -> Version {
            let _working = self.from.driver.work_in_a_thread();
            self.begin(value).wait(PATIENCE).unwrap()
        }

        fn pull(&mut self, wanted: Wanted) -> Result<Version, Error> {
            let Side { stream, weights, .. } = &self.into;
            Ok(self.reader.pull_to_gpu(wanted, &weights.whole(), stream, PATIENCE)?.version)
        }
    }

    #[test]
    fn a_version_goes_from_gpu_to_gpu_and_no_byte_of_it_through_the_host() {
        let mut scene = scene();
        for value in 1..=5 {
            let mut publishing = scene.begin(value);
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(scene.publisher.version().get(), u64::from(value) - 1, "it is not copied yet");
            let working = (scene.from.driver.work_in_a_thread(), scene.into.driver.work_in_a_thread());
            let version = publishing.wait(PATIENCE).unwrap();
            assert_eq!(scene.pull(Wanted::exactly(version)).unwrap(), version);
            assert_eq!(scene.into.bytes(), [value; BYTES]);
            drop(working);
        }
        assert_eq!((scene.from.driver.host_copies(), scene.into.driver.host_copies()), (0, 0));
    }

    #[test]
    fn before_the_first_version_the_frames_are_zeros() {
        let mut scene = scene();
        let _working = scene.into.driver.work_in_a_thread();
        assert_eq!(scene.pull(Wanted::newest()).unwrap(), Version::new(0));
        assert_eq!(scene.into.bytes(), [0; BYTES]);
    }

    #[test]
    fn a_version_of_a_gpu_is_read_into_host_memory_too() {
        let mut scene = scene();
        let version = scene.publish(7);
        let _working = scene.into.driver.work_in_a_thread();
        let snapshot = scene.reader.snapshot(Wanted::exactly(version), PATIENCE).unwrap();
        assert_eq!((snapshot.bytes(), snapshot.fresh().tag.step), (&[7; BYTES][..], 7));
        scene.reader.refresh(0, PATIENCE).unwrap();
        assert_eq!(scene.reader.bytes().unwrap(), [7; BYTES]);
    }

    #[test]
    fn a_host_publishers_version_is_read_into_memory_of_a_gpu() {
        let into = Side::new();
        let publisher =
            Publisher::new(Shm::new(), &Address::random(), table(), PublisherOptions::default()).unwrap();
        let publisher = publisher.into_background().unwrap();
        let (address, options) = (publisher.address(), ReaderOptions::default());
        let mut reader = Reader::connect(into.transport.clone(), &address, options, PATIENCE).unwrap();
        publisher.publish(&[9; BYTES], VersionTag::default(), PATIENCE).unwrap();
        let _working = into.driver.work_in_a_thread();
        let weights = into.weights.whole();
        let fresh = reader.pull_to_gpu(Wanted::newest(), &weights, &into.stream, PATIENCE).unwrap();
        assert_eq!((fresh.version, into.bytes()), (Version::new(1), vec![9; BYTES]));
    }

    /// A publisher that never pauses, a reader that never pauses, and two GPUs that copy when they like.
    #[test]
    fn what_a_gpu_copies_out_of_busy_frames_is_one_version_whole() {
        let Scene { publisher, mut reader, from, into } = scene();
        let _working = (from.driver.work_in_a_thread(), into.driver.work_in_a_thread());
        const VERSIONS: u64 = 60;
        std::thread::scope(|scope| {
            let publisher = &publisher;
            scope.spawn(move || {
                let Side { driver, raw, stream, weights, .. } = &from;
                for value in 1..=VERSIONS {
                    driver.launch_fill(*raw, weights.pointer(), BYTES, value as u8);
                    let mut draft = publisher.draft(PATIENCE).unwrap();
                    draft.copy_from_gpu(0, &weights.whole(), stream).unwrap();
                    draft.commit_when_copied(VersionTag::default()).wait(PATIENCE).unwrap();
                }
            });
            let mut last = Version::new(0);
            while last < Version::new(VERSIONS) {
                let weights = into.weights.whole();
                let wanted = Wanted::at_least(last.next());
                let fresh = reader.pull_to_gpu(wanted, &weights, &into.stream, PATIENCE).unwrap();
                let seen = into.bytes();
                let version = fresh.version.get() as u8;
                assert!(seen.iter().all(|byte| *byte == version), "a mixture, or not version {version}");
                last = fresh.version;
            }
        });
    }

    #[test]
    fn the_copy_comes_behind_the_readers_kernels_and_before_those_that_follow() {
        let mut scene = scene();
        let version = scene.publish(3);
        let Side { driver, raw, weights, .. } = &scene.into;
        let (raw, pointer, seen) = (*raw, weights.pointer(), driver.memory(BYTES));
        // The memory is in use by work that the stream has already.
        driver.launch_fill(raw, pointer, BYTES, 1);
        let working = driver.work_in_a_thread();
        assert_eq!(scene.pull(Wanted::newest()).unwrap(), version);
        drop(working);
        let driver = &scene.into.driver;
        driver.launch_copy(raw, seen, pointer, BYTES);
        driver.finish();
        assert_eq!(driver.bytes(seen, BYTES), [3; BYTES]);
    }

    #[test]
    fn a_pull_that_no_gpu_copies_ends_at_its_deadline_and_the_next_is_right() {
        let mut scene = scene();
        let version = scene.publish(4);
        let Side { stream, weights, .. } = &scene.into;
        let late = Duration::from_millis(20);
        let error = scene.reader.pull_to_gpu(Wanted::newest(), &weights.whole(), stream, late).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        let _working = scene.into.driver.work_in_a_thread();
        assert_eq!(scene.pull(Wanted::newest()).unwrap(), version);
        assert_eq!(scene.into.bytes(), [4; BYTES]);
    }

    #[test]
    fn a_reader_without_a_gpu_is_told_what_it_lacks() {
        let scene = scene();
        let address = scene.publisher.address();
        let refused = Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE);
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, Error::Connect(ConnectError::GpuMemory { .. })), "{error}");
        assert!(error.to_string().contains("Shm::with_gpu"), "{error}");
    }

    #[test]
    fn what_a_processor_would_have_to_touch_is_refused_by_name() {
        let mut scene = scene();
        let on_gpu = |error: Error| {
            assert!(matches!(error, Error::Gpu(GpuError::OnGpu { .. })), "{error}");
        };
        on_gpu(scene.publisher.publish(&[1; BYTES], VersionTag::default(), PATIENCE).unwrap_err());
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        on_gpu(draft.write(0, &[1]).unwrap_err());
        on_gpu(draft.commit_recorded(VersionTag::default()).unwrap_err());
        let mut by_calls = publisher(&scene.from, PublisherOptions::default()).unwrap();
        on_gpu(by_calls.publish(&[1; BYTES], PATIENCE).unwrap_err());

        let memory = ShardOptions { checksums: true, ..ShardOptions::default() };
        let checksums = PublisherOptions { memory, ..PublisherOptions::default() };
        let deltas =
            PublisherOptions { deltas: Some(DeltaOptions::default()), ..PublisherOptions::default() };
        for (options, name) in [(checksums, "checksums"), (deltas, "deltas")] {
            let error = publisher(&scene.from, options).map(drop).unwrap_err();
            assert!(matches!(error, Error::Option { option, .. } if option == name), "{error}");
        }
        let pull = PullOptions { checksum: true, ..PullOptions::default() };
        let options = ReaderOptions { pull, ..ReaderOptions::default() };
        let Side { transport, stream, weights, .. } = &scene.into;
        let address = scene.publisher.address();
        let mut reader = Reader::connect(transport.clone(), &address, options, PATIENCE).unwrap();
        let error = reader.pull_to_gpu(Wanted::newest(), &weights.whole(), stream, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("checksum"), "{error}");
        let part = weights.slice(0, 8).unwrap();
        let error = scene.reader.pull_to_gpu(Wanted::newest(), &part, stream, PATIENCE).unwrap_err();
        assert!(matches!(error, Error::Length { given: 8, expected: BYTES }), "{error}");
    }

    #[test]
    fn after_each_failing_call_of_the_readers_driver_the_next_pull_is_right() {
        let mut failures = 0;
        loop {
            let scene = scene();
            let Scene { publisher, into, .. } = &scene;
            let version = scene.publish(5);
            into.driver.fail(failures, crate::cuda::NOT_PERMITTED);
            let _working = into.driver.work_in_a_thread();
            let (address, options) = (publisher.address(), ReaderOptions::default());
            let pull = || -> Result<Version, Error> {
                let mut reader = Reader::connect(into.transport.clone(), &address, options, PATIENCE)?;
                let weights = into.weights.whole();
                Ok(reader.pull_to_gpu(Wanted::newest(), &weights, &into.stream, PATIENCE)?.version)
            };
            let outcome = pull();
            let has_failed = into.driver.has_failed();
            // One that was not made so far is not to fail later.
            into.driver.fail(u32::MAX, crate::cuda::NOT_PERMITTED);
            assert_eq!(pull().unwrap(), version, "call {failures}");
            assert_eq!(into.bytes(), [5; BYTES], "call {failures}");
            if !has_failed {
                assert!(outcome.is_ok() && failures > 5, "{failures} calls");
                return;
            }
            failures += 1;
        }
    }

    #[test]
    fn after_a_fault_of_the_readers_gpu_the_publisher_serves_others() {
        let mut scene = scene();
        scene.publish(1);
        scene.into.driver.fault(crate::cuda::ILLEGAL_ADDRESS);
        assert!(scene.pull(Wanted::newest()).is_err());
        let other = Side::new();
        let (address, options) = (scene.publisher.address(), ReaderOptions::default());
        let mut reader = Reader::connect(other.transport.clone(), &address, options, PATIENCE).unwrap();
        let version = scene.publish(2);
        let _working = other.driver.work_in_a_thread();
        let weights = other.weights.whole();
        let fresh = reader.pull_to_gpu(Wanted::newest(), &weights, &other.stream, PATIENCE).unwrap();
        assert_eq!((fresh.version, other.bytes()), (version, vec![2; BYTES]));
    }

    /// The environment variable in which the reader of another process finds its publisher.
    const PUBLISHER: &str = "SLACKLINE_SCRIPTED_PUBLISHER";
    const VERSIONS_FOR_ANOTHER: u8 = 5;

    #[test]
    fn a_reader_in_another_process_gets_versions_from_gpu_to_gpu() {
        let from = Side::new();
        let publisher = publisher(&from, PublisherOptions::default()).unwrap().into_background().unwrap();
        let reader = "node::reader::gpu::scripted::tests::the_reader_of_another_process";
        let mut reading = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", reader, "--ignored"])
            .env(PUBLISHER, publisher.address().to_string())
            .spawn()
            .unwrap();
        let _working = from.driver.work_in_a_thread();
        let Side { driver, raw, stream, weights, .. } = &from;
        for value in 1..=VERSIONS_FOR_ANOTHER {
            driver.launch_fill(*raw, weights.pointer(), BYTES, value);
            let mut draft = publisher.draft(PATIENCE).unwrap();
            draft.copy_from_gpu(0, &weights.whole(), stream).unwrap();
            let version = draft.commit_when_copied(VersionTag::default()).wait(PATIENCE).unwrap();
            publisher.wait(version, 1, 6 * PATIENCE).unwrap();
        }
        assert!(reading.wait().unwrap().success(), "the other process read something else");
    }

    #[test]
    #[ignore = "it is a process of the test above"]
    fn the_reader_of_another_process() {
        let Ok(publisher) = std::env::var(PUBLISHER) else { return };
        let into = Side::new();
        let _working = into.driver.work_in_a_thread();
        let options = ReaderOptions::default();
        let mut reader =
            Reader::connect(into.transport.clone(), &publisher.parse().unwrap(), options, PATIENCE).unwrap();
        for value in 1..=VERSIONS_FOR_ANOTHER {
            let (weights, wanted) = (into.weights.whole(), Wanted::exactly(Version::new(value.into())));
            reader.pull_to_gpu(wanted, &weights, &into.stream, 6 * PATIENCE).unwrap();
            assert_eq!(into.bytes(), [value; BYTES]);
        }
        assert_eq!(into.driver.host_copies(), 0);
    }

    #[test]
    fn nothing_is_left_of_memory_that_was_passed() {
        let Scene { publisher, mut reader, from, into } = scene();
        {
            let _working = (from.driver.work_in_a_thread(), into.driver.work_in_a_thread());
            let weights = into.weights.whole();
            reader.pull_to_gpu(Wanted::newest(), &weights, &into.stream, PATIENCE).unwrap();
        }
        drop((publisher, reader));
        for side in [from, into] {
            let Side { driver, stream, weights, transport, .. } = side;
            driver.finish();
            drop((stream, weights, transport));
            assert_eq!(driver.open(), 0);
        }
    }
}
