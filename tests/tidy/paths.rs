//! The modules and paths that code names: what the rules on layers read.

use super::words::Word;

/// The module that a file under `src/` is, as its path from the crate root; none for files of other packages.
pub(super) fn module_path(file: &str) -> Option<Vec<String>> {
    let inner = file.strip_prefix("src/")?.strip_suffix(".rs")?;
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    Some(if inner == "lib" { Vec::new() } else { inner.split('/').map(String::from).collect() })
}

/// All paths in code that begin with `crate`, `self` or `super`, resolved from the crate root, with their
/// lines; and those that begin with a bare `transport`, the one alias that would hide a backend.
pub(super) fn paths(words: &[Word], file_module: &[String]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut depth = 0;
    // Modules written inside this file that we stand in, with the depth of braces outside each.
    let mut inline: Vec<(usize, String)> = Vec::new();
    for at in 0..words.len() {
        match words[at].text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.retain(|(outside, _)| *outside < depth);
            }
            "mod" if words.get(at + 2).is_some_and(|word| word.text == "{") => {
                inline.push((depth, words[at + 1].text.clone()));
            }
            "crate" | "self" | "super" | "transport" => {
                let begins = at == 0 || words[at - 1].text != "::";
                if !begins || words.get(at + 1).is_none_or(|word| word.text != "::") {
                    continue;
                }
                let mut here = file_module.to_vec();
                here.extend(inline.iter().map(|(_, name)| name.clone()));
                let mut trees = Vec::new();
                tree(words, at, &[], &mut trees);
                found.extend(trees.into_iter().map(|(line, path)| (line, resolve(&here, &path))));
            }
            _ => {}
        }
    }
    found
}

/// Reads one path, or one tree of `use`, from `words[at]` on; returns where it ends.
fn tree(words: &[Word], at: usize, prefix: &[String], found: &mut Vec<(usize, Vec<String>)>) -> usize {
    let (mut at, mut path) = (at, prefix.to_vec());
    while let Some(word) = words.get(at) {
        if word.text == "{" {
            at += 1;
            while words.get(at).is_some_and(|word| word.text != "}") {
                at = tree(words, at, &path, found);
                // A rename, and the comma.
                while words.get(at).is_some_and(|word| !["}", ","].contains(&word.text.as_str())) {
                    at += 1;
                }
                at += usize::from(words.get(at).is_some_and(|word| word.text == ","));
            }
            return at + 1;
        }
        let is_name = word.text == "*" || word.text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        // In `a::{self, b}`, `self` is `a`.
        if is_name && (word.text != "self" || path.is_empty()) {
            path.push(word.text.clone());
        }
        if is_name && words.get(at + 1).is_some_and(|word| word.text == "::") {
            at += 2;
        } else {
            found.push((word.line, path));
            return at + 1;
        }
    }
    at
}

/// The path from the crate root of a path that begins with `crate`, `self`, `super` or a name of the root.
fn resolve(here: &[String], path: &[String]) -> Vec<String> {
    let mut base = if matches!(path[0].as_str(), "self" | "super") { here.to_vec() } else { Vec::new() };
    for name in path {
        match name.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            _ => base.push(name.clone()),
        }
    }
    base
}

/// The words that are not in a module under `#[cfg(test)]`: what ships.
pub(super) fn shipped(words: &[Word]) -> Vec<Word> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < words.len() {
        match test_module(&words[at..]) {
            Some(length) => at += length,
            None => {
                kept.push(words[at].clone());
                at += 1;
            }
        }
    }
    kept
}

/// The number of words of the `#[cfg(test)] mod name { ... }` that begins here, if one does.
fn test_module(words: &[Word]) -> Option<usize> {
    if !starts(words, &["#", "[", "cfg", "("]) {
        return None;
    }
    let mut at = closing(words, 1);
    let condition = &words[..at];
    let has = |name: &str| condition.iter().any(|word| word.text == name);
    if !has("test") || has("not") || has("any") {
        return None;
    }
    while starts(&words[at..], &["#", "["]) {
        at += closing(&words[at..], 1);
    }
    if words.get(at)?.text == "mod" && words.get(at + 2)?.text == "{" {
        return Some(at + closing(&words[at..], 2));
    }
    None
}

pub(super) fn starts(words: &[Word], with: &[&str]) -> bool {
    words.len() >= with.len() && words.iter().zip(with).all(|(word, text)| word.text == *text)
}

/// The index after the bracket that closes the one at `open`.
pub(super) fn closing(words: &[Word], open: usize) -> usize {
    let mut depth = 0;
    for (index, word) in words.iter().enumerate().skip(open) {
        match word.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    words.len()
}
