//! Names the shared library as it is installed: programs that are linked with it ask the loader for this name.

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libslackline.so.{version}");
    println!("cargo::rerun-if-changed=build.rs");
}
