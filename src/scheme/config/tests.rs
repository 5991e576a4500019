use proptest::prelude::*;

use super::*;

fn any_scheme() -> impl Strategy<Value = SchemeConfig> {
    prop_oneof![
        Just(SchemeConfig::Bsp),
        Just(SchemeConfig::Asp),
        any::<u64>().prop_map(|staleness| SchemeConfig::Ssp { staleness }),
        any::<u64>().prop_map(|staleness| SchemeConfig::Essp { staleness }),
        (0..=SchemeConfig::RUN_AHEAD_MAX).prop_map(|staleness| SchemeConfig::Bap { staleness }),
        (any::<bool>(), 1e-30_f32..1e30).prop_map(|(strong, bound)| {
            let strength = if strong { Strength::Strong } else { Strength::Weak };
            SchemeConfig::Vap { bound, strength }
        }),
        (delivery(), choice(), steps())
            .prop_map(|(delivery, choice, steps)| { SchemeConfig::Dbw { delivery, choice, steps } }),
        (any::<bool>(), any::<Option<u64>>(), 1..u16::MAX, 1..9_u16, 1..=u32::MAX, 0..3_usize).prop_map(
            |(with_k, staleness, k, local_steps, millis, rule)| {
                let rules = [WaitFor::Fixed(k), WaitFor::LossRatio(k), WaitFor::LossOverTime { k, millis }];
                let wait_for = rules[rule];
                let shrink = if with_k { Shrink::WithK } else { Shrink::Fixed };
                SchemeConfig::Abs { wait_for, staleness, shrink, local_steps }
            }
        ),
        (2..u16::MAX, partition(), 1..9_u16).prop_map(|(group, partition, period)| SchemeConfig::DsSync {
            group,
            partition,
            period
        }),
        (0..=SchemeConfig::RUN_AHEAD_MAX, any::<u64>())
            .prop_map(|(staleness, seed)| SchemeConfig::Delay { staleness, seed }),
    ]
}

fn delivery() -> impl Strategy<Value = Delivery> {
    prop_oneof![Just(Delivery::Interrupt), Just(Delivery::Wait), Just(Delivery::Pull)]
}

fn steps() -> impl Strategy<Value = StepRule> {
    prop_oneof![
        Just(StepRule::Constant),
        Just(StepRule::Proportional),
        (1..u16::MAX).prop_map(|gradients| StepRule::Knee { gradients }),
    ]
}

fn partition() -> impl Strategy<Value = Partition> {
    prop_oneof![
        Just(Partition::Digits),
        Just(Partition::Authors),
        Just(Partition::Uneven),
        (1..9_u16).prop_map(|inside| Partition::Near { inside }),
        any::<u64>().prop_map(|seed| Partition::Random { seed }),
    ]
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        (1..u16::MAX, 1e-3_f32..1e3)
            .prop_map(|(window, loss_growth)| Choice::Dynamic { window, loss_growth }),
        (1..u16::MAX).prop_map(|k| Choice::Static { k }),
        Just(Choice::Published),
        (1..u16::MAX).prop_map(|window| Choice::Blind { window }),
    ]
}

/// Text that is nearly a scheme.
fn nearly() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "bsp",
        "ssp",
        "bap",
        "(",
        ")",
        ",",
        "=",
        " ",
        "staleness",
        "3",
        "-1",
        "1e9",
        "nan",
        "none",
        "é",
        "vap",
        "dbw",
        "abs",
        "k-async",
        "ds-sync",
        "delay",
        "k",
        "choice",
        "bound",
        "seed",
        "\u{0}",
    ];
    prop::collection::vec(prop::sample::select(WORDS), 0..9).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn what_is_displayed_parses_back(config in any_scheme()) {
        prop_assert_eq!(config.to_string().parse::<SchemeConfig>(), Ok(config));
    }

    #[test]
    fn what_is_stored_comes_back(config in any_scheme()) {
        let bytes = postcard::to_allocvec(&config).unwrap();
        prop_assert_eq!(postcard::from_bytes::<SchemeConfig>(&bytes).unwrap(), config);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>(), nearly in nearly(), value in any::<String>()) {
        for text in [&text, &nearly] {
            if let Ok(config) = text.parse::<SchemeConfig>() {
                prop_assert_eq!(config.to_string().parse::<SchemeConfig>(), Ok(config));
            }
            let _ = SchemeConfig::from_settings(text, &[("staleness", &value)]);
        }
    }
}

#[test]
fn every_name_makes_its_scheme() {
    for name in ["bsp", "asp", "ssp", "essp", "bap", "vap", "dbw", "abs", "ds-sync", "delay"] {
        assert_eq!(name.parse::<SchemeConfig>().unwrap().name(), name);
    }
    for name in SchemeConfig::NAMES {
        let config: SchemeConfig = name.parse().unwrap();
        assert_eq!(config.to_string().parse(), Ok(config));
        assert_eq!(format!(" {name} ( ) ").parse(), Ok(config));
    }
}

fn refused(text: &str) -> String {
    text.parse::<SchemeConfig>().unwrap_err().to_string()
}

#[test]
fn errors_name_the_remedy() {
    let names = SchemeConfig::NAMES.join(", ");
    assert_eq!(refused("forest"), format!(r#"no scheme is named "forest": use one of {names}"#));
    for text in ["ssp(3", "ssp)", "ssp(,)", "ssp(3,)", "bsp(3)", "ssp(staleness=3, 4)", "ssp(3)(4)"] {
        assert!(text.parse::<SchemeConfig>().is_err(), "{text}");
    }
    assert!(refused("ssp(3").contains("such as ssp(3)"));
    assert_eq!(refused("ssp(3, staleness=3)"), "staleness of ssp was given twice: give it once");
    assert_eq!(
        refused("ssp(x)"),
        r#"staleness of ssp cannot be "x": use a whole number of clocks, such as 3"#
    );
    assert!(refused("bap(1025)").ends_with("from 0 to 1024"));
    let refused = SchemeConfig::from_settings("asp", &[("staleness", "0")]).unwrap_err().to_string();
    assert!(refused.starts_with("asp takes no staleness, and 0 was given: leave it out, or use ssp or essp"));
    let refused = SchemeConfig::from_settings("ssp", &[("colour", "red")]).unwrap_err().to_string();
    assert_eq!(refused, "ssp takes no colour, and red was given: leave it out (ssp takes staleness)");
}

#[test]
fn every_setting_is_read_from_and_written_as_the_same_text() {
    let is = |text: &str, config: SchemeConfig| {
        assert_eq!(text.parse(), Ok(config), "{text}");
        assert_eq!(config.to_string(), text);
    };
    let dbw = |delivery, choice| SchemeConfig::Dbw { delivery, choice, steps: StepRule::Constant };
    let knee = StepRule::Knee { gradients: 8 };
    is(
        "dbw(k=3, steps=knee, knee=8)",
        SchemeConfig::Dbw { delivery: Delivery::Interrupt, choice: Choice::Static { k: 3 }, steps: knee },
    );
    let dynamic = Choice::Dynamic { window: 10, loss_growth: 1.0 };
    is("dbw", dbw(Delivery::Interrupt, dynamic));
    is("dbw(delivery=wait, k=3)", dbw(Delivery::Wait, Choice::Static { k: 3 }));
    is("dbw(choice=published)", dbw(Delivery::Interrupt, Choice::Published));
    is("dbw(choice=blind, window=9)", dbw(Delivery::Interrupt, Choice::Blind { window: 9 }));
    let (wait_for, staleness) = (WaitFor::LossRatio(4), Some(2));
    is(
        "abs(k=4, staleness=2)",
        SchemeConfig::Abs { wait_for, staleness, shrink: Shrink::WithK, local_steps: 1 },
    );
    let ds_sync = |group, partition, period| SchemeConfig::DsSync { group, partition, period };
    is("ds-sync(group=2)", ds_sync(2, Partition::Digits, 1));
    is("ds-sync(group=4, partition=near, period=2, inside=3)", ds_sync(4, Partition::Near { inside: 3 }, 2));
    is("ds-sync(group=4, partition=random, seed=7)", ds_sync(4, Partition::Random { seed: 7 }, 1));
    is("delay(staleness=4, seed=7)", SchemeConfig::Delay { staleness: 4, seed: 7 });
    is("vap(bound=0.5, strength=strong)", SchemeConfig::Vap { bound: 0.5, strength: Strength::Strong });
    for (alias, text) in [
        ("k-async(4)", "abs(k=4, staleness=none, rule=fixed, shrink=fixed)"),
        ("k-sync(4)", "abs(k=4, staleness=0, rule=fixed, shrink=fixed)"),
        ("adasync(4)", "abs(k=4, staleness=none, shrink=fixed)"),
    ] {
        assert_eq!(alias.parse::<SchemeConfig>().unwrap().to_string(), text);
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    assert!(refused("dbw(k=3, choice=blind)").ends_with("use it with choice=static only"));
    assert!(refused("dbw(k=3, window=2)").ends_with("choice=blind only"));
    assert!(refused("dbw(choice=blind, loss-growth=2)").ends_with("choice=dynamic only"));
    assert!(refused("dbw(choice=static)").ends_with("use it with a k, such as k=3"));
    for text in ["abs(shrink=with-k, rule=fixed)", "abs(shrink=with-k, staleness=none)"] {
        assert!(refused(text).ends_with("use it with rule=loss-ratio and a staleness only"), "{text}");
    }
    assert_eq!("abs(shrink=with-k)".parse::<SchemeConfig>(), "abs".parse());
    assert!(refused("dbw(choice=often)").ends_with("use dynamic, published, static or blind"));
    for text in [
        "dbw(0)",
        "abs(k=0)",
        "vap(0)",
        "vap(nan)",
        "vap(inf)",
        "ds-sync(1)",
        "delay(1025)",
        "abs(local-steps=0)",
        "abs(interval=0)",
        "abs(interval=nan)",
        "abs(interval=5, rule=fixed)",
    ] {
        assert!(refused(text).contains("cannot be"), "{text}");
    }
}

#[test]
fn what_does_not_fit_the_workers_is_refused_with_a_remedy() {
    let refused = |text: &str, workers| {
        let config: SchemeConfig = text.parse().unwrap();
        config.check(workers).unwrap_err().to_string()
    };
    let fits = |text: &str, workers| text.parse::<SchemeConfig>().unwrap().check(workers) == Ok(());
    assert!(refused("dbw(4)", 3).ends_with("with 3 workers: use at most as many as there are workers"));
    assert!(refused("abs(4)", 3).contains("k of abs cannot be 4"));
    assert!(fits("dbw(3)", 3) && fits("abs(3)", 3));
    assert!(refused("ds-sync(2)", 6).ends_with("or partition=uneven"));
    assert!(fits("ds-sync(2)", 8) && fits("ds-sync(4)", 16) && fits("ds-sync(2, partition=uneven)", 6));
    assert!(refused("ds-sync(partition=authors)", 8).contains("4 workers"));
    assert!(fits("ds-sync(partition=authors)", 4));
    let error = "ds-sync".parse::<SchemeConfig>().unwrap().server(4).err().unwrap();
    assert!(error.to_string().contains("ds-sync has no server"));
}

#[test]
fn what_cannot_be_is_refused_also_where_nothing_was_parsed() {
    let config = SchemeConfig::Bap { staleness: SchemeConfig::RUN_AHEAD_MAX + 1 };
    assert!(config.check(2).is_err() && config.server(2).is_err());
    let (delivery, loss_growth) = (Delivery::Pull, f32::NAN);
    for choice in [
        Choice::Static { k: 0 },
        Choice::Blind { window: 0 },
        Choice::Dynamic { window: 0, loss_growth: 1.0 },
        Choice::Dynamic { window: 1, loss_growth },
    ] {
        assert!(
            SchemeConfig::Dbw { delivery, choice, steps: StepRule::Constant }.server(2).is_err(),
            "{choice:?}"
        );
    }
    assert!(SchemeConfig::Vap { bound: f32::INFINITY, strength: Strength::Weak }.server(2).is_err());
    let (wait_for, shrink) = (WaitFor::Fixed(1), Shrink::Fixed);
    assert!(SchemeConfig::Abs { wait_for, staleness: None, shrink, local_steps: 0 }.server(2).is_err());
}

/// Checkpoints and handshakes hold these bytes.
#[test]
fn the_stored_form_of_the_oldest_schemes_stays() {
    let bytes = |config: &SchemeConfig| postcard::to_allocvec(config).unwrap();
    assert_eq!(bytes(&SchemeConfig::Bsp), [0]);
    assert_eq!(bytes(&SchemeConfig::Asp), [1]);
    assert_eq!(bytes(&SchemeConfig::Ssp { staleness: 3 }), [2, 3]);
    assert_eq!(bytes(&SchemeConfig::Essp { staleness: 9 }), [3, 9]);
}

#[test]
fn shards_that_would_wait_for_different_workers_follow_one() {
    for (text, is_one) in [
        ("bsp", false),
        ("vap(1)", false),
        ("k-async(1)", false),
        ("k-async(2)", true),
        ("adasync(1)", true),
        ("k-sync(1)", true),
        ("dbw", true),
        ("delay(1)", true),
    ] {
        let scheme: SchemeConfig = text.parse().unwrap();
        assert_eq!(scheme.counts_versions(), is_one, "{text}");
    }
}
