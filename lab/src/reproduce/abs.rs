//! ABS in training, against its relatives, in time and in messages.

use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde::Deserialize;
use serde_json::json;
use slackline::scheme::{Damping, SchemeConfig, WaitFor};
use slackline::sim::{Cluster, ClusterReport, Problem, Random, Until};

use super::settings::LogisticSettings;
use super::tuned::{Tuned, missed, times};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "abs",
    title: "ABS in time and in messages",
    file: include_str!("settings/abs.toml"),
    remarks: "With one step size for all, few gradients per update are quick until their noise keeps the loss \
              up, and many are slow from the start: growing K is worth it. Most of that gain is AdaSync's. Where \
              each scheme has its own best step size, a smaller one does against noise what a larger K does. By \
              the loss of each update K grows far beyond what its rule gives on the true loss, on the noise of \
              mini-batches of 2 alone; over an interval of time it lags behind the rule instead. That the lag \
              is no more than 1 with a step size of a sixteenth, where the loss falls little within the \
              interval, did not hold in nine of ten runs with other seeds.",
    run: |trial| run(trial, "abs"),
};

pub(super) const SORTED: Recipe = Recipe {
    name: "abs-sorted",
    title: "ABS where each worker knows one class",
    file: include_str!("settings/abs-sorted.toml"),
    remarks: "Nothing falls apart on sorted shards here: gradients that come late are folded in or made \
              again, and who is slow does not have the same label in each run. At its best step size each of the \
              schemes that do not wait for all is about as fast as ABS; with one step size for all, those that \
              wait for the fewest are ahead of it. Local SGD, whose workers drift towards their own labels \
              between two means, is the one that suffers, and saves no messages here.",
    run: |trial| run(trial, "abs-sorted"),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AbsGrid {
    workers: usize,
    compute: String,
    /// Each worker's own pace is between these, the same under every scheme.
    paces: [f64; 2],
    /// What is learnt; the digits, sorted by label and dealt out, if there is nothing.
    #[serde(default)]
    logistic: Option<LogisticSettings>,
    batch: usize,
    evaluate_every: f64,
    step_sizes: Vec<f32>,
    /// The step size that all share.
    common: f32,
    /// A step size at which the loss hardly falls within the interval over which it is taken.
    #[serde(default)]
    slow: Option<f32>,
    target: f64,
    within: f64,
    /// The one that the others are set against.
    ours: String,
    schemes: Vec<Relative>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Relative {
    /// The part of the names of checks that is its own.
    id: String,
    name: String,
    text: String,
    /// Gradients weigh less the staler they are.
    #[serde(default)]
    damped: bool,
    /// The one that it is set against, where that is not the one that most are set against.
    #[serde(default)]
    over: Option<String>,
}

impl AbsGrid {
    /// Where the scheme stands that has this id, if there is one.
    fn index(&self, id: &str) -> Option<usize> {
        self.schemes.iter().position(|entry| entry.id == *id)
    }

    fn problem(&self, seed: u64) -> Result<Box<dyn Problem>, Error> {
        Ok(match &self.logistic {
            Some(logistic) => Box::new(logistic.with_batches_of(self.batch).in_order(seed)),
            None => Box::new(Digits::sorted(self.workers, self.batch, seed)?),
        })
    }

    fn factors(&self, seed: u64) -> Vec<f64> {
        let mut random = Random::stream(seed, 0x7061_6365, 0);
        let [from, to] = self.paces;
        (0..self.workers).map(|_| from * (to / from).powf(random.unit())).collect()
    }
}

/// K at the beginning, and the seconds over which the loss is taken, where it is.
fn rule(scheme: SchemeConfig) -> Option<(u16, f64)> {
    let SchemeConfig::Abs { wait_for, .. } = scheme else { return None };
    let WaitFor::LossOverTime { millis, .. } = wait_for else { return Some((wait_for.k(), 0.0)) };
    Some((wait_for.k(), f64::from(millis) / 1000.0))
}

fn messages(reports: &[ClusterReport]) -> Vec<f64> {
    let counts = reports.iter().map(|report| &report.counts);
    counts.map(|counts| (counts.uploads + counts.downloads) as f64).collect()
}

fn largest(reports: &[ClusterReport]) -> i64 {
    reports.iter().filter_map(|report| report.lag.max()).max().unwrap_or(0)
}

fn run(trial: &Trial, what: &str) -> Result<Findings, Error> {
    let settings = trial.settings::<AbsGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let schemes: Vec<SchemeConfig> =
        grid.schemes.iter().map(|entry| scheme(&entry.text)).collect::<Result<_, _>>()?;
    let mut runs = Vec::new();
    for (entry, scheme) in grid.schemes.iter().zip(&schemes) {
        for rate in &grid.step_sizes {
            runs.extend(seeds.iter().map(|seed| (entry, *scheme, *rate, *seed)));
        }
    }
    let reports = simulate(what, &runs, |(entry, scheme, rate, seed)| {
        let mut cluster = Cluster::new(*scheme, grid.workers, *seed);
        cluster.damping = if entry.damped { Damping::Inverse } else { Damping::None };
        cluster.compute = grid.compute.parse()?;
        cluster.factors = grid.factors(*seed);
        cluster.problem = Some(grid.problem(*seed)?);
        cluster.learning_rate = *rate;
        cluster.until = Until::Loss { target: grid.target, within: grid.within };
        cluster.evaluate_every = Some(grid.evaluate_every);
        Ok(cluster)
    })?;
    let of_scheme = grid.step_sizes.len() * seeds.len();
    let score = |report: &ClusterReport| report.reached.unwrap_or(grid.within);
    let tuned: Vec<Tuned> =
        reports.chunks(of_scheme).map(|own| Tuned::new(&grid.step_sizes, own, &score)).collect();
    let index_of = |rate: f32| grid.step_sizes.iter().position(|own| *own == rate).unwrap_or(0);
    let common = index_of(grid.common);
    let ours = grid.index(&grid.ours).unwrap_or(0);

    let mut findings = Findings::new(figure(grid, &tuned, common, ours));
    let of_all = format!("all with step size {}", grid.common);
    for (which, caption) in [("common", of_all.as_str()), ("best", "each with its best step size")] {
        let own = |at: usize| match which {
            "common" => tuned[at].of(common),
            _ => tuned[at].best_runs(),
        };
        let heading = [
            "scheme",
            "step size",
            "time, s",
            "updates",
            "messages",
            "mean staleness",
            "largest",
            "restarts",
        ];
        let mut table = Table::new(heading);
        for (at, entry) in grid.schemes.iter().enumerate() {
            let (runs, step) = (own(at), if which == "common" { grid.common } else { tuned[at].step_size() });
            let (time, sent) = (times(runs, grid.within), messages(runs));
            let average = |of: fn(&ClusterReport) -> f64| mean(runs.iter().map(of));
            let (versions, restarts) =
                (average(|run| run.versions as f64), average(|run| run.counts.interrupted as f64));
            let staleness = mean(runs.iter().filter_map(|run| run.lag.mean()));
            table.row([
                entry.name.clone(),
                step.to_string(),
                number(mean(time.iter().copied())) + &missed(runs),
                number(versions),
                number(mean(sent.iter().copied())),
                format!("{staleness:.2}"),
                largest(runs).to_string(),
                number(restarts),
            ]);
            let is_ours = entry.id.starts_with(&grid.ours);
            if is_ours {
                findings.measure("bound", "", Interval::exact(largest(runs) as f64));
            }
            // A name that stands for nothing leaves its claims without a value.
            let base = match &entry.over {
                Some(id) => grid.index(id),
                None => (!is_ours).then_some(ours),
            };
            if let Some(base) = base {
                let over = |all: fn(&[ClusterReport], f64) -> Vec<f64>| {
                    Interval::of_ratio(&all(runs, grid.within), &all(own(base), grid.within))
                };
                findings.measure(format!("time-{}-{which}", entry.id), "", over(times));
                findings.measure(
                    format!("messages-{}-{which}", entry.id),
                    "",
                    over(|runs, _| messages(runs)),
                );
            }
        }
        findings.tables.push((format!("To a loss of {}, {caption}", grid.target), table));
    }
    for (entry, own) in grid.schemes.iter().zip(&tuned) {
        findings.rows.push(json!({
            "scheme": entry.id, "times": own.record_of_scores(),
            "messages": own.record(|report| messages(std::slice::from_ref(report))[0]),
            "largest": own.record(|report| largest(std::slice::from_ref(report)) as f64),
            "restarts": own.record(|report| report.counts.interrupted as f64),
        }));
    }
    let of_k = [
        ("abs", "k-of-updates", Some(grid.common)),
        ("abs-interval", "k-over-time", Some(grid.common)),
        ("abs-interval", "k-over-time-slow", grid.slow),
    ];
    for (id, name, rate) in of_k {
        let own = grid.index(id).and_then(|own| Some((own, rule(schemes[own])?)));
        // How the loss of a worker's own examples moves K says nothing where those of others are of another class.
        let (Some((own, (k, from))), Some(rate), false) = (own, rate, grid.logistic.is_none()) else {
            continue;
        };
        let runs = tuned[own].of(index_of(rate));
        let all = runs.iter().map(|run| furthest_k(run, k, from));
        let furthest = all.max_by(|a, b| a.abs().total_cmp(&b.abs()));
        findings.measure(name, "", Interval::exact(furthest.unwrap_or(f64::NAN)));
    }
    let ends = tuned.iter().map(Tuned::ends).sum();
    findings.measure("grid", "", Interval::exact(ends));
    Ok(findings)
}

/// How far K, `first_k` at first, is from what its rule gives on the true loss, where it is furthest from `from` on.
fn furthest_k(run: &ClusterReport, first_k: u16, from: f64) -> f64 {
    let Some(first) = run.curve.first() else { return f64::NAN };
    let off = run.curve.iter().filter(|point| point.time > from).map(|point| {
        let rule = (f64::from(first_k) * (first.loss / point.loss).sqrt()).ceil().min(run.workers as f64);
        let last = run.waited_for.iter().take_while(|change| change.time <= point.time).last();
        last.map_or(0.0, |change| change.gradients as f64 - rule)
    });
    off.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
}

fn figure(grid: &AbsGrid, tuned: &[Tuned], common: usize, ours: usize) -> Figure {
    let shown = &tuned[ours].of(common)[0];
    let until = |value: f64| 3.0 * value;
    let mut by_time =
        Panel::new(Axis::linear("virtual time, s").between(0.0, until(shown.end)), Axis::log("loss"));
    let sent = messages(std::slice::from_ref(shown))[0];
    let mut by_messages = Panel::new(Axis::linear("messages").between(0.0, until(sent)), Axis::log("loss"));
    for (entry, own) in grid.schemes.iter().zip(tuned) {
        let report = &own.of(common)[0];
        by_time
            .series
            .push(Series::line(&entry.name, report.curve.iter().map(|point| (point.time, point.loss))));
        // Messages come at an even rate over a run.
        let rate = messages(std::slice::from_ref(report))[0] / report.end;
        let points = report.curve.iter().map(|point| (rate * point.time, point.loss));
        by_messages.series.push(Series::line(&entry.name, points));
    }
    Figure::new("ABS and its relatives")
        .subtitle("20 workers of different pace, one step size for all")
        .columns(2)
        .panel(by_time.titled("Loss against time"))
        .panel(by_messages.titled("Loss against messages"))
}
