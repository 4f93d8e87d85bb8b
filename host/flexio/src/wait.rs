//! Bounded waiting. Nothing in this crate or above it loops without a bound.
//!
//! Between two polls of a condition the waiting host *relaxes*: on hardware that is a spin-loop hint, on the emulator
//! it lets virtual time advance, because emulated cards move only while their host waits.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;

/// What the cards of a provider are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CardKind {
    /// Cards, behind installed libraries.
    Hardware,
    /// Emulated ones. They are slower than cards, and where several processes have some, their clocks differ
    /// ([`Relax::clock_skew`]).
    Emulated,
}

/// Work of a host's processor. Where time is virtual it takes none, unless the provider says how much
/// ([`Provider::with_work`](crate::Provider::with_work)); a real processor takes what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostWork {
    /// A datagram, from the receive queue to its place.
    Datagram,
    /// A message of a reduction, without its blocks.
    ReductionMessage,
    /// A block of such a message.
    ReductionBlock,
}

/// How a host waits, and the clock by which it gives up.
pub trait Relax: Send + Sync {
    /// Lets the cards make some progress.
    fn relax(&self);

    /// The clock that waits are bounded by, in picoseconds from an arbitrary origin: virtual time on the emulator,
    /// in this process or behind its C libraries; monotonic wall time on hardware.
    fn now_ps(&self) -> u64;

    /// Whether [`Relax::now_ps`] is virtual time, so that figures derived from it are *emulated*, not *measured*.
    fn is_virtual(&self) -> bool;

    /// How far the clocks of cards of different processes may be from one another: 0 if they go alike.
    fn clock_skew(&self) -> Duration {
        Duration::ZERO
    }

    /// What the cards are.
    fn kind(&self) -> CardKind {
        CardKind::Hardware
    }

    /// Makes calls of the provider's functions on this thread reach the provider's cards, until [`Relax::leave`].
    /// Returns whether `leave` is to be called; installed libraries need neither. Between the two no other provider's
    /// functions are called on the thread.
    fn enter(&self) -> bool {
        false
    }

    /// Ends what [`Relax::enter`] began.
    fn leave(&self) {}
}

/// Waiting for real hardware.
#[derive(Debug)]
pub struct SpinLoop {
    origin: Instant,
}

impl Default for SpinLoop {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Relax for SpinLoop {
    fn relax(&self) {
        std::hint::spin_loop();
    }

    fn now_ps(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
    }

    fn is_virtual(&self) -> bool {
        false
    }
}

/// How long a host that finds a whole emulated machine at rest waits before it polls again: 1 us.
const IDLE_STEP_PS: u64 = 1_000_000;

/// Emulated cards are slow, and the time of some goes on while a process is not run.
const EMULATED_CLOCK_SKEW: Duration = Duration::from_millis(100);

/// Waiting for emulated cards: their time counts, not the computer's.
///
/// Virtual time stands still while a neighbour's process is not run, and so do the bounds of waits. A machine with
/// nothing left to do has no next event to advance to; the waiting host then counts the time that it spends looking, or
/// a wait for something that cannot happen would never end.
pub struct EmulatorClock<R, N> {
    relax: R,
    now_ps: N,
    is_virtual: bool,
    idle_ps: AtomicU64,
}

impl<R: Fn() -> bool, N: Fn() -> u64> EmulatorClock<R, N> {
    /// `relax` lets the next thing happen and says whether anything was due; `now_ps` is virtual time in picoseconds.
    /// `is_virtual` is false for machines that follow the wall clock.
    pub const fn new(relax: R, now_ps: N, is_virtual: bool) -> Self {
        Self { relax, now_ps, is_virtual, idle_ps: AtomicU64::new(0) }
    }
}

impl<R: Fn() -> bool + Send + Sync, N: Fn() -> u64 + Send + Sync> Relax for EmulatorClock<R, N> {
    fn relax(&self) {
        if !(self.relax)() {
            self.idle_ps.fetch_add(IDLE_STEP_PS, Ordering::Relaxed);
        }
    }

    fn now_ps(&self) -> u64 {
        (self.now_ps)() + self.idle_ps.load(Ordering::Relaxed)
    }

    fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    fn clock_skew(&self) -> Duration {
        EMULATED_CLOCK_SKEW
    }

    fn kind(&self) -> CardKind {
        CardKind::Emulated
    }
}

/// When to stop waiting: after a span of the provider's clock, or after a number of polls if the clock stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Longest wait, by the clock of [`Relax::now_ps`].
    pub span: Duration,
    /// Most polls of the condition, a backstop for a machine that has nothing left to do and so does not advance.
    pub polls: u64,
}

impl Bound {
    /// A wait of at most this many microseconds.
    #[must_use]
    pub const fn micros(micros: u64) -> Self {
        Self { span: Duration::from_micros(micros), polls: u64::MAX }
    }

    /// A wait of at most this many milliseconds.
    #[must_use]
    pub const fn millis(millis: u64) -> Self {
        Self::micros(millis.saturating_mul(1000))
    }

    /// The same bound with at most this many polls.
    #[must_use]
    pub const fn with_polls(self, polls: u64) -> Self {
        Self { polls, ..self }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.span.as_micros())?;
        if self.polls != u64::MAX {
            write!(f, " or {} polls", self.polls)?;
        }
        Ok(())
    }
}

/// Polls `condition` until it yields a value, relaxing in between.
///
/// # Errors
/// [`Error::Timeout`] naming `what` once `bound` is used up; the error of `condition`, at once.
pub fn wait<T>(
    relax: &dyn Relax,
    bound: Bound,
    what: &str,
    mut condition: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let start_ps = relax.now_ps();
    let span_ps = u64::try_from(bound.span.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX);
    let mut polls = 0;
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        polls += 1;
        let waited_ps = relax.now_ps().saturating_sub(start_ps);
        if waited_ps >= span_ps || polls >= bound.polls {
            return Err(Error::Timeout { what: what.to_owned(), waited_us: waited_ps / 1_000_000, polls, bound });
        }
        relax.relax();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that advances by a fixed step per relaxation.
    struct Steps {
        now_ps: AtomicU64,
        step_ps: u64,
    }

    impl Relax for Steps {
        fn relax(&self) {
            self.now_ps.fetch_add(self.step_ps, Ordering::Relaxed);
        }
        fn now_ps(&self) -> u64 {
            self.now_ps.load(Ordering::Relaxed)
        }
        fn is_virtual(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        let clock = Steps { now_ps: AtomicU64::new(7), step_ps: 1_000_000 };
        let mut polls = 0;
        let value = wait(&clock, Bound::micros(10), "the third poll", || {
            polls += 1;
            Ok((polls == 3).then_some(polls))
        });
        assert_eq!(value.unwrap(), 3);
        assert_eq!(clock.now_ps(), 7 + 2_000_000);
    }

    #[test]
    fn a_condition_that_never_comes_true_is_named() {
        let clock = Steps { now_ps: AtomicU64::new(0), step_ps: 1_000_000 };
        let error = wait::<()>(&clock, Bound::micros(10), "the completion flag", || Ok(None)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the completion flag") && text.contains("10 us"), "{text}");
    }

    #[test]
    fn a_machine_at_rest_costs_the_time_of_looking_at_it() {
        let clock = EmulatorClock::new(|| false, || 5, true);
        let error = wait::<()>(&clock, Bound::micros(3), "anything", || Ok(None)).unwrap_err();
        assert!(matches!(error, Error::Timeout { polls: 4, waited_us: 3, .. }), "{error}");
        let clock = EmulatorClock::new(|| true, || 5, true);
        clock.relax();
        assert_eq!(clock.now_ps(), 5, "a machine that moves has a time of its own");
    }

    #[test]
    fn a_clock_that_stands_still_is_bounded_by_polls() {
        let clock = Steps { now_ps: AtomicU64::new(0), step_ps: 0 };
        let bound = Bound::micros(10).with_polls(5);
        let error = wait::<()>(&clock, bound, "anything", || Ok(None)).unwrap_err();
        assert!(matches!(error, Error::Timeout { polls: 5, .. }), "{error}");
    }
}
