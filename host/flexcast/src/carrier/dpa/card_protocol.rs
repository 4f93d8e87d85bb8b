//! Protocol of a communicator on its card: the host's side of the progress thread, a DPA thread that runs the state
//! machine.
//!
//! The host gives commands, one at a time, and polls completions. Between an operation's command and its completion it
//! has nothing to do, unless something is lost: then it watches the clock, closes the receive contexts when multicast
//! has stalled, and says so. What is missing the progress thread finds and reads by itself.

mod setup;

use std::mem::{offset_of, size_of};
use std::ops::Range;

use flexcast_abi::progress::{
    COMMAND_CUT_OFF, COMMAND_EAGER, COMMAND_FAIL, COMMAND_FOLLOW, COMMAND_POST, COMMAND_PROBE, COMMAND_TIME, NOBODY,
    REPORT_DISAGREES, REPORT_EVERYTHING, REPORT_FAILED, REPORT_READING, REPORT_READY, REPORT_RELEASED,
    REPORT_RELEASING,
};
use flexcast_abi::progress::{REPORTS_BYTES, ROUNDS};
use flexcast_abi::{
    ProgressCall, ProgressCommand, ProgressDetail, ProgressFlag, ProgressReport, ProgressThread, ProgressThreadStatus,
};
use flexcast_proto::eager::Carriage;
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{
    Action, Algorithm, Cause, Disagreement, Failure, FailureCode, Kind, Message, OperationDescriptor, RankInfo, Summary,
};
use flexio::{
    Access, DeviceBuffer, DpaCompletionQueue, DpaQueuePair, EventHandler, HostBuffer, MemoryKey, MemoryRegion,
    ProtectionDomain, QueuePair,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::carrier::connect_info::Ends;
use crate::carrier::dpa::mailbox::{DeviceRange, Mailbox, MailboxTarget, SHORT_BYTES};
use crate::carrier::dpa::protocol::{Posting, QueuePairs};
use crate::engine::Protocol;
use crate::engine::eager::Gathered;
use crate::engine::event::Event;
use crate::error::Result;
use crate::op::report::{MessageCounts, PhasesPs, Report};
use crate::plan::tuner::Losses;
use flexcast_rc::requester::KEEP_ALIVE_PS;

/// Longest that the progress thread takes to answer a command.
const ANSWER_PS: u64 = 1_000_000_000_000;
/// Where the command lies, behind the context.
const COMMAND_AT: u64 = size_of::<ProgressThread>() as u64;

/// Where things lie in the progress thread's part of the shared host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared;

impl Shared {
    /// The reports, and behind them the details.
    const fn reports(self) -> usize {
        0
    }

    const fn report(self, number: u64) -> usize {
        self.reports() + (number % 2) as usize * size_of::<ProgressReport>()
    }

    const fn detail(self, number: u32) -> usize {
        self.reports() + 2 * size_of::<ProgressReport>() + (number % 2) as usize * size_of::<ProgressDetail>()
    }

    const fn flag(self) -> usize {
        self.reports() + REPORTS_BYTES
    }

    pub(crate) const fn end(self) -> usize {
        self.flag() + size_of::<ProgressFlag>()
    }
}

/// Rows of eager data: one of operations with even numbers, one of the others. A peer that is an operation ahead of
/// this rank writes to the other one, and none can be further ahead.
///
/// Peers write behind the middle of a row, and the own block ends there: what a signal carries is in a row all the
/// same, and a peer that has called something else, with blocks of other lengths, does not write to the own block,
/// which others are still sent.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) memory: MemoryRegion,
    /// Most bytes of all blocks, of whole lines: half of a row.
    half: usize,
}

impl Rows {
    fn new(pd: &ProtectionDomain, eager_bytes: usize) -> Result<Self> {
        let half = eager_bytes.next_multiple_of(64);
        let memory = HostBuffer::zeroed(4 * half)?;
        Ok(Self { memory: MemoryRegion::register(pd, memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?, half })
    }

    /// From one row to the next.
    pub(crate) const fn stride(&self) -> usize {
        2 * self.half
    }

    /// Address of the middle of the first row, where peers begin to write.
    pub(crate) fn address(&self) -> u64 {
        self.memory.addr().get() + self.half as u64
    }

    /// Where the own block of an operation begins.
    const fn of(&self, operation: u32, own_bytes: usize) -> usize {
        let row = if operation.is_multiple_of(2) { 0 } else { self.stride() };
        row + self.half - own_bytes
    }
}

/// An eager operation: its number, and where each rank's block belongs.
type Gathering = (u32, Vec<Range<usize>>);

/// Queue pairs for reads of what multicast has lost.
#[derive(Debug)]
struct Repair {
    /// The card's, to the left neighbour.
    reader: DpaQueuePair,
    /// For the right neighbour's reads, in which no thread and no program has a part.
    answerer: QueuePair,
}

/// The host's side of a progress thread.
#[derive(Debug)]
pub(crate) struct CardProtocol {
    place: RankInfo,
    handler: EventHandler,
    mailbox: Mailbox,
    mailbox_target: MailboxTarget,
    memory: MemoryKey,
    cq: DpaCompletionQueue,
    /// Ascending by rank.
    peers: Vec<(u32, DpaQueuePair)>,
    /// What the card reads from the left neighbour by, and what the right one reads here by; none if this rank is
    /// alone.
    repair: Option<Repair>,
    signals: DeviceBuffer,
    /// What the thread works in, once it is connected: its state machine, contexts of peers, senders; and its messages.
    tables: Vec<DeviceBuffer>,
    messages: Option<MemoryKey>,
    host: MemoryRegion,
    shared: Shared,
    /// The next command, as far as it is known.
    command: ProgressCommand,
    /// Number of the last command that was given, and when.
    sequence: u64,
    given_ps: u64,
    /// Number of the last command that is carried out.
    acknowledged: u64,
    /// That command was to read the clock.
    timed: bool,
    completion: ProgressReport,
    detail: ProgressDetail,
    /// Most bytes of all blocks of an eager operation, and memory for them, if there are any.
    eager_bytes: u32,
    rows: Option<Rows>,
    gathering: Option<Gathering>,
    /// Number of the operation that is posted next.
    operation: u32,
    summary: Option<Summary>,
    /// The receive contexts of the current operation have been closed: the card may read from the left neighbour.
    cut_off: bool,
    /// Steps that the engine has been given: of the current operation the first two, of the communicator the last.
    release_given: bool,
    finish_given: bool,
    failure_given: bool,
    lost: Option<Failure>,
    /// Operations for which the network counts as one that loses packets.
    losses: Losses,
    /// Whether an empty write follows each message of the card.
    follows: bool,
    /// Timeout of the card's connections.
    timeout_ps: u64,
}

/// The call of a report; none if its codes name nothing.
fn called(call: &ProgressCall) -> Option<Summary> {
    let ProgressCall { kind, algorithm, root, chunk_bytes, chains, amount, .. } = *call;
    let (kind, algorithm) = (Kind::from_raw(kind as u8).ok()?, Algorithm::from_raw(algorithm as u8).ok()?);
    Some(Summary { kind, root, amount, chunk_bytes, chains, algorithm })
}

impl CardProtocol {
    /// What the progress thread has announced: the number of its last report, modulo 2^32, and that of the last
    /// operation that is over.
    fn announced(&self) -> Result<(u32, u32)> {
        let value = self.host.read_u64(self.shared.flag() + offset_of!(ProgressFlag, announced))?;
        Ok((value as u32, (value >> 32) as u32))
    }

    /// Takes a new completion, if there is one. Returns whether there was.
    ///
    /// # Errors
    /// The shared memory cannot be read.
    pub(crate) fn poll(&mut self, now_ps: u64) -> Result<bool> {
        let acknowledged = self.host.read_u64(self.shared.flag() + offset_of!(ProgressFlag, acknowledged))?;
        let moved = acknowledged != self.acknowledged;
        self.acknowledged = acknowledged;
        let (number, over) = self.announced()?;
        if number == self.completion.number as u32 {
            if over == self.operation.wrapping_sub(1) && self.gathering.is_some() && !self.has(REPORT_RELEASED) {
                self.end_eager(over, now_ps);
                return Ok(true);
            }
            let waits = acknowledged != self.sequence && self.lost.is_none();
            if waits && now_ps.saturating_sub(self.given_ps) > ANSWER_PS {
                self.lose(FailureCode::ProgressThreadSilent);
                return Ok(true);
            }
            return Ok(moved);
        }
        let mut bytes = [0; size_of::<ProgressReport>()];
        self.host.read(self.shared.report(number.into()), &mut bytes)?;
        let completion = ProgressReport::read_from_bytes(&bytes).unwrap_or_default();
        let mut detail = self.detail;
        if completion.detail != detail.number {
            let mut bytes = [0; size_of::<ProgressDetail>()];
            self.host.read(self.shared.detail(completion.detail), &mut bytes)?;
            detail = ProgressDetail::read_from_bytes(&bytes).unwrap_or_default();
        }
        // If another report has come meanwhile, the one after it may be on its way to where this one was read.
        if self.announced()?.0 != number || completion.number as u32 != number || detail.number != completion.detail {
            return Ok(moved);
        }
        (self.completion, self.detail) = (completion, detail);
        if detail.status != ProgressThreadStatus::Running as u32 {
            tracing::error!(status = ?ProgressThreadStatus::from_raw(detail.status), detail.detail, "progress thread \
                failed");
            self.lose(match ProgressThreadStatus::from_raw(detail.status) {
                Ok(ProgressThreadStatus::ControlError) => FailureCode::ProgressControl,
                Ok(ProgressThreadStatus::InvalidCommand) => FailureCode::ProgressCommand,
                Ok(ProgressThreadStatus::Running) | Err(_) => FailureCode::UnknownCause,
            });
        }
        Ok(true)
    }

    /// An eager operation is over, which the thread announces without a report.
    fn end_eager(&mut self, operation: u32, now_ps: u64) {
        let completion = &mut self.completion;
        completion.operation = operation;
        completion.flags |= REPORT_READY | REPORT_EVERYTHING | REPORT_RELEASING | REPORT_RELEASED;
        (completion.sending_ps, completion.sent_ps, completion.received_ps, completion.fetches) = (0, 0, 0, 0);
        completion.reads = 0;
        (completion.armed_ps, completion.ready_ps) = (self.given_ps, now_ps);
        (completion.complete_ps, completion.released_ps, completion.deadline_ps) = (now_ps, now_ps, u64::MAX);
        // The thread counts these, too, and reports the sum next time.
        let [barrier, ..] = &mut completion.messages;
        *barrier = barrier.wrapping_add(u32::BITS - (self.place.ranks() - 1).leading_zeros());
    }

    /// Nothing more can be expected of the progress thread.
    fn lose(&mut self, code: FailureCode) {
        let own = self.place.rank();
        self.lost.get_or_insert(Failure { failed_rank: own, detecting_rank: own, cause: Cause::Device(code) });
    }

    /// Gives the command that has gathered, if the last one is carried out.
    fn give_command(&mut self, now_ps: u64) -> Result<()> {
        if self.command.flags == 0 || self.acknowledged != self.sequence || !self.mailbox.is_free()? {
            return Ok(());
        }
        self.sequence += 1;
        self.given_ps = now_ps;
        self.timed = self.command.flags & COMMAND_TIME != 0;
        let command = ProgressCommand {
            sequence: self.sequence,
            now_ps,
            sequence_check: self.sequence,
            ..std::mem::take(&mut self.command)
        };
        let to = DeviceRange { address: self.memory.buffer().addr().offset(COMMAND_AT).get(), rkey: self.memory.id() };
        for (part, address) in command.as_bytes().chunks(SHORT_BYTES).zip((to.address..).step_by(SHORT_BYTES)) {
            self.mailbox.write(part, DeviceRange { address, ..to });
        }
        self.mailbox.ring()
    }

    /// Adds an operation to the next command. It begins when the receive contexts are armed.
    pub(crate) fn start(&mut self, posting: &Posting) {
        let Posting { descriptor, turn, here, lkey, receive_sequence, send_sequence } = *posting;
        let Summary { kind, root, amount, chunk_bytes, chains, .. } = descriptor.summary;
        let follow = self.follow();
        let nobody = |position: Option<u32>| position.unwrap_or(NOBODY);
        self.command = ProgressCommand {
            flags: self.command.flags | COMMAND_POST | follow,
            operation: self.operation,
            pieces: descriptor.pieces,
            kind: kind as u32,
            root,
            amount,
            chunk_bytes,
            chains,
            barrier_timeout_ps: descriptor.barrier_timeout_ps,
            cutoff_ps: descriptor.cutoff_ps,
            bound_ps: descriptor.bound_ps,
            receive_sequence,
            send_sequence,
            everybody: u32::from(kind != Kind::Broadcast),
            chain: nobody(turn.map(|turn| turn.chain)),
            step: turn.map_or(0, |turn| turn.step),
            predecessor: nobody(turn.and_then(|turn| turn.predecessor)),
            successor: nobody(turn.and_then(|turn| turn.successor)),
            rkey: here.rkey,
            address: here.address,
            lkey,
            ..self.command
        };
        self.begin(descriptor.summary);
    }

    /// What a post says of the network: whether it begins to lose packets, or loses none any more.
    const fn follow(&mut self) -> u32 {
        let follows = self.losses.are_expected();
        let changes = follows != self.follows;
        self.follows = follows;
        if changes { COMMAND_FOLLOW } else { 0 }
    }

    /// Begins to follow the operation that the next command posts.
    fn begin(&mut self, summary: Summary) {
        self.operation = self.operation.wrapping_add(1);
        self.losses.begin();
        self.summary = Some(summary);
        self.cut_off = false;
        self.gathering = None;
        (self.release_given, self.finish_given) = (false, false);
    }

    /// The ranks in the order of their blocks in the own row.
    fn in_row(&self) -> impl Iterator<Item = u32> + use<> {
        let (own, ranks) = (self.place.rank(), self.place.ranks());
        (0..ranks).map(move |behind| (own + ranks - behind) % ranks)
    }

    fn fail(&mut self, failure: Failure) {
        let Failure { failed_rank, detecting_rank, cause } = failure;
        if self.command.flags & COMMAND_FAIL == 0 {
            self.command.flags |= COMMAND_FAIL;
            (self.command.culprit, self.command.witness, self.command.cause) =
                (failed_rank, detecting_rank, cause.to_bits());
        }
    }

    /// The ends of the connections for reads.
    fn ends(&self) -> Vec<Ends> {
        let Some(Repair { reader, answerer }) = &self.repair else { return Vec::new() };
        let (left, right) = (self.place.left(), self.place.right());
        let (asking, answering) = (reader.number(), answerer.qpn());
        if left == right {
            return vec![Ends { peer: left, asking, answering }];
        }
        vec![Ends { peer: left, asking, answering: 0 }, Ends { peer: right, asking: 0, answering }]
    }

    /// A deadline has passed, if it has. The same command is not given twice before it is carried out.
    fn handle_time(&mut self, now_ps: u64) {
        let asked = self.timed && self.acknowledged != self.sequence;
        if now_ps >= self.completion.deadline_ps && !asked {
            self.command.flags |= COMMAND_TIME;
        }
    }

    /// When [`CardProtocol::flush`] is to be called although nothing has happened: after no command for long, while an
    /// operation is under way, it has the progress thread probe the peer for which it waits.
    pub(crate) fn flush_ps(&self) -> Option<u64> {
        let is_under_way = self.summary.is_some() && !self.has(REPORT_RELEASED);
        let has_failed = self.lost.is_some() || self.completion.flags & REPORT_FAILED != 0;
        (is_under_way && !has_failed && self.acknowledged == self.sequence)
            .then(|| self.given_ps.saturating_add(KEEP_ALIVE_PS))
    }

    /// Whether the completion is about the operation posted last.
    fn is_current(&self) -> bool {
        self.completion.operation == self.operation.wrapping_sub(1)
    }

    fn has(&self, flag: u32) -> bool {
        self.is_current() && self.completion.flags & flag != 0
    }

    fn failure(&self) -> Option<Failure> {
        let ProgressDetail { culprit: failed_rank, witness: detecting_rank, cause, .. } = self.detail;
        (self.completion.flags & REPORT_FAILED != 0).then(|| {
            let cause = Cause::from_bits(cause).unwrap_or(Cause::Device(FailureCode::UnknownCause));
            Failure { failed_rank, detecting_rank, cause }
        })
    }

    /// Enters when the operation got where, as far as the card knows.
    fn note_phases(&self, phases: &mut PhasesPs) {
        let note = |phase: &mut Option<u64>, at_ps: u64| *phase = (at_ps != 0).then_some(at_ps);
        let completion = &self.completion;
        note(&mut phases.armed_ps, completion.armed_ps);
        note(&mut phases.ready_ps, completion.ready_ps);
        note(&mut phases.sending_ps, completion.sending_ps);
        note(&mut phases.sent_ps, completion.sent_ps);
        note(&mut phases.received_ps, completion.received_ps);
        note(&mut phases.complete_ps, completion.complete_ps);
        note(&mut phases.released_ps, completion.released_ps);
    }
}

impl CardProtocol {
    pub(crate) fn queue_pairs(&self) -> QueuePairs {
        let control = self.peers.iter().map(|(rank, qp)| (*rank, qp.number())).collect();
        let rows = self.rows.as_ref().map_or((0, 0), |rows| (rows.address(), rows.memory.rkey()));
        QueuePairs { control, ends: self.ends(), rows }
    }

    /// Most bytes of all blocks of an operation that the thread carries on its barrier; at most half of them on one
    /// message.
    pub(crate) fn eager_bytes(&self) -> u64 {
        self.eager_bytes.into()
    }

    /// Gives the thread the command that has gathered.
    ///
    /// # Errors
    /// The card refuses.
    pub(crate) fn flush(&mut self, now_ps: u64) -> Result<()> {
        if self.flush_ps().is_some_and(|at_ps| now_ps >= at_ps) {
            self.command.flags |= COMMAND_PROBE;
        }
        self.give_command(now_ps)
    }

    /// When the barrier of the current operation was passed, in picoseconds of the card's clock.
    pub(crate) fn ready_ps(&self) -> Option<u64> {
        self.has(REPORT_READY).then_some(self.completion.ready_ps)
    }

    /// Whether multicast is over for the right neighbour, as far as the thread has reported.
    pub(crate) fn is_over_for_neighbour(&self) -> bool {
        self.is_current() && self.completion.fetches > 0
    }

    /// Whether the card is done with the current operation, the own sends among it.
    pub(crate) fn is_released(&self) -> bool {
        self.has(REPORT_RELEASED)
    }

    /// Whether the card has written that the operation posted last is over. Polls host memory and nothing else.
    ///
    /// # Errors
    /// The shared memory cannot be read.
    pub(crate) fn is_flagged(&self) -> Result<bool> {
        let (number, over) = self.announced()?;
        // Before the first operation nothing has been announced.
        Ok((number, over) != (0, 0) && over == self.operation.wrapping_sub(1))
    }

    /// Whether no read of the thread is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        // A thread that reports nothing any more may still read once it has begun to.
        let may_read = self.lost.is_some() && self.cut_off && !self.has(REPORT_EVERYTHING);
        !may_read && self.completion.flags & REPORT_READING == 0
    }
}

impl Protocol for CardProtocol {
    fn operation(&self) -> u32 {
        self.operation
    }

    fn start_eager(
        &mut self,
        descriptor: OperationDescriptor,
        Gathered { blocks, bytes }: Gathered,
        now_ps: u64,
    ) -> Result<()> {
        let Some(rows) = &self.rows else { return Ok(()) };
        let own = blocks[self.place.rank() as usize].clone();
        rows.memory.write(rows.of(descriptor.operation, own.len()), &bytes[own])?;
        let Summary { kind, root, amount, chunk_bytes, chains, .. } = descriptor.summary;
        let follow = self.follow();
        let mut eager = [0; ROUNDS];
        let rounds = u32::BITS - (self.place.ranks() - 1).leading_zeros();
        for (round, carried) in (0..).zip(&mut eager).take(rounds as usize) {
            let length = |rank: u32| blocks[rank as usize].len() as u64;
            let Carriage { bytes, offset } = Carriage::new(self.place, round, length);
            // Behind the receiver's own block, which is not where peers write.
            let offset = offset - length(self.place.ahead(1 << round));
            // Of 64 KiB at most a signal carries no more than half, and what it carries ends within.
            if bytes > 0 {
                *carried = bytes as u32 | (offset as u32) << 16;
            }
        }
        self.command = ProgressCommand {
            flags: self.command.flags | COMMAND_POST | COMMAND_EAGER | follow,
            operation: self.operation,
            kind: kind as u32,
            root,
            amount,
            chunk_bytes,
            chains,
            barrier_timeout_ps: descriptor.barrier_timeout_ps,
            bound_ps: descriptor.bound_ps,
            eager,
            ..self.command
        };
        self.begin(descriptor.summary);
        // The thread begins at once, and reports when it has something to say.
        self.completion.deadline_ps = now_ps.saturating_add(descriptor.barrier_timeout_ps);
        self.gathering = Some((descriptor.operation, blocks));
        Ok(())
    }

    fn start_direct(&mut self, _: OperationDescriptor, _now_ps: u64) {}

    fn take_eager(&mut self) -> Result<Option<Gathered>> {
        let (Some((operation, blocks)), Some(rows)) = (self.gathering.take(), &self.rows) else { return Ok(None) };
        let mut bytes = vec![0; blocks.iter().map(Range::len).sum()];
        let mut at = rows.of(operation, blocks[self.place.rank() as usize].len());
        for rank in self.in_row() {
            let block = &mut bytes[blocks[rank as usize].clone()];
            if !block.is_empty() {
                rows.memory.read(at, block)?;
            }
            at += block.len();
        }
        Ok(Some(Gathered { blocks, bytes }))
    }

    fn handle(&mut self, now_ps: u64, event: Event<'_>) {
        match event {
            // Connections of the card are the thread's.
            Event::Message { .. } | Event::Read { .. } | Event::Broken { .. } | Event::Wrong { .. } => {}
            // The card's threads signal these to one another.
            Event::Armed | Event::Received | Event::Sent => {}
            // It was in the receive buffer before the operation began.
            Event::OwnBlock | Event::Progressed => {}
            Event::Transferred { .. } | Event::TransferredAll | Event::Disagrees { .. } => {}
            // Nothing is read before the cutoff: see `DpaProtocol::is_on_host`.
            Event::Lost { .. } | Event::Placed { .. } => {}
            Event::CutOff { lost } => {
                self.losses.note(!lost.is_empty());
                // Which these are the progress thread sees by itself.
                self.command.flags |= COMMAND_CUT_OFF;
                self.cut_off = true;
            }
            Event::Failed(failure) => self.fail(failure),
            Event::Crashed(failure) => _ = self.lost.get_or_insert(failure),
            Event::Time => self.handle_time(now_ps),
        }
    }

    fn next(&mut self) -> Option<Action> {
        if self.is_current() {
            if self.has(REPORT_RELEASING) && !std::mem::replace(&mut self.release_given, true) {
                return Some(Action::Release);
            }
            if self.has(REPORT_RELEASED) && !std::mem::replace(&mut self.finish_given, true) {
                // A message that was lost, in this operation or at a rank that therefore came late to it.
                let took_ps = self.completion.released_ps.saturating_sub(self.completion.armed_ps);
                self.losses.note(took_ps >= self.timeout_ps / 2);
            }
        }
        let failure = self.failure().or(self.lost)?;
        (!std::mem::replace(&mut self.failure_given, true)).then_some(Action::Fail(failure))
    }

    fn encode(&mut self, _: &Message) -> Option<(Encoded, Vec<u8>)> {
        None
    }

    fn offer(&self) -> Option<Availability> {
        None
    }

    fn deadline_ps(&self) -> Option<u64> {
        (self.completion.deadline_ps != u64::MAX).then_some(self.completion.deadline_ps)
    }

    fn note(&self, now_ps: u64, report: &mut Report) {
        if self.is_current() {
            self.note_phases(&mut report.phases.0);
            if self.has(REPORT_EVERYTHING) {
                report.phases.0.complete_ps.get_or_insert(now_ps);
            }
            report.fetches_served = self.completion.fetches.into();
            report.reads = self.completion.reads.into();
        }
    }

    fn messages(&self) -> MessageCounts {
        let [barrier, activate, fetch, acknowledge, last, failed] = self.completion.messages.map(u64::from);
        MessageCounts { barrier, activate, fetch, acknowledge, last, failed }
    }

    fn disagreement(&self) -> Option<Disagreement> {
        let detail = &self.detail;
        let disagrees = self.completion.flags & REPORT_DISAGREES != 0;
        let calls = disagrees.then_some([&detail.culprit_call, &detail.witness_call])?.map(called);
        let [Some(theirs), Some(own)] = calls else { return None };
        Some(Disagreement { ranks: [detail.culprit, detail.witness], calls: [theirs, own] })
    }
}
