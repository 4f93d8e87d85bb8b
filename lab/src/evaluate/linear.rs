//! Linear growth of one column with another: the square of the coefficient of correlation (R²), over rows that differ
//! in the one alone.

use super::row::{Kind, Row};
use super::spec::Linear;

/// Rows with `r_squared`, one for each group of emulated rows that are the same in the columns of `same`. Groups of
/// fewer than three rows have none.
#[must_use]
pub fn rows(linear: &Linear, rows: &[Row]) -> Vec<Row> {
    let mut groups: Vec<(Row, Vec<(f64, f64)>)> = Vec::new();
    for row in rows.iter().filter(|row| row.kind == Kind::Emulated) {
        let Some(point) = row.number(&linear.x).zip(row.number(&linear.of)) else { continue };
        let key = linear.same.iter().fold(Row::new(Kind::Emulated, &row.source), |key, column| match row.get(column) {
            Some(cell) => key.with(column, cell.clone()),
            None => key,
        });
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, points)) => points.push(point),
            None => groups.push((key, vec![point])),
        }
    }
    let fits = groups.into_iter().filter(|(_, points)| points.len() > 2);
    fits.filter_map(|(key, points)| Some(key.with("r_squared", r_squared(&points)?))).collect()
}

/// None where one of the two does not vary.
fn r_squared(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|point| of(point.0 - x, point.1 - y)).sum::<f64>();
    let (xx, yy, xy) = (sum(&|x, _| x * x), sum(&|_, y| y * y), sum(&|x, y| x * y));
    (xx > 0.0 && yy > 0.0).then(|| xy * xy / (xx * yy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_one_and_a_bow_less() {
        let row = |ranks: u32, bytes: u32, us: f64| {
            Row::new(Kind::Emulated, "M").with("ranks", ranks).with("bytes", bytes).with("us", us)
        };
        let all = [
            row(1, 8, 5.0),
            row(2, 8, 7.0),
            row(3, 8, 9.0),
            row(1, 9, 1.0),
            row(2, 9, 1.0),
            row(3, 9, 4.0),
            row(1, 7, 1.0),
        ];
        let linear = Linear { of: "us".to_owned(), x: "ranks".to_owned(), same: vec!["bytes".to_owned()] };
        let found = rows(&linear, &all);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].number("r_squared"), Some(1.0));
        let bow = found[1].number("r_squared").unwrap();
        assert!((bow - 0.75).abs() < 1e-9, "{bow}");
    }
}
