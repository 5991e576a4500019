//! Where rank 0 of `slackline train` lets itself be met.

use std::net::ToSocketAddrs;
use std::process::Command;

#[test]
fn rank_0_refuses_a_name_that_leads_to_its_own_host_alone() {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let meeting_point = format!("{host}:21377");
    let is_own = |found: std::vec::IntoIter<_>| {
        found.map(|at: std::net::SocketAddr| at.ip()).all(|ip| ip.is_loopback())
    };
    if !meeting_point.to_socket_addrs().is_ok_and(is_own) {
        println!("skipped: the name of this host leads to an address of its own network, or to none");
        return;
    }
    let command =
        ["train", "--rank", "0", "--world-size", "3", "--timeout", "1", "--rendezvous", &meeting_point];
    let output = Command::new(env!("CARGO_BIN_EXE_slackline")).args(command).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in [&*meeting_point, "\nhelp: ", "/etc/hosts", "--rendezvous IP:PORT"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
