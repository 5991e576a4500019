//! The arguments of a benchmark that reads its own.

/// The arguments of this process, but for `--bench`, which cargo adds. `--help` prints the usage and ends the process.
pub(crate) fn given(usage: &str) -> Vec<String> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.iter().any(|argument| ["--help", "-h"].contains(&argument.as_str())) {
        println!("{usage}");
        std::process::exit(0);
    }
    arguments
}

/// Ends the process, since its arguments are none that it takes.
pub(crate) fn misused(usage: &str) -> ! {
    eprintln!("{usage}");
    std::process::exit(2);
}
