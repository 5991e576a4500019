//! Payload that can be told from any other: what arrives is compared with what was sent.

use slackline::internals::mem::VolatileSlice;

use super::error::BenchError;

/// Bytes that are made or compared at a time; whole words.
const BLOCK: usize = 64 << 10;

/// Fills memory with the pattern.
pub(super) fn fill(memory: VolatileSlice<'_>) {
    let mut block = vec![0; BLOCK.min(memory.len())];
    for begin in (0..memory.len()).step_by(BLOCK) {
        let bytes = &mut block[..BLOCK.min(memory.len() - begin)];
        make(begin, bytes);
        memory.subslice(begin, bytes.len()).write(bytes);
    }
}

/// The first byte that is not as the pattern has it.
pub(super) fn first_wrong(memory: VolatileSlice<'_>) -> Option<u64> {
    let (mut found, mut wanted) = (vec![0; BLOCK.min(memory.len())], vec![0; BLOCK.min(memory.len())]);
    for begin in (0..memory.len()).step_by(BLOCK) {
        let bytes = BLOCK.min(memory.len() - begin);
        memory.subslice(begin, bytes).read(&mut found[..bytes]);
        make(begin, &mut wanted[..bytes]);
        if let Some(at) = (0..bytes).find(|at| found[*at] != wanted[*at]) {
            return Some((begin + at) as u64);
        }
    }
    None
}

/// Makes the answer to a comparison.
pub(super) fn verdict(wrong: Option<u64>, bytes: u64, location: &str) -> Result<(), BenchError> {
    match wrong {
        None => Ok(()),
        Some(at) => Err(BenchError::Invalid(format!(
            "byte {at} of {bytes} is not what was sent, {location}: do not trust this path"
        ))),
    }
}

/// The pattern's bytes from `begin` on, which begins a word. Each word is another one, wherever it is.
fn make(begin: usize, bytes: &mut [u8]) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        // A bijection that mixes well (splitmix64: Steele, Lea and Flood, 2014).
        let mut word = ((begin / 8 + index) as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_wrong_byte_is_found_where_it_is() {
        for len in [1, 8, 13, BLOCK - 1, BLOCK, 3 * BLOCK + 5] {
            let mut memory = vec![0; len];
            fill(VolatileSlice::from_mut(&mut memory));
            assert_eq!(first_wrong(VolatileSlice::from_ref(&memory)), None);
            for at in [0, len / 2, len - 1] {
                memory[at] ^= 0x40;
                assert_eq!(first_wrong(VolatileSlice::from_ref(&memory)), Some(at as u64), "of {len}");
                memory[at] ^= 0x40;
            }
        }
    }

    #[test]
    fn memory_that_nobody_wrote_has_not_the_pattern() {
        assert_eq!(first_wrong(VolatileSlice::from_ref(&[0; 64])), Some(0));
    }
}
