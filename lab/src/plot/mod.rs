//! Charts as SVG: lines, bars and points in one or more panels under one title and one legend.
//!
//! The same figure gives the same bytes on every machine and at every time, so a plot that is kept under version
//! control changes only when what it shows does.
//!
//! ```
//! use slackline_lab::plot::{Axis, Figure, Panel, Series};
//! let mut panel = Panel::new(Axis::linear("virtual time, s"), Axis::log("loss"));
//! panel.series.push(Series::line("bsp", [(0.0, 2.3), (1.0, 0.9), (2.0, 0.4)]));
//! let svg = Figure::new("Loss against time").panel(panel).svg();
//! assert!(svg.starts_with("<svg"));
//! ```

mod draw;
mod scale;

#[cfg(test)]
mod tests;

use slackline::sim::CountHistogram;

/// The drawing of one file.
#[derive(Clone, Debug)]
pub struct Figure {
    title: String,
    subtitle: String,
    columns: usize,
    shares_x: bool,
    shares_y: bool,
    panels: Vec<Panel>,
}

/// One pair of axes with what stands between them.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above the axes; may be empty.
    pub title: String,
    /// Along the bottom.
    pub x: Axis,
    /// Along the left side.
    pub y: Axis,
    /// Drawn in this order. Series of one name have one colour in all panels, and one entry in the legend.
    pub series: Vec<Series>,
}

/// The meaning of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    label: String,
    is_log: bool,
    limits: Option<(f64, f64)>,
    names: Vec<String>,
}

/// Values of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    name: String,
    style: Style,
    points: Vec<(f64, f64)>,
}

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Style {
    Line,
    /// A line with its points marked.
    Marked,
    Bars,
    /// Results of others: open black circles.
    Expected,
    /// A thin black line, for what is only there to compare with.
    Guide,
}

impl Figure {
    /// A figure without panels.
    pub fn new(title: impl Into<String>) -> Figure {
        Figure {
            title: title.into(),
            subtitle: String::new(),
            columns: 3,
            shares_x: false,
            shares_y: false,
            panels: Vec::new(),
        }
    }

    /// Puts a line under the title: the set-up in a few words.
    pub fn subtitle(mut self, subtitle: impl Into<String>) -> Figure {
        self.subtitle = subtitle.into();
        self
    }

    /// Adds a panel after those that are there, row by row.
    pub fn panel(mut self, panel: Panel) -> Figure {
        self.panels.push(panel);
        self
    }

    /// Sets the number of panels side by side, which is 3 by default.
    pub fn columns(mut self, columns: usize) -> Figure {
        self.columns = columns.max(1);
        self
    }

    /// Gives all panels the same limits along x.
    pub fn share_x(mut self) -> Figure {
        self.shares_x = true;
        self
    }

    /// Gives all panels the same limits along y.
    pub fn share_y(mut self) -> Figure {
        self.shares_y = true;
        self
    }

    /// The figure as the text of an SVG file.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}

impl Panel {
    /// A panel without a title, with nothing in it.
    pub fn new(x: Axis, y: Axis) -> Panel {
        Panel { title: String::new(), x, y, series: Vec::new() }
    }

    /// Gives it a title.
    pub fn titled(mut self, title: impl Into<String>) -> Panel {
        self.title = title.into();
        self
    }

    /// Adds a series.
    pub fn with(mut self, series: Series) -> Panel {
        self.series.push(series);
        self
    }
}

impl Axis {
    /// Equal steps for equal differences. The label ends in the unit.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), is_log: false, limits: None, names: Vec::new() }
    }

    /// Equal steps for equal ratios; what is not above 0 is left out.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { is_log: true, ..Axis::linear(label) }
    }

    /// One position for each name: the first at 0, the next at 1.
    pub fn names<N: Into<String>>(label: impl Into<String>, names: impl IntoIterator<Item = N>) -> Axis {
        Axis { names: names.into_iter().map(Into::into).collect(), ..Axis::linear(label) }
    }

    /// Shows this part; what lies outside is cut off.
    pub fn between(mut self, low: f64, high: f64) -> Axis {
        self.limits = Some((low, high));
        self
    }
}

impl Series {
    /// A line through the points.
    pub fn line(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series::new(name, Style::Line, points)
    }

    /// A line through the points, each marked.
    pub fn marked(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series::new(name, Style::Marked, points)
    }

    /// A bar from 0 for each point, beside the bars of other series at the same position.
    pub fn bars(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series::new(name, Style::Bars, points)
    }

    /// Open circles: figures of the literature, to be compared with what lies under them.
    pub fn expected(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series::new(name, Style::Expected, points)
    }

    /// A thin black line, for a limit or a level.
    pub fn guide(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series::new(name, Style::Guide, points)
    }

    fn new(name: impl Into<String>, style: Style, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), style, points: points.into_iter().collect() }
    }
}

/// A histogram in per cent.
pub fn staleness(name: &str, histogram: &CountHistogram, is_wide: bool) -> Series {
    let total = histogram.total().max(1) as f64;
    let points: Vec<_> =
        histogram.iter().map(|(value, count)| (value as f64, 100.0 * count as f64 / total)).collect();
    if is_wide { Series::line(name, points) } else { Series::bars(name, points) }
}
