//! Driver of the protocol on the host: its state machine, and the control connections to other ranks.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use flexcast_proto::sequencer::Turn;
use flexcast_proto::wire::{Availability, Codec, split_eager};
use flexcast_proto::{
    Action, Body, Cause, Disagreement, Failure, Message, OperationDescriptor, Participant, PieceSet, RankInfo,
};

use crate::api::card::Card;
use crate::api::config::Config;
use crate::api::report::{MessageCounts, Report};
use crate::dpa::send::Send as SendThreads;
use crate::error::Result;
use crate::plan::stream::Transport;
use crate::protocol::control::{Control, Event, Read};
use crate::protocol::driver::{Connect, Driver, Gathered, Notice, Posting, QueuePairs, Step};
use crate::protocol::eager::Eager;

/// Code of [`Cause::Connection`] for a peer that does not keep to the protocol.
pub(super) const PROTOCOL_VIOLATION: u16 = u16::MAX;

/// What is known of the current operation beside the state machine.
#[derive(Debug, Default)]
struct Current {
    /// The operation, until the receive contexts are armed.
    posting: Option<(OperationDescriptor, Option<Turn>)>,
    /// Where peers may read from this rank.
    here: Availability,
    /// Where the left neighbour has the pieces that it has acknowledged.
    offer: Option<Availability>,
    /// Pieces that are read together, by the first of them.
    groups: BTreeMap<u32, PieceSet>,
    /// Pieces of the other ranks' blocks.
    foreign: PieceSet,
    /// Fetch requests of the right neighbour.
    fetches: u64,
}

/// The protocol, run by the host.
#[derive(Debug)]
pub(crate) struct HostDriver {
    place: RankInfo,
    participant: Participant,
    control: Control,
    codec: Codec,
    eager: Eager,
    current: Current,
    messages: MessageCounts,
    /// What is to be done beside what the state machine asks for.
    asks: VecDeque<Action>,
}

impl HostDriver {
    /// A driver with a connection, not yet connected, for each of `peers` (ascending).
    pub(crate) fn new(
        card: &Card,
        place: RankInfo,
        first_operation: u32,
        peers: &[u32],
        config: &Config,
    ) -> Result<Self> {
        let eager_bytes = config.eager_bytes;
        Ok(Self {
            place,
            participant: Participant::new(place, first_operation),
            control: Control::new(card, peers, eager_bytes as usize / 2, config.restarts)?,
            codec: Codec::new(0, place.ranks()),
            eager: Eager::new(place, eager_bytes.into()),
            current: Current::default(),
            messages: MessageCounts::default(),
            asks: VecDeque::new(),
        })
    }

    fn send(&mut self, to: u32, message: &Message) -> Result<()> {
        let counts = &mut self.messages;
        *match message.body {
            Body::Barrier { .. } => &mut counts.barrier,
            Body::Activate => &mut counts.activate,
            Body::Fetch { .. } => &mut counts.fetch,
            Body::Acknowledge { .. } => &mut counts.acknowledge,
            Body::Final => &mut counts.last,
            Body::Failed(_) => &mut counts.failed,
        } += 1;
        let encoded = self.codec.encode(message, self.current.here);
        let data = match message.body {
            Body::Barrier { round, .. } => self.eager.data(message.operation, round),
            _ => Vec::new(),
        };
        self.control.send(to, encoded.as_bytes(), data)
    }
}

impl Driver for HostDriver {
    fn queue_pairs(&self) -> QueuePairs {
        QueuePairs { control: Vec::new(), ends: self.control.ends(), rows: (0, 0) }
    }

    fn connect(&mut self, connect: Connect<'_>, _senders: &[u32]) -> Result<()> {
        self.codec = Codec::new(connect.communicator, self.place.ranks());
        self.control.connect(self.place.rank(), connect.all, connect.config)
    }

    fn operation(&self) -> u32 {
        self.participant.operation()
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
        self.participant.owes()
    }

    fn start(&mut self, posting: &Posting<'_>, send: &mut SendThreads) -> Result<bool> {
        let Posting { plan, config, descriptor, turn, source, here, .. } = *posting;
        let foreign = plan.foreign_pieces();
        self.current = Current { posting: Some((descriptor, turn)), here, foreign, ..Current::default() };
        self.eager.forget();
        // Targets of single ranks are not known yet, and a rank alone has nobody to multicast to.
        if turn.is_some() && config.transport != Transport::UcUnicast && self.place.ranks() > 1 {
            send.prepare(plan, source, (descriptor.operation, posting.collective_id), config)?;
        }
        Ok(false)
    }

    fn eager_bytes(&self) -> u64 {
        self.eager.limit()
    }

    fn start_eager(
        &mut self,
        descriptor: OperationDescriptor,
        blocks: Vec<Range<usize>>,
        bytes: Vec<u8>,
        now_ps: u64,
    ) -> Result<()> {
        self.current = Current::default();
        let fits = self.eager.start(descriptor.operation, blocks, bytes);
        let OperationDescriptor { operation, summary, barrier_timeout_ps, bound_ps, .. } = descriptor;
        self.participant.post_eager(operation, summary, (barrier_timeout_ps, bound_ps), now_ps);
        if !fits {
            // Where calls differ, the state machine has found that by itself, and names the rank.
            let own = self.place.rank();
            self.participant.fail(Failure { culprit: own, witness: own, cause: Cause::Connection(PROTOCOL_VIOLATION) });
        }
        Ok(())
    }

    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        self.current = Current::default();
        self.eager.forget();
        self.participant.post_direct(descriptor, now_ps);
    }

    fn take_eager(&mut self) -> Result<Option<Gathered>> {
        Ok(self.eager.finish())
    }

    fn notify(&mut self, now_ps: u64, notice: Notice) {
        let participant = &mut self.participant;
        match notice {
            Notice::Armed => {
                if let Some((descriptor, turn)) = self.current.posting.take() {
                    participant.post_with(&descriptor, turn, now_ps);
                }
            }
            Notice::Received => {
                participant.progressed(now_ps);
                participant.delivered_all();
            }
            Notice::Lost { pieces, last } => self.asks.extend(participant.lost(&pieces, last)),
            Notice::Placed { pieces } => participant.delivered_pieces(&pieces),
            Notice::CutOff { lost } => {
                participant.delivered_pieces(&self.current.foreign.without(&lost));
                participant.cut_off(now_ps);
            }
            Notice::OwnBlock => participant.delivered(self.place.rank()),
            Notice::Transferred { awaited } => participant.transferred(awaited, now_ps),
            Notice::TransferredAll => participant.transferred_all(),
            Notice::Disagrees { rank, theirs } => participant.disagrees(rank, theirs),
            Notice::Sent => participant.sent(),
            Notice::Failed(failure) | Notice::Crashed(failure) => participant.fail(failure),
            Notice::Time => participant.handle_time(now_ps),
        }
    }

    fn poll(&mut self, now_ps: u64) -> Result<bool> {
        let Self { control, participant, codec, eager, place, current, .. } = self;
        let own = place.rank();
        control.poll(now_ps, |_, event| {
            match event {
                Event::Message { from, bytes } => {
                    let (bytes, data) = split_eager(bytes);
                    let handled = codec.decode(bytes).map_err(|error| error.to_string()).and_then(|control| {
                        match (control.message.body, control.availability) {
                            (Body::Acknowledge { .. }, Some(at)) => current.offer = Some(at),
                            (Body::Fetch { .. }, _) => current.fetches += 1,
                            _ => {}
                        }
                        let operation = control.message.operation;
                        participant.handle(from, control.message).map_err(|error| error.to_string())?;
                        match control.message.body {
                            Body::Barrier { round, .. }
                                if !data.is_empty() && !eager.take(operation, from, round, data) =>
                            {
                                Err(format!("{} bytes of eager data, which are not those of its blocks", data.len()))
                            }
                            _ => Ok(()),
                        }
                    });
                    if let Err(error) = handled {
                        tracing::error!(from, error, "message refused");
                        let cause = Cause::Connection(PROTOCOL_VIOLATION);
                        participant.fail(Failure { culprit: from, witness: own, cause });
                    }
                }
                Event::Read { tag } => {
                    let pieces = current.groups.remove(&tag).unwrap_or(PieceSet::EMPTY);
                    pieces.iter().for_each(|piece| participant.read(piece));
                }
                Event::Broken { rank, status } => {
                    participant.fail(Failure { culprit: rank, witness: own, cause: Cause::Connection(status as u16) });
                }
            }
            Ok(())
        })
    }

    fn next(&mut self) -> Result<Option<Step>> {
        while let Some(action) = self.asks.pop_front().or_else(|| self.participant.poll()) {
            let step = match action {
                Action::Send { to, message } => {
                    self.send(to, &message)?;
                    continue;
                }
                Action::Multicast => Step::Multicast,
                Action::Read { from, pieces } => Step::Read { from, pieces, at: self.current.offer },
                Action::Release => Step::Release,
                Action::Fail(failure) => Step::Fail(failure),
            };
            return Ok(Some(step));
        }
        Ok(None)
    }

    fn fetch(&mut self, pieces: PieceSet, reads: &[Read]) -> Result<()> {
        match (pieces.first(), reads) {
            (_, []) => pieces.iter().for_each(|piece| self.participant.read(piece)),
            (Some(first), _) => _ = self.current.groups.insert(first, pieces),
            (None, _) => {}
        }
        reads.iter().try_for_each(|read| self.control.read(*read))
    }

    fn flush(&mut self, now_ps: u64) -> Result<()> {
        self.control.flush(now_ps)
    }

    fn flush_ps(&self) -> Option<u64> {
        self.control.probe_ps()
    }

    fn deadline_ps(&self) -> Option<u64> {
        self.participant.deadline_ps()
    }

    fn ready_ps(&self) -> Option<u64> {
        self.participant.ready_ps()
    }

    fn is_over_for_neighbour(&self) -> bool {
        self.participant.is_over_for_neighbour()
    }

    fn note(&self, now_ps: u64, report: &mut Report) {
        let phases = &mut report.phases.0;
        phases.ready_ps = self.participant.ready_ps();
        if self.participant.has_everything() {
            phases.complete_ps.get_or_insert(now_ps);
        }
        report.fetches_served = self.current.fetches;
    }

    fn is_flagged(&self) -> Result<bool> {
        Ok(false)
    }

    fn messages(&self) -> MessageCounts {
        self.messages
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.participant.disagreement()
    }

    fn cancel_reads(&mut self) {
        self.control.cancel_reads();
    }

    fn is_quiet(&self) -> bool {
        !self.control.reading() && self.control.is_drained()
    }
}
