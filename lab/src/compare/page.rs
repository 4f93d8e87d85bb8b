//! The page of a comparison: one file, nothing from the network, light and dark.

use maud::{Markup, html};

use super::output::{COLUMNS, cells, heading};
use super::run::Comparison;
use super::{Op, Row, System};
use crate::evaluate::page::document;
use crate::evaluate::plot::{Place, Series, figure};
use crate::evaluate::row::Kind;
use crate::evaluate::spec::{Plot, Scale};

/// Systems, each with the number of its colour.
const SYSTEMS: [(System, usize); 8] = [
    (System::Flexcast, 0),
    (System::OpenMpi, 1),
    (System::Mpich, 2),
    (System::Gloo, 3),
    (System::MpiFlexcast, 4),
    (System::TorchFlexcast, 5),
    (System::MpiDirect, 6),
    (System::Bound, 7),
];

/// The page.
#[must_use]
pub fn page(comparison: &Comparison) -> String {
    let rows = &comparison.rows;
    let lines = heading(&comparison.settings, rows);
    let body = html! {
                h1 { "Flexcast: comparison with other collective libraries" }
                @for line in lines.iter().take(1) { p.lead { (line) } }
                ul { @for line in lines.iter().skip(1) { li { (line) } } }
                @for problem in &comparison.problems { p.failed { "Not measured: " (problem) } }
                @for op in Op::all() {
                    @let ranks = ranks_of(rows, op);
                    @if !ranks.is_empty() {
                        section id=(op.name()) {
                            h2 { (op.name()) }
                            p.soft { "Sizes are " (op.size_of()) ". Both axes are logarithmic; lower is better." }
                            div.plots { @for ranks in ranks { (plot(rows, op, ranks)) } }
                            (table(rows, op))
                        }
                    }
                }
    };
    document("Flexcast: comparison", &body)
}

/// Numbers of ranks among which an operation was measured.
fn ranks_of(rows: &[Row], op: Op) -> Vec<u32> {
    let mut ranks: Vec<u32> = rows.iter().filter(|row| row.op == op).map(|row| row.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

fn plot(rows: &[Row], op: Op, ranks: u32) -> Markup {
    let plot = Plot {
        title: format!("{} among {ranks} ranks (measured)", op.name()),
        x: "bytes".to_owned(),
        x_label: "bytes".to_owned(),
        x_scale: Scale::Log2,
        y: "median_us".to_owned(),
        y_label: "median time in µs (measured)".to_owned(),
        y_scale: Scale::Log10,
        series: Vec::new(),
        range: None,
        filter: toml::Table::new(),
        bound: Vec::new(),
    };
    let of_system = |(system, colour): (System, usize)| {
        let points = rows.iter().filter(|row| (row.op, row.ranks, row.system) == (op, ranks, system));
        let mut points: Vec<_> = points.map(|row| (row.bytes, row.median_us)).collect();
        points.sort_by_key(|(bytes, _)| *bytes);
        (!points.is_empty()).then(|| Series {
            label: system.name().to_owned(),
            kind: Kind::Measured,
            bound: system == System::Bound,
            colour,
            points: points.into_iter().map(|(bytes, time)| (Place::At(bytes as f64), time, None)).collect(),
        })
    };
    let series: Vec<Series> = SYSTEMS.into_iter().filter_map(of_system).collect();
    figure(&format!("{}-{ranks}", op.name()), &plot, &series)
}

fn table(rows: &[Row], op: Op) -> Markup {
    let is_number = |column: usize| column != 0 && column != 3;
    html! {
        details open {
            summary { "Figures (measured)" }
            div.scroll { table {
                thead { tr { @for (column, name) in COLUMNS.iter().enumerate() { th.number[is_number(column)] { (name) } } } }
                tbody { @for row in rows.iter().filter(|row| row.op == op) {
                    tr { @for (column, cell) in cells(row, rows).iter().enumerate() { td.number[is_number(column)] { (cell) } } }
                } }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::tests::comparison;
    use super::*;

    #[test]
    fn the_page_holds_everything_and_fetches_nothing() {
        let page = page(&comparison());
        assert_eq!(page.matches("<figure").count(), 2, "one for each operation and number of ranks that has rows");
        for text in [
            "wall time of real programs",
            "allgather among 4 ranks (measured)",
            "no &lt;torch&gt;",
            "processor &lt;1&gt;",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(page.contains("data-points=\"5\""), "{page}");
        for outside in ["http://", "https://", " src=", "<link", "@import", "url(h"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
