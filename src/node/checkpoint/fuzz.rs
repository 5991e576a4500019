//! Files that no server wrote: damaged files and forged ones.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::Checkpoint;
use super::format::{CHECKSUM_KEY, KEY, names, parse, serialise};
use super::header::Header;
use crate::clock::{Clock, Version};
use crate::kernel::{AdamParameters, Optimizer, crc64};
use crate::mem::VolatileSlice;
use crate::node::taken::Applied;
use crate::table::{ElementType, Table};

/// Reads arbitrary `bytes` as a checkpoint, and checks the result.
pub(crate) fn fuzz_file(bytes: &[u8]) {
    let Ok(read) = parse(bytes, bytes.len() as u64, Path::new("x")) else { return };
    let elements = (read.header.range[1] - read.header.range[0]) as usize / 4;
    let optimizer = read.header.optimizer;
    assert_eq!((read.parameters.len(), read.states.len()), (elements, optimizer.states()));
    assert!(read.states.iter().all(|state| state.len() == elements));
    // Written again, it is the same.
    let tensors: Vec<Vec<u8>> = std::iter::once(&read.parameters)
        .chain(&read.states)
        .map(|values| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let mut written =
        serialise(Path::new("x"), &read.header, &tensors).expect("what was read can be written");
    written.extend(tensors.concat());
    let Ok(again) = parse(&written[..], written.len() as u64, Path::new("x")) else {
        panic!("what was written cannot be read")
    };
    let essence = |checkpoint: &Checkpoint| serde_json::to_string(&checkpoint.header).expect("plain data");
    assert_eq!(essence(&again), essence(&read));
}

/// Makes a file whose checksum is right out of a header and two choices: a forger knows the format, too.
pub(crate) fn fuzz_forged(bytes: &[u8]) {
    let Some(([lengths, states], bytes)) = bytes.split_first_chunk::<2>() else { return };
    let Ok((header, payload)) = postcard::take_from_bytes::<Header>(bytes) else { return };
    let Ok(entry) = serde_json::to_string(&header) else { return };
    let mut checksum = crc64(VolatileSlice::from_ref(entry.as_bytes()), 0);
    checksum = crc64(VolatileSlice::from_ref(payload), checksum);
    // The tensors that the header promises, or the ones that the payload has room for.
    let count = usize::from(states % 4) + 1;
    let promised = header.range[1].wrapping_sub(header.range[0]) as usize;
    let len = if lengths & 1 == 0 { promised } else { payload.len() / count / 4 * 4 };
    let infos = names(count - 1).enumerate().map(|(index, name)| {
        let at = len.wrapping_mul(index);
        let data_offsets = (at, at.wrapping_add(len));
        (name, TensorInfo { dtype: Dtype::F32, shape: vec![len / 4], data_offsets })
    });
    let entries =
        HashMap::from([(KEY.to_owned(), entry), (CHECKSUM_KEY.to_owned(), format!("{checksum:016x}"))]);
    let Ok(metadata) = Metadata::new(Some(entries), infos.collect()) else { return };
    let head = serde_json::to_vec(&metadata).expect("plain data");
    fuzz_file(&[&(head.len() as u64).to_le_bytes()[..], &head, payload].concat());
}

fn header(table: Table, optimizer: Optimizer) -> Header {
    let range = [0, table.bytes()];
    Header {
        format: Header::FORMAT,
        shard: 0,
        shards: 1,
        range,
        version: Version::new(77),
        smallest_clock: Clock::new(70),
        clocks: vec![Clock::new(70), Clock::new(72)],
        epoch: 5,
        scheme: "ssp(3)".into(),
        learned: Some(r#"{"k":3}"#.into()),
        optimizer,
        folded: 150,
        applied: Applied {
            workers: BTreeMap::from([(3, Clock::new(73)), (u64::MAX, Clock::new(72))]),
            others: Clock::new(71),
        },
        table,
    }
}

fn headers() -> [Header; 2] {
    let table = |elements| Table::flat(elements, ElementType::F32).expect("a table");
    [
        header(table(3), Optimizer::Sgd { weight_decay: 0.0 }),
        header(table(5), Optimizer::AdamW(AdamParameters { weight_decay: 0.1, ..AdamParameters::default() })),
    ]
}

/// Whole files.
pub(crate) fn file_samples() -> Vec<Vec<u8>> {
    headers()
        .iter()
        .map(|header| {
            let tensors = vec![vec![1; header.range[1] as usize]; header.optimizer.states() + 1];
            let head = serialise(Path::new("x"), header, &tensors).expect("a small header");
            [head, tensors.concat()].concat()
        })
        .collect()
}

/// Forgers' plans.
pub(crate) fn forged_samples() -> Vec<Vec<u8>> {
    headers()
        .iter()
        .map(|header| {
            let states = header.optimizer.states();
            let plan = postcard::to_allocvec(header).expect("plain data");
            let payload = vec![1; header.range[1] as usize * (states + 1)];
            [&[0, states as u8][..], &plan, &payload].concat()
        })
        .collect()
}
