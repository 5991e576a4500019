//! The simulated fabric: the same nodes as everywhere, judged from outside. The many seeds are in `tests/seeds.rs`.

use slackline::scheme::{SchemeConfig, Strength};
use slackline::sim::fabric::{self, Class, FabricOptions};

#[test]
fn hundreds_of_seeds_keep_every_promise() {
    let summary = fabric::run_all(0..300, &FabricOptions::default(), 0, &|_| {});
    let summary = summary.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.runs, 300);
    assert!(summary.views > 3_000 && summary.errors > 100, "little happened: {summary:?}");
}

#[test]
fn the_same_seed_is_the_same_run_and_another_seed_is_another() {
    let options = FabricOptions::default();
    let run = |seed| fabric::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
    for seed in 0..20 {
        let here = run(seed);
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| run(seed)).join().unwrap());
        assert_eq!(here, elsewhere);
        assert_ne!(here.trace_hash, run(seed + 1).trace_hash);
    }
}

#[test]
fn each_class_of_faults_alone_is_survived_and_repeats_with_its_seed() {
    for class in Class::ALL {
        let options = FabricOptions { only: Some(class), ..FabricOptions::default() };
        let all =
            || fabric::run_all(0..60, &options, 0, &|_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        let (summary, again) = (all(), all());
        assert_eq!(summary, again, "{class}");
        assert!(summary.runs == 60 && summary.views > 600, "{class}: little happened: {summary:?}");
        let spared = FabricOptions { spare_nodes: true, ..FabricOptions::default() };
        let spared =
            fabric::run_all(0..60, &spared, 0, &|_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        assert_ne!(summary.trace_hash, spared.trace_hash, "{class} changes nothing");
    }
}

#[test]
fn a_scheme_that_is_asked_for_is_the_one_that_runs() {
    let bounded = [
        SchemeConfig::Ssp { staleness: 2 },
        SchemeConfig::Essp { staleness: 1 },
        SchemeConfig::Bap { staleness: 1 },
    ];
    let texts = [
        "dbw",
        "dbw(delivery=wait, k=2)",
        "abs(k=4, staleness=1)",
        "k-async(2)",
        "delay(staleness=2, seed=3)",
    ];
    let others = texts.into_iter().map(|text| text.parse().unwrap_or_else(|error| panic!("{text}: {error}")));
    let values =
        [Strength::Weak, Strength::Strong].map(|strength| SchemeConfig::Vap { bound: 10.0, strength });
    let schemes =
        [SchemeConfig::Bsp, SchemeConfig::Asp].into_iter().chain(bounded).chain(values).chain(others);
    for scheme in schemes {
        let options = FabricOptions { scheme: Some(scheme.into()), ..FabricOptions::default() };
        for seed in 0..10 {
            let report = fabric::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(report.scheme.built_in(), Some(scheme));
        }
    }
}

#[test]
fn where_nothing_breaks_no_call_fails_for_good() {
    let options = FabricOptions { spare_nodes: true, ..FabricOptions::default() };
    for seed in 0..50 {
        let report = fabric::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.versions > 0 && report.views > 0);
    }
}
