//! Tests that written metrics can be read back, over a socket too, even while slow clients use other sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use proptest::prelude::*;

use super::*;

fn worker() -> NodeMetrics {
    NodeMetrics {
        role: NodeRole::Worker,
        rank: 2,
        worker: Some(WorkerMetrics {
            clock: 41,
            compute: Duration::from_millis(1500),
            wait: Duration::from_millis(250),
            staleness: vec![5, 0, 4, 1],
            ..WorkerMetrics::default()
        }),
        peers: vec![PeerMetrics {
            name: "a \"b\"\\\nc".into(),
            role: NodeRole::Server,
            state: PeerState::Lost,
            path: TransportKind::Tcp,
            bytes_in: u64::from(u32::MAX) * 5,
            bytes_out: 7,
        }],
        ..NodeMetrics::default()
    }
}

#[test]
fn what_is_written_is_read_back() {
    let text = render(worker(), Duration::from_millis(30));
    let samples = parse(&text).unwrap();
    assert_eq!(samples.value("slackline_clock"), Some(41.0));
    assert_eq!(samples.value("slackline_compute_seconds_total"), Some(1.5));
    assert_eq!(samples.value("slackline_snapshot_age_seconds"), Some(0.03));
    let info = samples.named("slackline_node_info").next().unwrap();
    assert_eq!((info.label("role"), info.label("rank")), (Some("worker"), Some("2")));
    let peer = samples.named("slackline_peer_state").next().unwrap();
    assert_eq!((peer.label("peer"), peer.label("state")), (Some("a \"b\"\\\nc"), Some("lost")));
    assert_eq!(samples.sum("slackline_peer_received_bytes_total"), Some(21_474_836_475.0));
    // What a node does not have, it does not show.
    assert_eq!(samples.value("slackline_version"), None);
    assert_eq!(samples.value("slackline_loss"), None);
    assert_eq!(samples.value("slackline_waits_for_gradients"), None);
}

#[test]
fn every_family_says_what_it_is_before_its_samples() {
    let (waits_for, staleness_bound) = (Some(3), Some(4));
    let (mean_norm_squared, variance) = (Some(0.25), Some(2.5));
    let measured = ServerStatus { mean_norm_squared, variance, ..ServerStatus::default() };
    let lost = ServerStatus { voided: 5, non_finite: 6, checkpoints_failed: 7, ..measured };
    let checkpointed = Some(slackline::Version::new(8));
    let status = ServerStatus { loss: Some(0.5), waits_for, staleness_bound, checkpointed, ..lost };
    let metrics = NodeMetrics { server: Some(status.into()), ..worker() };
    let text = render(metrics, Duration::ZERO);
    let mut family = "";
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next().unwrap(), words.next()) {
            ("#", Some("EOF")) => {}
            ("#", Some("HELP")) => family = words.next().unwrap(),
            ("#", Some("TYPE")) => assert_eq!(words.next(), Some(family)),
            (sample, _) => assert!(sample.starts_with(family) && family.starts_with("slackline_"), "{line}"),
        }
    }
    for line in [
        "slackline_loss 0.5",
        "slackline_waits_for_gradients 3",
        "slackline_staleness_bound_versions 4",
        "slackline_gradient_mean_norm_squared 0.25",
        "slackline_gradient_variance 2.5",
        "slackline_gradients_voided_total 5",
        "slackline_gradients_non_finite_total 6",
        "slackline_checkpoints_failed_total 7",
        "slackline_checkpoint_version 8",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
}

#[test]
fn a_histogram_is_cumulative_and_gives_its_quantiles() {
    let samples = parse(&render(worker(), Duration::ZERO)).unwrap();
    let buckets: Vec<f64> =
        samples.named("slackline_staleness_clocks_bucket").map(|sample| sample.value).collect();
    assert!(buckets.is_sorted() && buckets.starts_with(&[5.0, 5.0, 9.0, 10.0]), "{buckets:?}");
    assert_eq!(samples.value("slackline_staleness_clocks_sum"), Some(11.0));
    assert_eq!(samples.value("slackline_staleness_clocks_count"), Some(10.0));
    assert_eq!(samples.quantile("slackline_staleness_clocks", 0.5), Some(0.0));
    assert_eq!(samples.quantile("slackline_staleness_clocks", 0.51), Some(2.0));
    assert_eq!(samples.value("slackline_staleness_max_clocks"), Some(3.0));
    let none = parse(&render(NodeMetrics::default(), Duration::ZERO)).unwrap();
    assert_eq!(none.quantile("slackline_staleness_clocks", 0.5), None);
}

#[test]
fn a_worker_without_values_of_staleness_shows_none() {
    let metrics = NodeMetrics { worker: Some(WorkerMetrics::default()), ..NodeMetrics::default() };
    let text = render(metrics, Duration::ZERO);
    assert!(text.contains("slackline_clock 0") && !text.contains("staleness"), "{text}");
}

#[test]
fn what_others_write_is_read_too() {
    let text =
        "# a comment\n\nup 1\nx:y { a = \"1\" , b=\"2\", } 3e2 1395066363000\n n NaN\ni{le=\"+Inf\"} +Inf\n";
    let samples = parse(text).unwrap();
    assert_eq!(samples.value("up"), Some(1.0));
    assert_eq!(samples.named("x:y").next().unwrap().label("b"), Some("2"));
    assert!(samples.value("n").unwrap().is_nan());
    assert_eq!(samples.value("i"), Some(f64::INFINITY));
    for broken in
        ["<html>", "1a 2", "a", "a b", "a{b} 1", "a{b=1} 1", "a{b=\"1} 1", "a{b=\"1\"c=\"\"} 1", "a 1 2 3"]
    {
        assert_eq!(parse(&format!("ok 1\n{broken}\n")).unwrap_err().line, 2, "{broken}");
    }
}

proptest! {
    #[test]
    fn any_label_and_number_survives(name in any::<String>(), bytes_in in 0..1_u64 << 53, staleness in
        prop::collection::vec(0..1000_u64, 1..256)) {
        let mut metrics = worker();
        // Lines are cut at either.
        metrics.peers[0].name = name.replace('\r', "");
        metrics.peers[0].bytes_in = bytes_in;
        metrics.worker.as_mut().unwrap().staleness.clone_from(&staleness);
        let samples = parse(&render(metrics.clone(), Duration::ZERO)).unwrap();
        let peer = samples.named("slackline_peer_received_bytes_total").next().unwrap();
        prop_assert_eq!(peer.label("peer"), Some(metrics.peers[0].name.as_str()));
        prop_assert_eq!(peer.value, bytes_in as f64);
        let count: u64 = staleness.iter().sum();
        prop_assert_eq!(samples.value("slackline_staleness_clocks_count"), Some(count as f64));
    }

    #[test]
    fn nothing_that_is_read_makes_it_panic(text in "[a-z{}=\",\\\\ 0-9\n]{0,40}") {
        fuzz::fuzz_text(text.as_bytes());
    }

    #[test]
    fn damaged_texts_and_requests_never_panic(at: prop::sample::Index, with in any::<[u8; 2]>()) {
        for (samples, fuzz) in [
            (fuzz::text_samples(), fuzz::fuzz_text as fn(&[u8])),
            (fuzz::request_samples(), fuzz::fuzz_request),
        ] {
            for mut bytes in samples {
                fuzz(&bytes);
                let at = at.index(bytes.len());
                bytes.splice(at..=at, with);
                fuzz(&bytes);
            }
        }
    }
}

fn started() -> (MetricsServer, Registry) {
    let registry = Registry::new(worker());
    (MetricsServer::start(listen_address("0").unwrap(), registry.clone()).unwrap(), registry)
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_node_is_scraped_over_a_socket() {
    let (server, registry) = started();
    let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = ask(server.address(), get);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert_eq!(parse(body).unwrap().value("slackline_clock"), Some(41.0));
    registry.update(|metrics| metrics.worker.as_mut().unwrap().clock = 42);
    assert!(ask(server.address(), get).contains("\nslackline_clock 42\n"));
    for (request, status) in [
        ("GET / HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
        ("GET /else HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("\u{1}\r\n\r\n", "400"),
        (&format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(20_000)), "431"),
    ] {
        let answer = ask(server.address(), request);
        assert_eq!(answer.split(' ').nth(1), Some(status), "{request:.40}: {answer}");
    }
    let head = ask(server.address(), "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

/// Clients that begin a request and do not end it.
fn slow(server: &MetricsServer, count: usize) -> Vec<TcpStream> {
    let half = || {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET /met").unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    (0..count).map(|_| half()).collect()
}

#[test]
fn slow_clients_delay_nobody_while_there_is_room() {
    let (server, _) = started();
    let is_open = |mut stream: &TcpStream| {
        stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // The slow clients are dropped at a deadline, which a busy machine may reach before it answers.
    let answers_before_they_end = |_attempt| {
        let slow = slow(&server, 8);
        assert!(ask(server.address(), "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
        slow.iter().all(is_open)
    };
    assert!((0..10).any(answers_before_they_end));
}

#[test]
fn slow_clients_without_end_delay_others_to_their_deadline_only() {
    let (server, _) = started();
    let _slow = slow(&server, 40);
    assert!(ask(server.address(), "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_server_that_is_dropped_frees_its_address_and_one_in_use_is_an_error() {
    let (server, registry) = started();
    let address = server.address();
    let idle = TcpStream::connect(address).unwrap();
    let error = MetricsServer::start(address, registry.clone()).unwrap_err().to_string();
    assert!(error.contains("the address is in use; choose another port"), "{error}");
    drop((server, idle));
    MetricsServer::start(address, registry).unwrap();
}

#[test]
fn a_bare_port_is_of_this_machine_alone() {
    for (text, address) in [
        ("9100", "127.0.0.1:9100"),
        (":9100", "127.0.0.1:9100"),
        ("localhost:9100", "127.0.0.1:9100"),
        ("0.0.0.0:9100", "0.0.0.0:9100"),
        ("[::1]:9100", "[::1]:9100"),
    ] {
        assert_eq!(listen_address(text).unwrap().to_string(), address);
    }
    for text in ["", ":", "65536", "node1:9100", "::1:x", "1.2.3.4"] {
        listen_address(text).expect_err(text);
    }
}

#[test]
fn processes_of_one_host_take_one_port_each() {
    let args = |port| MetricsArgs { metrics: Some(listen_address(port).unwrap()) };
    let port = |args: MetricsArgs, rank| args.address(rank).map(|address| address.unwrap().port());
    assert_eq!(port(args("9100"), None), Ok(9100));
    assert_eq!(port(args("9100"), Some(3)), Ok(9103));
    assert_eq!(port(args("0"), Some(3)), Ok(0));
    assert!(port(args("65535"), Some(1)).is_err());
    assert_eq!(MetricsArgs::default().address(Some(1)), Ok(None));
}
