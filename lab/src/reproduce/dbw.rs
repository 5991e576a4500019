//! DBW in training: against every static k, over step sizes, batches and distributions of time.

use crate::plot::{Axis, Figure, Panel, Series};
use serde::Deserialize;
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Change, Cluster, ClusterReport, Distribution, Logistic, Until};

use super::settings::LogisticSettings;
use super::tuned::times;
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "dbw",
    title: "DBW finds the number of workers to wait for",
    file: include_str!("settings/dbw.toml"),
    remarks: "Under exponential times the first of 16 gradients comes after a sixteenth of the mean time, and \
              each version that waits for a few more, because estimates are noisy or to see a variance, costs as \
              much as several that wait for one. Where most of what a step gains is lost to noise, our estimates \
              hardly tell the gradient from its noise; there the only sign is a loss that no longer falls, which \
              is seen late. The published form, whose estimates are means over five updates, is often faster \
              there (dbw-published). Blind DBW, which looks at times alone and so waits for many, is ahead of \
              ours in most of the settings of the third grid, and the oracle of dbw-oracle, which is told the \
              noise, is ahead of all three. No form is within 1.1 of the best static k in every setting: that is \
              missed. The oracle shows that the rule cannot be; the estimates of ours could be better where \
              noise is large, and were not made so. The settings in which half are slowed were chosen because \
              the best static k is at least 12 in all of them by the first seeds; by other seeds it is less in \
              some. The claim that the best static k changes can hardly fail: it sets the largest of all settings \
              against the smallest, and chance alone makes them differ where several k are about as fast. It is one \
              of those that are counted as shown by chance too. Likewise, where a claim takes the setting in which a \
              ratio is largest, its interval is that of one setting alone and does not allow for the choice among \
              all of them: it does not confirm an extreme that was picked.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DbwGrids {
    pub(super) workers: usize,
    /// The factor by which half the workers become slower.
    pub(super) slow_by: f64,
    pub(super) logistic: LogisticSettings,
    /// Seconds between two looks at the loss.
    pub(super) evaluate_every: f64,
    /// DBW, and DBW that is blind to what gradients are worth.
    pub(super) forms: [String; 2],
    /// The most that a choice may be behind the best static k, as the paper has it.
    pub(super) allowed: f64,
    pub(super) grids: Vec<DbwGrid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DbwGrid {
    pub(super) name: String,
    narrowed: f64,
    pub(super) target: f64,
    pub(super) within: f64,
    /// Step sizes and batches.
    pairs: Vec<(f32, usize)>,
    pub(super) times: Vec<Times>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Times {
    pub(super) name: String,
    compute: String,
    /// The second at which half the workers become slower.
    #[serde(default)]
    pub(super) slowed_at: Option<f64>,
    /// The step sizes and batches, where they are not all of the grid's.
    #[serde(default)]
    pairs: Option<Vec<(f32, usize)>>,
}

/// Everything but how k is chosen.
pub(super) struct Setting<'a> {
    pub(super) all: &'a DbwGrids,
    pub(super) grid: &'a DbwGrid,
    pub(super) times: &'a Times,
    pub(super) compute: Distribution,
    pub(super) rate: f32,
    pub(super) batch: usize,
    /// With batches in the order of no run yet.
    problem: Logistic,
}

impl Setting<'_> {
    pub(super) fn cluster(&self, scheme: SchemeConfig, seed: u64) -> Cluster {
        let DbwGrids { workers, slow_by, evaluate_every, .. } = self.all;
        let mut cluster = Cluster::new(scheme, *workers, seed);
        cluster.compute = self.compute.clone();
        let slowed = self.times.slowed_at.map(|at| Change { at, workers: 0..workers / 2, factor: *slow_by });
        cluster.changes = slowed.into_iter().collect();
        cluster.problem = Some(Box::new(self.problem(seed)));
        cluster.learning_rate = self.rate;
        cluster.until = Until::Loss { target: self.grid.target, within: self.grid.within };
        cluster.evaluate_every = Some(*evaluate_every);
        cluster
    }

    pub(super) fn problem(&self, seed: u64) -> Logistic {
        self.problem.clone().in_order(seed)
    }

    pub(super) fn label(&self) -> String {
        let Setting { grid, times, rate, batch, .. } = self;
        format!("{}, {}, {rate}/{batch}", grid.name, times.name)
    }
}

/// What came of a setting: the times of each seed, by static k, of DBW, and of DBW that is blind.
struct DbwResult<'a> {
    setting: &'a Setting<'a>,
    /// Index k - 1.
    fixed: Vec<Vec<f64>>,
    dynamic: Vec<f64>,
    blind: Vec<f64>,
    /// A run of DBW.
    report: &'a ClusterReport,
}

impl DbwResult<'_> {
    fn by_time(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let time = |k: usize| mean(self.fixed[k - 1].iter().copied());
        time(a).total_cmp(&time(b))
    }

    fn best_k(&self) -> usize {
        (1..=self.fixed.len()).min_by(|a, b| self.by_time(*a, *b)).unwrap_or(1)
    }

    fn worst_k(&self) -> usize {
        (1..=self.fixed.len()).max_by(|a, b| self.by_time(*a, *b)).unwrap_or(1)
    }

    fn over(&self, k: usize) -> Interval {
        Interval::of_ratio(&self.dynamic, &self.fixed[k - 1])
    }

    /// How many of these times are no times but the limit, at which a run that is not there was cut off.
    fn missed(&self, times: &[f64]) -> usize {
        times.iter().filter(|time| **time >= self.setting.grid.within).count()
    }

    fn time(&self, times: &[f64]) -> String {
        let told = number(mean(times.iter().copied()));
        match self.missed(times) {
            0 => told,
            missed => format!("{told} ({missed} of {} not there)", times.len()),
        }
    }

    /// A ratio of two rows of times, with what it is worth where runs were cut off.
    fn ratio(&self, ratio: impl ToString, upper: &[f64], lower: &[f64]) -> String {
        let mark = match (self.missed(upper) > 0, self.missed(lower) > 0) {
            (false, false) => "",
            (true, false) => "at least ",
            (false, true) => "at most ",
            (true, true) => "cut off: ",
        };
        mark.to_owned() + &ratio.to_string()
    }
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let file = trial.settings::<DbwGrids>()?;
    let seeds = file.seeds(trial);
    let settings = settings(&file.grid)?;
    let workers = file.grid.workers;
    // Every static k, then the dynamic choice, then the blind one.
    let fixed = (1..=workers).map(|k| format!("dbw(choice=static, k={k})"));
    let schemes: Vec<SchemeConfig> =
        fixed.chain(file.grid.forms.clone()).map(|text| scheme(&text)).collect::<Result<_, _>>()?;
    let mut runs = Vec::new();
    for setting in &settings {
        for scheme in &schemes {
            runs.extend(seeds.iter().map(move |seed| (setting, *scheme, *seed)));
        }
    }
    let reports = simulate("dbw", &runs, |(setting, scheme, seed)| Ok(setting.cluster(*scheme, *seed)))?;
    let results: Vec<DbwResult> = settings
        .iter()
        .zip(reports.chunks(schemes.len() * seeds.len()))
        .map(|(setting, own)| {
            let mut all: Vec<Vec<f64>> =
                own.chunks(seeds.len()).map(|own| times(own, setting.grid.within)).collect();
            let blind = all.pop().unwrap_or_default();
            let dynamic = all.pop().unwrap_or_default();
            DbwResult { setting, fixed: all, dynamic, blind, report: &own[workers * seeds.len()] }
        })
        .collect();
    let mut findings = Findings::new(figure(&file.grid, &results));
    for grid in &file.grid.grids {
        tell(grid, &results, &mut findings);
    }
    compare(workers, &results, &mut findings);
    Ok(findings)
}

pub(super) fn settings(dbw: &DbwGrids) -> Result<Vec<Setting<'_>>, Error> {
    let mut all = Vec::new();
    for grid in &dbw.grids {
        for times in &grid.times {
            let compute: Distribution = times.compute.parse()?;
            let pairs = times.pairs.as_ref().unwrap_or(&grid.pairs);
            all.extend(pairs.iter().map(|&(rate, batch)| {
                let problem = dbw.logistic.with_batches_of(batch).narrowed(grid.narrowed);
                Setting { all: dbw, grid, times, compute: compute.clone(), rate, batch, problem }
            }));
        }
    }
    Ok(all)
}

/// The table, the rows and the claims of one grid.
fn tell(grid: &DbwGrid, results: &[DbwResult], findings: &mut Findings) {
    let heading = [
        "times",
        "step",
        "batch",
        "best k",
        "its time, s",
        "DBW, s",
        "over best",
        "blind, s",
        "worst k",
        "over DBW",
    ];
    let mut table = Table::new(heading);
    let own: Vec<&DbwResult> =
        results.iter().filter(|result| result.setting.grid.name == grid.name).collect();
    for result in &own {
        let DbwResult { setting, fixed, dynamic, blind, .. } = result;
        let (best, worst) = (result.best_k(), result.worst_k());
        table.row([
            setting.times.name.clone(),
            setting.rate.to_string(),
            setting.batch.to_string(),
            best.to_string(),
            result.time(&fixed[best - 1]),
            result.time(dynamic),
            result.ratio(result.over(best), dynamic, &fixed[best - 1]),
            result.time(blind),
            worst.to_string(),
            result.ratio(number(1.0 / result.over(worst).middle), &fixed[worst - 1], dynamic),
        ]);
        findings.rows.push(json!({
            "grid": grid.name, "times": setting.times.name, "learning_rate": setting.rate.to_string(),
            "batch": setting.batch, "static": fixed, "dbw": dynamic, "blind": blind,
        }));
    }
    let claim = format!("within-{}", grid.name);
    let within =
        own.iter().filter(|result| result.over(result.best_k()).high <= result.setting.all.allowed).count();
    let worst = own.iter().max_by(|a, b| a.over(a.best_k()).high.total_cmp(&b.over(b.best_k()).high));
    if let Some(worst) = worst {
        let label = format!("{within} of {} within; the worst ({})", own.len(), worst.setting.label());
        findings.measure(claim, label, worst.over(worst.best_k()));
    }
    if grid.name == "third" {
        let best = own.iter().map(|result| result.best_k() as f64);
        let (least, most) = (best.clone().fold(f64::INFINITY, f64::min), best.fold(0.0, f64::max));
        findings.measure("smallest-k", "", Interval::exact(least));
        findings.measure("largest-k", "", Interval::exact(most));
        let pair = |result: &DbwResult| (result.setting.rate.to_bits(), result.setting.batch);
        let slowed = own.iter().filter(|result| result.setting.times.slowed_at.is_some());
        let before = slowed.filter_map(|slowed| own.iter().find(|other| pair(other) == pair(slowed)));
        let least = before.map(|result| result.best_k() as f64).fold(f64::INFINITY, f64::min);
        findings.measure("slowed-k", "", Interval::exact(least));
    }
    let missed = |times: fn(&DbwResult) -> Vec<f64>| {
        let all = own.iter().map(|own| (own.missed(&times(own)), times(own).len()));
        let (missed, runs) = all.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
        format!("{missed} of {runs}")
    };
    findings.tables.push((
        format!(
            "Grid {}, time to a loss of {}, where {} runs of DBW and {} of static k are not there after {} s",
            grid.name,
            grid.target,
            missed(|own| own.dynamic.clone()),
            missed(|own| own.fixed.concat()),
            grid.within
        ),
        table,
    ));
}

/// The claims over all settings of all grids.
fn compare(workers: usize, results: &[DbwResult], findings: &mut Findings) {
    let gain = |result: &DbwResult| Interval::of_ratio(&result.fixed[result.best_k() - 1], &result.dynamic);
    if let Some(most) = results.iter().max_by(|a, b| gain(a).middle.total_cmp(&gain(b).middle)) {
        findings.measure("three-times", most.setting.label(), gain(most));
    }
    let best = results.iter().map(|result| result.best_k() as f64);
    let (least, most) = (best.clone().fold(f64::INFINITY, f64::min), best.fold(0.0, f64::max));
    findings.measure("changes", format!("k from {least} to {most}"), Interval::exact(most / least));
    // The static k that loses the least where it loses the most.
    let loses = |k: usize| {
        let ratios = results.iter().map(|result| Interval::of_ratio(&result.fixed[k - 1], &result.dynamic));
        ratios.max_by(|a, b| a.middle.total_cmp(&b.middle)).unwrap_or(Interval::exact(f64::NAN))
    };
    let safest = (1..=workers).min_by(|a, b| loses(*a).middle.total_cmp(&loses(*b).middle)).unwrap_or(1);
    findings.measure("tuning", format!("k = {safest}"), loses(safest));
    // The same static k where it gains the most, and the one that is best in the mean.
    let behind = |a: &&DbwResult, b: &&DbwResult| a.over(safest).middle.total_cmp(&b.over(safest).middle);
    if let Some(most) = results.iter().max_by(behind) {
        let label = format!("k = {safest}, {}", most.setting.label());
        findings.measure("tuning-behind", label, most.over(safest));
    }
    let in_mean = |k: usize| {
        Interval::of_ratio(
            &over_all(results, |own| &own.dynamic),
            &over_all(results, |own| &own.fixed[k - 1]),
        )
    };
    let best = (1..=workers).max_by(|a, b| in_mean(*a).middle.total_cmp(&in_mean(*b).middle)).unwrap_or(1);
    findings.measure("tuning-mean", format!("k = {best}"), in_mean(best));
    let tuned: Vec<(String, Interval)> = results.chunk_by(has_same_times).map(at_best_steps).collect();
    let most = results.first().map_or(f64::NAN, |first| first.setting.all.allowed);
    let within = tuned.iter().filter(|(_, over)| over.high <= most).count();
    if let Some((times, over)) = tuned.iter().max_by(|(_, a), (_, b)| a.high.total_cmp(&b.high)) {
        findings.measure("tuned", format!("{within} of {} within; the worst ({times})", tuned.len()), *over);
    }
}

fn has_same_times(a: &DbwResult, b: &DbwResult) -> bool {
    (&a.setting.grid.name, &a.setting.times.name) == (&b.setting.grid.name, &b.setting.times.name)
}

/// The time of DBW at its best step size and batch over that of the best static k at its own, with these times.
fn at_best_steps(own: &[DbwResult]) -> (String, Interval) {
    let by_mean = |a: &&Vec<f64>, b: &&Vec<f64>| mean(a.iter().copied()).total_cmp(&mean(b.iter().copied()));
    let dynamic = own.iter().map(|result| &result.dynamic).min_by(by_mean);
    let fixed = own.iter().flat_map(|result| &result.fixed).min_by(by_mean);
    let over = dynamic.zip(fixed).map(|(dynamic, fixed)| Interval::of_ratio(dynamic, fixed));
    let told = own.first().map(|result| {
        let Setting { grid, times, .. } = result.setting;
        format!("{}, {}", grid.name, times.name)
    });
    (told.unwrap_or_default(), over.unwrap_or(Interval::exact(f64::NAN)))
}

/// Of each seed the geometric mean of its times in all settings.
fn over_all<'a>(results: &'a [DbwResult], times: impl Fn(&'a DbwResult) -> &'a Vec<f64>) -> Vec<f64> {
    let seeds = results.first().map_or(0, |first| times(first).len());
    (0..seeds).map(|seed| mean(results.iter().map(|own| times(own)[seed].ln())).exp()).collect()
}

/// Time against k, and DBW's time over that of the best k, in each grid; and the k it chose when half were slowed.
fn figure(dbw: &DbwGrids, results: &[DbwResult]) -> Figure {
    let mut figure = Figure::new("DBW against every static number of workers")
        .columns(2)
        .subtitle("16 workers, logistic regression; time to the loss, mean of the seeds");
    for grid in &dbw.grids {
        let x = Axis::linear("static k").between(0.0, 17.0);
        let mut by_k = Panel::new(x, Axis::log("time over the best k's"));
        let names = grid.pairs.iter().map(|(rate, batch)| format!("{rate}/{batch}"));
        let y = Axis::log("DBW's time over the best k's").between(0.5, 20.0);
        let mut ratios = Panel::new(Axis::names("step size/batch", names), y);
        for times in &grid.times {
            let is_own = |result: &&DbwResult| {
                result.setting.grid.name == grid.name && result.setting.times.name == times.name
            };
            let own: Vec<&DbwResult> = results.iter().filter(is_own).collect();
            if let Some(last) = own.last() {
                let time = |k: usize| mean(last.fixed[k - 1].iter().copied());
                let best = time(last.best_k());
                by_k.series
                    .push(Series::line(&times.name, (1..=dbw.workers).map(|k| (k as f64, time(k) / best))));
            }
            let bars = own.iter().map(|own| {
                let pair = (own.setting.rate, own.setting.batch);
                let at = grid.pairs.iter().position(|other| *other == pair).unwrap_or(0);
                (at as f64, own.over(own.best_k()).middle)
            });
            ratios.series.push(Series::bars(&times.name, bars));
        }
        let (end, allowed) = (grid.pairs.len() as f64 - 0.5, dbw.allowed);
        ratios
            .series
            .push(Series::guide(format!("{allowed} times the best k"), [(-0.5, allowed), (end, allowed)]));
        figure = figure
            .panel(by_k.titled(format!("Grid {}, its last step size and batch", grid.name)))
            .panel(ratios.titled(format!("Grid {}", grid.name)));
    }
    let slowed = results.iter().rev().find(|result| result.setting.times.slowed_at.is_some());
    let Some(DbwResult { report, setting, .. }) = slowed else { return figure };
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for step in &report.waited_for {
        steps.extend(steps.last().map(|last| (step.time, last.1)));
        steps.push((step.time, step.gradients as f64));
    }
    let at = setting.times.slowed_at.unwrap_or_default();
    let chosen = Panel::new(Axis::linear("virtual time, s"), Axis::linear("k of DBW").between(0.0, 17.0))
        .with(Series::line("half slowed", steps))
        .with(Series::guide("half are slower from here on", [(at, 0.0), (at, 17.0)]));
    figure.panel(chosen.titled("Half the workers slowed"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::reproduce::settings::Settings;

    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The page is written by hand where runs are not made again.
    #[test]
    fn the_page_has_the_tables_that_follow_from_the_record() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
        let record: Value = serde_json::from_str(&read("records/dbw.json")).unwrap();
        let page = read("reproductions.md");
        let (_, section) = page.split_once("\n## dbw\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();

        let file: Settings<DbwGrids> = Settings::read(RECIPE.file).unwrap();
        assert_eq!(record["setup"], file.setup);
        for paragraph in [&file.setup, RECIPE.remarks] {
            assert!(words(section).contains(&words(paragraph)), "{paragraph}");
        }
        let settings = settings(&file.grid).unwrap();
        let rows = record["rows"].as_array().unwrap();
        assert_eq!(rows.len(), settings.len());
        let report = ClusterReport::default();
        let times =
            |value: &Value| value.as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
        let results: Vec<DbwResult> = settings
            .iter()
            .zip(rows)
            .map(|(setting, row)| DbwResult {
                setting,
                fixed: row["static"].as_array().unwrap().iter().map(times).collect(),
                dynamic: times(&row["dbw"]),
                blind: times(&row["blind"]),
                report: &report,
            })
            .collect();
        let mut findings = Findings::new(Figure::new(""));
        for grid in &file.grid.grids {
            tell(grid, &results, &mut findings);
        }
        assert_eq!(findings.rows, *rows);
        for (caption, table) in &findings.tables {
            let told = format!("\n{caption}:\n\n{}", table.markdown());
            assert!(section.contains(&told), "{told}");
        }
    }
}
