//! The main job over RDMA: in one guest, between two, and without a device.
//!
//! Needs what `cargo xtask softroce` makes: it builds and runs these tests, and without it every one fails.

mod common;
#[path = "../../tests/rdma/objects.rs"]
mod objects;
#[path = "fleet/running.rs"]
mod running;

mod jobs {
    mod apart;
    mod bare;
    mod cut;
    mod near;
    mod rig;
}
