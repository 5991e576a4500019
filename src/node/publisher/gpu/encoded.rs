//! Versions and gradients that a GPU rounds to halves, over the scripted driver: no GPU is needed, and none is tested.

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::{Publisher, PublisherOptions};
    use crate::clock::{Version, VersionTag};
    use crate::cuda::{GpuError, GpuMemory, Scripted};
    use crate::kernel::encode;
    use crate::mem::VolatileSlice;
    use crate::node::{Error, Reader, ReaderOptions, Server, ServerOptions, Wanted, Worker, WorkerOptions};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Encoding, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);
    const HALVES: [Encoding; 2] = [Encoding::Bf16, Encoding::F16];
    /// Odd, so that nothing ends where groups of elements do.
    const ELEMENTS: usize = 1001;

    /// Numbers of every kind, among them NaNs of several payloads, infinities, subnormals and ties.
    fn values() -> Vec<f32> {
        let odd = [0x7f80_0001, 0xffc0_1234, 0x7f80_0000, 0x0000_0001, 0x807f_ffff, 0x3f80_8000, 0x3f81_8000];
        let odd = odd.into_iter().chain([0x3300_0000, 0x477f_f000, 0x7f7f_ffff]).map(f32::from_bits);
        let plain = (0..).map(|index| (index as f32 * 0.37).sin() * 3.0);
        odd.chain(plain).take(ELEMENTS).collect()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn encoded(values: &[f32], encoding: Encoding) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * encoding.bytes()];
        encode(values, VolatileSlice::from_mut(&mut bytes), encoding);
        bytes
    }

    #[test]
    fn a_gpu_publishes_f32_as_the_halves_that_processors_make() {
        let weights_of = values();
        for (encoding, is_on_gpu) in HALVES.into_iter().flat_map(|half| [(half, false), (half, true)]) {
            let driver = Arc::new(Scripted::new());
            let (gpu, raw, stream) = driver.open_gpu();
            let transport = if is_on_gpu { Shm::new().with_gpu(&gpu) } else { Shm::new() };
            let making = driver.work_in_a_thread();
            // One byte more than the halves that begin at the second one.
            let table = Table::flat(2 * ELEMENTS as u64 + 3, ElementType::U8).unwrap();
            let publisher =
                Publisher::new(transport.clone(), &Address::random(), table, PublisherOptions::default());
            let publisher = publisher.unwrap().into_background().unwrap();
            let options = ReaderOptions::default();
            let mut reader = Reader::connect(transport, &publisher.address(), options, PATIENCE).unwrap();
            drop(making);
            let weights = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
            let computed = driver.memory(4 * ELEMENTS);
            driver.set_bytes(computed, &bytes(&weights_of));
            // The caller's stream computes the weights late.
            driver.launch_copy(raw, weights.pointer(), computed, 4 * ELEMENTS);
            let mut draft = publisher.draft(PATIENCE).unwrap();
            draft.encode_from_gpu(2, &weights.whole(), encoding, &stream).unwrap();
            let mut publishing = draft.commit_when_copied(VersionTag::default());
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(publisher.version(), Version::new(0), "it is not converted yet");
            let _working = driver.work_in_a_thread();
            let version = publishing.wait(PATIENCE).unwrap();
            let snapshot = reader.snapshot(Wanted::exactly(version), PATIENCE).unwrap();
            let expected = encoded(&weights_of, encoding);
            let is_same = snapshot.bytes()[2..][..expected.len()] == expected;
            assert!(is_same, "{encoding:?}, {is_on_gpu}: other halves than processors make");
        }
    }

    #[test]
    fn what_are_not_whole_aligned_elements_is_not_converted() {
        let driver = Arc::new(Scripted::new());
        let (gpu, _, stream) = driver.open_gpu();
        let table = Table::flat(16, ElementType::U8).unwrap();
        let publisher = Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default());
        let publisher = publisher.unwrap().into_background().unwrap();
        let weights = GpuMemory::allocate(&gpu, 64).unwrap();
        let mut draft = publisher.draft(PATIENCE).unwrap();
        for encoding in [Encoding::F32, Encoding::Bf16] {
            for (offset, begin, bytes) in [(1, 0, 4), (0, 2, 4), (0, 0, 6), (12, 0, 7), (0, 0, 3), (0, 0, 0)]
            {
                let from = weights.slice(begin, bytes).unwrap();
                let error = draft.encode_from_gpu(offset, &from, encoding, &stream).unwrap_err();
                assert!(matches!(error, Error::Gpu(GpuError::Elements { .. })), "{encoding:?}: {error}");
            }
        }
        let beyond = draft.encode_from_gpu(0, &weights.whole(), Encoding::F16, &stream).unwrap_err();
        assert!(matches!(beyond, Error::Bounds(_)), "{beyond}");
        assert!(!driver.work(), "nothing is under way");
    }

    #[test]
    fn each_call_that_fails_of_a_conversion_is_told_and_leaves_nothing() {
        for fail in Scripted::FAILURES {
            let (mut failures, mut told) = (0, 0);
            loop {
                let driver = Arc::new(Scripted::new());
                let (gpu, _, stream) = driver.open_gpu();
                let table = Table::flat(2 * ELEMENTS as u64, ElementType::U8).unwrap();
                let publisher =
                    Publisher::new(Shm::new(), &Address::random(), table, PublisherOptions::default());
                let publisher = publisher.unwrap().into_background().unwrap();
                let weights = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                fail(&driver, failures, crate::cuda::NOT_PERMITTED);
                let working = driver.work_in_a_thread();
                let outcome = || -> Result<Version, Error> {
                    let mut draft = publisher.draft(PATIENCE)?;
                    draft.encode_from_gpu(0, &weights.whole(), Encoding::F16, &stream)?;
                    draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)
                };
                let outcome = outcome();
                drop(working);
                driver.finish();
                drop((publisher, weights, stream, gpu));
                let has_failed = driver.has_failed();
                // Failures of calls that poll for the end of a conversion, or that free memory, are not reported.
                told += u32::from(outcome.is_err());
                if let Err(error) = &outcome {
                    let is_typed = matches!(error, Error::Gpu(GpuError::Driver { code: 800, .. }));
                    assert!(is_typed, "call {failures}: {error}");
                }
                assert!(driver.open() <= usize::from(has_failed), "call {failures}: {} left", driver.open());
                if !has_failed {
                    assert!(outcome.is_ok() && told > 10, "{told} of {failures} calls");
                    break;
                }
                failures += 1;
            }
        }
    }

    #[test]
    fn a_gradient_that_a_gpu_rounds_is_the_one_that_processors_round() {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        for encoding in [Encoding::F32, Encoding::Bf16, Encoding::F16] {
            let gradient: Vec<f32> = (0..ELEMENTS).map(|index| (index as f32 * 0.11).cos()).collect();
            let options = ServerOptions::new(SchemeConfig::Bsp, 1, -1.0);
            let mut server =
                Server::new(Shm::new(), &Address::random(), table.clone(), &[0.0; ELEMENTS], options)
                    .unwrap();
            let address = server.address();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let driver = Arc::new(Scripted::new());
                    let (gpu, _, stream) = driver.open_gpu();
                    let memory = GpuMemory::allocate(&gpu, 4 * ELEMENTS).unwrap();
                    driver.set_bytes(memory.pointer(), &bytes(&gradient));
                    let options = WorkerOptions { encoding, ..WorkerOptions::new(SchemeConfig::Bsp) };
                    let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
                    let mut step = worker.step(PATIENCE).unwrap();
                    let short = memory.slice(0, 4 * ELEMENTS - 4).unwrap();
                    let refused = step.encode_gradient_from_gpu(&short, &stream).unwrap_err();
                    assert!(matches!(refused, Error::Length { .. }), "{refused}");
                    step.encode_gradient_from_gpu(&memory.whole(), &stream).unwrap();
                    let _working = driver.work_in_a_thread();
                    step.publish(None, PATIENCE).unwrap();
                    worker.flush(PATIENCE).unwrap();
                });
                assert!(server.drive(|server| server.status().left == 1, PATIENCE).unwrap());
            });
            let mut expected = vec![0.0; ELEMENTS];
            crate::kernel::decode(
                VolatileSlice::from_ref(&encoded(&gradient, encoding)),
                encoding,
                &mut expected,
            );
            assert_eq!(server.parameters().unwrap(), expected, "{encoding:?}");
        }
    }
}
