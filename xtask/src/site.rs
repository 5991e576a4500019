//! Where the chores work: the workspace, its target directory, the machine's target triple.

use crate::cmd::Cmd;
use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// Where the chores work, found once at the start.
#[derive(Debug)]
pub(crate) struct Site {
    /// Root of the workspace; every command runs here.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, absolute. Whatever a chore keeps lies under it.
    pub(crate) target: PathBuf,
    /// Target triple of this machine, e.g. `x86_64-unknown-linux-gnu`.
    pub(crate) host: String,
    /// Whether rustup has a nightly toolchain.
    pub(crate) nightly: bool,
}

impl Site {
    /// Looks around; fails where there is no working `rustc`.
    pub(crate) fn find() -> Result<Site, Failure> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().unwrap_or(Path::new("/")).to_path_buf();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(chosen) => std::path::absolute(&chosen).unwrap_or_else(|_| PathBuf::from(chosen)),
            None => root.join("target"),
        };
        let mut site = Site { root, target, host: String::new(), nightly: false };

        let version = Cmd::new("rustc", &["-vV"]).output(&site).unwrap_or_default();
        let Some(host) = version.lines().find_map(|line| line.strip_prefix("host: ")) else {
            return Err(Failure::Missing {
                what: "`rustc -vV` does not name a host".into(),
                remedy: "install Rust, see https://rustup.rs".into(),
            });
        };
        site.host = host.to_string();
        site.nightly = Cmd::nightly("rustc", &["-V"]).output(&site).is_some();
        Ok(site)
    }
}
