//! `cargo xtask wheel`: the Python package as a wheel, and its tests on what was installed from it.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::{Feature, Step};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const COMMAND: Command = Command {
    name: "wheel",
    arguments: "[--check]",
    about: "the Python package as a wheel in target/wheels; --check: its tests, in an environment of their own",
    run,
};

/// The most bytes of a wheel.
const WHEEL_MAX: u64 = 8 << 20;

/// What the tests use beside the wheel. Without torch, which is too large.
const TESTED_WITH: &[&str] = &["numpy", "ml_dtypes", "pytest", "mypy"];

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    Step {
        name: "python",
        about: "the wheel is small, its tests pass where it alone is installed, and its types hold",
        needs: vec![Need::Cc],
        feature: Some(Feature::Installed(Need::Maturin)),
        commands: vec![Cmd::new("cargo", &["xtask", "wheel", "--check"])],
    }
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let check = match arguments {
        [] => false,
        [argument] if argument == "--check" => true,
        _ => return Err(Failure::Usage("`wheel` takes no argument but --check".into())),
    };
    needs::ensure(site, &[Need::Cc, Need::Maturin])?;
    let wheel = build(site)?;
    println!("the wheel: {}", wheel.display());
    if check { test(site, &wheel) } else { Ok(()) }
}

/// Builds it, in the profile in which the C library is installed, so that the two share most of what is built.
fn build(site: &Site) -> Result<PathBuf, Failure> {
    let folder = emptied(site.target.join("wheels"))?;
    let (manifest, out) = (site.root.join("python/Cargo.toml"), folder.to_string_lossy());
    let maturin = needs::python_program(site, "maturin");
    Cmd::new(&maturin.to_string_lossy(), &["build", "--release", "--manifest-path"])
        .arg(&manifest.to_string_lossy())
        .arg("--out")
        .arg(&out)
        .run(site)?;
    let entries = fs::read_dir(&folder).map_err(|error| cannot_use(&folder, &error))?;
    let mut wheels = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let none = || Failure::Check { what: format!("no wheel in {out}"), status: "nothing was built".into() };
    let wheel = wheels.next().ok_or_else(none)?;
    let bytes = fs::metadata(&wheel).map_err(|error| cannot_use(&wheel, &error))?.len();
    if bytes > WHEEL_MAX {
        let what = format!("{} has {bytes} bytes, and may have {WHEEL_MAX}", wheel.display());
        return Err(Failure::Check { what, status: "too large".into() });
    }
    Ok(wheel)
}

/// Runs the tests where the wheel is installed and its sources are not in the way.
fn test(site: &Site, wheel: &Path) -> Result<(), Failure> {
    let folder = emptied(site.target.join("python-tests"))?;
    let python = folder.join("bin/python");
    let python = python.to_string_lossy();
    Cmd::new("python3", &["-m", "venv", "--without-pip"]).arg(&folder.to_string_lossy()).run(site)?;
    let mut install = Cmd::new("python3", &["-m", "pip", "--python", &python, "install", "--quiet"])
        .arg(&wheel.to_string_lossy())
        .env("PIP_ROOT_USER_ACTION", "ignore");
    for package in TESTED_WITH {
        install = install.arg(package);
    }
    install.run(site)?;
    let tests = site.root.join("python/tests");
    let tests = tests.to_string_lossy();
    // Nothing is written beside the sources.
    let within = |arguments: &[&str]| {
        Cmd::new(&python, arguments).env("PYTHONDONTWRITEBYTECODE", "1").env("MYPY_CACHE_DIR", "/dev/null")
    };
    let allowed = format!("{tests}/stubtest.txt");
    let stubtest =
        ["-P", "-m", "mypy.stubtest", "--allowlist", &allowed, "--ignore-unused-allowlist", "slackline"];
    within(&stubtest).run(site)?;
    within(&["-P", "-m", "mypy", "--strict", &tests]).run(site)?;
    let pytest = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", &tests, &tests];
    within(&pytest).retry().run(site)
}

/// An empty folder.
fn emptied(folder: PathBuf) -> Result<PathBuf, Failure> {
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot_use(&folder, &error)),
        _ => {}
    }
    fs::create_dir_all(&folder).map_err(|error| cannot_use(&folder, &error))?;
    Ok(folder)
}

fn cannot_use(path: &Path, error: &io::Error) -> Failure {
    Failure::Missing {
        what: format!("cannot use {}: {error}", path.display()),
        remedy: "look at its permissions and the space left".into(),
    }
}
