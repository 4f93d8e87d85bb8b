//! Executor of point-to-point schedules: a [`Schedule`] bound to a rank's buffers, and carried out over a [`Link`].
//!
//! The executor knows what is sent when, which message is due, what is combined in which order, and when the operation
//! is complete. It has neither a clock nor IO. A link moves the bytes: by RDMA Writes ([`super::Group`]), in frames of
//! a connection, or by a copy within the process. [`Buffers`] are the memory of the rank.
//!
//! A link that has to be asked for what has come reports it in [`Link::poll`]. One whose frames are read together with
//! other traffic calls [`Executor::arrived`] when a message is whole.

use std::ops::Range;

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Memory, MessageError, Part, Schedule, ScheduleError, Transfer};

use super::Error;
use super::bound::Bound;
use crate::op::collective::Places;
use flexcast_reduce::Reduction;

/// Bytes of one of a rank's buffers.
pub(crate) type Extent = (Memory, Range<usize>);

/// A rank's buffers in one operation.
pub(crate) trait Buffers {
    /// Copies bytes to another place; both extents are of one length.
    ///
    /// # Errors
    /// They are not in the buffers.
    fn copy(&mut self, from: Extent, to: Extent) -> Result<(), Error>;

    /// Combines bytes, all three of one length: `to` = `left` ∘ `right`.
    ///
    /// # Errors
    /// They are not in the buffers.
    fn combine(&mut self, with: Reduction, to: Extent, operands: [Extent; 2]) -> Result<(), Error>;
}

/// What a link reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// So many messages are sent: their bytes may change.
    Sent(u32),
    /// A message of a peer is whole, and its bytes are where they belong.
    Arrived { from: u32, tag: u32 },
}

/// What becomes of a message that a link is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Nothing, for want of room: it is offered again, before any other.
    No,
    /// It waits, or is on its way: its end is reported.
    Waits,
    /// It is sent: its bytes may change.
    Sent,
}

/// What moves messages between the buffers of ranks.
pub(crate) trait Link<B: Buffers> {
    /// Number of the operation, for errors.
    fn operation(&self) -> u32;

    /// Takes a message to send.
    ///
    /// # Errors
    /// There is no way to the peer.
    fn take(&mut self, transfer: &Transfer, executor: &Executor, buffers: &B) -> Result<Taken, Error>;

    /// Sends of the messages that were taken what has room. Returns whether more may be reported, or taken, at once.
    ///
    /// # Errors
    /// The card refuses it, or a peer runs another operation.
    fn flush(&mut self, _executor: &Executor, _buffers: &B) -> Result<bool, Error> {
        Ok(false)
    }

    /// Reports what has happened. Returns whether anything has.
    ///
    /// # Errors
    /// A connection is broken; the first error of `notify`.
    fn poll(&mut self, _notify: &mut dyn FnMut(LinkEvent) -> Result<(), Error>) -> Result<bool, Error> {
        Ok(false)
    }
}

/// One rank's part in one operation.
#[derive(Debug)]
pub(crate) struct Executor {
    schedule: Schedule,
    bound: Bound,
    /// A message for which the link had no room.
    refused: Option<Transfer>,
}

impl Executor {
    /// # Errors
    /// There is no such operation.
    pub(crate) fn new(bound: Bound, place: RankInfo) -> Result<Self, ScheduleError> {
        Ok(Self { schedule: Schedule::new(bound.operation, place)?, bound, refused: None })
    }

    pub(crate) const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) const fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The division of a buffer.
    pub(crate) const fn places(&self, memory: Memory) -> &Places {
        &self.bound.places[memory as usize]
    }

    /// Bytes that come from other ranks.
    pub(crate) fn foreign_bytes(&self) -> u64 {
        self.schedule.receives().map(|arrival| self.bytes(arrival.target)).sum()
    }

    /// Bytes of a part.
    pub(crate) fn bytes(&self, part: Part) -> u64 {
        self.places(part.memory).total(part.blocks)
    }

    /// The bytes of a part from number `at` on, up to the next that lie somewhere else.
    pub(crate) fn run(&self, part: Part, at: u64) -> Extent {
        (part.memory, self.places(part.memory).run(part.blocks, at))
    }

    /// Copies the own share of the contribution to its place in the result.
    ///
    /// # Errors
    /// Those of the buffers.
    pub(crate) fn copy_own<B: Buffers>(&self, buffers: &mut B) -> Result<(), Error> {
        let Some(start) = self.schedule.start() else { return Ok(()) };
        let mut at = 0;
        loop {
            let (_, from) = self.run(Part::send(start.from), at);
            let (_, to) = self.run(Part::receive(start.to), at);
            let len = from.len().min(to.len());
            if len == 0 {
                return Ok(());
            }
            let extent = |memory, start| (memory, start..start + len);
            buffers.copy(extent(Memory::Send, from.start), extent(Memory::Receive, to.start))?;
            at += len as u64;
        }
    }

    /// Where the message with a tag belongs; none unless this peer sends it.
    pub(crate) fn expected(&self, from: u32, tag: u32) -> Option<Part> {
        self.schedule.receive(tag).filter(|arrival| arrival.from == from).map(|arrival| arrival.target)
    }

    /// A message is whole, and its bytes are where they belong. [`Executor::reduce`] is called next.
    ///
    /// # Errors
    /// It is not due.
    pub(crate) fn arrived(&mut self, from: u32, tag: u32) -> Result<(), MessageError> {
        self.schedule.arrived(from, tag)
    }

    /// Makes the reductions whose operands are there.
    ///
    /// # Errors
    /// Those of the buffers.
    pub(crate) fn reduce<B: Buffers>(&mut self, buffers: &mut B) -> Result<(), Error> {
        let Some(with) = self.bound.shape.as_ref().map(|shape| shape.reduction) else { return Ok(()) };
        while let Some(step) = self.schedule.reduce() {
            buffers.combine(with, self.run(step.to, 0), [step.left, step.right].map(|part| self.run(part, 0)))?;
        }
        Ok(())
    }

    /// Takes what the link reports. Returns whether there was anything.
    ///
    /// # Errors
    /// The link's; a message that is not due.
    pub(crate) fn poll<B: Buffers, L: Link<B>>(&mut self, link: &mut L, buffers: &mut B) -> Result<bool, Error> {
        let operation = link.operation();
        let unexpected = |source| Error::Message { operation, source };
        link.poll(&mut |event| match event {
            LinkEvent::Sent(messages) => (0..messages).try_for_each(|_| self.schedule.sent()).map_err(unexpected),
            LinkEvent::Arrived { from, tag } => {
                self.arrived(from, tag).map_err(unexpected)?;
                self.reduce(buffers)
            }
        })
    }

    /// Sends what may be sent, as far as the link has room. Returns whether there was anything.
    ///
    /// # Errors
    /// The link's.
    pub(crate) fn drive<B: Buffers, L: Link<B>>(&mut self, link: &mut L, buffers: &mut B) -> Result<bool, Error> {
        let mut moved = false;
        loop {
            while let Some(transfer) = self.refused.take().or_else(|| self.schedule.poll()) {
                match link.take(&transfer, self, buffers)? {
                    Taken::No => {
                        self.refused = Some(transfer);
                        break;
                    }
                    Taken::Waits => {}
                    // It was polled.
                    Taken::Sent => _ = self.schedule.sent(),
                }
                moved = true;
            }
            if !link.flush(self, buffers)? {
                return Ok(moved);
            }
            moved = true;
            self.poll(link, buffers)?;
        }
    }

    /// Whether everything has come, is combined and sent.
    pub(crate) fn is_complete(&self) -> bool {
        self.schedule.is_complete()
    }

    /// Who owes the first message that is missing.
    pub(crate) fn awaited(&self) -> Option<u32> {
        self.schedule.waiting_for()
    }
}

#[cfg(test)]
mod tests;
