//! The settings of a publisher.

use std::ffi::c_char;
use std::ptr::null;
use std::time::Duration;

use slackline::gpu::GpuMemory;
use slackline::weights::{DeltaOptions, PublisherOptions};
use slackline::{ShardOptions, Version};

use super::values::{idle, milliseconds, slackline_idle};
use crate::error::Failure;
use crate::gpu::{Taken, expect_none, slackline_gpu, slackline_gpu_range};
use crate::sized::Measured;

/// Settings of a publisher. Set `size`, call `slackline_publisher_options_init`, then change fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_publisher_options {
    /// `sizeof(struct slackline_publisher_options)`.
    pub size: usize,
    /// Most readers at a time; by default 64.
    pub peers: u16,
    /// Frames of memory, each one version long: readers that pin different versions, plus 2. By default 3.
    pub frames: u8,
    /// Not 0: each version carries a checksum. By default 0.
    pub checksums: u8,
    /// Bytes that are copied and announced at a time, a multiple of 64; by default 1 MiB.
    pub chunk_bytes: u64,
    /// The time in milliseconds after which a silent reader is taken for dead; by default 3000.
    pub lease_ms: u64,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// One of `enum slackline_idle`; by default it polls.
    pub idle: u64,
    /// Not 0: a thread of the library looks after the readers, so that no call has to. By default 0.
    pub background: u64,
    /// The version at which it begins, all zeros; by default 0. The successor of a publisher that is lost begins at
    /// that one's last version.
    pub begin_at: u64,
    /// The number of differences between successive versions that are kept for readers which hold an older version, at
    /// most 255; by default 0. Readers use them by themselves.
    pub deltas: u64,
    /// Most bytes of one difference: a version that differs by more is read whole. By default 0, which stands for a
    /// sixteenth of the table.
    pub delta_bytes: u64,
    /// The name of the table, UTF-8 and a zero, by which readers ask for it; of a relay also by which it asks for it.
    /// By default NULL: it has none. For several tables at one address see `slackline_tables_listen`.
    pub table: *const c_char,
    /// Relays that read from it, at least 1, where a publisher arranges a tree; by default 2. See
    /// `slackline_relay_join`.
    pub branches: u64,
    /// The number of bytes at multiples of which the tensors begin, a power of two of at most 4096: DLPack asks for
    /// 256. By default 0: each begins at a multiple of its element size. A relay has its owner's.
    /// `slackline_publisher_tensor_range` says where each lies.
    pub alignment: u64,
    /// Not 0: versions are encrypted over TCP, and not only the handshakes. This needs a secret. Peers
    /// that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are encrypted if
    /// SLACKLINE_TCP_ENCRYPT is 1.
    pub encrypt: u64,
    /// The GPU that the frames are on: over shared memory, TCP, and RDMA if the device reaches the GPU. If it does not,
    /// they are in the memory of the host. See `slackline_gpu_open`. A publisher of tables and a relay have none. By
    /// default NULL: they are in the memory of the host.
    pub gpu: *const slackline_gpu,
    /// Memory of the caller's on that GPU for the frames; it is read during the call. The range has exactly `frames`
    /// times the bytes of the table, which are rounded up to a multiple of 4096. It is cleared, behind the work that
    /// its stream has at the time of the call, and from then on only written by way of the publisher. The call waits
    /// for that, and is `SLACKLINE_STATUS_DEADLINE` if it takes more than 30 seconds. Over shared memory it is of
    /// `cudaMalloc`, which other processes open where it lies. `release` is called after the publisher is destroyed,
    /// once no copy uses the memory and no reader has it open any more; also if the call fails, unless the options
    /// cannot be read or `publisher` is NULL. A publisher of tables and a relay take none. By default NULL: the frames
    /// are in memory of the library's own.
    pub gpu_memory: *const slackline_gpu_range,
}

impl Measured for slackline_publisher_options {
    const FIRST: usize = 32;
}

impl Default for slackline_publisher_options {
    fn default() -> Self {
        let ShardOptions { peers, frames, chunk_bytes, lease, checksums, .. } = ShardOptions::default();
        slackline_publisher_options {
            size: size_of::<Self>(),
            peers,
            frames,
            checksums: checksums.into(),
            chunk_bytes,
            lease_ms: milliseconds(lease),
            secret: null(),
            secret_file: null(),
            idle: slackline_idle::Poll as u64,
            background: 0,
            begin_at: 0,
            deltas: 0,
            delta_bytes: 0,
            table: null(),
            branches: 2,
            alignment: 0,
            encrypt: 0,
            gpu: null(),
            gpu_memory: null(),
        }
    }
}

impl slackline_publisher_options {
    pub(crate) fn translate(&self) -> Result<PublisherOptions, Failure> {
        let memory = ShardOptions {
            peers: self.peers,
            frames: self.frames,
            chunk_bytes: self.chunk_bytes,
            lease: Duration::from_millis(self.lease_ms),
            checksums: self.checksums != 0,
            idle: idle(self.idle)?,
        };
        let too_many = || Failure::bad_argument(format!("deltas is {}: keep at most 255", self.deltas));
        let history = u8::try_from(self.deltas).map_err(|_| too_many())?;
        let most_bytes = (self.delta_bytes > 0).then_some(self.delta_bytes);
        let deltas = (history > 0).then_some(DeltaOptions { history, most_bytes });
        let branches = u16::try_from(self.branches).map_err(|_| {
            Failure::bad_argument(format!("branches is {}: use at most 65,535", self.branches))
        })?;
        let begin_at = Version::new(self.begin_at);
        Ok(PublisherOptions { memory, begin_at, deltas, branches, ..PublisherOptions::default() })
    }

    /// Takes over the memory of the caller's for the frames, if there is some, behind the work that its stream has.
    ///
    /// # Safety
    ///
    /// `gpu_memory` is as its comment says.
    pub(crate) unsafe fn frames(&self) -> Result<Option<GpuMemory>, Failure> {
        // SAFETY: the caller's promise.
        let Some(taken) = (unsafe { Taken::new(self.gpu_memory, "gpu_memory")? }) else { return Ok(None) };
        if self.gpu.is_null() {
            let message =
                "gpu_memory takes a publisher whose frames are on that GPU: set `gpu` in its options";
            return Err(Failure::bad_argument(message));
        }
        let (memory, stream) = taken.open()?;
        stream.hold_copies()?;
        Ok(Some(memory))
    }

    /// Refuses a GPU and memory of one, and releases the memory.
    ///
    /// # Safety
    ///
    /// As for [`frames`](Self::frames).
    pub(crate) unsafe fn expect_on_host(&self, what: &str) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let frames = unsafe { Taken::new(self.gpu_memory, "gpu_memory")? };
        expect_none(self.gpu, what)?;
        match frames {
            None => Ok(()),
            Some(_) => Err(Failure::bad_argument(format!(
                "{what} cannot have frames in memory of the caller's: leave options->gpu_memory NULL"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_library_s_own() {
        assert_eq!(slackline_publisher_options::default().translate().unwrap(), PublisherOptions::default());
        let keeping = slackline_publisher_options { deltas: 4, delta_bytes: 100, ..Default::default() };
        let deltas = Some(DeltaOptions { history: 4, most_bytes: Some(100) });
        assert_eq!(keeping.translate().unwrap(), PublisherOptions { deltas, ..PublisherOptions::default() });
    }

    #[test]
    fn more_than_255_deltas_are_a_bad_argument() {
        assert!(slackline_publisher_options { deltas: 256, ..Default::default() }.translate().is_err());
    }
}
