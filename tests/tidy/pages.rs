//! The rules on three pages: each operation of the protocol has a drawing, each default names the constant, or the
//! field, that its file has, and each variable that tests read is listed.

/// The operations on the page of the protocol that have no drawing.
pub(super) fn undrawn(protocol: &str) -> Vec<String> {
    let operations = section(protocol, "## Operations");
    let mut undrawn = Vec::new();
    for operation in operations.split("\n### ").skip(1) {
        if !operation.contains("\n```mermaid\n") {
            undrawn.push(operation.lines().next().unwrap_or_default().to_owned());
        }
    }
    undrawn
}

/// Returns how many operations the page of the protocol has.
pub(super) fn operations(protocol: &str) -> usize {
    section(protocol, "## Operations").matches("\n### ").count()
}

/// The names in the tables of defaults that none of the files of their cell has, and the files that there are not.
pub(super) fn unfounded(page: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut unfounded = Vec::new();
    let rows = section(page, "## Defaults").lines().filter(|line| line.starts_with("| "));
    for cell in rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next()) {
        for founded in cell.split("; ") {
            let quoted: Vec<&str> = founded.split('`').skip(1).step_by(2).collect();
            let (files, names): (Vec<&str>, Vec<&str>) = quoted.iter().partition(|text| text.contains('/'));
            for file in files {
                let Some(text) = read(file) else {
                    unfounded.push(format!("there is no {file}"));
                    continue;
                };
                let words = super::words(&text);
                let lacks = |name: &&&str| !words.iter().any(|word| word.text == **name);
                unfounded.extend(names.iter().filter(lacks).map(|name| format!("{file} has no `{name}`")));
            }
        }
    }
    unfounded
}

/// The variables of this project that a file of tests reads and the page of testing does not list. It has a sentence
/// for those of the rig.
pub(super) fn unlisted(testing: &str, file: &str, text: &str) -> Vec<String> {
    let listed = section(testing, "## Variables of the tests");
    let mut unlisted = Vec::new();
    for call in ["env::var(\"", "env::var_os(\"", "environ.get(\""] {
        for name in text.split(call).skip(1).filter_map(|rest| rest.split('"').next()) {
            let is_own = ["SLACKLINE_", "UPDATE_"].iter().any(|begin| name.starts_with(begin));
            let is_listed =
                [format!("`{name}`"), format!("`{name}=")].iter().any(|form| listed.contains(form));
            if is_own && !name.starts_with("SLACKLINE_RIG_") && !is_listed {
                unlisted.push(format!("{file}: docs/testing.md does not list {name}"));
            }
        }
    }
    unlisted
}

/// The text below a heading, up to the next one of its rank.
pub(super) fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = page.find(&format!("\n{heading}\n")).map_or(page.len(), |at| at + 1 + heading.len());
    let rest = &page[begin..];
    &rest[..rest.find("\n## ").map_or(rest.len(), |end| end + 1)]
}

mod the_check {
    use super::*;

    #[test]
    fn sees_an_operation_without_a_drawing_and_no_other_section() {
        let drawing = "```mermaid\nsequenceDiagram\n```\n";
        let page = format!(
            "# P\n\n## Layout\n\n### Words\n\n## Operations\n\nText.\n\n### Write\n\n{drawing}\n### Read\n\n\
             Text.\n\n## Assumptions\n\n### Others\n"
        );
        assert_eq!(undrawn(&page), ["Read"]);
        assert_eq!(operations(&page), 2);
        assert_eq!(operations("# P\n"), 0);
    }

    #[test]
    fn sees_a_variable_of_the_project_that_is_not_listed() {
        let page = "# T\n\n## Variables of the tests\n\n| `SLACKLINE_SEEDS=N` | x |\n| `SLACKLINE_CLI` | x |\n\n\
                    ## Others\n\n`SLACKLINE_TREE=N`\n";
        for text in
            ["env::var(\"SLACKLINE_SEED\")", "env::var_os(\"UPDATE_X\")", "environ.get(\"SLACKLINE_TREE\")"]
        {
            assert_eq!(unlisted(page, "tests/x.rs", text).len(), 1, "{text}");
        }
        for name in ["SLACKLINE_SEEDS", "SLACKLINE_CLI", "SLACKLINE_RIG_RUN", "PATH"] {
            assert_eq!(unlisted(page, "tests/x.rs", &format!("env::var(\"{name}\")")), [""; 0]);
        }
    }

    #[test]
    fn sees_a_name_that_its_file_lacks_and_a_file_that_there_is_not() {
        let page = "# P\n\n## Defaults\n\n| of | default | constant |\n| --- | --- | --- |\n\
                    | a lease | 3 s (`--lease`) | `lease` in `src/a.rs`; `LOOKS` in `src/b.rs` |\n\
                    | a size | 1 | `SIZE`, `LONG` in `src/a.rs` |\n| x | 1 | `X` in `src/c.rs` |\n\n## Metrics\n\n\
                    | of | 1 | `Y` in `src/a.rs` |\n";
        let read = |file: &str| match file {
            "src/a.rs" => Some("struct A { lease: u8 } const SIZE: u8 = 1; // LONG".into()),
            "src/b.rs" => Some("const LOOKS: u32 = 16;".into()),
            _ => None,
        };
        assert_eq!(unfounded(page, read), ["src/a.rs has no `LONG`", "there is no src/c.rs"]);
    }
}
