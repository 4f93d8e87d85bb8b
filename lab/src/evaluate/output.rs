//! Files of an experiment: rows as CSV and JSON, and expectations with what came out.

use std::io;
use std::path::{Path, PathBuf};

use emu_observe::new_file;

use super::EvaluateError;
use super::run::Outcome;
use super::spec::Experiment;

/// Name of the page.
pub const PAGE: &str = "index.html";
/// Name of the file that shows a drift of virtual time.
pub const TIMES: &str = "times.txt";

/// Names of an experiment's own files: rows, expectations, everything.
fn names(id: &str) -> [String; 3] {
    [format!("{id}.csv"), format!("{id}-comparison.csv"), format!("{id}.json")]
}

/// Makes the folder, and tries whether each file that will be in it can be written: before anything is run.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn attempt(folder: &Path, experiments: &[Experiment]) -> Result<(), EvaluateError> {
    let own = experiments.iter().flat_map(|experiment| names(&experiment.id));
    own.chain([PAGE, TIMES].map(str::to_owned)).try_for_each(|name| attempt_file(&folder.join(name)))
}

/// Tries whether a file can be written.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn attempt_file(path: &Path) -> Result<(), EvaluateError> {
    in_its_folder(path, |path| new_file::attempt(path))
}

/// Writes the files of an outcome into a folder, each whole or not at all.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn write(folder: &Path, outcome: &Outcome) -> Result<(), EvaluateError> {
    let [rows, expectations, all] = names(&outcome.experiment.id);
    write_file(&folder.join(rows), &csv(outcome))?;
    write_file(&folder.join(expectations), &comparison(outcome))?;
    write_file(&folder.join(all), &format!("{:#}\n", json(outcome)))
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn write_file(path: &Path, text: &str) -> Result<(), EvaluateError> {
    in_its_folder(path, |path| new_file::write(path, text))
}

fn in_its_folder(path: &Path, act: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), EvaluateError> {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let failed = |source| EvaluateError::File { what: "cannot be written:", path: PathBuf::from(path), source };
    made.and_then(|()| act(path)).map_err(failed)
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
    let header = ["what", "class", "published", "at least", "at most", "ours", "to", "kind", "verdict"];
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
            number(verdict.other),
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
