//! The copy of the tree that is mutated, and the tests that are run on its images.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Artifact;

use crate::test_programs::artifacts;
use crate::{new_file, process, status, workspace};

/// The images whose firmware is mutated and run.
const IMAGES: [&str; 4] = ["reference", "pingpong", "allgather", "sparse"];
/// The test program that runs those images, and its modules whose tests named `image_...` do so on weak memory.
const PROGRAM: &str = "firmware";
const MODULES: [&str; 3] = ["weak_memory", "allgather_image", "progress_thread::weak"];
/// What a build of the firmware needs.
const TREE: [&str; 6] = ["device", "shared", "linker", "toolchains", "Cargo.toml", "rust-toolchain.toml"];
/// A test that takes longer than this has met a mutant that keeps it from ending: killed as well.
const TEST_BOUND: Duration = Duration::from_secs(600);

/// What the tests made of a mutation.
pub(super) enum Outcome {
    /// By which test, and what it said.
    Killed(String),
    Survived,
}

/// A copy of the tree, to be changed. It keeps its builds, so that a second run starts faster.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn new() -> Result<Self> {
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

    pub(super) fn build(&self) -> Result<()> {
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

    /// Gives a file another text, calls `body` on the images built from it, and changes it back.
    pub(super) fn with(&self, file: &str, text: &str, body: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        let path = self.root.join(file);
        let original = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        new_file::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        let outcome = self.build().and_then(|()| body());
        new_file::write(&path, original).with_context(|| format!("writing {}", path.display()))?;
        outcome
    }

    /// Sees that the tests of each module take their images from the given folder: others prove nothing.
    pub(super) fn check(&self, program: &Path) -> Result<()> {
        for module in MODULES {
            if let Outcome::Survived = self.test_with(program, module, &self.root.join("no images"), Some(1))? {
                bail!("{module} passes without images: its tests must take them from flexcast_tests");
            }
        }
        Ok(())
    }

    /// Runs the tests module by module, until one fails.
    pub(super) fn test(&self, program: &Path, seeds: Option<u64>) -> Result<Outcome> {
        let images = self.root.join("target/device/emu");
        for module in MODULES {
            if let killed @ Outcome::Killed(_) = self.test_with(program, module, &images, seeds)? {
                return Ok(killed);
            }
        }
        Ok(Outcome::Survived)
    }

    fn test_with(&self, program: &Path, module: &str, images: &Path, seeds: Option<u64>) -> Result<Outcome> {
        let log = self.root.join("test.log");
        let file = std::fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        let mut command = Command::new(program);
        command.args([&format!("{module}::image_"), "--test-threads=2"]).current_dir(workspace::root().join("tests"));
        command.env("FLEXCAST_IMAGES", images).env("RUST_BACKTRACE", "0");
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
pub(super) fn test_program() -> Result<PathBuf> {
    status::say("Building", "the tests");
    let mut command = workspace::cargo();
    command.args(["test", "--package", "flexcast-tests", "--no-run", "--test", PROGRAM]);
    let program = |artifact: Artifact| artifact.executable.filter(|_| artifact.target.name == PROGRAM);
    let program = artifacts(&mut command)?.into_iter().find_map(program);
    program.map(Into::into).with_context(|| format!("cargo built no {PROGRAM}: `{}`", process::line(&command)))
}

/// Copies a file, or a folder without what builds have left in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copying = || format!("copying {} to {}", from.display(), to.display());
    if !from.is_dir() {
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).with_context(copying)?;
        }
        std::fs::copy(from, to).with_context(copying)?;
        return Ok(());
    }
    std::fs::create_dir_all(to).with_context(copying)?;
    for entry in std::fs::read_dir(from).with_context(copying)? {
        let entry = entry.with_context(copying)?;
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
    fn the_killer_is_named_with_what_it_said() {
        let log = "test image_a ... ok\ntest image_b ... FAILED\n\nthread 'image_b' (77) panicked at x.rs:1:2:\n\
                   case 3, seed 4: an answer differs\nnote: more\n";
        assert_eq!(killer(log).as_deref(), Some("image_b: case 3, seed 4: an answer differs"));
        assert_eq!(killer("test image_a ... ok\n"), None);
    }
}
