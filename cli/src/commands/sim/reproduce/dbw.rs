//! DBW in training: against every static k, over step sizes, batches and laws of time.

use serde_json::json;
use slackline::scheme::Config;
use slackline::sim::{Change, Cluster, Law, Logistic, Report, Until};
use slackline_cli::plot::{Axis, Figure, Panel, Series};

use super::{Check, Findings, Recipe, mean, scheme, simulate};
use crate::failure::Failure;
use crate::table::{Table, number};

const N: usize = 16;
/// What the examples are drawn from; seeds differ in times.
const DATA: u64 = 1;
const SEEDS: u64 = 2;
const RATES: [f32; 3] = [0.1, 0.4, 1.6];
const BATCHES: [usize; 2] = [8, 200];
const TARGET: f64 = 0.27;
const WITHIN: f64 = 800.0;

/// When half the workers become slower, and by how much.
const SLOW_AT: f64 = 20.0;
const SLOW_BY: f64 = 5.0;

pub(super) const RECIPE: Recipe = Recipe {
    name: "dbw",
    title: "DBW finds the number of workers to wait for",
    claim: "Time to a target loss is never worse than 1.1 times that of the best static k, and in some \
            setting up to 3 times better than with a fixed choice; the best static k changes with step size, \
            batch and times.",
    source: "Xu, Neglia, Sebastianelli, arXiv 2004.14696",
    setup: "16 workers, push and interrupt; logistic regression on 2,000 synthetic examples until the loss \
            is 0.27 (its least is 0.258); step sizes 0.1, 0.4 and 1.6, batches of 8 and 200, times shifted \
            exponential (0.8 s and a random part of mean 0.2 s), exponential, and Pareto (shape 1.5), all of \
            mean 1 s; besides, shifted exponential times with half the workers five times slower from 20 s \
            on. Mean of 2 seeds, a run that is not there after 800 s counting as 800 s; every static k \
            from 1 to 16, DBW, and DBW that is blind to what gradients are worth.",
    remarks: "Two things bound DBW here. Its first five versions wait for all 16 (it must see variances and \
              times), and under exponential or Pareto times one such version takes as long as dozens that \
              wait for one. And what a version gains is estimated from losses and gradients of mini-batches, \
              whose noise is larger than what a step changes when batches or steps are small; when that says \
              that nothing gains, DBW waits for all. Its place is where times are not that wild and batches \
              are large, as in the paper (500 examples and more); blind DBW, which looks at times only, is \
              the safer choice under heavy tails with small batches.",
    run,
};

/// Everything but how k is chosen.
#[derive(Clone, Debug)]
struct Setting {
    name: &'static str,
    law: Law,
    rate: f32,
    batch: usize,
    changes: Vec<Change>,
}

fn settings() -> Vec<Setting> {
    let laws = [
        ("shifted-exp", Law::ShiftedExponential { shift: 0.8, mean: 0.2 }, false),
        ("exp", Law::Exponential { mean: 1.0 }, false),
        ("pareto", Law::Pareto { shape: 1.5, scale: 1.0 / 3.0 }, false),
        ("half slowed", Law::ShiftedExponential { shift: 0.8, mean: 0.2 }, true),
    ];
    let mut all = Vec::new();
    for (name, law, is_slowed) in laws {
        for rate in RATES {
            for batch in BATCHES {
                let change = Change { at: SLOW_AT, workers: 0..N / 2, factor: SLOW_BY };
                let changes = if is_slowed { vec![change] } else { Vec::new() };
                all.push(Setting { name, law: law.clone(), rate, batch, changes });
            }
        }
    }
    all
}

/// Every static k, then the dynamic choice, then the blind one.
fn schemes() -> Result<Vec<Config>, Failure> {
    let fixed = (1..=N).map(|k| format!("dbw(choice=static, k={k})"));
    fixed.chain(["dbw".to_owned(), "dbw(choice=blind)".to_owned()]).map(|text| scheme(&text)).collect()
}

fn run(seed: u64) -> Result<Findings, Failure> {
    let (settings, schemes) = (settings(), schemes()?);
    let mut runs = Vec::new();
    for setting in 0..settings.len() {
        for scheme in 0..schemes.len() {
            runs.extend((0..SEEDS).map(|more| (setting, scheme, seed + more)));
        }
    }
    let reports = simulate("dbw", &runs, |(setting, scheme, seed)| {
        Ok(cluster(&settings[*setting], schemes[*scheme], *seed))
    })?;
    let of = |setting: usize, scheme: usize| {
        let first = (setting * schemes.len() + scheme) * SEEDS as usize;
        &reports[first..first + SEEDS as usize]
    };
    let time = |setting: usize, scheme: usize| {
        mean(of(setting, scheme).iter().map(|report| report.reached.unwrap_or(WITHIN)))
    };

    let heading = [
        "times",
        "step",
        "batch",
        "best k",
        "its time, s",
        "DBW, s",
        "over best",
        "blind, s",
        "worst k, s",
        "over DBW",
    ];
    let mut table = Table::new(heading);
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    let mut most: f64 = 0.0;
    for (index, setting) in settings.iter().enumerate() {
        let fixed: Vec<f64> = (0..N).map(|scheme| time(index, scheme)).collect();
        let best = (0..N).min_by(|a, b| fixed[*a].total_cmp(&fixed[*b])).unwrap_or(0);
        let worst = fixed.iter().copied().fold(0.0, f64::max);
        let (dynamic, blind) = (time(index, N), time(index, N + 1));
        ratios.push(dynamic / fixed[best]);
        most = most.max(worst / dynamic);
        table.row([
            setting.name.to_owned(),
            setting.rate.to_string(),
            setting.batch.to_string(),
            (best + 1).to_string(),
            number(fixed[best]),
            number(dynamic),
            format!("{:.2}", dynamic / fixed[best]),
            number(blind),
            number(worst),
            format!("{:.1}", worst / dynamic),
        ]);
        rows.push(json!({
            "times": setting.name, "learning_rate": setting.rate.to_string(), "batch": setting.batch,
            "best_k": best + 1, "static": fixed, "dbw": dynamic, "blind": blind,
            "over_best": dynamic / fixed[best],
        }));
    }
    // The fixed choice that loses the least where it loses the most.
    let loses =
        |k: usize| (0..settings.len()).map(|setting| time(setting, k) / time(setting, N)).fold(0.0, f64::max);
    let safest = (0..N).min_by(|a, b| loses(*a).total_cmp(&loses(*b))).unwrap_or(0);
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    let within = ratios.iter().filter(|ratio| **ratio <= 1.1).count();
    let checks = vec![
        Check::new(
            "time over that of the best static k, in every setting",
            "at most 1.1",
            format!("{within} of {} within 1.1; the worst {worst:.2}", ratios.len()),
            worst <= 1.1,
        ),
        Check::new(
            "time of some fixed k over DBW's, in some setting",
            "up to 3",
            format!("{most:.1}"),
            most >= 3.0,
        ),
        Check::new(
            "the same of the fixed k that is safest over all settings",
            "above 1",
            format!("{:.2} (k = {})", loses(safest), safest + 1),
            loses(safest) > 1.0,
        ),
    ];
    let figure = figure(&settings, time, &ratios, |setting| &of(setting, N)[0]);
    Ok(Findings { tables: vec![("Time to a loss of 0.27".into(), table)], rows, checks, figure })
}

fn cluster(setting: &Setting, scheme: Config, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(scheme, N, seed);
    cluster.compute = setting.law.clone();
    cluster.changes = setting.changes.clone();
    cluster.problem = Some(Box::new(Logistic::new(2000, 20, setting.batch, 1e-4, DATA)));
    cluster.learning_rate = setting.rate;
    cluster.until = Until::Loss { target: TARGET, within: WITHIN };
    cluster.evaluate_every = Some(0.5);
    cluster
}

/// Time against k where batches are small, DBW's over that of the best k everywhere, and what k it chose when half the
/// workers became slower.
fn figure<'a>(
    settings: &[Setting],
    time: impl Fn(usize, usize) -> f64,
    over_best: &[f64],
    report: impl Fn(usize) -> &'a Report,
) -> Figure {
    let mut by_k = Panel::new(Axis::linear("static k").between(0.0, 17.0), Axis::log("time to the loss, s"));
    let places: Vec<(f32, usize)> =
        RATES.iter().flat_map(|rate| BATCHES.map(|batch| (*rate, batch))).collect();
    let names = places.iter().map(|(rate, batch)| format!("{rate}/{batch}"));
    let mut ratios = Panel::new(
        Axis::names("step size/batch", names),
        Axis::log("DBW's time over the best k's").between(1.0, 20.0),
    );
    for (first, setting) in settings.iter().enumerate().step_by(places.len()) {
        let shown = first + places.iter().position(|place| *place == (1.6, 8)).unwrap_or(0);
        by_k.series.push(Series::line(setting.name, (0..N).map(|k| ((k + 1) as f64, time(shown, k)))));
        let own = over_best[first..].iter().take(places.len());
        ratios
            .series
            .push(Series::bars(setting.name, own.enumerate().map(|(at, ratio)| (at as f64, *ratio))));
    }
    ratios
        .series
        .push(Series::guide("1.1 times the best k", [(-0.5, 1.1), (places.len() as f64 - 0.5, 1.1)]));
    let slowed = settings
        .iter()
        .position(|setting| !setting.changes.is_empty() && (setting.rate, setting.batch) == (1.6, 8));
    let report = report(slowed.unwrap_or(0));
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for step in &report.waited_for {
        steps.extend(steps.last().map(|last| (step.time, last.1)));
        steps.push((step.time, step.gradients as f64));
    }
    let chosen = Panel::new(Axis::linear("virtual time, s"), Axis::linear("k of DBW").between(0.0, 17.0))
        .with(Series::line("half slowed", steps))
        .with(Series::guide("half are slower from here on", [(SLOW_AT, 0.0), (SLOW_AT, 17.0)]));
    Figure::new("DBW against every static number of workers")
        .columns(2)
        .subtitle("16 workers, logistic regression; time to a loss of 0.27, mean of 2 seeds")
        .panel(by_k.titled("Step size 1.6, batches of 8"))
        .panel(ratios.titled("DBW and the best k"))
        .panel(chosen.titled("Half the workers slowed"))
}
