//! The tests of the contract that need only one process, over a device that keeps no more order than it must; and
//! over payloads on a scripted GPU, which the device accesses directly or which are staged.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::tests::connect;
use super::Unordered;
use crate::mem::{Access, HostMemory, MemoryError};
use crate::transport::conformance as transport;
use crate::transport::conformance::fixture::Fixture;
use crate::transport::conformance::payloads::InHostMemory;
use crate::transport::verbs::Verbs;
use crate::transport::{Address, Offer, Transport};

/// The device takes its steps for as long as any part of the transport exists.
fn stepping(device: Unordered, verbs: Verbs) -> Verbs {
    let shared = std::sync::Arc::downgrade(&verbs.shared);
    std::thread::spawn(move || {
        while shared.strong_count() > 0 {
            if !device.step() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    });
    verbs
}

struct UnorderedFixture;

impl Fixture for UnorderedFixture {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "unordered";
    /// Every device numbers its keys from 1.
    const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
    /// The device allocates where an adapter does not.
    const ALLOCATES_NOTHING: bool = false;
    const ROUNDS: u64 = 2_000;

    /// A device of its own.
    fn transport() -> Verbs {
        let device = Unordered::new(0, false);
        let verbs = device.verbs(None);
        stepping(device, verbs)
    }

    fn address() -> Address {
        Address::Verbs((Ipv4Addr::LOCALHOST, 0).into())
    }
}

/// The same with all memory in dma-bufs. Files in memory stand for the dma-bufs: the device can map both.
struct InFiles;

impl Fixture for InFiles {
    type Transport = Verbs;
    type Payloads = InHostMemory;
    const MODULE: &'static str = "in_dma_bufs";
    const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
    const ALLOCATES_NOTHING: bool = false;
    const ROUNDS: u64 = 2_000;

    fn transport() -> Verbs {
        UnorderedFixture::transport().with_memory(in_file)
    }

    fn address() -> Address {
        UnorderedFixture::address()
    }
}

fn in_file(bytes: usize) -> Result<HostMemory, MemoryError> {
    let memory = HostMemory::shared(bytes)?;
    let file = memory.shared_file().map(|file| file.try_clone_to_owned().expect("a descriptor"));
    Ok(memory.known_as(file.expect("it can be shared")))
}

conformance!(unordered, super::UnorderedFixture, within one process);
conformance!(in_dma_bufs, super::InFiles, within one process);

#[cfg(feature = "cuda")]
mod on_gpus {
    use std::marker::PhantomData;
    use std::sync::Arc;

    use super::super::gpudirect::{Import, lingering};
    use super::{UnorderedFixture, stepping};
    use crate::cuda::{Gpu, Scripted};
    use crate::transport::conformance as transport;
    use crate::transport::conformance::fixture::Fixture;
    use crate::transport::conformance::payloads::Payloads;
    use crate::transport::conformance::{OnGpus, OnScriptedGpu, scripted_gpu};
    use crate::transport::verbs::Verbs;
    use crate::transport::verbs::unordered::Unordered;
    use crate::transport::{Address, Transport};

    impl OnScriptedGpu for Verbs {
        fn scripted_gpu(&self) -> Gpu {
            self.gpu.as_ref().expect("it has one").gpu.clone()
        }
    }

    /// The device registers memory of the GPU, and data that it writes there lingers until the GPU is flushed.
    struct Direct<P, const BY_DMA_BUF: bool>(PhantomData<P>);

    impl<P: Payloads<Verbs>, const BY_DMA_BUF: bool> Fixture for Direct<P, BY_DMA_BUF> {
        type Transport = Verbs;
        type Payloads = P;
        const MODULE: &'static str = "direct";
        const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
        const GRANTS_END_WITH_THEIR_PART: bool = false;
        const WRITTEN_MAY_BE_READ: bool = true;
        const ALLOCATES_NOTHING: bool = false;
        const ROUNDS: u64 = 120;
        const AHEAD: u64 = 1;
        const ADDS: u64 = 1_000;

        fn transport() -> Verbs {
            let import = if BY_DMA_BUF { Import::DmaBuf } else { Import::Peermem };
            let (device, driver) = lingering(import, 0);
            let (gpu, ..) = driver.open_gpu();
            let verbs = import.reach(&device, &driver, device.verbs(None), &gpu);
            assert!(verbs.gpu().is_some(), "the device does not reach the GPU");
            let shared = Arc::downgrade(&verbs.shared);
            driver.work_while(move |_| shared.strong_count() > 0);
            stepping(device, verbs)
        }

        fn address() -> Address {
            UnorderedFixture::address()
        }
    }

    conformance!(scripted_gpudirect, super::Direct<super::OnGpus<true, true>, true>, within one process);
    conformance!(
        scripted_gpudirect_by_peermem,
        super::Direct<super::OnGpus<true, true>, false>,
        within one process
    );
    conformance!(
        scripted_gpudirect_granted,
        super::Direct<super::OnGpus<true, false>, true>,
        within one process
    );
    conformance!(
        scripted_gpudirect_of_ones_own,
        super::Direct<super::OnGpus<false, true>, true>,
        within one process
    );

    /// Payloads of a GPU that the device does not access. The granted memory is then in host memory.
    struct Staged;

    impl Fixture for Staged {
        type Transport = Verbs;
        type Payloads = OnGpus<false, true>;
        const MODULE: &'static str = "staged";
        const KEYS_ARE_OF_ONE_CONNECTION: bool = false;
        const ALLOCATES_NOTHING: bool = false;
        const ROUNDS: u64 = 120;
        const AHEAD: u64 = 1;
        const ADDS: u64 = 1_000;

        fn transport() -> Verbs {
            let device = Unordered::new(0, false);
            let verbs = device.verbs(None).with_gpu(&scripted_gpu(Scripted::new(), 0));
            assert!(verbs.gpu().is_none(), "the device reaches the GPU");
            stepping(device, verbs)
        }

        fn address() -> Address {
            UnorderedFixture::address()
        }
    }

    conformance!(scripted_gpu_staged, super::Staged, within one process);
}

#[test]
fn memory_in_a_dma_buf_is_registered_as_one_by_owners_and_peers() {
    let device = Unordered::new(0, false);
    let verbs = device.verbs(None).with_memory(in_file);
    // For requests of this process, and for the requests of all readers.
    let frames = verbs.allocate(100, Access::REMOTE_READ).unwrap();
    assert_eq!((device.of_dma_bufs(), device.regions()), (2, 2));
    let slots = verbs.allocate(9000, Access::REMOTE_WRITE).unwrap();
    let before = device.of_dma_bufs();
    assert_eq!(before, 3);
    let offer = || Offer { message: Vec::new(), grants: vec![frames.whole(), slots.slice(4097, 8).unwrap()] };
    let ends = connect(&verbs, offer);
    assert_eq!(device.of_dma_bufs(), before + 2, "each end grants a part of the slots");
    drop((ends, frames, slots));
    assert_eq!(device.of_dma_bufs(), 0);
}
