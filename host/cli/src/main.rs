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
}
