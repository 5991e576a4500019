//! Schemes against each other on matrix factorisation, in several settings: loss per second, waiting, bytes.

use serde::Deserialize;
use serde_json::json;
use slackline::sim::{Cluster, ClusterReport, Distribution, Factorisation, Shape, Until};

use super::settings::FactorisationSettings;
use super::tuned::{Tuned, computing};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::plot::{Axis, Figure, Panel, Series};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const VAP: Recipe = Recipe {
    name: "vap",
    title: "VAP is as costly as lock step",
    file: include_str!("settings/vap.toml"),
    remarks: "A tight bound lets one update of each worker through at a time: its workers wait nearly as long as \
              those of lock step, a little less where they are uneven, and longer where a round trip is long. A \
              wide one lets all through; the wait that is left is one round trip for each clock, because a \
              worker here has one update on its way at most. After 60 s only the tight bound is behind SSP(4), \
              and neither is behind ESSP(4): that VAP cannot be had in practice is a matter of what it takes to \
              know the sums, which a simulator knows for nothing, and not of the loss per second. It loses where \
              a round trip is long. ESSP does not lose in the narrow network, whose 20 messages a second are \
              room enough for the 16 that it pushes at each clock.",
    run: |trial| run(trial, "vap", "VAP, SSP and ESSP"),
};

pub(super) const ESSP: Recipe = Recipe {
    name: "essp-settings",
    title: "ESSP on uneven workers, shared links and larger tables",
    file: include_str!("settings/essp-settings.toml"),
    remarks: "With a bound of 8 pushing is ahead in most settings, also where it fills the link, because \
              copies of SSP are up to 8 clocks old there. With a bound of 2 it is not: SSP's copies are fresh \
              at every second or third clock, and where the matrix is small it is ahead or not told apart. \
              Where all workers are even none ever comes to its bound, and runs of ESSP with different bounds \
              are one and the same; where times are uneven a large bound lets workers run ahead, and hurts \
              ESSP, too. Where paces differ the slow workers decide, and the two are not told apart. A link \
              for 4 messages a second does not make ESSP lose with a bound of 8, since a copy is not pushed to \
              a worker while the one before is on its way: pushes become fewer. With a bound of 2, of which \
              nothing was claimed, it is a little behind there. The setting in which it surely loses is among \
              those where [each scheme must lose](#losing).",
    run: |trial| run(trial, "essp-settings", "SSP and ESSP in other settings"),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ContestGrid {
    workers: usize,
    read_my_writes: bool,
    #[serde(with = "FactorisationSettings")]
    factorisation: Shape,
    seconds: f64,
    evaluate_every: f64,
    step_sizes: Vec<f32>,
    schemes: Vec<Entrant>,
    cases: Vec<ContestCase>,
    /// What is measured for the claims.
    compare: Vec<ContestPair>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entrant {
    id: String,
    name: String,
    text: String,
}

/// A setting.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ContestCase {
    id: String,
    name: String,
    /// The least and the most seconds of a computation.
    times: [f64; 2],
    /// Factors by which the first workers are slower.
    #[serde(default)]
    factors: Vec<f64>,
    latency: f64,
    /// Messages of a gradient or a copy that the server's link carries in a second, each way; none: any number.
    #[serde(default)]
    messages: Option<f64>,
    /// Rows, columns, rank and known entries, if other than usual.
    #[serde(default)]
    shape: Option<[usize; 4]>,
}

/// Two schemes in one setting.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContestPair {
    check: String,
    #[serde(default)]
    label: String,
    case: String,
    left: String,
    right: String,
    of: Quantity,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Quantity {
    /// The loss at the end, as a ratio.
    Loss,
    /// The bytes of a gradient and of what its worker reads for it, as a ratio.
    Bytes,
    /// The part of the time that workers wait, as a difference.
    Waiting,
}

impl ContestCase {
    fn cluster(&self, grid: &ContestGrid, text: &str, step_size: f32, seed: u64) -> Result<Cluster, Error> {
        let usual = grid.factorisation;
        let [rows, columns, rank, known] =
            self.shape.unwrap_or([usual.rows, usual.columns, usual.rank, usual.known]);
        let mut cluster = Cluster::new(scheme(text)?, grid.workers, seed);
        let [from, to] = self.times;
        cluster.compute = Distribution::Uniform { from, to };
        cluster.factors = self.factors.clone();
        cluster.network.latency = Distribution::Constant { seconds: self.latency };
        let bytes = 4 * rank * (rows + columns);
        cluster.network.server_bandwidth = self.messages.map(|messages| messages * bytes as f64);
        cluster.read_my_writes = grid.read_my_writes;
        cluster.problem =
            Some(Box::new(Factorisation::new(Shape { rows, columns, rank, known, ..usual }, seed)));
        cluster.learning_rate = step_size;
        cluster.until = Until::Seconds(grid.seconds);
        cluster.evaluate_every = Some(grid.evaluate_every);
        Ok(cluster)
    }
}

/// The part of the time of all workers in which they did not compute.
fn waiting(report: &ClusterReport) -> f64 {
    1.0 - computing(report)
}

fn bytes(report: &ClusterReport) -> f64 {
    report.counts.bytes as f64 / report.gradients as f64
}

fn loss(report: &ClusterReport) -> f64 {
    report.curve.last().map_or(f64::NAN, |point| point.loss)
}

impl Quantity {
    fn of(self, report: &ClusterReport) -> f64 {
        match self {
            Quantity::Loss => loss(report),
            Quantity::Bytes => bytes(report),
            Quantity::Waiting => waiting(report),
        }
    }

    /// Sets the runs of two schemes against each other, seed by seed.
    fn compare(self, left: &Tuned, right: &Tuned) -> Interval {
        let all = |tuned: &Tuned| tuned.best_runs().iter().map(|run| self.of(run)).collect::<Vec<_>>();
        match self {
            Quantity::Loss | Quantity::Bytes => Interval::of_ratio(&all(left), &all(right)),
            Quantity::Waiting => Interval::of_difference(&all(left), &all(right)),
        }
    }
}

fn run(trial: &Trial, what: &str, title: &str) -> Result<Findings, Error> {
    let settings = trial.settings::<ContestGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let mut runs = Vec::new();
    for case in &grid.cases {
        for entrant in &grid.schemes {
            for step_size in &grid.step_sizes {
                runs.extend(seeds.iter().map(|seed| (case, entrant, *step_size, *seed)));
            }
        }
    }
    let reports = simulate(what, &runs, |(case, entrant, step_size, seed)| {
        case.cluster(grid, &entrant.text, *step_size, *seed)
    })?;
    let each = grid.step_sizes.len() * seeds.len();
    let tuned: Vec<Tuned> =
        reports.chunks(each).map(|own| Tuned::new(&grid.step_sizes, own, &loss)).collect();
    let figure = Figure::new(title).subtitle("matrix factorisation, each scheme at its best step size");
    let mut findings = Findings::new(figure.columns(2));
    for (case, own) in grid.cases.iter().zip(tuned.chunks(grid.schemes.len())) {
        findings.tables.push((case.name.clone(), table(grid, own)));
        let mut panel = Panel::new(Axis::linear("virtual time, s"), Axis::log("loss"));
        for (entrant, own) in grid.schemes.iter().zip(own) {
            let points = own.best_runs()[0].curve.iter().map(|point| (point.time, point.loss));
            panel.series.push(Series::line(&entrant.name, points));
            findings.rows.push(json!({
                "case": case.id, "scheme": entrant.id, "losses": own.record_of_scores(),
                "waiting": own.record(waiting), "bytes": own.record(bytes),
            }));
        }
        findings.figure = findings.figure.panel(panel.titled(&case.name));
    }
    let find = |case: &str, scheme: &str| {
        let case = grid.cases.iter().position(|own| own.id == case)?;
        let scheme = grid.schemes.iter().position(|own| own.id == scheme)?;
        tuned.get(case * grid.schemes.len() + scheme)
    };
    for ContestPair { check, label, case, left, right, of } in &grid.compare {
        let (left, right) = (find(case, left), find(case, right));
        let found = left.zip(right).map(|(left, right)| of.compare(left, right));
        // A name that stands for nothing makes a claim that does not hold.
        findings.measure(check, label, found.unwrap_or(Interval::exact(f64::NAN)));
    }
    findings.measure("grid", "", Interval::exact(tuned.iter().map(Tuned::ends).sum()));
    Ok(findings)
}

fn table(grid: &ContestGrid, tuned: &[Tuned]) -> Table {
    let at_end = format!("loss at {} s", grid.seconds);
    let mut table =
        Table::new(["scheme", "step size", at_end.as_str(), "waiting", "bytes per gradient", "gradients"]);
    for (entrant, own) in grid.schemes.iter().zip(tuned) {
        let average = |of: fn(&ClusterReport) -> f64| mean(own.best_runs().iter().map(of));
        table.row([
            entrant.name.clone(),
            own.step_size().to_string(),
            Interval::of_mean(&own.best_scores()).to_string(),
            format!("{:.1} %", 100.0 * average(waiting)),
            number(average(bytes)),
            number(average(|run| run.gradients as f64)),
        ]);
    }
    table
}
