//! The protocol on the card: the host's side of the progress thread, a DPA thread that runs it.
//!
//! The host gives orders, one at a time, and reads reports. Between an operation's order and its end it has nothing to do, unless
//! something is lost: then it watches the deadline that the report names, closes the receive contexts, says what is missing, and reads it.

mod setup;

use std::mem::{offset_of, size_of};

use flexcast_abi::progress::{
    COMMAND_DELIVERED, COMMAND_FAIL, COMMAND_POST, COMMAND_READ, COMMAND_TIME, NOBODY, REPORT_DISAGREES,
    REPORT_EVERYTHING, REPORT_FAILED, REPORT_READY, REPORT_RELEASED, REPORT_RELEASING,
};
use flexcast_abi::{CompletionFlag, FLAG_MAGIC, ProgressCommand, ProgressReport, ProgressThread, ProgressThreadStatus};
use flexcast_proto::sequencer::Turn;
use flexcast_proto::wire::Availability;
use flexcast_proto::{Action, Cause, Disagreement, Failure, Kind, OperationDescriptor, RankInfo, RankSet, Summary};
use flexio::{DeviceBuffer, DpaCompletionQueue, DpaQueuePair, EventHandler, MemoryKey, MemoryRegion};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::api::report::{MessageCounts, PhasesPs};
use crate::dpa::mailbox::{DeviceRange, Line, Mailbox, MailboxTarget};
use crate::error::Result;

/// Longest that the progress thread takes to answer an order.
const ANSWER_PS: u64 = 1_000_000_000_000;
/// Code of [`Cause::Device`] for a progress thread that does not answer.
const NO_ANSWER: u16 = u16::MAX;
/// Code of [`Cause::Device`] for one that cannot go on, beside its status.
const CONDUCTOR: u16 = 0x200;
/// Where the order lies, behind the context.
const COMMAND_AT: u64 = size_of::<ProgressThread>() as u64;

/// Where things lie in the progress thread's part of the shared host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared;

impl Shared {
    const fn report(self) -> usize {
        0
    }

    const fn flag(self) -> usize {
        self.report() + size_of::<ProgressReport>()
    }

    const fn order(self) -> usize {
        self.flag() + size_of::<CompletionFlag>()
    }

    pub(crate) const fn end(self) -> usize {
        self.order() + size_of::<ProgressCommand>()
    }
}

/// What a posted operation is, beside its descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) turn: Option<Turn>,
    pub(crate) receive_sequence: u64,
    /// 0: this rank does not send.
    pub(crate) send_sequence: u64,
    pub(crate) here: Availability,
}

/// The host's side of a progress thread.
#[derive(Debug)]
pub(crate) struct Conductor {
    place: RankInfo,
    handler: EventHandler,
    mailbox: Mailbox,
    mailbox_target: MailboxTarget,
    memory: MemoryKey,
    cq: DpaCompletionQueue,
    /// Ascending by rank.
    peers: Vec<(u32, DpaQueuePair)>,
    signals: DeviceBuffer,
    /// What the thread works in, once it is connected: its machine, contexts of peers, senders; and its messages.
    tables: Vec<DeviceBuffer>,
    messages: Option<MemoryKey>,
    host: MemoryRegion,
    shared: Shared,
    /// The next order, as far as it is known.
    order: ProgressCommand,
    /// Number of the last order that was given, and when.
    sequence: u64,
    ordered_ps: u64,
    /// That order was to look at the clock.
    timed: bool,
    report: ProgressReport,
    /// Number of the operation that is posted next.
    operation: u32,
    summary: Option<Summary>,
    /// Blocks that the engine has been asked to read.
    asked: RankSet,
    release_told: bool,
    failure_told: bool,
    lost: Option<Failure>,
}

impl Conductor {
    /// Takes a new report, if there is one.
    pub(crate) fn take_report(&mut self, now_ps: u64) -> Result<bool> {
        let at = self.shared.report();
        let number = self.host.read_u64(at + offset_of!(ProgressReport, end))?;
        if number == self.report.end {
            let waits = self.report.acknowledged != self.sequence && self.lost.is_none();
            if waits && now_ps.saturating_sub(self.ordered_ps) > ANSWER_PS {
                self.lose(NO_ANSWER);
                return Ok(true);
            }
            return Ok(false);
        }
        let mut bytes = [0; size_of::<ProgressReport>()];
        self.host.read(at, &mut bytes)?;
        let report = ProgressReport::read_from_bytes(&bytes).unwrap_or_default();
        // One that is being written is taken when it is whole.
        if report.begin != number || report.end != number {
            return Ok(false);
        }
        self.report = report;
        if report.status != ProgressThreadStatus::Running as u32 {
            tracing::error!(status = ?ProgressThreadStatus::from_raw(report.status), report.detail, "conductor failed");
            self.lose(CONDUCTOR | report.status as u16);
        }
        Ok(true)
    }

    /// Nothing more can be expected of the progress thread.
    fn lose(&mut self, code: u16) {
        let own = self.place.rank();
        self.lost.get_or_insert(Failure { culprit: own, witness: own, cause: Cause::Device(code) });
    }

    /// The same for a failure that somebody else has noticed.
    pub(crate) fn lose_to(&mut self, failure: Failure) {
        self.lost.get_or_insert(failure);
    }

    /// Gives the order that has gathered, if the last one is carried out.
    pub(crate) fn give_order(&mut self, now_ps: u64) -> Result<()> {
        if self.order.flags == 0 || self.report.acknowledged != self.sequence || !self.mailbox.is_free()? {
            return Ok(());
        }
        self.sequence += 1;
        self.ordered_ps = now_ps;
        self.timed = self.order.flags & COMMAND_TIME != 0;
        let order = ProgressCommand {
            sequence: self.sequence,
            now_ps,
            sequence_check: self.sequence,
            ..std::mem::take(&mut self.order)
        };
        let at = self.shared.order();
        self.host.write(at, order.as_bytes())?;
        let to = self.memory.buffer().addr().offset(COMMAND_AT);
        let from = self.host.slice(at as u64, size_of::<ProgressCommand>() as u32)?;
        let to = DeviceRange { address: to.get(), rkey: self.memory.id() };
        self.mailbox.write_from(Line { from, to });
        self.mailbox.ring()
    }

    /// Posts an operation, which begins when the receive contexts are armed.
    pub(crate) fn post(&mut self, descriptor: &OperationDescriptor, posting: Posting) {
        let Summary { kind, root, amount, chunk_bytes, chains } = descriptor.summary;
        let nobody = |position: Option<u32>| position.unwrap_or(NOBODY);
        let turn = posting.turn;
        self.order = ProgressCommand {
            flags: self.order.flags | COMMAND_POST,
            operation: self.operation,
            kind: kind as u32,
            root,
            amount,
            chunk_bytes,
            chains,
            barrier_timeout_ps: descriptor.barrier_timeout_ps,
            cutoff_ps: descriptor.cutoff_ps,
            bound_ps: descriptor.bound_ps,
            receive_sequence: posting.receive_sequence,
            send_sequence: posting.send_sequence,
            everybody: u32::from(kind != Kind::Broadcast),
            chain: nobody(turn.map(|turn| turn.chain)),
            step: turn.map_or(0, |turn| turn.step),
            predecessor: nobody(turn.and_then(|turn| turn.predecessor)),
            successor: nobody(turn.and_then(|turn| turn.successor)),
            rkey: posting.here.rkey,
            address: posting.here.address,
            ..self.order
        };
        self.operation = self.operation.wrapping_add(1);
        self.summary = Some(descriptor.summary);
        self.asked = RankSet::EMPTY;
        self.release_told = false;
    }

    pub(crate) fn delivered(&mut self, block: u32) {
        self.order.flags |= COMMAND_DELIVERED;
        insert(&mut self.order.delivered, block);
    }

    pub(crate) fn read(&mut self, block: u32) {
        self.order.flags |= COMMAND_READ;
        insert(&mut self.order.read, block);
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        let Failure { culprit, witness, cause } = failure;
        if self.order.flags & COMMAND_FAIL == 0 {
            self.order.flags |= COMMAND_FAIL;
            (self.order.culprit, self.order.witness, self.order.cause) = (culprit, witness, cause.to_bits());
        }
    }

    /// A deadline has passed, if it has. The same order is not given twice before it is carried out.
    pub(crate) fn handle_time(&mut self, now_ps: u64) {
        let asked = self.timed && self.report.acknowledged != self.sequence;
        if now_ps >= self.report.deadline_ps && !asked {
            self.order.flags |= COMMAND_TIME;
        }
    }

    pub(crate) fn deadline_ps(&self) -> Option<u64> {
        (self.report.deadline_ps != u64::MAX).then_some(self.report.deadline_ps)
    }

    /// Number of the next operation.
    pub(crate) fn operation(&self) -> u32 {
        self.operation
    }

    /// Whether the report is about the operation posted last.
    fn is_current(&self) -> bool {
        self.report.operation == self.operation.wrapping_sub(1)
    }

    fn has(&self, flag: u32) -> bool {
        self.is_current() && self.report.flags & flag != 0
    }

    /// What the engine has to do.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        if self.is_current() {
            let to_read = RankSet::from_words(self.report.to_read).without(&self.asked);
            if let Some(block) = to_read.first() {
                self.asked.insert(block);
                return Some(Action::Read { from: self.place.left(), block });
            }
            if self.has(REPORT_RELEASING) && !self.release_told {
                self.release_told = true;
                return Some(Action::Release);
            }
        }
        let failure = self.failure().or(self.lost)?;
        (!std::mem::replace(&mut self.failure_told, true)).then_some(Action::Fail(failure))
    }

    fn failure(&self) -> Option<Failure> {
        let ProgressReport { culprit, witness, cause, flags, .. } = self.report;
        (flags & REPORT_FAILED != 0).then(|| {
            let cause = Cause::from_bits(cause).unwrap_or(Cause::Device(CONDUCTOR));
            Failure { culprit, witness, cause }
        })
    }

    /// When the operation got where, as far as the card knows.
    pub(crate) fn note_phases(&self, phases: &mut PhasesPs) {
        if !self.is_current() {
            return;
        }
        let note = |phase: &mut Option<u64>, at_ps: u64| *phase = (at_ps != 0).then_some(at_ps);
        let report = &self.report;
        note(&mut phases.armed_ps, report.armed_ps);
        note(&mut phases.ready_ps, report.ready_ps);
        note(&mut phases.sending_ps, report.sending_ps);
        note(&mut phases.sent_ps, report.sent_ps);
        note(&mut phases.received_ps, report.received_ps);
        note(&mut phases.complete_ps, report.complete_ps);
        note(&mut phases.released_ps, report.released_ps);
    }

    pub(crate) fn ready_ps(&self) -> Option<u64> {
        self.has(REPORT_READY).then_some(self.report.ready_ps)
    }

    pub(crate) fn has_everything(&self) -> bool {
        self.has(REPORT_EVERYTHING)
    }

    /// Whether the operation posted last is over, sends included.
    pub(crate) fn is_released(&self) -> bool {
        self.has(REPORT_RELEASED)
    }

    /// Whether the card has written the flag of the operation posted last. Looks at host memory and nothing else.
    pub(crate) fn is_flagged(&self) -> Result<bool> {
        let value = self.host.read_u64(self.shared.flag())?;
        Ok(value == FLAG_MAGIC + u64::from(self.operation.wrapping_sub(1)))
    }

    /// Where blocks can be read.
    pub(crate) fn availability(&self) -> Availability {
        Availability { address: self.report.address, rkey: self.report.rkey }
    }

    pub(crate) fn fetches(&self) -> u64 {
        if self.is_current() { self.report.fetches.into() } else { 0 }
    }

    pub(crate) fn messages(&self) -> MessageCounts {
        let [barrier, activate, fetch, acknowledge, last, failed] = self.report.messages;
        MessageCounts { barrier, activate, fetch, acknowledge, last, failed }
    }

    pub(crate) fn disagreement(&self) -> Option<Disagreement> {
        let report = &self.report;
        let own = self.summary.filter(|_| report.flags & REPORT_DISAGREES != 0)?;
        let kind = Kind::from_raw(report.their_kind as u8).ok()?;
        let theirs = Summary {
            kind,
            root: report.their_root,
            amount: report.their_amount,
            chunk_bytes: report.their_chunk_bytes,
            chains: report.their_chains,
        };
        Some(Disagreement { rank: report.their_rank, theirs, own })
    }
}

fn insert(words: &mut [u64; 16], rank: u32) {
    if let Some(word) = words.get_mut(rank as usize / 64) {
        *word |= 1 << (rank % 64);
    }
}
