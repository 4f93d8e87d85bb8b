//! The folder table of README.md and the rows of SPECIFICATION.md.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::files::Findings;
use super::sources::{between, first_code};

/// What SPECIFICATION.md says where nothing holds a figure.
const NO_TEST: &str = "no test yet";

/// Compares the folder table with the top-level folders, both ways.
pub(super) fn folders(root: &Path, readme: &str) -> Result<Findings> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && name != "target" && !name.starts_with('.') {
            found.insert(name);
        }
    }
    let Some(table) = between(readme, "<!-- folders -->", "<!-- end -->") else {
        return Ok(vec!["README.md has no table between `<!-- folders -->` and `<!-- end -->`".to_owned()]);
    };
    let listed: BTreeSet<String> =
        table.lines().filter_map(first_code).map(|name| name.trim_end_matches('/').to_owned()).collect();
    let mut findings: Findings =
        found.difference(&listed).map(|name| format!("folder {name}/ is not in the table of README.md")).collect();
    findings.extend(listed.difference(&found).map(|name| format!("README.md lists {name}/, which is no folder")));
    Ok(findings)
}

/// Each row of a table in SPECIFICATION.md ends in a cell that names what holds it, as `path: function`, or says that
/// nothing does yet.
pub(super) fn specification(root: &Path, text: &str) -> Findings {
    let mut findings = Findings::new();
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|') && cells.len() >= 3 && !cells[0].is_empty();
        let is_head = cells.last().is_some_and(|cell| *cell == "Held by" || cell.chars().all(|c| "-:".contains(c)));
        if !is_row || is_head {
            continue;
        }
        let place = format!("SPECIFICATION.md:{}", number + 1);
        let holder = cells.last().copied().unwrap_or_default();
        if holder.contains(NO_TEST) {
            continue;
        }
        let holders: Vec<&str> = holder.split('`').skip(1).step_by(2).collect();
        if holders.is_empty() {
            findings.push(format!("{place}: the last cell names no `path: function` and does not say `{NO_TEST}`"));
        }
        findings
            .extend(holders.iter().filter_map(|holder| missing(root, holder)).map(|what| format!("{place}: {what}")));
    }
    findings
}

/// Every `path: function` that ARCHITECTURE.md names must exist.
pub(super) fn walk(root: &Path, text: &str) -> Findings {
    let spans = text.lines().enumerate().flat_map(|(number, line)| {
        line.split('`').skip(1).step_by(2).filter(|span| span.contains(".rs: ")).map(move |span| (number + 1, span))
    });
    spans.filter_map(|(number, span)| Some(format!("ARCHITECTURE.md:{number}: {}", missing(root, span)?))).collect()
}

/// Why `path: function` does not exist. A function may be left out where the whole file is the measurement.
fn missing(root: &Path, holder: &str) -> Option<String> {
    let (path, function) = holder.split_once(": ").map_or((holder, None), |(path, function)| (path, Some(function)));
    let Ok(text) = std::fs::read_to_string(root.join(path)) else {
        return Some(format!("there is no file {path}"));
    };
    let function = function?;
    let defined = ["(", "<"].iter().any(|behind| text.contains(&format!("fn {function}{behind}")));
    (!defined).then(|| format!("{path} has no function {function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_compared_both_ways() {
        let dir = tempfile::tempdir().expect("directory");
        for name in ["emu", "host", "target", ".git"] {
            std::fs::create_dir(dir.path().join(name)).expect("folder");
        }
        let check = |table: &str| folders(dir.path(), table).expect("readable");
        assert_eq!(check("<!-- folders -->\n| `emu/` | x |\n| `host/` | y |\n<!-- end -->"), Findings::new());
        assert_eq!(
            check("<!-- folders -->\n| `emu/` | x |\n| `old/` | y |\n<!-- end -->"),
            ["folder host/ is not in the table of README.md", "README.md lists old/, which is no folder"]
        );
        assert_eq!(check("none").len(), 1);
    }

    #[test]
    fn rows_must_name_what_exists() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("a.rs"), "fn holds() {}\n").expect("write");
        let table = "| Figure | Kind | Held by |\n|---|---|---|\n\
            | one | emulated | `a.rs: holds` |\n\
            | two | emulated | `a.rs: lost` |\n\
            | three | measured | `b.rs: holds` |\n\
            | four | measured | no test yet |\n\
            | five | measured | trust me |\n\
            | six | measured | `a.rs` |\n";
        assert_eq!(
            walk(dir.path(), "x\n`a.rs: holds` then `a.rs: lost` in `a.rs`"),
            ["ARCHITECTURE.md:2: a.rs has no function lost"]
        );
        let findings = specification(dir.path(), table);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].starts_with("SPECIFICATION.md:4: a.rs has no function lost"));
        assert!(findings[1].starts_with("SPECIFICATION.md:5: there is no file b.rs"));
        assert!(findings[2].starts_with("SPECIFICATION.md:7"));
    }
}
