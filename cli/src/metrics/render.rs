//! The text that Prometheus reads (exposition format 0.0.4).

use std::fmt::Write as _;
use std::time::Duration;

use super::parse::Sample;
use super::{NodeMetrics, PeerMetrics, ServerMetrics, WorkerMetrics};

/// Upper bounds of the buckets of staleness: exact where bounds usually lie, coarser above.
const STALENESS_BOUNDS: [u64; 24] =
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 48, 64, 96, 128, 192];

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: Vec<Sample>,
}

/// Writes what a node tells, and how old that is.
pub fn render(metrics: &NodeMetrics, age: Duration) -> String {
    let mut text = String::with_capacity(4096);
    for Family { name, kind, help, samples } in families(metrics, age) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", help.replace('\\', "\\\\"));
        for sample in &samples {
            write_sample(&mut text, sample);
        }
    }
    text
}

pub(super) fn write_sample(text: &mut String, sample: &Sample) {
    text.push_str(&sample.name);
    for (index, (name, value)) in sample.labels.iter().enumerate() {
        let _ = write!(text, "{}{name}=\"", if index == 0 { '{' } else { ',' });
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    let end = if sample.labels.is_empty() { "" } else { "}" };
    let _ = match sample.value {
        f64::INFINITY => writeln!(text, "{end} +Inf"),
        f64::NEG_INFINITY => writeln!(text, "{end} -Inf"),
        value => writeln!(text, "{end} {value}"),
    };
}

fn families(metrics: &NodeMetrics, age: Duration) -> Vec<Family> {
    let mut families = vec![Family {
        name: "slackline_node_info",
        kind: Kind::Gauge,
        help: "What this node is; always 1.",
        samples: vec![Sample::new(
            "slackline_node_info",
            &[
                ("role", metrics.role.name()),
                ("rank", &metrics.rank.to_string()),
                ("version", env!("CARGO_PKG_VERSION")),
            ],
            1.0,
        )],
    }];
    let age_help = "Since the node last told anything; grows while its loop stands still.";
    families.push(single("slackline_snapshot_age_seconds", Kind::Gauge, age_help, age.as_secs_f64()));
    if let Some(server) = &metrics.server {
        families.extend(of_server(server));
    }
    if let Some(worker) = &metrics.worker {
        families.extend(of_worker(worker));
    }
    let loss = metrics.server.and_then(|server| server.loss);
    if let Some(loss) = loss.or(metrics.worker.as_ref().and_then(|worker| worker.loss)) {
        families.push(single("slackline_loss", Kind::Gauge, "Loss of the newest gradients.", loss));
    }
    families.extend(of_peers(&metrics.peers));
    families
}

fn of_server(server: &ServerMetrics) -> Vec<Family> {
    let gauge = |name, help, value: u64| single(name, Kind::Gauge, help, value as f64);
    let counter = |name, help, value: u64| single(name, Kind::Counter, help, value as f64);
    let mut families = vec![
        gauge("slackline_version", "Newest version of the parameters.", server.version),
        gauge(
            "slackline_smallest_clock",
            "All gradients of clocks before this one are in the newest version.",
            server.smallest_clock,
        ),
        gauge("slackline_workers", "Workers that are in.", server.workers),
        gauge("slackline_readers", "Readers that are in.", server.readers),
        counter("slackline_workers_joined_total", "Workers that ever joined.", server.joined),
        counter("slackline_workers_left_total", "Workers that left or were evicted.", server.left),
        counter("slackline_peers_refused_total", "Peers that were turned away.", server.refused),
        counter(
            "slackline_trespasses_total",
            "Times that peers reached for memory that they were not granted.",
            server.trespasses,
        ),
        counter("slackline_gradients_folded_total", "Gradients that were folded in.", server.folded),
        counter(
            "slackline_gradients_dropped_total",
            "Gradients that were consumed without being folded in.",
            server.dropped,
        ),
        counter(
            "slackline_gradients_voided_total",
            "Gradients that were announced, and void because their worker left first.",
            server.voided,
        ),
        counter(
            "slackline_gradients_non_finite_total",
            "Gradients that held a NaN or an infinity.",
            server.non_finite,
        ),
        gauge("slackline_version_gradients", "Gradients in the newest version.", server.gradients),
        counter(
            "slackline_interrupts_requested_total",
            "Times that workers were asked to abandon what they compute.",
            server.interrupts,
        ),
        counter(
            "slackline_checkpoints_failed_total",
            "Checkpoints that could not be written.",
            server.checkpoints_failed,
        ),
    ];
    let measured = [
        (
            "slackline_checkpoint_version",
            "Newest version whose checkpoint is on the disk.",
            server.checkpointed.map(|version| version as f64),
        ),
        (
            "slackline_waits_for_gradients",
            "Gradients that the next version waits for.",
            server.waits_for.map(|count| count as f64),
        ),
        (
            "slackline_staleness_bound_versions",
            "Versions that a gradient may be behind by now.",
            server.staleness_bound.map(|bound| bound as f64),
        ),
        (
            "slackline_gradient_mean_norm_squared",
            "Squared norm of the mean gradient.",
            server.mean_norm_squared,
        ),
        ("slackline_gradient_variance", "Variance of one gradient, over all its elements.", server.variance),
    ];
    let measured = measured.into_iter().filter_map(|(name, help, value)| Some((name, help, value?)));
    families.extend(measured.map(|(name, help, value)| single(name, Kind::Gauge, help, value)));
    families
}

fn of_worker(worker: &WorkerMetrics) -> Vec<Family> {
    let counter = |name, help, value: u64| single(name, Kind::Counter, help, value as f64);
    let seconds = |name, help, value: Duration| single(name, Kind::Counter, help, value.as_secs_f64());
    let most = worker.staleness.iter().rposition(|count| *count > 0).unwrap_or(0);
    vec![
        single("slackline_clock", Kind::Gauge, "Gradients published.", worker.clock as f64),
        seconds("slackline_compute_seconds_total", "Time spent on gradients.", worker.compute),
        seconds("slackline_wait_seconds_total", "Time spent waiting for servers.", worker.wait),
        counter("slackline_published_bytes_total", "Gradients written to servers.", worker.bytes_published),
        counter("slackline_pulled_bytes_total", "Parameters copied from servers.", worker.bytes_pulled),
        counter(
            "slackline_pull_retries_total",
            "Copies begun anew because the frame changed under them.",
            worker.pull_retries,
        ),
        counter("slackline_timeouts_total", "Deadlines that passed.", worker.timeouts),
        counter(
            "slackline_interrupts_total",
            "Computations that were abandoned because a server asked for that.",
            worker.interrupts,
        ),
        counter("slackline_reconnects_total", "Times that a lost server was found again.", worker.reconnects),
        staleness(&worker.staleness),
        single(
            "slackline_staleness_max_clocks",
            Kind::Gauge,
            "The most clocks that the parameters of a gradient were behind.",
            most as f64,
        ),
    ]
}

fn staleness(counts: &[u64]) -> Family {
    let name = "slackline_staleness_clocks";
    let mut samples = Vec::with_capacity(STALENESS_BOUNDS.len() + 3);
    for bound in STALENESS_BOUNDS {
        let within: u64 = counts.iter().take(bound as usize + 1).sum();
        samples.push(Sample::new(&format!("{name}_bucket"), &[("le", &bound.to_string())], within as f64));
    }
    let all: u64 = counts.iter().sum();
    let sum: f64 = counts.iter().enumerate().map(|(clocks, count)| clocks as f64 * *count as f64).sum();
    samples.push(Sample::new(&format!("{name}_bucket"), &[("le", "+Inf")], all as f64));
    samples.push(Sample::new(&format!("{name}_sum"), &[], sum));
    samples.push(Sample::new(&format!("{name}_count"), &[], all as f64));
    let help = "Clocks that the parameters of a gradient were behind.";
    Family { name, kind: Kind::Histogram, help, samples }
}

fn of_peers(peers: &[PeerMetrics]) -> Vec<Family> {
    let labels = |peer: &PeerMetrics| {
        [("peer", peer.name.clone()), ("role", peer.role.name().into()), ("path", peer.path.to_string())]
    };
    let family = |name: &'static str, kind, help, value: fn(&PeerMetrics) -> u64| {
        let sample = |peer: &PeerMetrics| {
            let labels = labels(peer);
            let mut labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            if name == "slackline_peer_state" {
                labels.push(("state", peer.state.name()));
            }
            Sample::new(name, &labels, value(peer) as f64)
        };
        Family { name, kind, help, samples: peers.iter().map(sample).collect() }
    };
    if peers.is_empty() {
        return Vec::new();
    }
    vec![
        family("slackline_peer_state", Kind::Gauge, "How each peer is, in a label; always 1.", |_| 1),
        family(
            "slackline_peer_received_bytes_total",
            Kind::Counter,
            "Bytes that came from a peer.",
            |peer| peer.bytes_in,
        ),
        family("slackline_peer_sent_bytes_total", Kind::Counter, "Bytes that went to a peer.", |peer| {
            peer.bytes_out
        }),
    ]
}

fn single(name: &'static str, kind: Kind, help: &'static str, value: f64) -> Family {
    Family { name, kind, help, samples: vec![Sample::new(name, &[], value)] }
}
