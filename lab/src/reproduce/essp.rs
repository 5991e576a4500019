//! ESSP: the bound of SSP over copies that are pushed.

use crate::plot::{Axis, Figure, Panel, Series, staleness};
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, ClusterReport, Distribution, Factorisation, Shape, Until};

use super::{Check, Error, Findings, Recipe, mean, simulate};
use crate::table::{Table, number};

const STALENESS: [u64; 4] = [2, 4, 8, 16];
const WORKERS: usize = 16;
const CLOCKS: u64 = 200;
const SEEDS: u64 = 4;

/// The clock at which losses are compared: in the middle of the descent.
const AT_CLOCK: u64 = 60;

pub(super) const RECIPE: Recipe = Recipe {
    name: "essp",
    title: "ESSP's copies are fresh, whatever the bound",
    claim: "Under SSP the staleness of what is read is spread over the whole window that the bound allows; \
            pushed copies (ESSP) are about one clock old whatever the bound is. So ESSP converges faster per \
            clock and per second, and larger bounds hurt SSP but hardly ESSP.",
    source: "Dai et al., AAAI 2015, arXiv 1410.8043, figures 1 and 2",
    setup: "16 workers, times uniform between 0.98 and 1.02 s, a latency of 20 ms, read-my-writes; matrix \
            factorisation (60 x 40, rank 4, 1,200 known entries, batches of 32, SGD with step size 8), 200 \
            clocks, 4 seeds.",
    remarks: "In our count -1 is a copy that holds the last clock of everybody at the moment when one begins \
              the next: only lock step has that. -2 is as fresh as anybody can be who does not wait, and all \
              reads of ESSP are there at every bound. The profile needs workers of about equal pace, as in \
              the paper's cluster: with exponential times the slowest worker, and not the age of the copy, \
              decides, and most reads are at the bound under both schemes.",
    run,
};

fn cluster(scheme: SchemeConfig, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(scheme, WORKERS, seed);
    cluster.compute = Distribution::Uniform { from: 0.98, to: 1.02 };
    cluster.network.latency = Distribution::Constant { seconds: 0.02 };
    cluster.read_my_writes = true;
    cluster.problem = Some(Box::new(Factorisation::new(Shape::default(), seed)));
    cluster.learning_rate = 8.0;
    cluster.until = Until::Clocks(CLOCKS);
    cluster
}

fn run(seed: u64) -> Result<Findings, Error> {
    let schemes: Vec<SchemeConfig> = STALENESS
        .iter()
        .flat_map(|staleness| {
            [SchemeConfig::Ssp { staleness: *staleness }, SchemeConfig::Essp { staleness: *staleness }]
        })
        .collect();
    let runs: Vec<(SchemeConfig, u64)> =
        schemes.iter().flat_map(|scheme| (0..SEEDS).map(move |more| (*scheme, seed + more))).collect();
    let reports = simulate("essp", &runs, |(scheme, seed)| Ok(cluster(*scheme, *seed)))?;
    let of = |index: usize| &reports[index * SEEDS as usize..][..SEEDS as usize];

    let heading =
        ["scheme", "staleness", "mean", "at -1 or -2", "waiting", "loss at clock 60", "loss at 60 s"];
    let mut table = Table::new(heading);
    let mut rows = Vec::new();
    let (mut fresh, mut means) = (Vec::new(), Vec::new());
    let (mut losses, mut losses_at_time) = (Vec::new(), Vec::new());
    for (index, scheme) in schemes.iter().enumerate() {
        let own = of(index);
        let histogram = &own[0].staleness;
        let part = mean(own.iter().map(|report| report.staleness.part(-2..=-1)));
        let average = mean(own.iter().filter_map(|report| report.staleness.mean()));
        let waiting = mean(own.iter().map(waiting));
        let at_clock = mean(own.iter().map(|report| loss_at(report, |point| point.clock >= AT_CLOCK)));
        let at_time = mean(own.iter().map(|report| loss_at(report, |point| point.time >= AT_CLOCK as f64)));
        table.row([
            scheme.name().to_owned(),
            scheme.staleness().unwrap_or_default().to_string(),
            format!("{average:.2}"),
            format!("{:.1} %", 100.0 * part),
            format!("{:.1} %", 100.0 * waiting),
            number(at_clock),
            number(at_time),
        ]);
        rows.push(json!({
            "scheme": scheme.name(), "staleness": scheme.staleness(), "histogram": histogram,
            "mean": average, "waiting": waiting, "loss_at_clock_60": at_clock, "loss_at_60_s": at_time,
        }));
        fresh.push(part);
        losses.push(at_clock);
        losses_at_time.push(at_time);
        means.push(average);
    }
    let (ssp, essp) = (|index: usize| 2 * index, |index: usize| 2 * index + 1);
    let least = (0..4).map(|index| fresh[essp(index)]).fold(1.0, f64::min);
    let behind = |what: &str, losses: &[f64]| {
        let ratio = losses[ssp(3)] / losses[essp(3)];
        Check::new(what, "SSP behind", format!("{ratio:.2} times ESSP's"), ratio > 1.0)
    };
    let ssp_worsens = losses[ssp(3)] / losses[ssp(0)];
    let essp_worsens = losses[essp(3)] / losses[essp(0)];
    let checks = vec![
        Check::new(
            "reads of ESSP that are one or two clocks old, at every bound",
            "nearly all",
            format!("{:.1} % or more", 100.0 * least),
            least >= 0.9,
        ),
        Check::near("mean staleness of SSP at s = 16, evenly from -2 to -17", -9.5, means[ssp(3)], 0.05),
        behind("loss per clock: SSP against ESSP, at s = 16", &losses),
        behind("loss per second: SSP against ESSP, at s = 16", &losses_at_time),
        Check::new(
            "loss per clock: s = 16 against s = 2, under SSP and ESSP",
            "SSP worsens, ESSP by less than a tenth",
            format!("{ssp_worsens:.2} and {essp_worsens:.2} times"),
            ssp_worsens > essp_worsens && essp_worsens < 1.1,
        ),
    ];

    let mut figure = Figure::new("SSP and ESSP: how old is what workers read")
        .subtitle("16 workers of about equal pace, matrix factorisation");
    for (index, bound) in STALENESS.iter().enumerate().skip(2) {
        let mut panel =
            Panel::new(Axis::linear("data's clock less reader's"), Axis::linear("part of reads, %"));
        for (name, index) in [("ssp", ssp(index)), ("essp", essp(index))] {
            panel.series.push(staleness(name, &of(index)[0].staleness, false));
        }
        figure = figure.panel(panel.titled(format!("Staleness, s = {bound}")));
    }
    let mut panel = Panel::new(Axis::linear("clock"), Axis::log("loss").between(0.02, 3.0));
    for (name, index) in [("ssp", ssp(3)), ("essp", essp(3))] {
        let points = of(index)[0].curve.iter().map(|point| (point.clock as f64, point.loss));
        panel.series.push(Series::line(name, points));
    }
    let figure = figure.panel(panel.titled("Convergence, s = 16"));
    Ok(Findings { tables: vec![("What is read, and what it does".into(), table)], rows, checks, figure })
}

fn waiting(report: &ClusterReport) -> f64 {
    let sum: f64 = report.of_workers.iter().map(|of| of.waiting).sum();
    sum / (report.end * report.workers as f64)
}

fn loss_at(report: &ClusterReport, is_there: impl Fn(&slackline::sim::Point) -> bool) -> f64 {
    report.curve.iter().find(|point| is_there(point)).map_or(f64::NAN, |point| point.loss)
}
