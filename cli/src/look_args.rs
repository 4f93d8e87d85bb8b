//! Options and commands that look at the emulated machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use emu_machine::DEFAULT_RECORDS;
use emu_observe::gdb::DEFAULT_ADDRESS;
use flexcast_cli::look::LookOptions;
use flexcast_lab::options::whole;

use crate::args::{RunArgs, TputArgs};
use crate::sim_args::SimArgs;

/// What to look at while the command runs (emulator only).
#[derive(Debug, Args)]
#[command(next_help_heading = "Look inside (emulator only)")]
pub(crate) struct LookArgs {
    /// Write a timeline of packets, completions, activations and doorbells to this file, for Perfetto.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Records kept for the timeline; later ones are only counted.
    #[arg(long, value_parser = whole::<usize>(0, usize::MAX), value_name = "N", default_value_t = DEFAULT_RECORDS)]
    pub(crate) trace_limit: usize,
    /// Print what each DPA thread has executed when the command ends.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Keep the state of processes and threads in this file, for `flexcast ps` and `flexcast stats`.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// Virtual time between two states, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1000, value_parser = period)]
    pub(crate) state_every: u64,
    /// Write a core dump (`.core`, for gdb-multiarch) and a report (`.crash`) of each DPA process that dies into this
    /// folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) core_dir: Option<PathBuf>,
    /// Stop when the first event handler begins, and serve gdb-multiarch on this address (port 0: any) [default:
    /// 127.0.0.1:1981].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_ADDRESS)]
    pub(crate) gdb: Option<String>,
    /// Longest wait for gdb to connect, in seconds.
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "S", default_value_t = 60)]
    pub(crate) gdb_wait: u64,
}

/// Microseconds between two states; not 0, which would be none.
fn period(text: &str) -> Result<u64, String> {
    let range = "give a whole number from 1 to 18446744073709551615";
    text.parse().ok().filter(|us| *us > 0).ok_or_else(|| range.to_owned())
}

impl LookArgs {
    /// The options, and whether there is anything to look at.
    pub(crate) fn options(&self) -> Option<LookOptions> {
        let any =
            self.trace.is_some() || self.stats || self.state.is_some() || self.core_dir.is_some() || self.gdb.is_some();
        any.then(|| LookOptions {
            trace: self.trace.clone(),
            trace_limit: self.trace_limit,
            state: self.state.clone(),
            state_every_us: self.state_every,
            cores: self.core_dir.clone(),
            gdb: self.gdb.clone(),
            gdb_wait: Duration::from_secs(self.gdb_wait),
        })
    }
}

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
