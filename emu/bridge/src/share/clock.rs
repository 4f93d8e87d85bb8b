//! Time, for a process that uses the cards of another.

use std::time::{Duration, Instant};

use emu_machine::time::PS_PER_NS;

use super::Remote;

/// The other process is asked for something that changes by itself this often at most.
const ASK: Duration = Duration::from_millis(1);

/// Says when to ask the other process again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seldom(Option<Instant>);

impl Seldom {
    /// Whether the last time is long enough ago. Then this is the last time.
    pub fn is_due(&mut self) -> bool {
        let due = self.0.is_none_or(|last| last.elapsed() >= ASK);
        if due {
            self.0 = Some(Instant::now());
        }
        due
    }
}

/// Virtual time of the other process's machine, as far as it is known. In between it goes with the wall clock, by no
/// more than the time after which it is asked for again. It does not go back. Of a process that is lost the wall clock
/// goes on, so that bounds that a program counts in it are reached.
#[derive(Debug, Default)]
pub struct RemoteClock {
    /// What it was, and when.
    known: Option<(u64, Instant)>,
    given_ps: u64,
}

impl RemoteClock {
    /// One that has not been read.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: None, given_ps: 0 }
    }

    /// Virtual time in picoseconds; `ask` asks the other process, and fails if that is lost.
    pub fn now_ps(&mut self, remote: &Remote, ask: impl FnOnce() -> Option<u64>) -> u64 {
        let is_lost = || remote.lost().is_some();
        if !is_lost()
            && self.known.is_none_or(|(_, at)| at.elapsed() >= ASK)
            && let Some(time_ps) = ask()
        {
            self.known = Some((time_ps, Instant::now()));
        }
        let (time_ps, at) = *self.known.get_or_insert_with(|| (0, Instant::now()));
        let since = at.elapsed();
        let ahead = if is_lost() { since } else { since.min(ASK) };
        let ahead_ps = (ahead.as_nanos() as u64).saturating_mul(PS_PER_NS);
        self.given_ps = self.given_ps.max(time_ps.saturating_add(ahead_ps));
        self.given_ps
    }
}
