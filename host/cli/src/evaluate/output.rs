//! Files of an experiment: rows as CSV and JSON, and expectations beside what came out.

use std::path::{Path, PathBuf};

use super::EvaluateError;
use super::run::Outcome;

/// Writes the files of an outcome into a folder.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn write(folder: &Path, outcome: &Outcome) -> Result<(), EvaluateError> {
    let id = &outcome.experiment.id;
    write_file(&folder.join(format!("{id}.csv")), &csv(outcome))?;
    write_file(&folder.join(format!("{id}-comparison.csv")), &comparison(outcome))?;
    write_file(&folder.join(format!("{id}.json")), &format!("{:#}\n", json(outcome)))
}

/// Writes a file.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn write_file(path: &Path, text: &str) -> Result<(), EvaluateError> {
    let failed = |source| EvaluateError::File { what: "cannot be written:", path: PathBuf::from(path), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}

/// Columns of all rows, in the order in which they first occur.
#[must_use]
pub fn columns(outcome: &Outcome) -> Vec<String> {
    let mut columns: Vec<String> = Vec::new();
    for (column, _) in outcome.rows.iter().chain(outcome.bounds.iter().flatten()).flat_map(|row| &row.cells) {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    columns
}

/// Rows and bounds, one a line; a row has one kind, and empty fields where it has no value.
#[must_use]
pub fn csv(outcome: &Outcome) -> String {
    let columns = columns(outcome);
    let mut text = line(["kind", "source"].into_iter().map(str::to_owned).chain(columns.iter().cloned()));
    for row in outcome.rows.iter().chain(outcome.bounds.iter().flatten()) {
        let cells = columns.iter().map(|column| row.get(column).map_or_else(String::new, exact));
        text.push_str(&line([row.kind.name().to_owned(), row.source.clone()].into_iter().chain(cells)));
    }
    text
}

/// A cell with all its digits.
fn exact(cell: &super::row::Cell) -> String {
    match cell {
        super::row::Cell::Number(number) => number.to_string(),
        other => other.to_string(),
    }
}

/// What was emulated, a row a line, to six digits: so that a drift of virtual time shows.
#[must_use]
pub fn times(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        for row in outcome.rows.iter().filter(|row| row.kind == super::row::Kind::Emulated) {
            text.push_str(&format!("{} ({})", outcome.experiment.id, row.source));
            for (column, cell) in &row.cells {
                let value = match cell {
                    super::row::Cell::Number(number) => format!("{number:.5e}"),
                    other => other.to_string(),
                };
                text.push_str(&format!(" {column}={value}"));
            }
            text.push('\n');
        }
    }
    text
}

/// Expectations, one a line.
#[must_use]
pub fn comparison(outcome: &Outcome) -> String {
    let header = ["what", "class", "published", "at least", "at most", "ours", "kind", "verdict"];
    let mut text = line(header.into_iter().map(str::to_owned));
    let number = |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
    for verdict in &outcome.verdicts {
        text.push_str(&line([
            verdict.what.clone(),
            format!("{:?}", verdict.class).to_lowercase(),
            verdict.published.clone().unwrap_or_default(),
            number(verdict.at_least),
            number(verdict.at_most),
            number(verdict.value),
            verdict.kind.map_or_else(String::new, |kind| kind.name().to_owned()),
            verdict.verdict.name().to_owned(),
        ]));
    }
    text
}

fn line(fields: impl IntoIterator<Item = String>) -> String {
    let quoted = fields.into_iter().map(|field| {
        if field.contains([',', '"', '\n', '\r']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

/// Everything of an outcome.
#[must_use]
pub fn json(outcome: &Outcome) -> serde_json::Value {
    let rows = |rows: &[super::row::Row]| rows.iter().map(super::row::Row::json).collect::<Vec<_>>();
    serde_json::json!({
        "id": outcome.experiment.id,
        "title": outcome.experiment.title,
        "question": outcome.experiment.question,
        "paper": outcome.experiment.paper,
        "rows": rows(&outcome.rows),
        "bounds": outcome.bounds.iter().map(|bounds| rows(bounds)).collect::<Vec<_>>(),
        "verdicts": outcome.verdicts,
        "failures": outcome.failures.iter().map(|(run, reason)| serde_json::json!({"run": run, "reason": reason})).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let fields = ["a", "b, c", "d \"e\"", ""].map(str::to_owned);
        assert_eq!(line(fields.into_iter()), "a,\"b, c\",\"d \"\"e\"\"\",\n");
    }
}
