//! `flexcast calibrate`.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use emu_observe::new_file::NewFile;
use flexcast_cli::{note, out};
use flexcast_lab::calibrate::{Images, Options, calibrate};

use crate::calibrate_args::CalibrateArgs;

pub(super) fn run(args: &CalibrateArgs) -> anyhow::Result<ExitCode> {
    let timing = args.model.timing();
    let Some(parameters) = timing.parameters()? else {
        anyhow::bail!(
            "--model {}: it has no numbers to calibrate; name m2, or a file of a timing model",
            args.model.model
        );
    };
    let source = args.images.source();
    let images = Images { reference: source.read("reference")?, calibration: source.read("calibration")? };
    // Begun before the work, so that a place that cannot be written is known now.
    let failed = |file: &Path| format!("{} cannot be written", file.display());
    let markdown =
        args.markdown.as_deref().map(|file| NewFile::create(file).with_context(|| failed(file))).transpose()?;
    let options = Options { sweep: !args.quick, threads: args.jobs };
    let found = calibrate(&images, &parameters, options, &|name, ended, of, seconds| {
        note!("[{ended}/{of}] {name}: {seconds:.1} s");
    })?;
    if let (Some(mut file), Some(path)) = (markdown, &args.markdown) {
        let written = file.write_all(found.markdown().as_bytes()).and_then(|()| file.finish());
        written.with_context(|| failed(path))?;
    }
    if args.json {
        out!("{}", serde_json::to_string(&found)?)?;
    } else {
        out!("{}", found.text())?;
    }
    if !found.fit.agrees() {
        note!("{}: {}", found.model, found.verdict_of_fit());
    }
    Ok(if found.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
