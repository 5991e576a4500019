//! DS-Sync on a network of racks with a bottleneck, against all-reduces of all workers.

use serde::Deserialize;
use serde_json::json;
use slackline::sim::{Cluster, ClusterReport, Collective, Distribution, Racks, Until};

use super::settings::LogisticSettings;
use super::tuned::{Tuned, missed};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::plot::{Axis, Figure, Panel, Series};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "ds-sync-network",
    title: "DS-Sync where the network is the bottleneck",
    file: include_str!("settings/ds-sync-network.toml"),
    remarks: "Groups of one worker per rack load the links of racks with four rings where a ring of all loads \
              them with one: by turns with groups within racks (digits) they are behind the better all-reduce \
              where those links are the bottleneck, though not surely so with other seeds, and so are random \
              groups. Groups that cross racks in one round after 31 within them (near-31) are ahead of both, \
              and in one after 7 (near-7) where the bottleneck is narrow or shared; so is a mean of all after \
              eight steps of each (period-8), which needs no groups. Against one slow link groups help little: \
              its worker is in one in every round. The most that is saved is less than the 94 % of the paper.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RacksGrid {
    workers: usize,
    /// Workers in a rack.
    rack: usize,
    bytes: u64,
    /// Bytes per second of a worker's link.
    link: f64,
    latency: f64,
    settings: Vec<RackNetwork>,
    /// The first two average among all workers: BSP.
    schemes: Vec<Rival>,
    /// Of each run that is timed.
    rounds: u64,
    /// Seconds of computing in a run that is timed, and their distribution in one that learns.
    computing: f64,
    compute: String,
    logistic: LogisticSettings,
    batch: usize,
    evaluate_every: f64,
    step_sizes: Vec<f32>,
    target: f64,
    within: f64,
}

/// A network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RackNetwork {
    name: String,
    /// Bytes per second of a rack's link to the core.
    uplink: f64,
    /// Endless flows of others: from a rack, to a rack, how many.
    #[serde(default)]
    others: Vec<(usize, usize, usize)>,
    /// The links of the first workers.
    #[serde(default)]
    links: Vec<f64>,
    /// Whether it is the links of racks that hold all-reduces up.
    #[serde(default)]
    bottleneck: bool,
    /// Seconds of communication per clock, by arithmetic, of the first three schemes.
    expected: [f64; 3],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rival {
    name: String,
    scheme: String,
    #[serde(default)]
    hierarchical: bool,
    /// Whether there is a claim of its name.
    #[serde(default)]
    claimed: bool,
}

impl RacksGrid {
    fn cluster(&self, setting: &RackNetwork, rival: &Rival, seed: u64) -> Result<Cluster, Error> {
        let mut cluster = Cluster::new(scheme(&rival.scheme)?, self.workers, seed);
        let flows = |(from, to, count): &(usize, usize, usize)| std::iter::repeat_n((*from, *to), *count);
        let network = &mut cluster.network;
        network.latency = Distribution::Constant { seconds: self.latency };
        network.worker_bandwidth = Some(self.link);
        network.message_bytes = Some(self.bytes);
        network.racks = Some(Racks {
            size: self.rack,
            uplink: setting.uplink,
            links: setting.links.clone(),
            others: setting.others.iter().flat_map(flows).collect(),
            average: if rival.hierarchical { Collective::Hierarchical } else { Collective::Ring },
        });
        Ok(cluster)
    }
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<RacksGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let figure = Figure::new("DS-Sync where the network is the bottleneck")
        .columns(2)
        .subtitle("16 workers in four racks; 100 MB messages, links of 10 Gbit/s, 0.1 s of computing");
    let mut findings = Findings::new(figure);
    let talking = talk(grid, trial.seed, &mut findings)?;
    let learning = learn(grid, &seeds, &mut findings)?;
    findings.figure =
        findings.figure.panel(talking.titled("Communication")).panel(learning.titled("Time to the loss"));
    Ok(findings)
}

/// The cells of each setting with each scheme.
fn cells(grid: &RacksGrid) -> impl Iterator<Item = (&RackNetwork, &Rival)> {
    grid.settings.iter().flat_map(|setting| grid.schemes.iter().map(move |rival| (setting, rival)))
}

fn panel(grid: &RacksGrid, y: &str) -> Panel {
    Panel::new(Axis::names("network", grid.settings.iter().map(|setting| setting.name.clone())), Axis::log(y))
}

fn talk(grid: &RacksGrid, seed: u64, findings: &mut Findings) -> Result<Panel, Error> {
    let cells: Vec<_> = cells(grid).collect();
    let reports = simulate("ds-sync-network: time", &cells, |(setting, rival)| {
        let mut cluster = grid.cluster(setting, rival, seed)?;
        cluster.compute = Distribution::Constant { seconds: grid.computing };
        cluster.until = Until::Clocks(grid.rounds + 1);
        Ok(cluster)
    })?;
    let heading =
        ["network".to_owned()].into_iter().chain(grid.schemes.iter().map(|rival| rival.name.clone() + ", s"));
    let mut table = Table::new(heading);
    let mut panel = panel(grid, "communication per clock, s");
    let mut bars: Vec<Vec<(f64, f64)>> = vec![Vec::new(); grid.schemes.len()];
    for (index, (setting, own)) in grid.settings.iter().zip(reports.chunks(grid.schemes.len())).enumerate() {
        // Until the slowest has made its next step: computing takes a part in each of the steps and in no average.
        let talk = |report: &ClusterReport| {
            (report.end - grid.computing * (grid.rounds + 1) as f64) / grid.rounds as f64
        };
        let times: Vec<f64> = own.iter().map(talk).collect();
        table.row(std::iter::once(setting.name.clone()).chain(times.iter().map(|time| format!("{time:.3}"))));
        for (rival, (time, bars)) in grid.schemes.iter().zip(times.iter().zip(&mut bars)) {
            findings
                .rows
                .push(json!({ "network": setting.name, "scheme": rival.name, "communication_s": time }));
            bars.push((index as f64, *time));
        }
        for ((rival, time), expected) in grid.schemes.iter().zip(&times).zip(setting.expected) {
            let label = format!("{}, {}", setting.name, rival.name);
            findings.measure("fluid", label, Interval::exact(time / expected));
        }
    }
    for (rival, bars) in grid.schemes.iter().zip(bars) {
        panel.series.push(Series::bars(rival.name.clone(), bars));
    }
    findings.tables.push(("Communication per clock".into(), table));
    Ok(panel)
}

/// Each scheme at its best step size.
fn learn(grid: &RacksGrid, seeds: &[u64], findings: &mut Findings) -> Result<Panel, Error> {
    let mut runs = Vec::new();
    for (setting, rival) in cells(grid) {
        for step_size in &grid.step_sizes {
            runs.extend(seeds.iter().map(|seed| (setting, rival, *step_size, *seed)));
        }
    }
    let reports = simulate("ds-sync-network: learning", &runs, |(setting, rival, step_size, seed)| {
        let mut cluster = grid.cluster(setting, rival, *seed)?;
        cluster.compute = grid.compute.parse()?;
        cluster.problem = Some(Box::new(grid.logistic.with_batches_of(grid.batch).in_order(*seed)));
        cluster.learning_rate = *step_size;
        cluster.until = Until::Loss { target: grid.target, within: grid.within };
        cluster.evaluate_every = Some(grid.evaluate_every);
        Ok(cluster)
    })?;
    let score = |report: &ClusterReport| report.reached.unwrap_or(grid.within);
    let mut table =
        Table::new(["network", "scheme", "step size", "time to the loss, s", "ring of all", "hierarchy"]);
    let mut panel = panel(grid, "time to the loss, s");
    let mut bars: Vec<Vec<(f64, f64)>> = vec![Vec::new(); grid.schemes.len()];
    let (each, mut ends) = (grid.step_sizes.len() * seeds.len(), 0.0);
    let mut most: Option<(String, Interval)> = None;
    for (index, (setting, own)) in
        grid.settings.iter().zip(reports.chunks(grid.schemes.len() * each)).enumerate()
    {
        let tuned: Vec<Tuned> =
            own.chunks(each).map(|own| Tuned::new(&grid.step_sizes, own, &score)).collect();
        let bsp =
            if mean(tuned[0].best_scores()) < mean(tuned[1].best_scores()) { &tuned[0] } else { &tuned[1] };
        for ((rival, own), bars) in grid.schemes.iter().zip(&tuned).zip(&mut bars) {
            ends += own.ends();
            let time = mean(own.best_scores());
            table.row([
                setting.name.clone(),
                rival.name.clone(),
                own.step_size().to_string(),
                number(time) + &missed(own.best_runs()),
                own.over(&tuned[0]).to_string(),
                own.over(&tuned[1]).to_string(),
            ]);
            findings.rows.push(json!({
                "learning": true, "network": setting.name, "scheme": rival.name, "times": own.record_of_scores(),
            }));
            bars.push((index as f64, time));
        }
        for (rival, own) in grid.schemes.iter().zip(&tuned).skip(2).filter(|(rival, _)| rival.claimed) {
            if setting.bottleneck {
                findings.measure(&rival.name, &setting.name, own.over(bsp));
            }
            let share = |spent: &f64, of: &f64| 1.0 - spent / of;
            let saved: Vec<f64> = own
                .best_scores()
                .iter()
                .zip(&tuned[0].best_scores())
                .map(|(spent, of)| share(spent, of))
                .collect();
            let saved = Interval::of_mean(&saved);
            if most.as_ref().is_none_or(|(_, most)| saved.middle > most.middle) {
                most = Some((format!("{}, {}", setting.name, rival.name), saved));
            }
        }
    }
    if let Some((label, saved)) = most {
        findings.measure("faster", label, saved);
    }
    findings.measure("grid", "", Interval::exact(ends));
    for (rival, bars) in grid.schemes.iter().zip(bars) {
        panel.series.push(Series::bars(rival.name.clone(), bars));
    }
    findings
        .tables
        .push((format!("Time to a loss of {}; how much longer the all-reduces take", grid.target), table));
    Ok(panel)
}
