//! The memory protocol under loom: the code that ships, over memory whose every word the model checker watches.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release --test loom`, or `cargo xtask test loom`, which also runs each
//! mutant of the protocol (`SLACKLINE_MUTANT=name`) and fails unless the model named with it does.
//!
//! A payload is a few words, and the payload of version or gradient `n` is `n` in every word, so that a mixture shows.
//! Each model counts what it accepted: one that accepts nothing proves nothing.
#![cfg(loom)]

#[path = "loom/copies.rs"]
mod copies;
#[path = "loom/decisions.rs"]
mod decisions;
#[path = "loom/follow.rs"]
mod follow;
#[path = "loom/frames.rs"]
mod frames;
#[path = "loom/group.rs"]
mod group;
#[path = "loom/nic.rs"]
mod nic;
#[path = "loom/pins.rs"]
mod pins;
#[path = "loom/push.rs"]
mod push;
#[path = "loom/sleep.rs"]
mod sleep;
#[path = "loom/slots.rs"]
mod slots;
#[path = "loom/world.rs"]
mod world;
