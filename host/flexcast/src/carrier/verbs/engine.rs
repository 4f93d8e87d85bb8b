//! Engine of a communicator over an RDMA card without its DPA: carries out what the protocol decides.
//!
//! An operation is posted ([`Engine::begin`]), receives and sends as the queues allow ([`Engine::advance`]), and gives
//! its buffers back when the protocol releases it or has failed ([`end`]).

mod acknowledge;
mod between_pairs;
mod end;
mod flow;
mod receive;
mod send;
mod state;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::Availability;
use flexcast_proto::{Algorithm, Alpha, Cause, CollectiveIds, FailureCode, PieceSet, RankInfo, StallWindow};

use self::acknowledge::{Past, Repeats};
use self::flow::Flow;
use self::receive::Arrivals;
use self::send::Outgoing;
use super::card::VerbsCard;
use super::queues::{Queues, Root};
use crate::carrier::control::{Control, Read};
use crate::carrier::cpu::incoming::Incoming;
use crate::carrier::cpu::operation::State;
use crate::carrier::cpu::watch;
use crate::carrier::cpu::window::{Waits, Window};
use crate::carrier::datapath::Datapath as _;
use crate::carrier::pairs::{PairEngine as _, Pairs, SetupOperation};
use crate::engine::Core;
use crate::engine::conversation::{Conversation, Next};
use crate::engine::descriptor::descriptor;
use crate::engine::eager::Gathered;
use crate::engine::notice::{Notice, Step};
use crate::engine::{Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::config::{Config, Derived, ps};
use crate::op::decision::Decision;
use crate::op::outcome::Failed;
use crate::op::selection::Selection;
use crate::op::stream::Stream;
use crate::plan::chains::{Order, order};
use crate::plan::tuner::{Conditions, Losses};

/// The operation under way: reads are counted by the connections.
type Running = crate::carrier::cpu::operation::Running<()>;

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;
/// Chunks by which others may overtake one that is not lost, at first: a multicast tree keeps the order.
const REORDER_CHUNKS: u32 = 1;
/// Waits for acknowledgements, many times what a round trip takes: who has received nothing for a while repeats them.
const WAITS: Waits = Waits { first_ps: 1_000_000_000, longest_ps: 8_000_000_000, most: 4 };
/// Everything that there is of an operation: it has one subgroup.
const ALL: Stream = Stream { subgroup: 0, peer: None };

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

/// A communicator's operations, and what carries them out.
pub(crate) struct Engine {
    queues: Queues,
    control: Control,
    /// Collectives between pairs of ranks.
    pairs: Pairs,
    /// Room for the blocks of eager operations.
    gathered: Gathered,
    // Buffers come after the queues by which the card reaches them.
    current: Option<Running>,
    core: Core,
    /// Buffers that the card may still reach.
    lost: Vec<Buffer>,
    card: VerbsCard,
    derived: Derived,
    conditions: Conditions,
    conversation: Conversation,
    roots: Vec<Root>,
    slots: u32,
    incoming: Incoming,
    arrivals: Arrivals,
    flow: Flow,
    window: Window,
    repeats: Repeats,
    /// The last operation that was multicast: roots of it may still send.
    past: Past,
    outgoing: Outgoing,
    ids: CollectiveIds,
    /// That of the operation under way, if it is multicast.
    collective_id: Option<u32>,
    alpha: Alpha,
    stall: StallWindow,
    losses: Losses,
    statistics: Statistics,
    sent: SendReport,
    /// When the operation under way failed.
    failed_ps: u64,
}

impl Engine {
    pub(super) fn new(
        card: VerbsCard,
        place: RankInfo,
        id: u64,
        (config, derived): (Config, Derived),
        links: Links,
    ) -> Self {
        let Links { queues, control, pairs, roots, slots } = links;
        let mut conversation = Conversation::new(place, FIRST_OPERATION, config.eager_bytes.into());
        conversation.connect(id);
        let conditions = Conditions {
            selection: Selection::Multicast,
            ranks: place.ranks(),
            link_gbit_per_s: config.link_gbit_per_s,
            receive_threads: 1,
            chunk_bytes: config.chunk_bytes,
            mtu_bytes: card.device().port().mtu_bytes(),
            staged: false,
            eager_bytes: conversation.eager_bytes(),
            direct: false,
        };
        Self {
            arrivals: Arrivals::new(card.chunk_ps()),
            window: Window::new(place, 1, WAITS),
            ids: CollectiveIds::new(derived.layout, ps(config.packet_lifetime)),
            alpha: Alpha::new(config.overheads.in_ps()),
            stall: StallWindow::new(ps(config.overheads.cutoff_slack)),
            losses: Losses::default(),
            queues,
            control,
            pairs,
            gathered: Gathered::default(),
            current: None,
            core: Core::new(place, id, config),
            lost: Vec::new(),
            card,
            derived,
            conditions,
            conversation,
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
            failed_ps: 0,
        }
    }

    /// Makes a posted operation the current one, and begins it. Returns whether it could: not while packets of all
    /// collective ids may still arrive.
    fn begin(&mut self, posted: Posted<Task>, now_ps: u64) -> Result<bool, Box<Failed>> {
        let Posted { request, plan, send, receive, posted_ps } = posted;
        match plan {
            Task::Blocks(plan) => self.begin_blocks(Posted { request, plan, send, receive, posted_ps }, None, now_ps),
            Task::Collective(plan) => self.begin_collective(Posted { request, plan, send, receive, posted_ps }, now_ps),
        }
    }

    /// Takes a collective id for the operation that begins. False while packets of all of them may still arrive.
    fn take_id(&mut self, now_ps: u64) -> bool {
        self.collective_id = self.ids.take(now_ps).ok();
        self.collective_id.is_some()
    }

    /// Gives the collective id of the operation under way back, if it has one.
    pub(super) fn free_id(&mut self, now_ps: u64) {
        if let Some(id) = self.collective_id.take() {
            self.ids.release(id, now_ps);
        }
    }

    /// The same for an operation of blocks; `setup`: what it is run for.
    fn begin_blocks(
        &mut self,
        mut posted: Posted,
        setup: Option<Box<SetupOperation>>,
        now_ps: u64,
    ) -> Result<bool, Box<Failed>> {
        let refused = |setup, failed: Box<Failed>| Err(SetupOperation::failed(setup, *failed));
        let decision = match &setup {
            Some(setup) if setup.is_barrier() => Decision::of(Algorithm::Eager),
            _ => self.conditions.decide(&posted.plan.shape(), false),
        };
        if decision.algorithm() == Algorithm::Multicast && !self.take_id(now_ps) {
            if setup.is_some() {
                // Whoever begins one has asked for room at this time (`has_room`).
                let next = "wait for packet_lifetime, or leave more bits to the id (psn_bits)";
                let error = Error::Budget { what: "collective ids", needed: 1, limit: 0, next };
                return refused(setup, posted.refuse(error));
            }
            self.core.waiting.push_front(posted.map(Task::Blocks));
            return Ok(false);
        }
        if let Err(error) = posted.place_own_block() {
            self.free_id(now_ps);
            return refused(setup, posted.refuse(error));
        }
        let operation = self.conversation.participant().operation();
        let mut running = Running::new(posted, decision, operation, now_ps, ());
        running.setup = setup;
        match self.arm(&mut running, now_ps) {
            Ok(()) => {
                running.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
                self.current = Some(running);
                Ok(true)
            }
            Err(error) => {
                self.free_id(now_ps);
                let Running { send, receive, report, setup, .. } = running;
                refused(setup, Box::new(Failed { error, send, receive: Some(receive), report }))
            }
        }
    }

    /// Gives an operation to the protocol, whose receives are posted.
    fn arm(&mut self, running: &mut Running, now_ps: u64) -> Result<()> {
        let (plan, algorithm) = (&running.plan, running.algorithm);
        let Order { chains, turn, .. } = order(plan, &self.core.config, self.core.place.rank());
        let mut descriptor = descriptor(plan, &self.core.config, &self.alpha, running.operation, (chains, algorithm));
        if let Some(setup) = &running.setup {
            descriptor.summary = setup.summary;
        }
        self.control.expect_losses(self.losses.are_expected());
        self.losses.begin();
        if algorithm == Algorithm::Eager {
            let mut gathered = std::mem::take(&mut self.gathered);
            gathered.begin(plan, &running.receive)?;
            self.conversation.start_eager(descriptor, gathered, now_ps);
            return Ok(());
        }
        self.flow = Flow::new(plan, &self.core.config, self.slots)?;
        running.window_chunks = self.flow.window_chunks();
        self.incoming.restart(plan, &running.pieces, self.core.config.chunk_bytes)?;
        self.window.restart(running.window_chunks);
        self.repeats = Repeats::default();
        let region = running.receive.region()?;
        let here = Availability { address: region.addr().get(), rkey: region.rkey() };
        self.conversation.start((descriptor, turn), here, plan.foreign_pieces());
        self.conversation.notify(now_ps, Notice::Armed);
        self.conversation.notify(now_ps, Notice::OwnBlock);
        Ok(())
    }

    fn move_on(&mut self) -> Result<bool> {
        self.core.check_fault()?;
        let now_ps = self.card.now_ps();
        let mut moved = self.poll_control(now_ps)?;
        moved |= self.receive_data(now_ps)?;
        if let Some(posted) = self.core.next(self.is_free()) {
            let request = posted.request;
            match self.begin(posted, now_ps) {
                Ok(begun) => moved |= begun,
                Err(failed) => {
                    self.core.requests.finish(request, Err(failed));
                    self.end_all(Cause::Device(FailureCode::NotStarted));
                    moved = true;
                }
            }
        }
        moved |= self.poll_own(now_ps)?;
        moved |= self.poll_pairs(now_ps);
        self.repeat(now_ps)?;
        moved |= self.look(now_ps);
        moved |= self.poll_time(now_ps);
        self.do_steps(now_ps)?;
        moved |= self.send_some(now_ps)?;
        self.do_steps(now_ps)?;
        moved |= self.release(now_ps)?;
        moved |= self.wind_up(now_ps)?;
        moved |= self.end_pairs(now_ps)?;
        self.control.flush(self.conversation.participant().awaited(), now_ps)?;
        Ok(moved)
    }

    /// Takes what peers have said, and what has been read of them.
    fn poll_control(&mut self, now_ps: u64) -> Result<bool> {
        let Self { control, conversation, .. } = self;
        control.poll(now_ps, |_, event| {
            conversation.take_note(event);
            Ok(())
        })
    }

    /// Notifies the protocol of what has come and of what is lost. Returns whether that is news.
    fn look(&mut self, now_ps: u64) -> bool {
        if self.over_ps().is_some_and(|over_ps| now_ps >= over_ps)
            && let Some(running) = &self.current
        {
            self.incoming.end_others(&running.pieces, self.core.place.right());
        }
        let Self { current, incoming, conversation, .. } = self;
        current.as_mut().is_some_and(|running| watch::look(running, incoming, conversation, receive::QUIET_PS, now_ps))
    }

    /// When multicast counts as over because it is for the right neighbour, to which nothing comes that does not come
    /// here. Of its own block that says nothing.
    fn over_ps(&self) -> Option<u64> {
        let running = self.current.as_ref().filter(|running| running.state.is_active() && !running.given_up)?;
        let is_over = self.conversation.participant().is_over_for_neighbour();
        let waits = self.incoming.remaining() > 0 && !self.incoming.have_others_ended() && self.arrivals.is_empty();
        let watch = running.watch.filter(|_| is_over && waits && running.algorithm == Algorithm::Multicast)?;
        Some(watch.since_ps().saturating_add(receive::QUIET_PS))
    }

    fn poll_time(&mut self, now_ps: u64) -> bool {
        let Self { current, incoming, conversation, stall, .. } = self;
        let with = (*stall, send::STUCK_PS);
        current.as_mut().is_some_and(|running| watch::poll_time(running, incoming, conversation, with, now_ps))
    }

    /// Does what the protocol asks for.
    fn do_steps(&mut self, now_ps: u64) -> Result<()> {
        while let Some(next) = self.conversation.next() {
            match next {
                Next::Say { to, message, data, .. } => self.control.send(to, message.as_bytes(), data)?,
                Next::Do(Step::Multicast) => self.begin_to_send(now_ps),
                Next::Do(Step::Read { from, pieces, at }) => self.fetch(from, &pieces, at)?,
                Next::Do(Step::Release) => {
                    let state = self.current.as_mut().map(|running| &mut running.state);
                    let state = state.or(self.pairs.exchange.as_mut().map(|exchange| &mut exchange.state));
                    state.into_iter().for_each(State::release);
                }
                Next::Do(Step::SendsFinished) => {}
                Next::Do(Step::Fail(failure)) => self.fail(now_ps, failure),
            }
        }
        if let Some(running) = self.current.as_mut() {
            running.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
            self.conversation.note(now_ps, &mut running.report);
        }
        if let Some(exchange) = self.pairs.exchange.as_mut() {
            exchange.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
            self.conversation.note(now_ps, &mut exchange.report);
        }
        Ok(())
    }

    /// Begins to read what is missing of pieces.
    fn fetch(&mut self, from: u32, pieces: &PieceSet, at: Option<Availability>) -> Result<()> {
        let Some(running) = self.current.as_mut() else { return Ok(()) };
        let missing = self.incoming.missing(&running.plan, &running.pieces, pieces)?;
        let groups = missing.groups(&running.plan, &running.pieces, pieces);
        if at.is_none() && groups.iter().any(|(_, runs)| !runs.is_empty()) {
            tracing::error!(from, "it has not said where what is missing can be read");
            self.conversation.broken(from, FailureCode::ProtocolViolation);
            return Ok(());
        }
        let Availability { address, rkey } = at.unwrap_or_default();
        for (group, runs) in groups {
            let Some(tag) = group.first() else { continue };
            self.conversation.fetch(group, runs.len());
            running.report.reads += runs.len() as u64;
            running.report.recovered_bytes += runs.iter().map(|run| run.bytes).sum::<u64>();
            for run in runs {
                let local = running.receive.region()?.slice(run.offset, run.bytes as u32)?;
                let remote_addr = address.wrapping_add(run.offset);
                self.control.read(Read { from, local, remote_addr, rkey, tag })?;
            }
        }
        running.report.recovered_chunks += missing.len() as u64;
        Ok(())
    }
}
