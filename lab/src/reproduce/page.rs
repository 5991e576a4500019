//! The page with all reproductions.

use std::fmt::Write as _;

use super::{Findings, Recipe, checks};
use crate::table::Table;

/// File name of the page.
pub const PAGE: &str = "reproductions.md";
/// Name of the folder for the plots, `NAME.svg` each.
pub const PLOTS: &str = "plots";
const COLUMNS: usize = 120;

const HEAD: &str = "\
# The literature, and what comes out here

Every figure on this page was computed by the simulator: the scheme objects that `slackline train` runs, real
gradients of small real problems, virtual time. Each section has its command; the same command gives the same figures
to the last digit. The whole page, with its plots, is written by

```sh
cargo run --release -- sim --reproduce all --docs docs
```

\"Differs\" is not a failure of the program: the section says what came out instead, and why.

";

/// The text of the page; the plot of each result is expected in the folder [`PLOTS`] beside it.
pub fn page(done: &[(&Recipe, Findings)]) -> String {
    let mut overview = Table::new(["result", "what", "claims that come out"]);
    for (recipe, findings) in done {
        let holds = findings.checks.iter().filter(|check| check.holds).count();
        let link = format!("[{0}](#{0})", recipe.name);
        let count = format!("{holds} of {}", findings.checks.len());
        overview.row([link.as_str(), recipe.title, count.as_str()]);
    }
    let mut page = HEAD.to_owned() + &overview.markdown();
    for (recipe, findings) in done {
        let Recipe { name, title, claim, source, setup, remarks, .. } = recipe;
        let _ = write!(
            page,
            "\n## {name}\n\n{}\n\n{}\n\n\
             ```sh\ncargo run --release -- sim --reproduce {name}\n```\n\n![{title}]({PLOTS}/{name}.svg)\n",
            wrapped(&format!("**{title}.** {claim} ({source})")),
            wrapped(&format!("Here: {setup}"))
        );
        for (caption, table) in &findings.tables {
            let _ = write!(page, "\n{caption}:\n\n{}", table.markdown());
        }
        let _ = write!(page, "\n{}", checks(findings).markdown());
        if !remarks.is_empty() {
            let _ = write!(page, "\n{}\n", wrapped(remarks));
        }
    }
    page
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
