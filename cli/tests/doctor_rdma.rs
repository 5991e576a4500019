//! `slackline doctor` where there is RDMA: what it says when all is well, and what when something was taken away.
//!
//! Needs root, a software RDMA device (rxe) over a network interface that nothing else needs, and setpriv:
//! `cargo xtask softroce doctor`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Lock that lets one test run at a time: another test may need what one takes away.
static ALONE: Mutex<()> = Mutex::new(());

/// Longest time that a port may take to come up again.
const PATIENCE: Duration = Duration::from_secs(60);

const DEVICES: &str = "/sys/class/infiniband";

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first device in software: it has no hardware behind it.
fn device() -> String {
    let all = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut software: Vec<String> = all
        .filter(|entry| !entry.path().join("device").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    software.sort();
    software.into_iter().next().expect("no software RDMA device: rdma link add rxe0 type rxe netdev ...")
}

fn interface(device: &str) -> String {
    let file = Path::new(DEVICES).join(device).join("ports/1/gid_attrs/ndevs/0");
    fs::read_to_string(file).expect("its interface is told").trim().to_owned()
}

/// The file by which processes use the device.
fn node(device: &str) -> PathBuf {
    let mut all = fs::read_dir("/sys/class/infiniband_verbs").unwrap().flatten();
    let is_its =
        |folder: &Path| fs::read_to_string(folder.join("ibdev")).is_ok_and(|name| name.trim() == device);
    let entry = all.find(|entry| is_its(&entry.path())).expect("ib_uverbs is loaded");
    Path::new("/dev/infiniband").join(entry.file_name())
}

/// Runs the doctor by way of another program.
fn doctor_by(by: &[&str], arguments: &[&str]) -> Output {
    let words = [by, &[env!("CARGO_BIN_EXE_slackline"), "doctor"], arguments].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_remove("RUST_LOG").output().expect("the program starts")
}

fn doctor(arguments: &[&str]) -> Output {
    doctor_by(&[], arguments)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that the doctor ended with code 1, and told the error and its remedy.
fn refused(output: &Output, error: &str, help: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("slackline doctor: ")).collect();
    let [first, second] = lines[..] else { panic!("an error and its remedy: {said}") };
    assert!(first.starts_with("error: RDMA does not work: ") && first.contains(error), "{said}");
    assert!(second.starts_with("help: ") && second.contains(help), "{said}");
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// Brings an interface up again, and its port with it.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        ip(&format!("link set {} up", self.0));
    }
}

/// Gives a file its old rights again.
struct Rights(PathBuf, Permissions);

impl Drop for Rights {
    fn drop(&mut self) {
        fs::set_permissions(&self.0, self.1.clone()).unwrap();
    }
}

#[test]
fn a_device_that_works_is_shown_with_what_was_chosen_and_why() {
    let _alone = alone();
    let device = device();
    let output = doctor(&["--require", "rdma", "--device", &device, "--json"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rdma = &report["rdma"];
    assert_eq!(
        (&rdma["works"], &rdma["device"], &rdma["port"]),
        (&true.into(), &(*device).into(), &1.into())
    );
    assert_eq!(rdma["reason"], "it was asked for");
    let paths = report["paths"].as_array().unwrap();
    let path = paths.iter().find(|path| path["device"] == *device).unwrap();
    assert_eq!(path["path"], "verbs");
    let checks = path["checks"].as_array().unwrap();
    for name in ["host-memory", "connect", "write", "read", "fetch-add", "compare-swap", "visibility"] {
        let check =
            checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{name}: {path}"));
        assert_eq!(check["status"], "ok", "{check}");
        assert!(check["figures"][0]["ns"].as_f64().unwrap() > 0.0, "{check}");
    }
    // Tried with host memory; no device in software takes a dma-buf yet.
    let dma_buf = checks.iter().find(|check| check["check"] == "dma-buf").unwrap();
    assert_eq!(dma_buf["status"], "unavailable", "{dma_buf}");
    let why = dma_buf["error"].as_str().unwrap();
    assert!(why.starts_with("cannot register 2097152 bytes") && why.ends_with("(os error 95)"), "{why}");
    assert!(dma_buf["help"].as_str().unwrap().contains("driver imports dma-bufs"), "{dma_buf}");
    let chosen = &path["chosen"];
    let gid = &chosen["gid"];
    assert_eq!(gid["interface"], interface(&device));
    let index = gid["index"].as_u64().unwrap();
    let table = path["ports"][0]["gids"].as_array().unwrap();
    assert!(table.contains(gid), "the chosen one is of the table: {path}");
    let file = Path::new(DEVICES).join(&device).join(format!("ports/1/gids/{index}"));
    let groups = fs::read_to_string(file).unwrap();
    let address: std::net::Ipv6Addr = groups.trim().parse().unwrap();
    assert_eq!(gid["address"], address.to_canonical().to_string());
    let reason = chosen["gid_reason"].as_str().unwrap();
    assert!(
        reason.contains("RoCE v2") && reason.contains(&format!("{} is up", interface(&device))),
        "{reason}"
    );
    assert!(chosen["path_mtu"].as_u64().unwrap() >= 256 && chosen["atomics"] == "device", "{chosen}");
    let says = chosen["in_order_says"].as_str().unwrap();
    let is_stable = ["driver", "known", "setting", "assumed"].contains(&says);
    assert!(chosen["in_order"].is_boolean() && is_stable, "{chosen}");
    let settings = chosen["settings"].as_array().unwrap();
    let numbers = settings.iter().filter(|setting| setting["value"].is_u64()).count();
    assert!(settings.len() == 9 && numbers == 7, "{chosen}");
    let of_writes = ["order", "relaxed ordering"].map(|name| {
        settings.iter().find(|setting| setting["setting"] == name).map(|setting| &setting["value"])
    });
    assert_eq!(of_writes, [Some(&"auto".into()), Some(&true.into())], "{chosen}");
    assert!(!path["keys"].as_str().unwrap().is_empty(), "{path}");
    assert!(path["device_limits"]["queue_pairs"].as_u64().unwrap() > 0, "{path}");
    let forks = report["limits"].as_array().unwrap().iter().find(|limit| limit["limit"] == "forks");
    assert!(forks.unwrap()["safe_by"].is_string());

    // For people, without a device named.
    let output = doctor(&["--require", "rdma"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(&format!("verbs over {device}  works")), "{said}");
    assert!(said.contains("RDMA works by ") && said.contains(reason), "{said}");
}

#[test]
fn a_port_that_is_down_is_said_to_be_with_the_interface_to_bring_up() {
    let _alone = alone();
    let device = device();
    let interface = interface(&device);
    let routes = fs::read_to_string("/proc/net/route").unwrap();
    let is_default = |line: &str| line.starts_with(&format!("{interface}\t00000000\t"));
    assert!(!routes.lines().any(is_default), "{interface} is this host's way to the world: use another one");
    ip(&format!("link set {interface} down"));
    let down = Down(interface.clone());
    let output = doctor(&["--require", "rdma", "--device", &device]);
    drop(down);
    let error = format!("port 1 of the RDMA device {device} is ");
    refused(&output, &error, &format!("ip link set {interface} up"));

    let deadline = Instant::now() + PATIENCE;
    while !doctor(&["--require", "rdma", "--device", &device]).status.success() {
        assert!(Instant::now() < deadline, "the port does not come up again");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_device_that_does_not_exist_is_answered_with_those_that_do() {
    let _alone = alone();
    let device = device();
    let output = doctor(&["--require", "rdma", "--device", "rxe99"]);
    refused(&output, "this host has no RDMA device `rxe99`", &device);
}

#[test]
fn a_limit_on_locked_memory_that_is_too_low_is_named_with_how_to_raise_it() {
    let _alone = alone();
    let device = device();
    // Root may lock what it likes, unless it has lost that right.
    let without = "ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"$@\"";
    let output = doctor_by(&["sh", "-c", without, "sh"], &["--require", "rdma", "--device", &device]);
    let error = format!("host-memory: cannot register 16777216 bytes with the RDMA device {device}");
    refused(
        &output,
        &error,
        "the limit on locked memory is 64 KiB: raise it (ulimit -l unlimited, systemd: ",
    );
    let said = text(&output.stdout);
    assert!(said.contains("\nlocked-memory") && said.contains("64K bytes"), "{said}");
}

#[test]
fn a_user_who_may_not_use_the_device_is_told_which_right_is_missing() {
    let _alone = alone();
    let device = device();
    let node = node(&device);
    let _rights = Rights(node.clone(), fs::metadata(&node).unwrap().permissions());
    fs::set_permissions(&node, Permissions::from_mode(0o600)).unwrap();
    let by = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let output = doctor_by(&by, &["--require", "rdma", "--device", &device]);
    let error = format!("cannot open the RDMA device {device}: Permission denied");
    refused(&output, &error, "let it read and write /dev/infiniband/uverbs*");
}
