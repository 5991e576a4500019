use super::*;

fn figure() -> Figure {
    let curve = |rate: f64| (0..5000).map(move |step| (f64::from(step), (-rate * f64::from(step)).exp()));
    Figure::new("Loss <against> time")
        .subtitle("softmax & digits")
        .columns(2)
        .panel(
            Panel::new(Axis::linear("virtual time, s"), Axis::log("loss"))
                .titled("loss")
                .with(Series::line("bsp", curve(1e-3)))
                .with(Series::line("essp(3)", curve(2e-3))),
        )
        .panel(
            Panel::new(Axis::names("staleness", ["0", "1", "2"]), Axis::linear("share of reads, %"))
                .with(Series::bars("bsp", [(0.0, 100.0)]))
                .with(Series::bars("essp(3)", [(0.0, 20.0), (1.0, 70.0), (2.0, 10.0)]))
                .with(Series::expected("paper", [(1.0, 69.0)])),
        )
}

#[test]
fn the_same_figure_gives_the_same_bytes() {
    assert_eq!(figure().svg(), figure().svg());
}

#[test]
fn what_is_drawn_is_one_document_with_its_texts_escaped() {
    let svg = figure().svg();
    assert!(svg.starts_with("<svg width=\"960\"") && svg.trim_end().ends_with("</svg>"), "{}", &svg[..200]);
    assert!(svg.contains("Loss &lt;against&gt; time") && svg.contains("softmax &amp; digits"));
    for text in ["virtual time, s", "share of reads, %", "essp(3)", "paper"] {
        assert_eq!(svg.matches(text).count(), 1, "{text}: the legend has each name once");
    }
}

#[test]
fn a_line_of_thousands_of_points_makes_no_large_file() {
    assert!(figure().svg().len() < 60_000, "{}", figure().svg().len());
}

#[test]
fn nothing_that_can_be_measured_is_too_much_for_an_axis() {
    for values in
        [vec![], vec![f64::NAN], vec![f64::INFINITY, 1.0], vec![0.0, 0.0], vec![1e300, -1e300], vec![5.0]]
    {
        for axis in [Axis::linear("y"), Axis::log("y"), Axis::linear("y").between(0.0, 2.0)] {
            let points = || values.iter().enumerate().map(|(x, y)| (x as f64, *y));
            let panel = Panel::new(Axis::linear("x"), axis.clone());
            let panel = panel.with(Series::marked("a", points())).with(Series::bars("b", points()));
            assert!(Figure::new("").panel(panel).svg().contains("</svg>"), "{values:?}");
        }
    }
}

#[test]
fn what_leaves_the_axes_is_cut_at_the_frame() {
    let steep = Panel::new(Axis::linear("x"), Axis::linear("y").between(0.0, 1.0))
        .with(Series::line("a", [(0.0, 0.5), (1.0, 1.5), (2.0, 0.5)]));
    let svg = Figure::new("").panel(steep).svg();
    assert!(svg.contains("polyline"));
}
