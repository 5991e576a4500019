//! `cargo xtask wheel`: the Python package as a wheel, and its tests on what was installed from it.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::{Feature, Step, TESTED, build_command_line};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const COMMAND: Command = Command {
    name: "wheel",
    arguments: "[--check | --integrations] [--python PATH]",
    about: "the Python package as a wheel in target/wheels; --check: its tests, in an environment of their own; \
            --python: for this interpreter, a free-threaded one, say, and with it; \
            --integrations: the tests of slackline.torch and its plug-ins, with their hosts (7 GB)",
    run,
};

/// The dependencies that a build of tests takes.
const ALL_EDGES: [&str; 2] = ["--edges", "normal,build,dev"];

/// The most bytes of a wheel.
const WHEEL_MAX: u64 = 8 << 20;

/// What the tests use beside the wheel. Without torch, which is too large.
const TESTED_WITH: &[&str] = &["numpy", "ml_dtypes", "pytest"];

/// The hosts of the plug-ins, in the versions that they are tested with. They are too large for every run of the tests.
const HOSTS: &[&str] = &[
    "numpy",
    "pytest",
    "mypy",
    "torch>=2.15,<2.16",
    "torchrl>=0.14,<0.15",
    "torchft>=0.2,<0.3",
    "ray[rllib]>=2.60,<2.61",
    "gymnasium>=1.2,<2",
    // The launchers, and what knows their schemas.
    "mpi4py>=4.1,<5",
    "mpich>=5,<6",
    "pyyaml",
    "kubernetes-validate",
    "kubeflow-trainer-api",
    // What verl needs when its checkpoint engines are imported.
    "accelerate",
    "codetiming",
    "dill",
    "fastapi",
    "hydra-core",
    "transformers>=5.5.3,<5.11",
    "uvicorn",
];

/// The hosts whose other needs are not for the plug-in, and exclude those of the others.
const HOSTS_ALONE: &[&str] = &["verl>=0.9,<0.10"];

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    Step {
        name: "python",
        about: "the wheel is small, its tests pass where it alone is installed, and its types hold",
        needs: vec![Need::Cc],
        feature: Some(Feature::Installed(Need::Maturin)),
        commands: vec![Cmd::new("cargo", &["xtask", "wheel", "--check"]).retry()],
    }
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let usage = || Failure::Usage("`wheel` takes --check or --integrations, and --python with a path".into());
    let (mut test, mut python) = (None, None);
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--check" | "--integrations" if test.is_none() => test = Some(word),
            "--python" if python.is_none() => python = Some(words.next().ok_or_else(usage)?),
            _ => return Err(usage()),
        }
    }
    needs::ensure(site, &[Need::Cc, Need::Maturin])?;
    if test == Some("--check") {
        shares_what_is_built(site)?;
    }
    let wheel = build(site, python)?;
    println!("the wheel: {}", wheel.display());
    match test {
        None => Ok(()),
        Some("--check") => check(site, &wheel, python),
        Some(_) => integrations(site, &wheel, python),
    }
}

/// Builds it, in the profile in which the C library is installed, so that the two share most of what is built. For the
/// interpreter that is named it has that one's ABI if it is free-threaded, and else the stable one.
fn build(site: &Site, python: Option<&str>) -> Result<PathBuf, Failure> {
    let folder = emptied(site.target.join("wheels"))?;
    let (manifest, out) = (site.root.join("python/Cargo.toml"), folder.to_string_lossy());
    let maturin = needs::python_program(site, "maturin");
    let mut build = Cmd::new(&maturin.to_string_lossy(), &["build", "--release", "--manifest-path"])
        .arg(&manifest.to_string_lossy())
        .arg("--out")
        .arg(&out);
    if let Some(python) = python {
        build = build.arg("--interpreter").arg(python);
    }
    build.run(site)?;
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
fn check(site: &Site, wheel: &Path, named: Option<&str>) -> Result<(), Failure> {
    let python = environment(site, named, "python-tests")?;
    install(site, named, &python, &[&[wheel.to_string_lossy().as_ref()], TESTED_WITH].concat())?;
    let tests = site.root.join("python/tests");
    let tests = tests.to_string_lossy();
    // The types are the same for each interpreter.
    if named.is_none() {
        install(site, named, &python, &["mypy"])?;
        check_types(site, &python, &tests)?;
    }
    let pytest = ["-P", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", &tests, &tests];
    let mut pytest = within(&python, &pytest);
    if is_free_threaded(site, &python) {
        // It stays without a GIL even if another package asks for one.
        pytest = pytest.env("PYTHON_GIL", "0");
    }
    pytest.run(site)
}

/// Fails unless the wheel, the C library and the tests take everything below the library with the same features. For
/// other ones cargo builds the library once more, which takes minutes and shows in no output.
fn shares_what_is_built(site: &Site) -> Result<(), Failure> {
    let features = |selection: &[&str]| -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
        let tree = Cmd::new("cargo", &["tree", "--prefix", "none", "--no-dedupe", "--format", "{p}\t{f}"]);
        let tree = selection.iter().fold(tree, |tree, word| tree.arg(word)).answer(site)?;
        // What proc macros take, too, may stand there once more with other features, which is no harm.
        let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (package, features) in tree.lines().filter_map(|line| line.split_once('\t')) {
            packages.entry(package.into()).or_default().insert(features.into());
        }
        Ok(packages)
    };
    let named = |features: Option<&BTreeSet<String>>| match features {
        Some(features) => features.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(" "),
        None => "none of it".into(),
    };
    let usual = ["--edges", "normal,build"];
    let library = features(&[&usual[..], &["-p", "slackline", "--features", "sim"]].concat())?;
    let wheel = features(&[&usual[..], &["-p", "slackline-python"]].concat())?;
    let others =
        [("the C library", &["-p", "slackline-ffi"][..], &usual), ("the tests", &TESTED, &ALL_EDGES)];
    for (who, selection, edges) in others {
        let theirs = features(&[&edges[..], selection].concat())?;
        let differs = |package: &&String| match (wheel.get(*package), theirs.get(*package)) {
            (Some(wheel), Some(theirs)) => !wheel.is_subset(theirs),
            (wheel, theirs) => wheel != theirs,
        };
        if let Some(package) = library.keys().find(differs) {
            return Err(Failure::Check {
                what: format!(
                    "the wheel and {who} take {package} with other features, so that the library is built for each\n  \
                     to fix it: ask for the same in their Cargo.toml"
                ),
                status: format!("{} and {}", named(wheel.get(package)), named(theirs.get(package))),
            });
        }
    }
    Ok(())
}

fn check_types(site: &Site, python: &str, tests: &str) -> Result<(), Failure> {
    let (allowed, config) = (format!("{tests}/stubtest.txt"), format!("{tests}/stubtest.ini"));
    let stubtest = ["-P", "-m", "mypy.stubtest", "--ignore-unused-allowlist", "--allowlist", &allowed];
    let stubtest = [&stubtest[..], &["--mypy-config-file", &config, "slackline"]].concat();
    within(python, &stubtest).run(site)?;
    // The types of the plug-ins are those of their hosts.
    within(python, &["-P", "-m", "mypy", "--strict", "--exclude", "/integrations/", tests]).run(site)
}

fn is_free_threaded(site: &Site, python: &str) -> bool {
    let question = "import sys, sysconfig; sys.exit(0 if sysconfig.get_config_var('Py_GIL_DISABLED') else 1)";
    Cmd::new(python, &["-c", question]).output(site).is_some()
}

/// Runs the tests of `slackline.torch` and of the plug-ins where the wheel and their hosts are installed.
fn integrations(site: &Site, wheel: &Path, named: Option<&str>) -> Result<(), Failure> {
    let python = environment(site, named, "python-integrations")?;
    install(site, named, &python, &[&[wheel.to_string_lossy().as_ref()], HOSTS].concat())?;
    install(site, named, &python, &[&["--no-deps"], HOSTS_ALONE].concat())?;
    let tests = site.root.join("python/tests");
    let folder = tests.join("integrations");
    let (tests, folder) = (tests.to_string_lossy(), folder.to_string_lossy());
    // Most hosts have no types.
    let untyped =
        ["--allow-subclassing-any", "--disable-error-code", "import-untyped", "--disable-error-code"];
    let mypy = [&["-P", "-m", "mypy", "--strict"], &untyped[..], &["import-not-found"]].concat();
    within(&python, &[&mypy[..], &["-p", "slackline.integrations", "-p", "slackline.torch"]].concat())
        .run(site)?;
    let (examples, bench) = (site.root.join("python/examples"), site.root.join("python/bench"));
    let programs = [folder.as_ref(), &examples.to_string_lossy(), &bench.to_string_lossy()];
    within(&python, &[&mypy[..], &programs].concat()).run(site)?;
    // Traces of what ran in Python are judged by the program, too.
    build_command_line().run(site)?;
    let program = site.target.join("release/slackline");
    let pytest = ["-P", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", &tests, &folder];
    within(&python, &pytest).env("SLACKLINE_CLI", &program.to_string_lossy()).run(site)
}

/// The program of a new environment of the interpreter that is named, or of the usual one, which has no packages.
fn environment(site: &Site, named: Option<&str>, name: &str) -> Result<String, Failure> {
    let folder = emptied(site.target.join(name))?;
    Cmd::new(named.unwrap_or("python3"), &["-m", "venv", "--without-pip"])
        .arg(&folder.to_string_lossy())
        .run(site)?;
    Ok(folder.join("bin/python").to_string_lossy().into_owned())
}

/// Installs by the pip of the same interpreter: an older one may not know its ABI.
fn install(site: &Site, named: Option<&str>, python: &str, what: &[&str]) -> Result<(), Failure> {
    let pip = ["-m", "pip", "--python", python, "install", "--quiet"];
    let mut install = Cmd::new(named.unwrap_or("python3"), &pip).env("PIP_ROOT_USER_ACTION", "ignore");
    for argument in what {
        install = install.arg(argument);
    }
    install.run(site)
}

/// A program of an environment that writes nothing beside the sources.
fn within(python: &str, arguments: &[&str]) -> Cmd {
    Cmd::new(python, arguments).env("PYTHONDONTWRITEBYTECODE", "1").env("MYPY_CACHE_DIR", "/dev/null")
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
