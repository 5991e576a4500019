//! The environment of this process, and the one thing that a launcher tells in no variable.

use std::fs;

/// Most ancestors that are looked at.
const ANCESTORS_MAX: usize = 32;

/// Reads the environment of this process, for [`placement`](super::placement).
///
/// Hydra sets no variable that tells two jobs on one host apart. Its proxy, an ancestor of every rank, was however
/// told where its `mpiexec` listens: that is answered as `HYDRA_CONTROL_PORT`.
pub fn environment() -> impl Fn(&str) -> Option<String> {
    |name| match name {
        "HYDRA_CONTROL_PORT" if std::env::var_os("PMI_RANK").is_some() => hydra_control_port(),
        name => std::env::var(name).ok(),
    }
}

fn hydra_control_port() -> Option<String> {
    let mut process = std::os::unix::process::parent_id();
    for _ in 0..ANCESTORS_MAX {
        let command = fs::read(format!("/proc/{process}/cmdline")).ok()?;
        let mut words = command.split(|byte| *byte == 0);
        if words.next()?.ends_with(b"hydra_pmi_proxy") {
            words.find(|word| *word == b"--control-port")?;
            return String::from_utf8(words.next()?.to_vec()).ok();
        }
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        process = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    }
    None
}
