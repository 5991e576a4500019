//! `random TARGET SECONDS`: feeds a decoder random and mutated inputs, with no coverage to go by: what can be done on
//! stable. `random TARGET FILE`: gives it one input again.
//!
//! Says at its end what libFuzzer does: `stat::number_of_executed_units: N`.

use std::time::{Duration, Instant};

use slackline::sim::Random;
use slackline_fuzz::{INPUT_BYTES_MAX, hexadecimal, run, targets};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, what] = &arguments[..] else { panic!("random TARGET SECONDS, or random TARGET FILE") };
    assert!(targets().any(|target| target.name == *name), "there is no target {name}");
    match what.parse() {
        Ok(seconds) => feed(name, Duration::from_secs(seconds)),
        Err(_) => run(name, &std::fs::read(what).expect("a file with an input")),
    }
}

fn feed(name: &str, time: Duration) {
    // The same inputs in every run.
    let mut random = Random::new(0);
    let (begin, mut count, mut longest) = (Instant::now(), 0u64, Duration::ZERO);
    while begin.elapsed() < time {
        // Short inputs mostly: few changes leave most of a sample as it is.
        let len = match random.below(16) {
            0 => random.below(INPUT_BYTES_MAX as u64),
            1..=4 => random.below(256),
            _ => random.below(32),
        };
        let input: Vec<u8> = (0..len).map(|_| byte(&mut random)).collect();
        let before = Instant::now();
        let outcome = std::panic::catch_unwind(|| run(name, &input));
        longest = longest.max(before.elapsed());
        if outcome.is_err() || longest > Duration::from_secs(10) {
            eprintln!("input: {}", hexadecimal(&input));
            std::process::exit(1);
        }
        count += 1;
    }
    eprintln!("stat::number_of_executed_units: {count}");
}

/// Numbers at the edges are worth more than others.
fn byte(random: &mut Random) -> u8 {
    let word = random.word();
    match word >> 60 {
        0..=4 => 0,
        5 => 0xFF,
        6 => (word >> 8) as u8 % 8,
        _ => word as u8,
    }
}
