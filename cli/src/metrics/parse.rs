//! Reads the text that [`render`](super::render) writes, and any other in OpenMetrics or the older exposition format.

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name of the metric.
    pub name: String,
    /// The labels of the sample: their names and values.
    pub labels: Vec<(String, String)>,
    /// The value of the sample.
    pub value: f64,
}

impl Sample {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// All that one answer says, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(pub Vec<Sample>);

impl Samples {
    /// All samples with this name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    /// The value of the first sample with this name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.named(name).next().map(|sample| sample.value)
    }

    /// The sum over all samples with this name; none if there are none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.named(name).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// The least bound of a histogram below or at which this part of all observations lies.
    pub fn quantile(&self, name: &str, part: f64) -> Option<f64> {
        let bucket = format!("{name}_bucket");
        let all = self.value(&format!("{name}_count")).filter(|all| *all > 0.0)?;
        let mut buckets =
            self.named(&bucket).filter_map(|sample| Some((number(sample.label("le")?)?, sample.value)));
        buckets.find(|(_, within)| *within >= part * all).map(|(bound, _)| bound)
    }
}

/// Error of a text that is no exposition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no metric: {reason}; is this the metrics port of a slackline node?")]
pub struct ParseError {
    /// The number of the wrong line, from 1.
    pub line: usize,
    /// The reason that the line is wrong.
    pub reason: &'static str,
}

/// Reads an exposition.
pub fn parse(text: &str) -> Result<Samples, ParseError> {
    let mut samples = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            samples.push(sample(line).map_err(|reason| ParseError { line: index + 1, reason })?);
        }
    }
    Ok(Samples(samples))
}

fn sample(line: &str) -> Result<Sample, &'static str> {
    let (name, mut rest) = name(line).ok_or("it does not begin with a name")?;
    let mut labels = Vec::new();
    if let Some(inner) = rest.trim_start().strip_prefix('{') {
        rest = inner.trim_start();
        while !rest.starts_with('}') {
            let (label, after) = self::name(rest).ok_or("a label has no name")?;
            let after = after.trim_start().strip_prefix('=').ok_or("a label has no value")?;
            let after = after.trim_start().strip_prefix('"').ok_or("the value of a label has no quotes")?;
            let (value, after) = quoted(after).ok_or("the value of a label does not end")?;
            labels.push((label.to_owned(), value));
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if after.starts_with('}') => after,
                None => return Err("labels are not separated by commas"),
            };
        }
        rest = &rest[1..];
    }
    let mut words = rest.split_whitespace();
    let value = words.next().and_then(number).ok_or("there is no number")?;
    // A time stamp may follow.
    if words.next().is_some_and(|stamp| stamp.parse::<i64>().is_err()) || words.next().is_some() {
        return Err("something follows the number");
    }
    Ok(Sample { name: name.to_owned(), labels, value })
}

fn name(text: &str) -> Option<(&str, &str)> {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_inner(c)).unwrap_or(text.len());
    let begins_well = text.starts_with(|c: char| is_inner(c) && !c.is_ascii_digit());
    begins_well.then(|| text.split_at(end))
}

/// Splits the text at the closing quote: the value before it, without escapes, and the rest after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

fn number(text: &str) -> Option<f64> {
    // Also reads +Inf, -Inf and NaN.
    text.parse().ok()
}
