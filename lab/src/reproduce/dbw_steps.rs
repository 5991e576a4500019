//! DBW where the step size depends on the number of gradients.

use serde::Deserialize;
use serde_json::json;

use super::dbw::{DbwGrid, N, settings};
use super::tuned::{missed, times};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::plot::{Axis, Figure, Panel, Series};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "dbw-steps",
    title: "DBW with step sizes that depend on k",
    file: include_str!("settings/dbw-steps.toml"),
    remarks: "The rule is part of the gain, so that DBW weighs the shorter step of few gradients against their time.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepsGrid {
    grids: Vec<DbwGrid>,
    rules: Vec<String>,
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let file = trial.settings::<StepsGrid>()?;
    let (StepsGrid { grids, rules }, seeds) = (&file.grid, file.seeds(trial));
    let all = settings(grids)?;
    let mut runs = Vec::new();
    for rule in rules {
        let fixed = (1..=N).map(|k| scheme(&format!("dbw(k={k}, steps={rule})")));
        let schemes = fixed.chain([scheme(&format!("dbw(steps={rule})"))]).collect::<Result<Vec<_>, _>>()?;
        for setting in &all {
            for scheme in &schemes {
                runs.extend(seeds.iter().map(|seed| (setting, *scheme, *seed)));
            }
        }
    }
    let reports =
        simulate("dbw-steps", &runs, |(setting, scheme, seed)| Ok(setting.cluster(*scheme, *seed)))?;
    let figure =
        Figure::new("DBW with step sizes that depend on k").subtitle("16 workers, logistic regression");
    let mut findings = Findings::new(figure);
    let names =
        all.iter().map(|setting| format!("{}, {}/{}", setting.times.name, setting.rate, setting.batch));
    let y = Axis::log("DBW's time over the best k's").between(0.5, 20.0);
    let mut panel = Panel::new(Axis::names("times, step size/batch", names), y);
    let mut table =
        Table::new(["steps", "times", "step", "batch", "best k", "its time, s", "DBW, s", "over best"]);
    let each = (N + 1) * seeds.len();
    for (rule, own) in rules.iter().zip(reports.chunks(all.len() * each)) {
        let (mut within, mut bars, mut worst) = (0, Vec::new(), None::<(String, Interval)>);
        for (index, (setting, own)) in all.iter().zip(own.chunks(each)).enumerate() {
            let by_k: Vec<Vec<f64>> =
                own.chunks(seeds.len()).map(|own| times(own, setting.grid.within)).collect();
            let (dynamic, fixed) = (&by_k[N], &by_k[..N]);
            let average = |k: usize| mean(fixed[k - 1].iter().copied());
            let best = (1..=N).min_by(|a, b| average(*a).total_cmp(&average(*b))).unwrap_or(1);
            let over = Interval::of_ratio(dynamic, &fixed[best - 1]);
            within += usize::from(over.high <= 1.1);
            if worst.as_ref().is_none_or(|(_, worst)| over.high > worst.high) {
                worst = Some((format!("{}, {}/{}", setting.times.name, setting.rate, setting.batch), over));
            }
            table.row([
                rule.split(',').next().unwrap_or_default().to_owned(),
                setting.times.name.clone(),
                setting.rate.to_string(),
                setting.batch.to_string(),
                best.to_string(),
                number(average(best)),
                number(mean(dynamic.iter().copied())) + &missed(&own[N * seeds.len()..]),
                over.to_string(),
            ]);
            findings.rows.push(json!({
                "steps": rule, "times": setting.times.name, "learning_rate": setting.rate.to_string(),
                "batch": setting.batch, "static": fixed, "dbw": dynamic,
            }));
            bars.push((index as f64, over.middle));
        }
        if let Some((label, worst)) = worst {
            findings.measure(
                "within",
                format!("{rule}: {within} of {} within; the worst ({label})", all.len()),
                worst,
            );
        }
        panel.series.push(Series::bars(rule.clone(), bars));
    }
    findings.figure = findings.figure.panel(panel);
    findings.tables.push(("Time to the loss, against the best static k under the same rule".into(), table));
    Ok(findings)
}
