//! Relays as they are seen from outside.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// The incarnations of relays, by epoch.
#[derive(Default)]
pub(super) struct JudgedRelays(BTreeMap<u64, JudgedRelay>);

#[derive(Default)]
struct JudgedRelay {
    newest: u64,
    /// The publisher whose versions it has given, once it has.
    origin: Option<u64>,
}

impl JudgedRelays {
    /// The newest version of one.
    pub(super) fn newest(&self, epoch: u64) -> u64 {
        self.0.get(&epoch).map_or(0, |relay| relay.newest)
    }

    /// One serves this version. True if it is a new one.
    pub(super) fn serves(&mut self, epoch: u64, version: u64) -> Result<bool, String> {
        let relay = self.0.entry(epoch).or_default();
        let before = std::mem::replace(&mut relay.newest, version);
        if version < before {
            return Err(format!("went back from version {before} to {version}"));
        }
        Ok(version > before)
    }

    /// A reader got a version of one, which is of this publisher, or of none (0).
    pub(super) fn gave(&mut self, epoch: u64, origin: u64, version: u64) -> Result<(), String> {
        let Some(relay) = self.0.get_mut(&epoch) else { return Ok(()) };
        if origin == 0 {
            return Err(format!("the reader was given version {version} of no publisher"));
        }
        if *relay.origin.get_or_insert(origin) != origin {
            return Err("a relay gave versions of two publishers under one epoch".into());
        }
        Ok(())
    }
}
