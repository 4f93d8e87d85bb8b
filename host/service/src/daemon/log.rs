//! The daemon as the whole work of a program: with a log on stderr.

use std::path::Path;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use super::DaemonError;

/// Runs the daemon as [`serve`](super::serve) does, with a log on stderr whose level the configuration says. For
/// programs that do nothing else: the log is that of the whole process.
///
/// # Errors
/// As [`serve`](super::serve).
pub fn serve_with_log(path: &Path) -> Result<(), DaemonError> {
    super::serve(path, &start())
}

/// Begins the log of the process, on stderr; what sets its level, by name.
pub fn start() -> impl Fn(&str) {
    let (filter, level) = tracing_subscriber::reload::Layer::new(LevelFilter::INFO);
    // The service manager adds the time.
    let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
    move |name: &str| {
        if let Ok(wanted) = name.parse::<LevelFilter>() {
            _ = level.reload(wanted);
        }
    }
}
