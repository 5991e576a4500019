//! Build chores that need only cargo.
fn main() {}
