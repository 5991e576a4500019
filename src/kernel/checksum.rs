//! Checksums over memory that others may be writing.

use crc_fast::{CrcAlgorithm, Digest};

use crate::mem::VolatileSlice;

/// Copied out and summed at a time: stays in the first-level cache.
const PIECE: usize = 8 << 10;

/// CRC-64/NVME of `bytes`, continuing from `seed`: 0 to begin, or the result of an earlier call, so that
/// `crc64(payload, crc64(header, 0))` is the sum of the two in a row.
///
/// The bytes go through a buffer on the stack, so the checksum is of one copy of them, even if a peer writes
/// meanwhile. That runs at 10 GB/s per core over more than the caches hold (Xeon with AVX-512, two thirds of what a
/// core reads).
///
/// ```
/// use slackline::internals::kernel::crc64;
/// use slackline::internals::mem::VolatileSlice;
/// assert_eq!(crc64(VolatileSlice::from_ref(b"123456789"), 0), 0xae8b_1486_0a79_9888);
/// let half = crc64(VolatileSlice::from_ref(b"1234"), 0);
/// assert_eq!(crc64(VolatileSlice::from_ref(b"56789"), half), 0xae8b_1486_0a79_9888);
/// ```
pub fn crc64(bytes: VolatileSlice<'_>, seed: u64) -> u64 {
    // The algorithm complements its state at both ends; undone here, a result is a state to go on from.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, !seed);
    let mut buffer = [0; PIECE];
    let mut at = 0;
    while at < bytes.len() {
        let len = PIECE.min(bytes.len() - at);
        bytes.subslice(at, len).read(&mut buffer[..len]);
        digest.update(&buffer[..len]);
        at += len;
    }
    digest.finalize()
}
