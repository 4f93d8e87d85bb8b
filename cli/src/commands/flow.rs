//! `flexcast flow`.

use std::process::ExitCode;

use flexcast_cli::out;
use flexcast_lab::flow::{Bench, FlowParams, bench};

use crate::flow_args::FlowArgs;

pub(super) fn run(args: &FlowArgs) -> anyhow::Result<ExitCode> {
    let FlowArgs { ranks, ranks_per_host, .. } = *args;
    anyhow::ensure!(
        ranks.is_multiple_of(ranks_per_host),
        "--ranks {ranks}: give a multiple of --ranks-per-host {ranks_per_host}"
    );
    let preset = args.preset.params();
    let params = FlowParams {
        hosts: ranks / ranks_per_host,
        ranks_per_host,
        // A process serves one rank at least.
        processes_per_host: args.service_processes.unwrap_or(preset.processes_per_host).min(ranks_per_host),
        active_reads: args.active_reads.unwrap_or(preset.active_reads),
        placement: args.placement,
        ..preset
    };
    let asked = Bench {
        kind: args.op,
        bytes: args.bytes,
        by: args.by()?,
        turns: (args.warm_up, args.iterations),
        skew: args.skew()?,
        seed: args.seed,
        overlap: args.overlap,
    };
    let report = bench(params, &asked)?;
    if args.json {
        out!("{}", serde_json::to_string(&report)?)?;
    } else {
        out!("{report}")?;
    }
    Ok(ExitCode::SUCCESS)
}
