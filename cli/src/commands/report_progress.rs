//! Progress of an evaluation on stderr: a bar on a terminal, else a line now and then.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use flexcast_cli::note;
use flexcast_lab::evaluate::run;

/// Where stderr is no terminal, a line is written for runs that took this long, and at least this often.
const EVERY: Duration = Duration::from_secs(5);

/// Shows it.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    shown: Instant,
}

impl Progress {
    /// From now on.
    #[must_use]
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let form = "{prefix:>12.bold} [{bar:30}] run {pos} of {len}, {elapsed}, {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix("evaluation");
        let now = Instant::now();
        Self { bar, begun: now, shown: now }
    }

    /// A run has ended, or the first are about to begin.
    pub(super) fn show(&mut self, progress: &run::Progress) {
        self.bar.set_length(progress.all as u64);
        self.bar.set_position(progress.ended as u64);
        let Some((run, took)) = &progress.run else { return };
        self.bar.set_message(run.clone());
        let last = progress.ended == progress.all;
        if self.bar.is_hidden() && (last || *took >= EVERY || self.shown.elapsed() >= EVERY) {
            self.shown = Instant::now();
            note!("{}", line(progress, run, *took, self.begun.elapsed()));
        }
    }

    /// All runs have ended.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn line(progress: &run::Progress, run: &str, took: Duration, elapsed: Duration) -> String {
    let (took, elapsed) = (took.as_secs_f64(), elapsed.as_secs());
    format!("[{}/{}] {}:{:02}, {took:.1} s: {run}", progress.ended, progress.all, elapsed / 60, elapsed % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_which_run_of_how_many_and_how_long() {
        let progress = run::Progress { ended: 3, all: 14, run: None };
        let text = line(&progress, "flexcast tput", Duration::from_millis(1234), Duration::from_secs(65));
        assert_eq!(text, "[3/14] 1:05, 1.2 s: flexcast tput");
    }
}
