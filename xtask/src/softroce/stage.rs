//! The stage of the runs: guests that are booted for them, or this host.

use super::kernel::Kernel;
use super::runs::Guests;
use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};

/// Of each guest; used as it is touched.
const MEBIBYTES: &str = "2500";
/// Of each guest, also where this host has fewer. With a single one QEMU before 8.1 leaves out the memory barriers of
/// the guest's drivers (repaired there by "tcg: Do not elide memory barriers for !CF_PARALLEL in system mode",
/// c914d46d0a64), and its network cards stop now and then: a notice is lost between driver and card.
const PROCESSORS: &str = "2";
/// For 4096 bytes of payload and what rxe puts around them.
const MTU: u32 = 4200;

/// Something heard from a guest or process on the stage; they are counted from 0. Only the first one executes runs.
#[derive(Debug)]
pub(super) enum Said {
    Line(usize, String),
    /// It has ended.
    Gone(usize),
}

/// The guests, or the process on this host, that execute runs. They end when this is dropped, or this process
/// ends.
#[derive(Debug)]
pub(super) struct Stage {
    actors: Vec<Child>,
    pub(super) said: Receiver<Said>,
    tell: Sender<Said>,
    /// Files with the rest of their output: kernel messages and QEMU's errors.
    pub(super) asides: Vec<PathBuf>,
}

impl Stage {
    fn empty() -> Stage {
        let (tell, said) = mpsc::channel();
        Stage { actors: Vec::new(), said, tell, asides: Vec::new() }
    }

    /// Boots guests, with what they keep of it in `folder`.
    pub(super) fn boot(
        kernel: &Kernel,
        initramfs: &Path,
        folder: &Path,
        guests: Guests,
        kvm: bool,
    ) -> Result<Stage, Failure> {
        let mut stage = Stage::empty();
        let cables = match guests {
            Guests::One => vec![None],
            Guests::Two => {
                let (first, second) = UnixStream::pair().map_err(failed("a socket pair"))?;
                vec![Some(first), Some(second)]
            }
        };
        for (index, cable) in cables.into_iter().enumerate() {
            let number = index + 1;
            let log = |name: &str| folder.join(format!("{name}-{number}.log"));
            let (console, stderr) = (log("kernel"), log("qemu"));
            let mut qemu = qemu(kernel, initramfs, &console, guests, number, kvm);
            // It knows the cable by its number: 0.
            qemu.stdin(cable.map_or_else(Stdio::null, |cable| Stdio::from(OwnedFd::from(cable))));
            qemu.stderr(File::create(&stderr).map_err(failed("a log"))?);
            stage.asides.extend([console, stderr]);
            stage.start(qemu).map_err(failed("QEMU"))?;
        }
        Ok(stage)
    }

    /// Runs on this host.
    pub(super) fn host(mut command: Command) -> Result<Stage, Failure> {
        let mut stage = Stage::empty();
        command.stdin(Stdio::null());
        stage.start(command).map_err(failed("the runs"))?;
        Ok(stage)
    }

    fn start(&mut self, mut command: Command) -> io::Result<()> {
        let mut actor = command.stdout(Stdio::piped()).spawn()?;
        let (index, tell, stdout) = (self.actors.len(), self.tell.clone(), actor.stdout.take());
        self.actors.push(actor);
        std::thread::spawn(move || {
            for line in stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).split(b'\n')) {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
                // No thread listens any more once the stage goes.
                if tell.send(Said::Line(index, line)).is_err() {
                    return;
                }
            }
            let _nobody_listens = tell.send(Said::Gone(index));
        });
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for actor in &mut self.actors {
            let _ended_already = actor.kill();
            let _reaped_already = actor.wait();
        }
    }
}

/// A command that is ended with the thread that starts it, whatever ends that.
pub(super) fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

fn qemu(
    kernel: &Kernel,
    initramfs: &Path,
    console: &Path,
    guests: Guests,
    number: usize,
    kvm: bool,
) -> Command {
    let mut qemu = mortal("qemu-system-x86_64");
    let accelerator = if kvm { "kvm" } else { "tcg,thread=multi" };
    let append = format!(
        "console=ttyS0 quiet panic=-1 rig_guest={number} mitigations=off cryptomgr.notests nowatchdog \
         tsc=reliable no_timer_check rcupdate.rcu_expedited=1 random.trust_cpu=on"
    );
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", accelerator]);
    // Emulated, a processor with these copies bytes one by one where the kernel copies: words that a device in software
    // writes would tear.
    qemu.args(["-cpu", "max,erms=off,fsrm=off", "-smp", PROCESSORS, "-m", MEBIBYTES, "-append", &append]);
    qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initramfs);
    qemu.args(["-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"]);
    // Commas in a value are doubled.
    let console = console.to_string_lossy().replace(',', ",,");
    qemu.args(["-chardev", &format!("file,id=kernel,path={console}"), "-serial", "chardev:kernel"]);
    qemu.args(["-chardev", "file,id=rig,path=/dev/stdout", "-serial", "chardev:rig"]);
    if guests == Guests::Two {
        let card =
            format!("virtio-net-pci,netdev=cable,host_mtu={MTU},romfile=,mac=52:54:00:00:00:0{number}");
        qemu.args(["-netdev", "socket,id=cable,fd=0", "-device", &card]);
    }
    qemu
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Missing {
        what: format!("cannot make {what}: {error}"),
        remedy: "free what is short, or install what is missing".into(),
    }
}
