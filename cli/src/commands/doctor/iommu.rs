//! The IOMMU, which may translate each address that a device reads or writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::limits::{Limit, names, read};

/// The options of the kernel by which it lets addresses pass untranslated; the first of them is told as a remedy. Both
/// are known on x86; arm64 has the second alone.
const PASSTHROUGH: &[&str] = match cfg!(target_arch = "x86_64") {
    true => &["iommu=pt", "iommu.passthrough=1"],
    false => &["iommu.passthrough=1", "iommu=pt"],
};

const NVIDIA: &str = "0x10de";

/// The IOMMU of the system with this root. Where there are RDMA devices or GPUs, their groups are judged, else all.
pub(super) fn look(root: &Path) -> Limit {
    let units = names(&root.join("sys/class/iommu"));
    let command_line = read(&root.join("proc/cmdline")).unwrap_or_default();
    let options: Vec<&str> = command_line.split_whitespace().filter(|word| word.contains("iommu")).collect();
    let groups = root.join("sys/kernel/iommu_groups");
    let types = types(names(&groups).iter().map(|group| groups.join(group)));
    let used = self::types(devices(root).map(|device| device.join("iommu_group")));
    let values = json!({ "units": units, "kernel_options": options, "group_types": types, "device_group_types": used });
    let mut parts = vec![match units.as_slice() {
        [] => "none seen (/sys/class/iommu is empty)".to_owned(),
        units => format!("{} (/sys/class/iommu)", units.join(", ")),
    }];
    let told = |types: &BTreeSet<String>| types.iter().cloned().collect::<Vec<_>>().join(", ");
    if !types.is_empty() {
        parts.push(format!("groups of type {}", told(&types)));
    }
    if !used.is_empty() {
        parts.push(format!("those of RDMA devices and GPUs {}", told(&used)));
    }
    if !options.is_empty() {
        parts.push(format!("the kernel was told {}", options.join(" ")));
    }
    let judged = if used.is_empty() { &types } else { &used };
    let translates = judged.iter().any(|kind| kind.starts_with("DMA"));
    let is_passed = options.iter().any(|option| PASSTHROUGH.contains(option));
    let help = (!units.is_empty() && translates && !is_passed).then(|| {
        let option = PASSTHROUGH[0];
        format!("it translates what devices reach, which may cost bandwidth: boot the kernel with {option}")
    });
    Limit::new("iommu", values, parts.join("; "), help)
}

/// The types of these groups: `identity` where addresses pass, `DMA` or `DMA-FQ` where they are translated.
fn types(groups: impl Iterator<Item = PathBuf>) -> BTreeSet<String> {
    groups.filter_map(|group| read(&group.join("type"))).collect()
}

/// The RDMA devices and the GPUs, as devices of the PCI bus.
fn devices(root: &Path) -> impl Iterator<Item = PathBuf> {
    let (rdma, pci) = (root.join("sys/class/infiniband"), root.join("sys/bus/pci/devices"));
    let adapters: Vec<_> = names(&rdma).iter().map(|name| rdma.join(name).join("device")).collect();
    let is_gpu = |device: &PathBuf| {
        let is =
            |file: &str, value: &str| read(&device.join(file)).is_some_and(|text| text.starts_with(value));
        is("vendor", NVIDIA) && is("class", "0x03")
    };
    let gpus: Vec<_> = names(&pci).iter().map(|name| pci.join(name)).filter(is_gpu).collect();
    adapters.into_iter().chain(gpus)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Looks at a system with these files.
    fn of(files: &[(&str, &str)]) -> Limit {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        look(root.path())
    }

    const UNIT: (&str, &str) = ("sys/class/iommu/dmar0", "");
    const TRANSLATED: (&str, &str) = ("sys/kernel/iommu_groups/0/type", "DMA-FQ\n");

    #[test]
    fn an_iommu_that_translates_has_the_remedy_of_this_processor() {
        let help = of(&[UNIT, TRANSLATED]).help.unwrap();
        let option = if cfg!(target_arch = "x86_64") { "iommu=pt" } else { "iommu.passthrough=1" };
        assert!(help.ends_with(&format!("with {option}")), "{help}");
        for told in ["quiet iommu=pt", "quiet iommu.passthrough=1 ro"] {
            assert_eq!(of(&[UNIT, TRANSLATED, ("proc/cmdline", told)]).help, None, "{told}");
        }
        assert_eq!(of(&[TRANSLATED]).help, None, "no unit is in use");
    }

    #[test]
    fn the_groups_of_rdma_devices_and_gpus_decide_where_there_are_any() {
        let adapter = |kind| ("sys/class/infiniband/mlx5_0/device/iommu_group/type", kind);
        assert_eq!(of(&[UNIT, TRANSLATED, adapter("identity\n")]).help, None);
        let passed = ("sys/kernel/iommu_groups/0/type", "identity\n");
        assert!(of(&[UNIT, passed, adapter("DMA\n")]).help.is_some());
        let gpu = |vendor| {
            let at = "sys/bus/pci/devices/0000:18:00.0";
            let files = [("vendor", vendor), ("class", "0x030200"), ("iommu_group/type", "DMA")];
            let files = files.map(|(file, text)| (format!("{at}/{file}"), text));
            let mut all: Vec<(&str, &str)> = files.iter().map(|(file, text)| (&**file, *text)).collect();
            all.extend([UNIT, passed]);
            of(&all)
        };
        let looked = gpu("0x10de");
        assert!(looked.help.is_some() && looked.text.contains("GPUs DMA"), "{looked:?}");
        assert_eq!(gpu("0x1a03").help, None, "the display of a server's board is none");
    }
}
