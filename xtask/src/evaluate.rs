use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::toolchain::Toolchain;
use crate::{build, process, status, workspace};

/// Calibrate, run the experiments of experiments/, and write the page and docs/evaluation.md.
#[derive(clap::Args)]
pub(crate) struct Evaluate {
    /// Experiments by their ids [default: all]; docs/evaluation.md stays as it is then.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// The small sweeps: seconds; docs/evaluation.md stays as it is.
    #[arg(long)]
    reduced: bool,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<()> {
        build::build(&Toolchain::load("emu")?, &workspace::images()?)?;
        let (cli, root) = (workspace::cli()?, workspace::root());
        let (images, out) = (workspace::image_dir("emu"), root.join("target/evaluation"));
        std::fs::create_dir_all(&out).with_context(|| format!("{} cannot be made", out.display()))?;
        let mut report = Command::new(&cli);
        report.current_dir(root).arg("report").arg("--images").arg(&images).arg("--out").arg(&out);
        let known = Command::new(&cli).args(["help", "calibrate"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if known.is_ok_and(|status| status.success()) && !self.reduced {
            status::say("Calibrating", "the timing model: its fit, what it was not fitted to, its sensitivity");
            let text = process::capture(
                Command::new(&cli).current_dir(root).args(["calibrate", "--json", "--images"]).arg(&images),
            )?;
            let file = out.join("calibration.json");
            std::fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))?;
            report.arg("--calibration").arg(file);
        }
        status::say("Evaluating", "the experiments of experiments/, on emulated cards");
        if self.reduced {
            report.arg("--reduced");
        }
        if !self.only.is_empty() {
            report.args(["--only", &self.only.join(",")]);
        }
        if self.only.is_empty() && !self.reduced {
            report.arg("--summary").arg(root.join("docs/evaluation.md"));
        }
        process::run(&mut report)
    }
}
