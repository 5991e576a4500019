//! The rule on errors in docs: the docs of each public function that returns a `Result` have a section `# Errors`.
//!
//! The list of public items says which functions are public. They are looked up by the name of their type, in the
//! `impl` or the `trait` that stands at the begin of a line.

use std::collections::BTreeSet;

/// The functions of the list that return a `Result`, each as its type (or module) and its name.
pub(super) fn fallible(list: &str) -> BTreeSet<(String, String)> {
    list.lines().filter_map(fallible_item).collect()
}

fn fallible_item(item: &str) -> Option<(String, String)> {
    let (head, result) = item.rsplit_once(") -> ")?;
    let (_, named) = head.split_once("fn ")?;
    result.starts_with("core::result::Result<").then_some(())?;
    let mut depth = 0;
    let path: String = named
        .chars()
        .take_while(|c| *c != '(')
        .filter(|c| {
            depth += i32::from(*c == '<');
            let is_outside = depth == 0;
            depth -= i32::from(*c == '>');
            is_outside
        })
        .collect();
    let mut names = path.rsplit("::").filter(|name| !name.is_empty());
    let name = names.next()?;
    Some((names.next()?.to_owned(), name.to_owned()))
}

/// The number of these functions that a file defines, and those of them whose docs have no such section.
pub(super) fn undocumented(
    file: &str,
    text: &str,
    fallible: &BTreeSet<(String, String)>,
) -> (usize, Vec<String>) {
    let (mut seen, mut missing) = (0, Vec::new());
    let (mut own, mut has_section) = (String::new(), false);
    for (line, code) in text.lines().enumerate() {
        own = subject(code).map_or(own, str::to_owned);
        let code = code.trim_start();
        if code.starts_with("///") {
            has_section |= code == "/// # Errors";
            continue;
        }
        let name = code.split_once("fn ").filter(|(before, _)| is_of_item(before)).map(|(_, behind)| {
            &behind[..behind.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(behind.len())]
        });
        if let Some(name) = name.filter(|name| fallible.contains(&(own.clone(), (*name).to_owned()))) {
            seen += 1;
            if !has_section {
                missing.push(format!("{file}:{}: the docs of `{own}::{name}` have no `# Errors`", line + 1));
            }
        }
        // An attribute may stand between the docs and the item.
        has_section &= code.starts_with("#[");
    }
    (seen, missing)
}

/// What may stand before the `fn` of a public function, or of one that a trait declares.
fn is_of_item(before: &str) -> bool {
    ["", "pub ", "pub const ", "pub unsafe ", "pub async "].contains(&before)
}

/// The type or trait whose functions follow, if the line begins an `impl` of a type's own or a `trait`.
fn subject(line: &str) -> Option<&str> {
    let behind = match line.strip_prefix("pub trait ") {
        Some(behind) => behind,
        None => line.strip_prefix("impl").filter(|behind| behind.starts_with([' ', '<']))?,
    };
    // Past the parameters of the `impl`; an `impl` of a trait has functions that the list does not.
    let mut depth = 0;
    let begin = behind.find(|c: char| {
        depth += i32::from(c == '<');
        let is_name = depth == 0 && c.is_alphabetic();
        depth -= i32::from(c == '>');
        is_name
    })?;
    let named = &behind[begin..];
    let end = named.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(named.len());
    Some(if line.contains(" for ") { "" } else { &named[..end] })
}

mod the_check {
    use super::*;

    const LIST: &str = "\
pub fn slackline::A<T>::open(&str) -> core::result::Result<slackline::A<T>, slackline::E>
pub fn slackline::A<T>::name(&self) -> &str
pub fn slackline::m::B::read(u8) -> core::result::Result<u8, slackline::E>
";

    #[test]
    fn finds_the_functions_of_the_list_that_may_fail() {
        let pair = |own: &str, name: &str| (own.to_owned(), name.to_owned());
        assert_eq!(fallible(LIST), BTreeSet::from([pair("A", "open"), pair("B", "read")]));
    }

    #[test]
    fn catches_a_listed_function_without_the_section() {
        let found = |text: &str| undocumented("x.rs", text, &fallible(LIST));
        for header in ["impl<T: Into<u8>> A<T> {", "impl A<u8> {", "pub trait A {"] {
            let text = format!("{header}\n    /// Opens.\n    #[inline]\n    pub fn open() {{\n");
            assert_eq!(found(&text).1, ["x.rs:4: the docs of `A::open` have no `# Errors`"], "{header}");
            let text = text.replace("Opens.\n", "Opens.\n    ///\n    /// # Errors\n    /// It is shut.\n");
            assert_eq!(found(&text), (1, Vec::new()), "{header}");
        }
    }

    #[test]
    fn lets_pass_what_is_not_in_the_list() {
        let found = |text: &str| undocumented("x.rs", text, &fallible(LIST));
        for text in [
            "impl A {\n    pub fn name() {",
            "impl A {\n    pub(crate) fn open() {",
            "impl T for A {\n    fn open() {",
            "impl B {\n    pub fn open() {",
        ] {
            assert_eq!(found(text), (0, Vec::new()), "{text}");
        }
    }
}
