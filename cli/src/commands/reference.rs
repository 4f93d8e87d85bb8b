//! `flexcast reference`: the published receive kernels.

use std::process::ExitCode;

use flexcast_cli::out;
use flexcast_lab::reference::{self, Plan};
use flexcast_lab::tput::run::{Cards, made_up_bytes};
use flexio::Provider;

use super::read_image;
use crate::args::ProviderName;
use crate::reference_args::ReferenceArgs;

pub(super) fn run(args: &ReferenceArgs) -> anyhow::Result<ExitCode> {
    // Limits before anything is opened, and before that many bytes are made up.
    let plan = Plan::new(args.params(), args.bytes)?;
    plan.check_memory()?;
    let config = args.machine.params(args.seed)?.config()?;
    let model = config.model_name().to_owned();
    let provider = match args.provider {
        ProviderName::Emu => emu_provider::emulated(config)?,
        ProviderName::System => {
            if let Some(option) = args.machine.given() {
                anyhow::bail!("{option} is for the emulated machine: leave it out with --provider system");
            }
            Provider::system()?
        }
    };
    let image = read_image(&args.image)?;
    let source = made_up_bytes(args.bytes, args.seed)?;
    let cards = Cards::open(&provider, args.server.as_deref(), args.client.as_deref())?;
    let report = reference::run(&cards, &image, &plan, &source, &model)?;
    if args.json {
        out!("{}", serde_json::to_value(&report)?)?;
    } else {
        out!("{}", reference::table(std::slice::from_ref(&report)))?;
        if let Some(accesses) = &report.accesses {
            out!("{accesses}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
