//! `flexcast sim`.

use std::process::ExitCode;

use flexcast_cli::provider;
use flexcast_cli::sim::run::{self as sim, Tick};

use super::{progress_bar, read_image};
use crate::sim_args::SimArgs;

pub(super) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let params = args.params();
    params.check()?;
    let image = read_image(&args.image)?;
    let provider = provider::emulated(args.machine()?.config_of(params.cards())?)?;
    let source = sim::source(&params);
    let bar = progress_bar();
    bar.set_prefix(params.operation.name());
    bar.set_length(u64::from(params.ranks) * u64::from(params.iterations));
    let report = sim::run(&provider, &image, &params, &source, &mut |tick| match tick {
        Tick::Ready => bar.set_message("ranks"),
        Tick::Ended { iteration, ranks } => {
            bar.set_position(u64::from(iteration) * u64::from(params.ranks) + u64::from(ranks))
        }
    });
    bar.finish_and_clear();
    let report = report?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(if report.digest_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
