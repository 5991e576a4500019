//! The bandwidth of a fold relative to the memory's: the bytes that it moves per second over those of STREAM's triad.
//!
//! `cargo bench --bench kernel -- [PARAMETERS] [ROUNDS] [GRADIENTS]` (100,000,000, 5 and 4 if not given). Needs 40
//! bytes of memory per parameter, and 4 more per gradient beyond four. Folds and triads take turns within a round, so
//! that a busy machine is busy for both.

mod arguments;

use std::sync::Barrier;
use std::time::Instant;

use slackline::Encoding;
use slackline::internals::kernel::{Fold, Gradient, Pass, crc64, triad};
use slackline::internals::mem::{HostMemory, VolatileSlice};
use slackline::optim::{AdamParameters, Optimizer};

/// Works on its thread's part of every array.
type Run = fn(&[VolatileSlice<'_>]);

const USAGE: &str = "usage: cargo bench --bench kernel -- [PARAMETERS] [ROUNDS] [GRADIENTS]";

fn main() {
    let (mut sizes, arguments) = ([100_000_000, 5, 4], arguments::given(USAGE));
    if arguments.len() > sizes.len() {
        arguments::misused(USAGE);
    }
    for (size, argument) in sizes.iter_mut().zip(&arguments) {
        *size = argument.parse().ok().filter(|size| *size > 0).unwrap_or_else(|| arguments::misused(USAGE));
    }
    let [parameters, rounds, k] = sizes;
    // Parameters and two states, from and to, then the gradients.
    let arrays: Vec<HostMemory> =
        (0..6 + k).map(|_| HostMemory::anonymous(parameters * 4).expect("memory")).collect();
    for array in &arrays {
        fill(array.as_volatile());
    }
    println!("{parameters} parameters, k = {k}, f32; GB/s and their ratio, median of {rounds} rounds");
    for threads in [1, 2] {
        let mut runs: Vec<(&str, usize, Run, Vec<f64>)> = vec![
            ("triad", 12, (|s| triad(s[1], s[0], s[6], 0.5)), Vec::new()),
            ("SGD", 4 * k + 8, sgd, Vec::new()),
            ("AdamW", 4 * k + 24, adamw, Vec::new()),
            ("SGD, measured", 4 * k + 8, sgd_measured, Vec::new()),
            ("AdamW, measured", 4 * k + 24, adamw_measured, Vec::new()),
        ];
        for _ in 0..rounds {
            for (_, bytes, run, rates) in &mut runs {
                let seconds = time(&arrays, threads, *run);
                rates.push((*bytes * parameters) as f64 / seconds / 1e9);
            }
        }
        for (name, _, _, rates) in &runs {
            let ratios = rates.iter().zip(&runs[0].3).map(|(rate, triad)| rate / triad).collect();
            println!(
                "{threads} threads  {name:15} {:6.2} GB/s  {:.2} of triad",
                median(rates.clone()),
                median(ratios)
            );
        }
    }
    let seconds = time(&arrays[..1], 1, |slices| {
        std::hint::black_box(crc64(slices[0], 0));
    });
    println!("crc64 {:.2} GB/s", (parameters * 4) as f64 / seconds / 1e9);
}

fn sgd(s: &[VolatileSlice<'_>]) {
    fold(s, SGD, false);
}

fn adamw(s: &[VolatileSlice<'_>]) {
    fold(s, decaying_adamw(), false);
}

fn sgd_measured(s: &[VolatileSlice<'_>]) {
    fold(s, SGD, true);
}

fn adamw_measured(s: &[VolatileSlice<'_>]) {
    fold(s, decaying_adamw(), true);
}

const SGD: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };
fn decaying_adamw() -> Optimizer {
    Optimizer::AdamW(AdamParameters { weight_decay: 0.01, ..AdamParameters::default() })
}

fn fold(s: &[VolatileSlice<'_>], optimizer: Optimizer, measured: bool) {
    let states = [Pass { from: s[2], to: s[3] }, Pass { from: s[4], to: s[5] }];
    let gradients: Vec<_> =
        s[6..].iter().map(|elements| Gradient { elements: *elements, weight: 0.25 }).collect();
    let fold = Fold {
        gradients: &gradients,
        encoding: Encoding::F32,
        optimizer,
        learning_rate: 1e-3,
        step: 10,
        parameters: Pass { from: s[0], to: s[1] },
        states: &states[..optimizer.states()],
        streaming: true,
    };
    if measured {
        std::hint::black_box(fold.run_measured().expect("a fold"));
    } else {
        fold.run().expect("a fold");
    }
}

/// Seconds that `threads` threads take for their parts of the arrays.
fn time(arrays: &[HostMemory], threads: usize, run: Run) -> f64 {
    let len = arrays[0].len() / threads / 64 * 64;
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let slices = arrays.iter().map(HostMemory::as_volatile);
                    let parts: Vec<_> = slices.map(|slice| slice.subslice(thread * len, len)).collect();
                    barrier.wait();
                    let begin = Instant::now();
                    run(&parts);
                    begin.elapsed().as_secs_f64()
                })
            })
            .collect();
        barrier.wait();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).fold(0.0, f64::max)
    })
}

fn fill(slice: VolatileSlice<'_>) {
    let piece: Vec<u8> = (0..1 << 18).flat_map(|i: u32| (1e-3 * (i % 7 + 1) as f32).to_le_bytes()).collect();
    for at in (0..slice.len()).step_by(piece.len()) {
        let len = piece.len().min(slice.len() - at);
        slice.subslice(at, len).write(&piece[..len]);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
