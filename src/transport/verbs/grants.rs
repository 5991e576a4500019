//! The memory that one side grants, its keys on each rail, and the words that prove the writes into it.

use std::io;
use std::sync::Arc;

use super::VerbsShared;
use super::direct::VerbsGpu;
#[cfg(feature = "cuda")]
use super::direct::{GpuExport, readers};
use super::queue_pair::QueuePair;
use super::region::{ProtectionDomain, Registered};
use crate::cuda::GpuMemory;
use crate::mem::{Access, HostMemory, LocalSlice};
use crate::transport::{GpuGrant, Offer};

/// Memory to grant.
#[derive(Clone)]
pub(super) enum GrantedMemory {
    Host(LocalSlice),
    /// The whole GPU memory. Devices access it in the way that `gpu` describes.
    Gpu {
        memory: GpuMemory,
        access: Access,
        gpu: VerbsGpu,
    },
}

/// The grants of an offer, with the grants of GPU memory at their indices among them.
#[cfg(feature = "cuda")]
pub(super) fn grants_of(offer: &Offer, on_gpu: &[GpuGrant], gpu: Option<&VerbsGpu>) -> Vec<GrantedMemory> {
    let mut granted: Vec<_> = offer.grants.iter().cloned().map(GrantedMemory::Host).collect();
    for (GpuGrant { at, memory, access }, gpu) in on_gpu.iter().zip(std::iter::repeat(gpu).flatten()) {
        let memory = GrantedMemory::Gpu { memory: memory.clone(), access: *access, gpu: gpu.clone() };
        granted.insert((*at).min(granted.len()), memory);
    }
    granted
}

/// The grants of an offer.
#[cfg(not(feature = "cuda"))]
pub(super) fn grants_of(offer: &Offer, _: &[GpuGrant], _: Option<&VerbsGpu>) -> Vec<GrantedMemory> {
    offer.grants.iter().cloned().map(GrantedMemory::Host).collect()
}

impl GrantedMemory {
    /// The rights that the peer sees.
    pub(super) fn access(&self) -> Access {
        match self {
            GrantedMemory::Host(slice) => slice.region().access(),
            GrantedMemory::Gpu { access, .. } => *access,
        }
    }

    /// The first byte, counted from the start of the memory that the key names, and the length.
    pub(super) fn range(&self) -> (u64, u64) {
        match self {
            GrantedMemory::Host(slice) => (slice.offset() as u64, slice.len() as u64),
            GrantedMemory::Gpu { memory, .. } => (0, memory.bytes() as u64),
        }
    }
}

/// Memory that one peer was granted.
pub(super) struct Granted {
    pub(super) memory: GrantedMemory,
    /// The rights that the device gives the peer.
    pub(super) access: Access,
}

impl Granted {
    /// Whether the peer may only read the memory, by the rights that the peer sees: it chooses the queue pair of its
    /// READs by them.
    pub(super) fn is_read_only(&self) -> bool {
        self.memory.access().is_read_only()
    }
}

/// The key of granted memory on one rail.
pub(super) enum GrantKey {
    /// The key of a whole region that all peers may read.
    OfRegion(u32),
    /// The key of a registration for this peer, which ends with this value.
    OfPeer(Registered),
}

impl GrantKey {
    pub(super) fn remote_key(&self) -> u32 {
        match self {
            GrantKey::OfRegion(key) => *key,
            GrantKey::OfPeer(registered) => registered.remote_key(),
        }
    }
}

/// Memory that is about to be registered for one peer, on one rail after the other.
pub(super) struct Granting {
    pub(super) memory: GrantedMemory,
    pub(super) access: Access,
    /// GPU memory is exported once, even if several devices register it.
    #[cfg(feature = "cuda")]
    export: Option<GpuExport>,
}

impl Granting {
    pub(super) fn new(shared: &VerbsShared, memory: GrantedMemory) -> io::Result<Granting> {
        let access = match &memory {
            GrantedMemory::Host(_) => shared.served(memory.access()),
            // Words are never on a GPU, although a device would execute atomics there.
            GrantedMemory::Gpu { access, .. } => access.difference(Access::REMOTE_ATOMIC),
        };
        #[cfg(feature = "cuda")]
        let export = match &memory {
            GrantedMemory::Gpu { memory, access, gpu } if !access.is_read_only() => {
                gpu.gpu.expect_rdma_writes();
                gpu.registrations.as_ref().map(|registrations| registrations.export(memory)).transpose()?
            }
            _ => None,
        };
        Ok(Granting {
            memory,
            access,
            #[cfg(feature = "cuda")]
            export,
        })
    }

    /// The rights that the device of this rail gives the peer. All atomics of an owner's peers go through its first
    /// device: atomics of two devices are not atomic against each other.
    fn access_on(&self, rail: usize) -> Access {
        if rail == 0 { self.access } else { self.access.difference(Access::REMOTE_ATOMIC) }
    }

    /// The key on this rail. `domain` is the peer's own domain there.
    pub(super) fn key(
        &self,
        shared: &VerbsShared,
        rail: usize,
        domain: &Arc<ProtectionDomain>,
    ) -> io::Result<GrantKey> {
        match &self.memory {
            GrantedMemory::Host(slice) => self.key_of_host(shared, rail, domain, slice),
            #[cfg(feature = "cuda")]
            GrantedMemory::Gpu { memory, gpu, .. } => self.key_of_gpu(shared, rail, domain, memory, gpu),
            #[cfg(not(feature = "cuda"))]
            GrantedMemory::Gpu { memory, .. } => match *memory {},
        }
    }

    fn key_of_host(
        &self,
        shared: &VerbsShared,
        rail: usize,
        domain: &Arc<ProtectionDomain>,
        slice: &LocalSlice,
    ) -> io::Result<GrantKey> {
        let keys = slice.region().device_keys();
        let is_whole = slice.len() == slice.region().len() && keys.domain == shared.first().domain.serial;
        if let Some(readers) = keys.readers.filter(|_| is_whole) {
            return Ok(GrantKey::OfRegion(readers[rail]));
        }
        let is_read_only = slice.region().access().is_read_only();
        let domain = if is_read_only { &shared.rails[rail].read_domain } else { domain };
        // Peers name bytes by their offset in the region: no address of this process ever travels.
        let first = slice.offset() as u64;
        let (memory, part) = (slice.region().memory(), slice.offset()..slice.offset() + slice.len());
        Ok(GrantKey::OfPeer(Registered::of_host(domain, memory, part, first, self.access_on(rail))?))
    }

    #[cfg(feature = "cuda")]
    fn key_of_gpu(
        &self,
        shared: &VerbsShared,
        rail: usize,
        domain: &Arc<ProtectionDomain>,
        memory: &GpuMemory,
        gpu: &VerbsGpu,
    ) -> io::Result<GrantKey> {
        match (&gpu.registrations, &self.export) {
            (Some(_), Some(export)) => {
                // The peer may read the data that it has written, and the first word in any case: this READ proves
                // that its writes have arrived. Memory of this library itself is longer than a word.
                let (access, bytes) =
                    (self.access_on(rail) | Access::REMOTE_READ, memory.bytes().max(size_of::<u64>()));
                Ok(GrantKey::OfPeer(export.register(domain, bytes, 0, access)?))
            }
            (Some(registrations), None) => {
                Ok(GrantKey::OfRegion(readers(shared, registrations, memory)?[rail]))
            }
            (None, _) => Err(io::Error::other("no RDMA device reaches memory of the GPU")),
        }
    }
}

/// A pair to serve READs of memory that may only be read, if such memory was granted.
pub(super) fn to_serve_reads(
    shared: &VerbsShared,
    rail: usize,
    granting: &[Granting],
) -> io::Result<Option<QueuePair>> {
    let is_wanted = granting.iter().any(|granting| granting.memory.access().is_read_only());
    is_wanted.then(|| QueuePair::to_serve(&shared.rails[rail].read_domain, None)).transpose()
}

/// A word that a peer reads to prove that its earlier writes have arrived: a queue pair executes a READ after all
/// writes before it, and PCI Express does not let the READ pass them on their way into the same memory. So if the
/// peer writes payloads into memory of a GPU, the word is also in that memory.
pub(super) enum Sentinel {
    Own {
        // Dropped before the word.
        registered: Registered,
        _word: HostMemory,
    },
    /// The first word of granted memory, by the key of that memory.
    Granted(u32),
}

impl Sentinel {
    /// Makes the sentinel on a rail on which the peer has `domain`, and its granted memory has these keys.
    pub(super) fn new<'a>(
        domain: &Arc<ProtectionDomain>,
        granted: impl Iterator<Item = (&'a GrantedMemory, &'a GrantKey)>,
    ) -> io::Result<Sentinel> {
        let is_written_gpu = |memory: &GrantedMemory| {
            let is_on_gpu = matches!(memory, GrantedMemory::Gpu { .. });
            is_on_gpu && !memory.access().is_read_only() && !mutant!("sentinel_in_host_memory")
        };
        let mut granted = granted;
        if let Some((_, key)) = granted.find(|(memory, _)| is_written_gpu(memory)) {
            return Ok(Sentinel::Granted(key.remote_key()));
        }
        let word = HostMemory::anonymous(size_of::<u64>()).map_err(io::Error::other)?;
        Ok(Sentinel::Own {
            registered: Registered::new(domain, word.as_volatile(), 0, Access::REMOTE_READ)?,
            _word: word,
        })
    }

    pub(super) fn key(&self) -> u32 {
        match self {
            Sentinel::Own { registered, .. } => registered.remote_key(),
            Sentinel::Granted(key) => *key,
        }
    }
}
