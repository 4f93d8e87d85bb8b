//! `flexcast reference`: the published receive kernels.

use std::process::ExitCode;

use flexcast_cli::out;
use flexcast_lab::reference::{self, Plan};
use flexcast_lab::tput::run::{Cards, made_up_bytes};

use crate::inputs::read_image;
use crate::reference_args::ReferenceArgs;

pub(super) fn run(args: &ReferenceArgs) -> anyhow::Result<ExitCode> {
    // Limits before anything is opened, and before that many bytes are made up.
    let machine = args.machine.machine(args.spec.seed)?;
    let plan = Plan::new(args.spec.params(machine.seed.unwrap_or_default()), args.spec.bytes)?;
    plan.check_memory()?;
    let config = machine.config_of_pair()?;
    let model = config.model_name().to_owned();
    let (provider, _) = args.pair.open(&args.machine, config)?;
    let image = read_image(&args.image)?;
    let source = made_up_bytes(args.spec.bytes, plan.params.seed)?;
    let cards = Cards::open(&provider, args.pair.receiver.as_deref(), args.pair.sender.as_deref())?;
    let report = reference::run(&cards, &image, &plan, &source, &model)?;
    if args.pair.json {
        out!("{}", serde_json::to_value(&report)?)?;
    } else {
        out!("{}", reference::table(std::slice::from_ref(&report)))?;
        if let Some(accesses) = &report.accesses {
            out!("{accesses}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
