//! The suite of the contract over payloads on scripted GPUs of one host.

use std::marker::PhantomData;

use crate::cuda::{Gpu, Scripted};
use crate::transport::conformance as transport;
use crate::transport::conformance::apart::Apart;
use crate::transport::conformance::fixture::Fixture;
use crate::transport::conformance::payloads::Payloads;
use crate::transport::conformance::{OnGpus, OnScriptedGpu, scripted_gpu};
use crate::transport::shm::Shm;
use crate::transport::{Address, Transport};

impl OnScriptedGpu for Shm {
    fn scripted_gpu(&self) -> Gpu {
        self.gpu().expect("it has one").clone()
    }
}

/// Each side has a GPU by a driver of its own, as two processes have; unless `REACHES`, clients have another GPU, which
/// does not reach that of the side that serves.
struct ScriptedShm<P, const REACHES: bool = true>(PhantomData<P>);

impl<P: Payloads<Shm>, const REACHES: bool> Fixture for ScriptedShm<P, REACHES> {
    type Transport = Shm;
    type Payloads = P;
    const MODULE: &'static str = "transport::shm::gpu::conformance::scripted_gpus";
    const ROUNDS: u64 = 120;
    const AHEAD: u64 = 1;
    const ADDS: u64 = 1_000;
    const GRANTS_END_WITH_THEIR_PART: bool = false;
    const ACCESS_VIOLATIONS_ARE_COUNTED: bool = false;
    const ALLOCATES_NOTHING: bool = false;

    fn transport() -> Shm {
        let gpu = match REACHES {
            true => scripted_gpu(Scripted::new(), 0),
            false => scripted_gpu(Scripted::new().with_two_devices(false), 1),
        };
        Shm::new().with_gpu(&gpu)
    }

    fn address() -> Address {
        Address::random()
    }

    fn transport_to_serve(_: &Shm) -> Shm {
        ScriptedShm::<P>::transport()
    }
}

conformance!(scripted_gpu_granted, super::ScriptedShm<super::OnGpus<true, false>>, within one process);
conformance!(scripted_gpu_of_ones_own, super::ScriptedShm<super::OnGpus<false, true>>, within one process);
conformance!(scripted_gpus, super::ScriptedShm<super::OnGpus<true, true>>);
conformance!(scripted_gpus_apart, super::Apart<super::ScriptedShm<super::OnGpus<true, true>>>, apart);
conformance!(
    scripted_gpus_without_peer_access,
    super::ScriptedShm<super::OnGpus<true, true>, false>,
    within one process
);
