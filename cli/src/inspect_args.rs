//! Commands that inspect the emulated machine, and their options.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::{RunArgs, TputArgs};
use crate::sim_args::SimArgs;

/// `flexcast trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Where the timeline goes.
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    pub(crate) output: PathBuf,
    /// The command whose machine is recorded.
    #[command(subcommand)]
    pub(crate) command: Traced,
}

/// Commands that can be recorded.
#[derive(Debug, Subcommand)]
pub(crate) enum Traced {
    /// `flexcast tput` with its options.
    Tput(Box<TputArgs>),
    /// `flexcast sim` with its options.
    Sim(Box<SimArgs>),
    /// `flexcast run` with its options.
    Run(RunArgs),
}

/// A process id as the vendor's tools take it.
fn hexadecimal(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| format!("`{text}` is not a hexadecimal id, as `flexcast ps` prints it"))
}

/// Which state, and what of it.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// State file, written by a run with `--state FILE`.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only this card.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Only this process (hexadecimal).
    #[arg(short, long, value_name = "ID", value_parser = hexadecimal)]
    pub(crate) process_id: Option<u32>,
    /// Print the state as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flexcast ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// List each thread.
    #[arg(short, long)]
    pub(crate) threads: bool,
}

/// `flexcast stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Only this thread (hexadecimal).
    #[arg(short, long, value_name = "ID", value_parser = hexadecimal)]
    pub(crate) thread_id: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal() {
        assert_eq!(hexadecimal("1f"), Ok(0x1F));
        assert_eq!(hexadecimal("0x10"), Ok(16));
        assert!(hexadecimal("ten").unwrap_err().contains("hexadecimal"));
    }
}
