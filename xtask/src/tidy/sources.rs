//! Lengths, unsafe code and words of source files, and ids of requirements in any file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files::{Findings, is, read};
use crate::{process, workspace};

/// A file longer than this is split (without its tests).
const LINES_LIMIT: usize = 1000;

/// What ids of requirements begin with.
const FAMILIES: [&str; 11] = ["BL", "CB", "CM", "DP", "EM", "EV", "MC", "MI", "SA", "SO", "TK"];

/// Files written by a program.
fn is_generated(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "bindings.rs")
}

fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.ends_with("tests.rs")
        || path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "benches")
}

/// Files over the limit.
pub(super) fn lengths(root: &Path, files: &[PathBuf]) -> Result<Findings> {
    let mut findings = Findings::new();
    for path in files.iter().filter(|path| is(path, "rs") && !is_generated(path) && !is_test(path)) {
        let lines = code_lines(&read(&root.join(path))?);
        if lines > LINES_LIMIT {
            findings.push(format!(
                "{} has {lines} lines without its tests, the limit is {LINES_LIMIT}; split it",
                path.display()
            ));
        }
    }
    Ok(findings)
}

/// Lines before the tests of a file.
fn code_lines(text: &str) -> usize {
    let tests = text
        .lines()
        .collect::<Vec<_>>()
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    tests.unwrap_or_else(|| text.lines().count())
}

/// Files next to the `main.rs` of a test program that it leaves out: their tests would never run.
pub(super) fn test_modules(root: &Path, files: &[PathBuf]) -> Result<Findings> {
    let mut findings = Findings::new();
    for program in files.iter().filter(|path| path.ends_with("main.rs") && is_test(path)) {
        let text = read(&root.join(program))?;
        let named: BTreeSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
        let siblings =
            files.iter().filter(|path| is(path, "rs") && path.parent() == program.parent() && *path != program);
        let lost =
            siblings.filter(|path| path.file_stem().is_some_and(|name| !named.contains(&*name.to_string_lossy())));
        findings.extend(lost.map(|path| format!("{} is no module of {}", path.display(), program.display())));
    }
    Ok(findings)
}

/// Compares the files with unsafe code with the list of ARCHITECTURE.md, both ways.
pub(super) fn unsafe_files(root: &Path, files: &[PathBuf], architecture: &str) -> Result<Findings> {
    let mut found = BTreeSet::new();
    for path in files.iter().filter(|path| is(path, "rs") && !is_generated(path)) {
        if has_unsafe(&read(&root.join(path))?) {
            found.insert(path.to_string_lossy().into_owned());
        }
    }
    let Some(listed) = between(architecture, "<!-- unsafe files -->", "<!-- end -->") else {
        return Ok(vec!["ARCHITECTURE.md has no list between `<!-- unsafe files -->` and `<!-- end -->`".to_owned()]);
    };
    let listed: BTreeSet<String> = listed.lines().filter_map(first_code).map(str::to_owned).collect();
    // A row may name a folder (with a slash at the end) whose every file may.
    let covered = |file: &String| {
        listed.contains(file) || listed.iter().any(|row| row.ends_with('/') && file.starts_with(row.as_str()))
    };
    let mut findings: Findings = found
        .iter()
        .filter(|file| !covered(file))
        .map(|file| format!("{file} holds unsafe code and is not in the list of ARCHITECTURE.md"))
        .collect();
    let used = |row: &String| {
        found.contains(row) || (row.ends_with('/') && found.iter().any(|file| file.starts_with(row.as_str())))
    };
    findings.extend(
        listed
            .iter()
            .filter(|row| !used(row))
            .map(|row| format!("{row} is listed in ARCHITECTURE.md and holds no unsafe code")),
    );
    Ok(findings)
}

/// The text between two markers.
pub(super) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let rest = &text[text.find(start)? + start.len()..];
    Some(&rest[..rest.find(end)?])
}

/// The first `code` of a line.
pub(super) fn first_code(line: &str) -> Option<&str> {
    line.split('`').nth(1)
}

/// Whether Rust code opens an unsafe block, function, implementation, trait, extern block or attribute.
fn has_unsafe(text: &str) -> bool {
    text.lines().any(|line| {
        let code = without_strings(line.split("//").next().unwrap_or_default());
        code.match_indices("unsafe").any(|(at, word)| {
            let before = code[..at].chars().next_back();
            let after = &code[at + word.len()..];
            let whole = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
            whole && (after.starts_with('(') || after.is_empty() || after.starts_with(' '))
        })
    })
}

/// Text in double quotes is no code; a quote inside a character or a raw string is rare enough.
fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect()
}

/// Words that often hide unfinished work, and paths of the machine that a file was written on.
pub(super) fn words(root: &Path, files: &[PathBuf]) -> Result<Findings> {
    // Spelt in halves, so that this list does not find itself.
    let unfinished = [
        ("to", "do!("),
        ("unimple", "mented!("),
        ("FIX", "ME"),
        ("XX", "X"),
        ("place", "holder"),
        ("for n", "ow"),
        ("dum", "my"),
    ]
    .map(|(a, b)| format!("{a}{b}"));
    let mut paths = vec![format!("{}/", workspace::root().display())];
    paths.extend(std::env::var("HOME").ok().filter(|home| home.len() > 1).map(|home| format!("{home}/")));
    let mut findings = Findings::new();
    for (path, text) in texts(root, files) {
        for (number, line) in text.lines().enumerate() {
            let unfinished = unfinished.iter().filter(|_| is(path, "rs") && !is_generated(path));
            // xtask and image check for these very prefixes in what they build.
            let own_paths = paths.iter().filter(|_| !path.starts_with("xtask") && !path.starts_with("image"));
            for word in unfinished.chain(own_paths) {
                if contains_word(line, word) {
                    findings.push(format!("{}:{}: `{word}`", path.display(), number + 1));
                }
            }
        }
    }
    Ok(findings)
}

/// Ids of requirements: readers do not have what they stand for, so that a sentence says what is required instead.
pub(super) fn ids(root: &Path, files: &[PathBuf]) -> Findings {
    texts(root, files).flat_map(|(path, text)| ids_of(path, &text)).collect()
}

fn ids_of(path: &Path, text: &str) -> Findings {
    let lines = text.lines().enumerate();
    let ids = lines.filter_map(|(number, line)| Some((number + 1, id_of_requirement(line)?)));
    ids.map(|(number, id)| {
        format!("{}:{number}: `{id}` is the id of a requirement; say what is required", path.display())
    })
    .collect()
}

/// The first id of a line: a family, a hyphen and one or two digits.
fn id_of_requirement(line: &str) -> Option<&str> {
    line.match_indices('-').find_map(|(hyphen, _)| {
        let start = hyphen.checked_sub(2)?;
        let family = line.get(start..hyphen)?;
        let digits = line[hyphen + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let end = hyphen + 1 + digits;
        let whole = is_edge(line[..start].chars().next_back()) && is_edge(line[end..].chars().next());
        (FAMILIES.contains(&family) && (1..=2).contains(&digits) && whole).then(|| &line[start..end])
    })
}

/// Files that git knows or would add, each with its text; files of other bytes are left out.
fn texts<'a>(root: &'a Path, files: &'a [PathBuf]) -> impl Iterator<Item = (&'a PathBuf, String)> {
    let tracked = tracked(root);
    let files = files.iter().filter(move |path| tracked.as_ref().is_none_or(|tracked| tracked.contains(*path)));
    files.filter_map(|path| Some((path, std::fs::read_to_string(root.join(path)).ok()?)))
}

/// Files that git knows or would add; `None` outside a repository.
fn tracked(root: &Path) -> Option<BTreeSet<PathBuf>> {
    let mut command = std::process::Command::new("git");
    command.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    Some(process::capture(&mut command).ok()?.lines().map(PathBuf::from).collect())
}

fn is_edge(char: Option<char>) -> bool {
    !char.is_some_and(char::is_alphanumeric)
}

fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let open = word.ends_with('(') || word.ends_with('/');
        is_edge(line[..at].chars().next_back()) && (open || is_edge(line[at + word.len()..].chars().next()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_a_test_program_leaves_out_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ["main.rs", "named.rs", "lost.rs", "notes.md"].map(|name| Path::new("tests/program").join(name));
        std::fs::create_dir_all(folder.path().join("tests/program")).expect("a folder");
        std::fs::write(folder.path().join(&files[0]), "//! Tests.\n\nmod named;\n").expect("written");
        let findings = test_modules(folder.path(), &files).expect("read");
        assert_eq!(findings, ["tests/program/lost.rs is no module of tests/program/main.rs"]);
    }

    #[test]
    fn unsafe_code_is_found_and_nothing_else() {
        for code in [
            "    unsafe { read(p) }",
            "unsafe fn f() {}",
            "#[unsafe(no_mangle)]",
            "let x = unsafe",
            "unsafe impl Send for A {}",
        ] {
            assert!(has_unsafe(code), "{code}");
        }
        for other in ["#![forbid(unsafe_code)]", "// unsafe { }", "let s = \"unsafe \";", "is_unsafe (x)"] {
            assert!(!has_unsafe(other), "{other}");
        }
    }

    #[test]
    fn tests_do_not_count_as_length() {
        assert_eq!(code_lines("a\nb\n#[cfg(test)]\nmod tests {\n}\n"), 2);
        assert_eq!(code_lines("a\n#[cfg(test)]\nmod tests;\nb\n"), 4);
    }

    #[test]
    fn words_are_whole_words() {
        assert!(contains_word("a placeholding", "placeholding"));
        assert!(!contains_word("replaceholding", "placeholding"));
        assert!(contains_word("see /srv/x/y", "/srv/x/"));
    }

    #[test]
    fn ids_of_requirements_are_found_and_nothing_else() {
        // Put together here, so that this file has none.
        for (family, rest) in [("MC", "33"), ("SO", "01, and more"), ("TK", "7.")] {
            let line = format!("// é – first ({family}-{rest})");
            let id = id_of_requirement(&line).unwrap_or_else(|| panic!("none in {line}"));
            assert!(line.contains(&format!("({id}")) && id.starts_with(family), "{id} of {line}");
        }
        for (before, rest) in [("A", "33"), ("é", "33"), ("", "300"), ("", "33T"), ("", "x"), ("", "")] {
            let line = format!("{before}MI-{rest}");
            assert_eq!(id_of_requirement(&line), None, "{line}");
        }
        for line in ["UTF-8 and SHA-256", "BF-3", "-12", "é-12", "V-12"] {
            assert_eq!(id_of_requirement(line), None);
        }
    }

    #[test]
    fn ids_of_requirements_are_named_by_file_and_line() {
        let text = format!("none\ntwo ({}-{})\n", "DP", 20);
        let [finding] = &ids_of(Path::new("a.md"), &text)[..] else { panic!("one finding in {text}") };
        assert!(finding.starts_with("a.md:2: `DP"), "{finding}");
    }

    #[test]
    fn the_list_of_unsafe_files_is_compared_both_ways() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("a.rs"), "unsafe {}\n").expect("write");
        std::fs::write(dir.path().join("b.rs"), "safe\n").expect("write");
        let files = [PathBuf::from("a.rs"), PathBuf::from("b.rs")];
        let check = |list: &str| unsafe_files(dir.path(), &files, list).expect("readable");
        assert_eq!(check("<!-- unsafe files -->\n- `a.rs`: ring\n<!-- end -->"), Findings::new());
        let both = check("<!-- unsafe files -->\n- `b.rs`: ring\n<!-- end -->");
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].starts_with("a.rs holds") && both[1].starts_with("b.rs is listed"), "{both:?}");
        assert_eq!(check("no list").len(), 1);
    }
}
