//! Driver of the protocol on the host: its state machine, and the control connections to other ranks.

use flexcast_proto::{Disagreement, OperationDescriptor, PieceSet, RankInfo};

use crate::carrier::control::{Control, Read};
use crate::carrier::dpa::card::DpaCard;
use crate::carrier::dpa::driver::{Connect, Driver, Posting, QueuePairs};
use crate::carrier::dpa::send::Send as SendThreads;
use crate::engine::conversation::{Conversation, Next};
use crate::engine::eager::Gathered;
use crate::engine::notice::{Notice, Step};
use crate::error::Result;
use crate::op::config::Config;
use crate::op::report::{MessageCounts, Report};
use crate::op::stream::Transport;

/// The protocol, run by the host.
#[derive(Debug)]
pub(crate) struct HostDriver {
    place: RankInfo,
    conversation: Conversation,
    control: Control,
}

impl HostDriver {
    /// A driver with a connection, not yet connected, for each of `peers` (ascending).
    pub(crate) fn new(
        card: &DpaCard,
        place: RankInfo,
        first_operation: u32,
        peers: &[u32],
        config: &Config,
    ) -> Result<Self> {
        let eager_bytes = config.eager_bytes;
        Ok(Self {
            place,
            conversation: Conversation::new(place, first_operation, eager_bytes.into()),
            control: Control::new(card.pd(), peers, eager_bytes as usize / 2, config.restarts)?,
        })
    }
}

impl Driver for HostDriver {
    fn queue_pairs(&self) -> QueuePairs {
        QueuePairs { control: Vec::new(), ends: self.control.ends(), rows: (0, 0) }
    }

    fn connect(&mut self, connect: Connect<'_>, _senders: &[u32]) -> Result<()> {
        self.conversation.connect(connect.communicator);
        self.control.connect(self.place.rank(), connect.all, connect.config)
    }

    fn operation(&self) -> u32 {
        self.conversation.participant().operation()
    }

    fn takes_late_copies(&self) -> bool {
        true
    }

    fn expect_losses(&mut self, expected: bool) {
        self.control.expect_losses(expected);
    }

    fn repairs_beside(&self) -> bool {
        true
    }

    fn owes(&self) -> bool {
        self.conversation.participant().owes()
    }

    fn start(&mut self, posting: &Posting<'_>, send: &mut SendThreads) -> Result<bool> {
        let Posting { plan, config, descriptor, turn, source, here, .. } = *posting;
        self.conversation.start((descriptor, turn), here, plan.foreign_pieces());
        // Targets of single ranks are not known yet, and a rank alone has nobody to multicast to.
        if turn.is_some() && config.transport != Transport::UcUnicast && self.place.ranks() > 1 {
            send.prepare(plan, source, (descriptor.operation, posting.collective_id), config)?;
        }
        Ok(false)
    }

    fn eager_bytes(&self) -> u64 {
        self.conversation.eager_bytes()
    }

    fn start_eager(&mut self, descriptor: OperationDescriptor, gathered: Gathered, now_ps: u64) -> Result<()> {
        self.conversation.start_eager(descriptor, gathered, now_ps);
        Ok(())
    }

    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        self.conversation.start_direct(descriptor, now_ps);
    }

    fn take_eager(&mut self) -> Result<Option<Gathered>> {
        Ok(self.conversation.take_eager())
    }

    fn notify(&mut self, now_ps: u64, notice: Notice) {
        self.conversation.notify(now_ps, notice);
    }

    fn poll(&mut self, now_ps: u64) -> Result<bool> {
        let Self { control, conversation, .. } = self;
        control.poll(now_ps, |_, event| {
            conversation.take_note(event);
            Ok(())
        })
    }

    fn next(&mut self) -> Result<Option<Step>> {
        while let Some(next) = self.conversation.next() {
            match next {
                Next::Say { to, message, data, .. } => self.control.send(to, message.as_bytes(), data)?,
                Next::Do(step) => return Ok(Some(step)),
            }
        }
        Ok(None)
    }

    fn fetch(&mut self, pieces: PieceSet, reads: &[Read]) -> Result<()> {
        self.conversation.fetch(pieces, reads.len());
        reads.iter().try_for_each(|read| self.control.read(*read))
    }

    fn flush(&mut self, now_ps: u64) -> Result<()> {
        self.control.flush(self.conversation.participant().awaited(), now_ps)
    }

    fn flush_ps(&self) -> Option<u64> {
        self.control.probe_ps()
    }

    fn deadline_ps(&self) -> Option<u64> {
        self.conversation.participant().deadline_ps()
    }

    fn ready_ps(&self) -> Option<u64> {
        self.conversation.participant().ready_ps()
    }

    fn is_over_for_neighbour(&self) -> bool {
        self.conversation.participant().is_over_for_neighbour()
    }

    fn note(&self, now_ps: u64, report: &mut Report) {
        self.conversation.note(now_ps, report);
    }

    fn is_flagged(&self) -> Result<bool> {
        Ok(false)
    }

    fn messages(&self) -> MessageCounts {
        self.conversation.messages()
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.conversation.disagreement()
    }

    fn cancel_reads(&mut self) {
        self.control.cancel_reads();
    }

    fn is_waiting(&self) -> bool {
        self.control.is_waiting()
    }

    fn may_be_left(&self) -> bool {
        !self.control.is_restarting()
    }

    fn is_quiet(&self) -> bool {
        !self.control.reading() && self.control.is_drained()
    }
}
