//! The path between two functions on PCI Express, for example a GPU and a network adapter, from the system's tree of
//! devices.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// The path between two functions, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciWay {
    /// Both are behind one switch.
    Switch,
    /// Both are below one host bridge.
    HostBridge,
    /// Their host bridges are on one NUMA node.
    Node,
    /// Their host bridges are on two NUMA nodes.
    System,
}

impl Display for PciWay {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PciWay::Switch => "behind one switch",
            PciWay::HostBridge => "through the host bridge",
            PciWay::Node => "between host bridges of one NUMA node",
            PciWay::System => "between NUMA nodes",
        })
    }
}

/// The path between two functions, by their folders, whose canonical paths contain the bridges above them. `None` if
/// one of them does not exist.
pub fn pci_way(one: &Path, other: &Path) -> Option<PciWay> {
    let bridges = |function: &Path| -> Option<Vec<PathBuf>> {
        let path = function.canonicalize().ok()?;
        let mut above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_path_buf).collect();
        above.retain(|folder| {
            folder
                .file_name()
                .is_some_and(|name| name.to_string_lossy().contains(':') || is_host_bridge(folder))
        });
        Some(above)
    };
    let (ours, theirs) = (bridges(one)?, bridges(other)?);
    let shared = ours.iter().find(|folder| theirs.contains(folder));
    // The node is -1 if the host has one node, or if its firmware does not report it.
    let node = |function: &Path| {
        let text = std::fs::read_to_string(function.join("numa_node")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    Some(match shared {
        Some(bridge) if is_host_bridge(bridge) => PciWay::HostBridge,
        Some(_) => PciWay::Switch,
        None if node(one).is_some() && node(one) == node(other) => PciWay::Node,
        None => PciWay::System,
    })
}

fn is_host_bridge(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pci"))
}
