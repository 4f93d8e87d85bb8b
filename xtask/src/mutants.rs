mod tree;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};
use serde::Deserialize;

use crate::{status, workspace};
use tree::{Outcome, Tree, test_program};

/// Take fences out of the firmware, one at a time, and see a test fail for each.
#[derive(clap::Args)]
pub(crate) struct Mutants {
    /// Print the mutations and stop.
    #[arg(long)]
    list: bool,
    /// Try only the mutations of these numbers.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    only: Vec<usize>,
    /// Seeds per test [default: what the tests use].
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
}

/// Where calls of fences are searched for.
const SOURCES: [&str; 3] = ["device/dpa/src", "device/datapath/src", "device/images"];
/// Kernels that are measured, with the fences of those who published them. Of what `calibration`'s keep in order
/// nothing is read afterwards; `reference` goes wrong on weak memory with all its fences, as a test shows.
const MEASURED: [&str; 2] = ["device/images/calibration", "device/images/reference"];
/// Mutations other than a missing fence, and those that no test can detect: written by hand.
const TABLE: &str = "device/mutants.toml";
/// The hand-written table.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// Replacements.
    #[serde(default)]
    patch: Vec<Patch>,
    /// Mutations that may survive.
    #[serde(default)]
    redundant: Vec<Redundant>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    name: String,
    file: String,
    /// Text that the file holds exactly once.
    find: String,
    replace: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Redundant {
    /// File of the fence, or name of the patch.
    file: String,
    /// Function that holds the fence.
    #[serde(default)]
    function: String,
    /// Text of the line.
    fence: String,
    /// Which of such lines in the function, counted from 1.
    #[serde(default = "first")]
    nth: usize,
    /// Why no test can fail.
    reason: String,
}

fn first() -> usize {
    1
}

impl Redundant {
    fn is(&self, mutation: &Mutation) -> bool {
        self.file == mutation.file
            && self.function == mutation.function
            && self.fence == mutation.what
            && self.nth == mutation.nth
    }
}

/// One change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mutation {
    /// Relative to the root.
    file: String,
    line: usize,
    function: String,
    what: String,
    /// Which of those in the function.
    nth: usize,
    /// The file with the change.
    text: String,
}

impl Mutants {
    pub(crate) fn run(&self) -> Result<()> {
        let rules = rules()?;
        let mutations = mutations(workspace::root(), &rules)?;
        if self.list {
            for (number, mutation) in mutations.iter().enumerate() {
                let reason =
                    reason(&rules, mutation).map_or(String::new(), |reason| format!("  [redundant: {reason}]"));
                status::print(format_args!(
                    "{number:>3}  {}:{}  {}{reason}",
                    mutation.file, mutation.line, mutation.what
                ))?;
            }
            return Ok(());
        }
        if let Some(wrong) = self.only.iter().find(|&&number| number >= mutations.len()) {
            bail!("there is no mutation {wrong}: the last one is {}; `--list` shows them", mutations.len() - 1);
        }
        let tree = Tree::new()?;
        let tests = test_program()?;
        status::say("Testing", "the firmware as it is");
        tree.check(&tests)?;
        tree.build()?;
        if let Outcome::Killed(by) = tree.test(&tests, self.seeds)? {
            bail!("the tests fail without any mutation: {by}");
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["", "mutation", "killed by"]);
        let (mut killed, mut excused, mut survivors) = (0, 0, Vec::new());
        for (number, mutation) in mutations.iter().enumerate() {
            if !self.only.is_empty() && !self.only.contains(&number) {
                continue;
            }
            let name = format!("{}:{} {}", mutation.file, mutation.line, mutation.what);
            status::say("Mutation", format_args!("{number} of {}: {name}", mutations.len()));
            let outcome = tree.with(&mutation.file, &mutation.text, || tree.test(&tests, self.seeds))?;
            let verdict = match (outcome, reason(&rules, mutation)) {
                (Outcome::Killed(by), None) => {
                    killed += 1;
                    by
                }
                (Outcome::Killed(by), Some(_)) => {
                    killed += 1;
                    status::warn(format_args!("{TABLE} calls mutation {number} redundant, but {by}"));
                    by
                }
                (Outcome::Survived, Some(reason)) => {
                    excused += 1;
                    format!("redundant: {reason}")
                }
                (Outcome::Survived, None) => {
                    survivors.push(name.clone());
                    "SURVIVED".to_owned()
                }
            };
            // At once: a run that is ended early has reported something.
            status::say("Verdict", &verdict);
            table.add_row([number.to_string(), name, verdict]);
        }
        status::print(format_args!("{table}"))?;
        status::print(format_args!("{killed} killed, {excused} redundant by design, {} survived", survivors.len()))?;
        if survivors.is_empty() { Ok(()) } else { bail!("no test fails for:\n  {}", survivors.join("\n  ")) }
    }
}

fn rules() -> Result<Rules> {
    let path = workspace::root().join(TABLE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{}", path.display()))
}

fn reason<'a>(rules: &'a Rules, mutation: &Mutation) -> Option<&'a str> {
    rules.redundant.iter().find(|rule| rule.is(mutation)).map(|rule| rule.reason.as_str())
}

/// All mutations of a tree, in order of file and line; then the patches.
fn mutations(root: &Path, rules: &Rules) -> Result<Vec<Mutation>> {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root.join(folder), &mut files)?;
    }
    files.retain(|file| !MEASURED.iter().any(|folder| file.starts_with(root.join(folder))));
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {file}"))?;
        found.extend(missing_fences(&file, &text));
    }
    for rule in &rules.redundant {
        if !found.iter().any(|mutation| rule.is(mutation)) {
            let Redundant { file, function, fence, nth, .. } = rule;
            bail!("{TABLE}: there is no `{fence}` number {nth} in `{function}` of {file}");
        }
    }
    for patch in &rules.patch {
        let text =
            std::fs::read_to_string(root.join(&patch.file)).with_context(|| format!("reading {}", patch.file))?;
        let places: Vec<usize> = text.match_indices(&patch.find).map(|(at, _)| at).collect();
        let [at] = places[..] else {
            bail!("{TABLE}: `{}` is {} times in {}, not once", patch.find, places.len(), patch.file);
        };
        found.push(Mutation {
            file: patch.file.clone(),
            line: text[..at].lines().count() + usize::from(text[..at].ends_with('\n')),
            function: String::new(),
            what: patch.name.clone(),
            nth: 1,
            text: text.replacen(&patch.find, &patch.replace, 1),
        });
    }
    Ok(found)
}

/// A line that is nothing but the call of a fence: `fence::outbox();`, or in the module of fences `arch::fence_r_r();`.
fn is_fence(line: &str) -> bool {
    let line = line.trim();
    let Some(call) = line.strip_suffix("();") else { return false };
    let name = ["dpa::fence::", "fence::", "arch::fence_"].iter().find_map(|prefix| call.strip_prefix(prefix));
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

fn missing_fences(file: &str, text: &str) -> Vec<Mutation> {
    let mut function = String::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.split_once("fn ").and_then(|(_, rest)| rest.split(['(', '<']).next())
            && !line.trim_start().starts_with("//")
        {
            function = name.to_owned();
        }
        if is_fence(line) {
            let without: Vec<&str> =
                text.lines().enumerate().map(|(at, line)| if at == index { "" } else { line }).collect();
            let what = line.trim().to_owned();
            let before = found.iter().filter(|other: &&Mutation| other.function == function && other.what == what);
            found.push(Mutation {
                file: file.to_owned(),
                line: index + 1,
                function: function.clone(),
                nth: before.count() + 1,
                what,
                text: without.join("\n") + "\n",
            });
        }
    }
    found
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            // Tests hold no firmware.
            if !path.ends_with("tests") {
                rust_files(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_fences_are_found_and_nothing_else() {
        for line in ["    fence::outbox();", "dpa::fence::memory_read();", "  arch::fence_r_r();"] {
            assert!(is_fence(line), "{line}");
        }
        for line in ["// fence::outbox();", "fence::outbox(1);", "pub fn outbox() {", "fence(SeqCst);", "self.fence();"]
        {
            assert!(!is_fence(line), "{line}");
        }
        let text = "fn one() {\n    a();\n    fence::system();\n    fence::system();\n}\nfn two<T>() \
            {\n    fence::memory();\n}\n";
        let mut found = missing_fences("f.rs", text);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].nth, found[1].nth, found[2].nth), (1, 2, 1));
        found.remove(1);
        assert_eq!((found[0].line, found[0].function.as_str(), found[0].what.as_str()), (3, "one", "fence::system();"));
        assert_eq!(found[1].function, "two");
        assert_eq!(found[1].text, text.replace("    fence::memory();", ""));
    }

    /// Every fence of this tree is in the list, every rule still means something, and every patch changes something.
    #[test]
    fn the_table_fits_the_firmware() {
        let rules = rules().expect("the table");
        let mutations = mutations(workspace::root(), &rules).expect("every rule and patch finds its place");
        assert_eq!(mutations.len(), 68, "SPECIFICATION.md states the number");
        for mutation in &mutations {
            let now = std::fs::read_to_string(workspace::root().join(&mutation.file)).expect("a file of the tree");
            assert_ne!(now, mutation.text, "{mutation:?}");
        }
        assert!(rules.redundant.iter().all(|rule| rule.reason.len() > 20), "a reason is a sentence");
    }
}
