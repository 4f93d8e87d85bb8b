//! Checks of each row of docs/coverage.toml.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::sources::{self, Export, defined_in_c, defines, header, unmangled};
use super::{Document, Headers, Kind, Row, Status, Table, twice};

/// What does not hold, one line each.
pub(super) fn check(root: &Path, document: &Document, exports: &BTreeMap<String, Export>) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let titles = document.tables.iter().map(|table| table.title.as_str());
    findings.extend(twice(titles).into_iter().map(|title| format!("two tables have the title `{title}`")));
    let mut sources = Sources { root, texts: BTreeMap::new() };
    let mut listed = BTreeSet::new();
    let rest = |name: &str| document.tables.iter().filter_map(|table| table.rest.as_ref()).any(|rest| rest.holds(name));
    for table in &document.tables {
        let names = table.rows.iter().map(|row| row.name.as_str());
        let place = |name: &str| format!("{}, {name}", table.title);
        findings.extend(twice(names).into_iter().map(|name| format!("{}: two rows", place(name))));
        for row in &table.rows {
            findings.extend(row_findings(row, &mut sources).into_iter().map(|f| format!("{}: {f}", place(&row.name))));
        }
        if let Some(headers) = &table.headers {
            findings.extend(functions(table, headers, exports, &mut sources, rest)?);
        }
        if let Some(rest) = &table.rest {
            findings.extend(sources.missing(&rest.by, "").map(|missing| format!("{}: {missing}", table.title)));
        }
        listed.extend(table.rows.iter().map(|row| row.name.clone()));
    }
    // Of what is exported without a header, nothing may be forgotten either.
    let forgotten = exports.iter().filter(|(name, _)| !listed.contains(*name) && !rest(name));
    findings.extend(forgotten.map(|(name, export)| format!("{name} of {} is exported and is no row", export.file)));
    Ok(findings)
}

/// Source files, read once.
struct Sources<'r> {
    root: &'r Path,
    texts: BTreeMap<String, Option<String>>,
}

impl Sources<'_> {
    fn text(&mut self, path: &str) -> Option<&str> {
        let read = || sources::read(self.root, path).ok();
        self.texts.entry(path.to_owned()).or_insert_with(read).as_deref()
    }

    /// Why `path: item` does not exist. A path alone stands for the item `name` there.
    fn missing(&mut self, place: &str, name: &str) -> Option<String> {
        let (path, item) = place.split_once(": ").unwrap_or((place, name));
        match self.text(path) {
            None => Some(format!("there is no file {path}")),
            Some(text) if !defines(text, item) => Some(format!("{path} defines no {item}")),
            Some(_) => None,
        }
    }
}

fn row_findings(row: &Row, sources: &mut Sources<'_>) -> Vec<String> {
    let mut findings = Vec::new();
    if row.name.contains('|') || row.why.contains('|') {
        findings.push("a vertical line would break the table".to_owned());
    }
    match row.is {
        Status::Implemented if row.at.is_none() => findings.push("implemented, but `at` names no place".to_owned()),
        Status::Refused if row.at.is_none() || row.by.is_none() || row.why.is_empty() => {
            findings.push("refused: needs the place (`at`), a test that sees the error (`by`), and `why`".to_owned());
        }
        Status::NotApplicable if row.why.is_empty() => findings.push("not applicable, but `why` is empty".to_owned()),
        _ => {}
    }
    for place in [&row.at, &row.by].into_iter().flatten() {
        findings.extend(sources.missing(place, &row.name));
    }
    if row.by.as_ref().is_some_and(|by| !by.contains(": ")) {
        findings.push("`by` names no function".to_owned());
    }
    findings
}

/// The device library of DOCA DPA.
const DOCA: &str = "device/rt-emu/doca/doca_dpa_dev.c";

/// Compares the rows of a table with the functions of its headers, both ways, and each row with its definition.
/// Functions that `rest` holds become rows of another table by themselves.
fn functions(
    table: &Table,
    headers: &Headers,
    exports: &BTreeMap<String, Export>,
    sources: &mut Sources<'_>,
    rest: impl Fn(&str) -> bool,
) -> Result<Vec<String>> {
    let mut declared = BTreeSet::new();
    for file in &headers.files {
        let found = header(&sources::read(sources.root, file)?, &headers.prefix);
        declared.extend(if headers.kind == Kind::Inline { found.inlines } else { found.functions });
    }
    let mut device: BTreeSet<String> = ["symbols", "symbols_more"]
        .iter()
        .filter_map(|file| sources.text(&format!("device/rt-emu/src/{file}.rs")).map(unmangled))
        .flat_map(BTreeMap::into_keys)
        .collect();
    device.extend(sources.text(DOCA).map(defined_in_c).unwrap_or_default());
    let mut findings = Vec::new();
    // Functions of other versions of the interface are rows too; they are not declared, so no program compiles with
    // them.
    for row in &table.rows {
        let name = &row.name;
        let is_function =
            name.starts_with(&headers.prefix) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let defined = match headers.kind {
            Kind::Exported => exports.contains_key(name),
            Kind::Device => device.contains(name),
            Kind::Inline => declared.contains(name),
        };
        let problem = match row.is {
            _ if !is_function => Some(format!("no function name that begins with {}", headers.prefix)),
            Status::Implemented | Status::Refused if !declared.contains(name) => {
                Some("no header declares it".to_owned())
            }
            Status::Implemented | Status::Refused if !defined => Some("no library defines it".to_owned()),
            Status::NotApplicable if declared.contains(name) || defined => {
                Some("not applicable, but it is declared or defined".to_owned())
            }
            Status::Refused if !calls(row, sources) => {
                Some("the test that should see its error does not call it".to_owned())
            }
            _ => None,
        };
        findings.extend(problem.map(|problem| format!("{}, {name}: {problem}", table.title)));
    }
    let rows: BTreeSet<&String> = table.rows.iter().map(|row| &row.name).collect();
    let missing = declared.iter().filter(|name| !rows.contains(name) && !rest(name));
    findings.extend(missing.map(|name| format!("{}: {name} is declared and is no row", table.title)));
    Ok(findings)
}

/// Whether the test of a refused function calls it, in its own file or in a C program of tests/c that it runs.
fn calls(row: &Row, sources: &mut Sources<'_>) -> bool {
    let Some((path, _)) = row.by.as_deref().and_then(|by| by.split_once(": ")) else { return false };
    let test = sources.text(path).unwrap_or_default().to_owned();
    // The C program of the same name, those whose output the test compares, and host sides of those that it builds.
    let own = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    let named = |call: &str| -> Vec<String> {
        test.split(call).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
    };
    let programs: Vec<String> = std::iter::once(own.to_owned())
        .chain(named("golden(\""))
        .chain(named("build(\"").into_iter().map(|name| format!("dpa/{name}_host")))
        .map(|program| format!("tests/c/{program}.c"))
        .collect();
    let forms = ["(", ")(", ".expect(\"emulated\"))("].map(|form| format!("{}{form}", row.name));
    let names = |text: &str| forms.iter().any(|form| text.contains(form));
    names(&test) || programs.iter().any(|program| sources.text(program).is_some_and(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with one header, one library and one test.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("directory");
        for (path, text) in [
            ("include/lib.h", "int lib_open(void);\nint lib_wait(void);\n"),
            ("emu/libflexio/link.map", "{ global: lib_*; local: *; };"),
            (
                "emu/libflexio/src/lib.rs",
                "#[unsafe(no_mangle)]\nfn lib_open() {}\nunsupported! {\n    fn lib_wait();\n}\n",
            ),
            ("emu/libdoca/src/lib.rs", ""),
            ("emu/libdoca_dpa/src/lib.rs", ""),
            ("emu/librdmacm/src/lib.rs", ""),
            ("emu/libibverbs/src/lib.rs", "#[unsafe(no_mangle)]\nfn lib_hidden() {}\n"),
            ("tests/refused.rs", "#[test]\nfn refused() { (api.lib_wait)(); }\nfn opened() {}\n"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
            std::fs::write(path, text).expect("written");
        }
        dir
    }

    fn findings(rows: &str) -> Vec<String> {
        let text = format!(
            "introduction = \"x\"\n[[table]]\ntitle = \"T\"\nsource = \"s\"\n\
             headers = {{ files = [\"include/lib.h\"], prefix = \"lib_\", kind = \"exported\" }}\nrows = [{rows}]\n"
        );
        let tree = tree();
        let exports = sources::exported(tree.path()).expect("readable");
        check(tree.path(), &toml::from_str(&text).expect("valid"), &exports).expect("readable")
    }

    const OPEN: &str = r#"{ name = "lib_open", is = "implemented", at = "emu/libflexio/src/lib.rs", by = "tests/refused.rs: opened" },"#;
    const WAIT: &str = r#"{ name = "lib_wait", is = "refused", at = "emu/libflexio/src/lib.rs", by = "tests/refused.rs: refused", why = "w" },"#;
    const HIDDEN: &str = r#"{ name = "lib_hidden", is = "not-applicable", why = "w" },"#;

    #[test]
    fn rows_that_hold_and_a_function_without_a_header() {
        assert_eq!(
            findings(&[OPEN, WAIT].concat()),
            ["lib_hidden of emu/libibverbs/src/lib.rs is exported and is no row"]
        );
    }

    #[test]
    fn every_kind_of_gap_is_found() {
        let has = |rows: &str, what: &str| {
            let found = findings(rows);
            assert!(found.iter().any(|finding| finding.contains(what)), "{what:?} is not in {found:#?}");
        };
        has(OPEN, "lib_wait is declared and is no row");
        has(&[OPEN, WAIT, HIDDEN].concat(), "not applicable, but it is declared or defined");
        has(&[OPEN, OPEN].concat(), "two rows");
        has(&OPEN.replace("implemented", "refused"), "needs the place");
        has(&WAIT.replace(r#", why = "w""#, ""), "needs the place");
        has(&OPEN.replace("src/lib.rs", "src/none.rs"), "there is no file");
        has(&OPEN.replace("rs: opened", "rs: closed"), "defines no closed");
        has(&OPEN.replace("lib_open", "lib_shut"), "no header declares it");
        has(&HIDDEN.replace(r#""w""#, r#""""#), "`why` is empty");
        let silent = r#"{ name = "lib_open", is = "refused", at = "emu/libflexio/src/lib.rs", by = "tests/refused.rs: opened", why = "w" },"#;
        has(silent, "does not call it");
    }
}
