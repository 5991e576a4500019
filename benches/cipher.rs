//! The speed of the cipher of encrypted TCP alone, on one core: what remains of the time of a record is copies and the
//! network.

use std::hint::black_box;

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Lengths of records that were tried.
const RECORDS: [usize; 4] = [64, 16 << 10, 64 << 10, 256 << 10];

fn seal(c: &mut Criterion) {
    let cipher = Aes256Gcm::new(&[7; 32].into());
    let mut group = c.benchmark_group("seal");
    for bytes in RECORDS {
        let (mut record, mut number) = (vec![1; bytes], 0u64);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("{bytes} bytes"), |b| {
            b.iter(|| {
                let mut nonce = Nonce::default();
                nonce[..8].copy_from_slice(&number.to_le_bytes());
                number += 1;
                let tag = cipher.encrypt_inout_detached(&nonce, &[], record.as_mut_slice().into());
                black_box(tag.is_ok())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, seal);
criterion_main!(benches);
