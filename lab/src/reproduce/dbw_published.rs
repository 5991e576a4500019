//! DBW as published, beside ours.

use crate::plot::{Axis, Figure, Panel, Series};
use serde::Deserialize;
use serde_json::json;

use super::dbw::{self, DbwGrids, settings};
use super::settings::Settings;
use super::tuned::{missed, times};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "dbw-published",
    title: "DBW as published, beside ours",
    file: include_str!("settings/dbw-published.toml"),
    remarks: "Neither form is the better one. Where times are exponential and steps small, one gradient or a \
              few are enough: there the published form is many times slower, and with the smallest steps it is \
              hardly ever there in time. Where steps are large and batches small, and nearly all are worth \
              waiting for, it is several times faster, and ours often does not get there at all. The body of \
              the paper was not at hand: whether its experiments behave like this is not known.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedGrid {
    /// The published form, and ours.
    forms: [String; 2],
    /// The names of grids of the recipe `dbw`.
    grids: Vec<String>,
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let file = trial.settings::<PublishedGrid>()?;
    let (PublishedGrid { forms: [published, ours], grids }, seeds) = (&file.grid, file.seeds(trial));
    let mut dbw = Settings::<DbwGrids>::read(dbw::RECIPE.file)?.grid;
    dbw.grids.retain(|grid| grids.contains(&grid.name));
    let all = settings(&dbw)?;
    let forms = [scheme(published)?, scheme(ours)?];
    let mut runs = Vec::new();
    for setting in &all {
        for form in forms {
            runs.extend(seeds.iter().map(move |seed| (setting, form, *seed)));
        }
    }
    let reports =
        simulate("dbw-published", &runs, |(setting, form, seed)| Ok(setting.cluster(*form, *seed)))?;
    let figure = Figure::new("DBW as published, beside ours").columns(1);
    let mut findings =
        Findings::new(figure.subtitle("16 workers, logistic regression; time to the loss over ours"));
    for grid in &dbw.grids {
        let heading = ["times", "step", "batch", "published, s", "ours, s", "published over ours"];
        let mut table = Table::new(heading);
        let (mut bars, mut ratios) = (Vec::new(), vec![Vec::new(); seeds.len()]);
        let of_grid = all.iter().zip(reports.chunks(2 * seeds.len()));
        for (setting, own) in of_grid.filter(|(setting, _)| setting.grid.name == grid.name) {
            let (published, ours) = own.split_at(seeds.len());
            let [of_published, of_ours] = [published, ours].map(|runs| times(runs, grid.within));
            let ratio = Interval::of_ratio(&of_published, &of_ours);
            let told = |times: &[f64], runs| number(mean(times.iter().copied())) + &missed(runs);
            table.row([
                setting.times.name.clone(),
                setting.rate.to_string(),
                setting.batch.to_string(),
                told(&of_published, published),
                told(&of_ours, ours),
                ratio.to_string(),
            ]);
            bars.push((bars.len() as f64, ratio.middle));
            for (all, (published, ours)) in ratios.iter_mut().zip(of_published.iter().zip(&of_ours)) {
                all.push((published / ours).ln());
            }
            findings.rows.push(json!({
                "grid": grid.name, "times": setting.times.name, "learning_rate": setting.rate.to_string(),
                "batch": setting.batch, "published": of_published, "ours": of_ours,
            }));
        }
        // The mean over the settings for each seed, and its interval over the seeds.
        let means: Vec<f64> = ratios.iter().map(|of_seed| mean(of_seed.iter().copied()).exp()).collect();
        findings.measure(&grid.name, "", Interval::of_ratio(&means, &vec![1.0; means.len()]));
        let end = bars.len() as f64 - 0.5;
        let panel =
            Panel::new(Axis::linear("setting, in the order of the table"), Axis::log("published over ours"));
        let panel = panel
            .with(Series::marked("published", bars))
            .with(Series::guide("level", [(-0.5, 1.0), (end, 1.0)]));
        findings.figure = findings.figure.panel(panel.titled(format!("Grid {}", grid.name)));
        findings.tables.push((format!("Grid {}, time to a loss of {}", grid.name, grid.target), table));
    }
    Ok(findings)
}
