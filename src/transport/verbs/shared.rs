//! The state that all connections of one process over its RDMA devices share: the rails, and the memory that is
//! registered on them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::INHERITED;
use super::hearing::Hearing;
use super::initiator::Initiator;
use super::queue_pair::QueuePair;
use super::rail::Rail;
use super::region::Registered;
use super::unanswered::UnansweredWays;
use crate::channel;
use crate::channel::{Purpose, Secret};
#[cfg(feature = "cuda")]
use crate::cuda::RegisteredMemory;
use crate::mem::{Access, DeviceKeys, HostMemory, MAX_RAILS, MemoryRegion};
use crate::transport::{Address, AtomicDomain, ConnectError, RegisterError, wireup};

/// The state that all connections of one [`Verbs`] share.
pub(super) struct VerbsShared {
    /// The ports that are used in parallel: at least one.
    pub(super) rails: Vec<Rail>,
    pub(super) queue_depth: usize,
    pub(super) inline_bytes: u32,
    pub(super) first_packet: Option<u32>,
    pub(super) atomics: AtomicDomain,
    /// The fault that the trial of the atomics found.
    pub(super) atomics_fault: Option<String>,
    pub(super) secret: Option<Secret>,
    pub(super) access_violations: AtomicU64,
    /// Rails that connections have lost.
    pub(super) rails_lost: AtomicU64,
    pub(super) unanswered: UnansweredWays,
    pub(super) hearing: Arc<Hearing>,
    /// Memory of GPUs that is registered in the domains of these rails.
    #[cfg(feature = "cuda")]
    pub(super) on_gpus: RegisteredMemory,
}

/// Rounds down to a power of two: devices round such numbers up, and would post more than the other side serves.
pub(super) fn power_of_two_below(number: u8) -> u8 {
    number.checked_ilog2().map_or(0, |log| 1 << log)
}

/// Returns a remedy for memory that could not be registered.
pub(super) fn registration_remedy(error: &io::Error) -> String {
    remedy_within(rustix::process::getrlimit(rustix::process::Resource::Memlock).current, error)
}

/// The same with this limit on locked memory in bytes, if there is one.
pub(super) fn remedy_within(limit: Option<u64>, error: &io::Error) -> String {
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM | libc::EAGAIN), None) => {
            "the device or the host has no room for more registrations: register less, or free regions (see the row \
             `room` of `slackline doctor`)"
                .into()
        }
        (Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM), Some(bytes)) => format!(
            "the limit on locked memory is {} KiB: raise it (ulimit -l unlimited, systemd: LimitMEMLOCK=infinity, \
             Slurm: PropagateResourceLimitsExcept=MEMLOCK)",
            bytes / 1024
        ),
        (Some(libc::EFAULT), _) => "the memory is not all mapped for writing".into(),
        (Some(libc::EOPNOTSUPP), _) => "the device cannot register memory of this kind".into(),
        _ => "see the kernel's log (dmesg), and `slackline doctor`".into(),
    }
}

impl VerbsShared {
    /// The first rail. In the keys of memory, its domain stands for the domains of all rails. Atomics go through its
    /// device.
    pub(super) fn first(&self) -> &Rail {
        &self.rails[0]
    }

    /// Returns the rights that peers get out of `access`: without atomics if the first device's atomics do not work.
    pub(super) fn served(&self, access: Access) -> Access {
        match self.atomics {
            AtomicDomain::None => access.difference(Access::REMOTE_ATOMIC),
            AtomicDomain::Device | AtomicDomain::Host => access,
        }
    }

    /// A state for trials: the first device with the atomics that it reports, its domain and the settings, without
    /// the secret and the count.
    pub(super) fn fresh(&self) -> VerbsShared {
        VerbsShared {
            rails: vec![self.first().clone()],
            atomics: self.first().info.limits.atomics,
            atomics_fault: None,
            secret: None,
            access_violations: AtomicU64::new(0),
            rails_lost: AtomicU64::new(0),
            unanswered: UnansweredWays::default(),
            hearing: Arc::clone(&self.hearing),
            #[cfg(feature = "cuda")]
            on_gpus: RegisteredMemory::new(self.first().domain.serial),
            ..*self
        }
    }

    /// Longest single request for every device, in bytes.
    pub(super) fn piece_bytes(&self) -> usize {
        self.rails.iter().map(Rail::piece_bytes).min().unwrap_or(1)
    }

    /// Makes a queue pair for posting `depth` requests through one of the rails, and its memory. Its queue has room
    /// for `room` device requests.
    pub(super) fn initiator(&self, rail: usize, depth: usize, room: usize) -> io::Result<Initiator> {
        let at = &self.rails[rail];
        let pair = QueuePair::to_post(&at.domain, room as u32, self.inline_bytes, self.first_packet)?;
        let memory = HostMemory::anonymous(Initiator::cells_bytes(room)).map_err(io::Error::other)?;
        let cells = self.register(memory, Access::LOCAL)?;
        let mut initiator = Initiator::new(pair, &self.first().domain, cells, depth, self.piece_bytes());
        initiator.rail = rail;
        // A port that is named several times is shared by as many rails.
        let is_same =
            |other: &&Rail| (&other.info.name, other.port.number) == (&at.info.name, at.port.number);
        initiator.speed = at.speed() / self.rails.iter().filter(is_same).count() as u32;
        initiator.gives_up_after = at.settings.gives_up_after();
        initiator.has_atomics = self.atomics != AtomicDomain::None && rail == 0;
        // Soft-RoCE never retransmits a READ with a fence: at the second try the READ counts itself among the READs
        // for which it must wait, and this wait never ends. Soft-RoCE executes requests one after the other even
        // without a fence.
        initiator.fences_reads = !at.info.is_soft_roce;
        Ok(initiator)
    }

    /// Registers memory for requests of this process, and for READs of all peers if they may do nothing else.
    pub(super) fn register(&self, memory: HostMemory, access: Access) -> io::Result<MemoryRegion> {
        self.register_on_rails(memory, access).map_err(|(_, error)| error)
    }

    /// The same for the user: the error names the device that refused.
    pub(super) fn register_or_tell(
        &self,
        memory: HostMemory,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let bytes = memory.len();
        self.register_on_rails(memory, access).map_err(|(rail, source)| {
            let (device, remedy) = (rail.info.name.clone(), registration_remedy(&source));
            RegisterError::Device { bytes, device, source, remedy }
        })
    }

    pub(super) fn register_on_rails(
        &self,
        memory: HostMemory,
        access: Access,
    ) -> Result<MemoryRegion, (&Rail, io::Error)> {
        if self.is_inherited() {
            return Err((self.first(), io::Error::other(INHERITED)));
        }
        // No peer accesses the memory by this registration: peers need a registration in the domain of the readers or
        // of one peer. The device only writes answers to READs and atomics here, and no thread reads them before
        // their completion.
        let own = Access::RELAXED;
        let (first, all) = (memory.as_volatile().as_ptr().expose_provenance() as u64, 0..memory.len());
        let mut keys = DeviceKeys { domain: self.first().domain.serial, ..DeviceKeys::NONE };
        let mut registered = Vec::with_capacity(2 * self.rails.len());
        for (rail, key) in self.rails.iter().zip(&mut keys.local) {
            let here = Registered::of_host(&rail.domain, &memory, all.clone(), first, own);
            let here = here.map_err(|error| (rail, error))?;
            *key = here.local_key();
            registered.push(here);
        }
        if access.is_read_only() {
            let readers = keys.readers.insert([0; MAX_RAILS]);
            for (rail, key) in self.rails.iter().zip(readers) {
                // Peers name bytes by their offset in the region: no address of this process ever travels.
                let here = Registered::of_host(&rail.read_domain, &memory, all.clone(), 0, access);
                let here = here.map_err(|error| (rail, error))?;
                *key = here.remote_key();
                registered.push(here);
            }
        }
        Ok(MemoryRegion::new(memory, access, keys, registered))
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.rails.iter().any(|rail| rail.device.is_inherited())
    }

    /// Takes the events of the devices and of the peers' conversations, without waiting, from time to time and for
    /// all connections at once. Returns the rails whose devices are gone, a bit for each.
    pub(super) fn look(&self) -> u8 {
        if self.hearing.is_due() {
            self.rails.iter().for_each(|rail| rail.device.take_events());
            self.hearing.listen();
        }
        let gone = |(index, rail): (usize, &Rail)| u8::from(rail.device.is_gone()) << index;
        self.rails.iter().enumerate().map(gone).fold(0, |all, rail| all | rail)
    }

    /// Checks that this is not a forked child, which must not use the parent's device.
    pub(super) fn check_own(&self, operation: &'static str, address: &Address) -> Result<(), ConnectError> {
        if !self.is_inherited() {
            return Ok(());
        }
        let (address, source) = (address.clone(), io::Error::other(INHERITED));
        Err(ConnectError::System {
            operation,
            address,
            source,
            remedy: "open the device in the child itself",
        })
    }

    pub(super) fn terms(&self) -> channel::ChannelTerms {
        let terms = channel::ChannelTerms::new(Purpose::Verbs);
        channel::ChannelTerms { secret: self.secret.clone(), limit: wireup::LIMIT, ..terms }
    }
}
