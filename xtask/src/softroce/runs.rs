//! The table of what is run on RDMA devices.

use std::time::Duration;

use crate::steps::TESTED;

/// The number of guests that a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guests {
    /// One, with two devices, which do not reach each other; programs in it reach each other through one of them.
    One,
    /// Two with a network between them. Programs are started in the first; they start others in the second by
    /// `$SLACKLINE_RIG_RUN PROGRAM ARGUMENT...`.
    Two,
}

/// The work that is done in the (first) guest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// The script `guest/runs/<name of the run>.sh`. It says `RESULT <name> ok`, `RESULT <name> FAILED <reason>` or
    /// `RESULT <name> SKIPPED <reason>` of each of its checks, and `PERFTEST <name>` before each program of perftest.
    Script,
    /// Tests, one at a time; clippy looks at them, too.
    Tests {
        /// The test target, of whichever package has it.
        target: &'static str,
        /// In the release profile, for what takes long in the test profile.
        release: bool,
        /// Parts of the names of the tests to run. Each must match one test.
        filters: &'static [&'static str],
    },
    /// Unit tests of the library, one at a time: those that take the device of the rig where there is one, and a
    /// scripted one elsewhere.
    UnitTests {
        /// Parts of the names of the tests to run. Each must match one test.
        filters: &'static [&'static str],
    },
    /// perftest and `slackline bench` by turns (`xtask turns`).
    Turns,
}

/// One entry of the table.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) guests: Guests,
    /// Number of RDMA devices that it takes in the (first) guest.
    pub(super) devices: usize,
    /// Whether it takes interfaces of the (first) guest down and up.
    pub(super) parts_links: bool,
    pub(super) job: Job,
    /// Then it is ended, which is a failure.
    pub(super) timeout: Duration,
}

/// Every run. Those with as many guests share one boot, in this order; before each the devices are made again.
///
/// Programs find in their environment: `SLACKLINE_RIG_DEVICE`, the RDMA device; `SLACKLINE_RIG_ADDRESS`, the address of
/// its interface `SLACKLINE_RIG_NETDEV`; `SLACKLINE_RIG_SCRIPTS`, the folder `guest`; with one guest
/// `SLACKLINE_RIG_DEVICE_2`, another device that is as good, on a network of its own (with `--host`: if there is one);
/// and with two `SLACKLINE_RIG_PEER`, the address of the other, and `SLACKLINE_RIG_RUN`, which runs a program there
/// (`src/bin/elsewhere.rs`). They may do to the guest what they like, as `sh $SLACKLINE_RIG_SCRIPTS/netem.sh loss 2%`
/// does, or `ip link set $SLACKLINE_RIG_NETDEV down`: the next run finds it repaired.
///
/// With two guests, tests are run in the first one, and start what belongs in the other by
/// `Command::new(env("SLACKLINE_RIG_RUN")).arg(program)`: arguments, environment and streams pass through, and it ends
/// with its client. It goes over the same network: a test that cuts that network waits for no answer meanwhile. If it
/// cut the other guest's side, it repairs that side in the end, since then no other run reaches it.
pub(super) const RUNS: &[Run] = &[
    Run {
        name: "perftest",
        about: "the device works: bandwidth and latency by perftest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Script,
        timeout: Duration::from_secs(300),
    },
    Run {
        name: "verbs",
        about: "the transport contract, the torn-read litmus and what can go wrong, by RDMA in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests {
            target: "verbs",
            release: false,
            filters: &["verbs::", "verbs_proved::", "rdma", "the_servers_of"],
        },
        timeout: Duration::from_secs(600),
    },
    Run {
        name: "links",
        about: "what a device tells of a link that goes down and comes up, in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: true,
        job: Job::Tests { target: "verbs", release: false, filters: &["links::"] },
        timeout: Duration::from_secs(200),
    },
    Run {
        name: "rails",
        about: "the same over two devices side by side, and what striping can get wrong, in one guest",
        guests: Guests::One,
        devices: 2,
        parts_links: true,
        job: Job::Tests {
            target: "rails",
            release: false,
            filters: &["contract::", "rdma::", "over_two_rails"],
        },
        timeout: Duration::from_secs(600),
    },
    Run {
        name: "weights",
        about: "publishers, readers, relays and trees of them by RDMA in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "weights_rdma", release: false, filters: &["verbs::"] },
        timeout: Duration::from_secs(300),
    },
    Run {
        name: "tree",
        about: "readers behind relays by RDMA in one guest, while one after the other is killed or stopped",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "tree_rdma", release: false, filters: &["by_rdma"] },
        timeout: Duration::from_secs(200),
    },
    Run {
        name: "jobs",
        about: "the main job by RDMA in one guest, and what of it is killed",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "train_rdma", release: true, filters: &["near::"] },
        timeout: Duration::from_secs(400),
    },
    Run {
        name: "job",
        about: "a program of a user, through the job layer, and a scheme of a user, by RDMA in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests {
            target: "job_rdma",
            release: false,
            filters: &["a_program_of_a_user", "a_scheme_of_a_user"],
        },
        timeout: Duration::from_secs(200),
    },
    Run {
        name: "job-c",
        about: "C programs through the job layer, also with a server in Rust, by RDMA in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "c_job_rdma", release: false, filters: &["by_rdma"] },
        timeout: Duration::from_secs(300),
    },
    Run {
        name: "gpu",
        about: "payloads of a GPU, which a scripted driver stands for, by RDMA in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::UnitTests {
            filters: &[
                "reader::gpu::scripted::tests::verbs::",
                "folder_gpu::scripted::tests::verbs::",
                "workers_with_gpus_train_by_rdma",
                "the_device_of_the_rig",
                "in_a_guest_the_probe_says",
            ],
        },
        timeout: Duration::from_secs(400),
    },
    Run {
        name: "doctor",
        about: "`slackline doctor` says what works and what is wrong, in one guest",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests {
            target: "doctor_rdma",
            release: true,
            filters: &["a_device", "a_port", "a_limit", "a_user"],
        },
        timeout: Duration::from_secs(300),
    },
    Run {
        name: "measure",
        about: "slackline bench over RDMA: what arrives is what was sent",
        guests: Guests::One,
        devices: 1,
        parts_links: false,
        job: Job::Tests {
            target: "bench_rdma",
            release: true,
            filters: &["at_a_process", "queues_packets", "a_device"],
        },
        timeout: Duration::from_secs(300),
    },
    Run {
        name: "measure-rails",
        about: "slackline bench over two devices side by side, in one guest",
        guests: Guests::One,
        devices: 2,
        parts_links: false,
        job: Job::Tests { target: "bench_rdma", release: true, filters: &["over_two_devices"] },
        timeout: Duration::from_secs(120),
    },
    Run {
        name: "peer",
        about: "the other guest: programs run there, and a link that is down parts the two",
        guests: Guests::Two,
        devices: 1,
        parts_links: false,
        job: Job::Script,
        timeout: Duration::from_secs(120),
    },
    Run {
        name: "verbs-apart",
        about: "the contract and the litmus by RDMA between two guests",
        guests: Guests::Two,
        devices: 1,
        parts_links: false,
        job: Job::Tests {
            target: "verbs",
            release: false,
            filters: &[
                "verbs_apart::",
                "the_servers_of",
                "across_processes",
                "from_two_processes",
                "a_killed_process",
                "pulls_by",
                "pushed_by",
            ],
        },
        timeout: Duration::from_secs(600),
    },
    Run {
        name: WIRE,
        about: "the READs at once and the traffic class of what is on the wire between two guests",
        guests: Guests::Two,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "verbs", release: false, filters: &["wire::"] },
        timeout: Duration::from_secs(200),
    },
    Run {
        name: "measure-apart",
        about: "slackline bench over RDMA between two guests: what arrives is what was sent",
        guests: Guests::Two,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "bench_rdma", release: true, filters: &["apart::"] },
        timeout: Duration::from_secs(900),
    },
    Run {
        name: "loss",
        about: "with 2 % loss by netem perftest ends, and the device has sent again",
        guests: Guests::Two,
        devices: 1,
        parts_links: false,
        job: Job::Script,
        timeout: Duration::from_secs(300),
    },
    Run {
        name: "jobs-apart",
        about: "the main job by RDMA between two guests: lost packets, cut networks, kill -9; without a device",
        guests: Guests::Two,
        devices: 1,
        parts_links: false,
        job: Job::Tests { target: "train_rdma", release: true, filters: &["apart::", "bare::", "cut::"] },
        timeout: Duration::from_secs(400),
    },
];

/// The run between two guests that `cargo xtask test` does not leave out.
pub(super) const WIRE: &str = "wire";

/// The run of `--bench`, which is the only one then.
pub(super) const BENCH: Run = Run {
    name: "bench",
    about: "how close slackline comes to perftest",
    guests: Guests::One,
    devices: 1,
    parts_links: false,
    job: Job::Turns,
    timeout: Duration::from_secs(900),
};

impl Guests {
    pub(super) fn count(self) -> usize {
        match self {
            Guests::One => 1,
            Guests::Two => 2,
        }
    }
}

/// Arguments of cargo that name a test target: of all packages, so that what other steps have built is used again.
pub(super) fn selection(target: &'static str, release: bool) -> Vec<&'static str> {
    let profile: &[_] = if release { &["--release"] } else { &[] };
    [profile, &TESTED, &["--test", target]].concat()
}

/// The test targets that runs name, each once.
pub(super) fn targets() -> Vec<&'static str> {
    let mut targets = Vec::new();
    for run in RUNS {
        match run.job {
            Job::Tests { target, .. } if !targets.contains(&target) => targets.push(target),
            Job::Tests { .. } | Job::UnitTests { .. } | Job::Script | Job::Turns => {}
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_there_and_no_two_runs_share_a_name() {
        let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/softroce/guest/runs");
        for (index, run) in RUNS.iter().enumerate() {
            assert!(RUNS[..index].iter().all(|other| other.name != run.name), "{}", run.name);
            // It stands in shell scripts and file names as it is.
            assert!(run.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{}", run.name);
            if let Job::Script = run.job {
                assert!(scripts.join(format!("{}.sh", run.name)).is_file(), "{}", run.name);
            }
        }
    }

    /// Asserts that plain `cargo test` leaves such tests out. Where there is no device they fail, which is right: a
    /// missing device must not look like a pass.
    #[test]
    fn plain_cargo_test_leaves_out_what_needs_a_device() {
        let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
        let output = std::process::Command::new(env!("CARGO")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();

        for target in targets() {
            let known = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
            let known: Vec<_> =
                known.filter(|known| known["name"] == target && known["kind"][0] == "test").collect();
            assert_eq!(known.len(), 1, "one package has {target}");
            assert_eq!(known[0]["test"], false, "{target} lacks `test = false` in its Cargo.toml");
        }
    }
}
