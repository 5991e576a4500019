//! The text that Prometheus reads (OpenMetrics 1.0), written by `prometheus-client`.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{NodeMetrics, PeerMetrics, ServerMetrics, WorkerMetrics};

/// Upper bounds of the buckets of staleness: exact where bounds usually lie, coarser above.
const STALENESS_BOUNDS: [u64; 24] =
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 32, 48, 64, 96, 128, 192];

/// Writes the metrics of a node, and their age.
pub fn render(metrics: NodeMetrics, age: Duration) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot { metrics, age }));
    let mut text = String::with_capacity(4096);
    text::encode(&mut text, &registry).expect("a string takes any text");
    text
}

#[derive(Debug)]
struct Snapshot {
    metrics: NodeMetrics,
    age: Duration,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        let Snapshot { metrics, age } = self;
        let node = [
            ("role", metrics.role.name().to_owned()),
            ("rank", metrics.rank.to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        families.labelled("slackline_node_info", "The role of this node; always 1.", [(node, 1)])?;
        families.gauge(
            "slackline_snapshot_age_seconds",
            "Time since the node last told anything; grows while its loop stands still.",
            Some(age.as_secs_f64()),
        )?;
        if let Some(server) = &metrics.server {
            of_server(server, &mut families)?;
        }
        if let Some(worker) = &metrics.worker {
            of_worker(worker, &mut families)?;
        }
        let loss = metrics.server.and_then(|server| server.loss);
        let loss = loss.or(metrics.worker.as_ref().and_then(|worker| worker.loss));
        families.gauge("slackline_loss", "Loss of the newest gradients.", loss)?;
        of_peers(&metrics.peers, &mut families)
    }
}

/// The families of one answer, in the order in which they are written.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    /// Writes a gauge, if there is a value.
    fn gauge(&mut self, name: &str, help: &str, value: Option<impl EncodeGaugeValue>) -> fmt::Result {
        let Some(value) = value else { return Ok(()) };
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Writes a counter, whose sample is called `name` with `_total` behind it.
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes a gauge with one sample for each set of labels.
    fn labelled<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        samples
            .into_iter()
            .try_for_each(|(labels, value)| encoder.encode_family(&labels)?.encode_gauge(&value))
    }
}

fn of_server(server: &ServerMetrics, families: &mut Families<'_>) -> fmt::Result {
    families.gauge("slackline_version", "Newest version of the parameters.", Some(server.version))?;
    families.gauge(
        "slackline_smallest_clock",
        "All gradients of clocks before this one are in the newest version.",
        Some(server.smallest_clock),
    )?;
    families.gauge("slackline_workers", "Workers that are in.", Some(server.workers))?;
    families.gauge("slackline_readers", "Readers that are in.", Some(server.readers))?;
    families.gauge(
        "slackline_version_gradients",
        "Gradients in the newest version.",
        Some(server.gradients),
    )?;
    for (name, help, value) in [
        ("slackline_workers_joined", "Workers that ever joined.", server.joined),
        ("slackline_workers_left", "Workers that left or were evicted.", server.left),
        ("slackline_peers_refused", "Peers that were refused.", server.refused),
        (
            "slackline_access_violations",
            "Times that peers reached for memory that they were not granted.",
            server.access_violations,
        ),
        (
            "slackline_rails_lost",
            "RDMA devices side by side that connections have lost, and gone on over the others.",
            server.rails_lost,
        ),
        ("slackline_gradients_folded", "Gradients that were folded in.", server.folded),
        (
            "slackline_gradients_dropped",
            "Gradients that were consumed without being folded in.",
            server.dropped,
        ),
        (
            "slackline_gradients_voided",
            "Gradients that were announced, and void because their worker left first.",
            server.voided,
        ),
        ("slackline_gradients_non_finite", "Gradients that held a NaN or an infinity.", server.non_finite),
        (
            "slackline_interrupts_requested",
            "Times that workers were asked to abandon what they compute.",
            server.interrupts,
        ),
        ("slackline_checkpoints_failed", "Checkpoints that could not be written.", server.checkpoints_failed),
    ] {
        families.counter(name, help, value)?;
    }
    for (name, help, value) in [
        (
            "slackline_checkpoint_version",
            "Newest version whose checkpoint is on the disk.",
            server.checkpointed,
        ),
        ("slackline_waits_for_gradients", "Gradients that the next version waits for.", server.waits_for),
        (
            "slackline_staleness_bound_versions",
            "Versions that a gradient may be behind by now.",
            server.staleness_bound,
        ),
    ] {
        families.gauge(name, help, value)?;
    }
    let norm = server.mean_norm_squared;
    families.gauge("slackline_gradient_mean_norm_squared", "Squared norm of the mean gradient.", norm)?;
    let help = "Variance of one gradient, over all its elements.";
    families.gauge("slackline_gradient_variance", help, server.variance)
}

fn of_worker(worker: &WorkerMetrics, families: &mut Families<'_>) -> fmt::Result {
    families.gauge("slackline_clock", "Gradients published.", Some(worker.clock))?;
    families.counter(
        "slackline_compute_seconds",
        "Time spent on gradients.",
        worker.compute.as_secs_f64(),
    )?;
    families.counter(
        "slackline_wait_seconds",
        "Time spent waiting for servers.",
        worker.wait.as_secs_f64(),
    )?;
    for (name, help, value) in [
        ("slackline_published_bytes", "Gradients written to servers.", worker.bytes_published),
        ("slackline_pulled_bytes", "Parameters copied from servers.", worker.bytes_pulled),
        (
            "slackline_pull_retries",
            "Copies begun again because the frame changed under them.",
            worker.pull_retries,
        ),
        ("slackline_timeouts", "Deadlines that passed.", worker.timeouts),
        (
            "slackline_interrupts",
            "Computations that were abandoned because a server asked for that.",
            worker.interrupts,
        ),
        ("slackline_reconnects", "Times that a lost server was found again.", worker.reconnects),
    ] {
        families.counter(name, help, value)?;
    }
    // A worker without a gradient, or without servers, has none.
    if worker.staleness.is_empty() {
        return Ok(());
    }
    staleness(&worker.staleness, families)?;
    let most = worker.staleness.iter().rposition(|count| *count > 0).unwrap_or(0);
    families.gauge(
        "slackline_staleness_max_clocks",
        "The most clocks that the parameters of a gradient were behind.",
        Some(most as u64),
    )
}

fn staleness(counts: &[u64], families: &mut Families<'_>) -> fmt::Result {
    let mut buckets: Vec<(f64, u64)> = STALENESS_BOUNDS.map(|bound| (bound as f64, 0)).into();
    buckets.push((f64::INFINITY, 0));
    for (clocks, count) in counts.iter().enumerate() {
        let bucket = buckets.iter_mut().find(|(bound, _)| clocks as f64 <= *bound);
        bucket.expect("the last bucket takes all").1 += count;
    }
    let sum = counts.iter().enumerate().map(|(clocks, count)| clocks as f64 * *count as f64).sum();
    let help = "Clocks that the parameters of a gradient were behind.";
    let name = "slackline_staleness_clocks";
    let mut encoder = families.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    encoder.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
}

fn of_peers(peers: &[PeerMetrics], families: &mut Families<'_>) -> fmt::Result {
    if peers.is_empty() {
        return Ok(());
    }
    let labels = |peer: &PeerMetrics| {
        [("peer", peer.name.clone()), ("role", peer.role.name().into()), ("path", peer.path.to_string())]
    };
    let states = peers.iter().map(|peer| {
        let mut labels = Vec::from(labels(peer));
        labels.push(("state", peer.state.name().into()));
        (labels, 1)
    });
    families.labelled("slackline_peer_state", "How each peer is, in a label; always 1.", states)?;
    let mut bytes = |name, help, value: fn(&PeerMetrics) -> u64| {
        let mut encoder = families.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        peers.iter().try_for_each(|peer| {
            encoder.encode_family(&labels(peer))?.encode_counter::<NoLabelSet, _, u64>(&value(peer), None)
        })
    };
    bytes("slackline_peer_received_bytes", "Bytes that came from a peer.", |peer| peer.bytes_in)?;
    bytes("slackline_peer_sent_bytes", "Bytes that went to a peer.", |peer| peer.bytes_out)
}
