//! The rule on clocks: nodes take the time from who drives them, or from their runtime, so that they run alike in a
//! process and in a simulator.

use super::words::words;
use super::{paths, starts};

/// The folders whose code runs in a simulator, too.
const TIMELESS: &[&str] = &["src/node/", "src/param/"];

/// The files that read the clock of the process: where it is read for all others, threads of their own, which no
/// simulator has, waits for a lock of the disk, and random words where the system has no random source.
const CLOCK_FILES: &[&str] = &[
    "src/node/wait.rs",
    "src/node/runtime.rs",
    "src/node/heartbeat.rs",
    "src/node/checkpoint/owner.rs",
    "src/node/checkpoint/writer.rs",
    "src/node/publisher/background.rs",
    "src/node/relay/announcer.rs",
    "src/node/shard.rs",
    "src/node/shard/joining.rs",
];

/// The calls of `now()` of the process that stand elsewhere, each as `file:line: complaint`.
pub(super) fn of_the_process(file: &str, text: &str) -> Vec<String> {
    let is_timeless = TIMELESS.iter().any(|folder| file.starts_with(folder));
    if !is_timeless || CLOCK_FILES.contains(&file) {
        return Vec::new();
    }
    let words = paths::shipped(&words(text));
    let calls = (1..words.len()).filter(|at| {
        let before = words[at - 1].text.as_str();
        starts(&words[*at..], &["now", "(", ")"]) && !matches!(before, "." | "fn")
    });
    calls
        .map(|at| {
            let line = words[at].line;
            format!(
                "{file}:{line}: reads the clock of the process; take `now` from the caller or the runtime"
            )
        })
        .collect()
}

mod the_check {
    use super::*;

    #[test]
    fn catches_each_way_to_read_the_clock_of_the_process() {
        for text in [
            "fn f() { let at = now(); }",
            "fn f() { let at = crate::node::now(); }",
            "fn f() { let at = std::time::Instant::now(); }",
        ] {
            assert_eq!(of_the_process("src/node/group/watch.rs", text).len(), 1, "{text}");
            assert_eq!(of_the_process("src/param/pull.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn lets_pass_the_time_that_is_given_and_tests() {
        let text = "fn f(now: Instant, runtime: &Runtime) { g(now); runtime.now(); }
            #[cfg(test)] mod tests { fn f() { now(); } }";
        assert_eq!(of_the_process("src/node/group/watch.rs", text), [""; 0]);
        assert_eq!(of_the_process("src/node/wait.rs", "fn f() { now(); }"), [""; 0]);
    }
}
