//! The sources that turn bytes of others into values, and what feeds each of them.

#[cfg(test)]
mod tests {
    use super::super::targets;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// Calls that decode.
    const DECODING: [&str; 4] =
        ["postcard::from_bytes", "postcard::take_from_bytes", "serde_json::from_", "::from_words("];

    /// The sources of packages that other processes, or files, have a say in.
    const SOURCES: [&str; 3] = ["src", "lab/src", "cli/src"];

    /// Files that decode, and the target that feeds each.
    const FED: [(&str, &str); 17] = [
        ("lab/src/model/file.rs", "model"),
        ("lab/src/program.rs", "program"),
        ("src/job/coordinated/orders.rs", "order"),
        ("src/job/coordinator.rs", "job_message"),
        ("src/job/messages.rs", "job_message"),
        ("src/job/rendezvous/wire.rs", "rendezvous"),
        ("src/node/checkpoint/format.rs", "checkpoint"),
        ("src/param/decisions.rs", "param_words"),
        ("src/param/frames.rs", "param_words"),
        ("src/param/handshake.rs", "param_hello"),
        ("src/param/inbox.rs", "param_words"),
        ("src/param/pin.rs", "param_words"),
        ("src/param/pull.rs", "param_words"),
        ("src/param/pull/mapped.rs", "param_words"),
        ("src/param/pull/steps.rs", "param_words"),
        ("src/trace/mod.rs", "trace"),
        ("src/transport/wireup/message.rs", "wireup"),
    ];

    /// Files that decode and have no target, with the reason.
    const NOT_FED: [(&str, &str); 11] = [
        (
            "cli/src/commands/bench/line.rs",
            "the other side knows the secret of the measurement, or is on this host",
        ),
        ("cli/src/commands/bench/listen.rs", "as line.rs"),
        (
            "cli/src/commands/bench/peer.rs",
            "what it says to that is of a process that it started, or as line.rs",
        ),
        ("cli/src/commands/bench/serve.rs", "an argument that this program gives itself"),
        ("cli/src/commands/sim/real.rs", "the output of a program that it started, and a record of its own"),
        ("cli/src/commands/sim/records.rs", "a record of its own"),
        ("lab/src/reproduce/settings.rs", "a table of settings, in a file of the project"),
        ("src/node/checkpoint/writer.rs", "what it has just written"),
        (
            "src/scheme/abs/learned.rs",
            "two numbers of a checkpoint, of which those that cannot be are ignored",
        ),
        ("src/param/delta/pull.rs", "each word becomes a field as it is; param_delta feeds what they frame"),
        (
            "src/param/group.rs",
            "each word becomes a field as it is; param_group_hello feeds the rest of the file",
        ),
    ];

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
    }

    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files(&path, found),
                false => found.push(path),
            }
        }
    }

    /// True if the file decodes outside of its tests and of what feeds decoders.
    fn decodes(path: &Path) -> bool {
        let is_test = |name: &str| ["tests", "tests.rs", "fuzz.rs"].contains(&name);
        if path.extension().is_none_or(|end| end != "rs")
            || path.iter().any(|part| is_test(&part.to_string_lossy()))
        {
            return false;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let begin = ["#[cfg(test)]\nmod tests {", "#[cfg(any(test, fuzzing))]\npub(crate) fn fuzz_"];
        let end = begin.iter().filter_map(|begin| text.find(begin)).min().unwrap_or(text.len());
        DECODING.iter().any(|call| text[..end].contains(call))
    }

    #[test]
    fn every_source_that_decodes_is_fed_or_has_a_reason_not_to_be() {
        let mut all = Vec::new();
        SOURCES.iter().for_each(|folder| files(&root().join(folder), &mut all));
        let named = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let decoding: BTreeSet<String> =
            all.iter().filter(|path| decodes(path)).map(|path| named(path)).collect();
        let known: BTreeSet<String> = FED.iter().chain(&NOT_FED).map(|(file, _)| file.to_string()).collect();
        assert_eq!(decoding, known, "add what decodes to FED with its target, or to NOT_FED with the reason");
        assert_eq!(known.len(), FED.len() + NOT_FED.len(), "a file is in one of the lists");
        let targets = targets(&root());
        for (file, target) in FED {
            assert!(targets.contains(&target.to_string()), "{file}: there is no target {target}");
        }
    }
}
