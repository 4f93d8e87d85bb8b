//! Carrier of a communicator over an RDMA card without its DPA: this process polls the queues.

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{Algorithm, Cause, CollectiveIds, FailureCode, PieceSet, RankInfo, StallWindow};

use super::acknowledge::{Past, Repeats};
use super::endpoint::VerbsEndpoint;
use super::flow::Flow;
use super::queues::{Queues, Root};
use super::receive::{self, Arrivals};
use super::send::{self, Outgoing};
use crate::carrier::control::{Control, Read};
use crate::carrier::cpu::incoming::Incoming;
use crate::carrier::cpu::operation::Stream as CpuStream;
use crate::carrier::cpu::watch;
use crate::carrier::cpu::window::{Waits, Window};
use crate::carrier::pairs::{self, PairCarrier, Pairs, SetupOperation, Work};
use crate::engine::carrier::{LetGo, Withdrawn};
use crate::engine::conversation::Conversation;
use crate::engine::descriptor::activations_ps;
use crate::engine::event::Event;
use crate::engine::{Admission, Carrier, Core, Engine, Exchange, Operation, Operations, Posted, State};
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::{Config, Derived, ps};
use crate::op::decision::Decision;
use crate::op::outcome::{Failed, Outcome};
use crate::op::selection::Selection;
use crate::op::stream::Stream;
use crate::plan::Plan;
use crate::plan::chains::{Order, order};
use crate::plan::tuner::Conditions;

/// Operations of a communicator over an RDMA card: the connections count reads.
pub(super) type VerbsOperations = Operations<VerbsCarrier>;

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;
/// Chunks by which others may overtake one that is not lost, at first: a multicast tree keeps the order.
const REORDER_CHUNKS: u32 = 1;
/// Waits for acknowledgements, many times what a round trip takes: who has received nothing for a while repeats them.
const WAITS: Waits = Waits { first_ps: 1_000_000_000, longest_ps: 8_000_000_000, most: 4 };
/// Everything that there is of an operation: it has one subgroup.
pub(super) const ALL: Stream = Stream { subgroup: 0, peer: None };

/// What connects a communicator with its peers.
pub(super) struct Links {
    pub(super) queues: Queues,
    pub(super) control: Control,
    pub(super) pairs: Pairs,
    /// Where each rank gets acknowledgements.
    pub(super) roots: Vec<Root>,
    /// The least that any rank has receives.
    pub(super) slots: u32,
}

/// Queues of a communicator, and what goes through them.
pub(crate) struct VerbsCarrier {
    pub(super) queues: Queues,
    pub(super) control: Control,
    /// Collectives between pairs of ranks.
    pub(super) pairs: Pairs,
    pub(super) card: VerbsEndpoint,
    pub(super) derived: Derived,
    pub(super) conditions: Conditions,
    pub(super) roots: Vec<Root>,
    pub(super) slots: u32,
    pub(super) incoming: Incoming,
    pub(super) arrivals: Arrivals,
    pub(super) flow: Flow,
    pub(super) window: Window,
    pub(super) repeats: Repeats,
    /// The last operation that was multicast: roots of it may still send.
    pub(super) past: Past,
    pub(super) outgoing: Outgoing,
    pub(super) ids: CollectiveIds,
    /// That of the operation under way, if it is multicast.
    pub(super) collective_id: Option<u32>,
    pub(super) statistics: Statistics,
    pub(super) sent: SendReport,
}

impl VerbsCarrier {
    /// The engine of rank `place` in communicator `id`.
    pub(super) fn engine(
        card: VerbsEndpoint,
        place: RankInfo,
        id: u64,
        (config, derived): (Config, Derived),
        links: Links,
    ) -> Engine<Self> {
        let Links { queues, control, pairs, roots, slots } = links;
        let mut conversation = Conversation::new(place, FIRST_OPERATION, config.eager_bytes.into());
        conversation.connect(id);
        let mtu_bytes = card.device().port().mtu_bytes();
        let conditions = Conditions {
            selection: Selection::Multicast,
            ..Conditions::new(&config, place.ranks(), mtu_bytes, conversation.eager_bytes())
        };
        let carrier = Self {
            arrivals: Arrivals::new(card.device().work_ps(flexio::HostWork::Datagram)),
            window: Window::new(place, 1, WAITS),
            ids: CollectiveIds::new(derived.layout, ps(config.packet_lifetime)),
            queues,
            control,
            pairs,
            card,
            derived,
            conditions,
            roots,
            slots,
            incoming: Incoming::new(REORDER_CHUNKS),
            flow: Flow::default(),
            repeats: Repeats::default(),
            past: Past::default(),
            outgoing: Outgoing::default(),
            collective_id: None,
            statistics: Statistics::default(),
            sent: SendReport::default(),
        };
        let stall = StallWindow::new(ps(config.overheads.cutoff_slack));
        Engine::new(carrier, Core::new(place, id, config), conversation, stall)
    }

    /// Gives the collective id of the operation under way back, if it has one.
    fn free_id(&mut self, now_ps: u64) {
        if let Some(id) = self.collective_id.take() {
            self.ids.release(id, now_ps);
        }
    }

    /// When multicast counts as over because it is for the right neighbour, to which nothing comes that does not come
    /// here. Of its own block that says nothing.
    fn over_ps(&self, ops: &VerbsOperations) -> Option<u64> {
        let operation = ops.current.as_ref().filter(|operation| operation.state.is_active())?;
        let stream = &operation.stream;
        let is_over = ops.protocol.participant().is_over_for_neighbour() && !stream.given_up;
        let waits = self.incoming.remaining() > 0 && !self.incoming.have_others_ended() && self.arrivals.is_empty();
        let watch = stream.watch.filter(|_| is_over && waits && operation.algorithm == Algorithm::Multicast)?;
        Some(watch.since_ps().saturating_add(receive::QUIET_PS))
    }

    /// Notifies the protocol of what has come and of what is lost. Returns whether that is news.
    fn detect_losses(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> bool {
        if self.over_ps(ops).is_some_and(|over_ps| now_ps >= over_ps)
            && let Some(operation) = &ops.current
        {
            self.incoming.end_others(&operation.pieces, ops.core.place.right());
        }
        watch::detect_losses(ops, &mut self.incoming, receive::QUIET_PS, now_ps)
    }

    /// A queue pair for datagrams has failed.
    pub(super) fn fail_datagrams(ops: &mut VerbsOperations, now_ps: u64, status: u32) {
        tracing::error!(status, reason = %FailureCode::of_completion(status), "a queue pair for datagrams has failed");
        ops.fail_here(now_ps, Cause::Device(FailureCode::Datagrams));
    }
}

impl Carrier for VerbsCarrier {
    type Protocol = Conversation;
    type Purpose = Option<Box<SetupOperation>>;
    type Stream = CpuStream<()>;
    type Work = Work;

    fn now_ps(&self) -> u64 {
        self.card.now_ps()
    }

    fn admission(&self, _: &Config) -> Admission {
        let psn_bits = self.derived.layout.psn_bits();
        let most_chunks = (u64::from(self.derived.bitmap_words) * 64).min(1 << psn_bits);
        Admission { registered: true, collectives: Ok(()), streams: vec![ALL], psn_bits, most_chunks }
    }

    fn decide(&mut self, _: &mut VerbsOperations, plan: &Plan) -> Decision {
        self.conditions.decide(&plan.shape(), false)
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
        // It is not chosen without connections (`conditions.direct`).
        engine.begin_blocks(posted, decision, None, now_ps)
    }

    fn prepare(&mut self, ops: &mut VerbsOperations, posted: &mut Posted, _: &Decision) -> Result<CpuStream<()>> {
        posted.place_own_block()?;
        self.control.expect_losses(ops.losses.are_expected());
        ops.losses.begin();
        Ok(CpuStream::default())
    }

    fn withdraw(&mut self, _: &mut Operation<Self>) -> Withdrawn {
        self.free_id(self.card.now_ps());
        Withdrawn::Clean
    }

    fn arm(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<bool> {
        let Some(mut operation) = ops.current.take() else { return Ok(false) };
        let armed = self.arm_operation(ops, &mut operation, now_ps);
        ops.current = Some(operation);
        armed
    }

    fn receive(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<bool> {
        let conversation = &mut ops.protocol;
        let moved = self.control.poll(now_ps, |_, event| {
            conversation.handle(now_ps, event);
            Ok(())
        })?;
        Ok(self.receive_data(ops, now_ps)? || moved)
    }

    fn advance(engine: &mut Engine<Self>, mut moved: bool, now_ps: u64) -> Result<bool> {
        moved |= engine.start_deferred(now_ps);
        let Engine { carrier, ops, .. } = engine;
        moved |= carrier.poll_own(ops, now_ps)?;
        moved |= pairs::poll(engine, now_ps);
        let Engine { carrier, ops, .. } = engine;
        carrier.repeat(ops, now_ps)?;
        moved |= carrier.detect_losses(ops, now_ps);
        moved |= watch::poll_time(ops, &mut carrier.incoming, send::STUCK_PS, now_ps);
        Ok(moved)
    }

    fn send_message(
        &mut self,
        _: &mut VerbsOperations,
        to: u32,
        _: u32,
        (message, data): (Encoded, Vec<u8>),
    ) -> Result<()> {
        self.control.send(to, message.as_bytes(), data)
    }

    fn multicast(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<()> {
        self.begin_to_send(ops, now_ps);
        Ok(())
    }

    fn read(
        &mut self,
        ops: &mut VerbsOperations,
        from: u32,
        pieces: &PieceSet,
        at: Option<Availability>,
    ) -> Result<()> {
        let Some(operation) = ops.current.as_mut() else { return Ok(()) };
        let missing = self.incoming.missing(&operation.plan, &operation.pieces, pieces)?;
        let groups = missing.groups(&operation.plan, &operation.pieces, pieces);
        if at.is_none() && groups.iter().any(|(_, runs)| !runs.is_empty()) {
            tracing::error!(from, "it has not said where what is missing can be read");
            ops.protocol.broken(from, FailureCode::ProtocolViolation);
            return Ok(());
        }
        let Availability { address, rkey } = at.unwrap_or_default();
        for (group, runs) in groups {
            let Some(tag) = group.first() else { continue };
            ops.protocol.fetch(group, runs.len());
            operation.report.reads += runs.len() as u64;
            operation.report.recovered_bytes += runs.iter().map(|run| run.bytes).sum::<u64>();
            for run in runs {
                let local = operation.receive.region()?.slice(run.offset, run.bytes as u32)?;
                let remote_addr = address.wrapping_add(run.offset);
                self.control.read(Read { from, local, remote_addr, rkey, tag })?;
            }
        }
        operation.report.recovered_chunks += missing.len() as u64;
        Ok(())
    }

    fn send_data(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<bool> {
        self.send_some(ops, now_ps)
    }

    fn flush(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<()> {
        self.control.flush(ops.protocol.participant().awaited(), now_ps)
    }

    fn may_end(&mut self, ops: &mut VerbsOperations, _: u64) -> Result<bool> {
        // A chunk that came late may have made a piece whole that is still being read. And what this rank has sent of
        // it is with the card before the caller may stay away.
        let sends = ops.current.as_ref().is_some_and(|operation| operation.stream.sending.is_some());
        Ok(!sends && !self.control.reading() && !self.control.is_waiting())
    }

    fn ended(&mut self, ops: &mut VerbsOperations, operation: &mut Operation<Self>, now_ps: u64) -> Result<()> {
        if operation.algorithm != Algorithm::Eager {
            let steps_ps = activations_ps(&operation.plan, &ops.core.config);
            ops.observe(operation, steps_ps, operation.stream.watch);
            self.pass(operation);
            ops.losses.note(operation.report.recovered_chunks > 0 || operation.report.fetches_served > 0);
        }
        operation.report.late_chunks = self.incoming.late();
        self.free_id(now_ps);
        Ok(())
    }

    fn finish(engine: &mut Engine<Self>, operation: Operation<Self>, now_ps: u64) {
        pairs::finish(engine, operation, now_ps);
    }

    fn has_let_go(&mut self, _: &mut VerbsOperations, _: u64) -> Result<LetGo> {
        self.control.cancel_reads();
        // Packets of it may arrive for as long as the communicator lives.
        self.collective_id = None;
        // Others must know why this rank goes before they see that it has gone.
        let is_over =
            self.queues.completed() == self.queues.posted() && !self.control.reading() && self.control.is_drained();
        Ok(if is_over { LetGo::Yes } else { LetGo::NotYet })
    }

    fn renew(&mut self, buffer: Buffer) -> Result<Buffer> {
        buffer.renewed(self.card.pd())
    }

    fn may_end_exchange(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> bool {
        pairs::may_end(ops, (self.control.is_waiting(), self.control.is_drained()), now_ps)
    }

    fn end_exchange(&mut self, ops: &mut VerbsOperations, exchange: Exchange<Self>, _: u64) -> Result<Outcome> {
        self.pairs.end(exchange, &ops.core.requests)
    }

    fn deadline_ps(&self, ops: &VerbsOperations) -> Option<u64> {
        let idle_ps = [self.control.probe_ps(), self.arrivals.done_ps()].into_iter().flatten().min();
        let Some(operation) = ops.current.as_ref() else {
            let of_exchange_ps = ops.exchange.as_ref().map(|exchange| self.pairs.deadline_ps(exchange));
            return idle_ps.into_iter().chain(of_exchange_ps).min();
        };
        if operation.state == State::Deferred {
            // It waits for a collective id, which nothing announces.
            return Some(0);
        }
        let stall_ps = watch::stall_ps(operation, &self.incoming, ops.stall);
        let quiet_ps = watch::quiet_ps(operation, &self.incoming, receive::QUIET_PS);
        let own = ops.core.place.rank();
        let waits = operation.stream.sending.is_some_and(|sending| match sending.sent < sending.chunks {
            true => self.window.room(sending.sent) == 0,
            false => self.flow.waits(own) && !self.outgoing.is_announced(),
        });
        let window_ps = waits.then(|| self.window.deadline_ps().unwrap_or(0));
        let own_ps = Some(stall_ps.unwrap_or(operation.deadline_ps));
        let all = [own_ps, quiet_ps, window_ps, self.over_ps(ops), self.repeat_ps(ops)];
        all.into_iter().flatten().chain(idle_ps).min()
    }

    fn may_be_left(&self, _: &VerbsOperations) -> bool {
        !self.control.is_restarting()
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        Ok(self.statistics)
    }

    fn send_statistics(&self) -> Result<SendReport> {
        Ok(self.sent)
    }
}

impl VerbsCarrier {
    /// Gives an operation to the protocol, whose receives are posted. False while packets of all collective ids may
    /// still arrive.
    fn arm_operation(
        &mut self,
        ops: &mut VerbsOperations,
        operation: &mut Operation<Self>,
        now_ps: u64,
    ) -> Result<bool> {
        let config = &ops.core.config;
        self.flow = Flow::new(&operation.plan, config, self.slots)?;
        let Ok(id) = self.ids.take(now_ps) else { return Ok(false) };
        self.collective_id = Some(id);
        let Order { chains, turn, .. } = order(&operation.plan, config, ops.core.place.rank());
        let descriptor = ops.describe(operation, config, chains);
        operation.stream.window_chunks = self.flow.window_chunks();
        self.incoming.restart(&operation.plan, &operation.pieces, config.chunk_bytes)?;
        self.window.restart(operation.stream.window_chunks);
        self.repeats = Repeats::default();
        let region = operation.receive.region()?;
        let here = Availability { address: region.addr().get(), rkey: region.rkey() };
        ops.protocol.start((descriptor, turn), here, operation.plan.foreign_pieces());
        ops.protocol.handle(now_ps, Event::Armed);
        ops.protocol.handle(now_ps, Event::OwnBlock);
        operation.report.phases.0.armed_ps = Some(now_ps);
        Ok(true)
    }
}

impl PairCarrier for VerbsCarrier {
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
