use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;
use comfy_table::{Table, presets};
use serde::Deserialize;

use crate::{process, status, workspace};

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

/// The images whose firmware is mutated and run.
const IMAGES: [&str; 3] = ["receive", "reference", "pingpong"];
/// Where calls of fences are looked for.
const SOURCES: [&str; 2] = ["device/dpa/src", "device/images"];
/// Mutations other than a missing fence, and those that no test can tell: written by hand.
const TABLE: &str = "device/mutants.toml";
/// What a build of the firmware needs.
const TREE: [&str; 6] = ["device", "shared", "linker", "toolchains", "Cargo.toml", "rust-toolchain.toml"];
/// A test that takes longer than this has met a mutant that keeps it from ending: killed as well.
const TEST_BOUND: Duration = Duration::from_secs(600);

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
    /// Why no test can fail.
    reason: String,
}

/// One change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mutation {
    /// Relative to the root.
    file: String,
    line: usize,
    function: String,
    what: String,
    /// The file with the change.
    text: String,
}

impl Mutants {
    pub(crate) fn run(&self) -> Result<()> {
        let rules = rules()?;
        let mutations = mutations(workspace::root(), &rules)?;
        if self.list {
            for (number, mutation) in mutations.iter().enumerate() {
                let reason = reason(&rules, mutation).map_or(String::new(), |reason| format!("  [redundant: {reason}]"));
                println!("{number:>3}  {}:{}  {}{reason}", mutation.file, mutation.line, mutation.what);
            }
            return Ok(());
        }
        if let Some(wrong) = self.only.iter().find(|&&number| number >= mutations.len()) {
            bail!("there is no mutation {wrong}: the last one is {}; `--list` shows them", mutations.len() - 1);
        }
        let tree = Tree::new()?;
        let test = test_program()?;
        status::say("Testing", "the firmware as it is");
        tree.build()?;
        if let Outcome::Killed(by) = tree.test(&test, self.seeds)? {
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
            let outcome = tree.with(mutation, || tree.test(&test, self.seeds))?;
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
            table.add_row([number.to_string(), name, verdict]);
        }
        println!("{table}");
        println!("{killed} killed, {excused} redundant by design, {} survived", survivors.len());
        if survivors.is_empty() { Ok(()) } else { bail!("no test fails for:\n  {}", survivors.join("\n  ")) }
    }
}

fn rules() -> Result<Rules> {
    let path = workspace::root().join(TABLE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{}", path.display()))
}

fn reason<'a>(rules: &'a Rules, mutation: &Mutation) -> Option<&'a str> {
    let same = |rule: &&Redundant| {
        rule.file == mutation.file && rule.function == mutation.function && rule.fence == mutation.what
    };
    rules.redundant.iter().find(same).map(|rule| rule.reason.as_str())
}

/// All mutations of a tree, in order of file and line; then the patches.
fn mutations(root: &Path, rules: &Rules) -> Result<Vec<Mutation>> {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {file}"))?;
        found.extend(missing_fences(&file, &text));
    }
    for rule in &rules.redundant {
        let known = |mutation: &Mutation| {
            rule.file == mutation.file && rule.function == mutation.function && rule.fence == mutation.what
        };
        if !found.iter().any(known) {
            bail!("{TABLE}: there is no `{}` in `{}` of {} any more", rule.fence, rule.function, rule.file);
        }
    }
    for patch in &rules.patch {
        let text = std::fs::read_to_string(root.join(&patch.file)).with_context(|| format!("reading {}", patch.file))?;
        let places: Vec<usize> = text.match_indices(&patch.find).map(|(at, _)| at).collect();
        let [at] = places[..] else {
            bail!("{TABLE}: `{}` is {} times in {}, not once", patch.find, places.len(), patch.file);
        };
        found.push(Mutation {
            file: patch.file.clone(),
            line: text[..at].lines().count() + usize::from(text[..at].ends_with('\n')),
            function: String::new(),
            what: patch.name.clone(),
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
            found.push(Mutation {
                file: file.to_owned(),
                line: index + 1,
                function: function.clone(),
                what: line.trim().to_owned(),
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

enum Outcome {
    /// By which test, and what it said.
    Killed(String),
    Survived,
}

/// A copy of the tree, to be changed. It keeps its builds, so that a second run starts faster.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new() -> Result<Self> {
        let root = workspace::root().join("target/mutants");
        for part in TREE {
            let (from, to) = (workspace::root().join(part), root.join(part));
            if to.is_dir() {
                std::fs::remove_dir_all(&to).with_context(|| format!("removing {}", to.display()))?;
            }
            copy(&from, &to)?;
        }
        Ok(Tree { root })
    }

    fn build(&self) -> Result<()> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut command = Command::new(program);
        command.arg("build").args(IMAGES).env("FLEXCAST_ROOT", &self.root).current_dir(&self.root);
        let output = command.output().with_context(|| format!("starting `{}`", process::line(&command)))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {}\n{text}", output.status, process::line(&command));
        }
        Ok(())
    }

    /// Calls `body` on the images of the changed tree, and changes it back.
    fn with(&self, mutation: &Mutation, body: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        let path = self.root.join(&mutation.file);
        let original = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        std::fs::write(&path, &mutation.text).with_context(|| format!("writing {}", path.display()))?;
        let outcome = self.build().and_then(|()| body());
        std::fs::write(&path, original).with_context(|| format!("writing {}", path.display()))?;
        outcome
    }

    fn test(&self, program: &Path, seeds: Option<u64>) -> Result<Outcome> {
        let log = self.root.join("test.log");
        let file = std::fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(["image_", "--test-threads=2"]).current_dir(workspace::root().join("tests"));
        command.env("FLEXCAST_IMAGES", self.root.join("target/device/emu")).env("RUST_BACKTRACE", "0");
        if let Some(seeds) = seeds {
            command.env("FLEXCAST_WEAK_SEEDS", seeds.to_string());
        }
        let errors = file.try_clone().context("the log of the tests")?;
        let child = command.stdout(file).stderr(Stdio::from(errors)).spawn();
        let mut child = child.with_context(|| format!("starting `{}`", process::line(&command)))?;
        let Some(success) = wait(&mut child)? else {
            return Ok(Outcome::Killed(format!("no end within {} s", TEST_BOUND.as_secs())));
        };
        let text = std::fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
        match (success, killer(&text)) {
            (true, _) => Ok(Outcome::Survived),
            (false, Some(by)) => Ok(Outcome::Killed(by)),
            (false, None) => bail!("the test program died:\n{text}"),
        }
    }
}

/// Whether it ended well; `None` if it had to be ended.
fn wait(child: &mut Child) -> Result<Option<bool>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("waiting for the tests")? {
            return Ok(Some(status.success()));
        }
        if start.elapsed() > TEST_BOUND {
            child.kill().context("ending the tests")?;
            child.wait().context("ending the tests")?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The failed tests and what the first of them said, in short.
fn killer(log: &str) -> Option<String> {
    let mut said = BTreeMap::new();
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("thread '")
            && let Some((name, _)) = rest.split_once('\'')
            && line.contains("panicked at")
            && let Some(message) = lines.next()
        {
            said.entry(name.to_owned()).or_insert_with(|| message.trim().to_owned());
        }
    }
    let failed: Vec<&str> =
        log.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    let first = failed.first()?;
    let mut message: String = said.get(*first).cloned().unwrap_or_default();
    if message.len() > 150 {
        let end = (0..=150).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    Some(format!("{}: {message}", failed.join(", ")))
}

/// Builds the test program and gives its path.
fn test_program() -> Result<PathBuf> {
    status::say("Building", "the tests");
    let mut command = workspace::cargo();
    command.args(["test", "--package", "flexcast-tests", "--test", "weak_memory", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    let messages = process::capture(&mut command)?;
    for message in Message::parse_stream(messages.as_bytes()) {
        if let Message::CompilerArtifact(artifact) = message.context("cargo's messages")?
            && artifact.target.name == "weak_memory"
            && let Some(program) = artifact.executable
        {
            return Ok(program.into_std_path_buf());
        }
    }
    bail!("cargo built no test program; its command was `{}`", process::line(&command))
}

/// Copies a file, or a folder without what builds have left in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let told = || format!("copying {} to {}", from.display(), to.display());
    if !from.is_dir() {
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).with_context(told)?;
        }
        std::fs::copy(from, to).with_context(told)?;
        return Ok(());
    }
    std::fs::create_dir_all(to).with_context(told)?;
    for entry in std::fs::read_dir(from).with_context(told)? {
        let entry = entry.with_context(told)?;
        if entry.file_name() != "target" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
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
        for line in ["// fence::outbox();", "fence::outbox(1);", "pub fn outbox() {", "fence(SeqCst);", "self.fence();"] {
            assert!(!is_fence(line), "{line}");
        }
        let text = "fn one() {\n    a();\n    fence::system();\n}\nfn two<T>() {\n    fence::memory();\n}\n";
        let found = missing_fences("f.rs", text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].line, found[0].function.as_str(), found[0].what.as_str()), (3, "one", "fence::system();"));
        assert_eq!(found[1].function, "two");
        assert_eq!(found[1].text, text.replace("    fence::memory();", ""));
    }

    #[test]
    fn the_killer_is_named_with_what_it_said() {
        let log = "test image_a ... ok\ntest image_b ... FAILED\n\nthread 'image_b' (77) panicked at x.rs:1:2:\n\
                   case 3, seed 4: an answer differs\nnote: more\n";
        assert_eq!(killer(log).as_deref(), Some("image_b: case 3, seed 4: an answer differs"));
        assert_eq!(killer("test image_a ... ok\n"), None);
    }

    /// Every fence of this tree is in the list, every rule still means something, and every patch changes something.
    #[test]
    fn the_table_fits_the_firmware() {
        let rules = rules().expect("the table");
        let mutations = mutations(workspace::root(), &rules).expect("every rule and patch finds its place");
        assert!(mutations.len() >= 40, "{}", mutations.len());
        for mutation in &mutations {
            let now = std::fs::read_to_string(workspace::root().join(&mutation.file)).expect("a file of the tree");
            assert_ne!(now, mutation.text, "{mutation:?}");
        }
        assert!(rules.redundant.iter().all(|rule| rule.reason.len() > 20), "a reason is a sentence");
    }
}
