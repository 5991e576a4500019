//! A publisher, a tree of relays and many readers, each a process, while every second one is killed or stopped, or its
//! host is cut off: over TCP between several hosts (network namespaces), and over shared memory on one.
//!
//! `SLACKLINE_TREE=READERS,SECONDS` makes it larger or longer, `SLACKLINE_TREE_SEED` chooses the faults of an earlier
//! run; the line `MEASURED` and the line of JSON after it have what came of it. It takes `ip`, and root or user name
//! spaces: `cargo xtask test tree`.

#[expect(dead_code, reason = "used by other tests")]
#[path = "network/namespaces.rs"]
mod namespaces;
mod tree {
    pub(super) mod faults;
    pub(super) mod judging;
    pub(super) mod node;
    pub(super) mod process;
    pub(super) mod run;
    pub(super) mod wire;
}

use slackline::Address;

use tree::process::is_told;
use tree::run::{run, size};
use tree::wire::Wire;

#[test]
fn readers_between_hosts_read_whole_versions_though_anybody_dies() {
    is_told();
    let size = size("24,30");
    let wire = Wire::between_hosts(size.0);
    run("readers_between_hosts_read_whole_versions_though_anybody_dies", size, wire);
}

#[test]
fn readers_in_shared_memory_read_whole_versions_though_anybody_dies() {
    is_told();
    let test = "readers_in_shared_memory_read_whole_versions_though_anybody_dies";
    run(test, size("12,20"), Wire::Here(Address::random));
}
