//! Plots as SVG: lines of what was emulated or computed, marks of what was published, bare bounds as dashes. Colours
//! are the page's.

use maud::{Markup, PreEscaped, html};
use serde::Serialize;

use super::axis::{self, Axis};
use super::row::{Cell, Kind, Row};
use super::spec::{Plot, Scale};
use crate::figures::short;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 56.0;
/// Colours of the page: `--c0` and so on.
const COLOURS: usize = 8;

/// A point: place, value, and the range around it where there is one.
pub type Mark = (Place, f64, Option<(f64, f64)>);

/// A series as it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub label: String,
    /// Where its points come from.
    pub kind: Kind,
    /// Whether it is a bare bound.
    pub bound: bool,
    /// Number of its colour.
    pub colour: usize,
    /// Its points.
    pub points: Vec<Mark>,
}

/// A place on the horizontal axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Place {
    /// A number.
    At(f64),
    /// One of some words.
    Of(String),
}

/// The series of a plot: rows that fit, distinguished by kind and by the plot's columns, then the bounds.
#[must_use]
pub fn series(plot: &Plot, rows: &[Row], bounds: &[Row]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in rows.iter().filter(|row| row.fits(&plot.filter)) {
        let (Some(x), Some(y)) = (row.get(&plot.x), row.number(&plot.y)) else { continue };
        let place = match x {
            Cell::Word(word) => Place::Of(word.clone()),
            number => Place::At(number.number().unwrap_or_default()),
        };
        let mut label = label(row, &plot.series);
        let range = plot.range.as_ref().and_then(|[low, high]| Some((row.number(low)?, row.number(high)?)));
        let name = label.clone();
        if row.kind == Kind::Published && label != Kind::Published.name() {
            label = if name.is_empty() { row.kind.name().to_owned() } else { format!("{name} (published)") };
        }
        // A published series has the colour of ours of the same name.
        let twin =
            all.iter().find(|other| row.kind == Kind::Published && other.label == name).map(|other| other.colour);
        let fresh = all.iter().map(|other| other.colour + 1).max().unwrap_or_default();
        match all.iter_mut().find(|other| other.label == label && other.kind == row.kind) {
            Some(known) => known.points.push((place, y, range)),
            None => all.push(Series {
                label,
                kind: row.kind,
                bound: false,
                colour: twin.unwrap_or(fresh),
                points: vec![(place, y, range)],
            }),
        }
    }
    for row in bounds {
        let (Some(label), Some(x), Some(y)) = (row.get("bound"), row.number(&plot.x), row.number(&plot.y)) else {
            continue;
        };
        let (label, point) = (label.to_string(), (Place::At(x), y, None));
        let fresh = all.iter().map(|other| other.colour + 1).max().unwrap_or_default();
        match all.iter_mut().find(|other| other.bound && other.label == label) {
            Some(known) => known.points.push(point),
            None => all.push(Series { label, kind: Kind::Computed, bound: true, colour: fresh, points: vec![point] }),
        }
    }
    for series in &mut all {
        if series.points.iter().all(|(place, ..)| matches!(place, Place::At(_))) {
            series.points.sort_by(|(one, ..), (other, ..)| number(one).total_cmp(&number(other)));
        }
    }
    all
}

/// The name of a row's series: words as they are, numbers with what they are of.
fn label(row: &Row, columns: &[String]) -> String {
    let name = |column: &String| {
        let (cell, shown) = (row.get(column)?, row.shown(column)?);
        let words = super::page::heading(column);
        Some(match cell.number() {
            None => shown,
            Some(1.0) => format!("1 {}", words.strip_suffix('s').unwrap_or(&words)),
            Some(_) => format!("{shown} {words}"),
        })
    };
    columns.iter().filter_map(name).collect::<Vec<_>>().join(", ")
}

fn number(place: &Place) -> f64 {
    match place {
        Place::At(number) => *number,
        Place::Of(_) => 0.0,
    }
}

/// The words of the horizontal axis, in order; none if it has numbers.
fn words(series: &[Series]) -> Vec<&str> {
    let mut words = Vec::new();
    for (place, ..) in series.iter().flat_map(|series| &series.points) {
        if let Place::Of(word) = place
            && !words.contains(&word.as_str())
        {
            words.push(word.as_str());
        }
    }
    words
}

/// A plot with its legend and its data.
#[must_use]
pub fn figure(id: &str, plot: &Plot, series: &[Series]) -> Markup {
    let shown = |series: &Series| {
        series.points.iter().map(|(_, y, range)| range.map_or(*y, |(_, high)| high.max(*y))).fold(0.0, f64::max)
    };
    // A bound far above everything else would flatten the rest: what is above the axis is cut off.
    let most = series.iter().filter(|series| !series.bound).map(shown).fold(0.0, f64::max);
    let mut heights: Vec<f64> = series
        .iter()
        .flat_map(|series| series.points.iter().map(move |(_, y, _)| (series.bound, *y)))
        .filter(|(bound, y)| !bound || *y <= 1.5 * most || most == 0.0)
        .map(|(_, y)| y)
        .collect();
    heights.push(most);
    let y_axis = Axis::new(plot.y_scale, &heights, HEIGHT - BOTTOM, TOP);
    let words = words(series);
    let places: Vec<f64> =
        series.iter().flat_map(|series| series.points.iter().map(|(place, ..)| number(place))).collect();
    let x_axis = Axis::new(if words.is_empty() { plot.x_scale } else { Scale::Linear }, &places, LEFT, WIDTH - RIGHT);
    let data = serde_json::json!({"x": plot.x, "y": plot.y, "series": series}).to_string().replace("</", "<\\/");
    let points: usize = series.iter().map(|series| series.points.len()).sum();
    html! {
        figure.plot {
            figcaption { (plot.title) }
            svg id=(id) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(plot.title) data-points=(points) {
                @for (value, text) in y_axis.ticks() {
                    @let y = place(y_axis.place(value));
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y) y2=(y) {}
                    text.tick x=(LEFT - 8.0) y=(y) dy="0.32em" text-anchor="end" { (text) }
                }
                @if words.is_empty() {
                    @for (value, text) in x_axis.ticks() {
                        @let x = place(x_axis.place(value));
                        line.grid x1=(x) x2=(x) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
                        text.tick x=(x) y=(HEIGHT - BOTTOM + 18.0) text-anchor="middle" { (text) }
                    }
                }
                line.axis x1=(LEFT) x2=(WIDTH - RIGHT) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM) {}
                line.axis x1=(LEFT) x2=(LEFT) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
                text.label x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 9.0) text-anchor="middle" { (plot.x_label) }
                text.label x="0" y="0" text-anchor="middle"
                    transform=(format!("translate(18 {}) rotate(-90)", (TOP + HEIGHT - BOTTOM) / 2.0)) { (plot.y_label) }
                @if words.is_empty() {
                    clipPath id=(format!("{id}-within")) {
                        rect x=(LEFT) y=(TOP) width=(WIDTH - LEFT - RIGHT) height=(HEIGHT - TOP - BOTTOM) {}
                    }
                    g clip-path=(format!("url(#{id}-within)")) {
                        @for series in series.iter().filter(|series| series.bound) { (line(series, &x_axis, &y_axis, most, plot)) }
                    }
                    @for series in series.iter().filter(|series| !series.bound) { (line(series, &x_axis, &y_axis, most, plot)) }
                } @else {
                    (bars(series, &words, &y_axis))
                }
            }
            ul.legend {
                // What is not drawn has no sample.
                @for series in series.iter().filter(|series| !is_beyond(series, most)) {
                    li {
                        svg width="34" height="14" viewBox="0 0 34 14" aria-hidden="true" { (sample(series, !words.is_empty())) }
                        (if series.label.is_empty() { &plot.y_label } else { &series.label })
                        @if series.kind != Kind::Published { span.kind { (series.kind.name()) } }
                    }
                }
            }
            script type="application/json" data-of=(id) { (PreEscaped(data)) }
        }
    }
}

fn place(value: f64) -> String {
    format!("{value:.1}")
}

fn colour(series: &Series) -> String {
    format!("--c: var(--c{})", series.colour % COLOURS)
}

fn style(series: &Series) -> &'static str {
    match (series.bound, series.kind) {
        (true, _) => "bound",
        (_, Kind::Published) => "published",
        (_, Kind::Computed) => "computed",
        (_, Kind::Emulated | Kind::Measured) => "ours",
    }
}

fn sample(series: &Series, bars: bool) -> Markup {
    html! {
        g class=(style(series)) style=(colour(series)) {
            @if bars { rect.mark x="10" y="1" width="14" height="12" {} }
            @else {
                @if series.kind != Kind::Published { path d="M1 7H33" {} }
                @if !series.bound { (mark(series, 17.0, 7.0)) }
            }
        }
    }
}

/// A mark: a diamond where published, a square where computed, else a circle.
fn mark(series: &Series, x: f64, y: f64) -> Markup {
    html! {
        @if series.kind == Kind::Published {
            path.mark d=(format!("M{x:.1} {:.1}l6 6l-6 6l-6 -6z", y - 6.0)) {}
        } @else if series.kind == Kind::Computed {
            rect.mark x=(place(x - 3.5)) y=(place(y - 3.5)) width="7" height="7" {}
        } @else {
            circle.mark cx=(place(x)) cy=(place(y)) r="4" {}
        }
    }
}

/// Whether a bound is above the plot everywhere: it is in the table, and would only seem to be the plot's upper edge.
fn is_beyond(series: &Series, most: f64) -> bool {
    series.bound && most > 0.0 && series.points.iter().all(|(_, y, _)| *y > 1.5 * most)
}

fn line(series: &Series, x_axis: &Axis, y_axis: &Axis, most: f64, plot: &Plot) -> Markup {
    // A bound goes on to the edge, where it is cut off; results are within.
    let height = |y: f64| if series.bound { y_axis.beyond(y) } else { y_axis.place(y) };
    let points: Vec<(f64, f64)> =
        series.points.iter().map(|(place, y, _)| (x_axis.place(number(place)), height(*y))).collect();
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        path.push_str(&format!("{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" }));
    }
    // A bound at one place is a level.
    if series.bound && points.len() == 1 {
        path = format!("M{LEFT} {:.1}H{:.1}", points[0].1, WIDTH - RIGHT);
    }
    let hidden = is_beyond(series, most);
    html! {
        g class=(style(series)) style=(colour(series)) {
            @if series.kind != Kind::Published && !hidden { path d=(path) {} }
            @for ((at, y, range), (x, top)) in series.points.iter().zip(&points) {
                @if let Some((low, high)) = range {
                    path.range d=(format!("M{x:.1} {:.1}V{:.1}", y_axis.place(*low), y_axis.place(*high))) {}
                }
                @if !series.bound {
                    g {
                        (mark(series, *x, *top))
                        title { (series.label) ": " (short(number(at))) " → " (short(*y)) " (" (plot.y_label) ")" }
                    }
                }
            }
        }
    }
}

fn bars(series: &[Series], words: &[&str], y_axis: &Axis) -> Markup {
    let group = (WIDTH - LEFT - RIGHT) / words.len() as f64;
    let bar = (group * 0.8 / series.len().max(1) as f64).min(70.0);
    let floor = y_axis.place(0.0);
    // Where there is no room side by side, every other one stands lower, or higher.
    let lower = |number: usize| if words.len() > 5 && number % 2 == 1 { 13.0 } else { 0.0 };
    let higher = |index: usize| if bar < 48.0 && index % 2 == 1 { 12.0 } else { 0.0 };
    html! {
        @for (number, word) in words.iter().enumerate() {
            text.tick x=(place(LEFT + (number as f64 + 0.5) * group)) y=(HEIGHT - BOTTOM + 16.0 + lower(number)) text-anchor="middle" { (word) }
        }
        @for (index, series) in series.iter().enumerate() {
            g class=(style(series)) style=(colour(series)) {
                @for (at, y, _) in &series.points {
                    @if let Place::Of(word) = at {
                        @let group_number = words.iter().position(|other| other == word).unwrap_or_default() as f64;
                        @let all = all_series(bar, index, group_number, group);
                        @let top = y_axis.place(*y);
                        g {
                            rect.mark x=(place(all.0)) y=(place(top)) width=(place(bar * 0.9)) height=(place((floor - top).max(0.5))) {}
                            text.value x=(place(all.0 + bar * 0.45)) y=(place(top - 4.0 - higher(index))) text-anchor="middle" { (axis::label(*y)) }
                            title { (series.label) ", " (word) ": " (short(*y)) }
                        }
                    }
                }
            }
        }
    }
}

/// Where the bar of a series in a group begins, and ends.
fn all_series(bar: f64, index: usize, group_number: f64, group: f64) -> (f64, f64) {
    let start = LEFT + group_number * group + group * 0.1 + index as f64 * bar;
    (start, start + bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        toml::from_str(
            "title = \"t\"\nx = \"threads\"\nx_label = \"threads\"\nx_scale = \"log2\"\ny = \"rate\"\ny_label \
             = \"Gbit/s\"\nseries = [\"image\"]",
        )
        .unwrap()
    }

    fn row(kind: Kind, image: &str, threads: u32, rate: f64) -> Row {
        Row::new(kind, "m").with("image", image).with("threads", threads).with("rate", rate)
    }

    #[test]
    fn every_point_is_drawn_and_embedded() {
        let rows = [
            row(Kind::Emulated, "ours", 4, 98.0),
            row(Kind::Emulated, "ours", 1, 50.0),
            row(Kind::Published, "ours", 4, 97.0),
            row(Kind::Emulated, "other", 1, 20.0),
            Row::new(Kind::Emulated, "m").with("image", "no rate"),
        ];
        let bounds = [Row::new(Kind::Computed, "b").with("bound", "link").with("threads", 1.0).with("rate", 100.0)];
        let all = series(&plot(), &rows, &bounds);
        let names: Vec<&str> = all.iter().map(|series| series.label.as_str()).collect();
        assert_eq!(names, ["ours", "ours (published)", "other", "link"]);
        assert_eq!(all[0].points[0].0, Place::At(1.0), "in order of the axis");
        assert_eq!(all[0].colour, all[1].colour);
        let text = figure("f-1", &plot(), &all).into_string();
        assert_eq!(text.matches("class=\"mark\"").count(), 4 + 3, "four points, and three samples in the legend");
        assert!(text.contains("data-points=\"5\"") && text.contains("data-of=\"f-1\"") && text.contains("Gbit/s"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn kinds_are_distinguished_where_nothing_else_does() {
        let none = Plot { series: Vec::new(), ..plot() };
        let kinds = [Kind::Emulated, Kind::Emulated, Kind::Computed, Kind::Published, Kind::Published];
        let rows: Vec<Row> = (1..).zip(kinds).map(|(threads, kind)| row(kind, "a", threads, 3.0)).collect();
        let all = series(&none, &rows, &[]);
        let shown: Vec<_> =
            all.iter().map(|series| (series.label.as_str(), series.points.len(), series.colour)).collect();
        assert_eq!(shown, [("", 2, 0), ("", 1, 1), ("published", 2, 0)]);
        let text = figure("f", &none, &all).into_string();
        for (mark, count) in [("<circle class=\"mark\"", 3), ("<rect class=\"mark\"", 2), ("<path class=\"mark\"", 3)] {
            assert_eq!(text.matches(mark).count(), count, "{mark}");
        }
    }

    #[test]
    fn numbers_in_a_legend_say_of_what() {
        let named = ["image", "threads"].map(str::to_owned);
        assert_eq!(label(&row(Kind::Emulated, "ours", 4, 1.0), &named), "ours, 4 threads");
        assert_eq!(label(&row(Kind::Emulated, "ours", 1, 1.0), &named), "ours, 1 thread");
        let chains =
            |chains: u32| label(&row(Kind::Emulated, "ours", 1, 1.0).with("chains", chains), &["chains".to_owned()]);
        assert_eq!([0, 1, 16].map(chains), ["automatic chains", "1 chain", "16 chains"]);
    }

    #[test]
    fn words_make_bars() {
        let words = Plot { x: "image".to_owned(), series: vec!["threads".to_owned()], ..plot() };
        let rows = [row(Kind::Emulated, "a<b", 1, 3.0), row(Kind::Emulated, "c", 1, 0.0)];
        let text = figure("f", &words, &series(&words, &rows, &[])).into_string();
        assert_eq!(text.matches("<rect class=\"mark\"").count(), 2 + 1, "two bars, and the sample in the legend");
        assert!(text.contains("a&lt;b"));
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        let text = figure("f", &plot(), &[]).into_string();
        assert!(text.contains("data-points=\"0\"") && !text.contains("NaN"));
    }
}
