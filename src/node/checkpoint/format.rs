//! The bytes of the file: safetensors, so that every framework reads the parameters.
//!
//! `docs/checkpoints.md` has the format. All fields that are not tensors are one JSON object in the metadata, for
//! people to read; beside it is a CRC-64 over it and all tensors.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;

use super::header::Header;
use super::{Checkpoint, CheckpointError};
use crate::kernel::crc64;
use crate::mem::VolatileSlice;
use crate::param::{Latest, WorkerProgress};
use crate::table::ElementType;

/// The metadata entry with everything that is not a tensor.
pub(super) const KEY: &str = "slackline.checkpoint";

/// The metadata entry with the checksum: 16 hexadecimal digits.
pub(super) const CHECKSUM_KEY: &str = "slackline.checkpoint.crc64";

/// Longest header that safetensors readers take.
const HEADER_BYTES_MAX: usize = 100_000_000;

/// Read and summed at a time.
const PIECE: usize = 1 << 20;

/// The reason why the bytes are no usable checkpoint, before it is known in which file they are.
pub(super) enum Fault {
    Io(io::Error),
    Foreign(String),
    Format(u32),
    Damaged(String),
    Memory(u64),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match error.kind() {
            ErrorKind::UnexpectedEof => Fault::Damaged("it ends too early".into()),
            _ => Fault::Io(error),
        }
    }
}

/// The field alone that tells one format from another.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Returns the names of the tensors: the parameters, then the optimiser's states.
pub(super) fn names(states: usize) -> impl Iterator<Item = String> {
    std::iter::once("parameters".to_owned()).chain((0..states).map(|index| format!("optimizer.{index}")))
}

/// The head of the file: its length, and the JSON that safetensors has there.
pub(super) fn serialise(
    file: &Path,
    header: &Header,
    tensors: &[Vec<u8>],
) -> Result<Vec<u8>, CheckpointError> {
    let unwritable = |source: io::Error| CheckpointError::Write { file: file.to_owned(), source };
    let entry = serde_json::to_string(header).map_err(|error| unwritable(error.into()))?;
    let mut checksum = crc64(VolatileSlice::from_ref(entry.as_bytes()), 0);
    let (mut infos, mut at) = (Vec::with_capacity(tensors.len()), 0);
    for (name, tensor) in names(tensors.len() - 1).zip(tensors) {
        checksum = crc64(VolatileSlice::from_ref(tensor), checksum);
        let data_offsets = (at, at + tensor.len());
        infos.push((name, TensorInfo { dtype: Dtype::F32, shape: vec![tensor.len() / 4], data_offsets }));
        at = data_offsets.1;
    }
    let entries =
        HashMap::from([(KEY.to_owned(), entry), (CHECKSUM_KEY.to_owned(), format!("{checksum:016x}"))]);
    let metadata =
        Metadata::new(Some(entries), infos).map_err(|error| unwritable(io::Error::other(error)))?;
    let mut bytes = vec![0; 8];
    serde_json::to_writer(&mut bytes, &metadata).map_err(|error| unwritable(error.into()))?;
    // Tensors begin where words can, as the format asks.
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let len = bytes.len() - 8;
    if len > HEADER_BYTES_MAX {
        return Err(CheckpointError::Header { file: file.to_owned(), bytes: len, most: HEADER_BYTES_MAX });
    }
    bytes[..8].copy_from_slice(&(len as u64).to_le_bytes());
    Ok(bytes)
}

pub(super) fn parse(mut source: impl Read, length: u64, path: &Path) -> Result<Checkpoint, Fault> {
    let mut word = [0; 8];
    source.read_exact(&mut word)?;
    let head_bytes = u64::from_le_bytes(word);
    if head_bytes > HEADER_BYTES_MAX as u64 || head_bytes > length.saturating_sub(8) {
        let mut first = [0];
        let begins_well = source.read_exact(&mut first).is_ok() && first == *b"{";
        return Err(match begins_well {
            true => Fault::Damaged("its header is longer than it can be".into()),
            false => Fault::Foreign("it is no safetensors file".into()),
        });
    }
    let mut head = vec![0; head_bytes as usize];
    source.read_exact(&mut head)?;
    let (header, checksum) = parse_head(&head)?;
    let range = check(&header)?;
    let metadata: Metadata =
        serde_json::from_slice(&head).map_err(|error| Fault::Damaged(error.to_string()))?;
    let states = header.optimizer.states();
    let elements = (range.end - range.start) / 4;
    if metadata.offset_keys().len() != states + 1 {
        return Err(Fault::Damaged(format!("it should hold {} tensors", states + 1)));
    }
    let mut expected_at = 0;
    for name in names(states) {
        let info =
            metadata.info(&name).ok_or_else(|| Fault::Damaged(format!("it has no tensor `{name}`")))?;
        let begins_well = info.data_offsets.0 as u64 == expected_at;
        if info.dtype != Dtype::F32 || info.shape != [elements as usize] || !begins_well {
            return Err(Fault::Damaged(format!("tensor `{name}` is not what the metadata say")));
        }
        expected_at += header.range[1] - header.range[0];
    }
    if expected_at.checked_add(8 + head_bytes) != Some(length) {
        return Err(Fault::Damaged(format!("it is {length} bytes long, and its tensors end elsewhere")));
    }
    let mut sum = checksum.begin;
    let mut tensor = || read_tensor(&mut source, elements, &mut sum);
    let parameters = tensor()?;
    let states = (0..states).map(|_| tensor()).collect::<Result<Vec<_>, _>>()?;
    if sum != checksum.expected {
        return Err(Fault::Damaged("it does not match its checksum".into()));
    }
    Ok(Checkpoint { file: path.to_owned(), header, parameters, states, instead_of: None })
}

/// The checksum of the entry alone, and the expected checksum with all tensors.
struct Checksum {
    begin: u64,
    expected: u64,
}

/// Takes the metadata out of the head.
fn parse_head(head: &[u8]) -> Result<(Header, Checksum), Fault> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "__metadata__", default)]
        metadata: HashMap<String, String>,
    }
    let head: Head = serde_json::from_slice(head).map_err(|error| {
        // Ours as far as can be seen: a file cut up or overwritten in the middle.
        match head.first() == Some(&b'{') && head.windows(KEY.len()).any(|window| window == KEY.as_bytes()) {
            true => Fault::Damaged(format!("its header is no JSON: {error}")),
            false => Fault::Foreign("it is no safetensors file".into()),
        }
    })?;
    let entry = head.metadata.get(KEY);
    let entry = entry.ok_or_else(|| Fault::Foreign(format!("it has no `{KEY}` among its metadata")))?;
    let damaged = |error: serde_json::Error| Fault::Damaged(format!("its metadata cannot be read: {error}"));
    let Format { format } = serde_json::from_str(entry).map_err(damaged)?;
    if format != Header::FORMAT {
        return Err(Fault::Format(format));
    }
    let header = serde_json::from_str(entry).map_err(damaged)?;
    let digits = head.metadata.get(CHECKSUM_KEY).filter(|digits| digits.len() == 16);
    let expected = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let expected = expected.ok_or_else(|| Fault::Damaged(format!("it has no `{CHECKSUM_KEY}`")))?;
    Ok((header, Checksum { begin: crc64(VolatileSlice::from_ref(entry.as_bytes()), 0), expected }))
}

/// Everything that is computed with later; the checksum is looked at last, and a forger knows it, too.
fn check(header: &Header) -> Result<std::ops::Range<u64>, Fault> {
    let damaged = |reason: &str| Err(Fault::Damaged(reason.to_owned()));
    let ranges = header.table.shards(usize::from(header.shards));
    let range = ranges.ok().and_then(|ranges| ranges.get(usize::from(header.shard)).cloned());
    let Some(range) = range else { return damaged("it is of a shard that its table does not have") };
    if header.range != [range.start, range.end] {
        return damaged("its range is not that of its shard");
    }
    if header.table.dense_element() != Some(ElementType::F32) {
        return damaged("its table is not f32 throughout");
    }
    let applied = header.applied.workers.values().chain([&header.applied.others, &header.smallest_clock]);
    let latest = applied.max().copied().unwrap_or_default();
    if header.version >= Latest::VERSION_MAX || latest > WorkerProgress::CLOCK_MAX {
        return damaged("its version or clock is one that no server can have reached");
    }
    Ok(range)
}

fn read_tensor(source: &mut impl Read, elements: u64, sum: &mut u64) -> Result<Vec<f32>, Fault> {
    let mut values: Vec<f32> = Vec::new();
    let elements = usize::try_from(elements).map_err(|_| Fault::Memory(elements.saturating_mul(4)))?;
    values.try_reserve_exact(elements).map_err(|_| Fault::Memory(elements as u64 * 4))?;
    let mut buffer = vec![0; PIECE.min(elements * 4)];
    while values.len() < elements {
        let piece = &mut buffer[..PIECE.min((elements - values.len()) * 4)];
        source.read_exact(piece)?;
        *sum = crc64(VolatileSlice::from_ref(piece), *sum);
        let (words, _) = piece.as_chunks::<4>();
        values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
    }
    Ok(values)
}
