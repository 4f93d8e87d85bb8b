//! `flexcast probe`.

use std::process::ExitCode;

use flexcast_cli::{note, out};
use flexcast_lab::probe::{Outcome, probe};

use crate::args::ProbeArgs;
use crate::inputs::{open_provider, read_image};

pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    let provider = open_provider(args.provider, 0, 1)?;
    let image =
        |name: &str| read_image(&args.images.as_ref().map_or(name.into(), |folder| folder.join(format!("{name}.elf"))));
    let (pingpong, allgather) = (image("pingpong")?, image("allgather")?);
    let report = probe(&provider, args.device.as_deref(), &pingpong, &allgather, &mut |what| note!("{what}"))?;
    let text = if args.json { serde_json::to_string(&report)? } else { report.to_string() };
    out!("{text}")?;
    let failed = report.rows.iter().any(|row| row.outcome == Outcome::Failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
