use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, new_file, process, status, workspace};

/// Calibrate, run the experiments of lab/experiments/, and write the page, docs/calibration.md and docs/evaluation.md.
#[derive(clap::Args)]
pub(crate) struct Evaluate {
    /// Experiments by their ids [default: all]; docs/evaluation.md stays as it is then.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// The small sweeps, without a calibration: seconds; docs/evaluation.md stays as it is.
    #[arg(long)]
    reduced: bool,
    /// Calibrate without the sweep over assumptions, which takes minutes; docs/calibration.md stays as it is then.
    #[arg(long)]
    quick: bool,
    /// Runs at a time, each with a machine of its own; fewer where they would take more than half of the memory there
    /// is [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<()> {
        // Before anything is built and run. What the tool writes itself it tries as soon as it starts, but the report
        // starts last.
        let out = workspace::root().join("target/evaluation");
        new_file::attempt_folder(&out).with_context(|| format!("{} cannot be made", out.display()))?;
        for file in self.written(&out) {
            new_file::attempt(&file).with_context(|| format!("{} cannot be written", file.display()))?;
        }
        build::build(&Toolchain::load("emu")?, &workspace::images()?)?;
        let cli = workspace::cli()?;
        let begun = Instant::now();
        let calibration = if self.reduced { None } else { Some(self.calibrate(&cli, &out.join("calibration.json"))?) };
        status::say("Evaluating", "the experiments of lab/experiments/, on emulated cards");
        let done = process::run(&mut self.report(&cli, &out, calibration.as_deref()));
        let seconds = begun.elapsed().as_secs();
        status::say(
            "Evaluated",
            format!("in {} min {} s: {}", seconds / 60, seconds % 60, out.join("index.html").display()),
        );
        done
    }

    /// Files other than those of the experiments.
    fn written(&self, out: &Path) -> Vec<PathBuf> {
        let document = |name: &str| workspace::root().join("docs").join(name);
        let whole = self.only.is_empty() && !self.reduced;
        let calibration = (!self.reduced).then(|| out.join("calibration.json"));
        let documents =
            [(whole && !self.quick).then(|| document("calibration.md")), whole.then(|| document("evaluation.md"))];
        calibration.into_iter().chain(documents.into_iter().flatten()).chain([out.join("index.html")]).collect()
    }

    /// The calibration, written to `file`. One that finds the model unsound is reported and goes into the page as it
    /// is.
    fn calibrate(&self, cli: &Path, file: &Path) -> Result<PathBuf> {
        status::say("Calibrating", "the timing model: its fit, and what it was not fitted to");
        let mut calibrate = Command::new(cli);
        calibrate.current_dir(workspace::root()).args(["calibrate", "--json"]);
        calibrate.arg("--images").arg(workspace::image_dir("emu")).args(self.jobs_argument());
        if self.quick {
            calibrate.arg("--quick");
        } else if self.only.is_empty() {
            calibrate.arg("--markdown").arg(workspace::root().join("docs/calibration.md"));
        }
        let output = calibrate.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| process::line(&calibrate))?;
        let sound = output.status.success();
        if !sound && output.stdout.is_empty() {
            bail!("{}: {}", output.status, process::line(&calibrate));
        }
        if !sound {
            status::warn("the calibration does not find the model sound: what follows stands on it");
        }
        new_file::write(file, output.stdout).with_context(|| format!("{} cannot be written", file.display()))?;
        Ok(file.to_owned())
    }

    fn report(&self, cli: &Path, out: &Path, calibration: Option<&Path>) -> Command {
        let mut report = Command::new(cli);
        report.current_dir(workspace::root()).arg("report");
        report.arg("--images").arg(workspace::image_dir("emu")).arg("--out").arg(out).args(self.jobs_argument());
        if let Some(file) = calibration {
            report.arg("--calibration").arg(file);
        }
        if self.reduced {
            report.arg("--reduced");
        }
        if !self.only.is_empty() {
            report.args(["--only", &self.only.join(",")]);
        }
        if self.only.is_empty() && !self.reduced {
            report.arg("--summary").arg(workspace::root().join("docs/evaluation.md"));
            report.args(commit().map_or_else(Vec::new, |commit| vec!["--commit".to_owned(), commit]));
        }
        report
    }

    fn jobs_argument(&self) -> Vec<String> {
        self.jobs.map_or_else(Vec::new, |jobs| vec!["--jobs".to_owned(), jobs.to_string()])
    }
}

/// The commit of the tree, with a mark where files differ from it; `None` outside a repository.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let output = git.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_that_of_the_complete_evaluation() {
        let line = |evaluate: Evaluate, calibration: Option<&str>| {
            process::line(&evaluate.report(Path::new("flexcast"), Path::new("out"), calibration.map(Path::new)))
        };
        let plain = || Evaluate { only: Vec::new(), reduced: false, quick: false, jobs: None };
        let all = line(plain(), Some("c.json"));
        assert!(
            all.contains("--calibration c.json") && all.contains("docs/evaluation.md") && !all.contains("--jobs"),
            "{all}"
        );
        let one = line(Evaluate { only: vec!["a".to_owned(), "b".to_owned()], jobs: Some(3), ..plain() }, None);
        assert!(one.contains("--only a,b") && one.contains("--jobs 3") && !one.contains("docs/evaluation.md"), "{one}");
        let reduced = line(Evaluate { reduced: true, ..plain() }, None);
        assert!(reduced.contains("--reduced") && !reduced.contains("docs/evaluation.md"), "{reduced}");
        // What is tried before is what is written.
        let names = |evaluate: Evaluate| {
            let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            evaluate.written(Path::new("out")).into_iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(plain()), ["calibration.json", "calibration.md", "evaluation.md", "index.html"]);
        assert_eq!(names(Evaluate { quick: true, ..plain() }), ["calibration.json", "evaluation.md", "index.html"]);
        assert_eq!(names(Evaluate { reduced: true, ..plain() }), ["index.html"]);
    }
}
