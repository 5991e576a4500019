//! Transports that take a GPU, for tests that hold over each of them.

#[cfg(all(test, feature = "verbs"))]
pub(super) use tests::GpuDirect;
#[cfg(test)]
pub(super) use tests::{OfGpu, over_each_transport, over_gpudirect, over_rdma};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::cuda::{Gpu, Scripted};
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, Transport};

    /// A transport that takes a GPU.
    pub(in crate::node) trait OfGpu: Transport + Clone {
        /// The name of the transport and of the module with its tests.
        const NAME: &'static str;
        /// Payloads of a GPU go through blocks of host memory.
        const IS_STAGED: bool;
        /// An owner with a GPU has its payloads there.
        const SERVES_FROM_GPU: bool = true;

        /// A driver of a GPU for it.
        fn driver() -> Arc<Scripted> {
            Arc::new(Scripted::new())
        }

        fn without() -> Self;
        fn with(gpu: &Gpu) -> Self;
        fn address() -> Address;
    }

    impl OfGpu for Shm {
        const NAME: &'static str = "shm";
        const IS_STAGED: bool = false;

        fn without() -> Self {
            Shm::new()
        }

        fn with(gpu: &Gpu) -> Self {
            Shm::new().with_gpu(gpu)
        }

        fn address() -> Address {
            Address::random()
        }
    }

    impl OfGpu for Tcp {
        const NAME: &'static str = "tcp";
        const IS_STAGED: bool = true;

        fn without() -> Self {
            Tcp::new()
        }

        fn with(gpu: &Gpu) -> Self {
            Tcp::new().with_gpu(gpu)
        }

        fn address() -> Address {
            "127.0.0.1:0".parse().expect("an address")
        }
    }

    #[cfg(feature = "verbs")]
    impl OfGpu for crate::transport::verbs::Verbs {
        const NAME: &'static str = "verbs";
        const IS_STAGED: bool = true;
        const SERVES_FROM_GPU: bool = false;

        /// Over one device, scripted or of a guest: a scripted one connects no others.
        fn without() -> Self {
            crate::transport::verbs::unordered::common()
        }

        fn with(gpu: &Gpu) -> Self {
            Self::without().with_gpu(gpu)
        }

        fn address() -> Address {
            Address::Verbs(([127, 0, 0, 1], 0).into())
        }
    }

    /// Tests of these names by RDMA within one process, with payloads of owners in host memory: over a scripted device,
    /// and in a guest (`cargo xtask softroce gpu`) over soft-RoCE.
    macro_rules! over_rdma {
        ($($name:ident),* $(,)?) => {
            #[cfg(feature = "verbs")]
            mod verbs {
                $(#[test] fn $name() { super::$name::<crate::transport::verbs::Verbs>() })*
            }
        };
    }
    pub(in crate::node) use over_rdma;

    /// RDMA whose device reaches memory of GPUs itself.
    #[cfg(feature = "verbs")]
    mod gpudirect {
        use super::*;
        use crate::cuda::GpuMemory;
        use crate::mem::{Access, HostMemory, MemoryRegion};
        use crate::transport::verbs::{Verbs, VerbsConnecting, VerbsEndpoint, VerbsListener, unordered};
        use crate::transport::{Capabilities, ConnectError, Doorbell, Offer, RegisterError};

        #[derive(Clone)]
        pub(in crate::node) struct GpuDirect(Verbs);

        impl Transport for GpuDirect {
            type Endpoint = VerbsEndpoint;
            type Listener = VerbsListener;
            type Connecting = VerbsConnecting;

            fn capabilities(&self) -> Capabilities {
                self.0.capabilities()
            }

            fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
                self.0.register(memory, access)
            }

            fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
                self.0.allocate(bytes, access)
            }

            fn gpu(&self) -> Option<&Gpu> {
                self.0.gpu()
            }

            fn register_on_gpu(&self, memory: &GpuMemory) -> Result<(), RegisterError> {
                self.0.register_on_gpu(memory)
            }

            fn listen(&self, address: &Address) -> Result<VerbsListener, ConnectError> {
                self.0.listen(address)
            }

            fn connect(&self, address: &Address, offer: Offer) -> Result<VerbsConnecting, ConnectError> {
                self.0.connect(address, offer)
            }

            fn connect_to_be_woken(
                &self,
                address: &Address,
                offer: Offer,
                doorbell: &Arc<Doorbell>,
            ) -> Result<VerbsConnecting, ConnectError> {
                self.0.connect_to_be_woken(address, offer, doorbell)
            }
        }

        impl OfGpu for GpuDirect {
            const NAME: &'static str = "gpudirect";
            const IS_STAGED: bool = false;

            /// The writes of its device to the GPU linger, and are visible after a flush.
            fn driver() -> Arc<Scripted> {
                let driver = Scripted::new().with_dma_bufs();
                driver.set_flush(Some(unordered::lingering().flush()));
                Arc::new(driver)
            }

            fn without() -> Self {
                GpuDirect(unordered::lingering().verbs(None))
            }

            fn with(gpu: &Gpu) -> Self {
                GpuDirect(Self::without().0.with_gpu(gpu))
            }

            fn address() -> Address {
                Address::Verbs(([127, 0, 0, 1], 0).into())
            }
        }
    }
    #[cfg(feature = "verbs")]
    pub(in crate::node) use gpudirect::GpuDirect;

    /// Tests of these names by RDMA within one process, with payloads of owners on a GPU that the scripted device
    /// reaches.
    macro_rules! over_gpudirect {
        ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
            #[cfg(feature = "verbs")]
            mod gpudirect {
                $(#[test] $(#[$attribute])* fn $name() { super::$name::<crate::node::of_gpu::GpuDirect>() })*
            }
        };
    }
    pub(in crate::node) use over_gpudirect;

    /// Tests of these names over each transport.
    macro_rules! over_each_transport {
        ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
            mod shm {
                $(#[test] $(#[$attribute])* fn $name() { super::$name::<crate::transport::shm::Shm>() })*
            }
            mod tcp {
                $(#[test] $(#[$attribute])* fn $name() { super::$name::<crate::transport::tcp::Tcp>() })*
            }
        };
    }
    pub(in crate::node) use over_each_transport;
}
