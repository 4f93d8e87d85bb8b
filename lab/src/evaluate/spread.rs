//! Statistics over runs that differ in their seed alone: rows made of rows.

use super::row::{Kind, Row};
use super::spec::Spread;
use super::statistics::Statistics;

/// The throughput of every rank in every operation, which no cell holds.
const SAMPLES: &str = "rank_gbit_s";

/// A row of each group of emulated rows, in the order in which groups first occur. Groups without a value have none.
#[must_use]
pub fn rows(spread: &Spread, rows: &[Row]) -> Vec<Row> {
    let mut groups: Vec<(Row, Vec<f64>, u64)> = Vec::new();
    for row in rows.iter().filter(|row| row.kind == Kind::Emulated) {
        let values = match spread.of.as_str() {
            SAMPLES => row.samples.clone(),
            column => row.number(column).into_iter().collect(),
        };
        if values.is_empty() {
            continue;
        }
        let named = Row::new(Kind::Emulated, &format!("{}; statistics over seeds", row.source));
        let named =
            spread.by.iter().fold(named.with("of", spread.of.as_str()), |named, column| match row.get(column) {
                Some(cell) => named.with(column, cell.clone()),
                None => named,
            });
        match groups.iter_mut().find(|(group, ..)| *group == named) {
            Some((_, all, runs)) => {
                all.extend(values);
                *runs += 1;
            }
            None => groups.push((named, values, 1)),
        }
    }
    let row = |(group, values, runs): (Row, Vec<f64>, u64)| {
        let statistics = Statistics::of(&values)?;
        Some(statistics.columns(group.with("runs", runs).with("samples", statistics.samples as u64), ""))
    };
    groups.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_distinguished_by_their_columns_alone() {
        let run = |name: &str, seed: u32, us: f64| {
            let mut row =
                Row::new(Kind::Emulated, "M.2").with("algorithm", name).with("seed", seed).with("time_us", us);
            row.samples = vec![us, us + 1.0];
            row
        };
        let mut all = vec![run("ring", 1, 10.0), run("multicast", 1, 4.0), run("ring", 2, 20.0)];
        all.push(Row::new(Kind::Published, "p").with("algorithm", "ring").with("time_us", 99.0));
        let spread = |of: &str| Spread { of: of.to_owned(), by: vec!["algorithm".to_owned(), "none".to_owned()] };
        let times = rows(&spread("time_us"), &all);
        assert_eq!(times.len(), 2);
        let number = |row: &Row, column: &str| row.number(column).unwrap();
        assert_eq!(
            (number(&times[0], "mean"), number(&times[0], "samples"), number(&times[0], "runs")),
            (15.0, 2.0, 2.0)
        );
        assert_eq!((number(&times[1], "variation"), times[1].get("algorithm")), (0.0, Some(&"multicast".into())));
        let pooled = rows(&spread("rank_gbit_s"), &all);
        assert_eq!(
            (number(&pooled[0], "samples"), number(&pooled[0], "runs"), number(&pooled[0], "max")),
            (4.0, 2.0, 21.0)
        );
        assert_eq!(pooled[0].kind, Kind::Emulated);
        assert_eq!(rows(&spread("nothing"), &all), []);
    }
}
