//! Names in source files: functions that headers declare, that libraries export, and definitions of items.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub(super) fn read(root: &Path, path: &str) -> Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"))
}

/// C text without its comments.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        out.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    out + rest
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The word that ends `text`.
fn last_word(text: &str) -> &str {
    text.rsplit(|c| !is_word(c)).next().unwrap_or_default()
}

/// What a header declares and defines.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// Functions that are declared only.
    pub(super) functions: BTreeSet<String>,
    /// Inline functions, and macros with arguments.
    pub(super) inlines: BTreeSet<String>,
}

/// How the definition of an inline function begins.
const INLINE: [&str; 3] = ["static inline", "FLEXIO_DEV_ALWAYS_INLINE", DOORBELL];
/// The same where a macro makes the function; its first argument is the name.
const DOORBELL: &str = "FLEXCAST_DEV_DOORBELL(";

/// Functions of a header whose names begin with `prefix`.
pub(super) fn header(text: &str, prefix: &str) -> Header {
    let mut found = Header::default();
    let text = without_comments(text);
    let mut inline = false;
    for line in text.lines() {
        let starts = INLINE.iter().any(|word| line.starts_with(word));
        inline |= starts;
        if let Some(macro_arguments) = line.strip_prefix(DOORBELL) {
            let name = macro_arguments.split(|c| !is_word(c)).next().unwrap_or_default();
            found.inlines.extend(name.starts_with(prefix).then(|| name.to_owned()));
            continue;
        }
        if let Some(definition) = line.strip_prefix("#define ") {
            let name = definition.split(|c| !is_word(c)).next().unwrap_or_default();
            if name.starts_with(prefix) && definition[name.len()..].starts_with('(') {
                found.inlines.insert(name.to_owned());
            }
            continue;
        }
        if line.starts_with('#') || line.starts_with("typedef") {
            continue;
        }
        let names = line.match_indices('(').map(|(at, _)| last_word(&line[..at]));
        let mut names = names.filter(|name| name.starts_with(prefix)).map(str::to_owned);
        if starts {
            // Its own name is the first; those behind it are called by a body on the same line.
            found.inlines.extend(names.next());
        } else if !inline {
            found.functions.extend(names);
        }
        inline &= line != "}";
    }
    found
}

/// Files with this extension below a folder, sorted.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Names that a version script lets through and keeps back, as patterns. A name that it does not mention stays visible.
struct VersionScript {
    global: Vec<String>,
    local: Vec<String>,
}

impl VersionScript {
    fn parse(text: &str) -> Self {
        let mut script = Self { global: Vec::new(), local: Vec::new() };
        let text = without_comments(text);
        for node in text.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
            let (before, local) = node.split_once("local:").unwrap_or((node, ""));
            let global = before.split_once("global:").map_or("", |(_, global)| global);
            let names = |part: &str| -> Vec<String> {
                part.split(';').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
            };
            script.global.extend(names(global));
            script.local.extend(names(local));
        }
        script
    }

    fn lets_through(&self, name: &str) -> bool {
        let named_by = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
        named_by(&self.global) || !named_by(&self.local)
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// An exported function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Export {
    /// The file that defines it.
    pub(super) file: String,
    /// Why it always fails: the text of the macro that lists it.
    pub(super) refusal: Option<String>,
}

/// C functions that the emulator's shared library exports: those of its sources with a name of their own that its
/// version script lets through.
pub(super) fn exported(root: &Path) -> Result<BTreeMap<String, Export>> {
    let script = VersionScript::parse(&read(root, "emu/libflexio/link.map")?);
    let mut found = BTreeMap::new();
    for library in ["emu/libdoca", "emu/libdoca_dpa", "emu/libflexio", "emu/libibverbs", "emu/librdmacm"] {
        for extension in ["rs", "c"] {
            for path in files(&root.join(library).join("src"), extension)? {
                let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                let place = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                let names = if extension == "rs" {
                    unmangled(&text)
                } else {
                    defined_in_c(&text).into_iter().map(|name| (name, None)).collect()
                };
                let names = names.into_iter().filter(|(name, _)| script.lets_through(name));
                found.extend(names.map(|(name, refusal)| (name, Export { file: place.clone(), refusal })));
            }
        }
    }
    Ok(found)
}

/// Functions that a Rust file defines under their C names: each `fn` behind `no_mangle`, and the names that a macro is
/// given which adds it. Such macros make functions that only fail; the text before the names says why.
pub(super) fn unmangled(text: &str) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    let mut expected = false;
    let mut refusals = false;
    let mut reason = String::new();
    for line in text.lines() {
        let called = line.strip_suffix("! {").is_some_and(|name| !name.is_empty() && name.chars().all(is_word));
        if called || line == "}" {
            refusals = called;
            reason.clear();
            continue;
        }
        let function =
            line.split_once("fn ").map(|(_, rest)| rest.chars().take_while(|c| is_word(*c)).collect::<String>());
        if refusals {
            let (quoted, rest) = quotation(line);
            if let Some(quoted) = quoted {
                quoted.clone_into(&mut reason);
            }
            if let Some(name) = function {
                found.insert(name, Some(reason.clone()));
            } else if !rest.contains(['*', ')']) {
                let words = rest.split(|c| !is_word(c)).filter(|word| word.contains('_'));
                found.extend(words.map(|name| (name.to_owned(), Some(reason.clone()))));
            }
            continue;
        }
        expected |= line.contains("no_mangle)]") && !line.starts_with(' ');
        if let Some(name) = function
            && expected
        {
            found.insert(name, None);
            expected = false;
        }
    }
    // Symbols that assembly defines.
    for (_, rest) in text.match_indices(".globl ").map(|(at, word)| text.split_at(at + word.len())) {
        found.insert(rest.chars().take_while(|c| is_word(*c)).collect(), None);
    }
    found
}

/// The first text in double quotes of a line, and what is not in quotes or a comment.
fn quotation(line: &str) -> (Option<&str>, &str) {
    let line = line.split("//").next().unwrap_or_default();
    match line.split_once('"').and_then(|(_, rest)| rest.split_once('"')) {
        Some((quoted, rest)) => (Some(quoted), rest),
        None => (None, line),
    }
}

/// Functions that a C file defines at the start of a line.
pub(super) fn defined_in_c(text: &str) -> BTreeSet<String> {
    let text = without_comments(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = BTreeSet::new();
    for (at, line) in lines.iter().enumerate() {
        let starts = line.starts_with(|c: char| c.is_ascii_alphabetic()) && !line.starts_with("static");
        let body = lines[at..].iter().find(|line| line.ends_with(';') || **line == "{");
        if let Some((before, _)) = line.split_once('(')
            && starts
            && body.is_some_and(|line| *line == "{")
        {
            found.insert(last_word(before).to_owned());
        }
    }
    found
}

/// Whether a file defines an item of this name: a Rust function, constant, type, module or macro, a C function or
/// macro, a test.
pub(super) fn defines(text: &str, item: &str) -> bool {
    const BEFORE: [&str; 12] = [
        "fn",
        "const",
        "static",
        "struct",
        "enum",
        "union",
        "type",
        "trait",
        "mod",
        "macro_rules!",
        "#define",
        ".globl",
    ];
    text.match_indices(item).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + item.len()..]);
        if before.ends_with(is_word) || after.starts_with(is_word) {
            return false;
        }
        let line = before.rsplit('\n').next().unwrap_or_default();
        let word = before.trim_end().rsplit(char::is_whitespace).next().unwrap_or_default();
        // In C a function is named before its parenthesis, at the outer level.
        let in_c = after.starts_with('(')
            && line.starts_with(|c: char| c.is_ascii_alphabetic())
            && (!line.contains('(') || line.starts_with("static inline __attribute__"));
        BEFORE.contains(&word.trim_start_matches('"')) || in_c || line == DOORBELL
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn headers_declare_and_define() {
        let text = "/* dev_comment(x) */\n#define dev_macro(x) dev_other(x)\n#define dev_constant (1)\n\
                    typedef void (dev_type)(void);\nstatic inline int dev_inline(int a)\n{\n\treturn \
            dev_called(a);\n}\n\
                    FLEXCAST_DEV_DOORBELL(dev_ring, int a)\n{\n\tdev_called(a);\n}\n\
                    FLEXIO_DEV_ALWAYS_INLINE int dev_always(int a)\n{\n\treturn dev_called(a);\n}\n\
                    int *dev_one(int a,\n\tint (*callback)(int));\nvoid dev_two(void) __attribute__((noreturn));\n";
        let found = header(text, "dev_");
        assert_eq!(found.functions, set(&["dev_one", "dev_two"]));
        assert_eq!(found.inlines, set(&["dev_always", "dev_ring", "dev_inline", "dev_macro"]));
    }

    #[test]
    fn exports_are_found_in_rust_and_c() {
        let text = "#[unsafe(no_mangle)]\npub(crate) unsafe extern \"C\" fn lib_one(a: u32) {}\nfn private_one() {}\n\
                    unsupported! {\n    WHY: fn lib_two(\n        u32, *mut lib_type\n    );\n}\n\
                    status! {\n    \"not so\":\n    lib_four, // comment_here\n    lib_five\n}\n\
                    fn other_one() {}\n    \".globl lib_three\",\n";
        let found = unmangled(text);
        let names = found.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names, set(&["lib_five", "lib_four", "lib_one", "lib_three", "lib_two"]));
        assert_eq!((found["lib_one"].as_deref(), found["lib_two"].as_deref()), (None, Some("")));
        assert_eq!(found["lib_five"].as_deref(), Some("not so"));
        let text =
            "int lib_declared(int);\nint lib_four(int a,\n\tint b)\n{\n\treturn f(a);\n}\nstatic int no(void)\n{\n}\n";
        assert_eq!(defined_in_c(text), set(&["lib_four"]));
    }

    #[test]
    fn version_scripts_let_names_through() {
        let closed =
            VersionScript::parse("/* c */ A {\n global:\n  lib_*;\n one;\n local:\n *;\n};\nB { global: two; } A;\n");
        for (name, visible) in [("lib_x", true), ("one", true), ("two", true), ("ones", false), ("other", false)] {
            assert_eq!(closed.lets_through(name), visible, "{name}");
        }
        let open = VersionScript::parse("A { global: one; local: _*; rust_*; };");
        for (name, visible) in [("one", true), ("other", true), ("_ZN3x", false), ("rust_panic", false)] {
            assert_eq!(open.lets_through(name), visible, "{name}");
        }
    }

    #[test]
    fn definitions_are_reported_from_uses() {
        let text = "const LIMIT: u32 = 3;\npub(crate) fn open(x: u32) -> u32 { close(x) }\nenum Kind { A }\n\
                    int c_function(int a);\n#define C_MACRO 3\n\tcalled(1);\n";
        for item in ["LIMIT", "open", "Kind", "c_function", "C_MACRO"] {
            assert!(defines(text, item), "{item}");
        }
        for item in ["close", "called", "LIM", "pen", "absent"] {
            assert!(!defines(text, item), "{item}");
        }
    }
}
