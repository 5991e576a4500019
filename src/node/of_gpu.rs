//! Transports that take a GPU, for tests that hold over each of them.

#[cfg(test)]
pub(super) use tests::{OfGpu, over_each_transport, over_rdma};

#[cfg(test)]
mod tests {
    use crate::cuda::Gpu;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, Transport};

    /// A transport that takes a GPU.
    pub(in crate::node) trait OfGpu: Transport + Clone {
        /// The transport's name, and that of the module with its tests.
        const NAME: &'static str;
        /// Payloads of a GPU go through blocks of host memory.
        const IS_STAGED: bool;
        /// An owner with a GPU has its payloads there.
        const SERVES_FROM_GPU: bool = true;

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
