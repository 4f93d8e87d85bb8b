//! FailedParty of a failure, when ranks wait for ranks that wait themselves.
//!
//! A rank that has waited for too long knows whom it waits for, not whether that one is the cause: it may be alive and
//! wait for another. So a failure for silence is held for a while before it counts. In that time a rank that is accused
//! and alive says whom *it* waits for, and whoever receives this from the accused, or learns that the accused has seen
//! something itself, believes that instead. Every rank passes on what it believes to its neighbours on the ring, and
//! again when that changes; who took it from a neighbour goes on to believe that neighbour. Whom a rank accuses, it
//! notifies, and gets an answer.
//!
//! The accused may be behind: still in the operation before, where it waits for the failed rank. It answers all the
//! same, and goes on with its operation. And who is ahead takes what is reported of the operation before as it is: whom
//! it waits for itself follows from that.
//!
//! What cannot be otherwise (a broken connection, a worker that failed) ends a rank's part at once, and it goes. So it
//! notifies all ranks that it is connected with: that its connections break then accuses nobody (`Participant::fail`).
//! In the end the ranks that are alive name one that says nothing.

use crate::failure::{Cause, Failure, WaitedFor};
use crate::ranks::RankInfo;

/// What a rank believes of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Verdict {
    /// The operation that has failed: the current one, or the next while this rank is not done yet with the current.
    pub(crate) operation: u32,
    pub(crate) failure: Failure,
    /// The rank that reported it; none if it was found here.
    source: Option<u32>,
    /// How often it has changed or was defended. Bounded, so that two ranks that contradict each other come to an end.
    changes: u32,
}

/// Whether it may turn out that somebody else is to blame.
pub(crate) const fn is_silence(failure: &Failure) -> bool {
    matches!(failure.cause, Cause::Silent(_))
}

/// Whether it cannot be otherwise: the first round of the barrier waits for nobody but the left neighbour's call.
fn is_first_round(failure: &Failure, ranks: u32) -> bool {
    let behind = failure.failed_rank.wrapping_add(1);
    let behind = if behind == ranks { 0 } else { behind };
    failure.cause == Cause::Silent(WaitedFor::Barrier) && behind == failure.detecting_rank
}

impl Verdict {
    pub(crate) const fn new(operation: u32, failure: Failure, source: Option<u32>) -> Self {
        Self { operation, failure, source, changes: 0 }
    }

    /// Takes another failure of the same operation if it is the better one. It was received from `from`, or made here
    /// when that spoke; `source` is who believes it already.
    pub(crate) fn take(&mut self, new: Failure, from: Option<u32>, source: Option<u32>, place: RankInfo) -> bool {
        let held = self.failure;
        let spoke = held.failed_rank == new.detecting_rank || from == Some(held.failed_rank);
        // Whoever waits for something else than a signal is behind, in the operation before: there those may be that
        // have not signalled this one.
        let in_barrier = held.cause == Cause::Silent(WaitedFor::Barrier);
        let better = !is_silence(&new)
            || spoke
            || (source.is_some() && source == self.source)
            || (in_barrier && is_first_round(&new, place.ranks()) && !is_first_round(&held, place.ranks()));
        if new == held || !is_silence(&held) || !better || self.changes > 2 * place.ranks() {
            return false;
        }
        *self = Self { failure: new, source, changes: self.changes + 1, ..*self };
        true
    }

    /// Whether this rank has something to say to the sender of `reported`: that it is accused, and lives.
    pub(crate) fn answers(&mut self, reported: &Failure, place: RankInfo) -> bool {
        let accused = is_silence(reported) && reported.failed_rank == place.rank() && *reported != self.failure;
        let answers = accused && self.changes <= 2 * place.ranks();
        self.changes += u32::from(answers);
        answers
    }
}

/// What rank `place` says to a failure that was reported to it, when it waits for `failed_rank` itself. `same`: it
/// waits in the operation that has failed. In the next one it knows nothing of it: its left neighbour may not have
/// called that since it waits in the failed one.
pub(crate) fn answer(reported: Failure, place: RankInfo, (failed_rank, what): (u32, WaitedFor), same: bool) -> Failure {
    let own = Failure { failed_rank, detecting_rank: place.rank(), cause: Cause::Silent(what) };
    let knows =
        same && is_first_round(&own, place.ranks()) && matches!(reported.cause, Cause::Silent(WaitedFor::Barrier));
    if is_silence(&reported) && (reported.failed_rank == place.rank() || knows) { own } else { reported }
}
