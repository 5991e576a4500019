//! `slackline schemes`: the schemes and their settings, on one page.

use std::process::ExitCode;

use crate::output;

/// The page, which `slackline help schemes` shows as well.
const PAGE: &str = "\
Describe the synchronisation schemes and their settings.

A scheme decides which gradients make an update and when workers wait. `train` and `sim` take it as
--scheme NAME with its settings as options (--staleness 3) or in parentheses: --scheme 'ssp(3)',
--scheme 'abs(k=2, staleness=4)'. The first setting needs no name in parentheses.

Each gradient is an update:
  asp       no worker waits
  ssp       a worker is at most `staleness` clocks ahead of the slowest
              staleness    clocks                                                    [default: 3]
  essp      as ssp, and the servers send each new version to the workers at once
              staleness    clocks                                                    [default: 3]
  vap       a worker waits while the updates in transit sum up to more than `bound`
              bound        bound on that sum                                         [default: 1]
              strength     weak: own updates; strong: also unseen ones of others;    [default: weak]
                           published: the sum of each worker's unseen ones (only in `sim`)

One gradient of each worker is an update:
  bsp       all workers wait for each other at each clock
  bap       a worker computes on parameters that are at most `staleness` clocks old
              staleness    clocks                                                    [default: 3]

The first k gradients are an update:
  k-sync    later gradients of the same version are dropped
              k            gradients in each update                                  [default: 1]
              local-steps  steps on a worker's own copy for each gradient            [default: 1]
  k-async   later gradients count in a later update
              k, local-steps as for k-sync
  adasync   as k-async, with a k that grows as the loss falls
              k            gradients in the first updates                            [default: 1]
              local-steps  as for k-sync
              interval     seconds over which the loss is taken            [default: each update]
  abs       as adasync, and gradients that are too old are not waited for
              k            gradients in the first updates                            [default: 1]
              staleness    versions that a gradient may be behind, or none           [default: 3]
              rule         how k grows: loss-ratio or fixed                 [default: loss-ratio]
              shrink       how `staleness` falls as k grows: with-k or fixed    [default: with-k]
              local-steps, interval as for k-sync and adasync
  dbw       as k-sync, with a k that estimates of gain and time choose
              k            gradients in each update; means choice=static
              choice       dynamic, published, static or blind [default: dynamic, static with k]
              delivery     slower workers interrupt, wait or pull            [default: interrupt]
              window       updates that estimates average over, at least     [default: 10, blind: 5]
              loss-growth  more workers once the loss grows by this factor           [default: 1]
              steps        step size by k: constant, proportional or knee     [default: constant]
              knee         steps=knee: gradients up to which it grows                [default: 1]

Without a server:
  ds-sync   workers average their parameters in groups that change at each clock
              group        workers in a group                                        [default: 2]
              partition    how groups change: digits, authors, uneven,          [default: digits]
                           near (racks) or random
              period       steps from one average to the next                        [default: 1]
              inside       partition=near: rounds within racks for each across       [default: 1]
              seed         partition=random: decides the groups                      [default: 0]

For tests:
  delay     each gradient is up to `staleness` rounds late
              staleness    rounds                                                    [default: 3]
              seed         decides how late each one is (as an option: --delay-seed) [default: 0]";

const EXIT_CODES: &str = "Exit codes: 0 shown, 1 standard output cannot be written to, 2 wrong options.";

/// The arguments of `slackline schemes`: none.
#[derive(clap::Args, Debug)]
#[command(about = "Describe the synchronisation schemes and their settings", long_about = PAGE)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct SchemesArgs {}

/// Runs `slackline schemes`.
pub(crate) fn run() -> ExitCode {
    match output::print(&format!("{PAGE}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use slackline::scheme::{SchemeConfig, SchemeConfigError};

    use super::PAGE;

    /// The lines of the page about one scheme.
    fn entry(name: &str) -> Vec<&'static str> {
        let lines = PAGE.lines().skip_while(|line| !line.starts_with(&format!("  {name} ")));
        let first = lines.clone().take(1);
        first.chain(lines.skip(1).take_while(|line| line.starts_with("      "))).collect()
    }

    #[test]
    fn the_page_has_each_scheme_with_the_settings_that_it_takes() {
        let settings = "staleness k delivery choice window loss-growth rule shrink local-steps interval bound strength \
             group partition period inside seed steps knee";
        for name in SchemeConfig::NAMES {
            let entry = entry(name);
            assert!(!entry.is_empty(), "{name} is missing");
            for setting in settings.split(' ') {
                let unknown = matches!(
                    SchemeConfig::from_settings(name, &[(setting, "x")]),
                    Err(SchemeConfigError::UnknownSetting { .. })
                );
                let named = |line: &&str| line.trim_start().split([' ', ',']).any(|word| word == setting);
                let is_named = entry[1..].iter().any(|line| {
                    let beginning = line.get(..26).unwrap_or(line);
                    named(&beginning) || (line.contains(" as for ") && named(line))
                });
                assert_eq!(is_named, !unknown, "{setting} of {name}: {entry:?}");
            }
        }
    }
}
