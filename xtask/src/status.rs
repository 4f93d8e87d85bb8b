//! Status lines on stderr; results go to stdout.

use std::fmt::Display;
use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, Result};

const VERB: Style = AnsiColor::Green.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// `  Building image pingpong`
pub(crate) fn say(verb: &str, what: impl Display) {
    line(format_args!("{VERB}{verb:>12}{VERB:#} {what}"));
}

pub(crate) fn warn(what: impl Display) {
    line(format_args!("{WARNING}{:>12}{WARNING:#} {what}", "warning"));
}

pub(crate) fn error(what: &str) {
    line(format_args!("{ERROR}{:>12}{ERROR:#} {what}", "error"));
}

/// A line on stderr; where that cannot be written nobody can be notified.
pub(crate) fn line(text: impl Display) {
    drop(writeln!(anstream::stderr().lock(), "{text}"));
}

/// A line of a result. Not `println!`, which panics where stdout cannot be written.
pub(crate) fn print(line: impl Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("stdout cannot be written")
}

/// Writes what may still be in a buffer.
pub(crate) fn flush() -> Result<()> {
    io::stdout().lock().flush().context("stdout cannot be written")
}
