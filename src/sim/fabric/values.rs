//! Gradients whose values name their worker, and the gradients that a version's values show.
//!
//! A payload is cut into lines of 16 values; the gradient that a worker computed as its
//! `n`th is -2^(n mod 20) in the lane that is the worker's and that of n / 20, in every line, and 0 elsewhere. So every
//! line of a version is the same, a version tells from its values which gradients are in it, and half a gradient, two
//! of them mixed or one applied twice are seen at once. The last lane numbers the incarnations of a server.
#![forbid(unsafe_code)]

use super::judge::{PublishedVersion, Seen};
use crate::mem::VolatileSlice;
use crate::scheme::Share;

/// Values in one line.
pub(super) const LANES: usize = 16;
/// The lane that numbers incarnations.
pub(super) const INCARNATION_LANE: usize = LANES - 1;
const LANES_PER_WORKER: usize = 3;
pub(super) const BITS: usize = 20;

/// The number of gradients of one worker that can be told apart.
pub(super) const GRADIENTS_MAX: usize = LANES_PER_WORKER * BITS;

/// Writes the gradient of worker `index` with this number.
pub(super) fn fill(gradient: &mut [f32], worker: usize, number: usize) {
    let lane = worker * LANES_PER_WORKER + number / BITS;
    let value = (1u32 << (number % BITS)) as f32;
    for (at, element) in gradient.iter_mut().enumerate() {
        *element = if at % LANES == lane { -value } else { 0.0 };
    }
}

/// A copy of a payload.
pub(super) fn bytes_of(payload: VolatileSlice<'_>) -> Vec<u8> {
    let mut bytes = vec![0; payload.len()];
    payload.read(&mut bytes);
    bytes
}

/// True if a lane is this worker's.
fn is_lane_of(lane: usize, worker: Option<usize>) -> bool {
    worker == Some(lane / LANES_PER_WORKER)
}

/// The values of a payload's lines, which must all be the same, except in the lanes of a liar.
pub(super) fn lanes(bytes: &[u8], liar: Option<usize>) -> Result<[f32; LANES], String> {
    let mut lanes = [0.0f32; LANES];
    for (at, value) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let value = f32::from_le_bytes(*value);
        if at < LANES {
            lanes[at] = value;
        } else if lanes[at % LANES].to_bits() != value.to_bits() && !is_lane_of(at % LANES, liar) {
            return Err(format!(
                "value {at} is {value}, that of the first line is {}: half a gradient is in it",
                lanes[at % LANES]
            ));
        }
    }
    Ok(lanes)
}

/// Finds the gradients of honest workers that came into a version: worker and number of each.
pub(super) fn gradients_between(
    before: &[f32; LANES],
    after: &[f32; LANES],
    published: &PublishedVersion<'_>,
    workers: &[Seen],
    liar: Option<usize>,
) -> Result<Vec<(usize, usize)>, String> {
    let mut weights: Vec<f64> = published.shares.iter().map(|share| f64::from(share.weight)).collect();
    weights.sort_unstable_by(f64::total_cmp);
    weights.dedup();
    if after[INCARNATION_LANE] != before[INCARNATION_LANE] {
        return Err("it belongs to another incarnation".into());
    }
    if weights.len() > 1 {
        let mut puzzle = Puzzle {
            workers,
            liar,
            epoch: published.epoch,
            shares: published.shares,
            rest: std::array::from_fn(|lane| match is_lane_of(lane, liar) {
                true => 0.0,
                false => f64::from(after[lane]) - f64::from(before[lane]),
            }),
            off: after.map(|value| 0.2 * weights[0] + 2e-7 * f64::from(value)),
            found: Vec::new(),
        };
        let is_explained = puzzle.explain();
        let rest = puzzle.rest;
        return is_explained
            .then(|| puzzle.found.into_iter().flatten().collect())
            .ok_or(format!("it moved by {rest:?}, which no gradients make"));
    }
    let mut found = Vec::new();
    for lane in 0..INCARNATION_LANE {
        let moved = f64::from(after[lane]) - f64::from(before[lane]);
        if moved == 0.0 || is_lane_of(lane, liar) {
            continue;
        }
        let (worker, block) = (lane / LANES_PER_WORKER, lane % LANES_PER_WORKER);
        let whole = weights.iter().map(|weight| moved / weight).find(|count| {
            let off = (count - count.round()).abs();
            count.round() >= 1.0 && off < 0.2 + count * 1e-5
        });
        let bits = whole.ok_or_else(|| format!("lane {lane} moved by {moved}, which no gradients make"))?;
        let bits = bits.round() as u64;
        let numbers = (0..BITS).filter(|bit| bits >> bit & 1 == 1);
        found.extend(numbers.map(|bit| (worker, block * BITS + bit)));
        if bits >> BITS != 0 {
            return Err(format!("lane {lane} moved by {moved}: more than all gradients together"));
        }
    }
    Ok(found)
}

/// The search for the gradients that moved the lanes so far, where they count differently: one for each of these
/// shares.
struct Puzzle<'a> {
    workers: &'a [Seen],
    /// One of its shares may have changed no value that is looked at.
    liar: Option<usize>,
    epoch: u64,
    shares: &'a [Share],
    /// The amount that each lane still has to move by, and how far that may be off.
    rest: [f64; LANES],
    off: [f64; LANES],
    /// The gradient found for each share so far; none of a liar's.
    found: Vec<Option<(usize, usize)>>,
}

impl Puzzle<'_> {
    /// True if gradients of the shares that have none yet explain the rest; then they are found.
    fn explain(&mut self) -> bool {
        let at = self.found.len();
        let Some(share) = self.shares.get(at) else {
            return self.rest.iter().zip(&self.off).all(|(rest, off)| rest.abs() < *off);
        };
        for (worker, seen) in self.workers.iter().enumerate() {
            if self.liar == Some(worker) {
                continue;
            }
            for (number, computed) in seen.gradients.iter().enumerate() {
                let lane = worker * LANES_PER_WORKER + number / BITS;
                let moves = f64::from(share.weight) * (1u64 << (number % BITS)) as f64;
                let named = Some((worker, number));
                let is_new = !self.found.contains(&named);
                let of_share = computed.is_named(self.epoch, share);
                if !is_new || !of_share || self.rest[lane] < moves - self.off[lane] {
                    continue;
                }
                self.rest[lane] -= moves;
                self.found.push(named);
                if self.explain() {
                    return true;
                }
                self.found.pop();
                self.rest[lane] += moves;
            }
        }
        if self.liar.is_some_and(|liar| self.workers[liar].has_had(self.epoch, share)) {
            self.found.push(None);
            if self.explain() {
                return true;
            }
            self.found.pop();
        }
        false
    }
}
