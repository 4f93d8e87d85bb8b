//! Options of `flexcast service`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flexcast_lab::options::{whole, whole_bytes};
use flexcast_lab::service::processes;
use flexcast_lab::service::processes::{MOST_BYTES, MOST_HOSTS, MOST_RANKS_PER_HOST};
use flexcast_service::daemon::config::STATUS_SOCKET;

/// Commands about the daemon of a card's service processes.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Show what a daemon has and does: processes, peers, groups, collectives, Reads, limits. Fails if none is there.
    Status(StatusArgs),
    /// Read a configuration file and its secret, and say what is wrong with them.
    Check(CheckArgs),
    /// Start daemons and ranks as processes on emulated cards, run collectives, kill a rank and a daemon, and show what
    /// is reported to the others.
    Demo(DemoArgs),
    /// A daemon of `flexcast service demo`, which starts it.
    #[command(name = processes::DAEMON_COMMAND, hide = true)]
    DemoDaemon(DemoDaemonArgs),
    /// A rank of `flexcast service demo`, which starts it.
    #[command(name = processes::RANK_COMMAND, hide = true)]
    DemoRank(DemoRankArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// `status_socket` of the daemon's configuration.
    #[arg(long, value_name = "PATH", default_value = STATUS_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Print the JSON document instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Configuration file of a daemon.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Hosts, each with an emulated card and a daemon: 1 to 8.
    #[arg(long, value_parser = whole::<u32>(1, MOST_HOSTS), value_name = "N", default_value_t = 2)]
    pub(crate) hosts: u32,
    /// Ranks on each host, a process each: 1 to 8.
    #[arg(long, value_parser = whole::<u32>(1, MOST_RANKS_PER_HOST), value_name = "N", default_value_t = 2)]
    pub(crate) ranks_per_host: u32,
    /// Bytes of a block: 1 to 1048576.
    #[arg(long, value_parser = whole_bytes::<u64>(1, MOST_BYTES), value_name = "BYTES", default_value_t = 4096)]
    pub(crate) bytes: u64,
    /// Folder of the emulator's libraries [default: target/emu-libs, or where this program was installed; without
    /// them it uses the emulator that it holds].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) libs: Option<PathBuf>,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoDaemonArgs {
    /// Process that has started this one, and ends it.
    #[arg(long, value_name = "PID")]
    pub(crate) parent: u32,
    /// Configuration of the daemon.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Become this program instead of being the daemon.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoRankArgs {
    /// Process that has started this one, and ends it.
    #[arg(long, value_name = "PID")]
    pub(crate) parent: u32,
}
