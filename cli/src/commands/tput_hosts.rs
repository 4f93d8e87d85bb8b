//! `flexcast tput --server` and `--client HOST`: one half of a run each.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use emu_bridge::{INLINE, VARIABLE};
use emu_config::{JobTable, Machine};
use flexcast::Transport;
use flexcast::bootstrap::{Secret, StoreConfig, TcpStore};
use flexcast_cli::{note, out};
use flexcast_lab::tput::plan::Plan;
use flexcast_lab::tput::report::table;
use flexcast_lab::tput::run::made_up_bytes;
use flexcast_lab::tput::two_hosts;
use flexio::{CardKind, Provider};

use crate::args::TputArgs;
use crate::hosts_args::Side;
use crate::inputs::{read_image, read_source};
use crate::progress::{progress_bar, show};
use crate::provider_name::ProviderName;

/// Processes of a run.
const PROCESSES: usize = 2;

pub(super) fn run(args: &TputArgs, side: &Side) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.observe.options().is_none(),
        "--trace, --stats, --state, --core-dir and --gdb observe a machine of one process: leave them out with \
         --server and --client"
    );
    if let Some(option) = args.machine.given() {
        anyhow::bail!("{option} describes a machine that one process has: leave it out with --server and --client");
    }
    let params = args.spec.params(args.spec.seed.unwrap_or(1), 0);
    let file = args.file.as_deref().map(read_source).transpose()?;
    let bytes = file.as_ref().map_or(args.spec.bytes(), |file| file.len() as u64);
    let plan = Plan::new(params, bytes)?;
    plan.check_memory()?;
    let provider = match args.pair.provider {
        ProviderName::System => Provider::system()?,
        ProviderName::Emu if std::env::var_os(VARIABLE).is_some() => emu_provider::shared(),
        ProviderName::Emu => return Err(again_with_machine(args, side)),
    };
    let image = read_image(&args.image)?;
    let source = file.map_or_else(|| made_up_bytes(bytes, params.seed), Ok)?;
    let config =
        StoreConfig { timeout: Duration::from_secs(args.hosts.wait), ..StoreConfig::new(side.rank, 2, &*side.address) };
    let what =
        if side.rank == 0 { "waiting for the process that sends, at" } else { "meeting the process that receives, at" };
    note!("{what} {} (TCP), for {} s at most", side.address, args.hosts.wait);
    let mut store = TcpStore::join(config.secret(Secret::from_env()?))?;
    // The one that cannot go on lets the other know.
    let device = device(args, &provider).inspect_err(|error| store.refuse(&error.to_string()))?;
    if provider.kind() == CardKind::Emulated {
        note!("emulated cards in two processes: times are measured, and show how fast this computer emulates");
    }
    let bar = progress_bar("repetitions");
    let report = two_hosts::run(&provider, &device, &image, &plan, &source, &mut store, &mut |tick| show(&bar, tick));
    bar.finish_and_clear();
    let report = report?;
    if args.pair.json {
        out!("{}", serde_json::to_value(&report)?)?;
    } else {
        out!("{}", table(std::slice::from_ref(&report)))?;
    }
    Ok(if report.digest_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn device(args: &TputArgs, provider: &Provider) -> anyhow::Result<String> {
    if let Some(device) = &args.hosts.device {
        return Ok(device.clone());
    }
    let first = provider.devices()?.into_iter().next().map(|device| device.name);
    first.context("no card here: see whether a card and its driver are there")
}

/// Becomes this command again, with a card of its own at an emulated network of two processes, as the emulator's
/// libraries give it to any program; returns only if that fails.
fn again_with_machine(args: &TputArgs, side: &Side) -> anyhow::Error {
    let machine = || -> anyhow::Result<Command> {
        let job = JobTable { first_port: args.hosts.port, ..JobTable::default() };
        let uc_multicast = args.spec.transport == Transport::UcMulticast;
        let machine = Machine { cards: Some(1), job: Some(job), uc_multicast, ..Machine::default() };
        let machine = machine.placed(side.rank as usize, PROCESSES)?;
        if let Some(bridge) = &machine.bridge {
            emu_bridge::attempt(bridge)?;
        }
        let text = toml::to_string(&machine).context("writing the machine as text")?;
        let mut command = Command::new(std::env::current_exe().context("the path of this program is not known")?);
        command.args(std::env::args_os().skip(1)).env(VARIABLE, format!("{INLINE}{text}"));
        Ok(command)
    };
    match machine() {
        Ok(mut command) => anyhow::Error::from(command.exec()).context("this program cannot be started again"),
        Err(error) => error,
    }
}
