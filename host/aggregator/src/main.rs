//! `flexcast-aggregator`: sums up sparse AllReduce for groups whose ranks do not do it themselves.

use std::process::ExitCode;

use clap::Parser as _;
use flexcast_aggregator::options::{Command, Options};
use flexcast_aggregator::{budget, daemon};

fn main() -> ExitCode {
    let Options { command, serve } = Options::parse();
    let ended = match &command {
        None => daemon::serve(&serve),
        Some(Command::Status(args)) => daemon::print_status(args),
        Some(Command::Budget(args)) => budget::print(args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flexcast-aggregator: {error}");
            ExitCode::FAILURE
        }
    }
}
