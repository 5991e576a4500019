//! The value of each scheme: its time to an accuracy over real processes, against BSP's under the same conditions.

use super::probe::Probe;
use super::row::{Row, Unit};
use crate::harness::Target;

/// A step takes ten milliseconds on average, nearly all of it asleep: so four workers fit onto any machine, and each
/// run has the same conditions.
const CONDITIONS: [(&str, &str); 2] =
    [("jitter", "--jitter exp(0.01)"), ("one slow worker", "--jitter constant(0.01) --straggler 0=4")];

/// Schemes, and the conditions under which each is to be faster than BSP.
const SCHEMES: [(&str, &[&str]); 7] = [
    ("bap(4)", &["jitter"]),
    ("ssp(4)", &["jitter"]),
    ("essp(4)", &["jitter"]),
    ("asp", &[]),
    ("dbw", &["one slow worker"]),
    ("abs", &["one slow worker"]),
    ("ds-sync(2)", &[]),
];

/// A row for each scheme under each condition; `quick` ones are those with a promise.
pub(super) fn rows(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (condition, options) in CONDITIONS {
        for (scheme, faster) in SCHEMES {
            let promised = faster.contains(&condition);
            if quick && !promised {
                continue;
            }
            let train = |scheme: &str| Probe::Train {
                words: format!("--workers 4 --target-accuracy 0.95 {options} --scheme {scheme}"),
            };
            rows.push(Row {
                name: format!("schemes, {condition}: {scheme}, time to 95 %"),
                ours: train(scheme),
                against: "bsp",
                peer: train("bsp"),
                unit: Unit::Seconds,
                target: if promised { Target::AtMost(0.95) } else { Target::None },
            });
        }
    }
    rows
}
