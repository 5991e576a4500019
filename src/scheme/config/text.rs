//! Schemes as text: a name, or a name with settings in parentheses.

use core::fmt;
use core::str::FromStr;

use super::{Config, ConfigError, DEFAULT_STALENESS};

/// A name that people can write, and what it takes. The first setting may be given without its name.
struct Entry {
    name: &'static str,
    takes: &'static [&'static str],
    make: fn(&Given) -> Result<Config, ConfigError>,
}

const ENTRIES: [Entry; 5] = [
    Entry { name: "bsp", takes: &[], make: |_| Ok(Config::Bsp) },
    Entry { name: "asp", takes: &[], make: |_| Ok(Config::Asp) },
    Entry {
        name: "ssp",
        takes: &["staleness"],
        make: |given| Ok(Config::Ssp { staleness: given.staleness()? }),
    },
    Entry {
        name: "essp",
        takes: &["staleness"],
        make: |given| Ok(Config::Essp { staleness: given.staleness()? }),
    },
    Entry {
        name: "bap",
        takes: &["staleness"],
        make: |given| Ok(Config::Bap { staleness: given.slots_staleness()? }),
    },
];

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
    entry: &'static Entry,
    settings: Vec<(&'static str, &'a str)>,
}

impl<'a> Given<'a> {
    fn add(&mut self, setting: &str, value: &'a str) -> Result<(), ConfigError> {
        let scheme = self.entry.name;
        let Some(known) = self.entry.takes.iter().find(|known| **known == setting) else {
            let (setting, value) = (setting.to_owned(), value.to_owned());
            return Err(ConfigError::UnknownSetting { scheme, setting, value });
        };
        if self.text(known).is_some() {
            return Err(ConfigError::GivenTwice { scheme, setting: setting.to_owned() });
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
    ) -> Result<T, ConfigError> {
        let Some(text) = self.text(setting) else { return Ok(default) };
        text.parse().ok().filter(fits).ok_or_else(|| ConfigError::BadValue {
            scheme: self.entry.name,
            setting,
            value: text.to_owned(),
            expected,
        })
    }

    fn staleness(&self) -> Result<u64, ConfigError> {
        self.value("staleness", DEFAULT_STALENESS, |_| true, "a whole number of clocks, such as 3")
    }

    /// A staleness that costs a slot for each clock.
    fn slots_staleness(&self) -> Result<u64, ConfigError> {
        let fits = |staleness: &u64| *staleness <= Config::RUN_AHEAD_MAX;
        self.value("staleness", DEFAULT_STALENESS, fits, "a whole number of clocks from 0 to 1024")
    }
}

/// What to do about a setting that `scheme` does not take.
pub(super) fn remedy(scheme: &str, setting: &str) -> String {
    let mut remedy = "leave it out".to_owned();
    let takes = |entry: &&Entry| entry.takes.contains(&setting);
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

pub(super) fn parse(text: &str, more: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let malformed = || ConfigError::Malformed { text: text.to_owned() };
    let (name, inside) = match text.trim().split_once('(') {
        None => (text.trim(), ""),
        Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(malformed)?.trim()),
    };
    let entry = ENTRIES
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| ConfigError::UnknownName { name: name.to_owned() })?;
    let mut given = Given { entry, settings: Vec::new() };
    let items = inside.split(',').map(str::trim).filter(|_| !inside.is_empty());
    for (place, item) in items.enumerate() {
        match (item.split_once('='), entry.takes.first()) {
            (Some((setting, value)), _) => given.add(setting.trim(), value.trim())?,
            (None, Some(main)) if place == 0 && !item.is_empty() => given.add(main, item)?,
            _ => return Err(malformed()),
        }
    }
    for (setting, value) in more {
        given.add(setting, value)?;
    }
    (entry.make)(&given)
}

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Config, ConfigError> {
        parse(text, &[])
    }
}

/// The text that makes this scheme again: settings that have their default are left out, save those that tell schemes
/// of one name apart.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Config::Bsp | Config::Asp => f.write_str(name),
            Config::Ssp { staleness } | Config::Essp { staleness } | Config::Bap { staleness } => {
                write!(f, "{name}({staleness})")
            }
        }
    }
}
