//! Drawing a figure, with plotters.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::{Scale, holds_bars, values};
use super::{Figure, Panel, Series, Style};

/// Units of the drawing in one pixel: coordinates are whole numbers, and lines of whole pixels look like stairs.
const FINE: u32 = 4;

/// Width of the whole figure, in pixels.
const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 300;
const MARGIN: u32 = 14;
const LEGEND_LINE: u32 = 22;

/// Colours that stay apart for all kinds of colour vision (Okabe and Ito, 2008), without the yellow that is too
/// pale for a line on white.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(228, 228, 228);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Result<T> = std::result::Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// One entry of the legend.
#[derive(Clone, Copy)]
struct Entry<'a> {
    name: &'a str,
    style: Style,
    colour: RGBColor,
}

pub(super) fn svg(figure: &Figure) -> String {
    let entries = entries(figure);
    let lines = legend_lines(&entries);
    let head = 34 + if figure.subtitle.is_empty() { 0 } else { 20 } + LEGEND_LINE * lines.len() as u32;
    let columns = figure.columns.min(figure.panels.len().max(1));
    let rows = figure.panels.len().div_ceil(columns).max(1);
    let height = head + PANEL_HEIGHT * rows as u32 + MARGIN;
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, (WIDTH * FINE, height * FINE));
        let root = backend.into_drawing_area();
        // Drawing into a string fails only where a coordinate system is empty, and Scale gives none.
        draw(&root, figure, &entries, &lines, head, (rows, columns))
            .expect("a string takes all that is drawn");
        root.present().expect("a string takes all that is drawn");
    }
    let fine = format!(r#"width="{}" height="{}""#, WIDTH * FINE, height * FINE);
    text.replacen(&fine, &format!(r#"width="{WIDTH}" height="{height}""#), 1)
}

fn draw(
    root: &Area<'_>,
    figure: &Figure,
    entries: &[Entry<'_>],
    lines: &[Vec<usize>],
    head: u32,
    (rows, columns): (usize, usize),
) -> Result<()> {
    root.fill(&WHITE)?;
    let left = (MARGIN * FINE) as i32;
    root.draw_text(&figure.title, &font(19, INK, FontStyle::Bold), (left, (12 * FINE) as i32))?;
    let mut y = 34;
    if !figure.subtitle.is_empty() {
        root.draw_text(
            &figure.subtitle,
            &font(13, RGBColor(90, 90, 90), FontStyle::Normal),
            (left, (y * FINE) as i32),
        )?;
        y += 20;
    }
    for line in lines {
        let mut x = MARGIN;
        for entry in line.iter().map(|index| &entries[*index]) {
            legend_entry(root, entry, x, y + LEGEND_LINE / 2)?;
            x += entry_width(entry.name);
        }
        y += LEGEND_LINE;
    }
    let (_, body) = root.split_vertically(head * FINE);
    let all = || figure.panels.iter().flat_map(|panel| panel.series.iter());
    for (panel, area) in figure.panels.iter().zip(body.split_evenly((rows, columns))) {
        let has_bars = holds_bars(&panel.series);
        let own = || panel.series.iter();
        let x = match figure.shares_x {
            true => Scale::new(&panel.x, values(all(), |point| point.0), false),
            false => Scale::new(&panel.x, values(own(), |point| point.0), false),
        };
        let y = match figure.shares_y {
            true => Scale::new(&panel.y, values(all(), |point| point.1), has_bars),
            false => Scale::new(&panel.y, values(own(), |point| point.1), has_bars),
        };
        draw_panel(&area, panel, x, y, entries)?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel, mut x: Scale, y: Scale, entries: &[Entry<'_>]) -> Result<()> {
    let bars: Vec<_> = panel.series.iter().filter(|series| series.style == Style::Bars).collect();
    let gap = bar_gap(&bars);
    if !bars.is_empty() && panel.x.names.is_empty() && panel.x.limits.is_none() {
        x.tick_at(bars.iter().flat_map(|series| &series.points).map(|point| point.0).collect());
        // The outermost bars stand whole.
        (x.low, x.high) =
            (x.low.min(bar_ends(&bars).0 - 0.6 * gap), x.high.max(bar_ends(&bars).1 + 0.6 * gap));
    }
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(MARGIN * FINE)
        .margin_right(2 * MARGIN * FINE)
        .margin_top(6 * FINE)
        .x_label_area_size(44 * FINE)
        .y_label_area_size(54 * FINE);
    if !panel.title.is_empty() {
        builder.caption(&panel.title, font(14, INK, FontStyle::Bold));
    }
    let mut chart = builder.build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT.stroke_width(FINE))
        .axis_style(RGBColor(150, 150, 150).stroke_width(FINE))
        .label_style(font(12, INK, FontStyle::Normal))
        .axis_desc_style(font(13, INK, FontStyle::Normal))
        .x_desc(&panel.x.label)
        .y_desc(&panel.y.label)
        .set_all_tick_mark_size(3 * FINE)
        .draw()?;
    let plane = chart.plotting_area();
    let mut bar = 0;
    for series in &panel.series {
        let colour = entries.iter().find(|entry| entry.name == series.name).map_or(INK, |entry| entry.colour);
        let points = series.points.iter().filter_map(|(a, b)| Some((x.position(*a)?, y.position(*b)?)));
        let inside = |point: &(f64, f64)| within(&x, point.0) && within(&y, point.1);
        match series.style {
            Style::Line | Style::Marked | Style::Guide => {
                let width = if series.style == Style::Guide { FINE } else { 2 * FINE };
                for part in parts(points.clone(), &x, &y) {
                    let part = thinned(&part, |point| plane.map_coordinate(point));
                    plane.draw(&PathElement::new(part, colour.stroke_width(width)))?;
                }
                if series.style == Style::Marked {
                    for point in points.filter(inside) {
                        plane.draw(&Circle::new(point, 4 * FINE, colour.filled()))?;
                    }
                }
            }
            Style::Expected => {
                for point in points.filter(inside) {
                    plane.draw(&Circle::new(point, 6 * FINE, colour.stroke_width(FINE * 3 / 2)))?;
                }
            }
            Style::Bars => {
                let width = 0.8 * gap / bars.len() as f64;
                let offset = (bar as f64 - bars.len() as f64 / 2.0) * width;
                for (position, top) in points {
                    let top = top.clamp(y.low, y.high);
                    let corners = [(position + offset, y.ground()), (position + offset + width * 0.94, top)];
                    plane.draw(&Rectangle::new(corners, colour.filled()))?;
                }
                bar += 1;
            }
        }
    }
    Ok(())
}

fn within(scale: &Scale, position: f64) -> bool {
    (scale.low - 1e-9..=scale.high + 1e-9).contains(&position)
}

/// The parts of a line inside the axes; where it leaves them, it is drawn up to the frame.
fn parts(points: impl Iterator<Item = (f64, f64)>, x: &Scale, y: &Scale) -> Vec<Vec<(f64, f64)>> {
    let (mut all, mut part): (Vec<Vec<_>>, Vec<(f64, f64)>) = (Vec::new(), Vec::new());
    let mut last: Option<(f64, f64)> = None;
    for point in points {
        let is_inside = within(x, point.0) && within(y, point.1);
        if let Some(last) = last {
            let was_inside = within(x, last.0) && within(y, last.1);
            match (was_inside, is_inside) {
                (true, false) => part.push(crossing(last, point, x, y)),
                (false, true) => part.push(crossing(point, last, x, y)),
                _ => {}
            }
        }
        if is_inside {
            part.push(point);
        } else if !part.is_empty() {
            all.push(std::mem::take(&mut part));
        }
        last = Some(point);
    }
    all.push(part);
    all.retain(|part| part.len() > 1);
    all
}

/// Returns the point where the way from `inside` to `outside` crosses the frame.
fn crossing(inside: (f64, f64), outside: (f64, f64), x: &Scale, y: &Scale) -> (f64, f64) {
    let share = |from: f64, to: f64, scale: &Scale| match to {
        to if to > scale.high => (scale.high - from) / (to - from),
        to if to < scale.low => (scale.low - from) / (to - from),
        _ => 1.0,
    };
    let share = share(inside.0, outside.0, x).min(share(inside.1, outside.1, y)).clamp(0.0, 1.0);
    (inside.0 + share * (outside.0 - inside.0), inside.1 + share * (outside.1 - inside.1))
}

/// Leaves out points that are too near to the last one that is kept to be told from it.
fn thinned(part: &[(f64, f64)], pixel: impl Fn(&(f64, f64)) -> (i32, i32)) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut last: Option<(i32, i32)> = None;
    for (index, point) in part.iter().enumerate() {
        let here = pixel(point);
        let far = last.is_none_or(|last| (here.0 - last.0).abs().max((here.1 - last.1).abs()) > FINE as i32);
        if far || index + 1 == part.len() {
            kept.push(*point);
            last = Some(here);
        }
    }
    kept
}

/// The distance of neighbouring bars: the smallest between two positions.
fn bar_gap(bars: &[&Series]) -> f64 {
    let mut positions: Vec<f64> =
        bars.iter().flat_map(|series| &series.points).map(|point| point.0).collect();
    positions.sort_by(f64::total_cmp);
    let gaps = positions.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0);
    gaps.fold(f64::INFINITY, f64::min).min(1.0)
}

fn bar_ends(bars: &[&Series]) -> (f64, f64) {
    let positions = bars.iter().flat_map(|series| &series.points).map(|point| point.0);
    positions.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)))
}

// ---------------------------------------------------------------------- the legend

/// Each name once, in the order in which they are drawn, with its colour.
fn entries(figure: &Figure) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut colours = PALETTE.iter().cycle();
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if entries.iter().all(|entry| entry.name != series.name) {
            let colour = match series.style {
                Style::Expected | Style::Guide => INK,
                _ => *colours.next().unwrap_or(&INK),
            };
            entries.push(Entry { name: &series.name, style: series.style, colour });
        }
    }
    entries
}

/// Distributes the entries over the lines of the legend. One name alone needs no legend: the title says it.
fn legend_lines(entries: &[Entry<'_>]) -> Vec<Vec<usize>> {
    let mut lines: Vec<Vec<usize>> = Vec::new();
    let mut used = WIDTH;
    for (index, entry) in entries.iter().enumerate().filter(|_| entries.len() > 1) {
        let width = entry_width(entry.name);
        if used + width > WIDTH - 2 * MARGIN {
            lines.push(Vec::new());
            used = 0;
        }
        used += width;
        lines.last_mut().expect("the first entry begins a line").push(index);
    }
    lines
}

/// Pixels, by the mean width of a letter: nothing here knows the font that the viewer has.
fn entry_width(name: &str) -> u32 {
    34 + 8 * name.chars().count() as u32 + 18
}

fn legend_entry(root: &Area<'_>, entry: &Entry<'_>, x: u32, y: u32) -> Result<()> {
    let at = |x: u32, y: u32| ((x * FINE) as i32, (y * FINE) as i32);
    let line = |width: u32| PathElement::new([at(x, y), at(x + 24, y)], entry.colour.stroke_width(width));
    match entry.style {
        Style::Line => root.draw(&line(3 * FINE))?,
        Style::Guide => root.draw(&line(FINE))?,
        Style::Marked => {
            root.draw(&line(2 * FINE))?;
            root.draw(&Circle::new(at(x + 12, y), 4 * FINE, entry.colour.filled()))?;
        }
        Style::Expected => {
            root.draw(&Circle::new(at(x + 12, y), 6 * FINE, entry.colour.stroke_width(FINE * 3 / 2)))?;
        }
        Style::Bars => {
            root.draw(&Rectangle::new([at(x + 4, y - 6), at(x + 20, y + 6)], entry.colour.filled()))?;
        }
    }
    let style = font(13, INK, FontStyle::Normal).pos(Pos::new(HPos::Left, VPos::Center));
    root.draw_text(entry.name, &style, at(x + 32, y))
}

/// Text of a size in pixels; the backend divides by 1.24.
fn font(pixels: u32, colour: RGBColor, style: FontStyle) -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::SansSerif, f64::from(pixels * FINE) * 1.24, style);
    TextStyle { color: colour.to_backend_color(), ..TextStyle::from(font) }
}
