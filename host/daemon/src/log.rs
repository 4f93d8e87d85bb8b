//! The log of a daemon: lines on stderr, with a level that can change.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

/// Levels of the log, from the quietest.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Starts the log of the process, on stderr, at level `info`. The function that it returns sets the level to one of
/// [`LEVELS`]; other names change nothing. A process calls this once.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_a_filter() {
        let filters = LEVELS.map(|name| name.parse::<LevelFilter>().expect("a level"));
        assert!(filters.is_sorted() && filters[0] == LevelFilter::ERROR, "{filters:?}");
    }
}
