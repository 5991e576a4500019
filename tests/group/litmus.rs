//! Members at full speed that give rounds up at any moment: parts are overwritten while others read them, and no
//! member may take a mixture.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use slackline::Error;
use slackline::group::{GroupError, GroupOptions};

use super::fixture::{Fixture, PATIENCE, each, meet, turn, wait_for};

const ELEMENTS: usize = 64 << 10;
const ROUNDS: u64 = 400;

/// Longest time of the test, unless the machine is so busy that some member has taken no mean until then.
const LONGEST: Duration = Duration::from_secs(3);

pub(crate) fn nobody_ever_takes_a_mixture_though_rounds_are_given_up_at_any_moment<F: Fixture>() {
    let group = [0, 1, 2];
    let begun = Instant::now();
    let taken = [const { AtomicU64::new(0) }; 3];
    let have_all_taken = || taken.iter().all(|taken| taken.load(Relaxed) > 0);
    each::<F, _>(meet::<F>(3, ELEMENTS, GroupOptions::default()), |mut member| {
        let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(member.rank() as u64 + 1);
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 32
        };
        let own = &taken[member.rank()];
        for round in 0.. {
            let is_enough = (round >= ROUNDS || begun.elapsed() > LONGEST) && have_all_taken();
            // The first that is done ends it for all.
            if is_enough || begun.elapsed() > PATIENCE || member.alive().count() < group.len() {
                break;
            }
            wait_for("the parameters", || {
                turn::<F>(&mut member).unwrap();
                member.parameters_mut().is_ok().then_some(())
            });
            // Exact in f32, and so are the sums.
            member.parameters_mut().unwrap().fill(round as f32);
            // Most rounds are waited for, or members would never meet again.
            let patience = if random() % 3 == 0 {
                Duration::from_micros(random() % 200)
            } else if begun.elapsed() < LONGEST {
                Duration::from_millis(20)
            } else {
                Duration::from_secs(2)
            };
            let averaged = match member.average(round, &group, patience) {
                Ok(averaged) => averaged,
                Err(Error::Group(GroupError::Deadline { .. })) => member.abandon().unwrap().unwrap(),
                Err(error) => panic!("{error}"),
            };
            if averaged.skipped {
                continue;
            }
            own.fetch_add(1, Relaxed);
            wait_for("the mean", || {
                turn::<F>(&mut member).unwrap();
                member.parameters().is_ok().then_some(())
            });
            let wrong = member.parameters().unwrap().iter().position(|value| *value != round as f32);
            assert_eq!(wrong, None, "a mixture in round {round}");
        }
        // The member that is done first does not look dead to the others.
        member.leave(PATIENCE).unwrap();
    });
    assert!(have_all_taken(), "nothing was ever averaged: {taken:?}");
}
