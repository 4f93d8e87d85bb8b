//! Engine of a communicator over an Ethernet interface: carries out what the protocol decides.
//!
//! An operation is posted ([`Engine::begin`]), receives and sends as the sockets allow ([`Engine::advance`]), and gives
//! its buffers back when the protocol releases it or has failed.

mod delivery;
mod direct;
mod external;
mod fanout;
mod inbox;
mod operation;
mod receive;
mod send;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::Availability;
use flexcast_proto::{
    Algorithm, Alpha, Cause, Disagreement, Failure, FailureCode, PieceSet, RankInfo, StallWindow, WaitedFor,
};

use self::delivery::Reception;
use self::direct::Exchanging;
use self::inbox::Inbox;
use self::operation::{Running, State};
use self::receive::{Landings, Overflows};
use super::datagram::{Codec, HEADER_BYTES, Secret};
use super::fanout::{Bell, Fanout, RING_BYTES};
use super::interface::Interface;
use super::pace::Pace;
use super::part::{MOST_CHUNKS, PSN_BITS};
use super::path::Probing;
use super::sockets::{self, RUN_BYTES, Sockets};
use super::tap::Tap;
use super::waiter::{Door, SocketWaiter};
use super::workers::Workers;
use crate::carrier::card::{Card, Kind};
use crate::carrier::cpu::incoming::Incoming;
use crate::carrier::cpu::stripes::Stripes;
use crate::carrier::cpu::watch;
use crate::carrier::cpu::window::{Waits, Window};
use crate::carrier::datapath::Datapath;
use crate::engine::Core;
use crate::engine::conversation::{Conversation, Next};
use crate::engine::descriptor::descriptor;
use crate::engine::eager::Gathered;
use crate::engine::notice::{Notice, Step};
use crate::engine::{Admission, Posted, Task};
use crate::error::{Error, Result};
use crate::mesh::external::KnownAggregators;
use crate::mesh::{self, Interest, Mesh, Read};
use crate::op::chain_mapping::ChainMapping;
use crate::op::collective::Collective;
use crate::op::config::{Config, ps};
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed};
use crate::op::report::MessageCounts;
use crate::op::sparse_cost::Densities;
use crate::op::stream::Stream;
use crate::op::tuning::Tuning;
use crate::p2p::messages::Spare;
use crate::p2p::messages::sparse;
use crate::plan::Plan;
use crate::plan::chains::{Order, order};
use crate::plan::tuner::{Conditions, Note};

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;
/// Chunks by which others may overtake one that is not lost, at first.
const REORDER_CHUNKS: u32 = 16;
/// Waits for acknowledgements: processes are not always run.
const WAITS: Waits = Waits { first_ps: 2_000_000_000, longest_ps: 64_000_000_000, most: u32::MAX };

/// Longest that the end of an operation waits until the system has taken what this rank has said.
const LINGER_PS: u64 = 1_000_000_000_000;

/// Tokens of the sockets; connections have their numbers.
const GROUP: u64 = 1 << 32;
const OWN: u64 = GROUP + 1;
/// Of where ranks connect.
const DOOR: u64 = GROUP + 2;
/// Of what wakes this rank for the datagrams that the ranks of its computer share.
const BELL: u64 = GROUP + 3;

/// What connects a communicator with its peers.
pub(crate) struct Links {
    pub(crate) sockets: Sockets,
    /// The ranks of this computer share what comes to the group, or the workers of this one do. There are several
    /// subgroups only with it.
    pub(crate) fanout: Option<Arc<Fanout>>,
    pub(crate) mesh: Mesh,
    /// The least that any rank's receive buffer holds, in bytes.
    pub(crate) receive_bytes: u64,
    /// Where each rank gets acknowledgements.
    pub(crate) peers: Vec<SocketAddr>,
    pub(crate) secret: Option<Secret>,
    /// That of rank 0.
    pub(crate) tuning: Tuning,
    /// Answers ranks that still probe paths.
    pub(crate) probing: Option<Probing>,
}

/// A communicator's operations, and what carries them out.
pub(crate) struct Engine {
    interface: Interface,
    core: Core,
    /// Its configuration with as many chains as ranks.
    at_once: Config,
    conditions: Conditions,
    /// What chooses algorithms.
    tuning: Tuning,
    conversation: Conversation,
    codec: Codec,
    sockets: Sockets,
    fanout: Option<Arc<Fanout>>,
    workers: Workers,
    /// Which subgroup a chunk goes to.
    stripes: Stripes,
    mesh: Mesh,
    external: KnownAggregators,
    /// Until when an operation that has failed waits for an aggregator's reason.
    reason_ps: Option<u64>,
    receive_bytes: u64,
    peers: Vec<SocketAddr>,
    waiter: SocketWaiter,
    /// Tokens of what can be read; kept for its room.
    ready: Vec<u64>,
    /// What is waited for on each connection.
    interests: Vec<Option<Interest>>,
    /// What decided of the frames that wait in connections, when they were last looked at.
    held_at: Option<(bool, u32, u32)>,
    incoming: Incoming,
    window: Window,
    pace: Pace,
    overflows: Overflows,
    /// A run of datagrams on its way, out or in; kept for its room.
    run: Vec<u8>,
    landing: Landings,
    tap: Option<Box<dyn Tap>>,
    /// The operation under way, if its blocks are multicast or ride on the barrier.
    current: Option<Running>,
    /// The operation under way, otherwise.
    exchanging: Option<Exchanging>,
    alpha: Alpha,
    stall: StallWindow,
    statistics: Statistics,
    sent: SendReport,
    /// The operation in which a neighbour has been named that does not answer reads.
    blamed_in: u32,
    /// Part of a message between two ranks has come since the last look.
    heard: bool,
    /// Room for the blocks of eager operations.
    gathered: Gathered,
    /// Memory of the last operation between pairs of ranks.
    spare: Spare,
    /// The same of sparse ones.
    spare_spots: sparse::Spare,
    /// What sparse AllReduces have found.
    densities: Densities,
    /// Whether multicast arrives.
    reception: Reception,
    /// Answers ranks that still probe paths; nothing else is done with it.
    _probing: Option<Probing>,
    /// Bytes of temporary memory that the last operations were long enough to have kept.
    spare_limit: usize,
    /// When an operation that is over ends although something that this rank has said waits.
    lingers_ps: Option<u64>,
}

impl Engine {
    pub(crate) fn new(
        interface: Interface,
        place: RankInfo,
        id: u64,
        config: Config,
        links: Links,
        waiter: SocketWaiter,
    ) -> Result<Self> {
        let Links { sockets, fanout, mesh, receive_bytes, peers, secret, tuning, probing } = links;
        let of_group = sockets.lane.descriptor();
        waiter.add(sockets.own_descriptor(), OWN)?;
        match &fanout {
            None => waiter.add(of_group, GROUP)?,
            Some(fanout) => {
                if let Some(bell) = fanout.bell() {
                    waiter.add(bell.as_fd(), BELL)?;
                }
                waiter.add_fanout(Arc::clone(fanout));
                if !fanout.has_all() {
                    waiter.add_shared(of_group, GROUP)?;
                }
            }
        }
        for door in mesh.doors() {
            waiter.add(door, DOOR)?;
        }
        let mut conversation = Conversation::new(place, FIRST_OPERATION, config.eager_bytes.into());
        conversation.connect(id);
        let conditions = Conditions {
            selection: config.selection(),
            ranks: place.ranks(),
            link_gbit_per_s: config.link_gbit_per_s,
            receive_threads: 1,
            chunk_bytes: config.chunk_bytes,
            mtu_bytes: interface.mtu_bytes(),
            staged: false,
            eager_bytes: conversation.eager_bytes(),
            direct: true,
        };
        let tap = interface.options().tap.as_ref().map(|make| make(place.rank(), place.ranks()));
        let codec = Codec::new(id, place.rank(), secret);
        let workers = match &fanout {
            Some(fanout) if !fanout.has_all() => {
                Workers::start(&sockets, fanout, (codec, tap.is_none()), &waiter, interface.address())?
            }
            _ => Workers::default(),
        };
        let stripe_chunks = sockets::most_of_run(HEADER_BYTES + config.chunk_bytes as usize);
        let stripes = Stripes::new(1 + workers.count() as u32, stripe_chunks as u32);
        let reception = Reception::new(interface.now_ps());
        let mut engine = Self {
            external: KnownAggregators::new(config.aggregators.len()),
            reason_ps: None,
            codec,
            window: Window::new(place, 1, WAITS),
            pace: Pace::new(config.pacing_gbit_per_s, config.link_gbit_per_s),
            overflows: Overflows::default(),
            alpha: Alpha::new(config.overheads.in_ps()),
            stall: StallWindow::new(ps(config.overheads.cutoff_slack)),
            at_once: config.clone().chains(place.ranks()),
            interface,
            core: Core::new(place, id, config),
            conditions,
            tuning,
            conversation,
            sockets,
            fanout,
            workers,
            stripes,
            mesh,
            receive_bytes,
            peers,
            waiter,
            ready: Vec::new(),
            interests: Vec::new(),
            held_at: None,
            incoming: Incoming::new(REORDER_CHUNKS).divided(stripes),
            run: vec![0; RUN_BYTES],
            landing: Landings::new(),
            tap,
            current: None,
            exchanging: None,
            statistics: Statistics::default(),
            sent: SendReport::default(),
            blamed_in: FIRST_OPERATION.wrapping_sub(1),
            heard: false,
            gathered: Gathered::default(),
            spare: Spare::default(),
            spare_spots: sparse::Spare::default(),
            densities: Densities::default(),
            reception,
            _probing: probing,
            spare_limit: 0,
            lingers_ps: None,
        };
        engine.watch_connections()?;
        Ok(engine)
    }

    /// Makes a posted operation the one under way, and begins it.
    fn begin(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        let decision = match &posted.plan {
            Task::Blocks(plan) => {
                let lost = self.lost_multicast();
                self.conditions.decide_by(&self.tuning, plan.kind.of_protocol(), &plan.shape(), lost)
            }
            Task::Collective(Collective::SparseAllreduce { .. }) if self.external.count() > 0 => {
                Decision::of(Algorithm::Sparse)
            }
            Task::Collective(collective) => self.conditions.decide_collective(
                &self.tuning,
                collective,
                self.core.config.reproducible,
                &self.densities,
            ),
        };
        let Posted { request, plan, send, receive, posted_ps } = posted;
        match plan {
            Task::Blocks(plan) if !decision.algorithm().is_direct() => {
                self.begin_blocks(Posted { request, plan, send, receive, posted_ps }, decision)
            }
            plan => self.begin_direct(Posted { request, plan, send, receive, posted_ps }, decision),
        }
    }

    /// Begins an operation whose blocks are multicast, or ride on the barrier.
    fn begin_blocks(&mut self, mut posted: Posted, decision: Decision) -> Result<(), Box<Failed>> {
        if let Err(error) = posted.place_own_block() {
            return Err(posted.refuse(error));
        }
        let note = match decision.algorithm() {
            Algorithm::Eager => Ok(Note::default()),
            _ => self.begin_reception(),
        };
        let note = match note {
            Ok(note) => note,
            Err(error) => return Err(posted.refuse(error)),
        };
        let (algorithm, armed_ps) = (decision.algorithm(), posted.posted_ps);
        let (window_chunks, operation) =
            (self.window_chunks(&posted.plan), self.conversation.participant().operation());
        let mut running = Running::new(posted, decision, operation, armed_ps, VecDeque::new());
        running.window_chunks = window_chunks;
        let now_ps = self.interface.now_ps();
        let config = self.config_of(&running.plan);
        let Order { chains, turn, .. } = order(&running.plan, config, self.core.place.rank());
        let number = running.operation;
        let descriptor = descriptor(&running.plan, config, &self.alpha, number, (chains, algorithm));
        if algorithm == Algorithm::Eager {
            let mut gathered = std::mem::take(&mut self.gathered);
            match gathered.begin(&running.plan, &running.receive) {
                Ok(()) => self.conversation.start_eager(descriptor, gathered, now_ps),
                Err(error) => {
                    let Running { send, receive, report, .. } = running;
                    return Err(Box::new(Failed { error, send, receive: Some(receive), report }));
                }
            }
        } else {
            let begun = self.incoming.restart(&running.plan, &running.pieces, self.core.config.chunk_bytes);
            if let Err(error) = begun {
                let Running { send, receive, report, .. } = running;
                return Err(Box::new(Failed { error, send, receive: Some(receive), report }));
            }
            self.fanout.iter().for_each(|fanout| fanout.join());
            self.window.restart(running.window_chunks);
            self.pace.begin();
            self.overflows = Overflows::since(self.sockets.overflowed());
            let foreign = running.plan.foreign_pieces();
            self.conversation.start_with_note((descriptor, turn), Availability::default(), foreign, note);
            self.conversation.notify(now_ps, Notice::Armed);
            self.conversation.notify(now_ps, Notice::OwnBlock);
        }
        running.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
        self.current = Some(running);
        Ok(())
    }

    /// The configuration with the chains that an operation takes: all roots multicast at once where all of it has room
    /// in every receive buffer, and nobody has asked for another number.
    fn config_of(&self, plan: &Plan) -> &Config {
        let is_chosen = self.core.config.chains == 0 && self.core.config.chain_mapping == ChainMapping::Contiguous;
        // Among the ranks of one computer each has a ring of its own.
        let fits = plan.receive_bytes() <= self.receive_bytes / 2 || self.is_at_home();
        if is_chosen && fits { &self.at_once } else { &self.core.config }
    }

    /// Whether nothing goes over the network.
    fn is_at_home(&self) -> bool {
        self.fanout.as_ref().is_some_and(|fanout| fanout.has_all())
    }

    /// Chunks of each root that may be under way: what all who multicast at the same time send has room in every
    /// receive buffer.
    fn window_chunks(&self, plan: &Plan) -> u32 {
        let datagram_bytes = HEADER_BYTES as u64 + u64::from(self.core.config.chunk_bytes);
        // A quarter of a ring is left for the ends of blocks, and for what is on its way.
        let in_ring = RING_BYTES as u64 / 4 * 3 / datagram_bytes;
        let Order { chains, .. } = order(plan, self.config_of(plan), 0);
        // The system counts its bookkeeping: half of the room is for data, wherever datagrams come one by one.
        let in_sockets = self.receive_bytes / 2 / datagram_bytes / u64::from(chains.max(1));
        let chunks = match &self.fanout {
            Some(fanout) if fanout.has_all() => in_ring,
            Some(fanout) if fanout.has_others() => in_sockets.min(in_ring),
            _ => in_sockets,
        };
        u32::try_from(chunks).unwrap_or(u32::MAX).clamp(1, send::MOST_WINDOW_CHUNKS)
    }

    fn move_on(&mut self) -> Result<bool> {
        self.core.check_fault()?;
        if let Some(error) = self.workers.take_fault() {
            return Err(error);
        }
        let mut moved = false;
        let mut ready = std::mem::take(&mut self.ready);
        let polled = self.waiter.poll(&mut ready);
        for token in ready.iter().copied() {
            moved |= match token {
                GROUP => match &self.fanout {
                    None => self.receive_data()?,
                    Some(fanout) => {
                        fanout.has_come(0);
                        true
                    }
                },
                BELL => {
                    self.fanout.iter().filter_map(|fanout| fanout.bell()).for_each(Bell::attend);
                    true
                }
                OWN => self.receive_acknowledgements()?,
                DOOR => self.mesh.admit(&mut Door(&self.waiter, DOOR)),
                number => self.receive_frames(number as usize),
            };
        }
        self.ready = ready;
        polled?;
        moved |= self.receive_shared()?;
        moved |= self.listen(|mesh, inbox| mesh.look(inbox));
        if let Some(posted) = self.core.next(self.is_free()) {
            let request = posted.request;
            if let Err(failed) = self.begin(posted) {
                self.core.requests.finish(request, Err(failed));
                self.fail_here(Cause::Device(FailureCode::NotStarted));
            }
            moved = true;
        }
        moved |= self.resume();
        let now_ps = self.interface.now_ps();
        moved |= self.exchange(self.heard, now_ps);
        self.heard = false;
        moved |= self.look(now_ps);
        let had_given_up = self.current.as_ref().is_some_and(|running| running.given_up);
        moved |= self.poll_time(now_ps);
        if !had_given_up && self.current.as_ref().is_some_and(|running| running.given_up) {
            self.relieve_roots()?;
        }
        self.carry_out(now_ps)?;
        moved |= self.send_some(now_ps)?;
        if self.flush() {
            // What a peer reads here, among others: it is still at work.
            self.conversation.moved();
            moved = true;
        }
        // Whoever goes while nothing is under way has nothing to do with this rank, until that calls something again.
        if !self.is_free() {
            let mut broken = Vec::new();
            self.mesh.take_broken(|peer, code| broken.push((peer, code)));
            broken.into_iter().for_each(|(peer, code)| self.break_connection(peer, code));
        }
        self.carry_out(now_ps)?;
        moved |= self.release(now_ps)? | self.release_direct(now_ps);
        self.watch_connections()?;
        Ok(moved)
    }

    /// Gives the system what waits to be sent over connections.
    fn flush(&mut self) -> bool {
        let Self { mesh, current, exchanging, .. } = self;
        match (current, exchanging) {
            (_, Some(exchanging)) => mesh.flush(&*exchanging),
            (Some(running), None) => mesh.flush(&*running),
            (None, None) => mesh.flush(&()),
        }
    }

    /// Lends what hears the peers to a function that lets it hear.
    fn listen(&mut self, hear: impl FnOnce(&mut Mesh, &mut Inbox<'_>) -> bool) -> bool {
        let Self { mesh, conversation, current, exchanging, core: Core { broken, place, .. }, .. } = self;
        let mut inbox =
            Inbox::new(conversation, current.as_mut(), exchanging.as_mut(), broken.is_some(), place.ranks());
        let any = hear(mesh, &mut inbox);
        let Inbox { heard, served, wrong, disagrees, reports, .. } = inbox;
        self.heard |= heard;
        served.into_iter().for_each(|(to, read)| self.mesh.serve(to, read));
        reports.into_iter().for_each(|(from, report)| self.heed(from, report));
        if let Some((rank, [theirs, own])) = disagrees {
            let now_ps = self.interface.now_ps();
            self.conversation.notify(now_ps, Notice::Disagrees { rank, theirs, own });
        }
        if let Some(rank) = wrong {
            tracing::error!(rank, "what it reads, or sends, is not of this operation");
            self.mesh.distrust(rank);
        }
        any
    }

    /// Takes what a peer has sent over its connection. Returns whether there was anything.
    fn receive_frames(&mut self, number: usize) -> bool {
        let any = self.listen(|mesh, inbox| mesh.receive(number, inbox));
        if let Some(peer) = self.mesh.other_end(number).filter(|_| any)
            && let Some(aggregator) = self.aggregator(peer)
        {
            let now_ps = self.interface.now_ps();
            self.external.hear(aggregator, now_ps);
        }
        any
    }

    /// Takes the frames that have waited for this rank to come as far as their senders, if it has come further.
    fn resume(&mut self) -> bool {
        let under_way = self.current.as_ref().map(|running| running.operation);
        let under_way = under_way.or(self.exchanging.as_ref().map(|exchanging| exchanging.operation));
        let next = self.conversation.participant().latest();
        let at = Some((self.core.broken.is_some(), under_way.unwrap_or(0), next));
        if self.held_at == at {
            return false;
        }
        self.held_at = at;
        self.listen(|mesh, inbox| mesh.resume(inbox))
    }

    /// Does what the protocol asks for.
    fn carry_out(&mut self, now_ps: u64) -> Result<()> {
        while let Some(next) = self.conversation.next() {
            match next {
                Next::Say { to, operation, message, data } => {
                    self.mesh.say(to, operation, message.as_bytes(), &data);
                    self.conversation.give_back(data);
                }
                Next::Do(Step::Multicast) => self.begin_to_send(now_ps),
                Next::Do(Step::Read { from, pieces, .. }) => self.fetch(from, &pieces)?,
                Next::Do(Step::Release) => {
                    let state = self.current.as_mut().map(|running| &mut running.state);
                    let state = state.or(self.exchanging.as_mut().map(|exchanging| &mut exchanging.state));
                    state.into_iter().for_each(State::release);
                }
                Next::Do(Step::SendsFinished) => {}
                Next::Do(Step::Fail(failure)) => self.fail(failure),
            }
        }
        if let Some(running) = self.current.as_mut() {
            running.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
            self.conversation.note(now_ps, &mut running.report);
        }
        if let Some(exchanging) = self.exchanging.as_mut() {
            exchanging.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
            self.conversation.note(now_ps, &mut exchanging.report);
        }
        Ok(())
    }

    /// Begins to read what is missing of pieces.
    fn fetch(&mut self, from: u32, pieces: &PieceSet) -> Result<()> {
        let Some(running) = self.current.as_mut() else { return Ok(()) };
        let missing = self.incoming.missing(&running.plan, &running.pieces, pieces)?;
        for (group, runs) in missing.groups(&running.plan, &running.pieces, pieces) {
            let Some(first) = group.first() else { continue };
            self.conversation.fetch(group, runs.len());
            running.report.reads += runs.len() as u64;
            running.report.recovered_bytes += runs.iter().map(|run| run.bytes).sum::<u64>();
            for (at, run) in runs.iter().enumerate() {
                let read = Read { operation: running.operation, tag: first, offset: run.offset, bytes: run.bytes };
                self.mesh.read(from, &read);
                running.reads.push_back((from, read, at + 1 == runs.len()));
            }
        }
        running.report.recovered_chunks += missing.len() as u64;
        Ok(())
    }

    /// The operation under way fails, and the communicator with it.
    fn fail(&mut self, failure: Failure) {
        self.core.fail(failure, self.conversation.disagreement());
        if let Some(mesh::Fault { address, reason }) = self.fault_of(failure) {
            let rank = failure.failed_rank;
            self.core.requests.explain(format!("the connection with rank {rank}, {address}, {reason}"));
        }
        self.fanout.iter().for_each(|fanout| fanout.leave());
        if let Some(running) = self.current.as_mut() {
            running.state.fail(failure);
            running.report.failure = Some(failure);
        }
        self.fail_direct(failure);
        self.core.refuse_waiting(failure);
    }

    fn poll_time(&mut self, now_ps: u64) -> bool {
        let deadline_ps = self.exchanging.as_ref().map(|exchanging| exchanging.deadline_ps);
        if let Some(deadline_ps) = deadline_ps {
            self.look_at_external(now_ps);
            self.conversation.notify(now_ps, Notice::Time);
            return now_ps >= deadline_ps;
        }
        let Self { current, incoming, conversation, stall, .. } = self;
        let Some(running) = current.as_mut() else { return false };
        let moved = watch::poll_time(running, incoming, conversation, (*stall, send::STUCK_PS), now_ps);
        self.blame_for_reads(now_ps);
        moved
    }

    /// Reads are answered by the neighbour's process, not by a card of this rank: who has waited for them in vain, or
    /// is held to be silent meanwhile, names that one instead of itself.
    fn blame_for_reads(&mut self, now_ps: u64) {
        let Self { current, conversation, core: Core { place, .. }, blamed_in, .. } = self;
        let Some(running) = current.as_ref().filter(|running| running.state.is_active()) else { return };
        let (participant, own) = (conversation.participant(), place.rank());
        if !participant.is_failing() || *blamed_in == running.operation {
            return;
        }
        if let Some((failed_rank, ..)) = running.reads.front()
            && participant.waiting_for() == (own, WaitedFor::Block)
        {
            *blamed_in = running.operation;
            let cause = Cause::Silent(WaitedFor::Block);
            conversation
                .notify(now_ps, Notice::Failed(Failure { failed_rank: *failed_rank, detecting_rank: own, cause }));
        }
    }

    /// Whether an operation that is over here does not end yet, since what this rank has said of it still waits for the
    /// system, or for a peer that has not taken the connection yet: the caller may stay away for long once it has
    /// ended, and a connection is made by both sides.
    fn lingers(&mut self, now_ps: u64) -> bool {
        if !self.mesh.is_waiting() {
            self.lingers_ps = None;
            return false;
        }
        let longest_ps =
            if self.mesh.is_dialling() { ps(self.core.config.barrier_timeout).max(LINGER_PS) } else { LINGER_PS };
        now_ps < *self.lingers_ps.get_or_insert(now_ps.saturating_add(longest_ps))
    }

    /// Ends an operation that all ranks are done with, or that has failed.
    fn release(&mut self, now_ps: u64) -> Result<bool> {
        if !self.current.as_ref().is_some_and(Running::is_over) || self.lingers(now_ps) {
            return Ok(false);
        }
        let Some(mut running) = self.current.take() else { return Ok(false) };
        self.fanout.iter().for_each(|fanout| fanout.leave());
        self.mesh.forget_serves();
        if let State::Failed(failure) = running.state {
            let error = self.error_of(running.plan.kind.name(), failure);
            let Running { request, send, receive, report, .. } = running;
            self.core.requests.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
            return Ok(true);
        }
        running.finish(now_ps, &mut self.conversation, &mut self.gathered)?;
        if running.algorithm != Algorithm::Eager {
            let (mut alpha, mut stall) = (self.alpha, self.stall);
            running.observe(self.config_of(&running.plan), &self.core.config, &mut alpha, &mut stall);
            (self.alpha, self.stall) = (alpha, stall);
            running.report.late_chunks = self.incoming.late();
            running.report.overflowed_datagrams = self.tell_overflows(&running)?;
            self.end_reception(&running);
        }
        let Running { request, send, receive, report, .. } = running;
        self.core.requests.finish(request, Ok(Done { send, receive, report }));
        Ok(true)
    }

    /// The error of an operation that has failed.
    fn error_of(&mut self, operation: &'static str, failure: Failure) -> Error {
        if let Some(mesh::Fault { address, reason }) = self.fault_of(failure) {
            return Error::Connection { operation, rank: failure.failed_rank, address, reason, failure };
        }
        let found = match failure.cause {
            Cause::Aggregator(number) => self.external.take_reason(number.into()),
            _ => None,
        };
        self.core.requests.failed(operation, failure, found)
    }

    /// What is wrong with the connection that a failure is of, if this rank has found something.
    fn fault_of(&self, failure: Failure) -> Option<mesh::Fault> {
        let is_own = matches!(failure.cause, Cause::Connection(_)) && failure.detecting_rank == self.core.place.rank();
        is_own.then(|| self.mesh.fault(failure.failed_rank)).flatten()
    }

    /// Waits for connections to become readable, unless what they have has to wait, and writable, if something waits to
    /// be sent; and for none that has broken.
    fn watch_connections(&mut self) -> Result<()> {
        let Self { mesh, waiter, interests, .. } = self;
        interests.resize(mesh.len(), None);
        // What was waited for is closed, and the waiter has forgotten it.
        mesh.take_renewed().for_each(|number| interests[number] = None);
        for (number, descriptor, interest) in mesh.descriptors() {
            let before = &mut interests[number];
            if *before != Some(interest) {
                waiter.change(descriptor, number as u64, *before, interest)?;
                *before = Some(interest);
            }
        }
        mesh.take_closed(|number, descriptor| waiter.remove(descriptor, interests[number].take()));
        mesh.take_rings().for_each(|rings| waiter.add_rings(rings));
        mesh.want();
        waiter.rearm();
        Ok(())
    }

    /// When the operation under way is to be moved on although nothing comes.
    fn operation_deadline_ps(&self) -> Option<u64> {
        if self.core.is_due(self.is_free()) {
            return Some(0);
        }
        if let Some(exchanging) = &self.exchanging {
            return Some(if exchanging.state.is_active() && exchanging.is_busy() {
                0
            } else if exchanging.state.is_active() {
                let of_external = self.external_deadline_ps().map_or(u64::MAX, |(deadline_ps, _)| deadline_ps);
                exchanging.deadline_ps.min(of_external)
            } else {
                self.lingers_ps.or(self.reason_ps).unwrap_or(0)
            });
        }
        let running = self.current.as_ref()?;
        if running.is_over() {
            return Some(self.lingers_ps.unwrap_or(0));
        }
        let stalled_ps =
            running.stalled_ps(self.stall).filter(|_| self.incoming.remaining() > 0 && running.state.is_active());
        let quiet_ps = watch::quiet_ps(running, &self.incoming, receive::QUIET_PS);
        // What has room is sent at once.
        let window_ps = running.sending.as_ref().map(|sending| match self.window.room(sending.sent) {
            0 => self.window.deadline_ps().unwrap_or(u64::MAX),
            _ => sending.full_ps.map_or(self.pace.due_ps(), |full_ps| full_ps.saturating_add(send::FULL_PS)),
        });
        let own_ps = stalled_ps.unwrap_or(running.deadline_ps);
        [Some(own_ps), quiet_ps, window_ps].into_iter().flatten().min()
    }

    fn stream() -> Stream {
        Stream { subgroup: 0, peer: None }
    }
}

impl Datapath for Engine {
    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn card(&self) -> Card {
        Card::of(Kind::Udp(self.interface.clone()))
    }

    fn now_ps(&self) -> u64 {
        self.interface.now_ps()
    }

    fn admission(&self) -> Admission {
        let (psn_bits, most_chunks) = (PSN_BITS, MOST_CHUNKS);
        Admission { registered: false, collectives: Ok(()), streams: vec![Self::stream()], psn_bits, most_chunks }
    }

    fn is_free(&self) -> bool {
        self.current.is_none() && self.exchanging.is_none()
    }

    fn start(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        self.begin(posted).inspect_err(|_| self.fail_here(Cause::Device(FailureCode::NotStarted)))?;
        // The first messages go at once; what fails here is found by whoever asks next.
        if let Err(error) = self.advance() {
            self.core.set_fault(error);
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<bool> {
        self.move_on()
    }

    fn deadline_ps(&self) -> Option<u64> {
        let dials = self.mesh.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let dials_ps = dials.map(|left| self.interface.now_ps().saturating_add(ps(left)));
        [self.operation_deadline_ps(), dials_ps].into_iter().flatten().min()
    }

    fn fail_here(&mut self, cause: Cause) {
        let own = self.core.place.rank();
        let now_ps = self.interface.now_ps();
        self.conversation.notify(now_ps, Notice::Failed(Failure { failed_rank: own, detecting_rank: own, cause }));
        crate::carrier::datapath::Waiter::wake(&self.waiter);
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.conversation.disagreement()
    }

    fn messages(&self) -> MessageCounts {
        self.conversation.messages()
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        let mut statistics = self.statistics;
        let (foreign, forged) = self.workers.refused();
        statistics.cqes += foreign + forged;
        statistics.unexpected_opcode += foreign;
        statistics.error_cqes += forged;
        Ok(statistics)
    }

    fn send_statistics(&self) -> Result<SendReport> {
        Ok(self.sent)
    }
}
