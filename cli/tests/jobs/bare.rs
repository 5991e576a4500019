//! In a guest whose device is taken away, which takes one of the kernel's own making.

use std::process::Command;

use super::rig::{Guest, environment, until};
use crate::common::Run;

/// No device until this is dropped.
struct Bare {
    device: String,
    netdev: String,
}

impl Bare {
    fn new() -> Bare {
        let bare =
            Bare { device: environment("SLACKLINE_RIG_DEVICE"), netdev: environment("SLACKLINE_RIG_NETDEV") };
        Guest::Here.run("rdma", &["link", "delete", &bare.device]);
        bare
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let Bare { device, netdev } = self;
        // The next test finds out if that failed.
        let _made =
            Command::new("rdma").args(["link", "add", device, "type", "rxe", "netdev", netdev]).status();
    }
}

#[test]
fn without_a_device_rdma_is_an_error_with_a_remedy_and_auto_takes_shm() {
    let bare = Bare::new();
    let (code, json, said) = Run::of(&["train", "--transport", "verbs", "--json", "-"]).end();
    assert_eq!((code, json.as_str()), (Some(1), ""), "{said}");
    assert!(said.contains("error: this host has no RDMA device"), "{said}");
    assert!(said.contains("help: load the driver of its adapter, or make a software one"), "{said}");
    let quick = ["train", "--transport", "auto", "--model", "softmax", "--epochs", "2", "--json", "-"];
    let (code, json, said) = Run::of(&quick).end();
    assert_eq!(code, Some(0), "{said}");
    assert!(json.contains(r#""transport":"shm""#), "{json}");
    let state = format!("/sys/class/infiniband/{}/ports/1/state", bare.device);
    drop(bare);
    until("the device is there again", || {
        std::fs::read_to_string(&state).is_ok_and(|state| state.contains("ACTIVE"))
    });
}
