//! Options that observe the emulated machine of a command.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use emu_machine::DEFAULT_RECORDS;
use emu_observe::gdb::DEFAULT_ADDRESS;
use flexcast_cli::observe::ObserveOptions;
use flexcast_lab::options::whole;

/// What to observe while the command runs (emulator only).
#[derive(Debug, Args)]
#[command(next_help_heading = "Observation (emulator only)")]
pub(crate) struct ObserveArgs {
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

impl ObserveArgs {
    /// The options; none if there is nothing to observe.
    pub(crate) fn options(&self) -> Option<ObserveOptions> {
        let any =
            self.trace.is_some() || self.stats || self.state.is_some() || self.core_dir.is_some() || self.gdb.is_some();
        any.then(|| ObserveOptions {
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
