//! The suite of the contract (`tests/transport/`) over scripted devices, and over payloads on scripted GPUs: no adapter
//! and no GPU is needed, and none is tested.
#![allow(dead_code, reason = "without a feature, what only its transport uses lies idle")]

#[macro_use]
#[path = "../../tests/transport/suite.rs"]
mod suite;

#[path = "../../tests/transport/apart.rs"]
pub(super) mod apart;
#[path = "../../tests/transport/fixture.rs"]
pub(super) mod fixture;
#[path = "../../tests/transport/handshake.rs"]
pub(super) mod handshake;
#[path = "../../tests/transport/here.rs"]
mod here;
#[path = "../../tests/transport/ordering.rs"]
pub(super) mod ordering;
#[path = "../../tests/transport/payloads.rs"]
pub(super) mod payloads;
#[path = "../../tests/transport/process.rs"]
mod process;
#[path = "../../tests/transport/requests.rs"]
pub(super) mod requests;
#[path = "../../tests/transport/rights.rs"]
pub(super) mod rights;
#[path = "../../tests/transport/server.rs"]
mod server;
#[path = "../../tests/transport/service.rs"]
mod service;

#[cfg(feature = "cuda")]
pub(super) use on_gpus::{OnGpus, OnScriptedGpu, scripted_gpu};

#[cfg(feature = "cuda")]
mod on_gpus {
    use std::sync::Arc;

    use super::fixture::bytes_of;
    use super::payloads::Payloads;
    use crate::cuda::{Gpu, GpuMemory, Scripted};
    use crate::mem::Access;
    use crate::transport::{PayloadMemory, PayloadSlice, RegisterError, Transport};

    /// A transport that has a scripted GPU.
    pub(in crate::transport) trait OnScriptedGpu: Transport {
        fn scripted_gpu(&self) -> Gpu;
    }

    /// Payloads on scripted GPUs: the granted payloads, the payloads of the own side, or both.
    pub(in crate::transport) struct OnGpus<const GRANTED: bool, const OWN: bool>;

    impl<T: OnScriptedGpu, const GRANTED: bool, const OWN: bool> Payloads<T> for OnGpus<GRANTED, OWN> {
        const ARE_GRANTED_ON_A_GPU: bool = GRANTED;

        fn granted(transport: &T, bytes: usize, access: Access) -> Result<PayloadMemory, RegisterError> {
            if GRANTED {
                let memory = GpuMemory::allocate(&transport.scripted_gpu(), bytes).expect("room on the GPU");
                Scripted::of(&memory.whole()).set_bytes(memory.pointer(), &vec![0; bytes]);
                return Ok(PayloadMemory::Gpu(memory));
            }
            transport.allocate(bytes, access).map(PayloadMemory::Host)
        }

        fn own(transport: &T, bytes: usize) -> PayloadMemory {
            if OWN {
                let memory = GpuMemory::allocate(&transport.scripted_gpu(), bytes).expect("room on the GPU");
                return PayloadMemory::Gpu(memory);
            }
            transport.allocate(bytes, Access::LOCAL).expect("allocate").into()
        }

        fn see(transport: &T) {
            transport.scripted_gpu().see_rdma_writes().expect("a flush");
        }

        fn set(slice: &PayloadSlice, bytes: &[u8]) {
            match slice {
                PayloadSlice::Host(slice) => slice.as_volatile().write(bytes),
                PayloadSlice::Gpu(slice) => Scripted::of(slice).set_bytes(slice.pointer(), bytes),
            }
        }

        /// Without a copy by the GPU, which would come behind the copies under way.
        fn bytes(slice: &PayloadSlice) -> Vec<u8> {
            match slice {
                PayloadSlice::Host(slice) => bytes_of(slice),
                PayloadSlice::Gpu(slice) => Scripted::of(slice).bytes(slice.pointer(), slice.bytes()),
            }
        }
    }

    /// A GPU of this driver, which works for as long as anything uses it.
    pub(in crate::transport) fn scripted_gpu(driver: Scripted, ordinal: u32) -> Gpu {
        let driver = Arc::new(driver);
        let (gpu, ..) = driver.open_gpu_at(ordinal);
        driver.work_while(|driver| Arc::strong_count(driver) > 1);
        gpu
    }
}
