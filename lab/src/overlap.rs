//! Overlap of communication and computation, as the OSU benchmarks define it .

use std::fmt;

use serde::Serialize;

/// Share of a collective that goes on while its hosts compute, in percent, at most 100: `100 - (overall - compute) /
/// pure x 100`. All in the same unit. It is negative where collective and computation together take longer than one
/// behind the other: the hosts' absence slows the collective down. A collective that takes no time hides all of it.
#[must_use]
pub fn percent(pure: f64, compute: f64, overall: f64) -> f64 {
    if pure <= 0.0 {
        return 100.0;
    }
    (100.0 - (overall - compute) / pure * 100.0).min(100.0)
}

/// What the hosts of a collective do and wait for. Times are virtual, of one operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Overlap {
    /// From the first post to the last end, where the hosts poll all the time.
    pub pure_us: f64,
    /// What each host computes after its post, without a call: as long as the longest operation took alone. (Operations
    /// differ by some percent, as their chunks lie differently in the rings.)
    pub compute_us: f64,
    /// From the first post to the last end, where they compute first.
    pub overall_us: f64,
    /// See [`percent`].
    pub overlap_percent: f64,
    /// Calls with work to do that a host makes after it has computed, until the data is there; mean of the ranks.
    pub host_calls: f64,
}

impl Overlap {
    /// Of three times.
    #[must_use]
    pub fn new(pure_us: f64, compute_us: f64, overall_us: f64, host_calls: f64) -> Self {
        let overlap_percent = percent(pure_us, compute_us, overall_us);
        Self { pure_us, compute_us, overall_us, overlap_percent, host_calls }
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compute_us, overall_us, overlap_percent, host_calls, .. } = self;
        write!(
            f,
            "{overall_us:.1} us where hosts compute {compute_us:.1} us first: {overlap_percent:.1} % overlap; \
             {host_calls:.1} calls of a host with work to do are left then"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_hosts_wait_for_is_not_hidden() {
        assert_eq!(percent(10.0, 10.0, 10.0), 100.0, "all of it");
        assert_eq!(percent(10.0, 10.0, 20.0), 0.0, "none");
        assert_eq!(percent(10.0, 10.0, 30.0), -100.0, "slower than one after the other");
        assert_eq!(percent(8.0, 8.0, 10.0), 75.0);
        assert_eq!(percent(8.0, 8.0, 7.0), 100.0, "no more than all of it");
        assert_eq!(percent(0.0, 0.0, 0.0), 100.0);
    }

    #[test]
    fn a_negative_overlap_is_printed_as_one() {
        let text = Overlap::new(257.6, 257.6, 2037.4, 3.0).to_string();
        assert!(text.contains(": -590.9 % overlap"), "{text}");
    }
}
