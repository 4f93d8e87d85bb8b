//! Carrier in the memory of one process, whose threads are the ranks. For tests and for examples that run anywhere; it
//! also shows what a carrier has to have.
//!
//! Each rank has an inbox ([`hub`]). A root's block goes to every inbox as one packet; control messages and messages of
//! point-to-point collectives do likewise. Nothing is lost, so that nothing is ever read again.

mod hub;

use std::collections::VecDeque;
use std::sync::Arc;

use flexcast_proto::p2p::Transfer;
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{FailureCode, PieceSet, RankInfo, RankSet, StallWindow, Summary};
use flexcast_sparse::messages::Begun;

use self::hub::{Inbox, Packet};
use crate::carrier::Parts;
use crate::carrier::endpoint::{CarrierEndpoint, CarrierPart, DatapathKind, Endpoint};
use crate::engine::conversation::Conversation;
use crate::engine::event::Event;
use crate::engine::{Admission, Carrier, Core, Engine, Exchange, Operation, Operations, Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::{Config, Control, MAX_EAGER_BYTES, ps};
use crate::op::decision::Decision;
use crate::op::outcome::Failed;
use crate::op::sparse_cost::Densities;
use crate::op::stream::Stream;
use crate::op::tuning::Tuning;
use crate::p2p;
use crate::p2p::executor::{Executor, Link, Taken};
use crate::p2p::local::{Local, Slices, Spare};
use crate::plan::Plan;
use crate::plan::chains::{Order, order};
use crate::plan::footprint::Footprint;
use crate::plan::tuner::Conditions;

/// The memory of this process as an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Loopback;

impl CarrierEndpoint for Loopback {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Loopback
    }

    fn now_ps(&self) -> u64 {
        hub::now_ps()
    }

    fn defaults(&self) -> Config {
        let config = Config { eager_bytes: MAX_EAGER_BYTES, ..Config::default().with_subgroups(1) };
        // Threads are not always run.
        config.recovery_timeout(std::time::Duration::from_secs(2))
    }

    fn part(&self, rank: u32, ranks: u32, config: Config) -> Result<Box<dyn CarrierPart>> {
        let refuse = |what, value, limit: &str| Err(Error::Config { what, value, limit: limit.to_owned() });
        if config.control != Control::Host {
            let limit = "host in memory, which has neither a DPA nor service processes";
            return refuse("control", config.control as u64, limit);
        }
        if !config.aggregators.is_empty() {
            return refuse("aggregators", config.aggregators.len() as u64, "left out in memory, where ranks add");
        }
        config.check_ranges(ranks)?;
        Ok(Box::new(Part { place: RankInfo::new(rank, ranks)?, config, proposal: hub::proposal() }))
    }
}

/// A rank that does not know the others yet.
struct Part {
    place: RankInfo,
    config: Config,
    proposal: u64,
}

impl CarrierPart for Part {
    fn connect_info(&self) -> Vec<u8> {
        hub::connect_info(self.place, self.proposal)
    }

    fn connect(self: Box<Self>, endpoint: Endpoint, infos: &[Vec<u8>]) -> Result<Parts> {
        let Self { place, config, .. } = *self;
        let id = hub::communicator(place, self.proposal, infos)?;
        let inbox = Arc::new(hub::join(id, place));
        let mut conversation = Conversation::new(place, 1, config.eager_bytes.into());
        conversation.connect(id);
        let conditions = Conditions {
            direct: true,
            ..Conditions::new(&config, place.ranks(), config.chunk_bytes, conversation.eager_bytes())
        };
        let stall = StallWindow::new(ps(config.overheads.cutoff_slack));
        let waiter = Arc::clone(&inbox);
        let carrier = LoopbackCarrier { inbox, conditions, held: VecDeque::new(), gone: RankSet::EMPTY, came_ps: 0 };
        let engine = Engine::new(carrier, Core::new(place, id, config), conversation, stall);
        Ok(Parts { endpoint, datapath: Box::new(engine), waiter, footprint: Footprint::default() })
    }
}

/// A rank's inbox, and the ways to the others.
pub(crate) struct LoopbackCarrier {
    inbox: Arc<Inbox>,
    conditions: Conditions,
    /// Packets of operations that this rank has not come to.
    held: VecDeque<Packet>,
    /// Ranks that have dropped the communicator.
    gone: RankSet,
    /// When something last came, or an operation began.
    came_ps: u64,
}

impl Drop for LoopbackCarrier {
    fn drop(&mut self) {
        self.inbox.leave();
    }
}

type LoopbackOperations = Operations<LoopbackCarrier>;

impl LoopbackCarrier {
    /// Takes a packet. Returns it if this rank has not come to its operation.
    fn take(&mut self, ops: &mut LoopbackOperations, packet: Packet, now_ps: u64) -> Option<Packet> {
        let under_way = ops.current.as_ref().map(|operation| operation.number);
        let under_way = under_way.or(ops.exchange.as_ref().map(|exchange| exchange.number));
        let next = ops.protocol.participant().operation();
        let is_ahead = |number: u32| number.wrapping_sub(next).cast_signed() >= 0 && under_way != Some(number);
        match packet {
            Packet::Message { from, bytes } => ops.protocol.receive(from, &bytes),
            Packet::Gone { from } => _ = self.gone.insert(from),
            Packet::Block { number, .. } | Packet::Transfer { number, .. } if is_ahead(number) => return Some(packet),
            Packet::Block { from, number, bytes } => {
                let current = ops.current.as_mut().filter(|operation| operation.number == number);
                let Operation { plan, receive, stream, report, .. } = current?;
                let start = plan.block(from).offset as usize;
                receive.bytes_mut().get_mut(start..start + bytes.len())?.copy_from_slice(&bytes);
                stream.remove(from);
                if stream.is_empty() {
                    report.phases.0.received_ps = Some(now_ps);
                    ops.protocol.handle(now_ps, Event::Received);
                }
            }
            Packet::Transfer { from, number, summary, tag, bytes } => {
                let calls = if let Some(exchange) = ops.exchange.as_mut().filter(|exchange| exchange.number == number) {
                    let Exchange { work: local, send, receive, summary: own, .. } = exchange;
                    let begun = local.begin(from, summary, (tag, bytes.len() as u64, 0));
                    if begun == Begun::Fine {
                        let send = send.as_ref().map_or(&[][..], Buffer::bytes);
                        if !local.deliver((from, tag), &bytes, send, receive.bytes_mut()) {
                            ops.protocol.broken(from, FailureCode::ProtocolViolation);
                        }
                        return None;
                    }
                    begun.calls(summary, *own).unwrap_or([summary, *own])
                } else {
                    // Here it has a barrier.
                    ops.current.as_ref().filter(|operation| operation.number == number)?;
                    [summary, ops.protocol.participant().summary()]
                };
                let [theirs, own] = calls;
                ops.protocol.handle(now_ps, Event::Disagrees { rank: from, theirs, own });
            }
        }
        None
    }

    /// Sends the messages of the exchange under way that may be sent, and notifies the protocol of how far it is.
    fn exchange(&mut self, ops: &mut LoopbackOperations, now_ps: u64) -> bool {
        let (from, inbox) = (ops.core.place.rank(), &*self.inbox);
        let Some(exchange) = ops.exchange.as_mut().filter(|exchange| exchange.state.is_active()) else { return false };
        let Exchange { work: local, number, summary, send, receive, .. } = exchange;
        let mut copies = Copies { inbox, from, number: *number, summary: *summary };
        let send = send.as_ref().map_or(&[][..], Buffer::bytes);
        let moved = match local.advance(&mut copies, send, receive.bytes_mut()) {
            Ok(moved) => moved,
            Err(error) => {
                ops.fail_link(&error, now_ps);
                return true;
            }
        };
        let is_complete = local.executor().is_complete();
        let awaited = local.executor().awaited().unwrap_or(from);
        if !moved && !is_complete {
            return false;
        }
        let is_news = exchange.report.phases.0.received_ps.is_none();
        let event = exchange.transferred((!is_complete).then_some(awaited), now_ps);
        ops.protocol.handle(now_ps, event);
        is_news
    }

    /// Fails the operation under way if it waits for a rank that has dropped the communicator.
    fn detect_gone(&self, ops: &mut LoopbackOperations) {
        let awaited = match (&ops.current, &ops.exchange) {
            (_, Some(exchange)) => exchange.work.executor().awaited(),
            (Some(operation), _) if operation.state.is_active() => Some(ops.protocol.participant().waiting_for().0),
            (_, None) => None,
        };
        if let Some(rank) = awaited.filter(|rank| self.gone.contains(*rank)) {
            ops.protocol.broken(rank, FailureCode::ConnectionReset);
        }
    }

    /// Begins an operation by messages between pairs of ranks.
    fn begin(
        engine: &mut Engine<Self>,
        mut posted: Posted<Task>,
        decision: Decision,
        now_ps: u64,
    ) -> std::result::Result<(), Box<Failed>> {
        let Engine { carrier, ops, .. } = engine;
        let local = match posted.bind(ops.core.place, decision.algorithm(), Spare::default()) {
            Ok(local) => local,
            Err(error) => return Err(posted.refuse(error)),
        };
        let (summary, foreign_bytes) = (local.summary(), local.executor().foreign_bytes());
        let posted = posted.map(|task| (task.name(), local));
        let bound_ps = ps(ops.core.config.barrier_timeout);
        ops.begin_exchange(posted, (summary, decision), (bound_ps, foreign_bytes), now_ps);
        carrier.exchange(ops, now_ps);
        Ok(())
    }
}

/// Inboxes as the link of an operation: its messages are copied at once.
struct Copies<'i> {
    inbox: &'i Inbox,
    from: u32,
    number: u32,
    summary: Summary,
}

impl Link<Slices<'_>> for Copies<'_> {
    fn operation(&self) -> u32 {
        self.number
    }

    fn take(&mut self, transfer: &Transfer, executor: &Executor, slices: &Slices<'_>) -> p2p::Result<Taken> {
        let Self { inbox, from, number, summary } = *self;
        if !inbox.has_room() {
            return Ok(Taken::No);
        }
        let (tag, bytes) = (transfer.tag, slices.message(executor, transfer.source));
        inbox.send(transfer.to, Packet::Transfer { from, number, summary, tag, bytes });
        Ok(Taken::Sent)
    }
}

impl Carrier for LoopbackCarrier {
    type Protocol = Conversation;
    type Purpose = ();
    /// Roots whose blocks have not come.
    type Stream = RankSet;
    type Work = Local;

    fn now_ps(&self) -> u64 {
        hub::now_ps()
    }

    fn admission(&self, _: &Config) -> Admission {
        let streams = vec![Stream { subgroup: 0, peer: None }];
        Admission { registered: false, collectives: Ok(()), streams, psn_bits: 31, most_chunks: (1 << 31) - 1 }
    }

    fn decide(&mut self, _: &mut LoopbackOperations, plan: &Plan) -> Decision {
        self.conditions.decide_by(&Tuning::ethernet(), plan.kind.of_protocol(), &plan.shape(), None)
    }

    fn begin_collective(
        engine: &mut Engine<Self>,
        posted: Posted<Collective>,
        now_ps: u64,
    ) -> std::result::Result<(), Box<Failed>> {
        let (table, is_ordered) = (Tuning::between_pairs(), engine.ops.core.config.reproducible);
        let conditions = &engine.carrier.conditions;
        let decision = conditions.decide_collective(table, &posted.plan, is_ordered, &Densities::default());
        Self::begin(engine, posted.map(Task::Collective), decision, now_ps)
    }

    fn begin_direct(
        engine: &mut Engine<Self>,
        posted: Posted,
        decision: Decision,
        now_ps: u64,
    ) -> std::result::Result<(), Box<Failed>> {
        Self::begin(engine, posted.map(Task::Blocks), decision, now_ps)
    }

    fn prepare(&mut self, _: &mut LoopbackOperations, posted: &mut Posted, _: &Decision) -> Result<RankSet> {
        posted.place_own_block()?;
        let mut roots = posted.plan.roots();
        roots.remove(posted.plan.own());
        Ok(roots)
    }

    fn arm(&mut self, ops: &mut LoopbackOperations, now_ps: u64) -> Result<bool> {
        let Operations { current: Some(operation), core, .. } = ops else { return Ok(false) };
        let Order { chains, turn, .. } = order(&operation.plan, &core.config, core.place.rank());
        let (foreign, is_alone) = (operation.plan.foreign_pieces(), operation.stream.is_empty());
        operation.report.phases.0.armed_ps = Some(now_ps);
        self.came_ps = now_ps;
        let Operations { current: Some(operation), core, .. } = &*ops else { return Ok(false) };
        let descriptor = ops.describe(operation, &core.config, chains);
        ops.protocol.start((descriptor, turn), Availability::default(), foreign);
        ops.protocol.handle(now_ps, Event::Armed);
        ops.protocol.handle(now_ps, Event::OwnBlock);
        if is_alone {
            ops.protocol.handle(now_ps, Event::Received);
        }
        Ok(true)
    }

    fn receive(&mut self, ops: &mut LoopbackOperations, now_ps: u64) -> Result<bool> {
        let mut packets = std::mem::take(&mut self.held);
        let held = packets.len();
        packets.extend(self.inbox.take());
        let come = packets.len();
        let held_now: VecDeque<_> = packets.into_iter().filter_map(|packet| self.take(ops, packet, now_ps)).collect();
        self.held = held_now;
        let moved = come > held || self.held.len() < held;
        if moved {
            self.came_ps = now_ps;
        }
        Ok(moved)
    }

    fn advance(engine: &mut Engine<Self>, mut moved: bool, now_ps: u64) -> Result<bool> {
        let Engine { carrier, ops, .. } = engine;
        // What has waited for the operation that has just begun.
        moved |= !carrier.held.is_empty() && carrier.receive(ops, now_ps)?;
        moved |= carrier.exchange(ops, now_ps);
        carrier.detect_gone(ops);
        let deadline_ps = ops.protocol.participant().deadline_ps().filter(|_| !ops.is_free());
        let Some(deadline_ps) = deadline_ps else { return Ok(moved) };
        // A block that has not come is not lost: its root's thread has not been run. That has a bound, too.
        let quiet_ps = now_ps.saturating_sub(carrier.came_ps);
        let comes = quiet_ps < ps(ops.core.config.barrier_timeout)
            && ops.current.as_ref().is_some_and(|operation| operation.state.is_active())
            && ops.protocol.participant().ready_ps().is_some()
            && ops.current.as_ref().is_some_and(|operation| !operation.stream.is_empty());
        let is_due = now_ps >= deadline_ps && !comes;
        if comes {
            ops.protocol.handle(now_ps, Event::Progressed);
        } else if is_due {
            ops.protocol.handle(now_ps, Event::Time);
        }
        Ok(moved || is_due)
    }

    fn send_message(
        &mut self,
        ops: &mut LoopbackOperations,
        to: u32,
        _: u32,
        (message, data): (Encoded, Vec<u8>),
    ) -> Result<()> {
        let (from, bytes) = (ops.core.place.rank(), [message.as_bytes(), &data].concat());
        self.inbox.send(to, Packet::Message { from, bytes });
        ops.protocol.give_back(data);
        Ok(())
    }

    fn multicast(&mut self, ops: &mut LoopbackOperations, now_ps: u64) -> Result<()> {
        let Operations { current: Some(operation), core, protocol, .. } = ops else { return Ok(()) };
        let (from, number, block) = (core.place.rank(), operation.number, operation.plan.block(core.place.rank()));
        let start = block.offset as usize;
        let bytes = operation.receive.bytes().get(start..start + block.bytes as usize).unwrap_or_default();
        let bytes: Arc<[u8]> = bytes.into();
        for to in (0..core.place.ranks()).filter(|rank| *rank != from) {
            self.inbox.send(to, Packet::Block { from, number, bytes: Arc::clone(&bytes) });
        }
        let phases = &mut operation.report.phases.0;
        (phases.sending_ps, phases.sent_ps) = (Some(now_ps), Some(now_ps));
        protocol.handle(now_ps, Event::Sent);
        Ok(())
    }

    fn read(&mut self, ops: &mut LoopbackOperations, from: u32, _: &PieceSet, _: Option<Availability>) -> Result<()> {
        // Nothing is lost here.
        ops.protocol.broken(from, FailureCode::ProtocolViolation);
        Ok(())
    }
}
