//! Schemes as text: a name, or a name with settings in parentheses.

use core::fmt;
use core::str::FromStr;

use super::{DEFAULT_STALENESS, SchemeConfig, SchemeConfigError};
use crate::scheme::{Choice, Delivery, Partition, Shrink, StepRule, Strength, WaitFor};

/// A name that people can write, and its settings. The first setting may be given without its name.
struct SchemeEntry {
    name: &'static str,
    takes: &'static [&'static str],
    make: fn(&Given) -> Result<SchemeConfig, SchemeConfigError>,
}

pub(super) const COUNT: &str = "a whole number from 1 to 65535";
pub(super) const POSITIVE: &str = "a number above 0, such as 1.01";
pub(super) const INTERVAL: &str = "seconds from 0.001 to 4294967, such as 10";
/// The longest interval over which a loss is taken, in seconds.
const LONGEST: f64 = u32::MAX as f64 / 1e3;
pub(super) const RUN_AHEAD: &str = "a whole number of clocks from 0 to 1024";

const ENTRIES: [SchemeEntry; 13] = [
    SchemeEntry { name: "bsp", takes: &[], make: |_| Ok(SchemeConfig::Bsp) },
    SchemeEntry { name: "asp", takes: &[], make: |_| Ok(SchemeConfig::Asp) },
    SchemeEntry {
        name: "ssp",
        takes: &["staleness"],
        make: |given| Ok(SchemeConfig::Ssp { staleness: given.staleness()? }),
    },
    SchemeEntry {
        name: "essp",
        takes: &["staleness"],
        make: |given| Ok(SchemeConfig::Essp { staleness: given.staleness()? }),
    },
    SchemeEntry {
        name: "bap",
        takes: &["staleness"],
        make: |given| Ok(SchemeConfig::Bap { staleness: given.run_ahead()? }),
    },
    SchemeEntry { name: "vap", takes: &["bound", "strength"], make: vap },
    SchemeEntry {
        name: "dbw",
        takes: &["k", "delivery", "choice", "window", "loss-growth", "steps", "knee"],
        make: dbw,
    },
    SchemeEntry {
        name: "abs",
        takes: &["k", "staleness", "rule", "shrink", "local-steps", "interval"],
        make: abs,
    },
    SchemeEntry {
        name: "k-async",
        takes: &["k", "local-steps"],
        make: |given| first_k(given, WaitFor::Fixed, None),
    },
    SchemeEntry {
        name: "k-sync",
        takes: &["k", "local-steps"],
        make: |given| first_k(given, WaitFor::Fixed, Some(0)),
    },
    SchemeEntry {
        name: "adasync",
        takes: &["k", "local-steps", "interval"],
        make: |given| first_k(given, WaitFor::LossRatio, None),
    },
    SchemeEntry {
        name: "ds-sync",
        takes: &["group", "partition", "period", "inside", "seed"],
        make: ds_sync,
    },
    SchemeEntry { name: "delay", takes: &["staleness", "seed"], make: delay },
];

fn vap(given: &Given) -> Result<SchemeConfig, SchemeConfigError> {
    Ok(SchemeConfig::Vap {
        bound: given.value("bound", 1.0, |bound: &f32| *bound > 0.0 && bound.is_finite(), POSITIVE)?,
        strength: given.word("strength", &STRENGTHS, "weak, strong or published")?,
    })
}

fn dbw(given: &Given) -> Result<SchemeConfig, SchemeConfigError> {
    let delivery = given.word("delivery", &DELIVERIES, "interrupt, wait or pull")?;
    let by_k = if given.text("k").is_some() { "static" } else { "dynamic" };
    let chosen = given.text("choice").unwrap_or(by_k);
    let takes: &[&str] = match chosen {
        "static" => &["k"],
        "dynamic" => &["window", "loss-growth"],
        "blind" => &["window"],
        "published" => &[],
        _ => return Err(given.bad("choice", "dynamic, published, static or blind")),
    };
    for setting in ["k", "window", "loss-growth"].into_iter().filter(|setting| !takes.contains(setting)) {
        if given.text(setting).is_some() {
            return Err(given.bad(
                setting,
                match setting {
                    "k" => "it with choice=static only",
                    "window" => "it with choice=dynamic or choice=blind only",
                    _ => "it with choice=dynamic only",
                },
            ));
        }
    }
    if chosen == "static" && given.text("k").is_none() {
        return Err(given.bad("choice", "it with a k, such as k=3"));
    }
    let choice = match chosen {
        "static" => Choice::Static { k: given.count("k", 1)? },
        "published" => Choice::Published,
        "blind" => Choice::Blind { window: given.count("window", DBW_BLIND_WINDOW)? },
        _ => {
            let fits = |growth: &f32| *growth > 0.0 && growth.is_finite();
            let loss_growth = given.value("loss-growth", DBW_LOSS_GROWTH, fits, POSITIVE)?;
            Choice::Dynamic { window: given.count("window", DBW_WINDOW)?, loss_growth }
        }
    };
    let steps = match given.word("steps", &STEPS, "constant, proportional or knee")? {
        StepRule::Knee { .. } => StepRule::Knee { gradients: given.count("knee", 1)? },
        _ if given.text("knee").is_some() => return Err(given.bad("knee", "it with steps=knee only")),
        steps => steps,
    };
    Ok(SchemeConfig::Dbw { delivery, choice, steps })
}

fn abs(given: &Given) -> Result<SchemeConfig, SchemeConfigError> {
    let k = given.count("k", 1)?;
    let rule = given.word("rule", &RULES, "loss-ratio or fixed")?;
    let wait_for = over_time(given, rule(k))?;
    let staleness = match given.text("staleness") {
        Some("none") => None,
        _ => Some(given.staleness()?),
    };
    let shrink = given.word("shrink", &SHRINKS, "with-k or fixed")?;
    let can_shrink = staleness.is_some() && !matches!(wait_for, WaitFor::Fixed(_));
    if given.text("shrink") == Some("with-k") && !can_shrink {
        return Err(given.bad("shrink", "it with rule=loss-ratio and a staleness only"));
    }
    Ok(SchemeConfig::Abs { wait_for, staleness, shrink, local_steps: given.count("local-steps", 1)? })
}

/// The rule, with the interval of time over which it takes the loss, if one is given.
fn over_time(given: &Given, rule: WaitFor) -> Result<WaitFor, SchemeConfigError> {
    match (given.text("interval"), rule) {
        (None, rule) => Ok(rule),
        (Some(_), WaitFor::LossRatio(k)) => {
            let fits = |seconds: &f64| (0.001..=LONGEST).contains(seconds);
            let seconds = given.value("interval", 0.0, fits, INTERVAL)?;
            Ok(WaitFor::LossOverTime { k, millis: (1e3 * seconds).round() as u32 })
        }
        (Some(_), _) => Err(given.bad("interval", "it with rule=loss-ratio only")),
    }
}

fn first_k(
    given: &Given,
    rule: BarrierRule,
    staleness: Option<u64>,
) -> Result<SchemeConfig, SchemeConfigError> {
    let wait_for = over_time(given, rule(given.count("k", 1)?))?;
    let local_steps = given.count("local-steps", 1)?;
    Ok(SchemeConfig::Abs { wait_for, staleness, shrink: Shrink::Fixed, local_steps })
}

fn ds_sync(given: &Given) -> Result<SchemeConfig, SchemeConfigError> {
    let named = given.word("partition", &PARTITIONS, "digits, authors, uneven, near or random")?;
    let partition = match named {
        Partition::Near { .. } => Partition::Near { inside: given.count("inside", 1)? },
        Partition::Random { .. } => {
            Partition::Random { seed: given.value("seed", 0, |_| true, "a whole number")? }
        }
        other => other,
    };
    let fits = |of: &str| match of {
        "inside" => matches!(partition, Partition::Near { .. }),
        _ => matches!(partition, Partition::Random { .. }),
    };
    for (setting, expected) in
        [("inside", "it with partition=near only"), ("seed", "it with partition=random only")]
    {
        if given.text(setting).is_some() && !fits(setting) {
            return Err(given.bad(setting, expected));
        }
    }
    Ok(SchemeConfig::DsSync {
        group: given.value("group", 2, |group| *group >= 2, "a whole number from 2 to 65535")?,
        partition,
        period: given.count("period", 1)?,
    })
}

fn delay(given: &Given) -> Result<SchemeConfig, SchemeConfigError> {
    let seed = given.value("seed", 0, |_| true, "a whole number")?;
    Ok(SchemeConfig::Delay { staleness: given.run_ahead()?, seed })
}

const DBW_WINDOW: u16 = 10;
const DBW_BLIND_WINDOW: u16 = 5;
const DBW_LOSS_GROWTH: f32 = 1.0;

/// Makes a rule of a `k`.
type BarrierRule = fn(u16) -> WaitFor;

/// The words that stand for values of a setting; the first word is the default.
const STRENGTHS: [(&str, Strength); 3] =
    [("weak", Strength::Weak), ("strong", Strength::Strong), ("published", Strength::Published)];
const DELIVERIES: [(&str, Delivery); 3] =
    [("interrupt", Delivery::Interrupt), ("wait", Delivery::Wait), ("pull", Delivery::Pull)];
const STEPS: [(&str, StepRule); 3] = [
    ("constant", StepRule::Constant),
    ("proportional", StepRule::Proportional),
    ("knee", StepRule::Knee { gradients: 1 }),
];
const RULES: [(&str, BarrierRule); 2] = [("loss-ratio", WaitFor::LossRatio), ("fixed", WaitFor::Fixed)];
const SHRINKS: [(&str, Shrink); 2] = [("with-k", Shrink::WithK), ("fixed", Shrink::Fixed)];
const PARTITIONS: [(&str, Partition); 5] = [
    ("digits", Partition::Digits),
    ("authors", Partition::Authors),
    ("uneven", Partition::Uneven),
    ("near", Partition::Near { inside: 1 }),
    ("random", Partition::Random { seed: 0 }),
];

/// The word of a value, unless it is the default.
fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: T) -> Option<&'static str> {
    words.iter().skip(1).find(|(_, known)| *known == value).map(|(word, _)| *word)
}

/// The names, in the order of the table.
pub(super) const NAMES: [&str; ENTRIES.len()] = {
    let mut names = [""; ENTRIES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = ENTRIES[index].name;
        index += 1;
    }
    names
};

/// The settings that were given to one scheme.
struct Given<'a> {
    entry: &'static SchemeEntry,
    settings: Vec<(&'static str, &'a str)>,
}

impl<'a> Given<'a> {
    fn add(&mut self, setting: &str, value: &'a str) -> Result<(), SchemeConfigError> {
        let scheme = self.entry.name;
        let Some(known) = self.entry.takes.iter().find(|known| **known == setting) else {
            let (setting, value) = (setting.to_owned(), value.to_owned());
            return Err(SchemeConfigError::UnknownSetting { scheme, setting, value });
        };
        if self.text(known).is_some() {
            return Err(SchemeConfigError::GivenTwice { scheme, setting: setting.to_owned() });
        }
        self.settings.push((known, value));
        Ok(())
    }

    fn text(&self, setting: &str) -> Option<&'a str> {
        self.settings.iter().find(|(known, _)| *known == setting).map(|(_, value)| *value)
    }

    fn value<T: FromStr>(
        &self,
        setting: &'static str,
        default: T,
        fits: impl Fn(&T) -> bool,
        expected: &'static str,
    ) -> Result<T, SchemeConfigError> {
        let Some(text) = self.text(setting) else { return Ok(default) };
        text.parse().ok().filter(fits).ok_or_else(|| self.bad(setting, expected))
    }

    /// Makes the error of a setting whose value is not allowed.
    fn bad(&self, setting: &'static str, expected: &'static str) -> SchemeConfigError {
        let value = self.text(setting).unwrap_or_default().to_owned();
        SchemeConfigError::BadValue { scheme: self.entry.name, setting, value, expected }
    }

    fn staleness(&self) -> Result<u64, SchemeConfigError> {
        self.value("staleness", DEFAULT_STALENESS, |_| true, "a whole number of clocks, such as 3")
    }

    /// A staleness that costs a slot for each clock.
    fn run_ahead(&self) -> Result<u64, SchemeConfigError> {
        let fits = |staleness: &u64| *staleness <= SchemeConfig::RUN_AHEAD_MAX;
        self.value("staleness", DEFAULT_STALENESS, fits, RUN_AHEAD)
    }

    fn count(&self, setting: &'static str, default: u16) -> Result<u16, SchemeConfigError> {
        self.value(setting, default, |count| *count >= 1, COUNT)
    }

    fn word<T: Copy>(
        &self,
        setting: &'static str,
        words: &[(&str, T)],
        expected: &'static str,
    ) -> Result<T, SchemeConfigError> {
        let Some(text) = self.text(setting) else { return Ok(words[0].1) };
        let known = words.iter().find(|(word, _)| *word == text);
        known.map(|(_, value)| *value).ok_or_else(|| self.bad(setting, expected))
    }
}

/// Returns the remedy for a setting that `scheme` does not take.
pub(super) fn remedy(scheme: &str, setting: &str) -> String {
    let mut remedy = "leave it out".to_owned();
    let takes = |entry: &&SchemeEntry| entry.takes.contains(&setting);
    let others: Vec<_> = ENTRIES.iter().filter(takes).map(|entry| entry.name).collect();
    if !others.is_empty() {
        remedy += &format!(", or use {}", others.join(" or "));
    }
    let own = ENTRIES.iter().find(|entry| entry.name == scheme).map_or(&[][..], |entry| entry.takes);
    if !own.is_empty() {
        remedy += &format!(" ({scheme} takes {})", own.join(", "));
    }
    remedy
}

pub(super) fn parse(text: &str, more: &[(&str, &str)]) -> Result<SchemeConfig, SchemeConfigError> {
    let malformed = || SchemeConfigError::Malformed { text: text.to_owned() };
    let (name, inside) = match text.trim().split_once('(') {
        None => (text.trim(), ""),
        Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(malformed)?.trim()),
    };
    let entry = ENTRIES
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| SchemeConfigError::UnknownName { name: name.to_owned() })?;
    let mut given = Given { entry, settings: Vec::new() };
    let items = inside.split(',').map(str::trim).filter(|_| !inside.is_empty());
    for (index, item) in items.enumerate() {
        match (item.split_once('='), entry.takes.first()) {
            (Some((setting, value)), _) => given.add(setting.trim(), value.trim())?,
            (None, Some(main)) if index == 0 && !item.is_empty() => given.add(main, item)?,
            _ => return Err(malformed()),
        }
    }
    for (setting, value) in more {
        given.add(setting, value)?;
    }
    (entry.make)(&given)
}

impl FromStr for SchemeConfig {
    type Err = SchemeConfigError;

    fn from_str(text: &str) -> Result<SchemeConfig, SchemeConfigError> {
        parse(text, &[])
    }
}

/// The text that makes this scheme again. Settings that have their default are left out, save the main ones.
impl fmt::Display for SchemeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut list = SettingList { f, is_open: false };
        match *self {
            SchemeConfig::Bsp | SchemeConfig::Asp => {}
            SchemeConfig::Ssp { staleness }
            | SchemeConfig::Essp { staleness }
            | SchemeConfig::Bap { staleness } => {
                return write!(list.f, "({staleness})");
            }
            SchemeConfig::Vap { bound, strength } => {
                list.add("bound", bound)?;
                list.add_some("strength", word_of(&STRENGTHS, strength))?;
            }
            SchemeConfig::Dbw { delivery, choice, steps } => {
                list.add_some("delivery", word_of(&DELIVERIES, delivery))?;
                match choice {
                    Choice::Static { k } => list.add("k", k)?,
                    Choice::Published => list.add("choice", "published")?,
                    Choice::Dynamic { window, loss_growth } => {
                        list.add_some("loss-growth", Some(loss_growth).filter(|it| *it != DBW_LOSS_GROWTH))?;
                        list.add_some("window", Some(window).filter(|it| *it != DBW_WINDOW))?;
                    }
                    Choice::Blind { window } => {
                        list.add("choice", "blind")?;
                        list.add_some("window", Some(window).filter(|it| *it != DBW_BLIND_WINDOW))?;
                    }
                }
                match steps {
                    StepRule::Knee { gradients } => {
                        list.add("steps", "knee")?;
                        list.add("knee", gradients)?;
                    }
                    steps => list.add_some("steps", word_of(&STEPS, steps))?,
                }
            }
            SchemeConfig::Abs { wait_for, staleness, shrink, local_steps } => {
                list.add("k", wait_for.k())?;
                match staleness {
                    Some(staleness) => list.add("staleness", staleness)?,
                    None => list.add("staleness", "none")?,
                }
                list.add_some("rule", matches!(wait_for, WaitFor::Fixed(_)).then_some("fixed"))?;
                list.add_some("shrink", word_of(&SHRINKS, shrink))?;
                list.add_some("local-steps", Some(local_steps).filter(|steps| *steps != 1))?;
                if let WaitFor::LossOverTime { millis, .. } = wait_for {
                    list.add("interval", f64::from(millis) / 1e3)?;
                }
            }
            SchemeConfig::DsSync { group, partition, period } => {
                list.add("group", group)?;
                let (named, inside, seed) = match partition {
                    Partition::Near { inside } => (Partition::Near { inside: 1 }, Some(inside), None),
                    Partition::Random { seed } => (Partition::Random { seed: 0 }, None, Some(seed)),
                    other => (other, None, None),
                };
                list.add_some("partition", word_of(&PARTITIONS, named))?;
                list.add_some("period", Some(period).filter(|period| *period != 1))?;
                list.add_some("inside", inside.filter(|inside| *inside != 1))?;
                list.add_some("seed", seed.filter(|seed| *seed != 0))?;
            }
            SchemeConfig::Delay { staleness, seed } => {
                list.add("staleness", staleness)?;
                list.add_some("seed", Some(seed).filter(|seed| *seed != 0))?;
            }
        }
        list.end()
    }
}

/// Settings as they are written, in parentheses if there are any.
struct SettingList<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    is_open: bool,
}

impl SettingList<'_, '_> {
    fn add(&mut self, setting: &str, value: impl fmt::Display) -> fmt::Result {
        let before = if std::mem::replace(&mut self.is_open, true) { ", " } else { "(" };
        write!(self.f, "{before}{setting}={value}")
    }

    fn add_some(&mut self, setting: &str, value: Option<impl fmt::Display>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.add(setting, value))
    }

    fn end(self) -> fmt::Result {
        if self.is_open { self.f.write_str(")") } else { Ok(()) }
    }
}
