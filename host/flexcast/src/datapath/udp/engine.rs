//! Engine of a communicator over an Ethernet interface: carries out what the protocol decides.
//!
//! An operation is posted ([`Engine::begin`]), receives and sends as the sockets allow ([`Engine::advance`]), and gives its buffers back when the
//! protocol releases it or has failed.

mod operation;
mod receive;
mod send;

use std::collections::VecDeque;
use std::net::SocketAddr;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::Availability;
use flexcast_proto::{Algorithm, Alpha, Cause, Disagreement, Failure, PieceSet, RankInfo, StallWindow};

use self::operation::{Reading, Running, State};
use self::receive::Landings;
use super::datagram::{Codec, HEADER_BYTES, Secret};
use super::interface::Interface;
use super::mesh::{Event, Mesh, Read};
use super::part::check_chunks;
use super::sockets::{RUN_BYTES, Sockets};
use super::tap::Tap;
use super::waiter::SocketWaiter;
use crate::api::buffer::Buffer;
use crate::api::card::{Card, Kind};
use crate::api::config::{Config, ps};
use crate::api::outcome::{Done, Failed};
use crate::api::report::{MessageCounts, Phases, PhasesPs, Report};
use crate::datapath::cpu::incoming::Incoming;
use crate::datapath::cpu::watch;
use crate::datapath::cpu::window::{Waits, Window};
use crate::datapath::{Datapath, Posted, Requests};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::plan::chains::{ChainMapping, Order, order};
use crate::plan::stream::Stream;
use crate::protocol::conversation::{Conversation, Next};
use crate::protocol::driver::{Notice, Step};
use crate::protocol::engine::{activations_ps, descriptor};
use crate::tuner::{Conditions, Selection};

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;
/// Code of [`Cause::Device`] for an operation that could not be begun.
const NOT_STARTED: u16 = u16::MAX - 2;

/// Chunks by which others may overtake one that is not lost, at first.
const REORDER_CHUNKS: u32 = 16;
/// Waits for acknowledgements: processes are not always run.
const WAITS: Waits = Waits { first_ps: 2_000_000_000, longest_ps: 64_000_000_000, most: u32::MAX };

/// Tokens of the sockets; connections have their numbers.
const GROUP: u64 = 1 << 32;
const OWN: u64 = GROUP + 1;

/// What connects a communicator with its peers.
pub(super) struct Links {
    pub(super) sockets: Sockets,
    pub(super) mesh: Mesh,
    /// The least that any rank's receive buffer holds, in bytes.
    pub(super) receive_bytes: u64,
    /// Where each rank gets acknowledgements.
    pub(super) peers: Vec<SocketAddr>,
    pub(super) secret: Option<Secret>,
}

/// A communicator's operations, and what carries them out.
pub(crate) struct Engine {
    interface: Interface,
    place: RankInfo,
    id: u64,
    config: Config,
    /// The same with as many chains as ranks.
    at_once: Config,
    conditions: Conditions,
    conversation: Conversation,
    codec: Codec,
    sockets: Sockets,
    mesh: Mesh,
    receive_bytes: u64,
    peers: Vec<SocketAddr>,
    waiter: SocketWaiter,
    /// Tokens of what can be read; kept for its room.
    ready: Vec<u64>,
    /// Connections of which it is waited for that they become writable.
    writable: Vec<bool>,
    incoming: Incoming,
    window: Window,
    /// A run of datagrams on its way, out or in; kept for its room.
    run: Vec<u8>,
    landing: Landings,
    tap: Option<Box<dyn Tap>>,
    current: Option<Running>,
    waiting: VecDeque<Posted>,
    requests: Requests,
    alpha: Alpha,
    stall: StallWindow,
    statistics: Statistics,
    sent: SendReport,
    broken: Option<Failure>,
    fault: Option<Error>,
}

impl Engine {
    pub(super) fn new(
        interface: Interface,
        place: RankInfo,
        id: u64,
        config: Config,
        links: Links,
        waiter: SocketWaiter,
    ) -> Result<Self> {
        let Links { sockets, mesh, receive_bytes, peers, secret } = links;
        for (descriptor, token) in sockets.descriptors().into_iter().zip([GROUP, OWN]) {
            waiter.add(descriptor, token)?;
        }
        for (number, descriptor, _) in mesh.descriptors() {
            waiter.add(descriptor, number as u64)?;
        }
        let writable = vec![false; mesh.descriptors().count()];
        let mut conversation = Conversation::new(place, FIRST_OPERATION, config.eager_bytes.into());
        conversation.connect(id);
        let conditions = Conditions {
            selection: Selection::Multicast,
            ranks: place.ranks(),
            link_gbit_per_s: config.link_gbit_per_s,
            receive_threads: 1,
            chunk_bytes: config.chunk_bytes,
            mtu_bytes: interface.mtu_bytes(),
            staged: false,
            eager_bytes: conversation.eager_bytes(),
            direct: false,
        };
        let tap = interface.options().tap.as_ref().map(|make| make(place.rank(), place.ranks()));
        Ok(Self {
            codec: Codec::new(id, place.rank(), secret),
            window: Window::new(place, 1, WAITS),
            alpha: Alpha::new(config.overheads.in_ps()),
            stall: StallWindow::new(ps(config.overheads.cutoff_slack)),
            at_once: config.clone().chains(place.ranks()),
            interface,
            place,
            id,
            config,
            conditions,
            conversation,
            sockets,
            mesh,
            receive_bytes,
            peers,
            waiter,
            ready: Vec::new(),
            writable,
            incoming: Incoming::new(REORDER_CHUNKS),
            run: vec![0; RUN_BYTES],
            landing: Landings::new(),
            tap,
            current: None,
            waiting: VecDeque::new(),
            requests: Requests::default(),
            statistics: Statistics::default(),
            sent: SendReport::default(),
            broken: None,
            fault: None,
        })
    }

    /// Makes a posted operation the current one, and begins it.
    fn begin(&mut self, mut posted: Posted) -> Result<(), Box<Failed>> {
        let started = self.start(&mut posted);
        let Posted { request, plan, send, receive, posted_ps } = posted;
        let decision = match started {
            Ok(decision) => decision,
            Err(error) => {
                return Err(Box::new(Failed { error, send, receive: Some(receive), report: Report::default() }));
            }
        };
        let algorithm = decision.algorithm();
        let report = Report {
            phases: Phases(PhasesPs { posted_ps, armed_ps: Some(posted_ps), ..PhasesPs::default() }),
            decision,
            foreign_bytes: plan.foreign_bytes(),
            ..Report::default()
        };
        let pieces = plan.pieces();
        let mut running = Running {
            request,
            pieces,
            window_chunks: self.window_chunks(&plan),
            plan,
            send,
            receive,
            algorithm,
            operation: self.conversation.participant().operation(),
            state: State::Active,
            sending: None,
            watch: None,
            given_up: false,
            repairs: false,
            reads: VecDeque::new(),
            deadline_ps: u64::MAX,
            report,
        };
        let now_ps = self.interface.now_ps();
        let config = self.config_of(&running.plan);
        let Order { chains, turn, .. } = order(&running.plan, config, self.place.rank());
        let number = running.operation;
        let descriptor = descriptor(&running.plan, config, &self.alpha, number, (chains, algorithm));
        if algorithm == Algorithm::Eager {
            match running.eager(self.place.rank()) {
                Ok((blocks, bytes)) => self.conversation.start_eager(descriptor, blocks, bytes, now_ps),
                Err(error) => {
                    let Running { send, receive, report, .. } = running;
                    return Err(Box::new(Failed { error, send, receive: Some(receive), report }));
                }
            }
        } else {
            let begun = self.incoming.restart(&running.plan, &running.pieces, self.config.chunk_bytes);
            if let Err(error) = begun {
                let Running { send, receive, report, .. } = running;
                return Err(Box::new(Failed { error, send, receive: Some(receive), report }));
            }
            self.window.restart(running.window_chunks);
            let foreign = running.plan.foreign_pieces();
            self.conversation.start((descriptor, turn), Availability::default(), foreign);
            self.conversation.notify(now_ps, Notice::Armed);
            self.conversation.notify(now_ps, Notice::OwnBlock);
        }
        running.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
        self.current = Some(running);
        Ok(())
    }

    /// Chooses how an operation goes, and brings the own block to its place.
    fn start(&self, posted: &mut Posted) -> Result<crate::Decision> {
        let Posted { plan, send, receive, .. } = posted;
        let decision = self.conditions.decide(&plan.shape(), false);
        if let Some(send) = send {
            let at = plan.block(self.place.rank()).offset;
            receive.copy_from(at as usize, send, 0, send.len())?;
        }
        Ok(decision)
    }

    /// The configuration with the chains that an operation takes: all roots multicast at once where all of it has room in every receive buffer, and nobody
    /// has asked for another number.
    fn config_of(&self, plan: &Plan) -> &Config {
        let is_chosen = self.config.chains == 0 && self.config.chain_mapping == ChainMapping::Contiguous;
        let fits = plan.receive_bytes() <= self.receive_bytes / 2;
        if is_chosen && fits { &self.at_once } else { &self.config }
    }

    /// Chunks of each root that may be under way: what all who multicast at the same time send has room in every receive buffer.
    fn window_chunks(&self, plan: &Plan) -> u32 {
        let datagram_bytes = HEADER_BYTES as u64 + u64::from(self.config.chunk_bytes);
        let Order { chains, .. } = order(plan, self.config_of(plan), 0);
        // The system counts its bookkeeping: half of the room is for data, wherever datagrams come one by one.
        let chunks = self.receive_bytes / 2 / datagram_bytes / u64::from(chains.max(1));
        u32::try_from(chunks).unwrap_or(u32::MAX).clamp(1, send::MOST_WINDOW_CHUNKS)
    }

    fn advance(&mut self) -> Result<bool> {
        if let Some(error) = self.fault.take() {
            return Err(error);
        }
        let mut moved = false;
        let mut ready = std::mem::take(&mut self.ready);
        let polled = self.waiter.poll(&mut ready);
        for token in ready.iter().copied() {
            moved |= match token {
                GROUP => self.receive_data()?,
                OWN => self.receive_acknowledgements()?,
                number => self.receive_frames(number as usize),
            };
        }
        self.ready = ready;
        polled?;
        if self.current.is_none()
            && self.broken.is_none()
            && let Some(posted) = self.waiting.pop_front()
        {
            let request = posted.request;
            if let Err(failed) = self.begin(posted) {
                self.requests.finish(request, Err(failed));
                self.fail_here(Cause::Device(NOT_STARTED));
            }
            moved = true;
        }
        let now_ps = self.interface.now_ps();
        moved |= self.look(now_ps);
        moved |= self.poll_time(now_ps);
        self.carry_out(now_ps)?;
        moved |= self.send_some(now_ps)?;
        let buffer = self.current.as_ref().map_or(&[][..], |running| running.receive.bytes());
        moved |= self.mesh.flush(buffer);
        self.mesh.take_broken(|rank, code| {
            // Whoever leaves while nothing is under way has nothing to do with this rank any more.
            if self.current.is_some() {
                self.conversation.broken(rank, code);
            }
        });
        self.carry_out(now_ps)?;
        moved |= self.release(now_ps)?;
        self.want_room()?;
        Ok(moved)
    }

    /// Takes what a peer has sent over its connection. Returns whether there was anything.
    fn receive_frames(&mut self, number: usize) -> bool {
        let Self { mesh, conversation, current, .. } = self;
        let mut served: Vec<(u32, Read)> = Vec::new();
        let mut wrong: Option<u32> = None;
        let any = mesh.receive(number, &mut |event| match event {
            Event::Message { from, bytes } => conversation.hear(from, bytes),
            Event::Request { from, read } => {
                let running = current.as_ref().filter(|running| running.operation == read.operation);
                let len = running.map_or(0, |running| running.receive.len() as u64);
                match read.offset.checked_add(read.bytes) {
                    Some(end) if end <= len && read.bytes > 0 => served.push((from, read)),
                    _ => wrong = Some(from),
                }
            }
            Event::Data { from, operation, tag, offset, bytes } => {
                let running = current.as_mut().filter(|running| running.operation == operation);
                match running.map(|running| running.take_read(from, tag, offset, bytes)) {
                    Some(Some(Reading::Under)) => {}
                    Some(Some(Reading::Over { first })) => conversation.read(first),
                    // One that has failed here is not waited for any more.
                    None if current.is_none() => {}
                    _ => wrong = Some(from),
                }
            }
        });
        served.into_iter().for_each(|(to, read)| mesh.serve(to, read));
        if let Some(rank) = wrong {
            tracing::error!(rank, "what it reads, or sends, is not of this operation");
            mesh.distrust(rank);
        }
        any
    }

    /// Does what the protocol asks for.
    fn carry_out(&mut self, now_ps: u64) -> Result<()> {
        while let Some(next) = self.conversation.next() {
            match next {
                Next::Say { to, message, data } => self.mesh.say(to, message.as_bytes(), &data),
                Next::Do(Step::Multicast) => self.begin_to_send(now_ps),
                Next::Do(Step::Read { from, pieces, .. }) => self.fetch(from, &pieces)?,
                Next::Do(Step::Release) => {
                    if let Some(running) = self.current.as_mut() {
                        running.state.release();
                    }
                }
                Next::Do(Step::SendsFinished) => {}
                Next::Do(Step::Fail(failure)) => self.fail(failure),
            }
        }
        if let Some(running) = self.current.as_mut() {
            running.deadline_ps = self.conversation.participant().deadline_ps().unwrap_or(u64::MAX);
            self.conversation.note(now_ps, &mut running.report);
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
        self.broken = Some(failure);
        if let Some(running) = self.current.as_mut() {
            running.state.fail(failure);
            running.report.failure = Some(failure);
        }
        self.requests.refuse(self.waiting.drain(..), failure);
    }

    fn poll_time(&mut self, now_ps: u64) -> bool {
        let Self { current, incoming, conversation, stall, .. } = self;
        let running = current.as_mut();
        running
            .is_some_and(|running| watch::poll_time(running, incoming, conversation, (*stall, send::STUCK_PS), now_ps))
    }

    /// Ends an operation that all ranks are done with, or that has failed.
    fn release(&mut self, now_ps: u64) -> Result<bool> {
        let Some(mut running) = self.current.take_if(|running| running.is_over()) else { return Ok(false) };
        self.mesh.forget_serves();
        if let State::Failed(failure) = running.state {
            let error = Error::Failed { operation: running.plan.kind.name(), failure };
            let Running { request, send, receive, report, .. } = running;
            self.requests.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
            return Ok(true);
        }
        let phases = &mut running.report.phases.0;
        phases.released_ps = Some(now_ps);
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        if running.algorithm == Algorithm::Eager {
            if let Some((blocks, bytes)) = self.conversation.take_eager() {
                running.place_eager(self.place.rank(), &blocks, &bytes)?;
            }
        } else {
            if let (Some(received_ps), Some(ready_ps)) = (phases.received_ps, phases.ready_ps) {
                let steps_ps = activations_ps(&running.plan, self.config_of(&running.plan));
                let took_ps = received_ps.saturating_sub(ready_ps).saturating_sub(steps_ps);
                let bytes = running.plan.link_bytes(&self.config);
                self.alpha.observe(bytes, self.config.link_gbit_per_s, took_ps);
            }
            if let Some(watch) = running.watch {
                self.stall.observe(watch.longest_ps());
            }
        }
        let Running { request, send, receive, report, .. } = running;
        self.requests.finish(request, Ok(Done { send, receive, report }));
        Ok(true)
    }

    /// Waits for connections to become writable on which something waits, and for no others; and for none that has broken.
    fn want_room(&mut self) -> Result<()> {
        for (number, descriptor, wants) in self.mesh.descriptors() {
            if self.writable[number] != wants {
                self.waiter.change(descriptor, number as u64, wants)?;
                self.writable[number] = wants;
            }
        }
        self.mesh.take_closed(|descriptor| self.waiter.remove(descriptor));
        Ok(())
    }

    fn stream() -> Stream {
        Stream { subgroup: 0, peer: None }
    }
}

impl Datapath for Engine {
    fn place(&self) -> RankInfo {
        self.place
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn card(&self) -> Card {
        Card::of(Kind::Udp(self.interface.clone()))
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn now_ps(&self) -> u64 {
        self.interface.now_ps()
    }

    fn broken(&self) -> Option<Failure> {
        self.broken
    }

    fn takes(&self, buffer: &Buffer) -> bool {
        !buffer.is_registered()
    }

    fn check(&self, plan: &Plan) -> Result<()> {
        let mut table = Vec::new();
        check_chunks(plan.space(Self::stream(), &mut table)?.chunks())
    }

    fn take_on(&mut self, posted: Posted) -> Result<(), Box<Failed>> {
        if self.current.is_some() || !self.waiting.is_empty() {
            self.waiting.push_back(posted);
            return Ok(());
        }
        self.begin(posted).inspect_err(|_| self.fail_here(Cause::Device(NOT_STARTED)))?;
        // The first messages go at once; what fails here is found by whoever asks next.
        if let Err(error) = self.advance() {
            self.fault = Some(error);
        }
        Ok(())
    }

    fn requests(&mut self) -> &mut Requests {
        &mut self.requests
    }

    fn progress(&mut self) -> Result<bool> {
        let moved = self.advance();
        if moved.is_err() {
            self.requests.give_up();
        }
        moved
    }

    fn deadline_ps(&self) -> Option<u64> {
        if self.fault.is_some() || (self.current.is_none() && !self.waiting.is_empty()) {
            return Some(0);
        }
        let running = self.current.as_ref()?;
        let stalled_ps =
            running.stalled_ps(self.stall).filter(|_| self.incoming.remaining() > 0 && running.state.is_active());
        let quiet_ps = watch::quiet_ps(running, &self.incoming, receive::QUIET_PS);
        // What has room is sent at once.
        let window_ps = running.sending.as_ref().map(|sending| match self.window.room(sending.sent) {
            0 => self.window.deadline_ps().unwrap_or(u64::MAX),
            _ => sending.full_ps.map_or(0, |full_ps| full_ps.saturating_add(send::FULL_PS)),
        });
        let own_ps = stalled_ps.unwrap_or(running.deadline_ps);
        [Some(own_ps), quiet_ps, window_ps].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    fn fail_here(&mut self, cause: Cause) {
        let own = self.place.rank();
        let now_ps = self.interface.now_ps();
        self.conversation.notify(now_ps, Notice::Failed(Failure { culprit: own, witness: own, cause }));
        crate::datapath::Waiter::wake(&self.waiter);
    }

    fn fault(&mut self, error: Error) {
        self.fault = Some(error);
    }

    fn disagreement(&self) -> Option<Disagreement> {
        self.conversation.disagreement()
    }

    fn messages(&self) -> MessageCounts {
        self.conversation.messages()
    }

    fn is_flagged(&self) -> Result<bool> {
        Ok(false)
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        Ok(self.statistics)
    }

    fn send_statistics(&self) -> Result<SendReport> {
        Ok(self.sent)
    }
}
