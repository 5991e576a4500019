//! Versions that go from one process's GPU memory to another's over shared memory, over TCP and by RDMA, on scripted
//! drivers: no GPU is needed, and none is tested. The publisher and the reader have a driver each, as two processes
//! have.

#[cfg(test)]
pub(super) use tests::{BYTES, PATIENCE, PUBLISHER, Scene, Side, on_two_gpus, publisher, scene, table};

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::sync::Arc;

    use crate::clock::{Version, VersionTag};
    use crate::cuda::{GpuError, GpuMemory, GpuStream, Scripted, Working};
    use crate::node::of_gpu::{OfGpu, over_each_transport, over_gpudirect, over_rdma};
    use crate::node::{
        BackgroundPublisher, DeltaOptions, Error, Publisher, PublisherOptions, Reader, ReaderOptions,
        ShardOptions, Wanted,
    };
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{ConnectError, GpuPath, Transport};

    pub(in crate::node::reader::gpu) const PATIENCE: Duration = Duration::from_secs(60);
    /// Odd, so that frames do not end where pages do.
    pub(in crate::node::reader::gpu) const BYTES: usize = 40_001;

    /// One side: its driver, and memory of the size of the table.
    pub(in crate::node::reader::gpu) struct Side<T> {
        pub(in crate::node::reader::gpu) driver: Arc<Scripted>,
        pub(in crate::node::reader::gpu) raw: usize,
        pub(in crate::node::reader::gpu) stream: GpuStream,
        pub(in crate::node::reader::gpu) weights: GpuMemory,
        pub(in crate::node::reader::gpu) transport: T,
    }

    impl<T: OfGpu> Side<T> {
        pub(in crate::node::reader::gpu) fn new() -> Side<T> {
            Side::on(T::driver(), 0)
        }

        /// On the GPU of this ordinal.
        pub(in crate::node::reader::gpu) fn on(driver: Arc<Scripted>, ordinal: u32) -> Side<T> {
            let (gpu, raw, stream) = driver.open_gpu_at(ordinal);
            let weights = GpuMemory::allocate(&gpu, BYTES).unwrap();
            let transport = T::with(&gpu);
            Side { driver, raw, stream, weights, transport }
        }

        pub(in crate::node::reader::gpu) fn bytes(&self) -> Vec<u8> {
            self.driver.bytes(self.weights.pointer(), BYTES)
        }
    }

    pub(in crate::node::reader::gpu) struct Scene<T: Transport> {
        pub(in crate::node::reader::gpu) publisher: BackgroundPublisher<T>,
        pub(in crate::node::reader::gpu) reader: Reader<T>,
        pub(in crate::node::reader::gpu) from: Side<T>,
        pub(in crate::node::reader::gpu) into: Side<T>,
    }

    pub(in crate::node::reader::gpu) fn table() -> Table {
        Table::flat(BYTES as u64, ElementType::U8).unwrap()
    }

    pub(in crate::node::reader::gpu) fn publisher<T: OfGpu>(
        side: &Side<T>,
        options: PublisherOptions,
    ) -> Result<Publisher<T>, Error> {
        let _working = side.driver.work_in_a_thread();
        Publisher::new(side.transport.clone(), &T::address(), table(), options)
    }

    pub(in crate::node::reader::gpu) fn scene<T: OfGpu>() -> Scene<T> {
        scene_of(Side::new(), Side::new())
    }

    fn scene_of<T: OfGpu>(from: Side<T>, into: Side<T>) -> Scene<T> {
        let publisher = publisher(&from, PublisherOptions::default()).unwrap().into_background().unwrap();
        let options = ReaderOptions::default();
        let reader =
            Reader::connect(into.transport.clone(), &publisher.address(), options, PATIENCE).unwrap();
        Scene { publisher, reader, from, into }
    }

    impl<T: OfGpu> Scene<T> {
        /// Has the trainer's kernel fill the weights with `value`, and publishes them once a thread does the work.
        pub(in crate::node::reader::gpu) fn begin(&self, value: u8) -> crate::node::Publishing {
            let Side { driver, raw, stream, weights, .. } = &self.from;
            driver.launch_fill(*raw, weights.pointer(), BYTES, value);
            let mut draft = self.publisher.draft(PATIENCE).unwrap();
            draft.copy_from_gpu(0, &weights.whole(), stream).unwrap();
            draft.commit_when_copied(VersionTag::step(value.into()))
        }

        /// Threads that do the work of both GPUs: over a network each side copies.
        fn work_in_threads(&self) -> [Working; 2] {
            [&self.from, &self.into].map(|side| side.driver.work_in_a_thread())
        }

        pub(in crate::node::reader::gpu) fn publish(&self, value: u8) -> Version {
            let _working = self.from.driver.work_in_a_thread();
            self.begin(value).wait(PATIENCE).unwrap()
        }

        fn pull(&mut self, wanted: Wanted) -> Result<Version, Error> {
            let Side { stream, weights, .. } = &self.into;
            Ok(self.reader.pull_to_gpu(wanted, &weights.whole(), stream, PATIENCE)?.version)
        }
    }

    fn a_version_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must<T: OfGpu>() {
        let mut scene = scene::<T>();
        for value in 1..=5 {
            let mut publishing = scene.begin(value);
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(scene.publisher.version().get(), u64::from(value) - 1, "it is not copied yet");
            let working = scene.work_in_threads();
            let version = publishing.wait(PATIENCE).unwrap();
            assert_eq!(scene.pull(Wanted::exactly(version)).unwrap(), version);
            assert_eq!(scene.into.bytes(), [value; BYTES]);
            drop(working);
        }
        let path = scene.reader.gpu_path().unwrap();
        assert_eq!(matches!(path, GpuPath::Staged { .. }), T::IS_STAGED, "{path}");
        // Where nothing else reaches the GPU, its bytes go through blocks, once on each side whose payloads are there.
        let sides = [(scene.from, T::SERVES_FROM_GPU), (scene.into, true)];
        for (Side { driver, stream, .. }, is_on_gpu) in sides {
            let by_host = if T::IS_STAGED && is_on_gpu { 5 * BYTES as u64 } else { 0 };
            assert_eq!(stream.gpu().host_bytes_copied(), by_host);
            assert_eq!(driver.host_copies() > 0, T::IS_STAGED);
        }
    }

    fn before_the_first_version_the_frames_are_zeros<T: OfGpu>() {
        let mut scene = scene::<T>();
        let _working = scene.work_in_threads();
        assert_eq!(scene.pull(Wanted::newest()).unwrap(), Version::new(0));
        assert_eq!(scene.into.bytes(), [0; BYTES]);
    }

    fn a_version_of_a_gpu_is_read_into_host_memory_too<T: OfGpu>() {
        let mut scene = scene::<T>();
        let version = scene.publish(7);
        let _working = scene.work_in_threads();
        let snapshot = scene.reader.snapshot(Wanted::exactly(version), PATIENCE).unwrap();
        assert_eq!((snapshot.bytes(), snapshot.fresh().tag.step), (&[7; BYTES][..], 7));
        scene.reader.refresh(0, PATIENCE).unwrap();
        assert_eq!(scene.reader.bytes().unwrap(), [7; BYTES]);
    }

    fn a_host_publishers_version_is_read_into_memory_of_a_gpu<T: OfGpu>() {
        let into = Side::<T>::new();
        let publisher =
            Publisher::new(T::without(), &T::address(), table(), PublisherOptions::default()).unwrap();
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
    fn what_a_gpu_copies_out_of_busy_frames_is_one_version_whole<T: OfGpu>() {
        let Scene { publisher, mut reader, from, into } = scene::<T>();
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

    fn the_copy_comes_behind_the_readers_kernels_and_before_those_that_follow<T: OfGpu>() {
        let mut scene = scene::<T>();
        let version = scene.publish(3);
        let Side { driver, raw, weights, .. } = &scene.into;
        let (raw, pointer, seen) = (*raw, weights.pointer(), driver.memory(BYTES));
        // The memory is in use by work that the stream has already.
        driver.launch_fill(raw, pointer, BYTES, 1);
        let working = scene.work_in_threads();
        assert_eq!(scene.pull(Wanted::newest()).unwrap(), version);
        drop(working);
        let driver = &scene.into.driver;
        driver.launch_copy(raw, seen, pointer, BYTES);
        driver.finish();
        assert_eq!(driver.bytes(seen, BYTES), [3; BYTES]);
    }

    fn a_pull_that_no_gpu_copies_ends_at_its_deadline_and_the_next_is_right<T: OfGpu>() {
        let mut scene = scene::<T>();
        let version = scene.publish(4);
        let serving = scene.from.driver.work_in_a_thread();
        let Side { driver, stream, weights, .. } = &scene.into;
        // Long enough for the steps before the copy, on a busy machine, too.
        let waited = Duration::from_secs(1);
        let mut pull = || scene.reader.pull_to_gpu(Wanted::newest(), &weights.whole(), stream, waited);
        let told = pull().unwrap_err();
        assert!(matches!(told, Error::Gpu(GpuError::NotCopied { cause: None, .. })), "{told}");
        driver.set_unanswered(Some(crate::cuda::UNKNOWN));
        let told = pull().unwrap_err();
        assert!(told.to_string().contains("CUDA error 999"), "{told}");
        driver.set_unanswered(None);
        drop(serving);
        let _working = scene.work_in_threads();
        assert_eq!(scene.pull(Wanted::newest()).unwrap(), version);
        assert_eq!(scene.into.bytes(), [4; BYTES]);
    }

    #[test]
    fn a_reader_without_a_gpu_is_told_what_it_lacks() {
        let scene = scene::<Shm>();
        let address = scene.publisher.address();
        let refused = Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE);
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, Error::Connect(ConnectError::GpuMemory { .. })), "{error}");
        assert!(error.to_string().contains("Shm::with_gpu"), "{error}");
    }

    /// The publisher's process has one GPU. The reader's has two, and computes on the second.
    pub(in crate::node::reader::gpu) fn on_two_gpus(are_peers: bool) -> Scene<Shm> {
        let into = Side::on(Arc::new(Scripted::new().with_two_devices(are_peers)), 1);
        scene_of(Side::new(), into)
    }

    #[test]
    fn a_reader_on_another_gpu_gets_versions_straight_or_by_way_of_the_host() {
        for are_peers in [true, false] {
            let mut scene = on_two_gpus(are_peers);
            for value in 1..=3 {
                let version = scene.publish(value);
                let _working = scene.work_in_threads();
                assert_eq!(scene.pull(Wanted::exactly(version)).unwrap(), version);
                assert_eq!(scene.into.bytes(), [value; BYTES]);
            }
            let path = scene.reader.gpu_path().unwrap();
            assert_eq!(path == GpuPath::CopyEngines, are_peers, "{path}");
            assert_eq!(scene.into.driver.mapped_for_reading(), 1, "it may write what it was given to read");
            let by_host = if are_peers { 0 } else { 3 * BYTES as u64 };
            assert_eq!(scene.into.stream.gpu().host_bytes_copied(), by_host);
        }
    }

    #[test]
    fn memory_and_streams_of_another_gpu_are_refused_by_name() {
        let mut scene = on_two_gpus(true);
        let (first, _, other) = scene.into.driver.open_gpu();
        let memory = GpuMemory::allocate(&first, BYTES).unwrap().whole();
        let mut refused = |into, stream| {
            let error = scene.reader.pull_to_gpu(Wanted::newest(), into, stream, PATIENCE).unwrap_err();
            match error {
                Error::Gpu(GpuError::OtherDevice { ordinal, found, .. }) => (ordinal, found),
                error => panic!("{error}"),
            }
        };
        let (own, stream) = (scene.into.weights.whole(), scene.into.stream.clone());
        // Of the stream, and of the transport.
        assert_eq!(refused(&memory, &stream), (1, 0));
        assert_eq!(refused(&own, &other), (0, 1));
        assert_eq!(refused(&memory, &other), (1, 0));
    }

    #[test]
    fn what_a_processor_would_have_to_touch_is_refused_by_name() {
        let mut scene = scene::<Shm>();
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
        let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
        let Side { transport, stream, weights, .. } = &scene.into;
        let address = scene.publisher.address();
        let mut reader = Reader::connect(transport.clone(), &address, options, PATIENCE).unwrap();
        let error = reader.pull_to_gpu(Wanted::newest(), &weights.whole(), stream, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("checksum"), "{error}");
        let part = weights.slice(0, 8).unwrap();
        let error = scene.reader.pull_to_gpu(Wanted::newest(), &part, stream, PATIENCE).unwrap_err();
        assert!(matches!(error, Error::Length { given: 8, expected: BYTES, .. }), "{error}");
    }

    fn after_each_failing_call_of_the_readers_driver_the_next_pull_is_right<T: OfGpu>() {
        for fail in Scripted::FAILURES {
            let mut failures = 0;
            loop {
                let scene = scene::<T>();
                let Scene { publisher, into, .. } = &scene;
                let version = scene.publish(5);
                fail(&into.driver, failures, crate::cuda::NOT_PERMITTED);
                let _working = scene.work_in_threads();
                let (address, options) = (publisher.address(), ReaderOptions::default());
                // Blocks that could not be unregistered must not be others' memory in the pull after that.
                let mut kept = Vec::new();
                let mut pull = || -> Result<Version, Error> {
                    let mut reader = Reader::connect(into.transport.clone(), &address, options, PATIENCE)?;
                    let weights = into.weights.whole();
                    let pulled = reader.pull_to_gpu(Wanted::newest(), &weights, &into.stream, PATIENCE);
                    kept.extend(T::IS_STAGED.then_some(reader));
                    Ok(pulled?.version)
                };
                let outcome = pull();
                let has_failed = into.driver.has_failed();
                // A call that was not made so far is not to fail later.
                into.driver.fail(u32::MAX, crate::cuda::NOT_PERMITTED);
                assert_eq!(pull().unwrap(), version, "call {failures}");
                assert_eq!(into.bytes(), [5; BYTES], "call {failures}");
                if !has_failed {
                    assert!(outcome.is_ok() && failures > 5, "{failures} calls");
                    break;
                }
                failures += 1;
            }
        }
    }

    #[test]
    fn a_late_copy_of_the_last_connection_does_not_end_in_the_next_version() {
        let mut scene = scene::<Shm>();
        scene.publish(1);
        // Nothing does the work of the reader's GPU: the copies into host memory stay under way.
        for is_snapshot in [true, false] {
            let begun = match is_snapshot {
                true => scene.reader.snapshot(Wanted::newest(), Duration::from_millis(50)).map(drop),
                false => scene.reader.refresh(0, Duration::from_millis(50)).map(drop),
            };
            assert!(matches!(begun, Err(Error::Deadline { .. })), "{begun:?}");
        }
        let (address, options) = (Shm::address(), PublisherOptions::default());
        let next = Publisher::new(Shm::new(), &address, table(), options).unwrap().into_background().unwrap();
        next.publish(&[2; BYTES], VersionTag::default(), PATIENCE).unwrap();
        drop(scene.publisher);
        scene.reader.reconnect(&address, PATIENCE).unwrap();
        let snapshot = scene.reader.snapshot(Wanted::newest(), PATIENCE).unwrap();
        scene.reader.refresh(0, PATIENCE).unwrap();
        scene.into.driver.finish();
        assert!(snapshot.bytes() == [2; BYTES] && scene.reader.bytes().unwrap() == [2; BYTES]);
    }

    fn after_a_fault_of_the_readers_gpu_the_publisher_serves_others<T: OfGpu>() {
        let mut scene = scene::<T>();
        scene.publish(1);
        scene.into.driver.fault(crate::cuda::ILLEGAL_ADDRESS);
        assert!(scene.pull(Wanted::newest()).is_err());
        let other = Side::<T>::new();
        let (address, options) = (scene.publisher.address(), ReaderOptions::default());
        let mut reader = Reader::connect(other.transport.clone(), &address, options, PATIENCE).unwrap();
        let version = scene.publish(2);
        let _working = (scene.work_in_threads(), other.driver.work_in_a_thread());
        let weights = other.weights.whole();
        let fresh = reader.pull_to_gpu(Wanted::newest(), &weights, &other.stream, PATIENCE).unwrap();
        assert_eq!((fresh.version, other.bytes()), (version, vec![2; BYTES]));
    }

    /// The environment variable in which the reader of another process finds its publisher.
    pub(in crate::node::reader::gpu) const PUBLISHER: &str = "SLACKLINE_SCRIPTED_PUBLISHER";
    const VERSIONS_FOR_ANOTHER: u8 = 5;
    /// The line of a reader that has begun to copy.
    const COPYING: &str = "it copies";

    fn a_reader_in_another_process_gets_versions_from_gpu_to_gpu<T: OfGpu>() {
        let from = Side::<T>::new();
        let publisher = publisher(&from, PublisherOptions::default()).unwrap().into_background().unwrap();
        let reader =
            format!("node::reader::gpu::scripted::tests::{}::the_reader_of_another_process", T::NAME);
        let mut reading = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &reader, "--ignored"])
            .env(PUBLISHER, publisher.address().to_string())
            .stdin(std::process::Stdio::piped())
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
        // This closes its input, which it reads to the end.
        assert!(reading.wait().unwrap().success(), "the other process read something else");
    }

    fn the_reader_of_another_process<T: OfGpu>() {
        let Ok(publisher) = std::env::var(PUBLISHER) else { return };
        let into = Side::<T>::new();
        let _working = into.driver.work_in_a_thread();
        let options = ReaderOptions::default();
        let mut reader =
            Reader::connect(into.transport.clone(), &publisher.parse().unwrap(), options, PATIENCE).unwrap();
        for value in 1..=VERSIONS_FOR_ANOTHER {
            let (weights, wanted) = (into.weights.whole(), Wanted::exactly(Version::new(value.into())));
            reader.pull_to_gpu(wanted, &weights, &into.stream, 6 * PATIENCE).unwrap();
            assert_eq!(into.bytes(), [value; BYTES]);
        }
        assert_eq!(into.driver.host_copies() > 0, T::IS_STAGED);
        // A reader that is gone holds nothing: the publisher has to see first which version this one holds.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    }

    fn a_reader_that_is_killed_in_mid_copy_leaves_others_served<T: OfGpu>() {
        let mut scene = scene::<T>();
        let reader = format!("node::reader::gpu::scripted::tests::{}::the_reader_that_is_killed", T::NAME);
        let mut reading = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &reader, "--ignored", "--nocapture"])
            .env(PUBLISHER, scene.publisher.address().to_string())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(reading.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().contains(COPYING)), "it never began to copy");
        reading.kill().unwrap();
        reading.wait().unwrap();
        for value in 1..=3 {
            let version = scene.publish(value);
            let _working = scene.work_in_threads();
            assert_eq!(scene.pull(Wanted::exactly(version)).unwrap(), version);
            assert_eq!(scene.into.bytes(), [value; BYTES]);
        }
        let Scene { publisher, reader, from, into } = scene;
        drop((publisher, reader, into));
        from.driver.finish();
        let Side { driver, stream, weights, transport, .. } = from;
        drop((stream, weights, transport));
        assert_eq!(driver.open(), 0);
    }

    /// It says that it copies, and copies nothing.
    fn the_reader_that_is_killed<T: OfGpu>() {
        let Ok(publisher) = std::env::var(PUBLISHER) else { return };
        let into = Side::<T>::new();
        let options = ReaderOptions::default();
        let mut reader =
            Reader::connect(into.transport.clone(), &publisher.parse().unwrap(), options, PATIENCE).unwrap();
        let (weights, late) = (into.weights.whole(), Duration::from_millis(100));
        reader.pull_to_gpu(Wanted::newest(), &weights, &into.stream, late).unwrap_err();
        writeln!(std::io::stdout(), "{COPYING}").unwrap();
        reader.pull_to_gpu(Wanted::newest(), &weights, &into.stream, 6 * PATIENCE).unwrap();
    }

    fn nothing_is_left_of_memory_that_was_passed<T: OfGpu>() {
        let Scene { publisher, mut reader, from, into } = scene::<T>();
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
    #[test]
    fn a_reader_without_a_gpu_reads_versions_of_one_over_tcp() {
        let scene = scene::<Tcp>();
        let version = scene.publish(6);
        let (address, options) = (scene.publisher.address(), ReaderOptions::default());
        let mut reader = Reader::connect(Tcp::new(), &address, options, PATIENCE).unwrap();
        let _working = scene.from.driver.work_in_a_thread();
        let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE).unwrap();
        assert_eq!(snapshot.bytes(), [6; BYTES]);
    }

    over_each_transport! {
        a_version_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must,
        before_the_first_version_the_frames_are_zeros,
        a_version_of_a_gpu_is_read_into_host_memory_too,
        a_host_publishers_version_is_read_into_memory_of_a_gpu,
        what_a_gpu_copies_out_of_busy_frames_is_one_version_whole,
        the_copy_comes_behind_the_readers_kernels_and_before_those_that_follow,
        a_pull_that_no_gpu_copies_ends_at_its_deadline_and_the_next_is_right,
        after_each_failing_call_of_the_readers_driver_the_next_pull_is_right,
        after_a_fault_of_the_readers_gpu_the_publisher_serves_others,
        a_reader_in_another_process_gets_versions_from_gpu_to_gpu,
        #[ignore = "it is a process of a test above"]
        the_reader_of_another_process,
        a_reader_that_is_killed_in_mid_copy_leaves_others_served,
        #[ignore = "it is a process of a test above"]
        the_reader_that_is_killed,
        nothing_is_left_of_memory_that_was_passed,
    }

    macro_rules! by_rdma {
        ($way:ident) => {
            $way! {
                a_version_goes_from_gpu_to_gpu_and_through_the_host_only_where_it_must,
                before_the_first_version_the_frames_are_zeros,
                a_version_of_a_gpu_is_read_into_host_memory_too,
                a_host_publishers_version_is_read_into_memory_of_a_gpu,
                what_a_gpu_copies_out_of_busy_frames_is_one_version_whole,
                the_copy_comes_behind_the_readers_kernels_and_before_those_that_follow,
                a_pull_that_no_gpu_copies_ends_at_its_deadline_and_the_next_is_right,
                after_each_failing_call_of_the_readers_driver_the_next_pull_is_right,
                after_a_fault_of_the_readers_gpu_the_publisher_serves_others,
                nothing_is_left_of_memory_that_was_passed,
            }
        };
    }
    by_rdma!(over_rdma);
    by_rdma!(over_gpudirect);
}
