//! Stream of the operation under way: what the carrier keeps of its multicast.

use flexcast_proto::{Algorithm, ProgressWatch, StallWindow};

use super::scan::Gaps;
use super::{DpaCarrier, STUCK_CUTOFFS};
use crate::engine;
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::plan::Missing;

/// The operation of blocks under way.
pub(super) type Operation = engine::Operation<DpaCarrier>;

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

/// A scan of the bitmaps of a quiet stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
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
    /// The protocol has been notified of it.
    Delivered,
}

/// What the carrier keeps of an operation.
#[derive(Debug)]
pub(crate) struct DpaStream {
    /// The card's part in it; none while the card has nothing of it.
    pub(super) sides: Option<Sides>,
    /// The own block once more, where it cannot be sent from its place in the receive buffer.
    pub(super) copied: Option<Buffer>,
    pub(super) own_block: OwnBlock,
    pub(super) collective_id: u32,
    /// How long after the barrier multicast is waited for, in picoseconds; not known while the operation is deferred.
    pub(super) cutoff_ps: u64,
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
    pub(super) scan: Scan,
    /// Its gaps, if it has scanned for any.
    pub(super) gaps: Option<Gaps>,
    /// What multicast has not brought, once a scan or the close of the receive contexts has shown it; none if the
    /// operation has failed before.
    pub(super) missing: Option<Missing>,
    /// When workers were last checked for failures.
    pub(super) checked_ps: u64,
    /// The death of the process on the card, if it has died: nothing of it will answer any more.
    pub(super) crash: Option<flexio::Error>,
}

impl DpaStream {
    /// Of an operation that has not begun. Workers of the card have a part in what is multicast alone.
    pub(super) fn new(algorithm: Algorithm, own_block: OwnBlock, copied: Option<Buffer>) -> Self {
        let is_multicast = algorithm == Algorithm::Multicast;
        let without = Sides { receiving: Receiving::Complete, sending: Sending::Finished };
        Self {
            sides: (!is_multicast).then_some(without),
            copied,
            own_block,
            collective_id: 0,
            cutoff_ps: u64::MAX,
            ready_ps: 0,
            watch: None,
            posting: None,
            silence_ps: 0,
            turn_ps: 0,
            scan: Scan::Idle,
            gaps: None,
            missing: None,
            checked_ps: 0,
            crash: None,
        }
    }

    /// Whether the receive contexts receive.
    pub(super) fn is_armed(&self) -> bool {
        self.sides.as_ref().is_some_and(|sides| matches!(sides.receiving, Receiving::Armed))
    }

    /// Whether the card may still read the source.
    pub(super) fn is_sending(&self) -> bool {
        self.sides.as_ref().is_some_and(|sides| sides.sending.is_under_way())
    }

    /// Whether the contexts are to close, and have not answered yet.
    pub(super) fn is_closing(&self) -> bool {
        self.sides.as_ref().is_some_and(|sides| sides.receiving.is_closing())
    }

    /// The operation has failed: what has not been sent is not sent any more.
    pub(super) fn fail(&mut self) {
        if let Some(sides) = &mut self.sides
            && sides.sending == Sending::Requested
        {
            sides.sending = Sending::Idle;
        }
    }
}

impl Operation {
    /// When its multicast counts as stalled, or as over; none before the barrier, and once its receive contexts do not
    /// receive any more. It is not too slow as long as data comes.
    pub(super) fn stalled_ps(&self, window: StallWindow) -> Option<u64> {
        let stream = &self.stream;
        let watch = stream.watch.filter(|_| stream.is_armed())?;
        let gap_ps = stream.turn_ps.max(stream.silence_ps);
        Some(match stream.scan {
            Scan::Idle => watch.stalled_ps(window, gap_ps),
            Scan::Asked { .. } => u64::MAX,
            // The close would only come between the receive threads and the copies that they wait for.
            Scan::Final if self.is_placing() => watch.stalled_ps(window, gap_ps),
            Scan::Final => stream.ready_ps,
        })
    }

    /// Whether the send threads are still to send the own block, and get on with that: they have posted some of it, or
    /// blocks of those before this rank have come, in the last [`STUCK_CUTOFFS`]. That nothing need come meanwhile
    /// ([`Operation::is_held`]) is no progress: it follows from this.
    pub(super) fn is_posting(&self, now_ps: u64) -> bool {
        let DpaStream { sides, posting, watch, cutoff_ps, .. } = &self.stream;
        let sends = sides.as_ref().is_some_and(|sides| sides.sending.is_ahead());
        let latest_ps = posting.iter().chain(watch).map(ProgressWatch::moved_ps).max();
        let window_ps = cutoff_ps.saturating_mul(STUCK_CUTOFFS);
        sends && latest_ps.is_some_and(|latest_ps| now_ps.saturating_sub(latest_ps) < window_ps)
    }

    /// Whether there is a reason why nothing may come: the next root of the chain waits for the own block, whose chunks
    /// do not come here; nor is the end seen before that block is in its place.
    ///
    /// Send threads that do not get on are no such reason. With the protocol on the card they have the operation from
    /// its post on, and this rank's turn may never come: whoever is to give it to this rank may be out of reach.
    pub(super) fn is_held(&self, now_ps: u64) -> bool {
        (self.stream.is_sending() && self.is_posting(now_ps)) || self.stream.own_block == OwnBlock::Copying
    }

    /// When the bitmaps are to be scanned, as it is at `now_ps`; none if they have been or cannot be. `over`: multicast
    /// is over for the right neighbour.
    pub(super) fn scan_ps(&self, window: StallWindow, over: bool, now_ps: u64) -> Option<u64> {
        let receives = self.stream.is_armed() && !self.state.is_failed();
        let may_scan = self.stream.scan == Scan::Idle && receives && !self.is_held(now_ps);
        self.stream.watch.filter(|_| may_scan)?.scan_ps(window, over)
    }

    /// Address and local key of the own block.
    pub(super) fn source(&self, own: u32) -> Result<(u64, u32)> {
        let (region, at) = match self.send.as_ref().or(self.stream.copied.as_ref()) {
            Some(send) => (send.region()?, 0),
            None => (self.receive.region()?, self.plan.block(own).offset),
        };
        Ok((region.addr().get() + at, region.lkey()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_a_part_in_what_is_multicast_alone() {
        let multicast = DpaStream::new(Algorithm::Multicast, OwnBlock::Placed, None);
        assert!(multicast.sides.is_none() && !multicast.is_armed() && !multicast.is_sending());
        let eager = DpaStream::new(Algorithm::Eager, OwnBlock::Placed, None);
        assert!(eager.sides.is_some_and(|sides| sides.receiving.is_over() && !sides.sending.is_under_way()));
    }

    #[test]
    fn after_a_failure_what_was_requested_is_not_sent_and_what_is_under_way_goes_on() {
        let after = |sending| {
            let mut stream = DpaStream::new(Algorithm::Multicast, OwnBlock::Placed, None);
            stream.sides = Some(Sides { receiving: Receiving::Armed, sending });
            stream.fail();
            stream.sides.map(|sides| sides.sending)
        };
        assert_eq!(after(Sending::Requested), Some(Sending::Idle));
        for sending in [Sending::Idle, Sending::Posted, Sending::Announced, Sending::Finished] {
            assert_eq!(after(sending), Some(sending));
        }
    }
}
