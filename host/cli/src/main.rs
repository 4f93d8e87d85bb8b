//! `flexcast`: run, measure and deploy DPA firmware, on the emulated card or a real one.

mod args;
mod commands;
mod look_args;
mod plan_args;
mod report_args;
mod sim_args;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    // Output into `head` ends this program like any other, and not in a panic.
    sigpipe::reset();
    let cli = args::Cli::parse();
    match commands::run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            if let Some(hint) = hint(&error) {
                eprintln!("  {hint}");
            }
            ExitCode::FAILURE
        }
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

/// What a user of this tool can do beside what the libraries say, which know no options.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let not_installed = |error: &flexio::Error| matches!(error, flexio::Error::NotInstalled { .. });
    let found = error.chain().filter_map(|cause| cause.downcast_ref()).any(not_installed);
    found.then_some("or take the emulated cards: leave out `--provider system`, or say `--provider emu`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::anyhow!("no such file").context("image `x` cannot be read: no such file");
        assert_eq!(chain(&error), "image `x` cannot be read: no such file");
        let error = anyhow::anyhow!("no such file").context("image `x` cannot be read");
        assert_eq!(chain(&error), "image `x` cannot be read\n  because no such file");
    }

    #[test]
    fn without_a_card_the_option_for_the_emulator_is_named() {
        let missing = flexio::Error::NotInstalled { looked_for: "libflexio.so".to_owned(), source: "none".into() };
        assert!(!missing.to_string().contains("--"), "the library knows no options: {missing}");
        let error = anyhow::Error::from(missing).context("no card");
        assert!(hint(&error).is_some_and(|hint| hint.contains("--provider emu")));
        assert_eq!(hint(&anyhow::anyhow!("no such file")), None);
    }
}
