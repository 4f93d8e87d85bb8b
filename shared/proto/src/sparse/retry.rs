//! Repeats of a worker's message over datagrams, and the bounds after which somebody is called silent.

use thiserror::Error;

/// How long a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryLimits {
    /// From one try to the next, in picoseconds.
    pub repeat_ps: u64,
    /// Tries in a row to which nothing at all comes back before the aggregator is called silent; at least one is made.
    pub tries: u32,
    /// From the first try until the answer, in picoseconds, however alive the aggregator is. Longer than the limit of
    /// the aggregator, which knows better who is silent.
    pub answer_ps: u64,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// Send the message again.
    Repeat,
    /// Nobody can be waited for any longer: the operation has failed.
    Failed(Silent),
}

/// Who does not say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Silent {
    /// The aggregator.
    #[error(
        "the aggregator has not said anything to {tries} tries: check its process and the network, or raise the limit"
    )]
    Aggregator {
        /// Tries that were made.
        tries: u32,
    },
    /// A worker, as far as the aggregator has reported one; none if it has not.
    #[error("no answer in time, and the aggregator waits for worker {}: check its process and its network, or raise \
        the limit", RankOr(*.rank))]
    Worker {
        /// Its rank.
        rank: Option<u32>,
    },
}

struct RankOr(Option<u32>);

impl core::fmt::Display for RankOr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Some(rank) => rank.fmt(f),
            None => f.write_str("(not reported)"),
        }
    }
}

/// Watch over one message of a worker until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    limits: RetryLimits,
    /// When it was sent first and last; none while no message is under way.
    sent: Option<(u64, u64)>,
    /// Since the aggregator said anything.
    tries: u32,
    waits_for: Option<u32>,
}

impl Retry {
    /// Nothing under way.
    #[must_use]
    pub const fn new(limits: RetryLimits) -> Self {
        Self { limits, sent: None, tries: 0, waits_for: None }
    }

    /// A new message was sent.
    pub const fn sent(&mut self, now_ps: u64) {
        *self = Self { sent: Some((now_ps, now_ps)), tries: 1, ..Self::new(self.limits) };
    }

    /// The aggregator has said that it has the message and waits for this rank. It lives, so that the tries begin anew.
    pub const fn waiting(&mut self, for_rank: u32) {
        self.tries = 0;
        self.waits_for = Some(for_rank);
    }

    /// The answer has come.
    pub const fn answered(&mut self) {
        self.sent = None;
    }

    /// When [`Retry::poll`] has something to say unless something comes before; none while no message is under way.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        let (first_ps, last_ps) = self.sent?;
        let (repeat_ps, end_ps) =
            (last_ps.saturating_add(self.limits.repeat_ps), first_ps.saturating_add(self.limits.answer_ps));
        Some(repeat_ps.min(end_ps))
    }

    /// What is due at this time. After a failure nothing is.
    pub fn poll(&mut self, now_ps: u64) -> Option<Due> {
        let (first_ps, _) = self.sent?;
        if now_ps < self.deadline_ps()? {
            return None;
        }
        let due = if self.tries >= self.limits.tries.max(1) {
            Due::Failed(Silent::Aggregator { tries: self.tries })
        } else if now_ps >= first_ps.saturating_add(self.limits.answer_ps) {
            Due::Failed(Silent::Worker { rank: self.waits_for })
        } else {
            Due::Repeat
        };
        (self.tries, self.sent) = match due {
            Due::Repeat => (self.tries + 1, Some((first_ps, now_ps))),
            Due::Failed(_) => (self.tries, None),
        };
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    const LIMITS: RetryLimits = RetryLimits { repeat_ps: 10, tries: 3, answer_ps: 100 };

    /// What is due at each time until `end_ps`; a worker that is reported at `reported_ps`.
    fn run(limits: RetryLimits, reported_ps: &[u64], end_ps: u64) -> Vec<(u64, Due)> {
        let mut retry = Retry::new(limits);
        assert_eq!((retry.poll(0), retry.deadline_ps()), (None, None));
        retry.sent(0);
        let mut all = Vec::new();
        for at_ps in 0..end_ps {
            if reported_ps.contains(&at_ps) {
                retry.waiting(7);
            }
            let deadline_ps = retry.deadline_ps();
            if let Some(due) = retry.poll(at_ps) {
                assert!(deadline_ps.is_some_and(|deadline_ps| deadline_ps <= at_ps));
                all.push((at_ps, due));
            }
            assert!(retry.deadline_ps().is_none_or(|deadline_ps| deadline_ps > at_ps));
        }
        all
    }

    #[test]
    fn a_silent_aggregator_is_named_after_the_tries() {
        let failed = Due::Failed(Silent::Aggregator { tries: 3 });
        assert_eq!(run(LIMITS, &[], 1000), [(10, Due::Repeat), (20, Due::Repeat), (30, failed)]);
        let failed = Due::Failed(Silent::Aggregator { tries: 1 });
        assert_eq!(run(RetryLimits { tries: 0, ..LIMITS }, &[], 1000), [(10, failed)]);
    }

    #[test]
    fn a_worker_that_is_waited_for_is_named_after_the_bound() {
        let reported: Vec<u64> = (5..1000).step_by(10).collect();
        let all = run(LIMITS, &reported, 1000);
        assert_eq!(all.len(), 10);
        assert!(all[..9].iter().all(|(_, due)| *due == Due::Repeat));
        assert_eq!(all[9], (100, Due::Failed(Silent::Worker { rank: Some(7) })));
        assert!(Silent::Worker { rank: Some(7) }.to_string().contains("waits for worker 7:"));
    }

    #[test]
    fn an_aggregator_that_falls_silent_later_is_named_too() {
        let all = run(LIMITS, &[5, 25], 1000);
        assert_eq!(all.last(), Some(&(60, Due::Failed(Silent::Aggregator { tries: 3 }))));
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        let mut retry = Retry::new(RetryLimits { repeat_ps: u64::MAX, tries: u32::MAX, answer_ps: u64::MAX });
        retry.sent(u64::MAX);
        assert_eq!(retry.poll(u64::MAX), Some(Due::Failed(Silent::Worker { rank: None })));
        assert_eq!(retry.poll(u64::MAX), None);
    }
}
