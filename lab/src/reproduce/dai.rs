//! The effect of delay on training, by depth and by optimiser.

use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde_json::json;
use slackline::{
    AdamParameters, Optimizer,
    sim::{Cluster, Distribution, Until},
};

use super::{Check, Error, Findings, Recipe, mean, scheme, simulate};
use crate::table::{Table, number};

const WORKERS: usize = 4;
const DELAYS: [u64; 4] = [0, 4, 8, 16];
const DEPTHS: [usize; 4] = [0, 1, 3, 6];
const WIDTH: usize = 32;
const SEEDS: u64 = 2;
const TARGET: f64 = 0.3;
const ROUNDS_MAX: f64 = 2000.0;

pub(super) const RECIPE: Recipe = Recipe {
    name: "dai",
    title: "Depth and momentum suffer from delay",
    claim: "The rounds that training takes grow with the delay; more for deeper networks, and more with \
            momentum, Adam and RMSProp than with SGD.",
    source: "Dai, Zhou, Dong, Zhang, Xing, arXiv 1810.03264",
    setup: "4 workers, every gradient folded 0 to s rounds late, uniformly; perceptrons with 0, 1, 3 and 6 \
            hidden layers of 32 units on the digits, batches of 32, until the loss is 0.3 (at most 2,000 \
            rounds); SGD with step size 0.1, momentum 0.9 with 0.01 (the same speed without delay), Adam \
            with 0.002; mean of 2 seeds. A run that does not get there counts as 2,000 rounds.",
    remarks: "The paper draws a delay for every pair of an update and a reader; here one is drawn for each \
              update, the same for all readers. Softmax regression, which is convex, does not notice delays \
              of 16 rounds at this step size.",
    run,
};

/// One curve: a network and an optimiser.
struct Kind {
    name: String,
    depth: usize,
    optimizer: Optimizer,
    rate: f32,
}

fn kinds() -> Vec<Kind> {
    let sgd = Optimizer::Sgd { weight_decay: 0.0 };
    let name = |depth: usize| match depth {
        0 => "softmax".into(),
        1 => "1 hidden layer".into(),
        depth => format!("{depth} hidden layers"),
    };
    let mut kinds: Vec<_> = DEPTHS
        .iter()
        .map(|depth| Kind { name: name(*depth), depth: *depth, optimizer: sgd, rate: 0.1 })
        .collect();
    let momentum = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
    let adam = Optimizer::Adam(AdamParameters::new(0.0));
    kinds.push(Kind { name: "1 hidden layer, momentum".into(), depth: 1, optimizer: momentum, rate: 0.01 });
    kinds.push(Kind { name: "1 hidden layer, Adam".into(), depth: 1, optimizer: adam, rate: 0.002 });
    kinds
}

fn run(seed: u64) -> Result<Findings, Error> {
    let kinds = kinds();
    let mut runs = Vec::new();
    for kind in 0..kinds.len() {
        for delay in DELAYS {
            runs.extend((0..SEEDS).map(|more| (kind, delay, seed + more)));
        }
    }
    let reports = simulate("dai", &runs, |(kind, delay, seed)| {
        let Kind { depth, optimizer, rate, .. } = &kinds[*kind];
        let mut cluster =
            Cluster::new(scheme(&format!("delay(staleness={delay}, seed={seed})"))?, WORKERS, *seed);
        // A round is a second.
        cluster.compute = Distribution::Constant { seconds: 1.0 };
        let digits = Digits::tower(*depth, WIDTH, WORKERS, 32, *seed)?;
        cluster.problem = Some(Box::new(digits));
        cluster.optimizer = *optimizer;
        cluster.learning_rate = *rate;
        cluster.until = Until::Loss { target: TARGET, within: ROUNDS_MAX };
        cluster.evaluate_every = Some(4.0);
        Ok(cluster)
    })?;
    let rounds = |kind: usize, delay: usize| {
        let own = &reports[(kind * DELAYS.len() + delay) * SEEDS as usize..][..SEEDS as usize];
        let missed = own.iter().filter(|report| report.reached.is_none()).count();
        (mean(own.iter().map(|report| report.reached.unwrap_or(ROUNDS_MAX))), missed)
    };
    let heading = std::iter::once("network".to_owned()).chain(DELAYS.map(|delay| format!("s = {delay}")));
    let mut table = Table::new(heading);
    let mut rows = Vec::new();
    let axes = || {
        (
            Axis::names("delay s", DELAYS.map(|s| s.to_string())),
            Axis::linear("rounds, times those without delay"),
        )
    };
    let (x, y) = axes();
    let mut by_depth = Panel::new(x, y).titled("By depth, SGD");
    let (x, y) = axes();
    let mut by_optimizer = Panel::new(x, y).titled("By optimiser, 1 hidden layer");
    let mut slowdowns = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let base = rounds(index, 0).0;
        let cells = (0..DELAYS.len()).map(|delay| {
            let (count, missed) = rounds(index, delay);
            let mark = if missed > 0 { format!(", {missed} of {SEEDS} not there") } else { String::new() };
            format!("{} ({:.1}x{mark})", number(count), count / base)
        });
        table.row(std::iter::once(kind.name.clone()).chain(cells));
        for (delay, s) in DELAYS.iter().enumerate() {
            let (count, missed) = rounds(index, delay);
            rows.push(json!({
                "network": kind.name, "depth": kind.depth, "delay": s, "rounds": count, "slowdown": count / base,
                "missed": missed,
            }));
        }
        let points: Vec<_> =
            (0..DELAYS.len()).map(|delay| (delay as f64, rounds(index, delay).0 / base)).collect();
        slowdowns.push(points.iter().map(|point| point.1).collect::<Vec<_>>());
        if index < DEPTHS.len() {
            by_depth.series.push(Series::marked(&kind.name, points.clone()));
        }
        if index == 1 || index >= DEPTHS.len() {
            let name = ["SGD", "momentum", "Adam"][index.saturating_sub(DEPTHS.len() - 1).min(2)];
            by_optimizer.series.push(Series::marked(name, points));
        }
    }
    let at = 3;
    let depths: Vec<f64> = (0..DEPTHS.len()).map(|index| slowdowns[index][at]).collect();
    let [sgd, momentum, adam] = [1, DEPTHS.len(), DEPTHS.len() + 1].map(|index| slowdowns[index][at]);
    let checks = vec![
        Check::new(
            "rounds at s = 16 over those without delay, by depth 0, 1, 3, 6",
            "grows with depth",
            depths.iter().map(|slowdown| format!("{slowdown:.2}")).collect::<Vec<_>>().join(", "),
            depths.windows(2).all(|pair| pair[1] >= pair[0]),
        ),
        Check::new(
            "the same, momentum against SGD",
            "more",
            format!("{momentum:.2} against {sgd:.2}"),
            momentum > sgd,
        ),
        Check::new("the same, Adam against SGD", "more", format!("{adam:.2} against {sgd:.2}"), adam > sgd),
    ];
    let figure = Figure::new("What delay costs")
        .subtitle("4 workers on the digits; rounds to a loss of 0.3, times those without delay")
        .columns(2)
        .panel(by_depth)
        .panel(by_optimizer);
    Ok(Findings { tables: vec![("Rounds to a loss of 0.3".into(), table)], rows, checks, figure })
}
