//! Rows of the page of `cargo xtask coverage` for functions of the host, against the shared library itself. Without a C
//! compiler these tests are skipped, and say so on stderr.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use flexcast_tests::harness::installed;
use flexcast_tests::libs::libraries;
use flexcast_tests::tree::build_tool;
use flexcast_tests::workspace_root;
use object::{Object as _, ObjectSymbol as _};

/// `EOPNOTSUPP` of Linux.
const UNSUPPORTED: i32 = 95;

/// The shared library, built once; `None` without a C compiler.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    if !installed("gcc", "gcc libc6-dev") {
        return None;
    }
    Some(LIBRARY.get_or_init(|| libraries().join("libflexio.so")))
}

/// Runs `cargo xtask` and returns the path that it prints.
fn xtask(arguments: &[&str]) -> PathBuf {
    let printed = run(build_tool().args(arguments));
    printed.lines().last().expect("it prints the path").into()
}

fn run(command: &mut Command) -> String {
    let output = command.current_dir(workspace_root()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The page that `cargo xtask coverage` writes, written once.
fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| std::fs::read_to_string(xtask(&["coverage"])).expect("the page"))
}

/// Name and status of each row that is a function of the host's libraries: its place is there.
fn rows() -> Vec<(String, String)> {
    let text = page();
    let cells = text.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let rows = cells.filter(|cells| cells.len() == 7 && cells[3].starts_with("`emu/lib"));
    let functions = rows.filter(|cells| cells[1].chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    functions.map(|cells| (cells[1].to_owned(), cells[2].to_owned())).collect()
}

#[test]
fn the_library_exports_the_rows_of_the_document_and_nothing_else() {
    let Some(library) = library() else { return };
    let bytes = std::fs::read(library).expect("the library can be read");
    let library = object::File::parse(&*bytes).expect("an ELF");
    let defined = library.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let exported: BTreeSet<String> = defined.map(|symbol| symbol.name().expect("a name").to_owned()).collect();
    let rows: BTreeSet<String> = rows().into_iter().map(|(name, _)| name).collect();
    assert!(rows.len() > 100, "{} functions", rows.len());
    let missing: Vec<_> = rows.difference(&exported).collect();
    assert!(missing.is_empty(), "rows that the library does not export: {missing:?}");
    let of_an_abi =
        |name: &&String| ["flexio_", "ibv_", "mlx5dv_", "doca_", "rdma_"].iter().any(|abi| name.starts_with(abi));
    let silent: Vec<_> = exported.difference(&rows).filter(of_an_abi).collect();
    assert!(silent.is_empty(), "exported, and no row of docs/coverage.toml: {silent:?}");
}

#[test]
fn refused_calls_answer_an_error() {
    let Some(library) = library() else { return };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("coverage");
    let flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"];
    run(Command::new("gcc").args(flags).arg("tests/c/coverage.c").arg("-o").arg(&program).arg("-ldl"));
    // Those of FlexIO and DOCA have codes of their own; emu/libflexio/tests/refused.rs and cli/tests/dpa_programs.rs
    // call them.
    let of_verbs = |name: &str| !name.starts_with("flexio_") && !name.starts_with("doca_");
    let refused = rows().into_iter().filter(|(name, status)| status == "refused" && of_verbs(name));
    let refused: Vec<String> = refused.map(|(name, _)| name).collect();
    assert!(!refused.is_empty());
    let printed = run(Command::new(&program).arg(library).args(&refused));
    assert_eq!(printed.lines().count(), refused.len());
    for line in printed.lines() {
        // Some answer a pointer, some a number, some nothing: all set errno.
        let errno: i32 = line.rsplit(' ').next().and_then(|errno| errno.parse().ok()).expect("a number");
        assert_eq!(errno, UNSUPPORTED, "{line}");
    }
}
