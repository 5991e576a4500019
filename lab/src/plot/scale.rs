//! From values to positions on an axis, and which values are written beside it.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::{Axis, Series, Style};

/// Bars at more positions than these are labelled at round numbers.
const TICKS_MAX: usize = 12;

/// An axis with its limits found. Positions run over the logarithm where the axis is logarithmic.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    is_log: bool,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Positions that are labelled, ascending.
    pub(super) ticks: Vec<f64>,
    names: Vec<String>,
}

impl Scale {
    /// Finds limits that show all of `values`, unless the axis has its own. `holds_zero` asks for the zero too.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, holds_zero: bool) -> Scale {
        let to_position = |value: f64| if axis.is_log { value.log10() } else { value };
        let positions = values.map(to_position).filter(|position| position.is_finite());
        let (mut low, mut high) =
            positions.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if holds_zero && !axis.is_log {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if let Some(limits) = axis.limits {
            (low, high) = (to_position(limits.0), to_position(limits.1));
        }
        if high - low < 1e-12 * high.abs().max(1.0) {
            let room = if axis.is_log { 0.5 } else { 0.5 * high.abs().max(1.0) };
            (low, high) = (low - room, high + room);
        }
        let names = axis.names.clone();
        if !names.is_empty() {
            let ticks = (0..names.len()).map(|index| index as f64).collect();
            return Scale { is_log: false, low: -0.5, high: names.len() as f64 - 0.5, ticks, names };
        }
        if axis.limits.is_none() && !axis.is_log {
            // To the next tick.
            let step = step(high - low);
            (low, high) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
        } else if axis.limits.is_none() {
            let room = 0.04 * (high - low);
            (low, high) = (low - room, high + room);
        }
        let ticks = if axis.is_log { log_ticks(low, high) } else { linear_ticks(low, high) };
        Scale { is_log: axis.is_log, low, high, ticks, names }
    }

    /// Ticks where bars stand, if they are few.
    pub(super) fn tick_at(&mut self, mut positions: Vec<f64>) {
        positions.sort_by(f64::total_cmp);
        positions.dedup();
        if positions.len() <= TICKS_MAX {
            self.ticks = positions;
        }
    }

    /// Returns the position of a value; none if it has no position.
    pub(super) fn position(&self, value: f64) -> Option<f64> {
        let position = if self.is_log { value.log10() } else { value };
        position.is_finite().then_some(position)
    }

    /// Returns the position where bars begin.
    pub(super) fn ground(&self) -> f64 {
        if self.is_log { self.low } else { 0.0_f64.clamp(self.low, self.high) }
    }

    /// Returns the text that is written at a position.
    pub(super) fn label(&self, position: f64) -> String {
        if !self.names.is_empty() {
            return self.names.get(position.round() as usize).cloned().unwrap_or_default();
        }
        if self.is_log { number(10f64.powf(position), 3) } else { number(position, decimals(&self.ticks)) }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, limit: (i32, i32)) -> i32 {
        let share = (position - self.low) / (self.high - self.low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, position: &f64) -> String {
        self.label(*position)
    }
}

/// The values of all series along x and y; bars also stand on the ground.
pub(super) fn values<'a>(
    series: impl Iterator<Item = &'a Series>,
    along: fn(&(f64, f64)) -> f64,
) -> impl Iterator<Item = f64> {
    series.flat_map(move |series| series.points.iter().map(along))
}

/// True if something here is a length and not a position.
pub(super) fn holds_bars(series: &[Series]) -> bool {
    series.iter().any(|series| series.style == Style::Bars)
}

/// A round number that goes into `span` about five times.
fn step(span: f64) -> f64 {
    let rough = span / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * decade >= rough * 0.999);
    factor.unwrap_or(10.0) * decade
}

fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let step = step(high - low);
    let first = (low / step - 1e-6).ceil() as i64;
    let last = (high / step + 1e-6).floor() as i64;
    (first..=last).map(|index| index as f64 * step).collect()
}

/// Decades, thinned out where there are many, with 2 and 5 between where there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let between: &[f64] = match high - low {
        span if span > 2.5 => &[1.0],
        span if span > 1.2 => &[1.0, 3.0],
        _ => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
    };
    let every = ((high - low) / 8.0).ceil().max(1.0) as i32;
    let decades = (low.floor() as i32..=high.ceil() as i32).filter(|decade| decade.rem_euclid(every) == 0);
    let all = decades.flat_map(|decade| between.iter().map(move |factor| f64::from(decade) + factor.log10()));
    all.filter(|position| (low - 1e-9..=high + 1e-9).contains(position)).collect()
}

/// Decimals that tell ticks apart.
fn decimals(ticks: &[f64]) -> usize {
    let is_whole = |decimals: &usize| {
        let factor = 10f64.powi(*decimals as i32);
        ticks.iter().all(|tick| (tick * factor - (tick * factor).round()).abs() < 1e-6)
    };
    (0..12).find(is_whole).unwrap_or(12)
}

/// A number for an axis: no needless zeros, thousands apart, powers where it would be long.
fn number(value: f64, decimals: usize) -> String {
    let size = value.abs();
    if value == 0.0 || size < 1e-12 {
        return "0".into();
    }
    if !(1e-3..1e6).contains(&size) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    match whole.len() {
        5.. => {
            let (thousands, ones) = whole.split_at(whole.len() - 3);
            format!("{thousands} {ones}{rest}")
        }
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(linear_ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear_ticks(-1.0, 0.3), [-1.0, -0.5, 0.0]);
        let positions: Vec<_> =
            log_ticks(-3.0, 0.0).into_iter().map(|position| 10f64.powf(position)).collect();
        assert_eq!(positions, [0.001, 0.01, 0.1, 1.0]);
        assert!(log_ticks(-30.0, 10.0).len() <= 10);
    }

    #[test]
    fn labels_read_as_people_write() {
        assert_eq!(number(0.25, 2), "0.25");
        assert_eq!(number(12000.0, 0), "12 000");
        assert_eq!(number(2e-7, 3), "2e-7");
        assert_eq!(number(100.0, 0), "100");
    }

    #[test]
    fn an_axis_without_values_still_has_a_length() {
        let scale = Scale::new(&Axis::linear("x"), [].into_iter(), false);
        assert!(scale.high > scale.low && !scale.ticks.is_empty());
        let one = Scale::new(&Axis::log("x"), [1e-3, f64::NAN, -1.0].into_iter(), false);
        assert!(one.low < -3.0 && one.high > -3.0);
    }
}
