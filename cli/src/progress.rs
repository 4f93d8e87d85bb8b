//! Progress bars on stderr.

use flexcast_lab::tput::run::Tick;
use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on stderr; invisible where that is not a terminal.
pub(crate) fn progress_bar(unit: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(&bar_template(unit)) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn bar_template(unit: &str) -> String {
    format!("{{prefix:>12.bold}} [{{bar:40}}] {{pos}}/{{len}} {unit} {{msg}}")
}

/// Shows a tick of a run.
pub(crate) fn show(bar: &ProgressBar, tick: Tick) {
    bar.set_length(tick.repetitions.into());
    bar.set_position(tick.ended.into());
}
