//! The slackline command line. All of it is in the library of this package, which compiles while the library that it
//! uses is still being optimised; a program would wait for that.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    slackline_cli::run()
}
