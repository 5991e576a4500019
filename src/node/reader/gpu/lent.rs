//! Versions that readers get out of memory of the publisher's caller, on scripted drivers: no GPU is needed, and none
//! is tested.

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::super::scripted::{BYTES, PATIENCE, PUBLISHER, Side, publisher};
    use crate::clock::{Version, VersionTag};
    use crate::cuda::{GpuError, GpuMemory, PRIMARY, Scripted, Tickets, memory_with_owner};
    use crate::node::of_gpu::{OfGpu, over_each_transport, over_gpudirect};
    use crate::node::{
        BackgroundPublisher, Error, Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted,
    };
    use crate::scheme::Bound;
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, GpuPath, RegisterError, Transport};

    /// Bytes of three frames, each rounded up.
    const FRAMES: usize = 3 * 40_960;
    /// Their allocation, which has other tensors before and behind them.
    const ALLOCATION: usize = FRAMES + 5000;
    /// The line of a reader that has the memory open.
    const OPENED: &str = "it has opened";

    /// The owner of the allocation, which is freed with it.
    struct Owner {
        driver: Arc<Scripted>,
        allocation: u64,
        is_freed: Arc<AtomicBool>,
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.driver.free_memory(self.allocation);
            self.is_freed.store(true, SeqCst);
        }
    }

    /// A publisher with frames in an allocation of its caller's, of `cuMemAlloc`.
    struct Lender<T: Transport> {
        side: Side<T>,
        allocation: u64,
        is_freed: Arc<AtomicBool>,
        publisher: BackgroundPublisher<T>,
    }

    fn options(memory: &GpuMemory) -> PublisherOptions {
        PublisherOptions { gpu_memory: Some(memory.clone()), ..PublisherOptions::default() }
    }

    /// Where they begin in their allocation: devices that reach a GPU want a page.
    fn begin<T: OfGpu>() -> usize {
        if T::NAME == "gpudirect" { 4096 } else { 7 }
    }

    fn allocate<T: OfGpu>(side: &Side<T>) -> (u64, Arc<AtomicBool>, GpuMemory) {
        let (driver, is_freed) = (side.driver.clone(), Arc::<AtomicBool>::default());
        let allocation = driver.memory(ALLOCATION);
        driver.set_classic(allocation, PRIMARY);
        let owner = Owner { driver, allocation, is_freed: is_freed.clone() };
        let memory = memory_with_owner(side.stream.gpu(), allocation + begin::<T>() as u64, FRAMES, owner);
        (allocation, is_freed, memory)
    }

    impl<T: OfGpu> Lender<T> {
        fn new() -> Lender<T> {
            let side = Side::new();
            let (allocation, is_freed, memory) = allocate(&side);
            let publisher = publisher(&side, options(&memory)).unwrap().into_background().unwrap();
            Lender { side, allocation, is_freed, publisher }
        }

        fn publish(&self, value: u8) -> Version {
            let Side { driver, raw, stream, weights, .. } = &self.side;
            let _working = driver.work_in_a_thread();
            driver.launch_fill(*raw, weights.pointer(), BYTES, value);
            let mut draft = self.publisher.draft(PATIENCE).unwrap();
            draft.copy_from_gpu(0, &weights.whole(), stream).unwrap();
            draft.commit_when_copied(VersionTag::default()).wait(PATIENCE).unwrap()
        }

        fn reader(&self, into: &Side<T>) -> Reader<T> {
            connect(&self.publisher.address(), into).unwrap()
        }
    }

    fn connect<T: OfGpu>(address: &Address, into: &Side<T>) -> Result<Reader<T>, Error> {
        Reader::connect(into.transport.clone(), address, ReaderOptions::default(), PATIENCE)
    }

    /// Pulls a version to the side's GPU.
    fn pull<T: OfGpu>(reader: &mut Reader<T>, into: &Side<T>, version: Version) -> Result<(), Error> {
        let _working = into.driver.work_in_a_thread();
        let wanted = Wanted::exactly(version);
        reader.pull_to_gpu(wanted, &into.weights.whole(), &into.stream, PATIENCE).map(drop)
    }

    /// Waits until another thread has made `is_so` true.
    fn expect_soon(what: &str, is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what}: waited in vain");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn versions_come_out_of_memory_of_the_callers_and_what_is_beside_it_stays<T: OfGpu>() {
        let lender = Lender::<T>::new();
        let sides = [Side::new(), Side::new()];
        let mut readers = sides.each_ref().map(|into| lender.reader(into));
        let driver = &lender.side.driver;
        for value in 1..=5 {
            let version = lender.publish(value);
            let frames = driver.bytes(lender.allocation + begin::<T>() as u64, FRAMES);
            let has_value = frames.chunks(40_960).any(|frame| frame[..BYTES] == [value; BYTES]);
            assert!(has_value, "the frames are elsewhere");
            let _working = driver.work_in_a_thread();
            for (reader, into) in readers.iter_mut().zip(&sides) {
                pull(reader, into, version).unwrap();
                assert_eq!(into.bytes(), [value; BYTES]);
            }
        }
        let left = [0xCD; ALLOCATION];
        assert_eq!(driver.bytes(lender.allocation, begin::<T>()), left[..begin::<T>()]);
        let behind = begin::<T>() + FRAMES;
        let beside = driver.bytes(lender.allocation + behind as u64, ALLOCATION - behind);
        assert_eq!(beside, left[behind..]);
        let Lender { side, publisher, is_freed, .. } = lender;
        drop((publisher, readers));
        expect_soon("the memory is let go of", || is_freed.load(SeqCst));
        let Side { driver, stream, weights, transport, .. } = side;
        driver.finish();
        drop((stream, weights, transport));
        assert_eq!(driver.open(), 0);
    }

    over_each_transport! { versions_come_out_of_memory_of_the_callers_and_what_is_beside_it_stays }
    over_gpudirect! { versions_come_out_of_memory_of_the_callers_and_what_is_beside_it_stays }

    #[cfg(feature = "verbs")]
    #[test]
    fn devices_are_given_frames_that_begin_at_a_page_and_no_others() {
        let side = Side::<crate::node::of_gpu::GpuDirect>::new();
        let allocation = side.driver.memory(ALLOCATION);
        let memory = |at| memory_with_owner(side.stream.gpu(), allocation + at, FRAMES, ());
        publisher(&side, options(&memory(4096))).unwrap();
        let error = refused(&side, &memory(8));
        assert!(matches!(error, Error::Register(RegisterError::Device { .. })), "{error}");
        assert!(error.to_string().contains("begin at a multiple of 4096"), "{error}");
    }

    #[test]
    fn readers_of_one_process_open_the_memory_at_one_address() {
        let (lender, into) = (Lender::<Shm>::new(), Side::new());
        let version = lender.publish(3);
        let mut readers = [(); 2].map(|()| lender.reader(&into));
        let at = readers.each_mut().map(|reader| {
            let pinned = reader.pin(Bound::version(version), PATIENCE).unwrap();
            GpuMemory::try_from(&pinned).unwrap().pointer()
        });
        assert_eq!((at[0], into.driver.opened_of_others()), (at[1], 2));
        let [first, mut second] = readers;
        drop(first);
        assert_eq!(into.driver.opened_of_others(), 1);
        pull(&mut second, &into, version).unwrap();
        assert_eq!(into.bytes(), [3; BYTES]);
        drop(second);
        assert_eq!(into.driver.opened_of_others(), 0);
    }

    #[test]
    fn memory_of_the_callers_is_kept_until_its_last_reader_has_closed_it() {
        let (lender, into) = (Lender::<Shm>::new(), Side::new());
        let version = lender.publish(3);
        let [mut pinning, mut copying] = [(); 2].map(|()| lender.reader(&into));
        let pinned = pinning.pin(Bound::version(version), PATIENCE).unwrap();
        let memory = GpuMemory::try_from(&pinned).unwrap();
        // Nothing does the work of the reader's GPU: its copy stays under way, which a busy machine has begun by then.
        let (weights, late) = (into.weights.whole(), Duration::from_secs(1));
        copying.pull_to_gpu(Wanted::newest(), &weights, &into.stream, late).unwrap_err();
        let Lender { publisher, is_freed, .. } = lender;
        drop(pinned);
        drop((publisher, pinning, copying));
        let is_kept = |what| {
            std::thread::sleep(Duration::from_millis(20));
            assert!(!is_freed.load(SeqCst), "{what} has it open");
        };
        is_kept("what was pinned");
        // The reader's kernels see it as it was.
        assert_eq!(into.driver.bytes(memory.pointer(), BYTES), [3; BYTES]);
        drop(memory);
        is_kept("a copy");
        into.driver.finish();
        assert_eq!(into.bytes(), [3; BYTES]);
        // It is noticed that a copy is over by the next one, or by the end of the GPU.
        let Side { driver, stream, transport, weights: own, .. } = into;
        drop((stream, transport, own, weights));
        expect_soon("the memory is let go of", || is_freed.load(SeqCst));
        assert_eq!(driver.opened_of_others(), 0);
    }

    #[test]
    fn memory_that_a_killed_reader_had_open_is_kept_until_then() {
        let lender = Lender::<Shm>::new();
        let reader = "node::reader::gpu::lent::tests::the_reader_that_is_killed";
        let mut reading = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", reader, "--ignored", "--nocapture"])
            .env(PUBLISHER, lender.publisher.address().to_string())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(reading.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().contains(OPENED)), "it never opened the memory");
        let Lender { publisher, is_freed, .. } = lender;
        drop(publisher);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!is_freed.load(SeqCst), "the other process has it open");
        reading.kill().unwrap();
        reading.wait().unwrap();
        expect_soon("the memory is let go of", || is_freed.load(SeqCst));
    }

    #[test]
    #[ignore = "it is a process of the test above"]
    fn the_reader_that_is_killed() {
        let Ok(publisher) = std::env::var(PUBLISHER) else { return };
        let into = Side::<Shm>::new();
        let mut reader = connect(&publisher.parse().unwrap(), &into).unwrap();
        pull(&mut reader, &into, Version::new(0)).unwrap();
        assert_eq!(into.bytes(), [0; BYTES], "another process has cleared it");
        writeln!(std::io::stdout(), "{OPENED}").unwrap();
        // Until its input is closed.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    }

    #[test]
    fn a_reader_in_the_publishers_own_process_opens_nothing() {
        let lender = Lender::<Shm>::new();
        let version = lender.publish(3);
        let mut reader = lender.reader(&lender.side);
        lender.side.driver.set_bytes(lender.side.weights.pointer(), &[0; BYTES]);
        pull(&mut reader, &lender.side, version).unwrap();
        assert_eq!(lender.side.bytes(), [3; BYTES]);
        let pinned = reader.pin(Bound::version(version), PATIENCE).unwrap();
        let memory = GpuMemory::try_from(&pinned).unwrap();
        let frames = lender.allocation + begin::<Shm>() as u64;
        assert!((frames..frames + FRAMES as u64).contains(&memory.pointer()));
        assert_eq!(lender.side.driver.opened_of_others(), 0);
        drop(pinned);
        let Lender { publisher, is_freed, side, .. } = lender;
        drop((publisher, reader));
        assert!(!is_freed.load(SeqCst), "what was pinned is in it");
        drop(memory);
        side.driver.finish();
        drop(side);
        expect_soon("the memory is let go of", || is_freed.load(SeqCst));
    }

    #[test]
    fn a_reader_on_another_gpu_opens_memory_of_the_callers_for_either() {
        for are_peers in [true, false] {
            let driver = Arc::new(Scripted::new().with_two_devices(are_peers));
            let (lender, into) = (Lender::<Shm>::new(), Side::on(driver, 1));
            let mut reader = lender.reader(&into);
            for value in 1..=3 {
                let version = lender.publish(value);
                pull(&mut reader, &into, version).unwrap();
                assert_eq!(into.bytes(), [value; BYTES]);
            }
            let path = reader.gpu_path().unwrap();
            assert_eq!(path == GpuPath::CopyEngines, are_peers, "{path}");
        }
    }

    #[test]
    fn frames_are_cleared_behind_a_stream_that_holds_copies() {
        let side = Side::<Shm>::new();
        let (_, _, memory) = allocate(&side);
        for _ in 0..20 {
            side.driver.launch_fill(side.raw, memory.pointer(), FRAMES, 9);
        }
        side.stream.hold_copies().unwrap();
        // As a publisher does when it begins; no work is done before.
        side.stream.gpu().clear(memory.whole(), &mut Tickets::default()).unwrap();
        side.driver.finish();
        assert_eq!(
            side.driver.bytes(memory.pointer(), FRAMES),
            [0; FRAMES],
            "what was to come first came last"
        );
        publisher(&side, options(&memory)).unwrap();
    }

    fn refused<T: OfGpu>(side: &Side<T>, memory: &GpuMemory) -> Error {
        publisher(side, options(memory)).map(drop).unwrap_err()
    }

    #[test]
    fn memory_that_cannot_hold_the_frames_is_refused_by_name() {
        let side = Side::<Shm>::new();
        let gpu = side.stream.gpu();
        let is_option = |error: Error, told: &str| {
            assert!(matches!(error, Error::Option { option: "gpu_memory", .. }), "{error}");
            assert!(error.to_string().contains(told), "{error}");
        };
        for bytes in [FRAMES - 1, FRAMES + 1] {
            let error = refused(&side, &GpuMemory::allocate(gpu, bytes).unwrap());
            is_option(error, "the bytes of all frames");
        }
        let (_, is_freed, memory) = allocate(&side);
        let address = Address::random();
        let table = super::super::scripted::table();
        let error = Publisher::new(Shm::new(), &address, table, options(&memory)).map(drop).unwrap_err();
        is_option(error, "give it the GPU");
        let driver = Arc::new(Scripted::new().with_two_devices(true));
        let (first, second) = (Side::<Shm>::on(driver.clone(), 0), Side::<Shm>::on(driver, 1));
        let (_, _, elsewhere) = allocate(&first);
        let error = refused(&second, &elsewhere);
        let other = GpuError::OtherDevice { pointer: elsewhere.pointer(), ordinal: 1, found: 0 };
        assert!(matches!(&error, Error::Gpu(error) if *error == other), "{error}");
        drop(memory);
        assert!(is_freed.load(SeqCst), "what was refused is kept");
    }

    #[test]
    fn memory_that_no_process_can_open_is_refused_with_the_setting_of_pytorch() {
        let side = Side::<Shm>::new();
        // A piece of a segment that grows, or memory of a pool.
        let pointer = side.driver.memory(FRAMES);
        side.driver.set_bytes(pointer, &[9; FRAMES]);
        let memory = memory_with_owner(side.stream.gpu(), pointer, FRAMES, ());
        let error = refused(&side, &memory);
        assert!(matches!(error, Error::Register(RegisterError::GpuMemory { .. })), "{error}");
        assert!(error.to_string().contains("expandable_segments:False"), "{error}");
        assert_eq!(side.driver.bytes(pointer, FRAMES), [9; FRAMES], "it was cleared all the same");
        // Over a network no other process opens it.
        let side = Side::<Tcp>::new();
        let pointer = side.driver.memory(FRAMES);
        let memory = memory_with_owner(side.stream.gpu(), pointer, FRAMES, ());
        publisher(&side, options(&memory)).unwrap();
    }

    #[test]
    fn a_driver_that_passes_no_memory_on_is_told_of_on_either_side() {
        let without = || Arc::new(Scripted::new().without_sharing());
        let tells = |error: Error| {
            let error = error.to_string();
            for part in ["MIG", "WSL", "containers", "gpu_memory"] {
                assert!(error.contains(part), "{error}");
            }
        };
        let side = Side::<Shm>::on(without(), 0);
        tells(refused(&side, &allocate(&side).2));
        let lender = Lender::<Shm>::new();
        tells(connect(&lender.publisher.address(), &Side::<Shm>::on(without(), 0)).map(drop).unwrap_err());
        let Lender { publisher, is_freed, .. } = lender;
        drop(publisher);
        expect_soon("the memory is let go of", || is_freed.load(SeqCst));
    }

    #[test]
    fn a_relay_takes_no_memory_of_the_callers() {
        let lender = Lender::<Shm>::new();
        let (_, _, memory) = allocate(&lender.side);
        let (own, upstream) = (Address::random(), [lender.publisher.address()]);
        let relay = Relay::start(lender.side.transport.clone(), &upstream, &own, options(&memory), PATIENCE);
        let error = relay.map(drop).unwrap_err();
        assert!(matches!(error, Error::Option { option: "gpu_memory", .. }), "{error}");
    }

    #[test]
    fn after_each_failing_call_of_the_lenders_driver_the_next_reader_is_served() {
        for fail in Scripted::FAILURES {
            for call in 0.. {
                let side = Side::<Shm>::new();
                let (_, is_freed, memory) = allocate(&side);
                fail(&side.driver, call, crate::cuda::NOT_PERMITTED);
                let begun = publisher(&side, options(&memory));
                let begun = begun.or_else(|_| publisher(&side, options(&memory))).unwrap();
                let (publisher, into) = (begun.into_background().unwrap(), Side::<Shm>::new());
                let reader = connect(&publisher.address(), &into);
                let mut reader = reader.or_else(|_| connect(&publisher.address(), &into)).unwrap();
                pull(&mut reader, &into, Version::new(0)).unwrap();
                assert_eq!(into.bytes(), [0; BYTES], "call {call}");
                drop((publisher, memory));
                let has_failed = side.driver.has_failed();
                assert!(!is_freed.load(SeqCst), "call {call}: a reader has it open");
                drop(reader);
                into.driver.finish();
                drop(into);
                side.driver.finish();
                drop(side);
                expect_soon("the memory is let go of", || is_freed.load(SeqCst));
                if !has_failed {
                    assert!(call > 20, "only {call} calls");
                    break;
                }
            }
        }
    }

    #[test]
    fn after_each_failing_call_of_the_readers_driver_it_reads_what_is_lent() {
        for fail in Scripted::FAILURES {
            for call in 0.. {
                // It is not freed: a call that has opened it and fails all the same leaves it open.
                let side = Side::<Shm>::new();
                let (allocation, into) = (side.driver.memory(FRAMES), Side::<Shm>::new());
                side.driver.set_classic(allocation, PRIMARY);
                let memory = memory_with_owner(side.stream.gpu(), allocation, FRAMES, ());
                let publisher = publisher(&side, options(&memory)).unwrap().into_background().unwrap();
                fail(&into.driver, call, crate::cuda::NOT_PERMITTED);
                let read = || {
                    let mut reader = connect(&publisher.address(), &into)?;
                    pull(&mut reader, &into, Version::new(0))
                };
                let first = read();
                let has_failed = into.driver.has_failed();
                into.driver.fail(u32::MAX, crate::cuda::NOT_PERMITTED);
                read().unwrap();
                assert_eq!(into.bytes(), [0; BYTES], "call {call}");
                if !has_failed {
                    assert!(first.is_ok() && call > 10, "{call} calls");
                    break;
                }
            }
        }
    }
}
