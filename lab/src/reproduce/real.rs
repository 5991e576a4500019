//! The page of runs on real processes.

use std::fmt;

use serde::Serialize;

use super::Comparison;
use crate::table::{Table, number};

/// File name of the page of runs on real processes.
pub const REAL_PAGE: &str = "reproductions-real.md";

/// Where and when runs on real processes were made.
#[derive(Clone, Debug, Serialize)]
pub struct Occasion {
    /// The processors of the machine.
    pub machine: String,
    /// The day, as `2026-11-26`.
    pub date: String,
    /// Minutes that all runs took.
    pub minutes: u64,
}

/// The part of the page that compares real processes with the simulator.
pub fn compared(comparisons: &[Comparison]) -> String {
    let mut table = Table::new(["recipe", "figure", "real", "simulated", "off by", "run"]);
    for comparison in comparisons {
        let Comparison { recipe, words, figure, real, simulated, .. } = comparison;
        let off = format!("{:+.1} %", 100.0 * comparison.off());
        table.row([recipe, figure, &number(*real), &number(*simulated), &off, &format!("`{words}`")]);
    }
    let within = comparisons.iter().filter(|comparison| comparison.off().abs() <= 0.05).count();
    let mut made: Vec<&str> = comparisons.iter().map(|comparison| &*comparison.made).collect();
    made.sort();
    made.dedup();
    let (made, all) = (made.join("; "), comparisons.len());
    format!("{HEAD}The rows were made on {made}. Within 5 %: {within} of {all}.\n\n{}", table.markdown())
}

/// The part of the page that has the table of all schemes.
pub fn all_schemes(table: &Table, occasion: &Occasion) -> String {
    format!("{ALL_SCHEMES}{HOW}{occasion}\n\n{}{EARLIER}", table.markdown())
}

/// The page with one of its parts written again, and the other as it was.
pub fn real_page(page: &str, part: &str) -> String {
    let (compared, all_schemes) = page.split_at(page.find(ALL_SCHEMES).unwrap_or(page.len()));
    match part.starts_with(ALL_SCHEMES) {
        true => format!("{compared}{part}"),
        false => format!("{part}{all_schemes}"),
    }
}

impl fmt::Display for Occasion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Occasion { machine, date, minutes } = self;
        write!(f, "Machine: {machine}. Date: {date}. Time taken: {minutes} minutes.")
    }
}

/// How the second part begins.
const ALL_SCHEMES: &str = "\n## All schemes\n\n";

const HOW: &str = "\
Four workers on the digits (perceptron, momentum 0.9), whose steps sleep 10 ms on average: the time to 95 % of the test
examples over that of BSP, with its 95 % interval over the seeds, at the best step size of each, which stands behind it;
the row of BSP has seconds, with their interval. \"An end\" says that a step size beyond the grid may be better still.
The settings lie in `lab/src/reproduce/settings/race.toml`. The table is written by

```sh
cargo run --release -- sim --reproduce all-schemes --real --docs docs
```

on a machine that does nothing else, and [its record](records/all-schemes.json) has each run. It was not made again with
other seeds, since it takes 45 minutes of such a machine: what the [first page](reproductions.md) says of it is told by
these ten seeds alone. Its two statements on ABS and ASP beside a slow worker hold in the table
of today; neither held in the table of the first grid.

";

/// Behind the table of all schemes.
const EARLIER: &str = "
Two earlier tables had other grids. That of 2026-11-25 had the step sizes 0.01, 0.02, 0.04, 0.08, 0.16 and 0.32 for all
schemes, and 0.32 was the best in four of its sixteen cells. The grid of today has steps up to 1.28 for these schemes.
For each scheme it leaves out most of the steps that are further than one from its best ones, since runs that do not get
there take the longest. On the first try it left out 0.32 of SSP and ESSP and 0.04 of ABS, too; then an end of the grid
was the best in three cells, and the runs of these steps followed at once. Beside the runs of the table of 2026-11-25
simulations and compilers took up to half of the processors:

| scheme | under jitter | one worker four times slower |
| --- | ---: | ---: |
| bsp | 0.772 s at 0.32, an end | 1.42 s at 0.32, an end |
| bap(4) | 3.49 (2.98 to 4.09) at 0.02 | 8.22 (6.86 to 9.84) at 0.02 |
| ssp(4) | 1.75 (1.48 to 2.07) at 0.04 | 1.55 (1.30 to 1.85) at 0.08 |
| essp(4) | 1.76 (1.44 to 2.14) at 0.04 | 1.75 (1.52 to 2.01) at 0.08 |
| asp | 1.23 (0.989 to 1.52) at 0.08 | 0.834 (0.720 to 0.965) at 0.08 |
| dbw | 0.390 (0.311 to 0.489) at 0.16 | 0.340 (0.289 to 0.400) at 0.32, an end |
| abs | 0.959 (0.795 to 1.16) at 0.16 | 0.762 (0.639 to 0.909) at 0.16 |
| ds-sync(2) | 1.22 (1.01 to 1.46) at 0.16 | 1.25 (0.980 to 1.58) at 0.32, an end |

The first grid, 0.02 to 0.16, had an end as the best in ten of the sixteen cells, so that it was widened at both ends;
and it had five seeds. Its table, of 2026-11-24, on a machine that did other work:

| scheme | under jitter | one worker four times slower |
| --- | ---: | ---: |
| bsp | 1.04 s at 0.16, an end | 1.69 s at 0.16, an end |
| bap(4) | 3.04 (2.12 to 4.36) at 0.02, an end | 6.42 (4.65 to 8.86) at 0.02, an end |
| ssp(4) | 1.59 (1.24 to 2.04) at 0.04 | 1.37 (1.05 to 1.79) at 0.08 |
| essp(4) | 1.52 (1.11 to 2.08) at 0.04 | 1.35 (0.982 to 1.84) at 0.08 |
| asp | 1.03 (0.622 to 1.69) at 0.08 | 0.827 (0.624 to 1.10) at 0.04 |
| dbw | 0.342 (0.229 to 0.511) at 0.16, an end | 0.572 (0.352 to 0.929) at 0.16, an end |
| abs | 0.832 (0.529 to 1.31) at 0.16, an end | 0.698 (0.455 to 1.07) at 0.16, an end |
| ds-sync(2) | 1.14 (0.772 to 1.68) at 0.16, an end | 1.45 (1.12 to 1.87) at 0.16, an end |
";

/// How the page begins.
const HEAD: &str = "\
# The simulator held to real processes

Each row is one run of `slackline train` with the words of its last column, one process per worker, whose steps sleep
for times that are drawn from the seed; and the simulator's figure for the same scheme, workers and seed, which draws
the same times. What is left between the two is what the simulator does not know: computing, messages, the scheduler.
The rows are written by

```sh
cargo run --release -- sim --reproduce all --real --docs docs
```

which wants the machine for itself (anything else that runs makes real steps later, and none sooner) for a quarter of
an hour, and those of one recipe by its name instead of `all`; it takes Debian's package dataset-fashion-mnist; and
[the record](records/real.json) has them for programs, each with its day. A row compares one figure of one scheme in
one run, and not what its recipe claims. Some of them run in CI, where each must agree within 5 % in one of three
runs. Three recipes have no run here: `dbw-oracle` knows what no process can know, and `bap-network` and
`ds-sync-network` need links of a given speed, which `train` alone does not make ([namespaces with
links](simulator.md) were measured by a benchmark of their own). Of VAP it is the weak and the strong form, not the
published one, which runs in simulated clusters alone.

The part of reads that are at most one clock old, under ESSP with even times, is decided by time that workers lose: at
the start, by pauses, on a busy machine. One that falls behind stays behind, as no worker waits below the bound, and
what the others read is as old as it is late. A simulator that knows of no lost time finds all reads fresh, whatever
happens. So the simulator is told how much longer than the least each worker took to compute, as a late start of that
worker. Before it was told, it said 1.00 where real processes had 0.273 (+267 %). Three runs on a machine with ten times
the work that it could do had 0.204, 0.168 and 0.358; told, it said 0.255, 0.256 and 0.132 (+25, +52 and -63 %): a miss.

K-async's mean staleness in clocks differs from run to run of one seed: no worker waits for the slowest, so that their
clocks drift apart like random walks, and which gradients make up an update depends on milliseconds. Twelve runs on a
machine that did nothing else had 10.78 clocks in the mean, and 9.26 to 11.95 each; the simulator has 10.8. Two later
ones had 12.7 and 11.1. CI held this figure to 5 % until it failed there. It holds two figures in versions instead: the
mean staleness, which is M/K - 1 = 1 (Dutta et al.) wherever no gradient is lost or counted twice, and the part of the
gradients that are computed on the newest version. Their first run, on a machine with four times the work that it could
do, had 0.996 and 0.498; the simulator has 0.996 and 0.495.

DBW with k = 1 makes a version in some 7 ms, of which nearly 1 ms is not sleep: a worker that sleeps looks for an
interrupt once in a millisecond, and sixteen workers begin to compute at the same moment. The row *the rest told* has
the same scheme, for four times as many epochs, beside a simulator that knows of this time: a second run, whose steps
sleep for other times, measures it, and the simulator takes it as the latency of the four messages between two
versions (a gradient, an interrupt, a request and the copy). At first it took it for that of two, and so added it
twice. Before that was found, the second run was changed twice: with steps of 10 ms the simulator said 0.00834 s and
real processes had 0.00729 (+14.4 %), with `exp(0.2)` 0.00836 and 0.00745 (+12.3 %), both with 30 epochs; with
`exp(0.05)` and 120 epochs, in a run that is no record, 0.00796 and 0.00738 (+7.9 %). Taken for four messages the
first two would have been off by +1.5 and -0.5 %.

Two runs with one seed differ where K is chosen by losses that depend on which gradient comes first: the seconds per
version of AdaSync were off by -8.8, -3.4, -2.2 and -7.9 % in four records, and those of ABS on sorted digits by +5.3,
-0.5 and -0.1 % in three. K-async's clocks were off by +0.8, +4.7 and +5.0 %.

Of earlier records that of 2026-11-24, on a machine that did other work, had 11 of 21 rows within 5 %, that of
2026-11-25, on two processors of Intel, 34 of 36, and one of 2026-11-27 36 of 38.

";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::RECIPES;

    fn recorded() -> Vec<Comparison> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/records/real.json");
        let record: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).expect("the record")).expect("JSON");
        serde_json::from_value(record["comparisons"].clone()).expect("comparisons")
    }

    #[test]
    fn the_record_has_the_runs_that_the_files_ask_for() {
        let recorded: Vec<_> =
            recorded().into_iter().map(|own| (own.recipe, own.figure, own.words)).collect();
        let mut asked = Vec::new();
        for recipe in RECIPES {
            let twins = recipe.twins().expect("a file that reads");
            asked.extend(twins.iter().map(|twin| (recipe.name.to_owned(), twin.named(), twin.typed())));
        }
        assert_eq!(recorded, asked);
    }

    #[test]
    fn the_page_has_what_the_record_and_this_program_give() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let page = std::fs::read_to_string(docs.join(REAL_PAGE)).expect("the page");
        assert_eq!(real_page(&page, &compared(&recorded())), page);
    }

    #[test]
    fn a_part_of_the_page_is_written_again_and_the_other_stays() {
        let occasion = |minutes| Occasion { machine: "one".into(), date: "2026-11-26".into(), minutes };
        let mut table = Table::new(["scheme"]);
        table.row(["bsp"]);
        let first = real_page("", &compared(&[]));
        let both = real_page(&first, &all_schemes(&table, &occasion(2)));
        assert_eq!(both, format!("{first}{}", all_schemes(&table, &occasion(2))));
        let comparison = Comparison {
            recipe: "bap".into(),
            words: "--scheme bap".into(),
            figure: "seconds per clock".into(),
            real: 1.0,
            simulated: 1.04,
            made: "2026-11-26, one".into(),
        };
        let comparison = [comparison];
        let again = real_page(&both, &compared(&comparison));
        assert_eq!(again, format!("{}{}", compared(&comparison), all_schemes(&table, &occasion(2))));
        assert!(again.contains("The rows were made on 2026-11-26, one. Within 5 %: 1 of 1."), "{again}");
    }
}
