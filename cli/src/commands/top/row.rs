//! The values that are shown of one node.

use serde::Serialize;

use super::Answer;
use super::scrape::Target;
use crate::metrics::Samples;

/// A node that stood still for so long is called stalled.
const STALLED_AFTER_S: f64 = 5.0;

const STALENESS: &str = "slackline_staleness_clocks";

/// One node at one time. What it does not have, or cannot be told yet, is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) address: String,
    /// The reason that the node did not answer.
    pub(super) unreachable: Option<String>,
    pub(super) role: Option<String>,
    pub(super) rank: Option<u64>,
    pub(super) version: Option<u64>,
    pub(super) clock: Option<u64>,
    /// Versions of a server, clocks of a worker.
    pub(super) rate_per_s: Option<f64>,
    pub(super) staleness_p50: Option<u64>,
    pub(super) staleness_max: Option<u64>,
    /// Of the time that is either computing or waiting.
    pub(super) wait_share: Option<f64>,
    pub(super) in_bytes_per_s: Option<f64>,
    pub(super) out_bytes_per_s: Option<f64>,
    pub(super) loss: Option<f64>,
    /// Gradients that the next version waits for, and how many versions they may be behind.
    pub(super) waits_for: Option<u64>,
    pub(super) staleness_bound: Option<u64>,
    /// Of the mean gradient, and of one.
    pub(super) mean_norm_squared: Option<f64>,
    pub(super) variance: Option<f64>,
    pub(super) pull_retries: Option<u64>,
    pub(super) timeouts: Option<u64>,
    pub(super) peers_up: u64,
    pub(super) peers_joining: u64,
    pub(super) peers_lost: u64,
    pub(super) paths: Vec<String>,
    /// For how long its loop has told nothing, if that is long.
    pub(super) stalled_s: Option<f64>,
}

impl Row {
    /// From two answers, or one.
    pub(super) fn new(node: &Target, before: Option<&Answer>, (now, at): &Answer) -> Row {
        let address = node.to_string();
        let now = match now {
            Ok(now) => now,
            Err(reason) => return Row { address, unreachable: Some(reason.clone()), ..Row::default() },
        };
        let since = match before {
            Some((Ok(before), then)) => Some((before, at.duration_since(*then).as_secs_f64())),
            _ => None,
        };
        // A number that went down is of a node that was started again.
        let grown = |name: &str| {
            let (before, _) = since?;
            Some(now.sum(name)? - before.sum(name)?).filter(|grown| *grown >= 0.0)
        };
        let rate = |name: &str| {
            let (_, seconds) = since?;
            Some(grown(name)? / seconds).filter(|rate| rate.is_finite())
        };
        let whole = |name: &str| now.value(name).map(|value| value as u64);
        let finite = |name: &str| now.value(name).filter(|value| value.is_finite());
        let info = now.named("slackline_node_info").next();
        let wait = grown("slackline_wait_seconds_total").zip(grown("slackline_compute_seconds_total"));
        let peers = |state: &str| {
            let peers = now.named("slackline_peer_state");
            peers.filter(|peer| peer.label("state") == Some(state)).count() as u64
        };
        Row {
            address,
            unreachable: None,
            role: info.and_then(|info| info.label("role")).map(plain),
            rank: info.and_then(|info| info.label("rank")?.parse().ok()),
            version: whole("slackline_version"),
            clock: whole("slackline_clock").or(whole("slackline_smallest_clock")),
            rate_per_s: rate("slackline_version").or_else(|| rate("slackline_clock")),
            staleness_p50: staleness_median(now),
            staleness_max: now.quantile(STALENESS, 0.0).and(whole("slackline_staleness_max_clocks")),
            wait_share: wait.map(|(wait, compute)| wait / (wait + compute)).filter(|share| share.is_finite()),
            in_bytes_per_s: rate("slackline_peer_received_bytes_total")
                .or_else(|| rate("slackline_pulled_bytes_total")),
            out_bytes_per_s: rate("slackline_peer_sent_bytes_total")
                .or_else(|| rate("slackline_published_bytes_total")),
            loss: finite("slackline_loss"),
            waits_for: whole("slackline_waits_for_gradients"),
            staleness_bound: whole("slackline_staleness_bound_versions"),
            mean_norm_squared: finite("slackline_gradient_mean_norm_squared"),
            variance: finite("slackline_gradient_variance"),
            pull_retries: whole("slackline_pull_retries_total"),
            timeouts: whole("slackline_timeouts_total"),
            peers_up: peers("up"),
            peers_joining: peers("joining"),
            peers_lost: peers("lost"),
            paths: paths(now),
            stalled_s: now.value("slackline_snapshot_age_seconds").filter(|age| *age > STALLED_AFTER_S),
        }
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.unreachable.is_none()
    }
}

/// The bound of the bucket that it lies in, but no more than what occurred.
fn staleness_median(now: &Samples) -> Option<u64> {
    let most = now.value("slackline_staleness_max_clocks")?;
    now.quantile(STALENESS, 0.5).map(|median| median.min(most) as u64)
}

fn paths(now: &Samples) -> Vec<String> {
    let mut paths: Vec<String> =
        now.named("slackline_peer_state").filter_map(|peer| peer.label("path").map(plain)).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Cuts text of another process and takes control characters out: it is shown on a terminal, and must not steer it.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(32).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::metrics::parse;

    use super::*;

    fn answers(texts: [&str; 2]) -> (Answer, Answer) {
        let (then, now) = (Instant::now(), Instant::now() + Duration::from_secs(2));
        ((Ok(parse(texts[0]).unwrap()), then), (Ok(parse(texts[1]).unwrap()), now))
    }

    fn row(texts: [&str; 2]) -> Row {
        let (before, now) = answers(texts);
        Row::new(&Target::parse("1").unwrap(), Some(&before), &now)
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let text = |clock, wait, compute, bytes| {
            format!(
                "slackline_clock {clock}\nslackline_wait_seconds_total {wait}\n\
                 slackline_compute_seconds_total {compute}\nslackline_published_bytes_total {bytes}\n"
            )
        };
        let row = row([&text(10, 1.0, 100.0, 50), &text(30, 1.5, 101.5, 250)]);
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 0.01 * expected;
        assert!(near(row.rate_per_s, 10.0) && near(row.wait_share, 0.25) && near(row.out_bytes_per_s, 100.0));
        assert_eq!((row.clock, row.version, row.in_bytes_per_s), (Some(30), None, None));
    }

    #[test]
    fn a_node_that_began_anew_has_no_rate_yet() {
        assert_eq!(row(["slackline_version 10", "slackline_version 3"]).rate_per_s, None);
        let (_, now) = answers(["", "slackline_version 3"]);
        let row = Row::new(&Target::parse("1").unwrap(), None, &now);
        assert_eq!((row.version, row.rate_per_s), (Some(3), None));
    }

    #[test]
    fn what_a_node_says_does_not_steer_the_terminal() {
        let text = "slackline_node_info{role=\"a\u{1b}[2Jb\",rank=\"1\"} 1\n\
                    slackline_peer_state{path=\"\u{7}tcp\",state=\"up\"} 1\nslackline_snapshot_age_seconds 9";
        let row = row([text, text]);
        assert_eq!((row.role.as_deref(), row.paths), (Some("a[2Jb"), vec!["tcp".to_owned()]));
        assert_eq!((row.peers_up, row.stalled_s), (1, Some(9.0)));
    }
}
