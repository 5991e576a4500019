//! DBW: the best k, where everything is known.

use crate::plot::{Axis, Figure, Panel, Series};
use serde_json::json;
use slackline::scheme::dbw::{Gain, best_k, most_gradients_k};

use super::{Check, Error, Findings, Recipe};
use crate::table::Table;

const N: usize = 16;
const RATIOS: [f64; 8] = [10.0, 1.0, 0.3, 0.1, 0.05, 0.03, 0.02, 0.01];

/// By `eta L`: the best k at each ratio.
const EXPECTED: [(f64, [usize; 8]); 3] = [
    (0.1, [1, 1, 1, 1, 2, 3, 5, 9]),
    (0.5, [1, 1, 2, 6, 11, 14, 16, 16]),
    (1.0, [1, 2, 6, 14, 16, 16, 16, 16]),
];

/// By the part of the time that is random: the k with the most gradients per second.
const BLIND: [(f64, usize); 4] = [(0.0, 16), (0.2, 14), (0.5, 11), (1.0, 1)];

pub(super) const RECIPE: Recipe = Recipe {
    name: "dbw-argmax",
    title: "How many gradients are worth waiting for",
    claim: "The k with the most gain per second grows as the gradient shrinks beside its noise, and with the \
            step size.",
    source: "Xu, Neglia, Sebastianelli, arXiv 2004.14696: the bound on the gain; the table is exact arithmetic",
    setup: "16 workers, exponential times of mean 1 s, interrupted by each version: the k-th gradient comes after \
            H(16) - H(16 - k) s. The gain is that of the bound, with r = |grad F|^2 / V; no random numbers.",
    remarks: "Where no update promises a gain (r small, eta L large), all 16 are waited for.",
    run,
};

/// Returns the mean time at which the k-th of 16 comes, for each k. A part `alpha` of the time is exponential and the
/// rest constant.
fn times(alpha: f64) -> [f64; N] {
    let harmonic = |n: usize| (1..=n).map(|index| 1.0 / index as f64).sum::<f64>();
    std::array::from_fn(|index| 1.0 - alpha + alpha * (harmonic(N) - harmonic(N - index - 1)))
}

fn run(_seed: u64) -> Result<Findings, Error> {
    let mut table =
        Table::new(["eta L"].into_iter().map(String::from).chain(RATIOS.map(|r| format!("r = {r}"))));
    let x = Axis::log("r = |grad F|^2 / V");
    let mut panel =
        Panel::new(x, Axis::linear("best k").between(0.0, 17.0)).titled("The most gain per second");
    let (mut rows, mut equal) = (Vec::new(), 0);
    let mut circles = Vec::new();
    for (eta_l, expected) in EXPECTED {
        let best = RATIOS.map(|ratio| {
            let gain = Gain { learning_rate: 1.0, smoothness: eta_l, norm_squared: ratio, variance: 1.0 };
            best_k(&gain, &times(1.0))
        });
        for ((ratio, k), expected) in RATIOS.iter().zip(best).zip(expected) {
            rows.push(json!({ "eta_l": eta_l, "ratio": ratio, "k": k, "expected": expected }));
            equal += usize::from(k == expected);
        }
        let cells = best.iter().zip(expected).map(|(k, expected)| format!("{k} ({expected})"));
        table.row(std::iter::once(eta_l.to_string()).chain(cells));
        let points = RATIOS.iter().zip(best).map(|(ratio, k)| (*ratio, k as f64));
        panel.series.push(Series::marked(format!("eta L = {eta_l}"), points));
        circles.extend(RATIOS.iter().zip(expected).map(|(ratio, k)| (*ratio, k as f64)));
    }
    panel.series.push(Series::expected("expected", circles));
    let mut blind = Table::new(["random part of the time", "k", "expected"]);
    let mut all_equal = true;
    let mut bars = Vec::new();
    for (index, (alpha, expected)) in (0..).zip(BLIND) {
        let k = most_gradients_k(&times(alpha));
        all_equal &= k == expected;
        blind.row([alpha.to_string(), k.to_string(), expected.to_string()]);
        bars.push((f64::from(index), k as f64));
    }
    let x = Axis::names("random part of the time", BLIND.map(|(alpha, _)| alpha.to_string()));
    let second = Panel::new(x, Axis::linear("k").between(0.0, 17.0))
        .titled("The most gradients per second")
        .with(Series::bars("whatever they are worth", bars));
    let checks = vec![
        Check::new("best k, all 24 cells", "24 equal", format!("{equal} equal"), equal == 24),
        Check::new(
            "most gradients per second, shifted exponential times",
            "16, 14, 11, 1",
            BLIND.map(|(alpha, _)| most_gradients_k(&times(alpha)).to_string()).join(", "),
            all_equal,
        ),
    ];
    let figure = Figure::new("How many of 16 gradients are worth waiting for")
        .subtitle("circles: the exact table")
        .columns(2)
        .panel(panel)
        .panel(second);
    let tables = vec![
        ("The best k (expected in brackets)".into(), table),
        ("Blind to what gradients are worth".into(), blind),
    ];
    Ok(Findings { tables, rows, checks, figure })
}
