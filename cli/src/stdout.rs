//! Results on stdout: where they cannot be written the command ends with an error, and not in a panic.

use std::fmt::Arguments;
use std::io::{self, Write as _};

/// A result that has got nowhere.
#[derive(Debug, thiserror::Error)]
#[error("stdout cannot be written: {source}; see where it leads to, and whether there is room")]
pub struct StdoutError {
    /// Why not.
    #[from]
    source: io::Error,
}

/// Prints a line of a result, as `println!` does.
///
/// # Errors
/// [`StdoutError`], which `println!` makes a panic of.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {
        $crate::stdout::line(::core::format_args!($($text)*))
    };
}

/// Prints a line of what is going on, as `eprintln!` does; a failure to write stderr is ignored.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => {
        $crate::stdout::note(::core::format_args!($($text)*))
    };
}

/// Prints a line: [`out!`](crate::out).
///
/// # Errors
/// [`StdoutError`].
pub fn line(text: Arguments<'_>) -> Result<(), StdoutError> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Writes what may still be in a buffer.
///
/// # Errors
/// [`StdoutError`].
pub fn flush() -> Result<(), StdoutError> {
    Ok(io::stdout().lock().flush()?)
}

/// Prints a line on stderr: [`note!`](crate::note).
pub fn note(text: Arguments<'_>) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}
