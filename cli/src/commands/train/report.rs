//! The result of a run: a table for people, JSON for programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use slackline::Encoding;
use slackline::gpu::Gpu;
use slackline::internals::job::coordinated::{PathTaken, ServerReport, WorkerOutcome, WorkerReport};
use slackline_lab::model::Evaluation;
use slackline_lab::table::{bars, number};

use super::coordinate::Outcome;
use super::plan::Plan;

/// Most bars: wider histograms have several counts to a bar.
const BARS_MAX: usize = 16;

/// Workers that have a row of their own; of more, only the number is told.
const ROWS_MAX: usize = 16;

/// The shortest time over which a rate is told.
const RATE_OVER: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct Json<'a> {
    model: String,
    hidden: Vec<usize>,
    shards: String,
    /// Weight of the L2 penalty of a factorisation.
    penalty: f64,
    parameters: usize,
    data: String,
    train_examples: usize,
    test_examples: usize,
    scheme: &'a str,
    /// The scheme with its settings, as it may be given again.
    settings: String,
    /// The bound; none for asp.
    staleness: Option<u64>,
    additive: bool,
    /// The ways that workers reached servers, with a plus between them.
    transport: String,
    servers: usize,
    /// One worker of each host stood for all workers there, and the number of hosts then.
    per_host: bool,
    hosts: Option<usize>,
    threads: usize,
    /// The name of the coordinator's GPU, in a run on GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    encoding: &'a str,
    optimizer: &'a str,
    learning_rate: f64,
    schedule: String,
    epochs: u32,
    batch: usize,
    seed: u64,
    /// None of a factorisation.
    final_accuracy: Option<f64>,
    final_loss: f64,
    /// Of the first worker's own parameters, under a scheme without servers; those above are then of the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<JsonLocal>,
    target_accuracy: Option<f64>,
    /// None if it was not reached, or there was none.
    time_to_target_s: Option<f64>,
    wall_s: f64,
    versions: u64,
    versions_per_s: f64,
    saved: Option<String>,
    evicted: usize,
    /// Times that each server was started again.
    server_restarts: &'a [u32],
    /// Updates that were lost with servers, as far as any worker had seen them.
    lost_updates: u64,
    /// Checkpoints that could not be written, and why the last could not.
    checkpoints_failed: u64,
    checkpoint_error: Option<&'a str>,
    /// The last report of each server about itself.
    server_status: &'a [ServerReport],
    workers: Vec<JsonWorker<'a>>,
}

#[derive(Serialize)]
struct JsonLocal {
    accuracy: Option<f64>,
    loss: f64,
    /// Euclidean distance from the mean of all workers' parameters.
    distance_from_mean: f64,
}

#[derive(Serialize)]
struct JsonWorker<'a> {
    worker: usize,
    straggler_factor: f64,
    evicted: bool,
    /// The reason that it did not finish, if it did not.
    lost: Option<&'a str>,
    /// Times that it came back after it was lost.
    restarts: u32,
    /// The way by which it reached each server, and the reason for that way.
    paths: &'a [PathTaken],
    /// Of a worker that was lost: as far as it had told.
    #[serde(flatten)]
    report: &'a WorkerReport,
}

/// One line of JSON.
pub(super) fn json(plan: &Plan, outcome: &Outcome) -> String {
    let workers = outcome.job.workers.iter().zip(&plan.factors).enumerate();
    let json = Json {
        model: plan.spec.kind().to_string(),
        hidden: plan.spec.hidden().to_vec(),
        penalty: decimal(plan.spec.penalty()),
        shards: plan.shards.to_string(),
        parameters: plan.spec.parameters(),
        data: plan.data.as_ref().map_or(plan.built_in().into(), |path| path.display().to_string()),
        train_examples: plan.task.train.examples().count(),
        test_examples: plan.task.test.examples().count(),
        scheme: plan.scheme.name(),
        settings: plan.scheme.to_string(),
        staleness: plan.scheme.staleness(),
        additive: plan.additive,
        transport: ways(outcome),
        servers: plan.servers,
        per_host: plan.per_host,
        hosts: outcome.job.hosts,
        threads: plan.threads,
        device: plan.gpu.as_ref().map(Gpu::name),
        encoding: encoding(plan.encoding),
        optimizer: plan.optimizer_name,
        learning_rate: decimal(plan.learning_rate),
        schedule: plan.schedule.to_string(),
        epochs: plan.epochs,
        batch: plan.batch,
        seed: plan.seed,
        final_accuracy: outcome.evaluation.accuracy.map(decimal),
        final_loss: decimal(outcome.evaluation.loss),
        local: outcome.local.map(|(local, distance)| JsonLocal {
            accuracy: local.accuracy.map(decimal),
            loss: decimal(local.loss),
            distance_from_mean: distance,
        }),
        target_accuracy: plan.target.map(decimal),
        time_to_target_s: outcome.time_to_target.map(|time| time.as_secs_f64()),
        wall_s: outcome.wall.as_secs_f64(),
        versions: outcome.versions,
        versions_per_s: rate(outcome),
        saved: plan.save.as_ref().filter(|_| outcome.saved.is_ok()).map(|path| path.display().to_string()),
        evicted: lost(outcome),
        server_restarts: &outcome.job.restarts,
        lost_updates: outcome.job.lost_updates,
        checkpoints_failed: outcome.job.checkpoints_failed,
        checkpoint_error: outcome.job.checkpoint_error.as_deref(),
        server_status: &outcome.job.servers,
        workers: workers
            .map(|(worker, (outcome, factor))| JsonWorker {
                worker,
                straggler_factor: *factor,
                evicted: outcome.lost.is_some(),
                lost: outcome.lost.as_deref(),
                restarts: outcome.returns,
                paths: &outcome.paths,
                report: &outcome.report,
            })
            .collect(),
    };
    // Strings and finite numbers: there is nothing that JSON cannot hold.
    let mut line = serde_json::to_string(&json).unwrap_or_default();
    line.push('\n');
    line
}

fn ways(outcome: &Outcome) -> String {
    let taken = outcome.job.workers.iter().flat_map(|worker| &worker.paths).map(|taken| taken.path);
    let ways: Vec<_> = taken.collect::<BTreeSet<_>>().into_iter().map(|path| path.to_string()).collect();
    ways.join("+")
}

/// The value as it is written, not the nearest f64's digits.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

fn encoding(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::F32 => "f32",
        Encoding::Bf16 => "bf16",
        Encoding::F16 => "f16",
    }
}

fn rate(outcome: &Outcome) -> f64 {
    done(outcome) as f64 / outcome.wall.as_secs_f64().max(1e-9)
}

/// Versions that this run made.
fn done(outcome: &Outcome) -> u64 {
    outcome.versions.saturating_sub(outcome.job.began)
}

fn lost(outcome: &Outcome) -> usize {
    outcome.job.workers.iter().filter(|worker| worker.lost.is_some()).count()
}

/// The closing table, at most 100 columns wide unless numbers are out of all proportion.
pub(super) fn text(plan: &Plan, outcome: &Outcome) -> String {
    let header = ["worker", "clocks", "compute", "wait", "published", "pulled", "retries", "staleness"];
    let mut rows = vec![header.map(String::from).to_vec()];
    let shown = outcome.job.workers.iter().zip(&plan.factors).enumerate().take(ROWS_MAX);
    for (worker, (outcome, factor)) in shown {
        rows.push(row(worker, *factor, outcome, plan.gradients.is_none()));
    }
    if plan.gradients.is_some() {
        rows[0].pop();
        rows[0].push(String::new());
    }
    if plan.scheme.interrupts() {
        // Told where it can happen only: a line is to stay short.
        for (row, cell) in rows.iter_mut().zip(interrupts(outcome)) {
            row.insert(2, cell);
        }
    }
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            // Numbers to the right; the last column is text.
            let gap = if column == 0 { 0 } else { 3 };
            let padding = if column + 1 == columns { 0 } else { widths[column] - cell.chars().count() };
            text.extend(std::iter::repeat_n(' ', gap + padding));
            text.push_str(cell);
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    if let Some(more @ [_, ..]) = outcome.job.workers.get(ROWS_MAX..) {
        let _ = writeln!(text, "and {} more workers (--json FILE has them all)", more.len());
    }
    let Outcome { evaluation, versions, wall, .. } = outcome;
    let rows = plan.task.test.examples().count();
    let _ = write!(
        text,
        "\n{} on {rows} test {}\n\
         {versions} versions{} in {:.2} s{}\n",
        quality(evaluation),
        plan.examples_name(),
        if outcome.job.began > 0 { format!(", {} of them", done(outcome)) } else { String::new() },
        wall.as_secs_f64(),
        // Of nothing, or of a moment, it says nothing.
        match done(outcome) > 0 && *wall >= RATE_OVER {
            true => format!(", {:.0} a second", rate(outcome)),
            false => String::new(),
        }
    );
    if let Some(hosts) = outcome.job.hosts {
        let _ = writeln!(text, "the servers saw one worker of each host, {hosts} in all");
    }
    if let Some((local, distance)) = &outcome.local {
        let _ = writeln!(
            text,
            "that is the mean of all workers; the first one's own: {}, {distance:.4} away",
            quality(local)
        );
    }
    if let (Some(_), [status]) = (plan.gradients, &outcome.job.servers[..]) {
        let ServerReport { folded, dropped, voided, version, .. } = *status;
        let each = folded as f64 / version.max(1) as f64;
        let _ = write!(text, "{folded} gradients, {each:.2} in a version");
        let _ = match dropped {
            0 => Ok(()),
            more => write!(text, "; {more} more came too late"),
        };
        let _ = match voided {
            0 => writeln!(text),
            more => writeln!(text, "; {more} more were void because their worker left first"),
        };
    }
    match (plan.target, outcome.time_to_target) {
        (None, _) => {}
        (Some(target), Some(time)) => {
            let _ = writeln!(text, "{:.1} % after {:.2} s", 100.0 * target, time.as_secs_f64());
        }
        (Some(target), None) => {
            let _ = writeln!(text, "{:.1} % was not reached; more --epochs may reach it", 100.0 * target);
        }
    }
    match lost(outcome) {
        0 => {}
        1 => text.push_str("1 worker was lost on the way; its figures are the last that it told\n"),
        lost => {
            let _ =
                writeln!(text, "{lost} workers were lost on the way; their figures are the last they told");
        }
    }
    if let Some(error) = &outcome.job.checkpoint_error {
        let failed = outcome.job.checkpoints_failed;
        let s = if failed == 1 { "" } else { "s" };
        let _ = writeln!(text, "warning: {failed} checkpoint{s} could not be written: {error}");
    }
    match (&outcome.saved, &plan.save) {
        (Ok(()), Some(path)) => {
            let _ = writeln!(text, "saved to {}", path.display());
        }
        (Ok(()), None) => text.push_str("not saved (--save FILE keeps the model)\n"),
        (Err(_), _) => text.push_str("not saved\n"),
    }
    text
}

/// Accuracy, if there is one, and loss.
fn quality(evaluation: &Evaluation) -> String {
    match evaluation.accuracy {
        Some(accuracy) => format!("accuracy {:.1} %, loss {:.4}", 100.0 * accuracy, evaluation.loss),
        // It may be as small as rounding leaves it.
        None => format!("mean squared error {}", number(f64::from(evaluation.loss))),
    }
}

fn row(worker: usize, factor: f64, outcome: &WorkerOutcome, by_clock: bool) -> Vec<String> {
    let report = &outcome.report;
    let name = if factor > 1.0 { format!("{worker} (x{factor})") } else { worker.to_string() };
    // Where the slow are left behind, clocks say nothing of how old parameters are.
    let stale = if by_clock { staleness(&report.staleness_histogram) } else { String::new() };
    let last = match outcome.lost {
        Some(_) => format!("{stale} EVICTED"),
        None => stale,
    };
    vec![
        name,
        report.clocks.to_string(),
        format!("{:.2} s", report.compute_s),
        format!("{:.2} s", report.wait_s),
        bytes(report.bytes_published),
        bytes(report.bytes_pulled),
        report.pull_retries.to_string(),
        last.trim().to_owned(),
    ]
}

/// A column of the computations that each worker abandoned.
fn interrupts(outcome: &Outcome) -> impl Iterator<Item = String> {
    let counts = outcome.job.workers.iter().map(|worker| worker.report.interrupts.to_string());
    std::iter::once("stopped".to_owned()).chain(counts)
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Mean and range of a histogram, and its shape. The counts are what a member told, of whatever size.
fn staleness(histogram: &[u64]) -> String {
    let (count, sum) = count_and_sum(histogram);
    if count == 0 {
        return String::new();
    }
    let shape = bars(histogram, BARS_MAX);
    format!("mean {:.2}  0|{shape}|{}", sum as f64 / count as f64, histogram.len() - 1)
}

/// The number and the sum of the values that a histogram from 0 counts, neither of which fits 64 bits where a member
/// told huge counts.
pub(super) fn count_and_sum(histogram: &[u64]) -> (u128, u128) {
    let add = |(count, sum), (value, more): (u128, &u64)| {
        (count + u128::from(*more), sum + value * u128::from(*more))
    };
    (0..).zip(histogram).fold((0, 0), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_keep_their_shape_and_never_grow_wide() {
        assert_eq!(staleness(&[]), "");
        assert_eq!(staleness(&[10]), "mean 0.00  0|█|0");
        assert_eq!(staleness(&[8, 0, 1]), "mean 0.22  0|█ ▁|2");
        assert!(staleness(&[1; 256]).chars().count() <= 40);
    }

    #[test]
    fn a_histogram_of_any_counts_that_a_member_tells_is_shown() {
        assert_eq!(staleness(&[1 << 61, 1]), "mean 0.00  0|█▁|1");
        assert_eq!(staleness(&[u64::MAX; 32]), format!("mean 15.50  0|{}|31", "█".repeat(16)));
    }

    #[test]
    fn numbers_are_written_as_they_were_given() {
        assert_eq!(decimal(0.05), 0.05);
        assert_eq!(bytes(12_699_000), "12.7 MB");
    }
}
