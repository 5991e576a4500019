//! The page with all reproductions.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::claims::{Against, Check, Verdict, count, table};
use super::settings::{Settings, from_toml};
use super::{Again, Error, Outcome, Recipe};
use crate::table::Table;

/// File name of the page.
pub const PAGE: &str = "reproductions.md";
/// Name of the folder for the plots, `NAME.svg` each.
pub const PLOTS: &str = "plots";
/// Name of the folder for the records, `NAME.json` each.
pub const RECORDS: &str = "records";
/// Name of the folder, in that of the records, for runs with other seeds, `NAME.json` each.
pub const AGAIN: &str = "again";
const COLUMNS: usize = 120;

const HEAD: &str = "\
# The literature, and what comes out here

";

const METHOD: &str = "\
Every figure in the tables of this page was computed by the simulator: the scheme objects that `slackline train` runs
(but for VAP as published, the oracle of dbw-oracle, which has a loop of its own, and the arithmetic of dbw-argmax and
ds-sync-mean), real gradients of small real problems, virtual time. [The simulator held to real
processes](reproductions-real.md) says how far that can be trusted. Each section has its command; the same command
gives the same figures. The paragraphs behind a table were written by hand. Those that explain it have the numbers of
settings and none that was measured; those of earlier forms have figures of programs that are no more, which the
history of the project holds. The whole page, with its plots and [records](records/), is written by

```sh
cargo run --release -- sim --reproduce all --docs docs
```

and one of its sections, with what the first tables tell of it, by the name of the result instead of `all`.

The settings of each result (its problem, workers, grids, step sizes, targets and claims) lie in
`lab/src/reproduce/settings/`, and are written before the run, but for the statements on real processes (`race.toml`),
and for claims of which a section says that they were added. Where one was changed, the section says what it was, what
came of it, and why. A claim is *held against* a headline (a result that a paper puts forward, with its figure where
it has one), a direction (what else a paper says, without a figure), theory (a formula, a bound, arithmetic), or an
expectation of ours. Brackets hold 95 % intervals (Student's t over the seeds, paired by seed where two schemes are
compared); a claim holds if the whole interval lies in its range, so \"faster\" means that the interval excludes 1.
\"Differs\" is not a failure of the program: the section says what came out instead.

";

/// What the page says about the choice of a scheme, and the checks that each sentence rests on.
const ADVICE: &str = include_str!("settings/advice.toml");

const OTHER_SEEDS: &str = "\
Runs with seeds that no other run has tell a result from chance. They are added by

```sh
cargo run --release -- sim --reproduce NAME --again 10 --docs docs
```

with a [record](records/again/) of each. A claim that held at first and does not in nine of ten of these runs is told
as \"chance\" in all tables, and counts as one that differs. Beside a claim stands the number of runs in which it held.
";

#[derive(Deserialize)]
struct Advice {
    line: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    text: String,
    /// RECIPE/CHECK, after "not" where it must differ, after "chance" where it must not hold with other seeds; after
    /// "above", "below" or "level" with the label of one of its values, whose interval must lie on that side of 1, or
    /// hold it; or all-schemes/CHECK, of the runs on real processes.
    rests_on: Vec<String>,
    /// The sentence that stood here before, with what its checks say of it.
    before: Option<String>,
}

/// What the page tells of a result.
pub struct Part {
    recipe: &'static Recipe,
    checks: Vec<Check>,
    section: String,
    again: Option<Again>,
}

impl Part {
    /// Of a result that was run just now.
    pub fn of(outcome: &Outcome) -> Part {
        let Outcome { recipe, checks, again, .. } = outcome;
        Part { recipe, checks: checks.clone(), section: section(outcome), again: again.clone() }
    }

    /// Of a result that was run before, from its record, that of runs with other seeds, and the page with its section;
    /// none if these do not tell of it.
    pub fn kept(recipe: &'static Recipe, record: &Value, again: Option<Again>, page: &str) -> Option<Part> {
        let checks = record["checks"].as_array()?.iter().map(Check::read).collect::<Option<_>>()?;
        let (_, text) = page.split_once(&format!("\n## {}\n", recipe.name))?;
        let text = text.split("\n## ").next()?;
        // The tables stay as they are, and what explains them is that of today.
        let last = text.rfind("\n|")? + 1;
        let end = text[last..].find('\n').map_or(text.len(), |length| last + length);
        let settings: Settings = Settings::read(recipe.file).ok()?;
        let explained = explained(recipe, settings.earlier.as_deref());
        let section = format!("\n## {}\n{}\n{explained}", recipe.name, &text[..end]);
        Some(Part { recipe, checks, section, again })
    }
}

/// The text of the page; the plot of each result is expected in the folder [`PLOTS`] beside it. `real` has the
/// statements that [the runs of all schemes](super::Race) bear out.
///
/// # Errors
///
/// If the file of the advice cannot be read.
pub fn page(parts: &[Part], real: &[String]) -> Result<String, Error> {
    let mut page = HEAD.to_owned() + &advice(parts, real)? + "\n" + METHOD;
    page += &overview(parts);
    let _ = write!(page, "\n## With other seeds\n\n{OTHER_SEEDS}\n{}", repeated(parts));
    let _ = write!(page, "\n## The headlines of the papers\n\n{}", headlines(parts));
    parts.iter().for_each(|part| page += &part.section);
    Ok(page)
}

/// The sentences that are borne out as a list; the others say so.
fn advice(parts: &[Part], real: &[String]) -> Result<String, Error> {
    let Advice { line, .. } = from_toml(ADVICE)?;
    let mut text =
        String::from("What the evidence says about the choice of a scheme for a real cluster:\n\n");
    line.iter().for_each(|line| text += &line.item(parts, real));
    Ok(text)
}

impl Line {
    /// The sentence as an item of a list, told as not borne out where one of its checks came out otherwise.
    fn item(&self, parts: &[Part], real: &[String]) -> String {
        let Line { text, rests_on, before } = self;
        let names = rests_on.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let is_borne_out = rests_on.iter().all(|name| came_out(name, parts, real));
        let doubt = if is_borne_out { "" } else { "Not borne out by this run: " };
        let before = before.as_ref().map_or_else(String::new, |before| format!(" Before: {before}"));
        format!("- {}\n", wrapped(&format!("{doubt}{text} ({names}){before}")).replace('\n', "\n  "))
    }
}

/// Whether a check came out as [`Line::rests_on`] has it.
fn came_out(wanted: &str, parts: &[Part], real: &[String]) -> bool {
    if let Some(name) = wanted.strip_prefix("all-schemes/") {
        return real.iter().any(|own| own == name);
    }
    let (how, name) = wanted.split_once(' ').unwrap_or(("", wanted));
    let (name, label) = name.split_once(' ').unwrap_or((name, ""));
    let mut checks = parts.iter().flat_map(|part| part.checks.iter().map(move |check| (part, check)));
    let named = checks.find(|(part, check)| format!("{}/{}", part.recipe.name, check.claim.name) == name);
    let Some((_, check)) = named else { return false };
    match how {
        "above" => check.side(label) == Some(Ordering::Greater),
        "below" => check.side(label) == Some(Ordering::Less),
        "level" => check.side(label) == Some(Ordering::Equal),
        "not" => check.verdict == Verdict::Differs,
        "chance" => check.verdict == Verdict::Chance,
        _ => check.verdict == Verdict::Holds,
    }
}

/// Of each result how many claims came out, each kind apart.
fn overview(parts: &[Part]) -> String {
    let kinds = Against::ALL.map(Against::name);
    let mut overview = Table::new(["result", "what"].into_iter().chain(kinds));
    for part in parts {
        let link = format!("[{0}](#{0})", part.recipe.name);
        let counts = Against::ALL.map(|against| count(part.checks.iter(), against));
        overview.row([link, part.recipe.title.to_owned()].into_iter().chain(counts));
    }
    let all = || parts.iter().flat_map(|part| &part.checks);
    let counts = Against::ALL.map(|against| count(all(), against));
    overview.row(["all of the kind".into(), String::new()].into_iter().chain(counts));
    overview.markdown()
}

/// What came of runs with other seeds, and the results that were not run with any.
fn repeated(parts: &[Part]) -> String {
    let mut table =
        Table::new(["result", "runs", "\"yes\" that is kept", "chance", "differs at first, and holds in"]);
    let mut others = Vec::new();
    for Part { recipe, again, .. } in parts {
        match again {
            Some(again) => table.row([format!("[{0}](#{0})", recipe.name)].into_iter().chain(again.cells())),
            None => others.push(recipe.name),
        }
    }
    match others.is_empty() {
        true => table.markdown(),
        false => format!("{}\nNot tried: {}.\n", table.markdown(), others.join(", ")),
    }
}

fn headlines(parts: &[Part]) -> String {
    let mut table = Table::new(["result", "headline", "the paper", "ours", ""]);
    for part in parts {
        let is_headline = |check: &&Check| check.claim.against == Against::Headline;
        for check in part.checks.iter().filter(is_headline) {
            let link = format!("[{0}](#{0})", part.recipe.name);
            table.row([link].into_iter().chain(check.cells()));
        }
    }
    table.markdown()
}

fn section(outcome: &Outcome) -> String {
    let Outcome { recipe, settings, findings, checks, .. } = outcome;
    let (name, title) = (recipe.name, recipe.title);
    let mut text = format!(
        "\n## {name}\n\n{}\n\n{}\n\n\
         ```sh\ncargo run --release -- sim --reproduce {name}\n```\n\n![{title}]({PLOTS}/{name}.svg)\n",
        wrapped(&format!("**{title}.** {} ({})", settings.claim, settings.source)),
        wrapped(&format!("Here: {}", settings.setup))
    );
    for (caption, table) in &findings.tables {
        let _ = write!(text, "\n{caption}:\n\n{}", table.markdown());
    }
    let _ = write!(text, "\n{}", table(checks).markdown());
    text + &explained(recipe, settings.earlier.as_deref())
}

/// The paragraphs behind the tables of a section.
fn explained(recipe: &Recipe, earlier: Option<&str>) -> String {
    let paragraphs = [Some(recipe.remarks), earlier].into_iter().flatten();
    let paragraphs = paragraphs.filter(|paragraph| !paragraph.is_empty());
    paragraphs.map(|paragraph| format!("\n{}\n", wrapped(paragraph))).collect()
}

/// A paragraph in lines that fit.
fn wrapped(paragraph: &str) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::RECIPES;
    use super::*;

    #[test]
    fn a_sentence_rests_on_the_side_of_a_value_only_where_it_is_told_apart() {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == "essp-settings").expect("a recipe");
        let check = |name: &str, ours: &str, verdict: &str| {
            let record = json!({
                "name": name, "claim": "loss over loss", "against": "ours", "expected": "behind", "ours": ours,
                "verdict": verdict,
            });
            Check::read(&record).expect("a check")
        };
        let checks = vec![
            check("loses", "0.900 (0.763 to 1.06)", "differs"),
            check("stays", "uneven times: 1.94 (1.16 to 3.24); paces: 0.862 (0.688 to 1.08)", "differs"),
            check("room", "s = 2: 0.576 (0.383 to 0.868); s = 8: 4.99", "differs"),
            check("large", "s = 8: 2.16 (2.01 to 2.32)", "chance"),
        ];
        let parts = [Part { recipe, checks, section: String::new(), again: None }];
        let is_told = |rests_on: &str| {
            let rests_on = vec![rests_on.replace("settings/", "essp-settings/")];
            let item = Line { text: "So it is.".into(), rests_on, before: None }.item(&parts, &[]);
            !item.starts_with("- Not borne out by this run: So it is.")
        };
        for borne_out in [
            "not settings/loses",
            "level settings/loses",
            "above settings/stays uneven times",
            "level settings/stays paces",
            "below settings/room s = 2",
            "above settings/room s = 8",
        ] {
            assert!(is_told(borne_out), "{borne_out}");
        }
        for other in [
            "below settings/loses",
            "below settings/stays paces",
            "above settings/stays paces",
            "below settings/stays uneven times",
            "above settings/stays",
            "above settings/room s = 4",
            "above settings/large s = 8",
            "above settings/none",
        ] {
            assert!(!is_told(other), "{other}");
        }
    }

    #[test]
    fn a_result_that_is_kept_keeps_its_tables_and_is_explained_as_today() {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == "dbw").expect("a recipe");
        let before =
            "# A page\n\n## dbw\n\nTitle.\n\nRows:\n\n| a |\n| --- |\n| 1 |\n\nOld remarks.\n\n## next\n";
        let part = Part::kept(recipe, &json!({ "checks": [] }), None, before).expect("a section");
        assert!(
            part.section.starts_with("\n## dbw\n\nTitle.\n\nRows:\n\n| a |\n| --- |\n| 1 |\n\n"),
            "{}",
            part.section
        );
        assert!(part.section.ends_with('\n') && !part.section.contains("Old remarks"), "{}", part.section);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert!(words(&part.section).contains(&words(recipe.remarks)));
    }
}
