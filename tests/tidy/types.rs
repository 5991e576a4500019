//! The rule on the names of types: in each crate, one name stands for one type.
//!
//! The backends of `transport` are parallel: each may have its own `Initiator`, `Hello` and so on, as the wire-up has
//! them. The models of loom stand in for the types whose names they have.

use std::collections::BTreeMap;

/// The folders that may share names with each other: each has its own version of the same thing.
const PARALLEL: &[&str] =
    &["src/transport/shm/", "src/transport/tcp/", "src/transport/verbs/", "src/transport/wireup/"];

/// The sources of the crates.
const CRATES: &[&str] = &["src/", "cli/src/", "ffi/src/", "lab/src/", "xtask/src/"];

/// The folder of the models that stand in for types of the library.
const MODELS: &str = "src/mem/loom/";

/// The names that several types of one crate have, each as `name: files`.
pub(super) fn shared(files: &[(String, String)]) -> Vec<String> {
    let mut seen: BTreeMap<(&str, String), Vec<(&str, &str)>> = BTreeMap::new();
    let is_test = |file: &str| file.starts_with(MODELS) || file.contains("/tests");
    for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
        let Some(folder) = CRATES.iter().find(|folder| file.starts_with(*folder)) else { continue };
        let parallel = PARALLEL.iter().find(|folder| file.starts_with(*folder));
        for name in defined(text) {
            seen.entry((folder, name)).or_default().push((file, parallel.copied().unwrap_or("")));
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
        .map(|((_, name), at)| format!("{name}: {}", files(at)))
        .collect()
}

/// The types that the file defines. A `type` without `pub` may be one that a trait asks for, and is left out.
fn defined(text: &str) -> Vec<String> {
    let words = super::shipped(&super::words(text));
    let kinds = ["struct", "enum", "union", "trait"];
    let alias =
        |at: usize| words[at].text == "type" && at > 0 && ["pub", ")"].contains(&words[at - 1].text.as_str());
    let is_kind = |at: usize| kinds.contains(&words[at].text.as_str()) || alias(at);
    let names =
        (0..words.len().saturating_sub(1)).filter(|at| is_kind(*at)).map(|at| words[at + 1].text.clone());
    names.filter(|name| name.starts_with(|letter: char| letter.is_ascii_uppercase())).collect()
}

mod the_check {
    use super::*;

    fn shared_of(files: &[(&str, &str)]) -> Vec<String> {
        shared(&files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect::<Vec<_>>())
    }

    #[test]
    fn catches_two_types_of_one_name() {
        let found = shared_of(&[("src/a.rs", "pub struct A;"), ("src/b.rs", "enum A {}")]);
        assert_eq!(found, ["A: src/a.rs, src/b.rs"]);
        let found =
            shared_of(&[("src/a.rs", "pub type A = u8;"), ("src/transport/tcp/b.rs", "pub struct A;")]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn lets_pass_types_of_traits_tests_and_parallel_backends() {
        let files = [
            ("src/a.rs", "impl T for B { type A = u8; }"),
            ("src/b.rs", "struct A;"),
            ("src/c.rs", "#[cfg(test)] mod tests { pub struct A; }"),
            ("src/transport/tcp/d.rs", "pub(super) struct D;"),
            ("src/transport/shm/d.rs", "pub(super) struct D;"),
            ("src/mem/loom/b.rs", "pub struct A;"),
            ("lab/src/b.rs", "pub struct A;"),
        ];
        assert_eq!(shared_of(&files), [""; 0]);
    }
}
