//! Log of the library on stderr, as far as the variable `FLEXCAST_LOG` lets it.

use anyhow::bail;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use crate::args::{Command, EmuCommand};
use crate::provider_name::ProviderName;
use crate::service_args::ServiceCommand;

/// The variable, which the C library and the emulator's libraries read, too.
const VARIABLE: &str = "FLEXCAST_LOG";

/// Begins the log of a command. Those that run the library among real processes or on a card show its warnings,
/// unless the variable says otherwise; of simulations, whose losses and deaths were asked for, only what the variable
/// asks for is shown.
pub(crate) fn start(command: &Command) -> anyhow::Result<()> {
    let usual = match command {
        // The daemon's configuration says what it logs; a program that is executed logs by itself.
        Command::Service(ServiceCommand::DemoDaemon(_)) | Command::Emu(EmuCommand::Exec(_)) => return Ok(()),
        Command::Perf(_)
        | Command::Tune(_)
        | Command::Info(_)
        | Command::Compare(_)
        | Command::MulticastBound(_)
        | Command::Devices(_)
        | Command::Deploy(_)
        | Command::Run(_)
        | Command::Service(_) => LevelFilter::WARN,
        Command::Tput(args) if args.pair.provider == ProviderName::System => LevelFilter::WARN,
        Command::Reference(args) if args.pair.provider == ProviderName::System => LevelFilter::WARN,
        _ => LevelFilter::OFF,
    };
    let level = level(std::env::var_os(VARIABLE).as_deref(), usual)?;
    let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(level).with(lines).init();
    Ok(())
}

/// The level that the variable names, or the usual one.
fn level(named: Option<&std::ffi::OsStr>, usual: LevelFilter) -> anyhow::Result<LevelFilter> {
    let Some(named) = named.filter(|named| !named.is_empty()) else { return Ok(usual) };
    Ok(match named.to_string_lossy().trim().to_ascii_lowercase().as_str() {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => bail!("{VARIABLE} is {named:?}: must be off, error, warn, info, debug or trace"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_others_are_refused() {
        let level = |name: &str| level(Some(name.as_ref()), LevelFilter::WARN).map_err(|error| error.to_string());
        assert_eq!(
            (level(""), level("info"), level("OFF")),
            (Ok(LevelFilter::WARN), Ok(LevelFilter::INFO), Ok(LevelFilter::OFF))
        );
        assert!(level("loud").unwrap_err().starts_with("FLEXCAST_LOG is \"loud\": must be off, error"));
    }
}
