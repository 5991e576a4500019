//! Versions that go from a GPU to a GPU, over the scripted driver: no GPU is needed, and none is tested.

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::{BackgroundPublisher, Publisher, PublisherOptions};
    use crate::clock::{Version, VersionTag};
    use crate::cuda::{GpuError, GpuMemory, GpuStream, Scripted, UNKNOWN};
    use crate::diagnostic::Diagnostic;
    use crate::mem::{alone, true_in_a_forked_child};
    use crate::node::{Error, Reader, ReaderOptions, Wanted};
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, Transport};

    const PATIENCE: Duration = Duration::from_secs(60);
    const BYTES: usize = 4096;

    struct Scene<T: Transport> {
        publisher: BackgroundPublisher<T>,
        reader: Reader<T>,
        driver: Arc<Scripted>,
        raw: usize,
        stream: GpuStream,
        weights: GpuMemory,
    }

    fn scene<T: Transport>(transport: fn() -> T, address: Address) -> Scene<T> {
        let table = Table::flat(BYTES as u64, ElementType::U8).unwrap();
        let publisher = Publisher::new(transport(), &address, table, PublisherOptions::default()).unwrap();
        let publisher = publisher.into_background().unwrap();
        let reader =
            Reader::connect(transport(), &publisher.address(), ReaderOptions::default(), PATIENCE).unwrap();
        let driver = Arc::new(Scripted::new());
        let (gpu, raw, stream) = driver.open_gpu();
        let weights = GpuMemory::allocate(&gpu, BYTES).unwrap();
        Scene { publisher, reader, driver, raw, stream, weights }
    }

    fn shm() -> Scene<Shm> {
        scene(Shm::new, Address::random())
    }

    impl<T: Transport> Scene<T> {
        /// The weights become `value` throughout, on the GPU.
        fn compute(&self, value: u8) {
            self.driver.launch_fill(self.raw, self.weights.pointer(), BYTES, value);
        }
    }

    fn a_version_is_published_once_the_gpu_has_copied_it_and_not_before<T: Transport>(mut scene: Scene<T>) {
        for value in 1..=5 {
            scene.compute(value);
            let mut draft = scene.publisher.draft(PATIENCE).unwrap();
            // In two parts, the latter first.
            let (first, second) = (scene.weights.slice(0, 100), scene.weights.slice(100, BYTES - 100));
            draft.copy_from_gpu(100, &second.unwrap(), &scene.stream).unwrap();
            draft.copy_from_gpu(0, &first.unwrap(), &scene.stream).unwrap();
            let mut publishing = draft.commit_when_copied(VersionTag::step(value.into()));
            // Time for a thread that would publish too early.
            std::thread::sleep(Duration::from_millis(20));
            let newest = scene.publisher.version();
            assert_eq!(newest, Version::new(u64::from(value) - 1), "it is not copied yet");
            let version = publishing.version();
            let working = scene.driver.work_in_a_thread();
            assert_eq!(publishing.wait(PATIENCE).unwrap(), version);
            drop(working);
            let snapshot = scene.reader.snapshot(Wanted::exactly(version), PATIENCE).unwrap();
            assert_eq!(snapshot.bytes(), [value; BYTES]);
            assert_eq!(snapshot.fresh().tag.step, u64::from(value));
        }
    }

    #[test]
    fn over_shared_memory_a_version_is_published_once_the_gpu_has_copied_it() {
        a_version_is_published_once_the_gpu_has_copied_it_and_not_before(shm());
    }

    #[test]
    fn over_tcp_a_version_is_published_once_the_gpu_has_copied_it() {
        let address: Address = "127.0.0.1:0".parse().unwrap();
        a_version_is_published_once_the_gpu_has_copied_it_and_not_before(scene(Tcp::new, address));
    }

    #[test]
    fn the_next_draft_is_free_before_any_thread_is_told_of_the_version() {
        for is_fault in [false, true] {
            let scene = shm();
            let mut draft = scene.publisher.draft(PATIENCE).unwrap();
            draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
            let publishing = draft.commit_when_copied(VersionTag::default());
            {
                // The publisher's thread cannot tell of it meanwhile.
                let _untold = publishing.outcome.0.lock().unwrap();
                match is_fault {
                    true => scene.driver.fault(crate::cuda::ILLEGAL_ADDRESS),
                    false => scene.driver.finish(),
                }
                let deadline = crate::node::now() + PATIENCE;
                while scene.publisher.shared.copying_is_open.load(std::sync::atomic::Ordering::Acquire) {
                    assert!(crate::node::now() < deadline, "the draft is open until its version is told");
                    std::thread::yield_now();
                }
                drop(scene.publisher.draft(Duration::ZERO).unwrap());
            }
            drop(publishing);
        }
    }

    #[test]
    fn a_draft_with_copies_under_way_is_not_committed_at_once() {
        let scene = shm();
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
        let refused = draft.commit(VersionTag::default()).unwrap_err();
        assert!(refused.to_string().contains("commit_when_copied"), "{refused}");
        scene.driver.finish();
    }

    #[test]
    fn the_frame_of_a_dropped_draft_is_free_once_the_gpu_writes_it_no_more() {
        let mut scene = shm();
        scene.compute(9);
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
        drop(draft);
        let waited = scene.publisher.draft(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(waited, Error::Gpu(GpuError::NotCopied { .. })), "{waited}");
        scene.driver.finish();
        scene.publisher.publish(&[5; BYTES], VersionTag::default(), PATIENCE).unwrap();
        let snapshot = scene.reader.snapshot(Wanted::exactly(Version::new(1)), PATIENCE).unwrap();
        assert_eq!(snapshot.bytes(), [5; BYTES]);
    }

    #[test]
    fn a_version_that_is_late_as_the_driver_does_not_answer_says_so() {
        let scene = shm();
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
        scene.driver.set_unanswered(Some(UNKNOWN));
        let mut publishing = draft.commit_when_copied(VersionTag::default());
        // Long enough for the publisher to ask the driver meanwhile, on a busy machine, too.
        let late = Duration::from_secs(1);
        for late in [publishing.wait(late).unwrap_err(), scene.publisher.draft(late).map(drop).unwrap_err()] {
            assert!(matches!(late, Error::Gpu(GpuError::NotCopied { cause: Some(_), .. })), "{late}");
            assert!(late.to_string().contains("CUDA error 999") && late.is_retryable(), "{late}");
        }
        scene.driver.set_unanswered(None);
        scene.driver.finish();
        assert_eq!(publishing.wait(PATIENCE).unwrap(), publishing.version());
    }

    #[test]
    fn a_forked_child_is_told_that_the_version_is_its_parents() {
        if !alone(
            "node::publisher::gpu::scripted::tests::a_forked_child_is_told_that_the_version_is_its_parents",
        ) {
            return;
        }
        let scene = shm();
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
        let mut publishing = draft.commit_when_copied(VersionTag::default());
        assert!(true_in_a_forked_child(|| {
            let is_refused = |error: Error| error.to_string().contains("forked from the owner");
            publishing.poll().is_err_and(is_refused)
                && publishing.wait(Duration::from_millis(1)).is_err_and(is_refused)
        }));
        scene.driver.finish();
        assert_eq!(publishing.wait(PATIENCE).unwrap(), publishing.version());
    }

    #[test]
    fn after_a_fault_the_version_is_given_up_and_readers_keep_the_one_before() {
        let mut scene = shm();
        scene.publisher.publish(&[1; BYTES], VersionTag::default(), PATIENCE).unwrap();
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
        let mut publishing = draft.commit_when_copied(VersionTag::default());
        scene.driver.fault(crate::cuda::ILLEGAL_ADDRESS);
        let error = publishing.wait(PATIENCE).unwrap_err();
        assert!(matches!(error, Error::Gpu(GpuError::Faulted { code: 700, .. })), "{error}");
        let snapshot = scene.reader.snapshot(Wanted::newest(), PATIENCE).unwrap();
        assert_eq!((snapshot.fresh().version, snapshot.bytes()), (Version::new(1), &[1; BYTES][..]));
        // From host memory it goes on.
        let version = scene.publisher.publish(&[2; BYTES], VersionTag::default(), PATIENCE).unwrap();
        assert_eq!(version, Version::new(2));
    }

    #[test]
    fn a_snapshots_memory_is_not_used_again_while_the_gpu_copies_from_it() {
        let mut scene = shm();
        for value in 1..=4 {
            scene.publisher.publish(&[value; BYTES], VersionTag::default(), PATIENCE).unwrap();
            let snapshot = scene.reader.snapshot(Wanted::newest(), PATIENCE).unwrap();
            snapshot.copy_to_gpu(0, &scene.weights.whole(), &scene.stream).unwrap();
            drop(snapshot);
            // Each version that the caller's stream sees is kept apart.
            let seen = scene.driver.memory(BYTES);
            scene.driver.launch_copy(scene.raw, seen, scene.weights.pointer(), BYTES);
            scene.publisher.publish(&[100 + value; BYTES], VersionTag::default(), PATIENCE).unwrap();
            let newer = scene.reader.snapshot(Wanted::newest(), PATIENCE).unwrap();
            assert_eq!(newer.bytes(), [100 + value; BYTES]);
            scene.driver.finish();
            assert_eq!(scene.driver.bytes(seen, BYTES), [value; BYTES]);
        }
    }

    #[test]
    fn what_is_wrong_is_refused_before_anything_is_copied() {
        let mut scene = shm();
        scene.publisher.publish(&[1; BYTES], VersionTag::default(), PATIENCE).unwrap();
        let mut draft = scene.publisher.draft(PATIENCE).unwrap();
        let beyond = draft.copy_from_gpu(1, &scene.weights.whole(), &scene.stream).unwrap_err();
        assert!(matches!(beyond, Error::Bounds(_)), "{beyond}");
        let snapshot = scene.reader.snapshot(Wanted::newest(), PATIENCE).unwrap();
        let beyond = snapshot.copy_to_gpu(u64::MAX, &scene.weights.whole(), &scene.stream).unwrap_err();
        assert!(matches!(beyond, Error::Bounds(_)), "{beyond}");
        assert!(!scene.driver.work(), "nothing is under way");
    }

    #[test]
    fn each_call_of_the_driver_that_fails_is_told_and_the_peers_go_on() {
        for fail in Scripted::FAILURES {
            let mut failures = 0;
            loop {
                let mut scene = shm();
                scene.publisher.publish(&[1; BYTES], VersionTag::default(), PATIENCE).unwrap();
                scene.compute(2);
                fail(&scene.driver, failures, crate::cuda::NOT_PERMITTED);
                let working = scene.driver.work_in_a_thread();
                let mut round = || -> Result<(), Error> {
                    let mut draft = scene.publisher.draft(PATIENCE)?;
                    draft.copy_from_gpu(0, &scene.weights.whole(), &scene.stream)?;
                    let version = draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)?;
                    let snapshot = scene.reader.snapshot(Wanted::exactly(version), PATIENCE)?;
                    assert_eq!(snapshot.bytes(), [2; BYTES]);
                    snapshot.copy_to_gpu(0, &scene.weights.whole(), &scene.stream)
                };
                let outcome = round();
                drop(working);
                let has_failed = scene.driver.has_failed();
                if let Err(error) = &outcome {
                    assert!(
                        matches!(error, Error::Gpu(GpuError::Driver { code: 800, .. })),
                        "call {failures}: {error}"
                    );
                }
                scene.driver.finish();
                let version = scene.publisher.publish(&[3; BYTES], VersionTag::default(), PATIENCE).unwrap();
                let snapshot = scene.reader.snapshot(Wanted::exactly(version), PATIENCE).unwrap();
                assert_eq!(snapshot.bytes(), [3; BYTES], "call {failures}");
                if !has_failed {
                    assert!(outcome.is_ok() && failures > 15, "{failures} calls");
                    break;
                }
                failures += 1;
            }
        }
    }

    #[test]
    fn a_publisher_that_is_dropped_while_a_gpu_copies_tells_so() {
        let Scene { publisher, driver, stream, weights, .. } = shm();
        let mut draft = publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &weights.whole(), &stream).unwrap();
        let mut publishing = draft.commit_when_copied(VersionTag::default());
        let early = publishing.wait(Duration::from_millis(5)).unwrap_err();
        assert!(matches!(early, Error::Gpu(GpuError::NotCopied { .. })), "{early}");
        drop(publisher);
        let gone = publishing.wait(PATIENCE).unwrap_err();
        assert!(gone.to_string().contains("the publisher was dropped"), "{gone}");
        driver.finish();
    }

    /// Memory whose owner, dropped, uses the publisher.
    struct Owner(std::sync::Weak<BackgroundPublisher<Shm>>);

    impl Drop for Owner {
        fn drop(&mut self) {
            if let Some(publisher) = self.0.upgrade() {
                // No lock is held here; the version that is on its way is published first.
                assert_eq!(publisher.readers().len(), 1);
                assert!(publisher.draft(Duration::ZERO).is_err());
            }
        }
    }

    #[test]
    fn the_owner_of_memory_may_use_the_publisher_when_it_is_let_go_of() {
        let Scene { publisher, reader: _reader, driver, stream, weights, .. } = shm();
        let publisher = Arc::new(publisher);
        let owner = Owner(Arc::downgrade(&publisher));
        let owned = crate::cuda::memory_with_owner(stream.gpu(), weights.pointer(), BYTES, owner);
        let mut draft = publisher.draft(PATIENCE).unwrap();
        draft.copy_from_gpu(0, &owned.whole(), &stream).unwrap();
        drop(owned);
        let mut publishing = draft.commit_when_copied(VersionTag::default());
        let _working = driver.work_in_a_thread();
        publishing.wait(PATIENCE).unwrap();
    }
}
