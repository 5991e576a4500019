//! BAP: what running ahead buys under jitter, and that it buys nothing against one slow machine.

use crate::model::ModelKind;
use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, Distribution, Until};

use super::{Check, Error, Findings, Recipe, mean, simulate};
use crate::table::Table;

const STALENESS: [u64; 6] = [0, 1, 2, 4, 8, 16];

/// By workers: mean time per clock at each staleness, from the recurrence `f[c,i] = max(f[c-1,i], max_j f[c-1-s,j]) +
/// x[c,i]` over 3 million clocks.
#[allow(clippy::approx_constant)] // 2.718 is H_8, and not e
const EXPECTED: [(usize, [f64; 6]); 3] = [
    (4, [2.083, 1.515, 1.337, 1.199, 1.109, 1.058]),
    (8, [2.718, 1.793, 1.509, 1.296, 1.161, 1.084]),
    (16, [3.381, 2.080, 1.687, 1.394, 1.212, 1.110]),
];

/// Enough for 0.5 % in every cell.
const CLOCKS: u64 = 60_000;

/// Of the runs that learn.
const SEEDS: u64 = 5;
const TARGET: f64 = 0.15;

pub(super) const RECIPE: Recipe = Recipe {
    name: "bap",
    title: "BAP hides jitter",
    claim: "Workers that may run ahead of the newest version by a bounded number of clocks are 1.2 to 2 \
            times as fast as in lock step.",
    source: "Li, Wan, Jiang, Long: BAP, HPCC 2016, abstract; the table is from a recurrence of our own",
    setup: "N workers with exponential times of mean 1 s, no network, 60,000 clocks for each cell. Below it \
            8 workers learn the digits (softmax regression, batches of 32, step size 0.5) until the loss is \
            0.15, mean of 5 seeds.",
    remarks: "The gain in time per clock grows with the workers and the run-ahead, and goes beyond the paper's \
              range for 8 workers and for 16: exponential times, harsher than those of real machines, leave the \
              most to win. On the digits the gain carries over to the time to a loss, and is beyond that range \
              too from a run-ahead of 4 on. A run-ahead of 16 is near the edge of what this step size bears: its \
              loss leaps on the way.",
    run,
};

pub(super) const STRAGGLER: Recipe = Recipe {
    name: "bap-straggler",
    title: "No staleness hides a machine that is always slow",
    claim: "With one worker that is three times slower all the time, every finite staleness gives \
            the rate of lock step.",
    source: "follows from the bound: in the long run no worker can be faster than the slowest, plus s clocks",
    setup: "8 workers, one of them three times slower; times constant (1 s), or exponential of mean 1 s; 4,000 clocks.",
    remarks: "With exponential times there is jitter to hide as well: running ahead takes the time per clock \
              down to the 3 s of the slow worker, and never below.",
    run: straggler,
};

fn job(staleness: u64, workers: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(SchemeConfig::Bap { staleness }, workers, seed);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster
}

fn run(seed: u64) -> Result<Findings, Error> {
    // The longest first, so that no core is idle at the end.
    let mut cells: Vec<(usize, u64)> =
        EXPECTED.iter().flat_map(|(workers, _)| STALENESS.map(|staleness| (*workers, staleness))).collect();
    cells.sort_by_key(|(workers, _)| std::cmp::Reverse(*workers));
    let reports = simulate("bap: time per clock", &cells, |(workers, staleness)| {
        let mut cluster = job(*staleness, *workers, seed);
        cluster.until = Until::Clocks(CLOCKS);
        Ok(cluster)
    })?;
    let time = |workers: usize, staleness: u64| {
        let at = cells.iter().position(|cell| *cell == (workers, staleness));
        at.map_or(f64::NAN, |at| reports[at].mean_time_per_clock)
    };

    let mut table = Table::new(["N", "s = 0", "1", "2", "4", "8", "16", "best over BSP"]);
    let mut panel = Panel::new(
        Axis::names("staleness s", STALENESS.map(|s| s.to_string())),
        Axis::linear("mean time per clock, s"),
    );
    let (mut rows, mut worst) = (Vec::new(), 0.0f64);
    let mut circles = Vec::new();
    for (workers, expected) in EXPECTED {
        let ours = STALENESS.map(|staleness| time(workers, staleness));
        for ((staleness, ours), expected) in STALENESS.iter().zip(ours).zip(expected) {
            worst = worst.max((ours / expected - 1.0).abs());
            rows.push(json!({
                "workers": workers, "staleness": staleness, "mean_time_per_clock": ours, "expected": expected,
            }));
        }
        let cells = ours.iter().zip(expected).map(|(ours, expected)| format!("{ours:.3} ({expected:.3})"));
        let gain = format!("{:.2}", ours[0] / ours[5]);
        table.row(std::iter::once(workers.to_string()).chain(cells).chain([gain]));
        panel.series.push(Series::marked(format!("N = {workers}"), (0..).map(f64::from).zip(ours)));
        circles.extend((0..).map(f64::from).zip(expected));
    }
    panel.series.push(Series::expected("expected", circles));

    let runs: Vec<(u64, u64)> =
        [0, 1, 4, 16].iter().flat_map(|s| (0..SEEDS).map(move |other| (*s, seed + other))).collect();
    let learnt = simulate("bap: learning", &runs, |(staleness, seed)| {
        let mut cluster = job(*staleness, 8, *seed);
        let digits = Digits::new(ModelKind::Softmax, 0, 8, 32, *seed)?;
        cluster.problem = Some(Box::new(digits));
        cluster.learning_rate = 0.5;
        cluster.until = Until::Loss { target: TARGET, within: 5000.0 };
        Ok(cluster)
    })?;
    let reached = |staleness: u64| {
        let of = runs.iter().zip(&learnt).filter(|((s, _), _)| *s == staleness);
        mean(of.map(|(_, report)| report.reached.unwrap_or(f64::INFINITY)))
    };
    let mut curves =
        Panel::new(Axis::linear("virtual time, s"), Axis::log("loss")).titled("The digits, N = 8");
    let mut times = Table::new(["staleness", "time to the loss, s", "times as fast as BSP"]);
    for staleness in [0, 1, 4, 16] {
        let at = runs.iter().position(|run| *run == (staleness, seed)).unwrap_or(0);
        let points = learnt[at].curve.iter().map(|point| (point.time, point.loss));
        let name = if staleness == 0 { "bsp".into() } else { format!("bap({staleness})") };
        curves.series.push(Series::line(name, points));
        let (time, gain) = (reached(staleness), reached(0) / reached(staleness));
        times.row([staleness.to_string(), format!("{time:.1}"), format!("{gain:.2}")]);
    }
    let gains = [1, 4, 16].map(|staleness| reached(0) / reached(staleness));
    let checks = vec![
        Check::new(
            "mean time per clock, all 18 cells",
            "within 2 %",
            format!("within {:.2} %", 100.0 * worst),
            worst <= 0.02,
        ),
        Check::new(
            "time of BSP to a loss under jitter, over BAP's",
            "1.2 to 2 times",
            gains.map(|gain| format!("{gain:.2}")).join(", ") + " times (s = 1, 4, 16)",
            gains.iter().all(|gain| (1.2..=2.0).contains(gain)),
        ),
    ];
    let figure = Figure::new("BAP: running ahead hides jitter")
        .subtitle("exponential times of mean 1 s; circles: the recurrence")
        .columns(2)
        .panel(panel.titled("Time per clock"))
        .panel(curves);
    let tables = vec![
        ("Mean time per clock, s (expected in brackets)".into(), table),
        ("8 workers on the digits".into(), times),
    ];
    Ok(Findings { tables, rows, checks, figure })
}

fn straggler(seed: u64) -> Result<Findings, Error> {
    let distributions = [
        ("constant", Distribution::Constant { seconds: 1.0 }),
        ("exponential", Distribution::Exponential { mean: 1.0 }),
    ];
    let cells: Vec<_> = distributions
        .iter()
        .flat_map(|distribution| [0, 1, 4, 16].map(|staleness| (distribution, staleness)))
        .collect();
    let reports = simulate("bap-straggler", &cells, |((_, distribution), staleness)| {
        let mut cluster = job(*staleness, 8, seed);
        cluster.compute = distribution.clone();
        cluster.factors = vec![3.0];
        cluster.until = Until::Clocks(4000);
        Ok(cluster)
    })?;
    let mut table = Table::new(["times", "staleness", "mean time per clock, s", "times as fast as BSP"]);
    let mut panel =
        Panel::new(Axis::names("staleness s", ["0", "1", "4", "16"]), Axis::linear("mean time per clock, s"));
    let mut rows = Vec::new();
    for (index, (name, _)) in distributions.iter().enumerate() {
        let own = &reports[4 * index..][..4];
        for (report, staleness) in own.iter().zip([0, 1, 4, 16]) {
            let time = report.mean_time_per_clock;
            let gain = own[0].mean_time_per_clock / time;
            rows.push(json!({ "times": name, "staleness": staleness, "mean_time_per_clock": time }));
            table.row([name.to_string(), staleness.to_string(), format!("{time:.3}"), format!("{gain:.3}")]);
        }
        panel.series.push(Series::bars(
            *name,
            own.iter().enumerate().map(|(at, report)| (at as f64, report.mean_time_per_clock)),
        ));
    }
    panel.series.push(Series::guide("the slow worker alone", [(-0.5, 3.0), (3.5, 3.0)]));
    let constant = &reports[..4];
    let gain = constant[0].mean_time_per_clock / constant[3].mean_time_per_clock;
    let floor = reports.iter().map(|report| report.mean_time_per_clock).fold(f64::INFINITY, f64::min);
    let checks = vec![
        Check::near("constant times: BSP's time over that of s = 16", 1.0, gain, 0.01),
        Check::near("the least time per clock of all", 3.0, floor, 0.02),
    ];
    let figure =
        Figure::new("One worker is three times slower").subtitle("BAP, 8 workers, 4,000 clocks").panel(panel);
    Ok(Findings { tables: vec![(String::from("Mean time per clock"), table)], rows, checks, figure })
}
