//! Protocol of a communicator as the engine runs it: on this host ([`Conversation`]), or where a carrier has it.

use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{Action, Disagreement, Message, OperationDescriptor, RankInfo};

use super::conversation::Conversation;
use super::eager::Gathered;
use super::event::Event;
use crate::error::Result;
use crate::op::report::{MessageCounts, Report};

/// What decides: events in, actions out.
pub(crate) trait Protocol: Send {
    /// Number of the operation that is posted next.
    fn operation(&self) -> u32;

    /// Takes an operation whose blocks are so short that they ride on the barrier. `gathered` has the own one.
    ///
    /// # Errors
    /// The protocol runs on a card, which cannot be given the blocks.
    fn start_eager(&mut self, descriptor: OperationDescriptor, gathered: Gathered, now_ps: u64) -> Result<()>;

    /// The blocks of an eager operation that is over; none if it was not eager.
    ///
    /// # Errors
    /// The protocol runs on a card, from which they cannot be read.
    fn take_eager(&mut self) -> Result<Option<Gathered>>;

    /// Takes an operation without a barrier: it is notified of how far that is ([`Event::Transferred`]), and compares
    /// what ranks have called with those that signal a barrier.
    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64);

    /// Takes note of what has happened.
    fn handle(&mut self, now_ps: u64, event: Event<'_>);

    /// The next thing to do; to be called until there is none, after everything that has happened.
    fn next(&mut self) -> Option<Action>;

    /// A message as bytes, with eager data or none behind it; none where the protocol sends by itself.
    fn encode(&mut self, message: &Message) -> Option<(Encoded, Vec<u8>)>;

    /// Where the left neighbour has the pieces that it has acknowledged; none if it has not sent that.
    fn offer(&self) -> Option<Availability>;

    /// When [`Event::Time`] is due; none if nothing is waited for.
    fn deadline_ps(&self) -> Option<u64>;

    /// Enters what it knows of the current operation into the operation's report.
    fn note(&self, now_ps: u64, report: &mut Report);

    /// Control messages sent so far.
    fn messages(&self) -> MessageCounts;

    /// What this rank and another have called, if that differs.
    fn disagreement(&self) -> Option<Disagreement>;

    /// Ends what runs the protocol elsewhere, before the carrier's queues go. Nothing is called any more.
    fn close(&mut self, _: RankInfo) {}
}

impl Protocol for Conversation {
    fn operation(&self) -> u32 {
        self.participant().operation()
    }

    fn start_eager(&mut self, descriptor: OperationDescriptor, gathered: Gathered, now_ps: u64) -> Result<()> {
        Self::start_eager(self, descriptor, gathered, now_ps);
        Ok(())
    }

    fn take_eager(&mut self) -> Result<Option<Gathered>> {
        Ok(Self::take_eager(self))
    }

    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        Self::start_direct(self, descriptor, now_ps);
    }

    fn handle(&mut self, now_ps: u64, event: Event<'_>) {
        Self::handle(self, now_ps, event);
    }

    fn next(&mut self) -> Option<Action> {
        Self::next(self)
    }

    fn encode(&mut self, message: &Message) -> Option<(Encoded, Vec<u8>)> {
        Some(Self::encode(self, message))
    }

    fn offer(&self) -> Option<Availability> {
        Self::offer(self)
    }

    fn deadline_ps(&self) -> Option<u64> {
        self.participant().deadline_ps()
    }

    fn note(&self, now_ps: u64, report: &mut Report) {
        Self::note(self, now_ps, report);
    }

    fn messages(&self) -> MessageCounts {
        Self::messages(self)
    }

    fn disagreement(&self) -> Option<Disagreement> {
        Self::disagreement(self)
    }
}
