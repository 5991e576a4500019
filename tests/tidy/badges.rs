//! The badges of the README: small drawings of our own that state facts, made and checked here. No server draws them.
//!
//! `UPDATE_BADGES=1 cargo test -p slackline --test tidy badges` writes them again.

use super::words::words;

/// The folder of the badges.
pub(super) const FOLDER: &str = "docs/badges";

/// Width of a letter, and the margin beside a text, in pixels.
const LETTER: usize = 7;
const MARGIN: usize = 10;

/// The name of a badge, its label, and the fact that it states.
pub(super) struct Badge {
    pub(super) name: &'static str,
    label: &'static str,
    fact: String,
}

/// The badges, by what `Cargo.toml`, the list of files with `unsafe` and the sources say.
pub(super) fn badges(manifest: &str, unsafe_files: &[&str], sources: &[(String, String)]) -> Vec<Badge> {
    let folders = unsafe_files.iter().filter(|listed| listed.ends_with('/')).count();
    let files = unsafe_files.len() - folders;
    vec![
        Badge { name: "licence", label: "licence", fact: value(manifest, "license").replace(" OR ", " or ") },
        Badge { name: "rust", label: "Rust", fact: format!("{} or later", value(manifest, "rust-version")) },
        Badge {
            name: "unsafe",
            label: "unsafe",
            fact: format!("only in {folders} folders and {files} files"),
        },
        Badge { name: "tests", label: "tests", fact: format!("over {}", tests(sources) / 100 * 100) },
    ]
}

impl Badge {
    /// The drawing.
    pub(super) fn svg(&self) -> String {
        let width = |text: &str| text.chars().count() * LETTER + 2 * MARGIN;
        let (label, fact) = (width(self.label), width(&self.fact));
        let (whole, label_at, fact_at) = (label + fact, label / 2, label + fact / 2);
        let text = |at: usize, text: &str| format!("<text x=\"{at}\" y=\"14\">{text}</text>");
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{whole}\" height=\"20\" role=\"img\">\n\
             <title>{0}: {1}</title>\n\
             <rect width=\"{label}\" height=\"20\" fill=\"#444\"/>\n\
             <rect x=\"{label}\" width=\"{fact}\" height=\"20\" fill=\"#26618f\"/>\n\
             <g fill=\"#fff\" text-anchor=\"middle\" font-family=\"sans-serif\" font-size=\"11\">\n\
             {2}\n{3}\n</g>\n</svg>\n",
            self.label,
            self.fact,
            text(label_at, self.label),
            text(fact_at, &self.fact),
        )
    }

    /// True if `drawn` states this fact. A number of tests that is smaller than today's is still true.
    pub(super) fn is_stated_by(&self, drawn: &str) -> bool {
        if self.name != "tests" {
            return drawn == self.svg();
        }
        let number = |text: &str| {
            let (_, rest) = text.split_once("<title>tests: over ")?;
            rest.split_once('<')?.0.parse::<usize>().ok()
        };
        let (Some(stated), Some(today)) = (number(drawn), number(&self.svg())) else { return false };
        stated <= today && drawn == Badge { fact: format!("over {stated}"), ..*self }.svg()
    }
}

/// The value of the first line `key = "value"`.
fn value(manifest: &str, key: &str) -> String {
    let of_key = |line: &&str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key);
    let line = manifest.lines().find(of_key).unwrap_or_else(|| panic!("Cargo.toml has no `{key}`"));
    line.split('"').nth(1).unwrap_or_else(|| panic!("`{key}` has no text")).to_owned()
}

/// Functions with `#[test]`.
fn tests(sources: &[(String, String)]) -> usize {
    let is_test = |words: &&[super::Word]| super::starts(words, &["#", "[", "test", "]"]);
    sources.iter().map(|(_, text)| words(text).windows(4).filter(is_test).count()).sum()
}

mod the_check {
    use super::*;

    fn made(tests: usize) -> Vec<Badge> {
        let manifest =
            "[workspace.package]\nrust-version = \"1.89\" # why\nlicense = \"MIT OR Apache-2.0\"\n";
        let sources = [("x.rs".into(), "#[test]\nfn t() {}\n// #[test]\n".repeat(tests))];
        badges(manifest, &["src/a/", "src/b/", "src/c.rs"], &sources)
    }

    #[test]
    fn badges_state_the_manifest_the_list_and_the_count() {
        let facts: Vec<String> = made(250).into_iter().map(|badge| badge.fact).collect();
        assert_eq!(
            facts,
            ["MIT or Apache-2.0", "1.89 or later", "only in 2 folders and 1 files", "over 200"]
        );
    }

    #[test]
    fn a_badge_with_another_fact_is_refused_and_fewer_tests_are_still_true() {
        let (today, earlier) = (made(350), made(250));
        for (badge, drawn) in today.iter().zip(&earlier) {
            assert!(badge.is_stated_by(&badge.svg()), "{}", badge.name);
            assert!(badge.is_stated_by(&drawn.svg()), "{}", badge.name);
            assert!(!badge.is_stated_by(&drawn.svg().replace("<rect", "<path")), "{}", badge.name);
        }
        assert!(!earlier[3].is_stated_by(&today[3].svg()), "more tests than there are");
        assert!(!today[1].is_stated_by(&today[0].svg()));
    }
}
