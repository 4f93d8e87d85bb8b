//! Bare bounds: what a pocket calculation says, so that a reader sees what the emulation adds to it.

use crate::model::rate::{DPA_HZ, chunks_per_s};

use super::point::link_goodput;
use super::row::{Kind, Row};
use super::spec::{Bound, Limit, Plot};
use crate::reference::Transport;

/// Threads of a core.
const THREADS_PER_CORE: f64 = 16.0;

/// The bounds of a plot at every place of its horizontal axis where rows are. A bound whose row is missing has no
/// points.
#[must_use]
pub fn points(plot: &Plot, rows: &[Row]) -> Vec<Row> {
    let mut places: Vec<f64> =
        rows.iter().filter(|row| row.fits(&plot.filter)).filter_map(|row| row.number(&plot.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mut points = Vec::new();
    for bound in &plot.bound {
        for &x in &places {
            if let Some(y) = value(bound, plot, x, rows) {
                points.push(
                    Row::new(Kind::Computed, &bound.label)
                        .with("bound", bound.label.as_str())
                        .with(&plot.x, x)
                        .with(&plot.y, y),
                );
            }
        }
    }
    points
}

fn value(bound: &Bound, plot: &Plot, x: f64, rows: &[Row]) -> Option<f64> {
    let at = |column: &str, given: Option<f64>| if plot.x == column { Some(x) } else { given };
    let chunk_bytes = at("chunk_bytes", bound.chunk_bytes.map(|bytes| bytes as f64)).unwrap_or(4096.0) as u64;
    let threads = at("threads", bound.threads).unwrap_or(1.0);
    let cost = || {
        let column = if bound.limit == Limit::Latency { "cycles_per_cqe" } else { "instructions_per_cqe" };
        bound.of.or_else(|| {
            rows.iter().find(|row| row.fits(bound.of_row.as_ref().unwrap_or(&toml::Table::new())))?.number(column)
        })
    };
    let chunks = match bound.limit {
        Limit::Latency => threads * DPA_HZ / cost()?,
        Limit::Issue => (threads / THREADS_PER_CORE).ceil() * DPA_HZ / cost()?,
        Limit::Link => {
            let transport = bound.transport.unwrap_or(Transport::Uc);
            link_goodput(transport, chunk_bytes, bound.gbit_per_s?) * 1e9 / 8.0 / chunk_bytes as f64
        }
        Limit::Chunks => chunks_per_s(bound.gbit_per_s?, bound.chunk_bytes.unwrap_or(4096)),
    };
    match plot.y.as_str() {
        "goodput_gib_s" => Some(chunks * chunk_bytes as f64 / f64::from(1 << 30)),
        "goodput_gbit_s" => Some(chunks * chunk_bytes as f64 * 8.0 / 1e9),
        "chunks_m_s" => Some(chunks / 1e6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::spec::Scale;

    fn bound(limit: Limit, of: Option<f64>, gbit_per_s: Option<f64>) -> Bound {
        Bound {
            label: "b".to_owned(),
            limit,
            of,
            of_row: None,
            threads: None,
            chunk_bytes: None,
            gbit_per_s,
            transport: None,
        }
    }

    fn plot(y: &str, bounds: Vec<Bound>) -> Plot {
        Plot {
            title: String::new(),
            x: "threads".to_owned(),
            x_label: String::new(),
            x_scale: Scale::Log2,
            y: y.to_owned(),
            y_label: String::new(),
            y_scale: Scale::Linear,
            series: Vec::new(),
            range: None,
            filter: toml::Table::new(),
            bound: bounds,
        }
    }

    #[test]
    fn bounds_are_the_pocket_calculation() {
        let rows = [Row::new(Kind::Emulated, "M.2").with("threads", 16u32).with("cycles_per_cqe", 300.0)];
        let near = |plot: &Plot, expected: f64| {
            let points = points(plot, &rows);
            assert_eq!((points.len(), points[0].kind), (1, Kind::Computed));
            let value = points[0].number(&plot.y).unwrap();
            assert!((value / expected - 1.0).abs() < 1e-3, "{value} is not {expected}");
        };
        near(&plot("goodput_gib_s", vec![bound(Limit::Latency, Some(598.0), None)]), 16.0 * 11.482);
        near(&plot("goodput_gib_s", vec![bound(Limit::Issue, Some(66.0), None)]), 104.04);
        near(&plot("goodput_gib_s", vec![bound(Limit::Link, None, Some(200.0))]), 22.72);
        near(&plot("chunks_m_s", vec![bound(Limit::Chunks, None, Some(1600.0))]), 48.828);
        let own = Bound { of_row: Some("threads = 16".parse().unwrap()), ..bound(Limit::Latency, None, None) };
        near(&plot("chunks_m_s", vec![own.clone()]), 96.0);
        let missing = Bound { of_row: Some("threads = 17".parse().unwrap()), ..own };
        assert_eq!(points(&plot("chunks_m_s", vec![missing]), &rows), []);
    }
}
