//! The step that reads what the dependencies are: their licences, and where they come from (`deny.toml`).
//!
//! Known defects (`cargo deny check advisories`) are not asked for here, since their list is fetched from the web.

use crate::cmd::Cmd;
use crate::needs::Need;
use crate::steps::{Feature, Step};

/// Folder of the program, which `needs` put there.
const PROGRAM: &str = "PATH=\"$CARGO_TARGET_DIR/tools/cargo-deny/bin:$PATH\"";

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    let script = format!("{PROGRAM} cargo deny --all-features check licenses bans sources");
    Step {
        name: "deny",
        about: "dependencies have permissive licences and come from the registry",
        needs: Vec::new(),
        feature: Some(Feature::Installed(Need::CargoDeny)),
        commands: vec![Cmd::new("sh", &["-c", &script])],
    }
}
