//! The weights plane over RDMA, on a host that has a device: `cargo xtask softroce weights`.

#[macro_use]
mod weights {
    #[macro_use]
    pub(super) mod claims;

    pub(super) mod admission;
    #[path = "../failure/at_once.rs"]
    mod at_once;
    #[expect(dead_code, reason = "used by other tests")]
    pub(super) mod counting;
    pub(super) mod deltas;
    pub(super) mod monotone;
    pub(super) mod plane;
    pub(super) mod relay;
    pub(super) mod silence;
    pub(super) mod tables;
    pub(super) mod tree;
}

use slackline::{Secret, Verbs, VerbsOptions};

fn verbs() -> Verbs {
    let secret = Secret::from_text("all processes know this", "this test").unwrap();
    let options = VerbsOptions { secret: Some(secret), ..VerbsOptions::default() };
    Verbs::open(options).unwrap_or_else(|error| panic!("these tests need RDMA: {error}"))
}

weights!(verbs, super::verbs(), "verbs:127.0.0.1:0".parse().unwrap());
