//! The fastest of others that do the same: what an algorithm's time is held against where another is best at each size.

use super::row::{Kind, Row};
use super::spec::Fastest;

/// Columns that say what is run, not how.
const SAME: [&str; 9] =
    ["operation", "ranks", "bytes", "topology", "loss_percent", "noise", "skew_us", "seed", "warm_up"];

/// Columns of an algorithm's parameters, where a sweep names them.
const PARAMETERS: [&str; 3] = ["radix", "segment_bytes", "segments"];

/// Adds to each emulated row of the algorithm which of the others is fastest for the same run, with its parameters
/// (`fastest`), the quotient of both times (`over_fastest`), and that of another column (`rate_over_fastest`) if one is
/// asked for. A row without another to compare with stays as it is.
pub fn add(fastest: &Fastest, rows: &mut [Row]) {
    let text = |row: &Row, column: &str| row.get(column).map(ToString::to_string);
    let algorithm = |row: &Row| text(row, "algorithm").unwrap_or_default();
    let emulated = |row: &&Row| row.kind == Kind::Emulated;
    let best = |own: &Row| {
        let same = |row: &&Row| SAME.iter().all(|column| row.get(column) == own.get(column));
        let others = rows.iter().filter(emulated).filter(same).filter(|row| fastest.among.contains(&algorithm(row)));
        others.filter_map(|row| Some((row.number(&fastest.of)?, row))).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let name = |row: &Row| {
        let parameters = PARAMETERS.iter().filter_map(|column| Some(format!("{column} {}", text(row, column)?)));
        std::iter::once(algorithm(row)).chain(parameters).collect::<Vec<_>>().join(", ")
    };
    let found: Vec<Option<(f64, String, Option<f64>)>> = rows
        .iter()
        .map(|row| {
            let (least, other) = (emulated(&row) && algorithm(row) == fastest.algorithm).then(|| best(row))??;
            Some((least, name(other), fastest.rate.as_ref().and_then(|rate| other.number(rate))))
        })
        .collect();
    let column = |base: &str| fastest.family.as_ref().map_or(base.to_owned(), |family| format!("{base}_{family}"));
    for (row, found) in rows.iter_mut().zip(found) {
        let Some((least, name, rate)) = found else { continue };
        let Some(own) = row.number(&fastest.of) else { continue };
        let own_rate = fastest.rate.as_ref().and_then(|rate| row.number(rate));
        *row = row.clone().with(&column("fastest"), name.as_str()).with(&column("over_fastest"), own / least);
        if let (Some(own), Some(other)) = (own_rate, rate) {
            *row = row.clone().with(&column("rate_over_fastest"), own / other);
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
        let fastest =
            Fastest { of: "time_us".to_owned(), algorithm: "auto".to_owned(), among, family: None, rate: None };
        add(&fastest, &mut rows);
        assert_eq!((rows[0].number("over_fastest"), rows[0].get("fastest")), (Some(1.2), Some(&"linear".into())));
        assert!(rows[1..].iter().all(|row| row.get("over_fastest").is_none() && row.get("fastest").is_none()));
    }

    #[test]
    fn a_family_has_columns_of_its_own_and_the_fastest_its_parameters() {
        let row = |name: &str, us: f64, rate: f64| {
            Row::new(Kind::Emulated, "M.2").with("algorithm", name).with("time_us", us).with("rate", rate)
        };
        let mut rows = vec![
            row("multicast", 10.0, 30.0),
            row("k-nomial", 40.0, 8.0).with("radix", 2u32),
            row("k-nomial", 20.0, 15.0).with("radix", 8u32).with("segment_bytes", 65_536u32),
        ];
        let fastest = Fastest {
            of: "time_us".to_owned(),
            algorithm: "multicast".to_owned(),
            among: vec!["k-nomial".to_owned()],
            family: Some("tree".to_owned()),
            rate: Some("rate".to_owned()),
        };
        add(&fastest, &mut rows);
        let row = &rows[0];
        assert_eq!((row.number("over_fastest_tree"), row.number("rate_over_fastest_tree")), (Some(0.5), Some(2.0)));
        assert_eq!(row.get("fastest_tree"), Some(&"k-nomial, radix 8, segment_bytes 65536".into()));
        assert_eq!(row.get("fastest"), None);
    }
}
