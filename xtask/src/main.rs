//! Build chores that need only cargo: `cargo xtask <command>`.
//!
//! A command is one file that ends up as one [`Command`] in [`COMMANDS`]. Exit status: 0 done, 1 a check
//! failed or something that it needs is missing, 2 called wrongly.

mod aarch64;
mod adapters;
mod asan;
mod bench;
mod bindgen;
mod book;
mod cmd;
mod deny;
mod failure;
mod fuzz;
mod gpu;
mod harness;
mod install;
mod limit;
mod loom;
mod miri;
mod mutants;
mod needs;
mod passed;
mod ptx;
mod public_api;
mod repeat;
mod run;
mod seeds;
mod site;
mod softroce;
mod steps;
mod table;
mod test;
mod wheel;

use failure::Failure;
use site::Site;
use std::process::ExitCode;

/// One subcommand of `cargo xtask`.
struct Command {
    name: &'static str,
    /// The arguments, as they follow the name in the usage text.
    arguments: &'static str,
    about: &'static str,
    run: fn(&Site, &[String]) -> Result<(), Failure>,
}

/// Every subcommand. To add one: a file with a `pub(crate) const COMMAND: Command`, its `mod`, its name here.
const COMMANDS: &[Command] = &[
    test::COMMAND,
    repeat::COMMAND,
    fuzz::COMMAND,
    seeds::COMMAND,
    miri::COMMAND,
    bench::COMMAND,
    install::COMMAND,
    wheel::COMMAND,
    softroce::COMMAND,
    adapters::COMMAND,
    gpu::COMMAND,
    bindgen::COMMAND,
    ptx::COMMAND,
    public_api::COMMAND,
    book::COMMAND,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<(), Failure> {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(Failure::Usage(format!("which command?\n\n{}", usage())));
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print!("{}", usage());
        return Ok(());
    }
    // Called by the rig, in a guest that has neither the sources nor a compiler.
    if name == "turns" {
        return softroce::turns(rest);
    }
    // Where a pack is run there are no sources either.
    if name == gpu::PACKED {
        return gpu::packed(rest);
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return Err(Failure::Usage(format!("there is no command `{name}`\n\n{}", usage())));
    };
    if rest.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("cargo xtask {} {}\n\n{}", command.name, command.arguments, command.about);
        return Ok(());
    }
    (command.run)(&Site::find()?, rest)
}

fn usage() -> String {
    let mut text = String::from("usage:\n");
    for command in COMMANDS {
        let call = format!("{} {}", command.name, command.arguments);
        text.push_str(&format!("  cargo xtask {call:<38} {}\n", command.about));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_code(arguments: &[&str]) -> u8 {
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        dispatch(&arguments).map_or_else(|failure| failure.exit_code(), |()| 0)
    }

    #[test]
    fn a_wrong_call_exits_with_2_and_a_cry_for_help_with_0() {
        assert_eq!(exit_code(&[]), 2);
        assert_eq!(exit_code(&["tset"]), 2);
        assert_eq!(exit_code(&["test", "--lits"]), 2);
        assert_eq!(exit_code(&["test", "--again", "no-such-step"]), 2);
        assert_eq!(exit_code(&["test", "fmt", "no-such-step"]), 2);
        assert_eq!(exit_code(&["repeat", "--times", "0"]), 2);
        assert_eq!(exit_code(&["repeat", "no-such-step"]), 2);
        assert_eq!(exit_code(&["miri", "surplus"]), 2);
        assert_eq!(exit_code(&["fuzz", "no-such-target"]), 2);
        assert_eq!(exit_code(&["bench", "--fast"]), 2);
        assert_eq!(exit_code(&["bench", "--json"]), 2);
        assert_eq!(exit_code(&["bindgen", "--chek"]), 2);
        assert_eq!(exit_code(&["ptx", "--chek"]), 2);
        assert_eq!(exit_code(&["public-api", "--chek"]), 2);
        assert_eq!(exit_code(&["book", "--chek"]), 2);
        assert_eq!(exit_code(&["wheel", "--chek"]), 2);
        assert_eq!(exit_code(&["gpu", "--chek"]), 2);
        assert_eq!(exit_code(&["gpu-packed", "--check"]), 2);
        assert_eq!(exit_code(&["install"]), 2);
        assert_eq!(exit_code(&["install", "--prefix"]), 2);
        assert_eq!(exit_code(&["softroce", "no-such-run"]), 2);
        assert_eq!(exit_code(&["--help"]), 0);
        assert_eq!(exit_code(&["test", "--help"]), 0);
    }

    #[test]
    fn the_usage_names_every_command() {
        for command in COMMANDS {
            assert!(usage().contains(command.name), "{}", usage());
        }
    }
}
