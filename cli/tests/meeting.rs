//! Where rank 0 of `slackline train` lets itself be met.

use std::fs;
use std::process::Command;

/// The name of a host whose own file of hosts leads to loopback, as Debian writes it.
const RENDEZVOUS: &str = "plain:21377";

/// In namespaces of its own the process has such a host.
const HOST: &str = r#"mount --bind "$0" /etc/hosts; hostname plain; exec "$@""#;

#[test]
fn rank_0_refuses_a_name_that_leads_to_its_own_host_alone() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "127.0.0.1 localhost\n127.0.1.1 plain\n").unwrap();
    let mut within = Command::new("unshare");
    within.args(["--user", "--map-root-user", "--mount", "--uts", "sh", "-ec", HOST]).arg(&hosts);
    within.arg(env!("CARGO_BIN_EXE_slackline"));
    within.args(["train", "--rank", "0", "--world-size", "3", "--timeout", "1", "--rendezvous", RENDEZVOUS]);
    let output = within.output().expect("`unshare` of util-linux");
    let said = String::from_utf8(output.stderr).unwrap();
    if said.contains("Operation not permitted") || said.contains("ermission denied") {
        println!("skipped: no namespaces here: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in [RENDEZVOUS, "\nhelp: ", "/etc/hosts", "--rendezvous IP:PORT"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
