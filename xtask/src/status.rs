//! What is going on, on stderr; results go to stdout.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};

const VERB: Style = AnsiColor::Green.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// `  Building image pingpong`
pub(crate) fn say(verb: &str, what: impl Display) {
    anstream::eprintln!("{VERB}{verb:>12}{VERB:#} {what}");
}

pub(crate) fn warn(what: impl Display) {
    anstream::eprintln!("{WARNING}{:>12}{WARNING:#} {what}", "warning");
}

pub(crate) fn error(what: &str) {
    anstream::eprintln!("{ERROR}{:>12}{ERROR:#} {what}", "error");
}
