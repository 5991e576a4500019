//! Declares nothing but what changes the build; links nothing, needs nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
