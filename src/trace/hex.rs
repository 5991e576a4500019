//! Numbers and bytes as hexadecimal digits, as the records of a trace write them: most significant first, in small
//! letters, none left out.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::clock::VersionTag;

/// So many bytes, written as twice as many digits.
struct Hex<const N: usize>([u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> Hex<N> {
    fn parse(text: &str) -> Option<Hex<N>> {
        let digit = |letter: u8| match letter {
            b'0'..=b'9' => Some(letter - b'0'),
            b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; N];
        if text.len() != 2 * N {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Hex(bytes))
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits<const N: usize>;
        impl<const N: usize> Visitor<'_> for Digits<N> {
            type Value = Hex<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} hexadecimal digits in small letters", 2 * N)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Hex<N>, E> {
                Hex::parse(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

/// The form of a tag.
#[derive(Serialize, Deserialize)]
#[serde(remote = "VersionTag", deny_unknown_fields)]
pub(super) struct Tag {
    step: u64,
    #[serde(with = "bytes")]
    label: [u8; 32],
}

/// The form of bytes.
mod bytes {
    use super::{Deserialize, Deserializer, Hex, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        Hex(*bytes).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        Ok(Hex::deserialize(deserializer)?.0)
    }
}

/// The form of a word.
pub(super) mod word {
    use super::{Deserialize, Deserializer, Hex, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(word: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        Hex(word.to_be_bytes()).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok(u64::from_be_bytes(Hex::deserialize(deserializer)?.0))
    }
}

/// The form of digests by name.
pub(super) mod map {
    use std::collections::BTreeMap;

    use super::{Deserialize, Deserializer, Hex, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        digests: &BTreeMap<String, [u8; 32]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(digests.iter().map(|(name, digest)| (name, Hex(*digest))))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, [u8; 32]>, D::Error> {
        let digests = BTreeMap::<String, Hex<32>>::deserialize(deserializer)?;
        Ok(digests.into_iter().map(|(name, digest)| (name, digest.0)).collect())
    }
}
