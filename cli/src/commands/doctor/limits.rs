//! Limits of the system for a process, and settings of what lies between devices and memory.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::{Map, Value, json};
use slackline::internals::transport::verbs::{ForkSafety, fork_safety};

use super::iommu;
use super::pci::redirects;
use crate::commands::bench::size;

/// A process with less may run out of descriptors in a job of many.
const OPEN_FILES_FEW: u64 = 4096;

/// One limit or setting, and what to do where it stands in the way.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Limit {
    pub(super) limit: &'static str,
    #[serde(flatten)]
    values: Map<String, Value>,
    /// The same for people.
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) help: Option<String>,
}

impl Limit {
    pub(super) fn new(
        limit: &'static str,
        values: Value,
        text: impl Into<String>,
        help: Option<String>,
    ) -> Limit {
        let values = if let Value::Object(values) = values { values } else { Map::new() };
        Limit { limit, values, text: text.into(), help }
    }
}

/// All of them.
pub(super) fn look() -> Vec<Limit> {
    let forks = fork_safety().ok().map(forks);
    [locked_memory(), open_files(), huge_pages(), iommu::look(Path::new("/")), acs()]
        .into_iter()
        .chain(forks)
        .collect()
}

fn locked_memory() -> Limit {
    let limit = getrlimit(Resource::Memlock);
    let (status, users) = (read(Path::new("/proc/self/status")), read(Path::new("/proc/self/uid_map")));
    let may_exceed = may_lock_more(&status.unwrap_or_default(), users.as_deref());
    let found = limit.current.map_or("unlimited".into(), |bytes| format!("{} bytes", size(bytes)));
    let is_limited = limit.current.is_some();
    let text = match is_limited && may_exceed {
        true => format!("{found}, and this process may exceed it (CAP_IPC_LOCK)"),
        false => found,
    };
    let help = (is_limited && !may_exceed).then(|| {
        "RDMA cannot register more than that: ulimit -l unlimited (systemd: LimitMEMLOCK=infinity, docker: \
         --ulimit memlock=-1, for good: /etc/security/limits.conf)"
            .into()
    });
    let values = json!({ "bytes": limit.current, "maximum_bytes": limit.maximum, "may_exceed": may_exceed });
    Limit::new("locked-memory", values, text, help)
}

/// The capability by which a process may lock memory beyond the limit (`man 7 capabilities`).
const CAP_IPC_LOCK: u32 = 14;

/// Whether a process with this status and this map of users has that capability where it counts. The kernel asks for it
/// in the initial user namespace, whose users are mapped to themselves; without a map there is no other one.
fn may_lock_more(status: &str, users: Option<&str>) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let is_initial = users.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    is_initial && bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

fn open_files() -> Limit {
    let limit = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or("unlimited".into(), |count| count.to_string());
    let (soft, hard) = (text(limit.current), text(limit.maximum));
    let is_low = limit.current.is_some_and(|count| count < OPEN_FILES_FEW);
    let help = is_low.then(|| format!("each peer takes a few; for jobs of hundreds: ulimit -n {hard}"));
    let values = json!({ "count": limit.current, "maximum_count": limit.maximum });
    Limit::new("open-files", values, format!("{soft}, can be raised to {hard}"), help)
}

fn huge_pages() -> Limit {
    let folder = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    let count = |name: &str| read(&folder.join(name))?.parse::<u64>().ok();
    let (all, free) = (count("nr_hugepages"), count("free_hugepages"));
    let [own, shared] = TRANSPARENT.map(|(name, _)| {
        read(&Path::new("/sys/kernel/mm/transparent_hugepage").join(name)).and_then(|text| chosen(&text))
    });
    let values =
        json!({ "transparent": own, "transparent_shared": shared, "count": all, "free_count": free });
    let told = |setting: &Option<String>| setting.clone().unwrap_or_else(|| "none".into());
    let reserved = match (all, free) {
        (Some(all), Some(free)) => format!("{all} of 2M reserved, {free} free"),
        _ => "none of 2M on this kernel".to_owned(),
    };
    let text = format!("own memory {}, shared memory {}; {reserved}", told(&own), told(&shared));
    let is_off = |setting: &Option<String>| matches!(setting.as_deref(), Some("never" | "deny"));
    let remedy = |setting: &Option<String>, (file, word): (&str, &str)| {
        is_off(setting).then(|| format!("echo {word} > /sys/kernel/mm/transparent_hugepage/{file}"))
    };
    let remedies: Vec<String> = [&own, &shared]
        .into_iter()
        .zip(TRANSPARENT)
        .filter_map(|(setting, file)| remedy(setting, file))
        .collect();
    let help = (!remedies.is_empty()).then(|| {
        format!("adapters and processors translate addresses faster with them: {}", remedies.join("; "))
    });
    Limit::new("huge-pages", values, text, help)
}

/// The settings for huge pages that are not reserved, of a process's own memory and of memory that processes share, and
/// the words with which memory that asks for huge pages gets them.
const TRANSPARENT: [(&str, &str); 2] = [("enabled", "madvise"), ("shmem_enabled", "advise")];

/// The setting in brackets, of a text that has all there are.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Whether PCIe bridges send what one device wants of another by way of the root complex (Access Control Services, PCI
/// Express Base Specification, 7.7.11).
fn acs() -> Limit {
    let devices = Path::new("/sys/bus/pci/devices");
    let is_bridge = |name: &String| {
        read(&devices.join(name).join("class")).is_some_and(|class| class.starts_with("0x0604"))
    };
    let bridges: Vec<String> = names(devices).into_iter().filter(is_bridge).collect();
    let config = |name: &String| fs::read(devices.join(name).join("config")).unwrap_or_default();
    let (mut redirecting, mut unread) = (Vec::new(), 0);
    for bridge in &bridges {
        match redirects(&config(bridge)) {
            Some(true) => redirecting.push(bridge.clone()),
            Some(false) => {}
            None => unread += 1,
        }
    }
    let values = json!({ "bridges": bridges.len(), "unreadable": unread, "redirecting": redirecting });
    let (text, help) = if bridges.is_empty() {
        ("no PCI bridge seen".to_owned(), None)
    } else if unread > 0 {
        let text = format!("unknown: of {} PCI bridges {unread} show it to root only", bridges.len());
        (text, Some("run this command as root, or: lspci -vvv | grep ACSCtl".to_owned()))
    } else if redirecting.is_empty() {
        (format!("{} PCI bridges, none redirects", bridges.len()), None)
    } else {
        let text = format!("redirected by {}", redirecting.join(", "));
        let help = "devices reach each other (a GPU, an RDMA adapter) only by a detour, or not at all: turn ACS off \
                    in the firmware's settings, or for each bridge: setpci -s BRIDGE ECAP_ACS+6.w=0";
        (text, Some(help.to_owned()))
    };
    Limit::new("acs", values, text, help)
}

fn forks(safety: ForkSafety) -> Limit {
    let (by, text, help) = match safety {
        ForkSafety::Kernel => ("kernel", "safe: the kernel copies registered pages for a child", None),
        ForkSafety::Library => ("library", "safe: libibverbs keeps registered pages from a child", None),
        ForkSafety::None => {
            let help = "use Linux 5.12 or later, or start no processes once memory is registered";
            ("nothing", "not safe: a child may take registered pages with it", Some(help.into()))
        }
    };
    Limit::new("forks", json!({ "safe_by": by }), text, help)
}

/// Returns the text of a file of the kernel's, without the end of its line.
pub(super) fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// Returns the names of the entries of a folder, sorted.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_to_lock_memory_counts_in_the_initial_namespace_alone() {
        let root = "Name:\tbash\nCapEff:\t000001ffffffffff\n";
        let identity = "         0          0 4294967295\n";
        assert!(may_lock_more(root, Some(identity)) && may_lock_more(root, None));
        assert!(!may_lock_more(root, Some("         0       1000          1\n")));
        assert!(!may_lock_more(root, Some("0 100000 65536\n65536 0 1\n")) && !may_lock_more(root, Some("")));
        assert!(!may_lock_more("CapEff:\t0000000000000000\n", Some(identity)) && !may_lock_more("", None));
    }

    #[test]
    fn the_setting_of_several_is_the_one_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("always within_size advise [never] deny force").as_deref(), Some("never"));
        assert_eq!((chosen("never"), chosen("[never")), (None, None));
    }
}
