//! `flexcast-service`: the service processes of one card, as a daemon on its Arm cores.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use flexcast_service::daemon::{self, config::Config};

/// Service processes of one card: collectives that its Arm cores carry out while the hosts compute. See
/// docs/service.md.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Read configuration and secret, say whether they can be used, and end.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let Options { config, check } = Options::parse();
    let ended = if check { checked(&config) } else { daemon::serve(&config, &flexcast_daemon::log::start()) };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flexcast-service: {error}");
            ExitCode::FAILURE
        }
    }
}

fn checked(path: &std::path::Path) -> Result<(), daemon::DaemonError> {
    let config = Config::read(path)?;
    daemon::read_secret(&config.secret)?;
    println!(
        "{}: {} service processes for {}, ports {} and following of {}",
        path.display(),
        config.processes,
        config.device,
        config.port,
        config.listen
    );
    Ok(())
}
