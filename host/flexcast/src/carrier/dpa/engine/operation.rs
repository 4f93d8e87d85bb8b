//! State of the operation under way.

use flexcast_proto::{Algorithm, Failure, Pieces, ProgressWatch, StallWindow};

use super::STUCK_CUTOFFS;
use super::look::Gaps;
use crate::carrier::pairs::SetupOperation;
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::report::Report;
use crate::plan::{Missing, Plan};

/// The receive contexts' part in an operation that the card has.
#[derive(Debug)]
pub(super) enum Receiving {
    /// They have been given the operation, and have not taken it over.
    Posted { since_ps: u64 },
    /// They have receives posted.
    Armed,
    /// Multicast has brought everything.
    Complete,
    /// They are to be closed as soon as they can be given a command.
    Closing,
    /// They have been given the command to close, and have not answered.
    ClosePosted { since_ps: u64 },
    /// They write nothing any more.
    Closed,
}

impl Receiving {
    /// Whether the contexts are to close, and have not answered yet.
    pub(super) const fn is_closing(&self) -> bool {
        matches!(self, Self::Closing | Self::ClosePosted { .. })
    }

    /// Whether they write nothing to the buffer any more.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Complete | Self::Closed)
    }
}

/// A look at the bitmaps of a quiet stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// None is under way.
    Idle,
    /// The receive contexts have been asked, and have not all answered: they have no time for chunks while they do.
    /// `over`: the right neighbour's multicast was over by then.
    Asked { over: bool, since_ps: u64 },
    /// What is missing is lost: every root's last chunks are there, or were there for the right neighbour while nothing
    /// came here.
    Final,
}

/// The send threads' part in an operation that the card has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// It is not this rank's turn, or it has none.
    Idle,
    /// It is this rank's turn, and the threads cannot be given a command, or targets are not known.
    Requested,
    /// The threads have the operation.
    Posted,
    /// So little is left that the next root has been activated.
    Announced,
    /// The card is done with the source.
    Finished,
}

impl Sending {
    /// Whether it is this rank's turn.
    const fn is_ahead(self) -> bool {
        matches!(self, Self::Requested | Self::Posted | Self::Announced)
    }

    /// Whether the card may still read the source.
    pub(super) const fn is_under_way(self) -> bool {
        matches!(self, Self::Posted | Self::Announced)
    }
}

/// The two sides of an operation that the card has. Each goes its own way: a root receives while it sends.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
}

/// Where the own block is on its way to the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnBlock {
    /// The card copies it.
    Copying,
    /// It is there.
    Placed,
    /// The driver has been notified of it.
    Delivered,
}

/// Why an operation ends without its result.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) failure: Failure,
    pub(super) since_ps: u64,
    /// Of the process on the card, if it has died: nothing of it will answer any more.
    pub(super) crash: Option<flexio::Error>,
}

/// Where an operation is between its post and its end.
#[derive(Debug)]
pub(super) enum State {
    /// The card has nothing of it: it cannot be given commands yet, or all collective ids are in use.
    Deferred,
    /// The card has it.
    Active(Sides),
    /// All ranks are done with this one; its own sends may not be over.
    Releasing { since_ps: u64, sides: Sides },
    /// It has failed, on this rank or on another. Without sides if the card had nothing of it.
    Failing { fault: Fault, sides: Option<Sides> },
}

impl State {
    pub(super) const fn sides(&self) -> Option<&Sides> {
        match self {
            Self::Deferred => None,
            Self::Active(sides) | Self::Releasing { sides, .. } => Some(sides),
            Self::Failing { sides, .. } => sides.as_ref(),
        }
    }

    pub(super) const fn sides_mut(&mut self) -> Option<&mut Sides> {
        match self {
            Self::Deferred => None,
            Self::Active(sides) | Self::Releasing { sides, .. } => Some(sides),
            Self::Failing { sides, .. } => sides.as_mut(),
        }
    }

    pub(super) const fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Failing { fault, .. } => Some(fault),
            Self::Deferred | Self::Active(_) | Self::Releasing { .. } => None,
        }
    }

    pub(super) const fn is_failing(&self) -> bool {
        self.fault().is_some()
    }

    /// Whether the card may still read the source.
    pub(super) const fn is_sending(&self) -> bool {
        match self.sides() {
            Some(sides) => sides.sending.is_under_way(),
            None => false,
        }
    }

    /// A deferred operation begins that goes by another way than multicast: no worker has a part in it.
    pub(super) fn start_without_workers(&mut self) {
        if matches!(self, Self::Deferred) {
            *self = Self::Active(Sides { receiving: Receiving::Complete, sending: Sending::Finished });
        }
    }

    /// The card has been given a deferred operation.
    pub(super) fn start(&mut self, since_ps: u64, sending: Sending) {
        if matches!(self, Self::Deferred) {
            *self = Self::Active(Sides { receiving: Receiving::Posted { since_ps }, sending });
        }
    }

    /// All ranks are done with an operation under way.
    pub(super) fn release(&mut self, since_ps: u64) {
        *self = match std::mem::replace(self, Self::Deferred) {
            Self::Active(sides) => Self::Releasing { since_ps, sides },
            other => other,
        };
    }

    /// The operation fails. The first fault counts. What has not been sent is not sent any more.
    pub(super) fn fail(&mut self, fault: Fault) {
        *self = match std::mem::replace(self, Self::Deferred) {
            Self::Deferred => Self::Failing { fault, sides: None },
            Self::Active(mut sides) | Self::Releasing { mut sides, .. } => {
                if sides.sending == Sending::Requested {
                    sides.sending = Sending::Idle;
                }
                Self::Failing { fault, sides: Some(sides) }
            }
            failing @ Self::Failing { .. } => failing,
        };
    }
}

/// The operation under way.
#[derive(Debug)]
pub(crate) struct Running {
    pub(super) request: u64,
    pub(super) plan: Plan,
    /// The cut of its blocks for recovery.
    pub(super) pieces: Pieces,
    pub(super) send: Option<Buffer>,
    /// The own block once more, where it cannot be sent from its place in the receive buffer.
    pub(super) copied: Option<Buffer>,
    pub(super) receive: Buffer,
    pub(super) own_block: OwnBlock,
    /// What carries its data.
    pub(super) algorithm: Algorithm,
    /// What it is run for, if not for itself.
    pub(super) setup: Option<Box<SetupOperation>>,
    /// Its number, alike on all ranks; 0 while it is deferred.
    pub(super) operation: u32,
    pub(super) collective_id: u32,
    /// How long after the barrier multicast is waited for, in picoseconds; not known while the operation is deferred.
    pub(super) cutoff_ps: u64,
    pub(super) state: State,
    /// When the barrier was passed.
    pub(super) ready_ps: u64,
    /// How data comes, from the barrier on.
    pub(super) watch: Option<ProgressWatch>,
    /// How the send threads post the own block, from this rank's turn on.
    pub(super) posting: Option<ProgressWatch>,
    /// Longest that receive threads publish no progress while chunks come; 0 while the operation is deferred.
    pub(super) silence_ps: u64,
    /// How long a root sends to other ranks before it comes back to this one: as long as this rank has sent, once it
    /// has; 0 where a root sends to all at once.
    pub(super) turn_ps: u64,
    pub(super) look: Look,
    /// Its gaps, if it has looked for any.
    pub(super) gaps: Option<Gaps>,
    /// What multicast has not brought, once a look or the close of the receive contexts has shown it; none if the
    /// operation has failed before.
    pub(super) missing: Option<Missing>,
    /// When workers were last checked for failures.
    pub(super) checked_ps: u64,
    /// When the protocol's state machine wants to be notified of the time.
    pub(super) deadline_ps: u64,
    pub(super) report: Report,
}

impl Running {
    /// Name of what the user has called.
    pub(super) fn name(&self) -> &'static str {
        self.setup.as_ref().map_or(self.plan.kind.name(), |setup| setup.name)
    }

    /// When its multicast counts as stalled, or as over; none before the barrier, and once its receive contexts do not
    /// receive any more. It is not too slow as long as data comes.
    pub(super) fn stalled_ps(&self, window: StallWindow) -> Option<u64> {
        let receives = |sides: &Sides| matches!(sides.receiving, Receiving::Armed);
        let watch = self.watch.filter(|_| self.state.sides().is_some_and(receives))?;
        let gap_ps = self.turn_ps.max(self.silence_ps);
        Some(match self.look {
            Look::Idle => watch.stalled_ps(window, gap_ps),
            Look::Asked { .. } => u64::MAX,
            // The close would only come between the receive threads and the copies that they wait for.
            Look::Final if self.is_placing() => watch.stalled_ps(window, gap_ps),
            Look::Final => self.ready_ps,
        })
    }

    /// Whether the send threads are still to send the own block, and get on with that: they have posted some of it, or
    /// blocks of those before this rank have come, in the last [`STUCK_CUTOFFS`]. That nothing need come meanwhile
    /// ([`Running::is_held`]) is no progress: it follows from this.
    pub(super) fn is_posting(&self, now_ps: u64) -> bool {
        let sends = self.state.sides().is_some_and(|sides| sides.sending.is_ahead());
        let latest_ps = self.posting.iter().chain(&self.watch).map(ProgressWatch::moved_ps).max();
        let window_ps = self.cutoff_ps.saturating_mul(STUCK_CUTOFFS);
        sends && latest_ps.is_some_and(|latest_ps| now_ps.saturating_sub(latest_ps) < window_ps)
    }

    /// Whether there is a reason why nothing may come: the next root of the chain waits for the own block, whose chunks
    /// do not come here; nor is the end seen before that block is in its place.
    ///
    /// Send threads that do not get on are no such reason. With the protocol on the card they have the operation from
    /// its post on, and this rank's turn may never come: whoever is to give it to this rank may be out of reach.
    pub(super) fn is_held(&self, now_ps: u64) -> bool {
        (self.state.is_sending() && self.is_posting(now_ps)) || self.own_block == OwnBlock::Copying
    }

    /// When the bitmaps are to be looked at, as it is at `now_ps`; none if they have been or cannot be. `over`:
    /// multicast is over for the right neighbour.
    pub(super) fn look_ps(&self, window: StallWindow, over: bool, now_ps: u64) -> Option<u64> {
        let receives = |sides: &Sides| matches!(sides.receiving, Receiving::Armed);
        let receives = self.state.sides().is_some_and(receives) && !self.state.is_failing();
        let may_look = self.look == Look::Idle && receives && !self.is_held(now_ps);
        self.watch.filter(|_| may_look)?.look_ps(window, over)
    }

    /// Address and local key of the own block.
    pub(super) fn source(&self, own: u32) -> Result<(u64, u32)> {
        let (region, at) = match self.send.as_ref().or(self.copied.as_ref()) {
            Some(send) => (send.region()?, 0),
            None => (self.receive.region()?, self.plan.block(own).offset),
        };
        Ok((region.addr().get() + at, region.lkey()))
    }
}

#[cfg(test)]
mod tests {
    use flexcast_proto::{Cause, FailureCode};

    use super::*;

    fn fault(code: FailureCode) -> Fault {
        let failure = Failure { failed_rank: 1, detecting_rank: 0, cause: Cause::Device(code) };
        Fault { failure, since_ps: 5, crash: None }
    }

    #[test]
    fn an_operation_that_fails_before_it_starts_has_no_sides_and_never_starts() {
        let mut state = State::Deferred;
        state.fail(fault(FailureCode::Copy));
        state.start(7, Sending::Posted);
        state.release(8);
        assert!(state.is_failing() && state.sides().is_none() && !state.is_sending());
    }

    #[test]
    fn the_first_fault_counts_and_what_was_requested_is_not_sent() {
        let mut state = State::Deferred;
        state.start(7, Sending::Requested);
        state.fail(fault(FailureCode::Copy));
        state.fail(fault(FailureCode::WorkerSilent));
        assert_eq!(state.fault().map(|fault| fault.failure.cause), Some(Cause::Device(FailureCode::Copy)));
        assert_eq!(state.sides().map(|sides| sides.sending), Some(Sending::Idle));
    }

    #[test]
    fn own_sends_go_on_while_an_operation_is_released() {
        let mut state = State::Deferred;
        state.start(7, Sending::Posted);
        state.release(9);
        assert!(matches!(state, State::Releasing { since_ps: 9, .. }) && state.is_sending());
    }
}
