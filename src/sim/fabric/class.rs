//! The kinds of faults that a run can have, each of which can be had alone.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// A kind of fault. [`FabricOptions::only`](super::FabricOptions::only) leaves out all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nodes crash and return, stand still while words land in their memory, directions stall, connections break.
    Failures,
    /// One worker breaks the protocol: words of its inbox are taken back or replaced by arbitrary bits.
    Liars,
    /// Nodes stand still, and so do the threads that serve their connections: nothing lands in their memory meanwhile.
    FrozenThreads,
    /// A peer that was evicted can still read and write the memory that it has mapped.
    Zombies,
    /// Owners take long, at times longer than the lease, to register memory and to accept a peer.
    SlowRegistration,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 5] =
        [Class::Failures, Class::Liars, Class::FrozenThreads, Class::Zombies, Class::SlowRegistration];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Failures => "failures",
            Class::Liars => "liars",
            Class::FrozenThreads => "frozen-threads",
            Class::Zombies => "zombies",
            Class::SlowRegistration => "slow-registration",
        })
    }
}

/// A name that no class of faults has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no class of faults `{0}`; use failures, liars, frozen-threads, zombies or slow-registration"
)]
pub struct UnknownClass(String);

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Class, UnknownClass> {
        let named = Class::ALL.into_iter().find(|class| class.to_string() == text);
        named.ok_or_else(|| UnknownClass(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_is_read_back_from_its_name_and_no_other_name_is() {
        for class in Class::ALL {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        let error = "ghosts".parse::<Class>().unwrap_err().to_string();
        assert!(Class::ALL.iter().all(|class| error.contains(&class.to_string())), "{error}");
    }
}
