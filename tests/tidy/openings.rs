//! The rule on the first words of doc comments: a noun or a verb, and seldom a question word. "The reason for the end"
//! names its subject at once; "Why it ended" leaves a reader to find it out.
//!
//! A doc block is a run of lines that all begin with `///`, or all with `//!`.

use std::fmt::Write as _;

/// The words that stand in for a subject.
const QUESTION_WORDS: &[&str] =
    &["What", "Who", "Whom", "Whose", "Which", "Those", "Where", "How", "When", "Why", "That"];

/// Most blocks in a hundred that may open with one of them.
const PERCENT_MAX: usize = 7;

/// Most blocks that a complaint lists.
const LISTED_MAX: usize = 40;

/// The complaint about these files, each a path and its text, if too many doc blocks open with a question word.
pub(super) fn complaint(files: &[(String, String)]) -> Option<String> {
    let (mut blocks, mut offenders) = (0usize, Vec::new());
    for (file, text) in files {
        for (line, opening) in openings(text) {
            blocks += 1;
            if begins_with_a_question_word(opening) {
                offenders.push(format!("{file}:{line}: {opening}"));
            }
        }
    }
    let count = offenders.len();
    if count * 100 <= blocks * PERCENT_MAX {
        return None;
    }
    let mut complaint = format!(
        "{count} of {blocks} doc blocks open with one of {}; the most is {PERCENT_MAX} in 100:\n",
        QUESTION_WORDS.join(", ")
    );
    for offender in offenders.iter().take(LISTED_MAX) {
        writeln!(complaint, "  {offender}").unwrap();
    }
    if count > LISTED_MAX {
        writeln!(complaint, "  and {} more", count - LISTED_MAX).unwrap();
    }
    Some(complaint)
}

/// The first line of each doc block, without its slashes, and the line's number.
fn openings(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut above = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        // Four slashes make a plain comment.
        let is_plain = line.starts_with("////");
        let kind = ["///", "//!"].into_iter().find(|kind| !is_plain && line.starts_with(*kind));
        if kind.is_some() && kind != above {
            found.push((index + 1, line[3..].trim()));
        }
        above = kind;
    }
    found
}

fn begins_with_a_question_word(opening: &str) -> bool {
    let first = opening.split(|c: char| !c.is_alphanumeric() && c != '_').next();
    first.is_some_and(|word| QUESTION_WORDS.contains(&word))
}

mod the_check {
    use super::*;

    fn file(name: &str, text: String) -> (String, String) {
        (name.into(), text)
    }

    #[test]
    fn sees_the_first_line_of_each_block() {
        let text = "//! What is told.\n//! How it is told.\n/// Where, of another kind.\n\n    /// The address.\n\
                    fn f() {} /// Why\n//// Who\n// Those\n///\n/// That is the second line.\n";
        let numbers: Vec<usize> = openings(text).iter().map(|(line, _)| *line).collect();
        assert_eq!(numbers, [1, 3, 5, 9]);
        let words: Vec<&str> = openings(text).iter().map(|(_, opening)| *opening).collect();
        assert_eq!(words, ["What is told.", "Where, of another kind.", "The address.", ""]);
    }

    #[test]
    fn knows_a_question_word_by_its_whole_first_word() {
        for opening in ["What is told.", "Who", "Those: both.", "Why's that?", "Where, if anywhere."] {
            assert!(begins_with_a_question_word(opening), "{opening}");
        }
        for opening in ["", "Whatever is told.", "The file where it is.", "what", "`What`", "Whereas"] {
            assert!(!begins_with_a_question_word(opening), "{opening}");
        }
    }

    #[test]
    fn allows_seven_in_a_hundred_and_no_more() {
        let good = file("good.rs", "/// The address.\nfn f() {}\n".repeat(93));
        let bad = |count| file("bad.rs", "fn f() {}\n/// How it is.\n".repeat(count));
        assert_eq!(complaint(&[good.clone(), bad(7)]), None);
        let said = complaint(&[good, bad(8)]).expect("8 of 101 are too many");
        assert!(said.starts_with("8 of 101 doc blocks open with one of What, "), "{said}");
        assert!(said.contains("\n  bad.rs:2: How it is.\n"), "{said}");
        assert_eq!(said.lines().count(), 1 + 8, "{said}");
        assert_eq!(complaint(&[]), None);
    }

    #[test]
    fn lists_forty_and_counts_the_rest() {
        let said = complaint(&[file("bad.rs", "/// How it is.\n\n".repeat(50))]).expect("all are too many");
        assert_eq!(said.matches("bad.rs:").count(), 40, "{said}");
        assert!(said.ends_with("\n  and 10 more\n"), "{said}");
    }
}
