//! `flexcast compare`, and the processes of its bound.

use std::process::ExitCode;

use anyhow::Context as _;
use flexcast_cli::{note, out};
use flexcast_lab::compare::bound::{self, BoundArgs};
use flexcast_lab::compare::run::{self, Programs};
use flexcast_lab::compare::{CompareError, output, page};
use flexcast_lab::evaluate::output::{PAGE, attempt_file, write_file};

use crate::compare_args::CompareArgs;
use crate::interrupt::Interrupt;

pub(super) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    args.spec.check()?;
    let index = args.out.join(PAGE);
    // Minutes of measuring are not lost for a place that cannot be written.
    attempt_file(&index)?;
    let interrupt = Interrupt::register().context("signals cannot be taken")?;
    let programs = Programs {
        flexcast: std::env::current_exe().context("the path of this program is not known")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        folder: std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone()),
    };
    let comparison = match run::run(&args.spec, &programs, &interrupt.stop, &mut |line| note!("{line}")) {
        Ok(comparison) => comparison,
        Err(error @ CompareError::NotPermitted(_)) => {
            if args.require {
                return Err(error.into());
            }
            note!("skipped: {error}");
            if args.json {
                out!("{}", output::skipped(&error.to_string()))?;
            }
            note!("nothing was measured; the exit code is 0 all the same, unless --require is given");
            return Ok(ExitCode::SUCCESS);
        }
        Err(CompareError::Interrupted) => {
            note!("{}", CompareError::Interrupted);
            return Ok(interrupt.code());
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
