//! Coverage of the card and its libraries by the emulator: docs/coverage.toml as a page, each row held against the
//! sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use self::sources::Export;
use crate::{page, status, workspace};

mod checks;
mod sources;

/// Write target/docs/coverage.md: what of the card is emulated, refused with an error, or not applicable.
#[derive(clap::Args)]
pub(crate) struct Coverage {
    /// Write nothing; only check that every row of docs/coverage.toml holds.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    introduction: String,
    #[serde(rename = "table")]
    tables: Vec<Table>,
}

/// Things of one kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    /// Public documents that name these things.
    source: String,
    #[serde(default)]
    text: String,
    /// Where the rows are functions: headers that declare them. Every function declared there, and none else, is a row.
    headers: Option<Headers>,
    /// Exported functions that no other table lists are rows of this one.
    rest: Option<Rest>,
    #[serde(default)]
    rows: Vec<Row>,
}

/// Exported functions without a header here. Those that a list in a macro defines are refused, with its reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rest {
    /// What the names begin with.
    prefixes: Vec<String>,
    /// `path: function` of the test that calls every refused one.
    by: String,
}

/// Headers whose functions are the rows of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Headers {
    files: Vec<String>,
    /// What the names begin with.
    prefix: String,
    kind: Kind,
}

/// What is searched for in a header, and where its definition must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// Declared functions, exported by the emulator's shared library.
    Exported,
    /// Declared functions, defined by the emulated device's library.
    Device,
    /// Inline functions and macros: the header is the definition.
    Inline,
}

/// One thing that the sources name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    is: Status,
    /// `path: item` that implements or refuses it; `path` alone where the item has the row's name.
    at: Option<String>,
    /// `path: function` of a test that fails without it.
    by: Option<String>,
    /// What is refused, why it does not apply, or what is particular.
    #[serde(default)]
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    Implemented,
    Refused,
    NotApplicable,
}

impl Status {
    const ALL: [Self; 3] = [Self::Implemented, Self::Refused, Self::NotApplicable];

    fn text(self) -> &'static str {
        match self {
            Self::Implemented => "implemented",
            Self::Refused => "refused",
            Self::NotApplicable => "not applicable",
        }
    }
}

impl Coverage {
    pub(crate) fn run(&self) -> Result<()> {
        if self.check {
            return check();
        }
        page::write("coverage.md", render(&checked(workspace::root())?))
    }
}

/// Fails where a row of docs/coverage.toml does not hold.
pub(crate) fn check() -> Result<()> {
    checked(workspace::root()).map(drop)
}

/// The tables of docs/coverage.toml, each row held against the sources, with the rows that the sources add.
fn checked(root: &Path) -> Result<Document> {
    let path = root.join("docs/coverage.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut document: Document = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let exports = sources::exported(root)?;
    let findings = checks::check(root, &document, &exports)?;
    if !findings.is_empty() {
        for finding in &findings {
            status::error(&format!("docs/coverage.toml: {finding}"));
        }
        bail!("{} rows of docs/coverage.toml do not hold", findings.len());
    }
    add_rest(&mut document, &exports);
    Ok(document)
}

/// Makes rows of the exported functions that have none.
fn add_rest(document: &mut Document, exports: &BTreeMap<String, Export>) {
    let listed: BTreeSet<String> =
        document.tables.iter().flat_map(|table| &table.rows).map(|row| row.name.clone()).collect();
    for table in &mut document.tables {
        let Some(rest) = &table.rest else { continue };
        let unlisted = exports.iter().filter(|(name, _)| !listed.contains(*name) && rest.holds(name));
        table.rows.extend(unlisted.map(|(name, export)| Row {
            name: name.clone(),
            is: if export.refusal.is_some() { Status::Refused } else { Status::Implemented },
            at: Some(export.file.clone()),
            by: export.refusal.is_some().then(|| rest.by.clone()),
            why: export.refusal.clone().unwrap_or_default(),
        }));
    }
}

impl Rest {
    fn holds(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

fn count(rows: &[Row], status: Status) -> usize {
    rows.iter().filter(|row| row.is == status).count()
}

/// The place in a document of a title: lower case, spaces as hyphens, other signs left out.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_ascii_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn render(document: &Document) -> String {
    let mut out = String::from(
        "# Coverage\n\n<!-- Written by `cargo xtask coverage` from docs/coverage.toml; edit that. -->\n\n",
    );
    let _ = writeln!(out, "{}\n\n| Table | Implemented | Refused | Not applicable |", document.introduction.trim_end());
    out.push_str("|---|---:|---:|---:|\n");
    let mut line = |title: &str, counts: [usize; 3]| {
        let _ = writeln!(out, "| {title} | {} | {} | {} |", counts[0], counts[1], counts[2]);
    };
    let mut totals = [0; 3];
    for table in &document.tables {
        let counts = Status::ALL.map(|status| count(&table.rows, status));
        line(&format!("[{}](#{})", table.title, anchor(&table.title)), counts);
        totals = std::array::from_fn(|at| totals[at] + counts[at]);
    }
    line("**All**", totals);
    let rows = document.tables.iter().flat_map(|table| &table.rows);
    let untested = rows.filter(|row| row.is == Status::Implemented && row.by.is_none()).count();
    let _ = writeln!(out, "\n{untested} rows are implemented without a test of their own.");
    for table in &document.tables {
        render_table(&mut out, table);
    }
    out
}

fn render_table(out: &mut String, table: &Table) {
    let _ = writeln!(out, "\n## {}\n\nSource: {}.", table.title, table.source);
    if !table.text.is_empty() {
        let _ = writeln!(out, "\n{}", table.text.trim_end());
    }
    out.push_str("\n| Name | Status | Where | Held by | Remark |\n|---|---|---|---|---|\n");
    for row in &table.rows {
        let code = |place: Option<&String>| place.map_or(String::new(), |place| format!("`{place}`"));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            row.name,
            row.is.text(),
            code(row.at.as_ref()),
            code(row.by.as_ref()),
            row.why
        );
    }
}

/// Names that occur twice.
fn twice<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_of_this_repository_holds() {
        check().expect("every row of docs/coverage.toml holds");
    }

    #[test]
    fn documents_have_counts_and_a_table_each() {
        let document: Document = toml::from_str(
            r#"
            introduction = "Words."
            [[table]]
            title = "Send opcodes (WQE)"
            source = "a PRM"
            rows = [
                { name = "NOP", is = "implemented", at = "a.rs: NOP", by = "b.rs: nops" },
                { name = "WAIT", is = "refused", at = "a.rs: parse", by = "b.rs: waits", why = "CORE-Direct" },
                { name = "X", is = "not-applicable", why = "none" },
                { name = "Y", is = "implemented", at = "a.rs" },
            ]
            "#,
        )
        .expect("valid");
        let text = render(&document);
        assert!(text.contains("| [Send opcodes (WQE)](#send-opcodes-wqe) | 2 | 1 | 1 |"), "{text}");
        assert!(text.contains("| **All** | 2 | 1 | 1 |"), "{text}");
        assert!(text.contains("\n1 rows are implemented without a test"), "{text}");
        assert!(text.contains("| WAIT | refused | `a.rs: parse` | `b.rs: waits` | CORE-Direct |"), "{text}");
    }
}
