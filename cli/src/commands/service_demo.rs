//! `flexcast service demo`, and the processes that it starts.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use flexcast_cli::{note, out};
use flexcast_lab::compare::child::is_program;
use flexcast_lab::service::processes::{self, ProcessError, ProcessSpec, Programs};
use flexcast_service::daemon;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::emu_exec::{libraries, places};
use crate::service_args::{DemoArgs, DemoDaemonArgs, DemoRankArgs};

/// What shells expect of a program that a signal has ended: 128 and its number.
const INTERRUPTED: u8 = 128 + SIGINT as u8;

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The first ends the processes, the second one this program, with which they end as well.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("signals cannot be taken")?;
    }
    let flexcast = std::env::current_exe().context("the path of this program is not known")?;
    let daemon = flexcast.with_file_name("flexcast-service");
    let programs = Programs {
        daemon: is_program(&daemon).then_some(daemon),
        flexcast,
        libraries: libraries(args.libs.as_deref(), &places())?,
    };
    let spec = ProcessSpec { hosts: args.hosts, ranks_per_host: args.ranks_per_host, bytes: args.bytes };
    let report = match processes::run(&spec, &programs, &stop, &mut |line| note!("{line}")) {
        Ok(report) => report,
        Err(ProcessError::Interrupted) => {
            note!("{}", ProcessError::Interrupted);
            return Ok(ExitCode::from(INTERRUPTED));
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
    daemon::serve_with_log(&args.config)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rank(args: &DemoRankArgs) -> anyhow::Result<ExitCode> {
    processes::end_with(args.parent)?;
    processes::serve_rank(std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
