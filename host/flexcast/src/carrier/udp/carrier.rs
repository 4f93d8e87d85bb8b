//! Carrier of a communicator over an Ethernet interface: this process polls the sockets.

mod delivery;
mod exchange;
mod external;
mod fanout;
mod inbox;
mod operation;
mod receive;
mod send;

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use flexcast_abi::{SendReport, Statistics};
use flexcast_mesh::external::KnownAggregators;
use flexcast_mesh::{self as mesh, Interest, Mesh, Read};
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{Algorithm, Cause, Failure, PieceSet, RankInfo, StallWindow, WaitedFor};

use self::delivery::Reception;
use self::exchange::Work;
use self::external::aggregator;
use self::inbox::{Inbox, under_way};
use self::operation::{Operation, UdpStream};
use self::receive::{Landings, Overflows};
use super::datagram::{Codec, HEADER_BYTES, MOST_CHUNKS, PSN_BITS, Secret};
use super::fanout::{Fanout, RING_BYTES, WakeUp};
use super::interface::Interface;
use super::pace::Pace;
use super::path::Probing;
use super::sockets::{self, RUN_BYTES, Sockets};
use super::tap::Tap;
use super::waiter::{ListenerWatch, SocketWaiter};
use super::workers::Workers;
use crate::carrier::cpu::incoming::Incoming;
use crate::carrier::cpu::stripes::Stripes;
use crate::carrier::cpu::watch;
use crate::carrier::cpu::window::{Waits, Window};
use crate::engine::carrier::LetGo;
use crate::engine::conversation::Conversation;
use crate::engine::datapath::Waiter as _;
use crate::engine::descriptor::activations_ps;
use crate::engine::event::Event;
use crate::engine::{Admission, Carrier, Core, Engine, Operations, Posted, State, Task};
use crate::error::{Error, Result};
use crate::op::chain_mapping::ChainMapping;
use crate::op::collective::Collective;
use crate::op::config::{Config, ps};
use crate::op::decision::Decision;
use crate::op::outcome::{Failed, Outcome};
use crate::op::sparse_cost::Densities;
use crate::op::stream::Stream;
use crate::op::tuning::Tuning;
use crate::p2p::local::Spare;
use crate::plan::Plan;
use crate::plan::chains::{Order, order};
use crate::plan::tuner::Conditions;
use flexcast_sparse::messages;

/// Operations of a communicator over an Ethernet interface.
pub(super) type UdpOperations = Operations<UdpCarrier>;

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;
/// Chunks by which others may overtake one that is not lost, at first.
const REORDER_CHUNKS: u32 = 16;
/// Waits for acknowledgements: processes are not always run.
const WAITS: Waits = Waits { first_ps: 2_000_000_000, longest_ps: 64_000_000_000, most: u32::MAX };

/// Longest that the end of an operation waits until the system has taken what this rank has sent.
const LINGER_PS: u64 = 1_000_000_000_000;

/// Tokens of the sockets; connections have their numbers.
const GROUP: u64 = 1 << 32;
const OWN: u64 = GROUP + 1;
/// Of where ranks connect.
const SHARED_LISTENER: u64 = GROUP + 2;
/// Of what wakes this rank for the datagrams that the ranks of its computer share.
const WAKE_UP: u64 = GROUP + 3;

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

/// Sockets and connections of a communicator, and what goes through them.
pub(crate) struct UdpCarrier {
    interface: Interface,
    /// Its configuration with as many chains as ranks.
    at_once: Config,
    conditions: Conditions,
    /// What chooses algorithms.
    tuning: Tuning,
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
    /// What decided of the frames that wait in connections, when they were last checked.
    held_at: Option<(bool, u32, u32)>,
    incoming: Incoming,
    window: Window,
    pace: Pace,
    overflows: Overflows,
    /// A run of datagrams on its way, out or in; kept for its room.
    run: Vec<u8>,
    landing: Landings,
    tap: Option<Box<dyn Tap>>,
    statistics: Statistics,
    sent: SendReport,
    /// The operation in which a neighbour has been named that does not answer reads.
    blamed_in: u32,
    /// Part of a message between two ranks has come since the last poll.
    received_part: bool,
    /// Memory of the last operation between pairs of ranks.
    spare: Spare,
    /// The same of sparse ones.
    spare_slots: messages::Spare,
    /// What sparse AllReduces have found.
    densities: Densities,
    /// Whether multicast arrives.
    reception: Reception,
    /// Answers ranks that still probe paths; nothing else is done with it.
    _probing: Option<Probing>,
    /// Bytes of temporary memory that the last operations were long enough to have kept.
    spare_limit: usize,
    /// When an operation that is over ends although something that this rank has sent waits.
    lingers_ps: Option<u64>,
}

impl UdpCarrier {
    /// The engine of rank `place` in communicator `id`.
    pub(crate) fn engine(
        interface: Interface,
        place: RankInfo,
        id: u64,
        config: Config,
        links: Links,
        waiter: SocketWaiter,
    ) -> Result<Engine<Self>> {
        let Links { sockets, fanout, mesh, receive_bytes, peers, secret, tuning, probing } = links;
        let of_group = sockets.lane.descriptor();
        waiter.add(sockets.own_descriptor(), OWN)?;
        match &fanout {
            None => waiter.add(of_group, GROUP)?,
            Some(fanout) => {
                if let Some(wake_up) = fanout.wake_up() {
                    waiter.add(wake_up.as_fd(), WAKE_UP)?;
                }
                waiter.add_fanout(Arc::clone(fanout));
                if !fanout.has_all() {
                    waiter.add_shared(of_group, GROUP)?;
                }
            }
        }
        for listener in mesh.shared_listeners() {
            waiter.add(listener, SHARED_LISTENER)?;
        }
        let mut conversation = Conversation::new(place, FIRST_OPERATION, config.eager_bytes.into());
        conversation.connect(id);
        let conditions = Conditions {
            direct: true,
            ..Conditions::new(&config, place.ranks(), interface.mtu_bytes(), conversation.eager_bytes())
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
        let mut carrier = Self {
            external: KnownAggregators::new(config.aggregators.len()),
            reason_ps: None,
            codec,
            window: Window::new(place, 1, WAITS),
            pace: Pace::new(config.pacing_gbit_per_s, config.link_gbit_per_s),
            overflows: Overflows::default(),
            at_once: config.clone().chains(place.ranks()),
            interface,
            conditions,
            tuning,
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
            statistics: Statistics::default(),
            sent: SendReport::default(),
            blamed_in: FIRST_OPERATION.wrapping_sub(1),
            received_part: false,
            spare: Spare::default(),
            spare_slots: messages::Spare::default(),
            densities: Densities::default(),
            reception,
            _probing: probing,
            spare_limit: 0,
            lingers_ps: None,
        };
        carrier.watch_connections()?;
        let stall = StallWindow::new(ps(config.overheads.cutoff_slack));
        Ok(Engine::new(carrier, Core::new(place, id, config), conversation, stall))
    }

    /// The configuration with the chains that an operation takes: all roots multicast at once where all of it has room
    /// in every receive buffer, and nobody has asked for another number.
    fn config_of<'c>(&'c self, ops: &'c UdpOperations, plan: &Plan) -> &'c Config {
        let config = &ops.core.config;
        let is_chosen = config.chains == 0 && config.chain_mapping == ChainMapping::Contiguous;
        // Among the ranks of one computer each has a ring of its own.
        let fits = plan.receive_bytes() <= self.receive_bytes / 2 || self.is_at_home();
        if is_chosen && fits { &self.at_once } else { config }
    }

    /// Whether nothing goes over the network.
    fn is_at_home(&self) -> bool {
        self.fanout.as_ref().is_some_and(|fanout| fanout.has_all())
    }

    /// Chunks of each root that may be under way: what all who multicast at the same time send has room in every
    /// receive buffer.
    fn window_chunks(&self, ops: &UdpOperations, plan: &Plan) -> u32 {
        let datagram_bytes = HEADER_BYTES as u64 + u64::from(ops.core.config.chunk_bytes);
        // A quarter of a ring is left for the ends of blocks, and for what is on its way.
        let in_ring = RING_BYTES as u64 / 4 * 3 / datagram_bytes;
        let Order { chains, .. } = order(plan, self.config_of(ops, plan), 0);
        // The system counts its bookkeeping: half of the room is for data, wherever datagrams come one by one.
        let in_sockets = self.receive_bytes / 2 / datagram_bytes / u64::from(chains.max(1));
        let chunks = match &self.fanout {
            Some(fanout) if fanout.has_all() => in_ring,
            Some(fanout) if fanout.has_others() => in_sockets.min(in_ring),
            _ => in_sockets,
        };
        u32::try_from(chunks).unwrap_or(u32::MAX).clamp(1, send::MOST_WINDOW_CHUNKS)
    }

    /// The interface, with what the ranks have agreed on for this communicator.
    pub(crate) const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Takes what the sockets and the connections have.
    fn receive_all(&mut self, ops: &mut UdpOperations) -> Result<bool> {
        if let Some(error) = self.workers.take_fault() {
            return Err(error);
        }
        let mut moved = false;
        let mut ready = std::mem::take(&mut self.ready);
        let polled = self.waiter.poll(&mut ready);
        for token in ready.iter().copied() {
            moved |= match token {
                GROUP => match &self.fanout {
                    None => self.receive_data(ops)?,
                    Some(fanout) => {
                        fanout.has_come(0);
                        true
                    }
                },
                WAKE_UP => {
                    self.fanout.iter().filter_map(|fanout| fanout.wake_up()).for_each(WakeUp::drain);
                    true
                }
                OWN => self.receive_acknowledgements(ops)?,
                SHARED_LISTENER => self.mesh.admit(&mut ListenerWatch(&self.waiter, SHARED_LISTENER)),
                number => self.receive_frames(ops, number as usize),
            };
        }
        self.ready = ready;
        polled?;
        moved |= self.receive_shared(ops)?;
        moved |= self.listen(ops, |mesh, inbox| mesh.poll_shared(inbox));
        Ok(moved)
    }

    /// Gives the system what waits to be sent over connections.
    fn flush_mesh(&mut self, ops: &UdpOperations) -> bool {
        match (&ops.current, &ops.exchange) {
            (_, Some(exchange)) => self.mesh.flush(exchange),
            (Some(operation), None) => self.mesh.flush(operation),
            (None, None) => self.mesh.flush(&()),
        }
    }

    /// Passes the inbox to a function that receives what peers have sent.
    fn listen(&mut self, ops: &mut UdpOperations, receive: impl FnOnce(&mut Mesh, &mut Inbox<'_>) -> bool) -> bool {
        let mut inbox = Inbox::new(ops);
        let any = receive(&mut self.mesh, &mut inbox);
        let Inbox { received_part, served, wrong, disagrees, reports, .. } = inbox;
        self.received_part |= received_part;
        served.into_iter().for_each(|(to, read)| self.mesh.serve(to, read));
        reports.into_iter().for_each(|(from, report)| self.take_report(ops, from, report));
        if let Some((rank, [theirs, own])) = disagrees {
            let now_ps = self.interface.now_ps();
            ops.protocol.handle(now_ps, Event::Disagrees { rank, theirs, own });
        }
        if let Some(rank) = wrong {
            tracing::error!(rank, "what it reads, or sends, is not of this operation");
            self.mesh.distrust(rank);
        }
        any
    }

    /// Takes what a peer has sent over its connection. Returns whether there was anything.
    fn receive_frames(&mut self, ops: &mut UdpOperations, number: usize) -> bool {
        let any = self.listen(ops, |mesh, inbox| mesh.receive(number, inbox));
        if let Some(peer) = self.mesh.other_end(number).filter(|_| any)
            && let Some(aggregator) = aggregator(ops, peer)
        {
            let now_ps = self.interface.now_ps();
            self.external.received(aggregator, now_ps);
        }
        any
    }

    /// Takes the frames that have waited for this rank to come as far as their senders, if it has come further.
    fn resume(&mut self, ops: &mut UdpOperations) -> bool {
        let next = ops.protocol.participant().latest();
        let at = Some((ops.core.broken.is_some(), under_way(ops).unwrap_or(0), next));
        if self.held_at == at {
            return false;
        }
        self.held_at = at;
        self.listen(ops, |mesh, inbox| mesh.resume(inbox))
    }

    fn poll_time(&mut self, ops: &mut UdpOperations, now_ps: u64) -> bool {
        if let Some(deadline_ps) = ops.exchange.as_ref().map(|exchange| exchange.deadline_ps) {
            self.detect_silence(ops, now_ps);
            ops.protocol.handle(now_ps, Event::Time);
            return now_ps >= deadline_ps;
        }
        let moved = watch::poll_time(ops, &mut self.incoming, send::STUCK_PS, now_ps);
        self.blame_for_reads(ops, now_ps);
        moved
    }

    /// Reads are answered by the neighbour's process, not by a card of this rank: who has waited for them in vain, or
    /// is held to be silent meanwhile, names that one instead of itself.
    fn blame_for_reads(&mut self, ops: &mut UdpOperations, now_ps: u64) {
        let Operations { current, protocol, core, .. } = ops;
        let Some(operation) = current.as_ref().filter(|operation| operation.state.is_active()) else { return };
        let (participant, detecting_rank) = (protocol.participant(), core.place.rank());
        if !participant.is_failing() || self.blamed_in == operation.number {
            return;
        }
        if let Some((failed_rank, ..)) = operation.stream.reads.front()
            && participant.waiting_for() == (detecting_rank, WaitedFor::Block)
        {
            self.blamed_in = operation.number;
            let (failed_rank, cause) = (*failed_rank, Cause::Silent(WaitedFor::Block));
            protocol.handle(now_ps, Event::Failed(Failure { failed_rank, detecting_rank, cause }));
        }
    }

    /// Whether an operation that is over here does not end yet, since what this rank has sent of it still waits for the
    /// system, or for a peer that has not taken the connection yet: the caller may stay away for long once it has
    /// ended, and a connection is made by both sides.
    fn lingers(&mut self, ops: &UdpOperations, now_ps: u64) -> bool {
        if !self.mesh.is_waiting() {
            self.lingers_ps = None;
            return false;
        }
        let longest_ps =
            if self.mesh.is_dialling() { ps(ops.core.config.barrier_timeout).max(LINGER_PS) } else { LINGER_PS };
        now_ps < *self.lingers_ps.get_or_insert(now_ps.saturating_add(longest_ps))
    }

    /// The error of an operation that has failed.
    fn failure_error(&mut self, ops: &UdpOperations, operation: &'static str, failure: Failure) -> Error {
        if let Some(mesh::Fault { address, reason }) = self.fault_of(ops, failure) {
            return Error::Connection { operation, rank: failure.failed_rank, address, reason, failure };
        }
        let found = match failure.cause {
            Cause::Aggregator(number) => self.external.take_reason(number.into()),
            _ => None,
        };
        ops.core.requests.failed(operation, failure, found)
    }

    /// What is wrong with the connection that a failure is of, if this rank has found something.
    fn fault_of(&self, ops: &UdpOperations, failure: Failure) -> Option<mesh::Fault> {
        let is_own = matches!(failure.cause, Cause::Connection(_)) && failure.detecting_rank == ops.core.place.rank();
        is_own.then(|| self.mesh.fault(failure.failed_rank)).flatten()
    }

    /// Waits for connections to become readable, unless what they have has to wait, and writable, if something waits to
    /// be sent; and for none that has broken.
    fn watch_connections(&mut self) -> Result<()> {
        let Self { mesh, waiter, interests, .. } = self;
        interests.resize(mesh.count(), None);
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
    fn operation_deadline_ps(&self, ops: &UdpOperations) -> Option<u64> {
        if let Some(exchange) = &ops.exchange {
            return Some(if exchange.state.is_active() && exchange.is_busy() {
                0
            } else if exchange.state.is_active() {
                let of_external = self.external_deadline_ps(ops).map_or(u64::MAX, |(deadline_ps, _)| deadline_ps);
                exchange.deadline_ps.min(of_external)
            } else {
                self.lingers_ps.or(self.reason_ps).unwrap_or(0)
            });
        }
        let operation = ops.current.as_ref()?;
        if is_over(operation) {
            return Some(self.lingers_ps.unwrap_or(0));
        }
        let stall_ps = watch::stall_ps(operation, &self.incoming, ops.stall);
        let quiet_ps = watch::quiet_ps(operation, &self.incoming, receive::QUIET_PS);
        // What has room is sent at once.
        let window_ps = operation.stream.sending.as_ref().map(|sending| match self.window.room(sending.sent) {
            0 => self.window.deadline_ps().unwrap_or(u64::MAX),
            _ => sending.full_ps.map_or(self.pace.due_ps(), |full_ps| full_ps.saturating_add(send::FULL_PS)),
        });
        let own_ps = stall_ps.unwrap_or(operation.deadline_ps);
        [Some(own_ps), quiet_ps, window_ps].into_iter().flatten().min()
    }

    /// The operation is over, or has failed: nobody here takes its datagrams, or reads what it has received.
    fn leave_operation(&mut self) {
        self.fanout.iter().for_each(|fanout| fanout.leave());
        self.mesh.forget_serves();
    }

    /// Gives an operation to the protocol.
    fn arm_operation(&mut self, ops: &mut UdpOperations, operation: &mut Operation, now_ps: u64) -> Result<()> {
        let note = self.begin_reception(ops)?;
        operation.stream.window_chunks = self.window_chunks(ops, &operation.plan);
        let config = self.config_of(ops, &operation.plan);
        let Order { chains, turn, .. } = order(&operation.plan, config, ops.core.place.rank());
        let descriptor = ops.describe(operation, config, chains);
        self.incoming.restart(&operation.plan, &operation.pieces, ops.core.config.chunk_bytes)?;
        self.fanout.iter().for_each(|fanout| fanout.join());
        self.window.restart(operation.stream.window_chunks);
        self.pace.begin();
        self.overflows = Overflows::since(self.sockets.overflowed());
        let foreign = operation.plan.foreign_pieces();
        ops.protocol.start_with_note((descriptor, turn), Availability::default(), foreign, note);
        ops.protocol.handle(now_ps, Event::Armed);
        ops.protocol.handle(now_ps, Event::OwnBlock);
        operation.report.phases.0.armed_ps = Some(operation.report.phases.0.posted_ps);
        Ok(())
    }
}

/// Whether the buffers of an operation are the user's again, as soon as what this rank has sent is out.
const fn is_over(operation: &Operation) -> bool {
    match operation.state {
        State::Deferred | State::Active => false,
        State::Released => operation.stream.sending.is_none(),
        State::Failed(_) => true,
    }
}

impl Carrier for UdpCarrier {
    type Protocol = Conversation;
    type Purpose = ();
    type Stream = UdpStream;
    type Work = Work;

    fn now_ps(&self) -> u64 {
        self.interface.now_ps()
    }

    fn now_after_receive(&self, _: u64) -> u64 {
        // Copies take their time.
        self.interface.now_ps()
    }

    fn admission(&self, _: &Config) -> Admission {
        let streams = vec![Stream { subgroup: 0, peer: None }];
        let (psn_bits, most_chunks) = (PSN_BITS, MOST_CHUNKS);
        Admission { registered: false, collectives: Ok(()), streams, psn_bits, most_chunks }
    }

    fn decide(&mut self, ops: &mut UdpOperations, plan: &Plan) -> Decision {
        let lost = self.lost_multicast(ops);
        self.conditions.decide_by(&self.tuning, plan.kind.of_protocol(), &plan.shape(), lost)
    }

    fn begin_collective(engine: &mut Engine<Self>, posted: Posted<Collective>, _: u64) -> Result<(), Box<Failed>> {
        let Engine { carrier, ops, .. } = engine;
        let decision = match &posted.plan {
            Collective::SparseAllreduce { .. } if carrier.external.count() > 0 => Decision::of(Algorithm::Sparse),
            collective => {
                let (table, is_ordered) = (&carrier.tuning, ops.core.config.reproducible);
                carrier.conditions.decide_collective(table, collective, is_ordered, &carrier.densities)
            }
        };
        exchange::begin(engine, posted.map(Task::Collective), decision)
    }

    fn begin_direct(engine: &mut Engine<Self>, posted: Posted, decision: Decision, _: u64) -> Result<(), Box<Failed>> {
        exchange::begin(engine, posted.map(Task::Blocks), decision)
    }

    fn prepare(&mut self, _: &mut UdpOperations, posted: &mut Posted, _: &Decision) -> Result<UdpStream> {
        posted.place_own_block()?;
        Ok(UdpStream::default())
    }

    fn arm(&mut self, ops: &mut UdpOperations, now_ps: u64) -> Result<bool> {
        let Some(mut operation) = ops.current.take() else { return Ok(false) };
        let armed = self.arm_operation(ops, &mut operation, now_ps);
        ops.current = Some(operation);
        armed.map(|()| true)
    }

    fn receive(&mut self, ops: &mut UdpOperations, _: u64) -> Result<bool> {
        self.receive_all(ops)
    }

    fn advance(engine: &mut Engine<Self>, mut moved: bool, now_ps: u64) -> Result<bool> {
        let Engine { carrier, ops, .. } = engine;
        moved |= carrier.resume(ops);
        let received_part = std::mem::take(&mut carrier.received_part);
        moved |= carrier.exchange(ops, received_part, now_ps);
        moved |= watch::detect_losses(ops, &mut carrier.incoming, receive::QUIET_PS, now_ps);
        let has_given_up =
            |ops: &UdpOperations| ops.current.as_ref().is_some_and(|operation| operation.stream.given_up);
        let had_given_up = has_given_up(ops);
        moved |= carrier.poll_time(ops, now_ps);
        if !had_given_up && has_given_up(ops) {
            carrier.relieve_roots(ops)?;
        }
        Ok(moved)
    }

    fn send_message(
        &mut self,
        ops: &mut UdpOperations,
        to: u32,
        operation: u32,
        (message, data): (Encoded, Vec<u8>),
    ) -> Result<()> {
        self.mesh.say(to, operation, message.as_bytes(), &data);
        ops.protocol.give_back(data);
        Ok(())
    }

    fn multicast(&mut self, ops: &mut UdpOperations, now_ps: u64) -> Result<()> {
        self.begin_to_send(ops, now_ps);
        Ok(())
    }

    fn read(&mut self, ops: &mut UdpOperations, from: u32, pieces: &PieceSet, _: Option<Availability>) -> Result<()> {
        let Some(operation) = ops.current.as_mut() else { return Ok(()) };
        let missing = self.incoming.missing(&operation.plan, &operation.pieces, pieces)?;
        for (group, runs) in missing.groups(&operation.plan, &operation.pieces, pieces) {
            let Some(first) = group.first() else { continue };
            ops.protocol.fetch(group, runs.len());
            operation.report.reads += runs.len() as u64;
            operation.report.recovered_bytes += runs.iter().map(|run| run.bytes).sum::<u64>();
            for (at, run) in runs.iter().enumerate() {
                let read = Read { operation: operation.number, tag: first, offset: run.offset, bytes: run.bytes };
                self.mesh.read(from, &read);
                operation.stream.reads.push_back((from, read, at + 1 == runs.len()));
            }
        }
        operation.report.recovered_chunks += missing.len() as u64;
        Ok(())
    }

    fn send_data(&mut self, ops: &mut UdpOperations, now_ps: u64) -> Result<bool> {
        let mut moved = self.send_some(ops, now_ps)?;
        if self.flush_mesh(ops) {
            // What a peer reads here, among others: it is still at work.
            ops.protocol.moved();
            moved = true;
        }
        // Whoever goes while nothing is under way has nothing to do with this rank, until that calls something again.
        if !ops.is_free() {
            let mut broken = Vec::new();
            self.mesh.take_broken(|peer, code| broken.push((peer, code)));
            broken.into_iter().for_each(|(peer, code)| self.break_connection(ops, peer, code));
        }
        Ok(moved)
    }

    fn flush(&mut self, ops: &mut UdpOperations, _: u64) -> Result<()> {
        // What the end of the own block has brought, among others: the next root waits for it.
        if self.flush_mesh(ops) {
            ops.protocol.moved();
        }
        self.watch_connections()
    }

    fn failed(&mut self, ops: &mut UdpOperations, failure: Failure, _: u64) -> Result<()> {
        if let Some(mesh::Fault { address, reason }) = self.fault_of(ops, failure) {
            let rank = failure.failed_rank;
            ops.core.requests.explain(format!("the connection with rank {rank}, {address}, {reason}"));
        }
        self.fanout.iter().for_each(|fanout| fanout.leave());
        if let Some(exchange) = &ops.exchange {
            self.mesh.abandon(exchange);
        }
        Ok(())
    }

    fn may_end(&mut self, ops: &mut UdpOperations, now_ps: u64) -> Result<bool> {
        Ok(ops.current.as_ref().is_some_and(is_over) && !self.lingers(ops, now_ps))
    }

    fn ended(&mut self, ops: &mut UdpOperations, operation: &mut Operation, _: u64) -> Result<()> {
        self.leave_operation();
        if operation.algorithm != Algorithm::Eager {
            let steps_ps = activations_ps(&operation.plan, self.config_of(ops, &operation.plan));
            ops.observe(operation, steps_ps, operation.stream.watch);
            operation.report.late_chunks = self.incoming.late();
            operation.report.overflowed_datagrams = self.report_overflows(ops.core.place.rank(), operation)?;
            self.end_reception(ops, operation);
        }
        Ok(())
    }

    fn has_let_go(&mut self, ops: &mut UdpOperations, now_ps: u64) -> Result<LetGo> {
        if self.lingers(ops, now_ps) {
            return Ok(LetGo::NotYet);
        }
        self.leave_operation();
        Ok(LetGo::Yes)
    }

    fn error_of(
        &mut self,
        ops: &mut UdpOperations,
        _: Option<&mut Operation>,
        name: &'static str,
        failure: Failure,
    ) -> Error {
        self.failure_error(ops, name, failure)
    }

    fn may_end_exchange(&mut self, ops: &mut UdpOperations, now_ps: u64) -> bool {
        !self.lingers(ops, now_ps) && !self.awaits_reason(ops, now_ps)
    }

    fn end_exchange(&mut self, ops: &mut UdpOperations, exchange: exchange::Exchange, _: u64) -> Result<Outcome> {
        Ok(self.end(ops, exchange))
    }

    fn deadline_ps(&self, ops: &UdpOperations) -> Option<u64> {
        let dials = self.mesh.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let dials_ps = dials.map(|left| self.interface.now_ps().saturating_add(ps(left)));
        [self.operation_deadline_ps(ops), dials_ps].into_iter().flatten().min()
    }

    fn wake(&mut self) {
        self.waiter.wake();
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
