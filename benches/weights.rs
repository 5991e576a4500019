//! Versions on their way to readers: publishing until all readers of the host may look at a version, beside one copy of
//! its bytes; a chain of relays beside one reader; and a crowd of readers of one publisher, over links of limited
//! speed.
//!
//! `cargo bench --bench weights -- [visible | chain | crowd] [--repeat N]`. The last two take root, or user name
//! spaces, and `ip` and `tc` of iproute2.

mod arguments;
#[path = "weights/chain.rs"]
mod chain;
#[path = "weights/crowd.rs"]
mod crowd;
#[path = "weights/links.rs"]
mod links;
#[path = "weights/times.rs"]
mod times;
#[path = "weights/visible.rs"]
mod visible;

use std::time::Duration;

/// Longest time that anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

const USAGE: &str = "usage: cargo bench --bench weights -- [visible | chain | crowd] [--repeat N]";

fn main() {
    let arguments = arguments::given(USAGE);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let repeat = match arguments.iter().position(|argument| *argument == "--repeat") {
        None => 15,
        Some(at) => {
            let count = arguments.get(at + 1).and_then(|count| count.parse().ok()).filter(|count| *count > 0);
            arguments.drain(at..(at + 2).min(arguments.len()));
            count.unwrap_or_else(|| arguments::misused(USAGE))
        }
    };
    match arguments.as_slice() {
        [] => {
            visible::measure(repeat);
            println!();
            chain::measure(repeat);
            println!();
            crowd::measure();
        }
        ["visible"] => visible::measure(repeat),
        ["chain"] => chain::measure(repeat),
        ["crowd"] => crowd::measure(),
        ["read", address] => visible::read(address),
        ["times", address, pulls] => times::print(address, pulls.parse().expect("a number of pulls")),
        _ => arguments::misused(USAGE),
    }
}

/// The median of some figures, and the least and the most.
fn summary(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [figures[figures.len() / 2], figures[0], figures[figures.len() - 1]]
}
