//! The rule on the words of earlier versions: `docs/glossary.md` says by which terms of the field they were replaced,
//! and they do not come back, in code, comments, messages or pages.

/// The words. The plural is meant, too.
const WORDS: &[&str] = &[
    "beacon",
    "bell",
    "breakage",
    "dare",
    "departure",
    "desk",
    "door",
    "hail",
    "knock",
    "law",
    "life",
    "place",
    "pulse",
    "seat",
    "stranger",
    "surroundings",
    "trespass",
];

/// The pages about the words themselves: the glossary and the history.
const ABOUT_WORDS: &[&str] = &["docs/glossary.md", "CHANGELOG.md"];

/// The words that stand before others without harm: "in place" is the field's own term, and a tag on the wire of
/// every version begins with `slk`.
const HARMLESS: &[(&str, &str)] = &[("in", "place"), ("slk", "hail")];

/// The words of earlier versions in a file, each as `file:line: complaint`.
pub(super) fn offences(file: &str, text: &str) -> Vec<String> {
    if ABOUT_WORDS.contains(&file) || file == "tests/tidy/earlier.rs" {
        return Vec::new();
    }
    let mut offences = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = split(line);
        for (at, word) in words.iter().enumerate() {
            let before = at.checked_sub(1).map_or("", |before| &words[before]);
            let singular = word.strip_suffix('s').unwrap_or(word);
            let found = WORDS.iter().find(|earlier| *earlier == word || **earlier == singular);
            if let Some(earlier) = found.filter(|earlier| !HARMLESS.contains(&(before, earlier))) {
                let remedy = "docs/glossary.md has the word for it";
                offences.push(format!(
                    "{file}:{}: `{earlier}` is a word of earlier versions: {remedy}",
                    index + 1
                ));
            }
        }
    }
    offences
}

/// The words of a line in small letters, with names cut where a `_` or a capital begins a word.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in line.chars() {
        if !letter.is_alphabetic() || (letter.is_uppercase() && was_small) {
            words.push(String::new());
        }
        if letter.is_alphabetic() {
            words.last_mut().expect("there is one").extend(letter.to_lowercase());
        }
        was_small = letter.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

mod the_check {
    use super::*;

    #[test]
    fn catches_a_word_in_prose_in_names_and_in_the_plural() {
        for text in ["// The desk.", "let free_places = 1;", "struct WorkerPlace;", "const LIFE: u8 = 1;"] {
            assert_eq!(offences("x.rs", text).len(), 1, "{text}");
        }
        let complaint = "x.rs:2: `door` is a word of earlier versions: docs/glossary.md has the word for it";
        assert_eq!(offences("x.rs", "\nfn doors() {}"), [complaint]);
    }

    #[test]
    fn lets_pass_terms_of_the_field_and_words_that_contain_others() {
        let text = "in place, in_place, Placement, replaces, b\"slk-hail\", lifetime, outlaw, adored, a worker lives";
        assert_eq!(offences("x.rs", text), [""; 0]);
        assert_eq!(offences("docs/glossary.md", "desk"), [""; 0]);
    }
}
