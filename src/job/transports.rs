//! The transports of one process, and the addresses at which it listens.

#[cfg(feature = "verbs")]
mod rdma;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

#[cfg(feature = "verbs")]
pub use rdma::{Origins, SettingError, rdma_options, rdma_settings};

use super::JobError;
use super::error_report::ErrorReport;
use crate::channel::Secret;
#[cfg(feature = "cuda")]
use crate::cuda::Gpu;
use crate::diagnostic::Diagnostic;
#[cfg(feature = "cuda")]
use crate::transport::Transport;
use crate::transport::mixed::Mixed;
#[cfg(feature = "verbs")]
use crate::transport::verbs::Verbs;
use crate::transport::{Address, TransportKind};
#[cfg(not(feature = "verbs"))]
use crate::transport::{NotBuilt, absent::Absent as Verbs};
#[cfg(feature = "tcp")]
use crate::transport::{shm::Shm, tcp::Tcp};

/// The transports of one process of a job. RDMA is opened when it is first needed.
pub struct Transports {
    secret: Option<Secret>,
    /// This host's address as the others see it.
    ip: Option<IpAddr>,
    /// The number of this process in the job, which spreads the processes over the devices of a host.
    index: usize,
    /// The GPU that payloads are on, and whether the payloads that this process serves are to be there, too.
    #[cfg(feature = "cuda")]
    gpu: OnceLock<(Gpu, bool)>,
    /// RDMA, or the reason why there is none.
    rdma: OnceLock<Result<Verbs, NoRdma>>,
    /// The same with the GPU, once both are known.
    #[cfg(feature = "cuda")]
    rdma_of_gpu: OnceLock<Verbs>,
}

/// The reason why this process has no RDMA.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoRdma(ErrorReport);

impl NoRdma {
    fn of(error: &dyn Diagnostic) -> NoRdma {
        NoRdma(ErrorReport::of(error))
    }
}

impl Diagnostic for NoRdma {
    fn operation(&self) -> &'static str {
        "opening an RDMA device"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        self.0.remedy.as_deref().map(Cow::from)
    }
}

#[cfg(feature = "cuda")]
const STAGED_BY_RDMA: &str = "payloads on its GPU would be staged by RDMA, and GPUDirect is required";

const HAS_NO_GPU: &str = "does not map, as it has named no GPU";

#[cfg(feature = "cuda")]
const OUT_OF_REACH: &str = "its payloads are on a GPU, which its RDMA device does not reach";

impl Transports {
    /// The transports of process `index`, which others reach at `ip` (loopback if `None`).
    pub fn new(secret: Option<Secret>, ip: Option<IpAddr>, index: usize) -> Transports {
        Transports {
            secret,
            ip,
            index,
            #[cfg(feature = "cuda")]
            gpu: OnceLock::new(),
            rdma: OnceLock::new(),
            #[cfg(feature = "cuda")]
            rdma_of_gpu: OnceLock::new(),
        }
    }

    /// Puts payloads on a GPU from now on, unless they are on another one already. If the payloads that this process
    /// serves are to be there, the process has RDMA only if its devices reach that GPU.
    #[cfg(feature = "cuda")]
    pub(super) fn use_gpu(&self, gpu: &Gpu, serves_from_there: bool) {
        let (taken, _) = self.gpu.get_or_init(|| (gpu.clone(), serves_from_there));
        if taken.ordinal() != gpu.ordinal() {
            tracing::warn!(
                taken = taken.ordinal(),
                named = gpu.ordinal(),
                "a job has one GPU in a process: the first one"
            );
        }
    }

    /// Opens RDMA at the first call, with the settings of [`rdma_options`], and says why this process has none.
    pub fn rdma(&self) -> Result<(), NoRdma> {
        #[cfg(feature = "verbs")]
        let open = || rdma::open(self.secret.clone(), self.ip, self.index, self.gpu_address());
        #[cfg(not(feature = "verbs"))]
        let open = || Err(NoRdma::of(&NotBuilt { transport: TransportKind::Verbs }));
        self.rdma.get_or_init(open).as_ref().map_err(NoRdma::clone)?;
        self.rdma_for_payloads().map(|_| ())
    }

    /// The UUID of the GPU that this process serves payloads from, if they are on one.
    pub(super) fn serves_from(&self) -> Option<[u8; 16]> {
        #[cfg(feature = "cuda")]
        return self.open().gpu().and_then(|gpu| gpu.uuid().ok());
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// Whether this process maps memory of the GPU of this UUID, or the reason why not.
    pub(super) fn maps(&self, uuid: &[u8; 16]) -> Result<(), String> {
        let number: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        #[cfg(feature = "cuda")]
        let why = match self.gpu.get() {
            Some((gpu, _)) if gpu.sees(uuid) => return Ok(()),
            Some(_) => "does not see (CUDA_VISIBLE_DEVICES)",
            None => HAS_NO_GPU,
        };
        #[cfg(not(feature = "cuda"))]
        let why = HAS_NO_GPU;
        Err(format!("its payloads are on the GPU {number}, which this process {why}"))
    }

    /// The address of the GPU on the PCI bus.
    #[cfg(feature = "verbs")]
    fn gpu_address(&self) -> Option<String> {
        #[cfg(feature = "cuda")]
        return self.gpu.get().and_then(|(gpu, _)| Some(gpu.properties().ok()?.pci_address));
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// RDMA, if it was opened and serves payloads where they are to be.
    fn rdma_for_payloads(&self) -> Result<Option<&Verbs>, NoRdma> {
        let rdma = self.rdma.get().and_then(|rdma| rdma.as_ref().ok());
        #[cfg(feature = "cuda")]
        if let (Some(rdma), Some((gpu, serves_from_there))) = (rdma, self.gpu.get()) {
            let rdma = self.rdma_of_gpu.get_or_init(|| with_gpu(rdma, gpu));
            if rdma.gpu().is_some() || !(gpu.requires_gpudirect() || *serves_from_there) {
                return Ok(Some(rdma));
            }
            let (cause, remedy) = match gpu.requires_gpudirect() {
                true => {
                    (STAGED_BY_RDMA, "put the processes on one host, or leave `Gpu::require_gpudirect` out")
                }
                false => (OUT_OF_REACH, "use shared memory or TCP, or have this process name no GPU"),
            };
            let remedy = format!("{remedy}; `slackline doctor` says what the device and the GPU lack");
            return Err(NoRdma(ErrorReport { remedy: Some(remedy), ..ErrorReport::of_cause(cause) }));
        }
        Ok(rdma)
    }

    /// Uses this transport for RDMA instead of the host's devices.
    #[cfg(all(test, feature = "tcp", feature = "verbs"))]
    pub(super) fn use_rdma(&self, verbs: Verbs) {
        assert!(self.rdma.set(Ok(verbs)).is_ok(), "before it is opened");
    }

    /// The transports that were opened so far, side by side.
    pub fn open(&self) -> Mixed {
        #[cfg(not(feature = "tcp"))]
        let mixed = Mixed::default();
        #[cfg(feature = "tcp")]
        let mixed = Mixed::new(Shm::new(), self.secret.clone().map_or_else(Tcp::new, Tcp::with_secret));
        #[cfg(feature = "cuda")]
        let mixed = match self.gpu.get() {
            Some((gpu, _)) => mixed.with_gpu(gpu),
            None => mixed,
        };
        self.rdma_for_payloads().ok().flatten().cloned().into_iter().fold(mixed, Mixed::with_verbs)
    }

    /// True if TCP would stage payloads that may not be.
    fn passes_tcp_over(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.gpu.get().is_some_and(|(gpu, _)| gpu.requires_gpudirect());
        #[cfg(not(feature = "cuda"))]
        false
    }

    /// The address at which an owner listens that is reached over `kinds`. A transport that this process lacks is left
    /// out, unless it is the only one.
    pub fn listen_at(&self, kinds: &[TransportKind]) -> Result<Address, JobError> {
        let socket = SocketAddr::new(self.ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0);
        let mut addresses = Vec::new();
        for kind in kinds {
            match kind {
                TransportKind::Shm => addresses.push(Address::random()),
                TransportKind::Tcp => match kind.check_built() {
                    Ok(()) if kinds.len() > 1 && self.passes_tcp_over() => {
                        tracing::info!(
                            "not reached over TCP: payloads on its GPU would be staged, and GPUDirect is required"
                        );
                    }
                    Ok(()) => addresses.push(Address::Tcp(socket)),
                    Err(error) if kinds.len() == 1 => return Err(error.into()),
                    Err(error) => tracing::info!(%error, "not reached over TCP"),
                },
                TransportKind::Verbs => match self.rdma() {
                    Ok(()) => addresses.push(Address::Verbs(socket)),
                    Err(error) if kinds.len() == 1 => return Err(error.into()),
                    Err(error) => tracing::info!(%error, "not reached by RDMA"),
                },
            }
        }
        Ok(if addresses.len() == 1 { addresses.remove(0) } else { Address::Several(addresses) })
    }
}

#[cfg(all(feature = "cuda", feature = "verbs"))]
fn with_gpu(rdma: &Verbs, gpu: &Gpu) -> Verbs {
    rdma.clone().with_gpu(gpu)
}

#[cfg(all(feature = "cuda", not(feature = "verbs")))]
fn with_gpu(rdma: &Verbs, _: &Gpu) -> Verbs {
    rdma.clone()
}

/// Lists the addresses of a listener, which may have one for each transport.
pub fn flatten(address: Address) -> Vec<Address> {
    match address {
        Address::Several(addresses) => addresses,
        one => vec![one],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_that_is_required_and_missing_is_an_error_and_otherwise_left_out() {
        let transports = Transports::new(None, None, 0);
        if transports.rdma().is_err() {
            let Err(error) = transports.listen_at(&[TransportKind::Verbs]) else { panic!("there is none") };
            let remedy = error.remedy().expect("the user is told what to do").into_owned();
            assert!(error.to_string().ends_with(&remedy), "{error}");
            let Ok(Address::Several(addresses)) = transports.listen_at(&TransportKind::ALL) else {
                panic!("two addresses")
            };
            assert_eq!(addresses.len(), 2);
        }
    }
}
