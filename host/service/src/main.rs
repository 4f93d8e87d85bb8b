//! `flexcast-service`: the service processes of one card, as a daemon on its Arm cores.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use flexcast_service::daemon::{self, config::Config};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

/// Service processes of one card: collectives that its Arm cores carry out while the hosts compute. See docs/service.md.
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
    let ended = if check { checked(&config) } else { serve(&config) };
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

fn serve(path: &std::path::Path) -> Result<(), daemon::DaemonError> {
    let (filter, level) = tracing_subscriber::reload::Layer::new(LevelFilter::INFO);
    // The service manager adds the time.
    let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let set = |name: &str| {
        if let Ok(wanted) = name.parse::<LevelFilter>() {
            _ = level.reload(wanted);
        }
    };
    daemon::serve(path, &set)
}
