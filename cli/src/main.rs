//! `flexcast`: run, measure and deploy DPA firmware, on the emulated card or a real one.

// A result that cannot be printed is an error of the command: `flexcast_cli::out!`.
#![deny(clippy::print_stdout)]

mod args;
mod calibrate_args;
mod capture;
mod card_args;
mod commands;
mod compare_args;
mod dpacc;
mod flow_args;
mod hosts_args;
mod images_args;
mod inputs;
mod inspect_args;
mod interrupt;
mod log;
mod model_args;
mod observe_args;
mod pair_args;
mod perf_args;
mod plan_args;
mod progress;
mod provider_name;
#[cfg(test)]
mod readme;
mod reference_args;
mod report_args;
mod service_args;
mod sim_args;
mod tune_args;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use flexcast::bootstrap::StoreError;
use flexcast_cli::{note, options, stdout};

fn main() -> ExitCode {
    // Output into `head` ends this program like any other, and not in a panic.
    sigpipe::reset();
    let ended = match parse(std::env::args_os()) {
        Ok(cli) => log::start(&cli.command).and_then(|()| commands::run(cli.command)),
        Err(refused) => print(&refused),
    };
    match ended.and_then(|code| Ok(stdout::flush().map(|()| code)?)) {
        Ok(code) => code,
        Err(error) => {
            note!("error: {}", in_words(&error));
            if let Some(hint) = hint(&error) {
                note!("  {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<args::Cli, clap::Error> {
    let mut command = options::with_negative_numbers(args::Cli::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    args::Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Prints help, the version, or what is wrong with the command line.
fn print(refused: &clap::Error) -> anyhow::Result<ExitCode> {
    let printed = refused.print();
    if !refused.use_stderr() {
        printed.map_err(stdout::StdoutError::from)?;
    }
    Ok(u8::try_from(refused.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The error in words for the terminal. Of libraries that are not there it says what is missing and how to get it,
/// once.
fn in_words(error: &anyhow::Error) -> String {
    let missing = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(flexio::Error::NotInstalled { missing: file, source }) => Some((file, source.to_string())),
        _ => None,
    });
    match missing {
        Some((file, reason)) if reason.contains("No such file") => format!(
            "DOCA not installed: there is no {file}; install its package (flexio-sdk), or add the folder of the \
             library to LD_LIBRARY_PATH"
        ),
        _ => chain(error),
    }
}

/// The error and what caused it, without repeating what a message already says.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str("\n  because ");
            text.push_str(&cause);
        }
    }
    text
}

/// What a user of this tool can do in addition to what the libraries say, which know no options.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let not_installed = |error: &flexio::Error| matches!(error, flexio::Error::NotInstalled { .. });
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(not_installed) {
        return Some("or take the emulated cards: leave out `--provider system`, or say `--provider emu`");
    }
    let is_unset = |error: &StoreError| matches!(error, StoreError::Unset { .. });
    error.chain().filter_map(|cause| cause.downcast_ref()).any(is_unset).then_some(
        "start a process for each rank by a launcher, such as `mpirun -n 4 flexcast perf`, torchrun or srun; or by \
         hand, with FLEXCAST_RANK, FLEXCAST_SIZE and FLEXCAST_STORE set",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_reported_once() {
        let error = anyhow::anyhow!("no such file").context("image `x` cannot be read: no such file");
        assert_eq!(chain(&error), "image `x` cannot be read: no such file");
        let error = anyhow::anyhow!("no such file").context("image `x` cannot be read");
        assert_eq!(chain(&error), "image `x` cannot be read\n  because no such file");
    }

    #[test]
    fn without_a_card_the_option_for_the_emulator_is_named() {
        let missing = flexio::Error::NotInstalled { missing: "libflexio.so".to_owned(), source: "none".into() };
        assert!(!missing.to_string().contains("--"), "the library knows no options: {missing}");
        let error = anyhow::Error::from(missing).context("no card");
        assert!(hint(&error).is_some_and(|hint| hint.contains("--provider emu")));
        assert_eq!(hint(&anyhow::anyhow!("no such file")), None);
    }

    /// Paths of options that take values, with the names of the commands before them.
    fn options(command: &clap::Command, path: &[String], found: &mut Vec<Vec<String>>) {
        for argument in command.get_opts() {
            let name = argument.get_long().map(|name| format!("--{name}"));
            found.extend(name.map(|name| [path, &[name]].concat()));
        }
        for below in command.get_subcommands() {
            options(below, &[path, &[below.get_name().to_owned()]].concat(), found);
        }
    }

    /// What is said of `-1` is what the option may be, and not that it is no option.
    #[test]
    fn negative_numbers_are_values() {
        let mut command = args::Cli::command();
        command.build();
        let mut found = Vec::new();
        options(&command, &["flexcast".to_owned()], &mut found);
        assert!(found.len() > 80, "{} options", found.len());
        for mut words in found {
            // These take a value only after `=`.
            if words.last().is_some_and(|name| ["--gdb", "--server"].contains(&&**name)) {
                continue;
            }
            words.push("-1".to_owned());
            let Err(error) = parse(words.iter().map(Into::into)) else { continue };
            assert_ne!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{words:?}: {error}");
            // Numbers say what they may be.
            let text = error.to_string();
            assert!(!text.contains("invalid digit"), "{words:?}: {text}");
        }
    }

    /// Visits a command and all below it, with the path to each.
    fn visit(command: &mut clap::Command, path: &str, each: &mut impl FnMut(&mut clap::Command, &str)) {
        each(command, path);
        for below in command.get_subcommands_mut() {
            let path = format!("{path} {}", below.get_name());
            visit(below, &path, each);
        }
    }

    /// Help is text for a terminal: it wraps, has no markup of the sources' documentation, and one default for an
    /// option.
    #[test]
    fn help_fits_a_terminal_and_is_plain_text() {
        const COLUMNS: usize = 100;
        let mut command = args::Cli::command().term_width(COLUMNS);
        command.build();
        let (mut commands, mut wrong) = (0, Vec::new());
        visit(&mut command, "flexcast", &mut |command, path| {
            commands += 1;
            *command = std::mem::take(command).term_width(COLUMNS);
            for help in [command.render_long_help(), command.render_help()].map(|help| help.to_string()) {
                for line in help.lines() {
                    if line.chars().count() > COLUMNS {
                        wrong.push(format!("{path}: {} columns: {line}", line.chars().count()));
                    }
                    if line.contains("[`") || line.contains("](") {
                        wrong.push(format!("{path}: markup: {line}"));
                    }
                }
                // Each option begins with its name, indented by less than what is said of it.
                let mut blocks: Vec<String> = vec![String::new()];
                for line in help.lines() {
                    if line.trim_start().starts_with('-') {
                        blocks.push(String::new());
                    }
                    blocks.last_mut().expect("one").push_str(line);
                }
                let double = blocks.iter().filter(|block| block.matches("[default").count() > 1);
                wrong.extend(double.map(|block| format!("{path}: two defaults: {block}")));
            }
        });
        assert!(commands > 25, "{commands} commands");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Whatever counts bytes takes units.
    #[test]
    fn options_of_bytes_take_units() {
        let mut command = args::Cli::command();
        command.build();
        let (mut options, mut wrong) = (0, Vec::new());
        visit(&mut command, "flexcast", &mut |command, path| {
            for argument in command.get_opts() {
                let is_bytes = argument.get_value_names().is_some_and(|names| names.iter().any(|name| name == "BYTES"));
                let Some(name) = argument.get_long().filter(|_| is_bytes) else { continue };
                options += 1;
                let words = format!("{path} --{name} 4K");
                let refused = parse(words.split(' ').map(Into::into)).err();
                if refused.is_some_and(|error| error.kind() == clap::error::ErrorKind::ValueValidation) {
                    wrong.push(words);
                }
            }
        });
        assert!(options > 15 && wrong.is_empty(), "{options} options, {wrong:?}");
    }
}
