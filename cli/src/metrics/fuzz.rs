//! Fuzzing of untrusted input: answers of a port that `slackline top` asks, and requests at our own port for metrics.

use super::parse::parse;
use super::server::{REQUEST_MAX, answer};
use super::{NodeMetrics, NodeRole, PeerMetrics, PeerState, Registry, ServerMetrics, WorkerMetrics, render};
use slackline::TransportKind;
use std::time::Duration;

/// Reads `bytes` as metrics, and checks that quantiles agree with the samples.
pub(crate) fn fuzz_text(bytes: &[u8]) {
    let Some(samples) = std::str::from_utf8(bytes).ok().and_then(|text| parse(text).ok()) else { return };
    for name in ["x", "slackline_staleness"] {
        let bound = samples.quantile(name, 0.5);
        assert!(bound.is_none() || samples.value(&format!("{name}_count")).is_some());
        let _ = (samples.sum(name), samples.named(name).count());
    }
}

/// Takes `bytes` for what came of a request so far, and checks the answer.
pub(crate) fn fuzz_request(bytes: &[u8]) {
    let registry = Registry::new(NodeMetrics::default());
    match answer(bytes, &registry) {
        Some(answer) => {
            let text = String::from_utf8(answer).expect("an answer is text");
            assert!(text.starts_with("HTTP/1.1 ") && text.contains("\r\n\r\n"));
        }
        None => assert!(bytes.len() < REQUEST_MAX),
    }
}

/// Returns the text of our nodes, and of a node that tells more than ours do.
pub(crate) fn text_samples() -> Vec<Vec<u8>> {
    let peer = PeerMetrics {
        name: "a \"b\"\\\nc".into(),
        role: NodeRole::Server,
        state: PeerState::Lost,
        path: TransportKind::Tcp,
        bytes_in: 5,
        bytes_out: 7,
    };
    let worker = WorkerMetrics { clock: 41, staleness: vec![5, 0, 4, 1], ..WorkerMetrics::default() };
    let server = ServerMetrics { loss: Some(0.5), ..ServerMetrics::default() };
    let of_worker = NodeMetrics { worker: Some(worker), peers: vec![peer], ..NodeMetrics::default() };
    let of_server = NodeMetrics { server: Some(server), ..NodeMetrics::default() };
    let text = |metrics| render(metrics, Duration::from_millis(1)).into_bytes();
    let other = b"# HELP x y\nx_bucket{ le = \"1\" , a=\"\\n\\\\\", } 1e3 1395066363000\nx_count 4\nx -Inf\n";
    vec![text(of_worker), text(of_server), other.to_vec()]
}

/// Requests of every kind.
pub(crate) fn request_samples() -> Vec<Vec<u8>> {
    [
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
        "HEAD /metrics?x HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}
