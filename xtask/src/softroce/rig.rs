//! Prepares guests or this host for runs, and has them run there.

use super::defects::{self, Defect};
use super::host::Device;
use super::judge::{RunOutcome, judge};
use super::kernel::{self, Kernel, quoted};
use super::play::{Patience, Played, play};
use super::programs::{self, Program};
use super::report::RigReport;
use super::runs::{Guests, Job, Run, selection};
use super::stage::{Stage, mortal};
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of turns that perftest and slackline take at each row.
const PAIRS: usize = 7;

/// The address at which guest 2 serves a shell. Only guest 1 reaches it.
const SHELL: &str = "10.9.9.2:99";

/// The rig's folder under the target directory, held by this process alone.
pub(super) struct Rig<'a> {
    site: &'a Site,
    folder: PathBuf,
    scripts: PathBuf,
    _lock: File,
}

impl<'a> Rig<'a> {
    /// Waits until no other process has it.
    pub(super) fn new(site: &'a Site) -> Result<Rig<'a>, Failure> {
        let folder = site.target.join("softroce");
        let lock = fs::create_dir_all(&folder).and_then(|()| {
            let lock = File::create(folder.join("lock"))?;
            if lock.try_lock().is_err() {
                eprintln!("waiting for another `cargo xtask softroce` to end");
                lock.lock()?;
            }
            Ok(lock)
        });
        let lock = lock.map_err(unwritable(&folder))?;
        Ok(Rig { site, folder, scripts: site.root.join("xtask/src/softroce/guest"), _lock: lock })
    }

    /// Has these run in guests.
    pub(super) fn in_guests(&self, runs: &[&'static Run], kvm: bool) -> Result<RigReport, Failure> {
        let kernel = Kernel::prepare(self.site, &self.folder, &self.scripts.with_file_name("kernel.sh"))?;
        let defects = known(&kernel.release)?;
        let mut outcomes = Vec::new();
        for (guests, name) in [(Guests::One, "one"), (Guests::Two, "two")] {
            let runs: Vec<_> = runs.iter().copied().filter(|run| run.guests == guests).collect();
            let boot = |left: &[&'static Run]| self.boot(&kernel, guests, &self.run_folder(name, left)?, kvm);
            outcomes.extend(all(&runs, &defects, boot)?);
        }
        Ok(RigReport::new(&kernel.release, outcomes, &defects))
    }

    /// Has these run on this host, by the device of this name if one is given.
    pub(super) fn on_host(&self, runs: &[&'static Run], device: Option<&str>) -> Result<RigReport, Failure> {
        let device = Device::find(self.site, device)?;
        let mut runs = runs.to_vec();
        let mut leave_out = |takes: fn(&Run, &Device) -> bool, why, remedy: &str| {
            let (others, rest): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| takes(run, &device));
            let names: Vec<&str> = others.iter().map(|run| run.name).collect();
            let what = format!("{why} {}", names.join(", "));
            runs = rest;
            if !others.is_empty() && runs.is_empty() {
                return Err(Failure::Missing { what, remedy: remedy.into() });
            }
            if !others.is_empty() {
                eprintln!("left out: {what}");
            }
            Ok(())
        };
        leave_out(
            |run, device| run.devices > device.count(),
            "this host has one active RDMA device, which is not enough for",
            "bring another one up, or leave out --host",
        )?;
        leave_out(
            |run, device| run.parts_links && !device.is_ours(),
            "the interface of this host's RDMA device is not taken down for",
            "leave out --host",
        )?;
        let release = Cmd::new("uname", &["-r"]).answer(self.site)?.trim().to_string();
        let defects = known(&release)?;
        let start = |left: &[&'static Run]| {
            let mut command = mortal("sh");
            command.args(["-c", "ulimit -l unlimited 2>/dev/null; exec sh \"$0\" \"$1\""]);
            command.arg(self.scripts.join("runs.sh")).arg(self.run_folder("host", left)?);
            command.env("SLACKLINE_RIG_SCRIPTS", &self.scripts).envs(device.environment());
            Stage::host(command)
        };
        let outcomes = all(&runs, &defects, start)?;
        Ok(RigReport::new(&release, outcomes, &defects))
    }

    /// Makes a folder with what `runs.sh` reads.
    fn run_folder(&self, name: &str, runs: &[&'static Run]) -> Result<PathBuf, Failure> {
        let folder = self.folder.join(name);
        let mut list = String::new();
        let mut scripts = Vec::new();
        for run in runs {
            list += &format!("{} {}\n", run.name, run.timeout.as_secs());
            scripts.push((format!("{}.run", run.name), self.script(run)?));
        }
        scripts.push(("runs".into(), list));
        let write = || -> io::Result<()> {
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
            fs::create_dir(&folder)?;
            scripts.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
        };
        write().map_err(unwritable(&folder))?;
        if runs.iter().any(|run| run.guests == Guests::Two) {
            self.put_shell(&folder)?;
        }
        Ok(folder)
    }

    /// Puts the program that guest 2 serves into the folder, and guest 1's way to it.
    fn put_shell(&self, folder: &Path) -> Result<(), Failure> {
        let elsewhere = programs::elsewhere(self.site)?;
        let (program, peer) = (folder.join("elsewhere"), folder.join("peer"));
        let script = format!("#!/bin/sh\nexec {} run {SHELL} \"$@\"\n", quoted(&program));
        let write = || -> io::Result<()> {
            symlink(&elsewhere.executable, &program)?;
            fs::write(&peer, script)?;
            fs::set_permissions(&peer, Permissions::from_mode(0o755))
        };
        write().map_err(unwritable(folder))
    }

    /// Returns the script that a run executes.
    fn script(&self, run: &Run) -> Result<String, Failure> {
        match run.job {
            Job::Script => {
                Ok(format!(". {}\n", quoted(&self.scripts.join("runs").join(format!("{}.sh", run.name)))))
            }
            Job::Turns => self.turns(),
            Job::Tests { target, release, filters } => {
                Ok(tests(&programs::test(self.site, &selection(target, release))?, filters))
            }
            Job::UnitTests { filters } => Ok(tests(&programs::unit_tests(self.site)?, filters)),
        }
    }

    fn turns(&self) -> Result<String, Failure> {
        let (xtask, slackline) = programs::turns(self.site)?;
        Ok(format!("exec {} turns {} {PAIRS}\n", quoted(&xtask.executable), quoted(&slackline.executable)))
    }

    fn boot(&self, kernel: &Kernel, guests: Guests, folder: &Path, kvm: bool) -> Result<Stage, Failure> {
        let settings = [
            ("folder", folder),
            ("scripts", &self.scripts),
            ("workspace", &self.site.root),
            ("target", &self.site.target),
        ];
        let settings = settings.map(|(name, path)| format!("{name}={}\n", quoted(path))).concat();
        let init = self.scripts.join("init.sh");
        let initramfs = kernel::initramfs(self.site, kernel, folder, &init, &settings)?;
        Stage::boot(kernel, &initramfs, folder, guests, kvm)
    }
}

/// Executes runs, on a new stage where one broke under them: the run that broke it has failed, and the others go on.
fn all(
    runs: &[&'static Run],
    defects: &[Defect],
    start: impl Fn(&[&'static Run]) -> Result<Stage, Failure>,
) -> Result<Vec<RunOutcome>, Failure> {
    let (mut left, mut outcomes, mut stalls) = (runs.to_vec(), Vec::new(), 0);
    while !left.is_empty() {
        let stage = start(&left)?;
        let mut played = play(&stage, &left, &Patience::default(), &|line| eprintln!("{line}"));
        let is_good = |outcome: &RunOutcome| judge(outcome, defects).complaints.is_empty();
        if played.trouble.is_some() || !played.outcomes.iter().all(is_good) {
            show(&stage, &played);
            if stalls < STALLS_MAX && has_stalled(&stage) {
                stalls += 1;
                eprintln!("a guest's emulated network card has stopped: what failed meanwhile is done again");
                played.outcomes = played.outcomes.into_iter().take_while(is_good).collect();
                left.retain(|run| played.outcomes.iter().all(|outcome| outcome.run.name != run.name));
                outcomes.extend(played.outcomes);
                continue;
            }
        }
        if played.outcomes.is_empty() {
            let status = played.trouble.unwrap_or_else(|| "it did nothing".into());
            return Err(Failure::Check { what: "the start of the runs".into(), status });
        }
        left.retain(|run| played.outcomes.iter().all(|outcome| outcome.run.name != run.name));
        outcomes.extend(played.outcomes);
    }
    Ok(outcomes)
}

/// The message of a guest's kernel if the card that QEMU emulates sends no more. It is no verdict on the test that ran
/// then.
const STALL: &str = "NETDEV WATCHDOG";
/// It says so after 5 s.
const STALL_SHOWS: Duration = Duration::from_secs(7);
/// Most times that runs are done again for it.
const STALLS_MAX: usize = 2;

/// The script that runs the tests of a binary whose names have one of these parts in them.
fn tests(program: &Program, filters: &[&str]) -> String {
    let filters: Vec<_> = filters.iter().map(|filter| quoted(Path::new(filter))).collect();
    format!(
        "cd {} && exec {} --test-threads=1 --color=never {}\n",
        quoted(&program.folder),
        quoted(&program.executable),
        filters.join(" ")
    )
}

fn has_stalled(stage: &Stage) -> bool {
    let told = || {
        let texts = stage.asides.iter().filter_map(|file| fs::read(file).ok());
        texts.into_iter().any(|text| String::from_utf8_lossy(&text).contains(STALL))
    };
    if !stage.asides.is_empty() && !told() {
        std::thread::sleep(STALL_SHOWS);
    }
    told()
}

/// Everything that was said.
fn show(stage: &Stage, played: &Played) {
    for file in &stage.asides {
        let text = fs::read(file).unwrap_or_default();
        if !text.is_empty() {
            eprintln!("-- {}\n{}", file.display(), String::from_utf8_lossy(&text));
        }
    }
    eprintln!("-- what the guests said\n{}\n--", played.transcript.join("\n"));
}

fn known(kernel: &str) -> Result<Vec<Defect>, Failure> {
    let list = defects::of(kernel, include_str!("defects.txt"));
    list.map_err(|error| Failure::Check { what: "the list of known defects".into(), status: error })
}

fn unwritable(path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.to_path_buf();
    move |error| Failure::Missing {
        what: format!("cannot write in {}: {error}", path.display()),
        remedy: "make room there, and let this user write".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::console::Verdict;
    use super::super::runs::RUNS;
    use super::*;

    #[test]
    fn when_a_run_breaks_the_stage_the_others_get_a_new_one() {
        let start = |left: &[&'static Run]| {
            let mut command = mortal("sh");
            let script =
                "echo \"@rig begin $0\"; echo 'RESULT a ok'; [ \"$0\" = perftest ] || echo \"@rig end $0 0\"";
            command.args(["-c", script, left[0].name]);
            Stage::host(command)
        };
        let outcomes = all(&[&RUNS[0], &RUNS[3]], &[], start).unwrap();
        let names: Vec<_> = outcomes.iter().map(|outcome| outcome.run.name).collect();
        assert_eq!(names, [RUNS[0].name, RUNS[3].name]);
        assert!(outcomes[0].end.is_err() && outcomes[1].end.is_ok());
        assert_eq!(outcomes[1].checks[0].verdict, Verdict::Ok);
    }

    #[test]
    fn a_run_that_fails_while_a_guests_card_is_stopped_is_repeated_a_few_times() {
        let console = std::env::temp_dir().join(format!("softroce-stall-{}", std::process::id()));
        fs::write(&console, "eth0: NETDEV WATCHDOG: transmit queue 0 timed out").unwrap();
        let verdicts = |failures: usize| {
            let stages = std::cell::Cell::new(0);
            let start = |left: &[&'static Run]| {
                stages.set(stages.get() + 1);
                let code = i32::from(stages.get() <= failures);
                let mut command = mortal("sh");
                let script = format!(
                    "echo \"@rig begin $0\"; echo 'RESULT a ok'; echo \"@rig end $0 {code}\"; echo @rig done"
                );
                command.args(["-c", &script, left[0].name]);
                let mut stage = Stage::host(command)?;
                stage.asides.push(console.clone());
                Ok(stage)
            };
            let outcomes = all(&[&RUNS[0]], &[], start).unwrap();
            (stages.get(), outcomes.len(), outcomes[0].end.clone())
        };
        assert_eq!(verdicts(1), (2, 1, Ok(0)));
        assert_eq!(verdicts(9), (1 + STALLS_MAX, 1, Ok(1)));
        fs::remove_file(&console).unwrap();
    }

    #[test]
    fn a_stage_on_which_nothing_begins_is_not_tried_again() {
        let start = |_: &[&'static Run]| {
            let mut command = mortal("sh");
            command.args(["-c", "echo '@rig broken no device'; sleep 9"]);
            Stage::host(command)
        };
        let failure = all(&[&RUNS[0]], &[], start).unwrap_err();
        assert!(failure.to_string().contains("no device"), "{failure}");
    }
}
