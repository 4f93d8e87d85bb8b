//! Import cycles: source files of a crate each of which needs all others.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::files::Findings;
use super::modules::Modules;
use crate::workspace;

/// Files that may import one another in a circle. A few are one thing in several files; more are several things that
/// are one, unless it is said below why they are.
const FILES_LIMIT: usize = 4;

/// Larger circles that may be: what the path of each of its files begins with, how many files it has, and why they are
/// one thing.
const ONE: &[(&str, usize, &str)] = &[
    ("emu/libibverbs/src/", 6, "queue pair, completion queue and posting calls, which refer to one another by handle"),
    ("emu/machine/src/observe/race", 6, "the race detector: its methods, by what they follow"),
    ("host/bootstrap/src/store/", 6, "the store: client and server of one protocol, whose errors are in its root"),
    ("host/flexcast/src/api/", 5, "the communicator: its requests and its parts hold it, and it makes them"),
    ("host/flexcast/src/carrier/pairs/sparse", 5, "sparse AllReduce over pairs: one operation and its sides"),
    ("host/flexcast/src/carrier/udp/carrier", 8, "the carrier: its methods, by the hook of the engine that they serve"),
    ("host/flexcast/src/carrier/verbs/", 5, "the carrier: its methods, by the hook of the engine that they serve"),
    ("host/service/src/agent", 8, "the agent: its methods, by the messages that they serve"),
    ("lab/src/calibrate/", 5, "one calibration: its figures, and the parts of its report"),
    (
        "lab/src/evaluate/point/",
        8,
        "one table of points: its root lists their kinds, each of which implements its trait",
    ),
    ("shared/abi/src/", 5, "contexts of one image's threads, which hold one another"),
    ("shared/isa/src/", 6, "one decoder: instructions, extensions and the table of both"),
];

/// Cycles over the limit, in all crates of all workspaces: libraries, programs and tests. Entries of the list above
/// that no cycle needs are findings, too.
pub(super) fn check(root: &Path) -> Result<Findings> {
    let (mut findings, mut needed) = (BTreeSet::new(), BTreeSet::new());
    for manifest in ["Cargo.toml", "device/Cargo.toml"] {
        for package in workspace::metadata(&root.join(manifest))?.packages {
            for target in &package.targets {
                let modules = Modules::read(target.src_path.as_std_path(), &|path| std::fs::read_to_string(path).ok());
                findings.extend(judge(&package.name, root, &modules, &mut needed));
            }
        }
    }
    let idle = ONE.iter().filter(|(prefix, ..)| !needed.contains(prefix));
    findings.extend(idle.map(|(prefix, count, _)| {
        format!("{prefix} has no cycle of {count} files: correct its entry in xtask/src/tidy/cycles.rs, or remove it")
    }));
    Ok(findings.into_iter().collect())
}

/// `needed`: takes the entries of [`ONE`] that excuse a cycle.
fn judge(name: &str, root: &Path, modules: &Modules, needed: &mut BTreeSet<&'static str>) -> Findings {
    let imports = modules.imports();
    let path = |file: &usize| {
        let path = &modules.files()[*file];
        path.strip_prefix(root).unwrap_or(path).display().to_string()
    };
    let mut findings = Findings::new();
    for files in cycles(&imports).iter().filter(|files| files.len() > FILES_LIMIT) {
        let excuses = |(prefix, count, _): &&(&str, usize, &str)| {
            *count == files.len() && files.iter().all(|file| path(file).starts_with(prefix))
        };
        if let Some((prefix, ..)) = ONE.iter().find(excuses) {
            needed.insert(*prefix);
            continue;
        }
        let arrows = |file: &usize| {
            let to: Vec<_> = imports[*file].iter().filter(|to| files.contains(to)).map(path).collect();
            format!("{} imports {}", path(file), to.join(", "))
        };
        let (count, arrows) = (files.len(), files.iter().map(arrows).collect::<Vec<_>>().join("; "));
        findings.push(format!(
            "{name}: {count} files import one another in a cycle, the limit is {FILES_LIMIT}; let imports point one \
             way, or say in xtask/src/tidy/cycles.rs why they are one: {arrows}"
        ));
    }
    findings
}

/// Strongly connected components of more than one file, each in ascending order (Tarjan's algorithm).
fn cycles(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut search =
        Search { edges, numbers: vec![None; edges.len()], lows: vec![0; edges.len()], ..Search::default() };
    for file in 0..edges.len() {
        if search.numbers[file].is_none() {
            search.visit(file);
        }
    }
    search.found
}

#[derive(Default)]
struct Search<'a> {
    edges: &'a [BTreeSet<usize>],
    /// When each file was first seen.
    numbers: Vec<Option<usize>>,
    /// The earliest file that each leads back to.
    lows: Vec<usize>,
    seen: usize,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, file: usize) -> usize {
        let number = self.seen;
        self.seen += 1;
        self.numbers[file] = Some(number);
        self.lows[file] = number;
        self.stack.push(file);
        let edges = self.edges;
        for &to in &edges[file] {
            let low = match self.numbers[to] {
                None => self.visit(to),
                Some(number) if self.stack.contains(&to) => number,
                Some(_) => continue,
            };
            self.lows[file] = self.lows[file].min(low);
        }
        if self.lows[file] == number {
            let at = self.stack.iter().position(|of| *of == file).unwrap_or_default();
            let mut component = self.stack.split_off(at);
            component.sort_unstable();
            self.found.extend(Some(component).filter(|files| files.len() > 1));
        }
        self.lows[file]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Modules {
        let files: BTreeMap<&Path, &str> = files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        Modules::read(Path::new("src/lib.rs"), &|path| files.get(path).map(|text| (*text).to_owned()))
    }

    /// Names of the files that one file imports from.
    fn imports(modules: &Modules, of: &str) -> Vec<String> {
        let at = modules.files().iter().position(|file| file == Path::new(of)).expect("a file of the crate");
        modules.imports()[at].iter().map(|file| modules.files()[*file].display().to_string()).collect()
    }

    fn judged(modules: &Modules) -> Findings {
        judge("emu-toaster", Path::new("src"), modules, &mut BTreeSet::new())
    }

    #[test]
    fn components_are_found() {
        let edges =
            |of: &[&[usize]]| of.iter().map(|to| to.iter().copied().collect()).collect::<Vec<BTreeSet<usize>>>();
        assert_eq!(cycles(&edges(&[&[1], &[2], &[]])), Vec::<Vec<usize>>::new());
        assert_eq!(cycles(&edges(&[&[0], &[]])), Vec::<Vec<usize>>::new(), "a file may name itself");
        assert_eq!(cycles(&edges(&[&[1], &[2], &[0], &[0]])), [[0, 1, 2]]);
        assert_eq!(cycles(&edges(&[&[1], &[0, 2], &[3], &[2]])), [[2, 3], [0, 1]]);
        // Two circles with a file in common are one.
        assert_eq!(cycles(&edges(&[&[1], &[0, 2], &[1]])), [[0, 1, 2]]);
    }

    #[test]
    fn a_circle_over_the_limit_is_found_and_one_at_the_limit_is_not() {
        let circle = |count: usize| {
            let root = (0..count).map(|at| format!("mod m{at};")).collect::<String>();
            let files = (0..count).map(|at| {
                let next = (at + 1) % count;
                (format!("src/m{at}.rs"), format!("use crate::m{next}::Thing; pub struct Thing;"))
            });
            let files: Vec<(String, String)> = files.chain([("src/lib.rs".to_owned(), root)]).collect();
            crate_of(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
        };
        let findings = judged(&circle(FILES_LIMIT + 1));
        let [finding] = findings.as_slice() else { panic!("one finding, not {findings:?}") };
        for part in [
            "emu-toaster: 5 files",
            "the limit is 4",
            "m0.rs imports m1.rs; m1.rs imports m2.rs",
            "m4.rs imports m0.rs",
        ] {
            assert!(finding.contains(part), "{part} in {finding}");
        }
        assert_eq!(judged(&circle(FILES_LIMIT)), Findings::new());
        assert!(ONE.iter().all(|(_, count, _)| *count > FILES_LIMIT));
    }

    #[test]
    fn a_listed_circle_is_excused_while_it_has_as_many_files_as_the_list_says() {
        let (prefix, count, _) = ONE[0];
        let circle = |count: usize| {
            let root = (0..count).map(|at| format!("mod m{at};")).collect::<String>();
            let files = (0..count).map(|at| {
                (format!("{prefix}m{at}.rs"), format!("use crate::m{}::Thing; pub struct Thing;", (at + 1) % count))
            });
            let files: BTreeMap<PathBuf, String> =
                files.chain([(format!("{prefix}lib.rs"), root)]).map(|(path, text)| (path.into(), text)).collect();
            Modules::read(&Path::new(prefix).join("lib.rs"), &|path| files.get(path).cloned())
        };
        let mut needed = BTreeSet::new();
        assert!(judge("listed", Path::new(""), &circle(count), &mut needed).is_empty());
        assert_eq!(needed, BTreeSet::from([prefix]));
        assert_eq!(judge("listed", Path::new(""), &circle(count + 1), &mut needed).len(), 1);
    }

    #[test]
    fn imports_and_paths_count_and_declarations_do_not() {
        let modules = crate_of(&[
            ("src/lib.rs", "mod a; mod b; pub mod c; mod d; mod e;"),
            ("src/a.rs", "use crate::{b::{self, B}, c::inner::*};"),
            ("src/b.rs", "pub struct B; fn f() { crate::d::g(&[super::e::E]); }"),
            ("src/c.rs", "pub mod inner; fn f() { inner::h() }"),
            ("src/c/inner.rs", "pub fn h() { println!(\"{}\", super::super::d::CONST) }"),
            ("src/d.rs", "// use crate::a::A;\nconst TEXT: &str = \"crate::a::A\";"),
            ("src/e/mod.rs", "fn f() { use crate::b; b::B; self::k(); }"),
        ]);
        assert_eq!(modules.files().len(), 7);
        assert_eq!(imports(&modules, "src/lib.rs"), Vec::<String>::new());
        assert_eq!(imports(&modules, "src/a.rs"), ["src/b.rs", "src/c/inner.rs"]);
        assert_eq!(imports(&modules, "src/b.rs"), ["src/d.rs", "src/e/mod.rs"]);
        assert_eq!(imports(&modules, "src/c.rs"), ["src/c/inner.rs"]);
        assert_eq!(imports(&modules, "src/c/inner.rs"), ["src/d.rs"]);
        assert_eq!(imports(&modules, "src/d.rs"), Vec::<String>::new());
        assert_eq!(imports(&modules, "src/e/mod.rs"), ["src/b.rs"]);
    }

    #[test]
    fn a_name_that_is_passed_on_counts_for_the_file_that_defines_it() {
        let modules = crate_of(&[
            ("src/lib.rs", "mod a; mod b; mod c; pub use b::B; pub use other::Outside;"),
            ("src/a.rs", "use crate::B; use crate::b::C as D; use crate::b::E; use crate::c::*; use std::fmt;"),
            ("src/b.rs", "mod deep; pub use deep::C; pub(crate) use self::deep::*; pub struct B;"),
            ("src/b/deep.rs", "pub struct C; pub enum E {}"),
            ("src/c.rs", "use crate::Outside; pub use super::b::B;"),
        ]);
        assert_eq!(imports(&modules, "src/a.rs"), ["src/b.rs", "src/b/deep.rs", "src/c.rs"]);
        assert_eq!(imports(&modules, "src/b.rs"), Vec::<String>::new(), "what is passed on from below is no import");
        assert_eq!(imports(&modules, "src/c.rs"), ["src/lib.rs", "src/b.rs"]);
    }

    #[test]
    fn code_for_tests_does_not_count() {
        let modules = crate_of(&[
            ("src/lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
            ("src/a.rs", "#[cfg(test)] use crate::b::X; #[cfg(test)] mod tests { use crate::b::B; } fn f() {}"),
            ("src/b.rs", "#[cfg(not(test))] use crate::a::A;"),
            ("src/tests.rs", "use crate::a::A;"),
        ]);
        assert_eq!(modules.files().len(), 3);
        assert_eq!(imports(&modules, "src/a.rs"), Vec::<String>::new());
        assert_eq!(imports(&modules, "src/b.rs"), ["src/a.rs"]);
    }

    #[test]
    fn modules_are_found_where_the_compiler_finds_them() {
        let modules = crate_of(&[
            ("src/lib.rs", "#[path = \"../other/x.rs\"] pub(crate) mod renamed; mod inline { mod child; }"),
            ("src/../other/x.rs", "mod below; use crate::inline::child::C;"),
            ("src/../other/below.rs", ""),
            ("src/inline/child.rs", "pub struct C;"),
        ]);
        assert_eq!(modules.files().len(), 4);
        assert_eq!(imports(&modules, "src/../other/x.rs"), ["src/inline/child.rs"]);
    }

    #[test]
    fn the_repository_keeps_the_limit() {
        assert_eq!(check(workspace::root()).expect("metadata"), Findings::new());
    }
}
