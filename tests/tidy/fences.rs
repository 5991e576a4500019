//! The rule on fences: those of the language order memory for the processors of one host, and memory that a peer or a
//! device may use is ordered by `mem::fence`.

use super::paths::{closing, starts};
use super::words::words;

/// The folder that makes them.
const FENCES: &str = "src/mem/";

/// The fences of the language that the library names elsewhere, each as `file:line: complaint`.
pub(super) fn of_the_language(file: &str, text: &str) -> Vec<String> {
    if !file.starts_with("src/") || file.starts_with(FENCES) {
        return Vec::new();
    }
    let words = words(text);
    let mut offences = Vec::new();
    for at in 0..words.len() {
        if !starts(&words[at..], &["atomic", "::"]) || at + 2 >= words.len() {
            continue;
        }
        // One name, or the list of a `use`.
        let end = if words[at + 2].text == "{" { closing(&words, at + 2) } else { at + 3 };
        let named = words[at + 2..end].iter().filter(|word| ["fence", "*"].contains(&word.text.as_str()));
        offences.extend(named.map(|word| {
            format!(
                "{file}:{}: a fence of the language; use `mem::fence`, which holds for devices, too",
                word.line
            )
        }));
    }
    offences
}

mod the_check {
    use super::*;

    #[test]
    fn catches_each_way_to_name_a_fence_of_the_language() {
        for text in [
            "use std::sync::atomic::fence;",
            "use std::sync::atomic::{AtomicU64, Ordering::{self, Relaxed}, fence};",
            "use std::sync::{Arc, atomic::{Ordering, fence as order}};",
            "use core::sync::atomic::*;",
            "fn f() { std::sync::atomic::fence(Ordering::Release) }",
            "use std::sync::atomic; fn f() { atomic::fence(atomic::Ordering::Release) }",
        ] {
            assert_eq!(of_the_language("src/transport/verbs/initiator.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn lets_pass_the_fence_of_mem_and_what_is_not_the_library() {
        let text = "use crate::mem::{LocalSlice, fence}; use std::sync::atomic::{AtomicU64, Ordering};";
        assert_eq!(of_the_language("src/param/frames.rs", text), [""; 0]);
        for file in ["src/mem/fence.rs", "python/src/lease.rs", "tests/loom.rs"] {
            assert_eq!(of_the_language(file, "use std::sync::atomic::fence;"), [""; 0], "{file}");
        }
    }
}
