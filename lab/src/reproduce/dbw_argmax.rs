//! DBW: the best k, where everything is known.

use crate::plot::{Axis, Figure, Panel, Series};
use serde::Deserialize;
use serde_json::json;
use slackline::scheme::dbw::{Gain, best_k, most_gradients_k};

use super::{Error, Findings, Recipe, Trial};
use crate::statistics::Interval;
use crate::table::Table;

pub(super) const RECIPE: Recipe = Recipe {
    name: "dbw-argmax",
    title: "How many gradients are worth waiting for",
    file: include_str!("settings/dbw-argmax.toml"),
    remarks: "Where no update promises a gain (r small, eta L large), all 16 are waited for.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GainGrid {
    workers: usize,
    ratios: Vec<f64>,
    best: Vec<BestOfRatios>,
    /// Random part of the time, and the k with the most gradients per second.
    blind: Vec<(f64, usize)>,
}

/// The best k at each ratio.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BestOfRatios {
    eta_l: f64,
    k: Vec<usize>,
}

/// Returns the mean time at which the k-th of `n` comes, for each k. A part `alpha` of the time is exponential and the
/// rest constant.
fn times(n: usize, alpha: f64) -> Vec<f64> {
    let harmonic = |n: usize| (1..=n).map(|index| 1.0 / index as f64).sum::<f64>();
    (1..=n).map(|k| 1.0 - alpha + alpha * (harmonic(n) - harmonic(n - k))).collect()
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let GainGrid { workers, ratios, best, blind } = trial.settings()?.grid;
    let figure =
        Figure::new("How many of 16 gradients are worth waiting for").subtitle("circles: the exact table");
    let mut findings = Findings::new(figure.columns(2));
    let heading = ["eta L".to_owned()].into_iter().chain(ratios.iter().map(|r| format!("r = {r}")));
    let mut table = Table::new(heading);
    let x = Axis::log("r = |grad F|^2 / V");
    let mut panel =
        Panel::new(x, Axis::linear("best k").between(0.0, 17.0)).titled("The most gain per second");
    let (mut differ, mut circles) = (0u32, Vec::new());
    for BestOfRatios { eta_l, k: expected } in &best {
        let gain =
            |ratio: f64| Gain { learning_rate: 1.0, smoothness: *eta_l, norm_squared: ratio, variance: 1.0 };
        let ours: Vec<usize> =
            ratios.iter().map(|ratio| best_k(&gain(*ratio), &times(workers, 1.0))).collect();
        for ((ratio, k), expected) in ratios.iter().zip(&ours).zip(expected) {
            findings.rows.push(json!({ "eta_l": eta_l, "ratio": ratio, "k": k, "expected": expected }));
            differ += u32::from(k != expected);
        }
        let cells = ours.iter().zip(expected).map(|(k, expected)| format!("{k} ({expected})"));
        table.row(std::iter::once(eta_l.to_string()).chain(cells));
        let points = |k: &[usize]| -> Vec<(f64, f64)> {
            ratios.iter().zip(k).map(|(ratio, k)| (*ratio, *k as f64)).collect()
        };
        panel.series.push(Series::marked(format!("eta L = {eta_l}"), points(&ours)));
        circles.extend(points(expected));
    }
    panel.series.push(Series::expected("expected", circles));
    findings.measure("cells", "", Interval::exact(differ.into()));

    let mut by_part = Table::new(["random part of the time", "k", "expected"]);
    let (mut differ, mut bars) = (0u32, Vec::new());
    for (index, (part, expected)) in (0..).zip(&blind) {
        let k = most_gradients_k(&times(workers, *part));
        differ += u32::from(k != *expected);
        by_part.row([part.to_string(), k.to_string(), expected.to_string()]);
        bars.push((f64::from(index), k as f64));
    }
    findings.measure("blind", "", Interval::exact(differ.into()));
    let x = Axis::names("random part of the time", blind.iter().map(|(part, _)| part.to_string()));
    let second = Panel::new(x, Axis::linear("k").between(0.0, 17.0))
        .titled("The most gradients per second")
        .with(Series::bars("whatever they are worth", bars));
    findings.figure = findings.figure.panel(panel).panel(second);
    findings.tables.push(("The best k (expected in brackets)".into(), table));
    findings.tables.push(("Blind to what gradients are worth".into(), by_part));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    /// With step size and smoothness in one number l: (1 - l / 2) r - l / (2 k), over the time; all 16 if none gains.
    #[test]
    fn the_table_is_that_of_the_published_bound() {
        let grid = Settings::<GainGrid>::read(RECIPE.file).unwrap().grid;
        let time = |k: u32| (16 - k + 1..=16).map(|left| 1.0 / f64::from(left)).sum::<f64>();
        for BestOfRatios { eta_l, k: table } in &grid.best {
            for (ratio, expected) in grid.ratios.iter().zip(table) {
                let rate = |k: u32| ((1.0 - eta_l / 2.0) * ratio - eta_l / (2.0 * f64::from(k))) / time(k);
                let best = (1..=16).max_by(|a, b| rate(*a).total_cmp(&rate(*b))).unwrap();
                let best = if rate(best) > 0.0 { best } else { 16 };
                assert_eq!(best as usize, *expected, "eta L = {eta_l}, r = {ratio}");
            }
        }
    }
}
