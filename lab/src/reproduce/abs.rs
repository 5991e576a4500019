//! ABS in training, against its relatives, in time and in messages.

use crate::plot::{Axis, Figure, Panel, Series};
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, ClusterReport, Distribution, Logistic, Random, Until};

use super::{Check, Error, Findings, Recipe, mean, scheme, simulate};
use crate::table::{Table, number};

const WORKERS: usize = 20;
const SEEDS: u64 = 3;
const RATES: [f32; 4] = [0.25, 0.5, 1.0, 2.0];
/// The index of the step size that all share.
const COMMON: usize = 2;
const BATCH: usize = 2;
/// The seed from which the examples are drawn.
const DATA: u64 = 1;
const TARGET: f64 = 0.27;
const WITHIN: f64 = 2000.0;

/// Every update out of so many at first, the bound, and local steps.
const SCHEMES: [(&str, &str); 7] = [
    ("synchronous", "bsp"),
    ("ASP", "asp"),
    ("K-async, K = 5", "k-async(5)"),
    ("K-async, K = 10", "k-async(10)"),
    ("AdaSync, from K = 5", "adasync(5)"),
    ("ABS, from K = 5, bound 4", "abs(k=5, staleness=4)"),
    ("ABS, 4 local steps", "abs(k=5, staleness=4, local-steps=4)"),
];

pub(super) const RECIPE: Recipe = Recipe {
    name: "abs",
    title: "ABS in time and in messages",
    claim: "Waiting for an adaptive number of workers, with a bound on staleness and forced restarts, \
            reaches a loss in less time and fewer communication rounds than ASP, K-async, AdaSync and \
            synchronous training.",
    source: "Tan, Zhu, Zhang, arXiv 2301.08895; set-up after code of the same group",
    setup: "20 workers, Pareto times (shape 2.5, mean 1 s), each worker with a pace of its own between 0.5 \
            and 2; logistic regression on 2,000 synthetic examples, batches of 2, until the loss is 0.27 \
            (its least is 0.258). First all schemes with one step size, 1.0; then each with the best of 0.25, \
            0.5, 1 and 2. Mean of 3 seeds; a run that is not there after 2,000 s counts as 2,000 s. Local \
            steps cost a gradient's time each.",
    remarks: "With one step size for all, as the literature compares them, few gradients per update are \
              quick until their noise keeps the loss up (K = 5 never gets there), and many are slow from the \
              start: growing K is worth it. Most of that gain is AdaSync's; the bound adds the guarantee and \
              hardly costs time, but each forced restart is one more copy to download. Where each scheme has \
              its own best step size, a smaller one does against noise what a larger K does, and the \
              differences shrink; local steps then save three quarters of the messages.",
    run,
};

/// Each worker's own pace, the same under every scheme.
fn factors(seed: u64) -> Vec<f64> {
    let mut random = Random::stream(seed, 0x7061_6365, 0);
    (0..WORKERS).map(|_| 0.5 * 4f64.powf(random.unit())).collect()
}

/// The result of one scheme with one step size.
struct Outcome {
    time: f64,
    missed: usize,
    versions: f64,
    messages: f64,
    staleness: f64,
    most: i64,
    restarts: f64,
}

impl Outcome {
    fn of(reports: &[ClusterReport]) -> Outcome {
        let counts = || reports.iter().map(|report| &report.counts);
        Outcome {
            time: mean(reports.iter().map(|report| report.reached.unwrap_or(WITHIN))),
            missed: reports.iter().filter(|report| report.reached.is_none()).count(),
            versions: mean(reports.iter().map(|report| report.versions as f64)),
            messages: mean(counts().map(|counts| (counts.uploads + counts.downloads) as f64)),
            staleness: mean(reports.iter().filter_map(|report| report.lag.mean())),
            most: reports.iter().filter_map(|report| report.lag.max()).max().unwrap_or(0),
            restarts: mean(counts().map(|counts| counts.interrupted as f64)),
        }
    }

    /// The time, and how many runs did not get there.
    fn told(&self) -> String {
        let mark =
            if self.missed > 0 { format!(" ({} of {SEEDS} not there)", self.missed) } else { String::new() };
        number(self.time) + &mark
    }
}

fn run(seed: u64) -> Result<Findings, Error> {
    let schemes: Vec<SchemeConfig> =
        SCHEMES.iter().map(|(_, text)| scheme(text)).collect::<Result<_, _>>()?;
    let mut runs = Vec::new();
    for scheme in 0..schemes.len() {
        for rate in RATES {
            runs.extend((0..SEEDS).map(|more| (scheme, rate, seed + more)));
        }
    }
    let reports = simulate("abs", &runs, |(scheme, rate, seed)| {
        let mut cluster = Cluster::new(schemes[*scheme], WORKERS, *seed);
        cluster.compute = Distribution::Pareto { shape: 2.5, scale: 0.6 };
        cluster.factors = factors(*seed);
        // One set of data; seeds differ in times.
        cluster.problem = Some(Box::new(Logistic::new(2000, 20, BATCH, 1e-4, DATA)));
        cluster.learning_rate = *rate;
        cluster.until = Until::Loss { target: TARGET, within: WITHIN };
        cluster.evaluate_every = Some(0.5);
        Ok(cluster)
    })?;
    let seeds = SEEDS as usize;
    let of = |scheme: usize, rate: usize| &reports[(scheme * RATES.len() + rate) * seeds..][..seeds];
    let best = |scheme: usize| {
        let time = |rate: usize| Outcome::of(of(scheme, rate)).time;
        (0..RATES.len()).min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(0)
    };

    let heading = ["scheme", "time, s", "updates", "messages", "mean staleness", "largest", "restarts"];
    let mut common = Table::new(heading);
    let mut tuned = Table::new(["step size"].iter().chain(&heading).copied());
    let (mut rows, mut outcomes, mut own_best) = (Vec::new(), Vec::new(), Vec::new());
    for (scheme, (name, text)) in SCHEMES.iter().enumerate() {
        for (table, rate) in [(&mut common, COMMON), (&mut tuned, best(scheme))] {
            let outcome = Outcome::of(of(scheme, rate));
            let cells = [
                name.to_string(),
                outcome.told(),
                number(outcome.versions),
                number(outcome.messages),
                format!("{:.2}", outcome.staleness),
                outcome.most.to_string(),
                number(outcome.restarts),
            ];
            let is_tuned = outcomes.len() > scheme;
            table.row(is_tuned.then(|| RATES[rate].to_string()).into_iter().chain(cells));
            rows.push(json!({
                "scheme": text, "learning_rate": RATES[rate], "step_size": if is_tuned { "best" } else { "common" },
                "time": outcome.time, "missed": outcome.missed, "versions": outcome.versions,
                "messages": outcome.messages, "mean_staleness": outcome.staleness, "max_staleness": outcome.most,
                "restarts": outcome.restarts,
            }));
            if is_tuned { own_best.push(outcome) } else { outcomes.push(outcome) }
        }
    }
    let abs = SCHEMES.len() - 2;
    let mut checks = Vec::new();
    for (index, (name, _)) in SCHEMES.iter().enumerate().take(abs) {
        let ratio = |all: &[Outcome], what: fn(&Outcome) -> f64| what(&all[index]) / what(&all[abs]);
        let time = ratio(&outcomes, |outcome| outcome.time);
        let messages = ratio(&outcomes, |outcome| outcome.messages);
        let check =
            |what: String, ratio: f64| Check::new(what, "above 1", format!("{ratio:.2}"), ratio > 1.0);
        checks.push(check(format!("time of {name} over that of ABS, one step size"), time));
        checks.push(check(format!("messages of {name} over those of ABS, one step size"), messages));
        let time = ratio(&own_best, |outcome| outcome.time);
        checks.push(check(format!("time of {name} over that of ABS, each its best step size"), time));
    }
    let most = outcomes[abs..].iter().chain(&own_best[abs..]).map(|outcome| outcome.most).max().unwrap_or(0);
    checks.push(Check::new("largest staleness of ABS", "at most 4", most.to_string(), most <= 4));

    let (time, messages) = (outcomes[abs].time, outcomes[abs].messages);
    let mut by_time = Panel::new(Axis::linear("virtual time, s").between(0.0, 3.0 * time), Axis::log("loss"));
    let mut by_messages =
        Panel::new(Axis::linear("messages").between(0.0, 3.0 * messages), Axis::log("loss"));
    for (index, (name, _)) in SCHEMES.iter().enumerate() {
        let report = &of(index, COMMON)[0];
        by_time.series.push(Series::line(*name, report.curve.iter().map(|point| (point.time, point.loss))));
        // Messages come at an even rate over a run.
        let rate = (report.counts.uploads + report.counts.downloads) as f64 / report.end;
        let points = report.curve.iter().map(|point| (rate * point.time, point.loss));
        by_messages.series.push(Series::line(*name, points));
    }
    let figure = Figure::new("ABS and its relatives")
        .subtitle("20 workers of different pace, logistic regression, one step size for all")
        .columns(2)
        .panel(by_time.titled("Loss against time"))
        .panel(by_messages.titled("Loss against messages"));
    let tables = vec![
        ("To a loss of 0.27, all with step size 1".into(), common),
        ("To a loss of 0.27, each with its best step size".into(), tuned),
    ];
    Ok(Findings { tables, rows, checks, figure })
}
