//! A publisher, relays and readers by RDMA, each a process, while every second one is killed or stopped, on a host that
//! has a device: `cargo xtask softroce tree`.

#[expect(dead_code, reason = "used by other tests")]
#[path = "network/namespaces.rs"]
mod namespaces;
mod tree {
    pub(super) mod faults;
    pub(super) mod judging;
    pub(super) mod node;
    pub(super) mod process;
    pub(super) mod run;
    #[expect(dead_code, reason = "used by other tests")]
    pub(super) mod wire;
}

use tree::process::is_told;
use tree::run::{run, size};
use tree::wire::Wire;

#[test]
fn readers_by_rdma_read_whole_versions_though_anybody_dies() {
    is_told();
    let test = "readers_by_rdma_read_whole_versions_though_anybody_dies";
    run(test, size("6,20"), Wire::Here(|| "verbs:127.0.0.1:0".parse().unwrap()));
}
