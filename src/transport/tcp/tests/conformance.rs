//! The suite of the contract over payloads on scripted GPUs, which go through blocks of host memory on either side.

use std::marker::PhantomData;
use std::net::Ipv4Addr;

use crate::channel::Secret;
use crate::cuda::{Gpu, Scripted};
use crate::transport::conformance as transport;
use crate::transport::conformance::apart::Apart;
use crate::transport::conformance::fixture::Fixture;
use crate::transport::conformance::payloads::Payloads;
use crate::transport::conformance::{OnGpus, OnScriptedGpu, scripted_gpu};
use crate::transport::tcp::Tcp;
use crate::transport::{Address, Transport};

impl OnScriptedGpu for Tcp {
    fn scripted_gpu(&self) -> Gpu {
        self.gpu().expect("it has one").clone()
    }
}

/// Each side has a GPU by a driver of its own, as two processes have. Records may be encrypted.
struct ScriptedTcp<P, const ENCRYPTS: bool>(PhantomData<P>);

impl<P: Payloads<Tcp>, const ENCRYPTS: bool> Fixture for ScriptedTcp<P, ENCRYPTS> {
    type Transport = Tcp;
    type Payloads = P;
    const MODULE: &'static str = "transport::tcp::tests::conformance::scripted_gpus";
    const ROUNDS: u64 = 120;
    const AHEAD: u64 = 1;
    const ADDS: u64 = 1_000;
    const GRANTS_END_WITH_THEIR_PART: bool = false;
    const ALLOCATES_NOTHING: bool = false;

    fn transport() -> Tcp {
        let tcp = match ENCRYPTS {
            true => {
                let secret =
                    Secret::from_text("the secret of both sides", "this test").expect("it is long enough");
                Tcp::with_secret(secret.encrypting())
            }
            false => Tcp::new(),
        };
        tcp.with_gpu(&scripted_gpu(Scripted::new(), 0))
    }

    fn address() -> Address {
        Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())
    }

    fn transport_to_serve(_: &Tcp) -> Tcp {
        Self::transport()
    }
}

conformance!(
    scripted_gpu_granted,
    super::ScriptedTcp<super::OnGpus<true, false>, false>,
    within one process
);
conformance!(
    scripted_gpu_of_ones_own,
    super::ScriptedTcp<super::OnGpus<false, true>, false>,
    within one process
);
conformance!(scripted_gpus, super::ScriptedTcp<super::OnGpus<true, true>, false>);
conformance!(scripted_gpus_apart, super::Apart<super::ScriptedTcp<super::OnGpus<true, true>, false>>, apart);
conformance!(
    scripted_gpus_encrypted,
    super::ScriptedTcp<super::OnGpus<true, true>, true>,
    within one process
);
