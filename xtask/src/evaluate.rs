use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, process, status, workspace};

/// Calibrate, run the experiments of experiments/, and write the page, docs/calibration.md and docs/evaluation.md.
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
    /// Runs at a time, each with a machine of its own; fewer where they would take more than half of the memory there is [default: one
    /// per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<()> {
        build::build(&Toolchain::load("emu")?, &workspace::images()?)?;
        let (cli, out) = (workspace::cli()?, workspace::root().join("target/evaluation"));
        let begun = Instant::now();
        std::fs::create_dir_all(&out).with_context(|| format!("{} cannot be made", out.display()))?;
        let calibration = if self.reduced { None } else { Some(self.calibrate(&cli, &out.join("calibration.json"))?) };
        status::say("Evaluating", "the experiments of experiments/, on emulated cards");
        let done = process::run(&mut self.report(&cli, &out, calibration.as_deref()));
        let seconds = begun.elapsed().as_secs();
        status::say(
            "Evaluated",
            format!("in {} min {} s: {}", seconds / 60, seconds % 60, out.join("index.html").display()),
        );
        done
    }

    /// The calibration, written to `file`. One that finds the model unsound is told of and goes into the page as it is.
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
        std::fs::write(file, output.stdout).with_context(|| format!("{} cannot be written", file.display()))?;
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
        }
        report
    }

    fn jobs_argument(&self) -> Vec<String> {
        self.jobs.map_or_else(Vec::new, |jobs| vec!["--jobs".to_owned(), jobs.to_string()])
    }
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
    }
}
