//! The rule on the names of types: in the library, one name stands for one type that is seen outside of its file.
//!
//! The backends of `transport` are parallel: each may have its own `Initiator`, `Hello` and so on, as the wire-up has
//! them. The models of loom stand in for the types whose names they have.

use std::collections::BTreeMap;

/// The folders that may share names with each other: each has its own version of the same thing.
const PARALLEL: &[&str] =
    &["src/transport/shm/", "src/transport/tcp/", "src/transport/verbs/", "src/transport/wireup/"];

/// The folder of the models that stand in for types of the library.
const MODELS: &str = "src/mem/loom/";

/// The names that several types have, each as `name: files`.
pub(super) fn shared(files: &[(String, String)]) -> Vec<String> {
    let mut seen: BTreeMap<String, Vec<(&str, &str)>> = BTreeMap::new();
    let ships =
        |file: &str| file.starts_with("src/") && !file.starts_with(MODELS) && !file.contains("/tests");
    for (file, text) in files.iter().filter(|(file, _)| ships(file)) {
        let parallel = PARALLEL.iter().find(|folder| file.starts_with(*folder));
        for name in visible(text) {
            seen.entry(name).or_default().push((file, parallel.copied().unwrap_or("")));
        }
    }
    let is_shared = |at: &Vec<(&str, &str)>| {
        let alone = at.iter().filter(|(_, folder)| folder.is_empty()).count();
        let parallel: Vec<&str> =
            at.iter().map(|(_, folder)| *folder).filter(|folder| !folder.is_empty()).collect();
        let folders = PARALLEL.iter().filter(|folder| parallel.contains(folder)).count();
        alone + usize::from(folders > 0) > 1 || folders < parallel.len()
    };
    let files = |at: Vec<(&str, &str)>| at.iter().map(|(file, _)| *file).collect::<Vec<_>>().join(", ");
    seen.into_iter()
        .filter(|(_, at)| is_shared(at))
        .map(|(name, at)| format!("{name}: {}", files(at)))
        .collect()
}

/// The types that are visible outside of the file: `pub`, `pub(crate)`, `pub(super)`.
fn visible(text: &str) -> Vec<String> {
    let words = super::shipped(&super::words(text));
    let mut names = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, word)| word.text == "pub") {
        let after =
            if super::starts(&words[at + 1..], &["("]) { super::closing(&words, at + 1) } else { at + 1 };
        let kinds = ["struct", "enum", "union", "trait", "type"];
        if let [kind, name, ..] = &words[after.min(words.len())..]
            && kinds.contains(&kind.text.as_str())
        {
            names.push(name.text.clone());
        }
    }
    names
}

mod the_check {
    use super::*;

    fn shared_of(files: &[(&str, &str)]) -> Vec<String> {
        shared(&files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect::<Vec<_>>())
    }

    #[test]
    fn catches_two_types_of_one_name() {
        let found = shared_of(&[("src/a.rs", "pub struct A;"), ("src/b.rs", "pub(in crate::b) enum A {}")]);
        assert_eq!(found, ["A: src/a.rs, src/b.rs"]);
        let found =
            shared_of(&[("src/a.rs", "pub type A = u8;"), ("src/transport/tcp/b.rs", "pub struct A;")]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn lets_pass_private_types_tests_and_parallel_backends() {
        let files = [
            ("src/a.rs", "struct A; pub fn f() {}"),
            ("src/b.rs", "pub struct A;"),
            ("src/c.rs", "#[cfg(test)] mod tests { pub struct A; }"),
            ("src/transport/tcp/d.rs", "pub(super) struct D;"),
            ("src/transport/shm/d.rs", "pub(super) struct D;"),
            ("src/mem/loom/b.rs", "pub struct A;"),
        ];
        assert_eq!(shared_of(&files), [""; 0]);
    }
}
