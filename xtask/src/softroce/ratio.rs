//! The result of each row, as `xtask turns` says it.

use serde_json::Value;

/// One comparison of slackline with perftest, as `xtask turns` said it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ratio(pub(super) Value);

impl Ratio {
    pub(super) const HEADING: [&'static str; 6] = ["", "unit", "perftest", "slackline", "ratio", "wanted"];

    pub(super) fn parse(line: &str) -> Option<Ratio> {
        let value: Value = serde_json::from_str(line.strip_prefix("RATIO ")?).ok()?;
        value["ratio"].is_number().then_some(Ratio(value))
    }

    /// For the table under the heading.
    pub(super) fn row(&self) -> [String; 6] {
        ["name", "unit", "perftest", "slackline", "ratio", "wanted"].map(|key| match &self.0[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_said() {
        let said = r#"RATIO {"name":"a","unit":"us","perftest":9.79,"slackline":10.5,"ratio":1.07,"wanted":"<= 1.1"}"#;
        let row = Ratio::parse(said).unwrap().row();
        assert_eq!(row, ["a", "us", "9.79", "10.5", "1.07", "<= 1.1"]);
        assert_eq!(Ratio::parse("RATIO"), None);
        assert_eq!(Ratio::parse("RATIO {}"), None);
    }
}
