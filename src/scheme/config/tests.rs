use proptest::prelude::*;

use super::*;

fn any_scheme() -> impl Strategy<Value = Config> {
    prop_oneof![
        Just(Config::Bsp),
        Just(Config::Asp),
        any::<u64>().prop_map(|staleness| Config::Ssp { staleness }),
        any::<u64>().prop_map(|staleness| Config::Essp { staleness }),
        (0..=Config::RUN_AHEAD_MAX).prop_map(|staleness| Config::Bap { staleness }),
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
        "\u{0}",
    ];
    prop::collection::vec(prop::sample::select(WORDS), 0..9).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn what_is_displayed_parses_back(config in any_scheme()) {
        prop_assert_eq!(config.to_string().parse::<Config>(), Ok(config));
    }

    #[test]
    fn what_is_stored_comes_back(config in any_scheme()) {
        let bytes = postcard::to_allocvec(&config).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Config>(&bytes).unwrap(), config);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>(), nearly in nearly(), value in any::<String>()) {
        for text in [&text, &nearly] {
            if let Ok(config) = text.parse::<Config>() {
                prop_assert_eq!(config.to_string().parse::<Config>(), Ok(config));
            }
            let _ = Config::from_settings(text, &[("staleness", &value)]);
        }
    }
}

#[test]
fn every_name_makes_its_scheme() {
    for name in ["bsp", "asp", "ssp", "essp", "bap"] {
        assert_eq!(name.parse::<Config>().unwrap().name(), name);
    }
    for name in Config::NAMES {
        let config: Config = name.parse().unwrap();
        assert_eq!(config.to_string().parse(), Ok(config));
        assert_eq!(format!(" {name} ( ) ").parse(), Ok(config));
    }
}

fn refused(text: &str) -> String {
    text.parse::<Config>().unwrap_err().to_string()
}

#[test]
fn errors_name_the_remedy() {
    let names = Config::NAMES.join(", ");
    assert_eq!(refused("forest"), format!(r#"no scheme is named "forest": use one of {names}"#));
    for text in ["ssp(3", "ssp)", "ssp(,)", "ssp(3,)", "bsp(3)", "ssp(staleness=3, 4)", "ssp(3)(4)"] {
        assert!(text.parse::<Config>().is_err(), "{text}");
    }
    assert!(refused("ssp(3").contains("such as ssp(3)"));
    assert_eq!(refused("ssp(3, staleness=3)"), "staleness of ssp was given twice: give it once");
    assert_eq!(
        refused("ssp(x)"),
        r#"staleness of ssp cannot be "x": use a whole number of clocks, such as 3"#
    );
    assert!(refused("bap(1025)").ends_with("from 0 to 1024"));
    let refused = Config::from_settings("asp", &[("staleness", "0")]).unwrap_err().to_string();
    assert!(refused.starts_with("asp takes no staleness, and 0 was given: leave it out, or use ssp or essp"));
    let refused = Config::from_settings("ssp", &[("colour", "red")]).unwrap_err().to_string();
    assert_eq!(refused, "ssp takes no colour, and red was given: leave it out (ssp takes staleness)");
}

#[test]
fn what_cannot_be_is_refused_also_where_nothing_was_parsed() {
    let config = Config::Bap { staleness: Config::RUN_AHEAD_MAX + 1 };
    assert!(config.check(2).is_err() && config.server(2).is_err());
}

/// Checkpoints and handshakes hold these bytes.
#[test]
fn the_stored_form_of_the_oldest_schemes_stays() {
    let bytes = |config: &Config| postcard::to_allocvec(config).unwrap();
    assert_eq!(bytes(&Config::Bsp), [0]);
    assert_eq!(bytes(&Config::Asp), [1]);
    assert_eq!(bytes(&Config::Ssp { staleness: 3 }), [2, 3]);
    assert_eq!(bytes(&Config::Essp { staleness: 9 }), [3, 9]);
}
