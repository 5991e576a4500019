//! Gives a fuzzer's input to the decoder with a given name, as the bytes that the input means.
//!
//! The first byte of an input says what the others are: 0, the bytes themselves; n, changes to the n-th sample that the
//! decoder takes. So a fuzzer that knows nothing of checksums and magic words begins behind them, and needs no corpus.

use std::collections::HashMap;
use std::sync::{LazyLock, Once};

use slackline::internals::fuzzing::FuzzTarget;

/// Inputs of a decoder are at most so long.
pub const INPUT_BYTES_MAX: usize = 4096;

/// All decoders: the library's, the lab's and the command line's.
pub fn targets() -> impl Iterator<Item = &'static FuzzTarget> {
    let library = slackline::internals::fuzzing::TARGETS.iter();
    library.chain(slackline_lab::fuzzing::TARGETS).chain(slackline_cli::fuzzing::TARGETS)
}

static SAMPLES: LazyLock<HashMap<&str, Vec<Vec<u8>>>> =
    LazyLock::new(|| targets().map(|target| (target.name, (target.samples)())).collect());

/// Gives an input to the decoder of this name. If it panics, the bytes that the decoder was given are said, too: they
/// are what a test beside it needs.
///
/// # Panics
/// If the decoder breaks a promise, or there is none of this name.
pub fn run(name: &str, input: &[u8]) {
    let target =
        targets().find(|target| target.name == name).expect("a target of src/fuzzing.rs has this name");
    let bytes = meaning(name, input);
    GIVEN.with_borrow_mut(|given| given.clone_from(&bytes));
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let given = GIVEN.with_borrow(|given| hexadecimal(given));
            eprintln!("decoder was given: {given}");
            before(panic);
        }));
    });
    (target.check)(&bytes);
}

thread_local! {
    static GIVEN: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Turns an input into the bytes that the decoder is given, as described at the top of this file.
fn meaning(name: &str, input: &[u8]) -> Vec<u8> {
    let Some((choice, rest)) = input.split_first() else { return Vec::new() };
    let samples = &SAMPLES[name];
    let choice = usize::from(*choice) % (samples.len() + 1);
    match choice.checked_sub(1) {
        None => rest.to_vec(),
        Some(sample) => changed(samples[sample].clone(), rest),
    }
}

/// Applies changes, 3 bytes and what they ask for each: where (2 bytes), and what to do there.
fn changed(mut bytes: Vec<u8>, mut changes: &[u8]) -> Vec<u8> {
    while let Some(([low, high, what], rest)) = changes.split_first_chunk::<3>() {
        changes = rest;
        let at = usize::from(u16::from_le_bytes([*low, *high])) % (bytes.len() + 1);
        let count = usize::from(what >> 3) + 1;
        let end = (at + count).min(bytes.len());
        match what % 8 {
            // Replace, insert, remove, cut off, fill, repeat, flip a bit, and a number of eight bytes.
            0 | 1 => {
                let (with, rest) = changes.split_at(count.min(changes.len()));
                changes = rest;
                let end = if what % 8 == 0 { end } else { at };
                bytes.splice(at..end, with.iter().copied());
            }
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => bytes[at..end].fill(0xFF),
            5 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (what >> 3 & 7);
                }
            }
            _ => {
                let Some((word, rest)) = changes.split_first_chunk::<8>() else { break };
                changes = rest;
                let end = (at + 8).min(bytes.len());
                bytes.splice(at..end, *word);
            }
        }
        if bytes.len() > 4 * INPUT_BYTES_MAX {
            break;
        }
    }
    bytes
}

/// As one would paste it into a test.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
