//! `flexcast compare`, and the processes of its bound.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use flexcast_cli::{note, out};
use flexcast_lab::compare::bound::{self, BoundArgs};
use flexcast_lab::compare::run::{self, Programs};
use flexcast_lab::compare::{CompareError, output, page};
use flexcast_lab::evaluate::output::{PAGE, attempt_file, write_file};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::compare_args::CompareArgs;

/// What shells expect of a program that a signal has ended: 128 and its number.
const INTERRUPTED: u8 = 128 + SIGINT as u8;

pub(super) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    args.spec.check()?;
    let index = args.out.join(PAGE);
    // Minutes of measuring are not lost for a place that cannot be written.
    attempt_file(&index)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The first removes processes and namespaces, the second one ends it; the next run removes what that leaves.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("signals cannot be taken")?;
    }
    let programs = Programs {
        flexcast: std::env::current_exe().context("the path of this program is not known")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        folder: std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone()),
    };
    let comparison = match run::run(&args.spec, &programs, &stop, &mut |line| note!("{line}")) {
        Ok(comparison) => comparison,
        Err(error @ CompareError::NotPermitted(_)) => {
            note!("skipped: {error}");
            if args.json {
                out!("{}", output::skipped(&error.to_string()))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(CompareError::Interrupted) => {
            note!("{}", CompareError::Interrupted);
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error) => return Err(error.into()),
    };
    write_file(&index, &page::page(&comparison))?;
    if args.json {
        out!("{}", output::json(&comparison))?;
    } else {
        out!("{}", output::table(&comparison))?;
    }
    note!("page: {}", index.display());
    Ok(ExitCode::SUCCESS)
}

/// One rank of the bound.
pub(super) fn bound(args: &BoundArgs) -> anyhow::Result<ExitCode> {
    let mut printed = Ok(());
    bound::run(args, &mut |sample| {
        let line = serde_json::to_string(sample).unwrap_or_default();
        if printed.is_ok() {
            printed = out!("{line}");
        }
    })?;
    printed?;
    Ok(ExitCode::SUCCESS)
}
