//! The records of nodes for traces.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::mem::VolatileSlice;
use crate::table::Tensor;

/// Bytes that are copied out and digested at a time: they stay in a cache.
const PART_BYTES: usize = 64 << 10;

/// The SHA-256 of the bytes of each of these tensors, at its range within `memory`; none of a tensor that lies outside
/// of `memory`.
pub(super) fn digests<'a>(
    tensors: impl Iterator<Item = &'a Tensor>,
    memory: VolatileSlice<'_>,
) -> BTreeMap<String, [u8; 32]> {
    let mut part = vec![0; PART_BYTES];
    let mut digest = |tensor: &Tensor| {
        let range = tensor.range().start as usize..tensor.range().end as usize;
        let mut hasher = Sha256::new();
        for start in range.clone().step_by(PART_BYTES) {
            let part = &mut part[..PART_BYTES.min(range.end - start)];
            memory.subslice(start, part.len()).read(part);
            hasher.update(&*part);
        }
        (tensor.name().to_owned(), hasher.finalize().into())
    };
    tensors.filter(|tensor| tensor.range().end <= memory.len() as u64).map(&mut digest).collect()
}
