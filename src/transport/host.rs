//! The host that a process runs on, as far as memory can be shared with it.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The host of a process. Two processes can share memory if their hosts are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Host {
    /// The name of the host, for people.
    pub name: String,
    /// The boot of the kernel, the network namespace (sockets that pass memory belong to one) and the user.
    identity: String,
}

/// Longer names are cut.
const NAME_MAX: usize = 255;

impl Host {
    /// This process's.
    pub fn own() -> Host {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let boot = read("/proc/sys/kernel/random/boot_id");
        let link = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // One for each process.
        static OWN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
        Host { name, identity: identity(boot.trim(), &link.display().to_string(), *OWN) }
    }

    /// A host that no process runs on: for tests and plans.
    pub fn named(name: &str) -> Host {
        Host { name: name.to_owned(), identity: format!("named {name}") }
    }

    /// Returns whether processes there can share memory with processes of `other`.
    pub fn shares_memory_with(&self, other: &Host) -> bool {
        self.identity == other.identity
    }

    /// Returns whether it is short enough and can be shown: it comes from another process.
    pub(crate) fn is_sound(&self) -> bool {
        let sound = |text: &str| text.len() <= NAME_MAX && !text.chars().any(char::is_control);
        sound(&self.name) && sound(&self.identity)
    }
}

/// The identity of the host of this boot and network namespace. If one of these is missing it is the identity of the
/// process with the number `own` alone, which shares memory with no other process: otherwise all hosts without it would
/// look alike.
fn identity(boot: &str, network: &str, own: u64) -> String {
    if boot.is_empty() || network.is_empty() {
        tracing::warn!(
            "this process shares memory with no other: /proc does not tell the boot of the kernel \
             (sys/kernel/random/boot_id) or the network namespace (self/ns/net); mount all of it"
        );
        return format!("process {own:x}");
    }
    format!("{boot} {network} user {}", rustix::process::geteuid().as_raw())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_cannot_tell_its_host_shares_memory_with_no_other() {
        let host = |boot: &str, network: &str, own| Host {
            name: "n".into(),
            identity: identity(boot, network, own),
        };
        assert!(host("b", "net:[1]", 1).shares_memory_with(&host("b", "net:[1]", 2)));
        assert!(!host("b", "net:[1]", 1).shares_memory_with(&host("c", "net:[1]", 1)));
        for (boot, network) in [("", "net:[1]"), ("b", ""), ("", "")] {
            let alone = host(boot, network, 1);
            assert!(alone.is_sound() && alone.shares_memory_with(&host(boot, network, 1)));
            assert!(!alone.shares_memory_with(&host(boot, network, 2)));
            assert!(!alone.shares_memory_with(&host("b", "net:[1]", 1)));
        }
    }
}
