//! The system that guests boot: a kernel that is only downloaded, and a first file system of its modules and busybox.

use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The modules that a guest needs, each after those that it needs itself. rxe takes crc32 by name, and fails to add a
/// device without it.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "crc32_generic",
    "crc32_pclmul",
    "rdma_rxe",
    "rdma_ucm",
    "sch_netem",
    "sch_prio",
    "cls_u32",
    "dummy",
];

/// An unpacked kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its release, as `uname -r` says it, e.g. `6.1.0-56-amd64`.
    pub(super) release: String,
    pub(super) image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The one in `folder`, fetched by the script if there is none.
    pub(super) fn prepare(site: &Site, folder: &Path, script: &Path) -> Result<Kernel, Failure> {
        let folder = folder.join("kernel");
        // A kernel that was unpacked for another list of modules is unpacked again.
        let modules = fs::read_to_string(folder.join("for")).unwrap_or_default();
        if modules.split_whitespace().ne(MODULES.iter().copied()) {
            let cmd = Cmd::new("sh", &[&script.to_string_lossy(), &folder.to_string_lossy()]);
            let cmd = MODULES.iter().fold(cmd, |cmd, module| cmd.arg(module));
            cmd.run(site).map_err(|failure| Failure::Missing {
                what: format!("there is no kernel for the guests: {failure}"),
                remedy: "on Debian for amd64 with a way to its archive: sudo apt-get update, and again"
                    .into(),
            })?;
        }
        let release = fs::read_to_string(folder.join("version")).unwrap_or_default().trim().to_string();
        Ok(Kernel { release, image: folder.join("vmlinuz"), modules: folder.join("modules") })
    }
}

/// Makes the first file system of a guest in `folder`; `settings` are assignments of the shell.
pub(super) fn initramfs(
    site: &Site,
    kernel: &Kernel,
    folder: &Path,
    init: &Path,
    settings: &str,
) -> Result<PathBuf, Failure> {
    let (tree, packed) = (folder.join("initramfs"), folder.join("initramfs.cpio"));
    plant(site, kernel, &tree, init, settings).map_err(|error| Failure::Missing {
        what: format!("cannot make {}: {error}", tree.display()),
        remedy: "make room there, and let this user write".into(),
    })?;
    let pack = "cd \"$0\" && find . | cpio --create --format=newc --quiet >\"$1\"";
    Cmd::new("sh", &["-c", pack, &tree.to_string_lossy(), &packed.to_string_lossy()]).run(site)?;
    Ok(packed)
}

fn plant(site: &Site, kernel: &Kernel, tree: &Path, init: &Path, settings: &str) -> io::Result<()> {
    for folder in ["bin", "dev", "host", "modules", "proc", "root", "sys"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    let busybox = Cmd::new("sh", &["-c", "command -v busybox"]).output(site).unwrap_or_default();
    fs::copy(busybox.trim(), tree.join("bin/busybox"))?;
    for entry in fs::read_dir(&kernel.modules)? {
        let entry = entry?;
        fs::copy(entry.path(), tree.join("modules").join(entry.file_name()))?;
    }
    fs::write(tree.join("settings"), settings)?;
    fs::copy(init, tree.join("init"))?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))
}

/// A word of the shell.
pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_the_shell_stays_one() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
