//! The fastest of others that do the same: what an algorithm's time is held against where another is best at each size.

use super::row::{Kind, Row};
use super::spec::Fastest;

/// Columns that tell what is run, apart from how.
const SAME: [&str; 9] =
    ["operation", "ranks", "bytes", "topology", "loss_percent", "noise", "skew_us", "seed", "warm_up"];

/// Adds to each emulated row of the algorithm which of the others is fastest for the same run (`fastest`), and the quotient of both times
/// (`over_fastest`). A row that has no other beside it stays as it is.
pub fn add(fastest: &Fastest, rows: &mut [Row]) {
    let algorithm = |row: &Row| row.get("algorithm").map(ToString::to_string).unwrap_or_default();
    let emulated = |row: &&Row| row.kind == Kind::Emulated;
    let best = |own: &Row| {
        let same = |row: &&Row| SAME.iter().all(|column| row.get(column) == own.get(column));
        let others = rows.iter().filter(emulated).filter(same).filter(|row| fastest.among.contains(&algorithm(row)));
        others.filter_map(|row| Some((row.number(&fastest.of)?, algorithm(row)))).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let found: Vec<Option<(f64, String)>> =
        rows.iter().map(|row| (emulated(&row) && algorithm(row) == fastest.algorithm).then(|| best(row))?).collect();
    for (row, found) in rows.iter_mut().zip(found) {
        if let Some((least, name)) = found
            && let Some(own) = row.number(&fastest.of)
        {
            *row = row.clone().with("fastest", name.as_str()).with("over_fastest", own / least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_does_the_same_and_is_among_those_named() {
        let row = |kind, name: &str, bytes: u64, us: f64| {
            Row::new(kind, "M.2").with("algorithm", name).with("bytes", bytes).with("time_us", us)
        };
        let mut rows = vec![
            row(Kind::Emulated, "auto", 64, 12.0),
            row(Kind::Emulated, "ring", 64, 30.0),
            row(Kind::Emulated, "linear", 64, 10.0),
            // Not among those named, of other bytes, of another kind.
            row(Kind::Emulated, "multicast", 64, 2.0),
            row(Kind::Emulated, "linear", 65, 1.0),
            row(Kind::Published, "linear", 64, 1.0),
            row(Kind::Emulated, "auto", 4096, 9.0),
        ];
        let among = ["ring", "linear"].map(str::to_owned).into();
        add(&Fastest { of: "time_us".to_owned(), algorithm: "auto".to_owned(), among }, &mut rows);
        assert_eq!((rows[0].number("over_fastest"), rows[0].get("fastest")), (Some(1.2), Some(&"linear".into())));
        assert!(rows[1..].iter().all(|row| row.get("over_fastest").is_none() && row.get("fastest").is_none()));
    }
}
