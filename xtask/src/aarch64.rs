//! The step that compiles for aarch64 with warnings denied, and runs the library's tests there in an emulator.
//!
//! QEMU's user mode translates each instruction for the processor at hand. It shows that the code is right for the
//! other instruction set: words, bit patterns, kernels without vectors of x86-64, the instruction of each fence. It
//! does not show that the fences are enough: what an x86-64 processor executes is ordered as on x86-64, and there is
//! no device.

use std::path::Path;

use crate::cmd::Cmd;
use crate::needs::Need;
use crate::site::Site;
use crate::steps::{Feature, Step};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The C library's loader, where Debian puts that of another architecture. The emulator is not given the folder of the
/// cross compiler's own C library (`-L`): a process that takes the loader from there and the library from here hangs.
pub(crate) const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// Tests that the emulator cannot run, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "mem::fork::tests::a_guard_is_inherited_in_a_forked_child_and_a_new_one_there_is_not",
        "MADV_WIPEONFORK is accepted and not carried out",
    ),
    ("transport::shm::tests::more_descriptors_than_a_handshake_holds_are_an_error", "MSG_CTRUNC is lost"),
    (
        "transport::shm::tests::what_a_forked_child_inherits_is_dead_there_and_alive_here",
        "MADV_WIPEONFORK, as above",
    ),
    (
        "transport::tcp::tests::a_thousand_connections_leave_nothing_behind",
        "it starts its own binary, which this kernel cannot execute",
    ),
    (
        "transport::tcp::tests::fork::what_a_forked_child_inherits_is_dead_there_and_alive_here",
        "it starts its own binary, as above",
    ),
];

/// A compiler with a standard library for aarch64: the default one, or Debian's.
pub(crate) fn compiler(site: &Site) -> Option<&'static str> {
    ["rustc", DEBIAN].into_iter().find(|program| {
        let folder = Cmd::new(program, &["--print", "target-libdir", "--target", TARGET]).output(site);
        folder.is_some_and(|folder| Path::new(folder.trim()).is_dir())
    })
}

/// The compiler of Debian's package `rustc-web`.
const DEBIAN: &str = "/usr/bin/rustc";

/// True if compilers, C library and emulator are here.
pub(crate) fn is_there(site: &Site) -> bool {
    let script = format!(
        "command -v qemu-aarch64 && test -e {LOADER} && \
         echo 'int main(void) {{ return 0; }}' | aarch64-linux-gnu-gcc -x c - -o /dev/null"
    );
    compiler(site).is_some() && Cmd::new("sh", &["-c", &script]).output(site).is_some()
}

/// The packages to install on Debian.
pub(crate) const PACKAGES: &[&str] = &[
    "rustc-web",
    "libstd-rust-web-dev:arm64",
    "libc6:arm64",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-user",
];

/// The step.
pub(crate) fn step(site: &Site) -> Step {
    // Debian's is the one that is installed if there is none yet.
    let compiler = compiler(site).unwrap_or(DEBIAN);
    let cargo = |arguments: &[&str]| {
        Cmd::new("cargo", &[arguments, &["--target", TARGET]].concat())
            .env("RUSTC", compiler)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64")
            .flags("RUSTFLAGS", "-D warnings")
            .target("aarch64")
    };
    // Backtraces of panics that are expected take the emulator seconds each.
    let tests = cargo(&["test", "-p", "slackline", "--lib", "--test", "node"]).env("RUST_BACKTRACE", "0");
    let skip = |cmd: Cmd, (test, _): &(&str, &str)| cmd.arg("--skip").arg(test);
    Step {
        name: "aarch64",
        about: "the workspace compiles for aarch64, and the library's tests pass there in an emulator",
        needs: Vec::new(),
        feature: Some(Feature::Installed(Need::Aarch64)),
        commands: vec![
            cargo(&["check", "--workspace"]),
            LEFT_OUT.iter().fold(tests.arg("--").arg("--exact"), skip).suite(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_emulator_leaves_out_is_a_test_of_the_library() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (test, _) in LEFT_OUT {
            let (modules, name) = test.rsplit_once("::").unwrap();
            let path = modules.strip_suffix("::tests").unwrap_or(modules).replace("::", "/");
            let files = [format!("{path}.rs"), format!("{path}/tests.rs"), format!("{path}/mod.rs")];
            let found = files.iter().any(|file| {
                let text = std::fs::read_to_string(root.join("src").join(file)).unwrap_or_default();
                text.contains(&format!("fn {name}("))
            });
            assert!(found, "{test} is no test of {files:?}");
        }
    }
}
