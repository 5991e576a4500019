//! Servers that are written to the disk and taken up again, and workers that come back: over shared memory, in one
//! process. What dies in a process of its own is in `tests/failure/restarts.rs`.

mod checkpoint {
    #[path = "../failure/at_once.rs"]
    mod at_once;
    mod finite;
    mod job;
    mod learned;
    mod names;
    mod once;
    mod owners;
    mod reconnect;
    mod resume;
    mod shards;
}
