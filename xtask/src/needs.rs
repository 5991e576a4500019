//! What the steps need to have installed: looked for first, installed where we may, named where not.

use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;

/// Something that a step cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A component of the default toolchain, by its name in rustup.
    Component(&'static str),
    /// A C compiler with the C library's headers: the C interface is tested from C.
    Cc,
    /// Valgrind, where no nightly toolchain brings AddressSanitizer.
    Valgrind,
    /// UCX's own benchmark, as a peer to be measured against.
    UcxPerftest,
    /// `ip` and `tc`: tests make networks of their own.
    Iproute2,
    /// `nft`: tests lose packets.
    Nftables,
}

/// How a missing need is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Rustup(&'static str),
    Apt(&'static [&'static str]),
}

impl Need {
    fn is_there(self, site: &Site) -> bool {
        let probe = match self {
            Need::Component("rustfmt") => Cmd::new("cargo", &["fmt", "--version"]),
            Need::Component(name) => Cmd::new("cargo", &[name, "--version"]),
            Need::Cc => Cmd::new("cc", &["-fsyntax-only", "-include", "stdint.h", "-x", "c", "/dev/null"]),
            Need::Valgrind => Cmd::new("valgrind", &["--version"]),
            // It has no option that succeeds and does nothing.
            Need::UcxPerftest => Cmd::new("sh", &["-c", "command -v ucx_perftest"]),
            // Not everybody's path leads to programs for administrators.
            Need::Iproute2 => {
                Cmd::new("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v ip && command -v tc"])
            }
            Need::Nftables => Cmd::new("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v nft"]),
        };
        probe.output(site).is_some()
    }

    fn source(self) -> Source {
        match self {
            Need::Component(name) => Source::Rustup(name),
            Need::Cc => Source::Apt(&["gcc", "libc6-dev"]),
            Need::Valgrind => Source::Apt(&["valgrind"]),
            Need::UcxPerftest => Source::Apt(&["ucx-utils"]),
            Need::Iproute2 => Source::Apt(&["iproute2"]),
            Need::Nftables => Source::Apt(&["nftables"]),
        }
    }

    fn what(self) -> String {
        match self {
            Need::Component(name) => format!("the Rust toolchain has no `{name}`"),
            Need::Cc => "there is no C compiler `cc` that finds the C library's headers".into(),
            Need::UcxPerftest => "there is no `ucx_perftest`".into(),
            Need::Iproute2 => "there is no `ip` or no `tc`".into(),
            Need::Nftables => "there is no `nft`".into(),
            Need::Valgrind => "there is neither a nightly toolchain for AddressSanitizer nor valgrind".into(),
        }
    }
}

/// Makes sure that everything is there, installing what is not if rustup is here, or if we are root and
/// apt-get is here. Otherwise names all that is missing, with the commands that install it.
pub(crate) fn ensure(site: &Site, needs: &[Need]) -> Result<(), Failure> {
    let mut missing = missing(site, needs);
    if missing.is_empty() {
        return Ok(());
    }
    let rights = Rights::find(site);
    for command in installers(&missing, rights) {
        println!("== installing: {command}");
        // Whether it worked is seen by looking again.
        if let Err(failure) = command.run(site) {
            println!("{failure}");
        }
    }
    missing.retain(|need| !need.is_there(site));
    if missing.is_empty() {
        return Ok(());
    }
    let what: Vec<String> = missing.iter().map(|need| need.what()).collect();
    Err(Failure::Missing { what: what.join("; "), remedy: remedy(&missing, rights) })
}

fn missing(site: &Site, needs: &[Need]) -> Vec<Need> {
    let mut missing: Vec<Need> = Vec::new();
    for need in needs {
        if !missing.contains(need) && !need.is_there(site) {
            missing.push(*need);
        }
    }
    missing
}

/// What this process can install with.
#[derive(Clone, Copy, Debug)]
struct Rights {
    rustup: bool,
    apt: bool,
    root: bool,
}

impl Rights {
    fn find(site: &Site) -> Rights {
        Rights {
            rustup: Cmd::new("rustup", &["--version"]).output(site).is_some(),
            apt: Cmd::new("apt-get", &["--version"]).output(site).is_some(),
            root: Cmd::new("id", &["-u"]).output(site).is_some_and(|id| id.trim() == "0"),
        }
    }
}

/// Names to install from rustup, and from apt.
fn sorted(missing: &[Need]) -> (Vec<&'static str>, Vec<&'static str>) {
    let (mut components, mut packages) = (Vec::new(), Vec::new());
    for need in missing {
        match need.source() {
            Source::Rustup(name) => components.push(name),
            Source::Apt(names) => packages.extend_from_slice(names),
        }
    }
    (components, packages)
}

fn installers(missing: &[Need], rights: Rights) -> Vec<Cmd> {
    let (components, packages) = sorted(missing);
    let mut commands = Vec::new();
    if rights.rustup && !components.is_empty() {
        commands.push(Cmd::new("rustup", &[&["component", "add"], components.as_slice()].concat()));
    }
    if rights.apt && rights.root && !packages.is_empty() {
        let install = [&["install", "--yes", "--no-install-recommends"], packages.as_slice()].concat();
        commands.push(Cmd::new("apt-get", &["update"]));
        commands.push(Cmd::new("apt-get", &install).env("DEBIAN_FRONTEND", "noninteractive"));
    }
    commands
}

fn remedy(missing: &[Need], rights: Rights) -> String {
    let (components, packages) = sorted(missing);
    let mut lines = Vec::new();
    if !components.is_empty() {
        let components = components.join(" ");
        lines.push(match rights.rustup {
            true => format!("rustup component add {components}"),
            false => {
                format!("install {components} from where your Rust came from, or Rust from https://rustup.rs")
            }
        });
    }
    if !packages.is_empty() {
        let packages = packages.join(" ");
        let sudo = if rights.root { "" } else { "sudo " };
        lines.push(match rights.apt {
            true => format!("{sudo}apt-get update && {sudo}apt-get install --yes {packages}"),
            false => format!("install what Debian calls {packages} with your system's package manager"),
        });
    }
    if missing.contains(&Need::Valgrind) && rights.rustup {
        lines.push("or, instead of valgrind: rustup toolchain install nightly".into());
    }
    lines.join("\n              ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Need] = &[Need::Component("clippy"), Need::Cc, Need::Valgrind];

    fn shown(rights: Rights) -> Vec<String> {
        installers(ALL, rights).iter().map(Cmd::to_string).collect()
    }

    #[test]
    fn root_on_debian_installs_what_is_missing() {
        let commands = shown(Rights { rustup: true, apt: true, root: true });
        assert_eq!(commands[0], "rustup component add clippy");
        assert_eq!(commands[1], "apt-get update");
        assert!(commands[2].ends_with("--no-install-recommends gcc libc6-dev valgrind"), "{}", commands[2]);
    }

    #[test]
    fn without_the_right_nothing_is_run_and_the_exact_command_is_said() {
        let rights = Rights { rustup: false, apt: true, root: false };
        assert!(shown(rights).is_empty());
        let remedy = remedy(ALL, rights);
        assert!(remedy.contains("sudo apt-get update && sudo apt-get install --yes gcc libc6-dev valgrind"));
    }
}
