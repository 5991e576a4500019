//! Names the shared library as it is installed: programs that are linked with it ask the loader for this name.

fn main() {
    let number = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (number("MAJOR"), number("MINOR"));
    // While the major version is 0, another minor version may be another ABI.
    let abi = if major == "0" { format!("{major}.{minor}") } else { major };
    let soname = format!("libslackline.so.{abi}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // For the tests, whose programs ask for it.
    println!("cargo::rustc-env=SLACKLINE_SONAME={soname}");
    println!("cargo::rerun-if-changed=build.rs");
}
