//! Declares nothing but what changes the build; links nothing, needs nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SLACKLINE_MUTANT");
    // A deliberately broken protocol, for the models that must notice: never outside of the model checker. Set here,
    // and not in RUSTFLAGS, because those would build every dependency anew for each mutant.
    if std::env::var_os("CARGO_CFG_LOOM").is_some()
        && let Ok(mutant) = std::env::var("SLACKLINE_MUTANT")
        && !mutant.is_empty()
    {
        println!("cargo::rustc-cfg=slackline_mutant=\"{mutant}\"");
    }
}
