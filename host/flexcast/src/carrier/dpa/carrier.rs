//! Carrier of a communicator on a card's DPA: commands to its workers, and what they report.
//!
//! It gives operations to the card (`start`), polls the card's workers (`poll`) and the clock (`clock`), scans for what
//! is lost (`scan`), and knows when the card is done with buffers (`end`). The protocol runs on the host or on the card
//! ([`DpaProtocol`]).

mod clock;
mod direct;
mod end;
mod operation;
mod poll;
mod scan;
mod start;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{CollectiveIds, Failure, PieceSet, RankInfo};

use self::operation::{DpaStream, Operation, Sending};
use super::card::{DpaCard, TakenUnits};
use super::card_protocol::CardProtocol;
use super::copier::Copier;
use super::protocol::DpaProtocol;
use super::receive::Receive;
use super::send::Send;
use crate::carrier::control::{Control, Read};
use crate::carrier::pairs::{self, PairCarrier, Pairs, SetupOperation, Work};
use crate::engine::carrier::{LetGo, Withdrawn};
use crate::engine::{Admission, Carrier, Engine, Exchange, Operations, Posted, Protocol as _};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::{Config, Control as ControlBy, Derived};
use crate::op::decision::Decision;
use crate::op::outcome::{Failed, Outcome};
use crate::op::stream;
use crate::p2p::Group;
use crate::plan::Plan;
use crate::plan::tuner::{Backoff, Conditions, Slowness};

/// Operations of a communicator on a card.
pub(super) type DpaOperations = Operations<DpaCarrier>;

/// Longest that a worker takes to answer: all that may wait in its rings, many times over.
const WORKER_PS: u64 = 1_000_000_000_000;
/// A root whose send threads have posted nothing for this many cutoffs, and to which nothing comes any more, stops its
/// own multicast: the others have closed their receive contexts by then, and fetch what they miss.
const STUCK_CUTOFFS: u64 = 2;

/// The queues and threads of a communicator. What can reach memory is dropped before the memory.
pub(crate) struct DpaCarrier {
    /// Connections that carry the protocol's messages, where the host runs it.
    pub(crate) control: Option<Control>,
    /// Connections for operations that go by neither multicast nor the barrier.
    pub(crate) pairs: Pairs,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    pub(crate) copier: Copier,
    pub(crate) _units: TakenUnits,
    /// Copies of own blocks that the card may still reach.
    pub(crate) lost: Vec<Buffer>,
    pub(crate) card: DpaCard,
    pub(crate) place: RankInfo,
    pub(crate) derived: Derived,
    /// What the choice of an algorithm follows from, in addition to the operation.
    pub(crate) conditions: Conditions,
    /// Whether operations keep off their connections.
    pub(crate) backoff: Backoff,
    pub(crate) slowness: Slowness,
    pub(crate) ids: CollectiveIds,
    /// Chunks discarded as late or foreign by the end of the last operation, if that was cut off.
    pub(crate) late_chunks: Option<u64>,
    /// When the protocol's connections or reports were last polled.
    pub(crate) polled_ps: u64,
    /// Something has come between two calls of [`Engine::move_on`].
    pub(crate) notified: bool,
}

impl DpaCarrier {
    /// Takes what has come from peers, and from the card if the protocol is there. Returns whether there was anything.
    fn poll_protocol(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        match (&mut self.control, &mut ops.protocol) {
            (Some(control), DpaProtocol::Host(conversation)) => control.poll(now_ps, |_, event| {
                conversation.handle(now_ps, event);
                Ok(())
            }),
            (_, DpaProtocol::Card(card)) => card.poll(now_ps),
            (None, DpaProtocol::Host(_)) => Ok(false),
        }
    }

    /// Whether messages of this host wait for room in a queue of the card.
    fn is_waiting(&self) -> bool {
        self.control.as_ref().is_some_and(Control::is_waiting)
    }

    /// Whether no read is under way, and all messages of this host have been acknowledged.
    fn is_quiet(&self, ops: &DpaOperations) -> bool {
        let of_host = self.control.as_ref().is_none_or(|control| !control.reading() && control.is_drained());
        of_host && ops.protocol.card().is_none_or(CardProtocol::is_quiet)
    }

    /// When the protocol's connections or reports are to be polled although nothing has come.
    fn flush_ps(&self, ops: &DpaOperations) -> Option<u64> {
        let of_host_ps = self.control.as_ref().and_then(Control::probe_ps);
        of_host_ps.into_iter().chain(ops.protocol.card().and_then(CardProtocol::flush_ps)).min()
    }
}

impl Carrier for DpaCarrier {
    type Protocol = DpaProtocol;
    type Purpose = Option<Box<SetupOperation>>;
    type Stream = DpaStream;
    type Work = Work;

    fn now_ps(&self) -> u64 {
        self.card.now_ps()
    }

    fn admission(&self, config: &Config) -> Admission {
        let psn_bits = self.derived.layout.psn_bits();
        let most_chunks = (u64::from(self.derived.bitmap_words) * 64).min(1 << psn_bits);
        let streams = stream::received(config.transport, config.subgroups, self.place).collect();
        let refusal =
            "is carried by the hosts, but the protocol runs on the card (control = device): set control to host";
        let collectives = if config.control == ControlBy::Device { Err(refusal) } else { Ok(()) };
        Admission { registered: true, collectives, streams, psn_bits, most_chunks }
    }

    fn before_begin(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<()> {
        // The card may have carried out the last command since it was last polled, and be free for this one.
        if now_ps > self.polled_ps {
            self.notified |= self.poll_protocol(ops, now_ps)?;
        }
        Ok(())
    }

    fn decide(&mut self, ops: &mut DpaOperations, plan: &Plan) -> Decision {
        self.conditions.decide(&plan.shape(), self.backoff.avoids(ops.protocol.operation()))
    }

    fn begin_collective(engine: &mut Engine<Self>, posted: Posted<Collective>, now_ps: u64) -> Result<(), Box<Failed>> {
        pairs::begin_collective(engine, posted, now_ps)
    }

    fn begin_direct(
        engine: &mut Engine<Self>,
        posted: Posted,
        decision: Decision,
        now_ps: u64,
    ) -> Result<(), Box<Failed>> {
        Self::begin_over_connections(engine, posted, decision, now_ps)
    }

    fn prepare(&mut self, ops: &mut DpaOperations, posted: &mut Posted, decision: &Decision) -> Result<DpaStream> {
        self.prepare_stream(ops, posted, decision.algorithm())
    }

    fn arm(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let Some(mut operation) = ops.current.take() else { return Ok(false) };
        let armed = self.arm_operation(ops, &mut operation, now_ps);
        ops.current = Some(operation);
        armed
    }

    fn begun(engine: &mut Engine<Self>, now_ps: u64) -> Result<()> {
        engine.carrier.flush(&mut engine.ops, now_ps)
    }

    fn withdraw(&mut self, operation: &mut Operation) -> Withdrawn {
        self.withdraw_operation(operation)
    }

    fn receive(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        self.polled_ps = now_ps;
        Ok(self.poll_protocol(ops, now_ps)? | std::mem::take(&mut self.notified))
    }

    fn advance(engine: &mut Engine<Self>, mut moved: bool, now_ps: u64) -> Result<bool> {
        if engine.ops.current.is_some() {
            moved = Self::poll(engine, now_ps, moved)?;
        }
        Ok(pairs::poll(engine, now_ps) || moved)
    }

    fn send_message(
        &mut self,
        _: &mut DpaOperations,
        to: u32,
        _: u32,
        (message, data): (Encoded, Vec<u8>),
    ) -> Result<()> {
        self.control.as_mut().map_or(Ok(()), |control| control.send(to, message.as_bytes(), data))
    }

    fn multicast(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<()> {
        if let Some(sides) = ops.current.as_mut().and_then(|operation| operation.stream.sides.as_mut()) {
            sides.sending = Sending::Requested;
        }
        self.poll_send(ops, now_ps).map(drop)
    }

    fn read(&mut self, ops: &mut DpaOperations, from: u32, pieces: &PieceSet, at: Option<Availability>) -> Result<()> {
        let Some(operation) = ops.current.as_mut() else { return Ok(()) };
        let (Some(control), Some(conversation)) = (&mut self.control, ops.protocol.host_mut()) else {
            return Ok(());
        };
        let DpaStream { missing, gaps, .. } = &operation.stream;
        let mut groups = vec![(*pieces, Vec::new())];
        if at.is_some()
            && let Some(missing) = missing.as_ref().or(gaps.as_ref().map(|gaps| &gaps.lost))
        {
            groups = missing.groups(&operation.plan, &operation.pieces, pieces);
        }
        let Availability { address, rkey } = at.unwrap_or_default();
        for (group, runs) in groups {
            let Some(tag) = group.first() else { continue };
            let region = operation.receive.region()?;
            operation.report.reads += runs.len() as u64;
            conversation.fetch(group, runs.len());
            for run in runs {
                let local = region.slice(run.offset, run.bytes as u32)?;
                control.read(Read { from, local, remote_addr: address + run.offset, rkey, tag })?;
            }
        }
        Ok(())
    }

    fn send_data(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        // The card's threads send by themselves. What the protocol has just got may be the last.
        Self::close_repaired(ops, now_ps);
        Ok(false)
    }

    fn flush(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<()> {
        match (&mut self.control, &mut ops.protocol) {
            (Some(control), DpaProtocol::Host(conversation)) => {
                control.flush(conversation.participant().awaited(), now_ps)
            }
            (_, DpaProtocol::Card(card)) => card.flush(now_ps),
            (None, DpaProtocol::Host(_)) => Ok(()),
        }
    }

    fn failed(&mut self, ops: &mut DpaOperations, _: Failure, now_ps: u64) -> Result<()> {
        if let Some(operation) = ops.current.as_mut() {
            operation.stream.fail();
        }
        self.poll_clock(ops, now_ps, false).map(drop)
    }

    fn may_end(&mut self, ops: &mut DpaOperations, _: u64) -> Result<bool> {
        self.is_done(ops)
    }

    fn ended(&mut self, ops: &mut DpaOperations, operation: &mut Operation, now_ps: u64) -> Result<()> {
        self.learn(ops, operation, now_ps)
    }

    fn finish(engine: &mut Engine<Self>, operation: Operation, now_ps: u64) {
        pairs::finish(engine, operation, now_ps);
    }

    fn has_let_go(&mut self, ops: &mut DpaOperations, _: u64) -> Result<LetGo> {
        self.let_go(ops)
    }

    fn abandon(&mut self, operation: &mut Operation) {
        if operation.algorithm.is_direct() {
            // With its queue pairs ends what its card still does; the communicator has no other operation.
            self.pairs.group = None;
        }
        self.receive.disarm(&mut operation.receive);
        self.lost.extend(operation.stream.copied.take());
    }

    fn error_of(
        &mut self,
        ops: &mut DpaOperations,
        operation: Option<&mut Operation>,
        name: &'static str,
        failure: Failure,
    ) -> Error {
        let crash = operation.and_then(|operation| operation.stream.crash.take());
        crash.map_or_else(|| ops.core.requests.failed(name, failure, None), Error::Flexio)
    }

    fn renew(&mut self, buffer: Buffer) -> Result<Buffer> {
        buffer.renewed(self.card.pd())
    }

    fn may_end_exchange(&mut self, ops: &mut DpaOperations, now_ps: u64) -> bool {
        pairs::may_end(ops, (self.is_waiting(), self.is_quiet(ops)), now_ps)
    }

    fn end_exchange(&mut self, ops: &mut DpaOperations, exchange: Exchange<Self>, _: u64) -> Result<Outcome> {
        self.pairs.end(exchange, &ops.core.requests)
    }

    fn deadline_ps(&self, ops: &DpaOperations) -> Option<u64> {
        let of_group_ps = self.pairs.group.as_ref().and_then(Group::deadline_ps);
        let of_exchange_ps = ops.exchange.as_ref().map(|exchange| self.pairs.deadline_ps(exchange));
        let idle_ps = [of_group_ps, of_exchange_ps, self.flush_ps(ops)].into_iter().flatten().min();
        let Some(operation) = ops.current.as_ref() else { return idle_ps };
        let due_ps = operation.stalled_ps(ops.stall).unwrap_or(operation.deadline_ps);
        let scan_ps = operation.scan_ps(ops.stall, Self::is_over_for_neighbour(ops), self.polled_ps);
        let check_ps = operation.stream.checked_ps.saturating_add(poll::CHECK_PS);
        [Some(due_ps), scan_ps, Some(check_ps), idle_ps].into_iter().flatten().min()
    }

    fn is_due(&self) -> bool {
        self.notified
    }

    fn wake(&mut self) {
        self.notified = true;
    }

    fn may_be_left(&self, _: &DpaOperations) -> bool {
        self.control.as_ref().is_none_or(|control| !control.is_restarting())
    }

    fn is_flagged(&self, ops: &DpaOperations) -> Result<bool> {
        ops.protocol.card().map_or(Ok(false), CardProtocol::is_flagged)
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        self.receive.statistics()
    }

    fn send_statistics(&self) -> Result<SendReport> {
        self.send.report()
    }
}

impl PairCarrier for DpaCarrier {
    fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    fn pairs_mut(&mut self) -> &mut Pairs {
        &mut self.pairs
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }
}
