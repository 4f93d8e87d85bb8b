//! One file per command.

mod bench;
mod calibrate;
mod collectives;
mod compare;
mod demo;
mod demo_overlap;
mod demo_sparse;
mod deploy;
mod device_files;
mod devices;
mod emu_exec;
mod emu_run;
mod flow;
mod info;
mod info_check;
mod observe;
mod perf;
mod plan;
mod probe;
mod reference;
mod report;
mod report_progress;
mod scaling;
mod service;
mod service_demo;
mod sim;
mod soak;
mod tput;
mod tput_hosts;
mod tune;

use std::process::ExitCode;

use crate::args::{Command, EmuCommand};
use crate::service_args::ServiceCommand;

/// The folder of the emulator's libraries, that of the DPA among them.
///
/// # Errors
/// It is not there.
pub(crate) fn device_library(given: Option<&std::path::Path>) -> anyhow::Result<std::path::PathBuf> {
    let found = emu_exec::libraries(given, &emu_exec::places());
    found.map_err(|error| anyhow::anyhow!("{}", error.to_string().replace("--libs", "--emu-libs")))
}

/// Executes a command.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Devices(args) => devices::run(&args),
        Command::Tput(args) => tput::run(&args),
        Command::Reference(args) => reference::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Dpacc(args) => crate::dpacc::run(args.arguments),
        Command::Info(args) => info::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Deploy(args) => deploy::deploy(&args),
        Command::Run(args) => deploy::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::MulticastBound(args) => compare::bound(&args),
        Command::Flow(args) => flow::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Trace(args) => observe::trace(args),
        Command::Ps(args) => observe::ps(&args),
        Command::Stats(args) => observe::stats(&args),
        Command::Service(ServiceCommand::Status(args)) => service::status(&args),
        Command::Service(ServiceCommand::Check(args)) => service::check(&args),
        Command::Service(ServiceCommand::Demo(args)) => service_demo::run(&args),
        Command::Service(ServiceCommand::DemoDaemon(args)) => service_demo::daemon(&args),
        Command::Service(ServiceCommand::DemoRank(args)) => service_demo::rank(&args),
        Command::Emu(EmuCommand::Run(args)) => emu_run::run(&args),
        Command::Emu(EmuCommand::Exec(args)) => emu_exec::run(&args),
    }
}
