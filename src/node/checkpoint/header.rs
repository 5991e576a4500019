//! The content of the file beside its tensors.

use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Version};
use crate::kernel::Optimizer;
use crate::node::taken::Applied;
use crate::scheme;
use crate::table::Table;

/// The content of the metadata entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: u32,
    pub(super) shard: u16,
    pub(super) shards: u16,
    /// The bytes of the table that the shard holds, first and one past the last.
    pub(super) range: [u64; 2],
    pub(super) version: Version,
    pub(super) smallest_clock: Clock,
    /// For each worker that was in: the clock before which all its gradients are in the parameters.
    pub(super) clocks: Vec<Clock>,
    /// In hexadecimal: not every reader of JSON keeps 64 bits of a number.
    #[serde(with = "hexadecimal")]
    pub(super) epoch: u64,
    #[serde(deserialize_with = "scheme_text")]
    pub(super) scheme: String,
    /// The learned state of the scheme, as text, if there is one. Older files lack it.
    #[serde(default)]
    pub(super) learned: Option<String>,
    pub(super) optimizer: Optimizer,
    /// Gradients that were folded in, in all incarnations. Files from before it was kept lack it, and count from here.
    #[serde(default)]
    pub(super) folded: u64,
    /// Files from before it was kept lack it: there it is as if no worker had gone past the smallest clock.
    #[serde(default)]
    pub(super) applied: Applied,
    pub(super) table: Table,
}

/// The text of a scheme; older files hold the built-in scheme as a value.
fn scheme_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        SchemeConfig(scheme::SchemeConfig),
        Text(String),
    }
    Ok(match Stored::deserialize(deserializer)? {
        Stored::SchemeConfig(config) => config.to_string(),
        Stored::Text(text) => text,
    })
}

mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

impl Header {
    /// Raised when a file of an older format would be misread.
    pub(super) const FORMAT: u32 = 1;
}
