//! Distributions, traces and settings: what they mean, and what is refused.

use slackline::optim::{AdamParameters, Optimizer, Schedule};
use slackline::scheme::{Damping, SchemeConfig};
use slackline::sim::{Change, Cluster, Crash, Distribution, DistributionError, TraceError, Until};

use super::{near, run};

#[test]
fn every_distribution_has_the_mean_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times");
    std::fs::write(&file, "# seconds\n0.5\n1.5 # slow\n\n4\n").unwrap();
    let trace = format!("trace:{}", file.display());
    let distributions =
        ["constant(2)", "exp(0.5)", "shifted-exp(0.5, 0.25)", "pareto(3, 0.5)", "uniform(0.5, 1.5)"];
    for text in distributions.into_iter().chain([trace.as_str()]) {
        let distribution: Distribution = text.parse().unwrap();
        assert_eq!(distribution.to_string(), text);
        let mut cluster = Cluster::new(SchemeConfig::Asp, 3, 1);
        cluster.compute = distribution.clone();
        cluster.until = Until::Clocks(30_000);
        near(text, run(cluster).mean_time_per_clock, distribution.mean(), 0.02);
    }
    assert_eq!("pareto(1, 1)".parse::<Distribution>().unwrap().mean(), f64::INFINITY);
}

#[test]
fn a_text_that_is_no_distribution_is_refused_with_all_that_are() {
    for text in ["", "exp", "exp()", "exp(1", "exp(a)", "exp(1, 2)", "normal(1, 2)", "uniform(1)"] {
        let error = text.parse::<Distribution>().unwrap_err();
        assert!(matches!(error, DistributionError::Unknown { .. }), "{text}: {error}");
        assert!(error.to_string().contains("shifted-exp(SHIFT, MEAN)"), "{error}");
    }
    for text in ["constant(-1)", "exp(inf)", "exp(NaN)", "pareto(0, 1)", "pareto(2, 0)", "uniform(2, 1)"] {
        let error = text.parse::<Distribution>().unwrap_err();
        assert!(matches!(error, DistributionError::Parameters { .. }), "{text}: {error}");
    }
}

#[test]
fn a_trace_that_cannot_be_used_is_refused_with_file_line_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |content: &[u8]| {
        let file = folder.path().join("times");
        std::fs::write(&file, content).unwrap();
        let error = Distribution::trace(file.to_str().unwrap()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("times"), "names the file: {text}");
        (error, text)
    };
    let (error, text) = refused(b"# nothing\n\n");
    assert!(matches!(error, TraceError::Empty { .. }) && text.contains("in each line"), "{text}");
    let (error, text) = refused(b"1\n2\nthree\n");
    assert!(matches!(error, TraceError::NotANumber { line: 3, .. }), "{text}");
    assert!(text.starts_with("line 3 of") && text.contains("\"three\"") && text.contains("0.25"), "{text}");
    let (error, text) = refused(b"1\n-2\n");
    assert!(matches!(error, TraceError::OutOfRange { line: 2, .. }) && text.contains("at least 0"), "{text}");
    assert!(matches!(refused(b"inf\n").0, TraceError::OutOfRange { line: 1, .. }));
    assert!(matches!(refused(b"0\n0\n").0, TraceError::AllZero { .. }));
    assert!(matches!(refused(b"\xff\xfe").0, TraceError::Unreadable { .. }), "not text");
    let error = "trace:/no/such/file".parse::<Distribution>().unwrap_err().to_string();
    assert!(error.contains("cannot read the trace /no/such/file") && error.contains("give a text file"));
}

fn scheme(text: &str) -> SchemeConfig {
    text.parse().unwrap()
}

/// A setting to spoil, and what the refusal says.
type Spoilt = (fn(&mut Cluster), &'static str);

#[test]
fn settings_that_cannot_be_are_refused_with_a_remedy() {
    let spoilt: &[Spoilt] = &[
        (|c| c.workers = 0, "workers cannot be 0: use 1 to 1000000"),
        (|c| c.workers = 1_000_001, "workers cannot be 1000001"),
        (|c| c.compute = Distribution::Constant { seconds: 0.0 }, "time would never pass"),
        (|c| c.compute = Distribution::Exponential { mean: -1.0 }, "exp takes no such parameters"),
        (|c| c.factors = vec![0.0], "above 0"),
        (|c| c.starts = vec![-1.0], "the start of a worker"),
        (|c| (c.scheme, c.additive) = (scheme("k-async(2)").into(), true), "use bsp, asp, ssp, essp or bap"),
        (|c| (c.scheme, c.additive) = (scheme("vap(1)").into(), true), "use bsp, asp, ssp, essp or bap"),
        (
            |c| (c.scheme, c.additive) = (scheme("vap(1, strength=published)").into(), true),
            "use bsp, asp, ssp, essp or bap",
        ),
        (
            |c| c.changes = vec![Change { at: 1.0, workers: 2..9, factor: 2.0 }],
            "2-8: workers count from 0, and there are fewer",
        ),
        (
            |c| c.changes = vec![Change { at: 1.0, workers: 2..3, factor: -2.0 }],
            "the factor of a change cannot be -2",
        ),
        (|c| c.network.server_bandwidth = Some(0.0), "bytes per second"),
        (|c| c.faults.loss = 1.0, "loss cannot be 1"),
        (|c| c.faults.crashes = vec![Crash { worker: 4, at: 1.0, back: None }], "there are fewer"),
        (|c| c.faults.crashes = vec![Crash { worker: usize::MAX, at: 1.0, back: None }], "there are fewer"),
        (
            |c| c.faults.lifetime = Some(Distribution::Constant { seconds: 0.0 }),
            "lifetime cannot be constant(0)",
        ),
        (
            |c| (c.read_my_writes, c.scheme) = (true, scheme("dbw").into()),
            "read_my_writes cannot be used with dbw",
        ),
        (
            |c| (c.read_my_writes, c.scheme) = (true, scheme("delay").into()),
            "use bsp, asp, ssp, essp, bap or vap",
        ),
        (
            |c| (c.read_my_writes, c.schedule) = (true, Schedule::InverseRoot { updates: 1 }),
            "schedule cannot be inverse-root(1) with read_my_writes",
        ),
        (
            |c| (c.read_my_writes, c.damping) = (true, Damping::Inverse),
            "read_my_writes cannot be used with damping",
        ),
        (
            |c| {
                c.scheme = scheme("abs(k=2, local-steps=3)").into();
                c.optimizer = Optimizer::Adam(AdamParameters::default());
                c.until = Until::Versions(9);
            },
            "optimizer cannot be adam with local steps",
        ),
        (
            |c| {
                c.scheme = scheme("abs(k=2, local-steps=3)").into();
                c.optimizer = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
                c.until = Until::Versions(9);
            },
            "optimizer cannot be momentum with local steps",
        ),
        (
            |c| {
                c.scheme = scheme("abs(k=2, local-steps=3)").into();
                c.schedule = Schedule::Cosine { updates: 9 };
            },
            "schedule cannot be cosine(9) with local steps",
        ),
        (
            |c| {
                c.scheme = scheme("dbw(choice=published)").into();
                c.optimizer = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
                c.until = Until::Versions(9);
            },
            "optimizer cannot be momentum with dbw(choice=published)",
        ),
        (
            |c| {
                c.scheme = scheme("dbw").into();
                c.optimizer = Optimizer::Adam(AdamParameters::default());
                c.until = Until::Versions(9);
            },
            "optimizer cannot be adam with dbw",
        ),
        (|c| c.schedule = Schedule::Cosine { updates: 0 }, "schedule cannot be cosine(0)"),
        (
            |c| (c.damping, c.scheme) = (Damping::Inverse, scheme("ds-sync").into()),
            "damping cannot be used with ds-sync",
        ),
        (|c| c.scheme = scheme("dbw").into(), "100 clocks under dbw: it interrupts workers"),
        (|c| c.until = Until::Clocks(0), "use 1 or more"),
        (|c| c.until = Until::Seconds(f64::NAN), "finite"),
        (|c| c.until = Until::Loss { target: 0.1, within: 9.0 }, "no loss without a problem"),
        (|c| c.learning_rate = f32::INFINITY, "learning_rate cannot be inf"),
        (|c| c.scheme = SchemeConfig::Bap { staleness: 5_000 }.into(), "0 to 1024"),
    ];
    for (spoil, says) in spoilt {
        let mut cluster = Cluster::new(SchemeConfig::Bsp, 4, 1);
        spoil(&mut cluster);
        let error = cluster.run().unwrap_err().to_string();
        assert!(error.contains(says), "{error}: expected {says}");
    }
}

#[test]
fn more_bytes_than_can_be_counted_are_the_most_that_can() {
    for text in ["asp", "essp", "ds-sync"] {
        let mut cluster = Cluster::new(scheme(text), 4, 1);
        cluster.network.message_bytes = Some(u64::MAX);
        cluster.until = Until::Versions(3);
        assert_eq!(run(cluster).counts.bytes, u64::MAX, "{text}");
    }
}
