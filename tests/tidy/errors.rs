//! The rule on the tables of errors: every error of the library with a text of its own has a row there, whose first
//! cell has the first words of the text, and the variant in brackets.

/// Enums whose errors have one row together, each with the reason.
const TOGETHER: &[(&str, &str)] =
    &[("FoldError", "only a defect of slackline makes them: the row of `Error::Fold`")];

/// Words of a text that are looked for.
const WORDS_MAX: usize = 6;

/// The first cells of the tables below the heading "Errors" of a page.
pub(super) fn cells(page: &str) -> Vec<&str> {
    let rows = super::pages::section(page, "## Errors").lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| row.split(" | ").next()).collect()
}

/// The errors of the public enums of a file that none of the cells has.
pub(super) fn without_row(file: &str, text: &str, cells: &[&str]) -> Vec<String> {
    let mut missing = Vec::new();
    for (name, variant, message) in errors(text) {
        let first = first_words(message);
        let is_it = |cell: &&&str| {
            let named = cell.contains(&format!("`{variant}`"));
            named && cell.split('`').skip(1).step_by(2).any(|quoted| has_in_order(quoted, &first))
        };
        if !first.is_empty()
            && TOGETHER.iter().all(|(one, _)| *one != name)
            && !cells.iter().any(|cell| is_it(&cell))
        {
            missing.push(format!("{file}: no table of errors has `{message}` (`{variant}` of `{name}`)"));
        }
    }
    missing
}

/// The enum, the variant and the text of each error that has a text of its own.
fn errors(text: &str) -> Vec<(&str, &str, &str)> {
    let mut found = Vec::new();
    for (at, attribute) in text.match_indices("#[error(") {
        let Some(quoted) = text[at + attribute.len()..].trim_start().strip_prefix('"') else { continue };
        let Some((message, behind)) = quoted.split_once('"') else { continue };
        let mut declared = text[..at].lines().rev().map(str::trim).filter(|line| !line.starts_with("//"));
        let declared = declared.find_map(|line| line.split_once("enum "));
        let Some(("pub ", name)) = declared else { continue };
        let mut lines =
            behind.split_once(")]\n").map_or("", |(_, behind)| behind).lines().map(str::trim_start);
        let variant = lines.find(|line| !line.starts_with("#[")).unwrap_or_default();
        let ends = |text: &str| text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        // A struct has "pub" here.
        if variant.starts_with(char::is_uppercase) {
            found.push((&name[..ends(name)], &variant[..ends(variant)], message));
        }
    }
    found
}

/// The first words of a text outside of its braces, up to the punctuation that ends them.
fn first_words(message: &str) -> Vec<&str> {
    let outside = message.split('{').map(|part| part.split_once('}').map_or(part, |(_, behind)| behind));
    let mut first = Vec::new();
    for part in outside {
        for (index, clause) in part.split([':', ';', ',', '(']).enumerate() {
            if index > 0 && !first.is_empty() {
                return first;
            }
            first.extend(words(clause).take(WORDS_MAX - first.len()));
        }
    }
    first
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| !word.is_empty())
}

/// True if the text has these words in this order, whatever stands between them.
fn has_in_order(text: &str, sought: &[&str]) -> bool {
    let mut words = words(text);
    sought.iter().all(|one| words.any(|word| word == *one))
}

mod the_check {
    use super::*;

    const PAGE: &str = "# P\n\n## Errors\n\n| text | cause |\n| --- | --- |\n\
                        | `cannot connect at ...`, `no such file` (`System`, `Missing`) | `a gone file` (`Gone`) |\n\n\
                        ## Others\n\n| `a gone file` (`Gone`) | x |\n";

    #[test]
    fn sees_an_error_whose_text_or_variant_no_first_cell_has() {
        let cells = cells(PAGE);
        let missing = |error: &str, variant: &str| {
            let text = format!("/// An enum of none.\npub enum E {{\n    {error}\n    {variant},\n}}\n");
            without_row("x.rs", &text, &cells).len()
        };
        assert_eq!(missing("#[error(\"cannot {operation} at {address}: {source}\")]", "System { a: u8 }"), 0);
        assert_eq!(missing("#[error(\n        \"{}: no such file; {}\", a(self), b\n    )]", "Missing"), 0);
        assert_eq!(missing("#[error(\"no such file\")]\n    #[cfg(x)]", "Missing(u8)"), 0);
        assert_eq!(missing("#[error(transparent)]", "Other"), 0);
        assert_eq!(missing("#[error(\"{0}\")]", "Other"), 0);
        assert_eq!(missing("#[error(\"no such folder\")]", "Missing"), 1);
        assert_eq!(missing("#[error(\"no such file\")]", "Other"), 1);
        assert_eq!(missing("#[error(\"a gone file\")]", "Gone"), 1);
    }

    #[test]
    fn leaves_out_enums_of_the_crate_alone_and_structs() {
        for text in [
            "pub(crate) enum E {\n    #[error(\"a gone file\")]\n    Gone,\n}\n",
            "pub enum A {}\n#[error(\"a gone file\")]\npub struct Gone;\n",
        ] {
            assert_eq!(without_row("x.rs", text, &[]), [""; 0], "{text}");
        }
    }
}
