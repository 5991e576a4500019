//! The host that a process runs on, as far as memory can be shared with it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The host of a process. Two processes can share memory if their hosts are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Host {
    /// The name of the host, for people.
    pub name: String,
    /// The boot of the kernel, the network name space (sockets that pass memory belong to one) and the user.
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
        let user = rustix::process::geteuid().as_raw();
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Host { name, identity: format!("{} {} user {user}", boot.trim(), link.display()) }
    }

    /// One that no process runs on: for tests and plans.
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

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
