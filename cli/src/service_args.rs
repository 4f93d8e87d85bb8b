//! Options of `flexcast service`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flexcast_service::daemon::config::STATUS_SOCKET;

/// Commands about the daemon of a card's service processes.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Show what a daemon has and does: processes, peers, groups, collectives, Reads, limits. Fails if none is there.
    Status(StatusArgs),
    /// Read a configuration file and its secret, and say what is wrong with them.
    Check(CheckArgs),
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
