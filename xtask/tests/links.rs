//! The pages of this repository: no relative link in them is dead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// Returns every page at the root and in `docs/`.
fn pages() -> Vec<PathBuf> {
    let entries = [root().to_path_buf(), root().join("docs")].map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Returns the text without its code: what stands there is no link.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            // Every second piece between backticks is code.
            kept.extend(line.split('`').step_by(2));
            kept.push('\n');
        }
    }
    kept
}

/// Returns the targets of `[text](target)` that are not addresses of the web.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let ends = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let relative = ends.map(|(target, _)| target.to_string()).filter(|target| !target.contains("://"));
    relative.collect()
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Returns the reason for which a link of a page leads nowhere.
fn fault(page: &Path, text: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_path_buf() } else { page.parent()?.join(file) };
    if !path.exists() {
        return Some(format!("{}: there is no {target}", page.display()));
    }
    let other =
        if file.is_empty() { text.to_string() } else { fs::read_to_string(&path).unwrap_or_default() };
    let is_there = anchor.is_empty() || anchors(&other).contains(anchor);
    (!is_there).then(|| format!("{}: there is no heading {target}", page.display()))
}

#[test]
fn no_relative_link_of_a_page_is_dead() {
    let mut count = 0;
    let mut faults = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let targets = targets(&text);
        count += targets.len();
        faults.extend(targets.iter().filter_map(|target| fault(&page, &text, target)));
    }
    assert!(count > 50, "the pages have {count} links: the search for them is broken");
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_page_of_docs_is_in_the_table_of_contents() {
    let contents = targets(&fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap());
    let names = pages().into_iter().filter(|page| page.parent() == Some(root().join("docs").as_path()));
    let names = names.map(|page| page.file_name().unwrap().to_string_lossy().into_owned());
    let missing: Vec<_> = names.filter(|name| name != "SUMMARY.md" && !contents.contains(name)).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn links_in_code_are_none_and_dead_ones_are_found() {
    let page = root().join("docs/SUMMARY.md");
    let text = "# A `b` c-d\n[a](#a-b-c-d) [b](#other) `[c](no)` [d](no/such.md) [e](https://x)\n```\n[f](no)\n```\n";
    assert_eq!(targets(text), ["#a-b-c-d", "#other", "no/such.md"]);
    let faults: Vec<_> = targets(text).iter().filter_map(|target| fault(&page, text, target)).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
}
