//! `flexcast service demo`, and the processes that it starts.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use flexcast_cli::{note, out};
use flexcast_lab::compare::child::is_program;
use flexcast_lab::service::processes::{self, ProcessError, ProcessSpec, Programs};
use flexcast_service::daemon;
use flexio::Provider;

use super::emu_exec::{found, libraries, places};
use crate::interrupt::Interrupt;
use crate::service_args::{DemoArgs, DemoDaemonArgs, DemoRankArgs};

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::register().context("signals cannot be taken")?;
    let flexcast = std::env::current_exe().context("the path of this program is not known")?;
    let libraries = match &args.libs {
        Some(folder) => Some(libraries(Some(folder), &[])?),
        None => found(&places()),
    };
    let daemon = flexcast.with_file_name("flexcast-service");
    // It has no emulator of its own.
    let daemon = Some(daemon).filter(|daemon| libraries.is_some() && is_program(daemon));
    let programs = Programs { daemon, flexcast, libraries };
    let spec = ProcessSpec { hosts: args.hosts, ranks_per_host: args.ranks_per_host, bytes: args.bytes };
    let report = match processes::run(&spec, &programs, &interrupt.stop, &mut |line| note!("{line}")) {
        Ok(report) => report,
        Err(ProcessError::Interrupted) => {
            note!("{}", ProcessError::Interrupted);
            return Ok(interrupt.code());
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        out!("{}", serde_json::to_string(&report)?)?;
    } else {
        out!("{report}")?;
    }
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn daemon(args: &DemoDaemonArgs) -> anyhow::Result<ExitCode> {
    processes::end_with(args.parent)?;
    if let Some(program) = &args.program {
        // It stays this process, and ends with the same one.
        let error = Command::new(program).arg("--config").arg(&args.config).exec();
        return Err(error).with_context(|| format!("{} cannot be started", program.display()));
    }
    daemon::serve_on(&args.config, &flexcast_daemon::log::start(), |config| match &config.libraries {
        Some(folder) => Provider::from_folder(folder),
        None => Ok(emu_provider::shared()),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rank(args: &DemoRankArgs) -> anyhow::Result<ExitCode> {
    processes::end_with(args.parent)?;
    processes::serve_rank(std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
