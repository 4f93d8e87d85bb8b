//! `flexcast flow`.

use std::process::ExitCode;

use flexcast_cli::out;
use flexcast_lab::flow::bench;

use crate::flow_args::FlowArgs;

pub(super) fn run(args: &FlowArgs) -> anyhow::Result<ExitCode> {
    let (params, asked) = args.asked()?;
    let report = bench(params, &asked)?;
    if args.json {
        out!("{}", serde_json::to_string(&report)?)?;
    } else {
        out!("{report}")?;
    }
    Ok(ExitCode::SUCCESS)
}
