//! Control messages: receiving and sending.
//!
//! The thread has no timer, so it cannot detect that a peer acknowledges nothing. Instead the host's posts of the 64
//! operations after a loss ask for an empty write behind the messages
//! ([`COMMAND_FOLLOW`](dpa::abi::progress::COMMAND_FOLLOW)). By the packet number of that write the peer's card detects
//! that a message before it is missing.

use dpa::abi::progress::{LOSSY, MESSAGE_BYTES, NOBODY};
use dpa::abi::{ProgressPeer, ProgressSetUp};
use dpa::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED, SendWqe, WriteWqe};
use dpa::hw::{ControlSegment, CqeOpcode, WqeOpcode};
use dpa::proto::wire::{Availability, FIXED_BYTES, FIXED_WORDS, MAX_BYTES};
use dpa::proto::{Body, Cause, Codec, Failure, FailureCode, Message, Signal, Summary};
use dpa::{CompletionQueue, Messages, Outbox, ReceiveQueue, SendQueue, fence};
use zerocopy::IntoBytes as _;

use super::ProgressEngine;
use super::repair::has_room;

/// Words of the longest message.
const WORDS: usize = MAX_BYTES.div_ceil(8);

const _: () = assert!(WORDS as u64 * 8 <= MESSAGE_BYTES);

/// Most entries of a message: its eager data, itself, and what follows it.
pub(super) const MESSAGE_ENTRIES: u64 = 3;
/// Of entries every so many is completed visibly, and each message that has eager data. A queue without room has such
/// an entry under way.
const SIGNALLED: u64 = 8;

/// Where the round of a signal is in its third word.
const ROUND_SHIFT: u32 = 32;
const ROUND: u64 = 0xFF << ROUND_SHIFT;

/// Whether a peer's send queue has no room for a message.
const fn is_full(peer: &ProgressPeer) -> bool {
    peer.produced - peer.completed > (1 << peer.send_queue.log_depth()) - MESSAGE_ENTRIES
}

impl ProgressEngine<'_> {
    /// Consumes completions until none is left (true) or the budget is used up (false).
    #[inline(never)]
    pub(super) fn take_messages(&mut self, budget: &mut u64) -> bool {
        let cq = CompletionQueue::attach(&self.set_up.message_cq);
        let mut left = *budget;
        while left > 0 && cq.is_ready(self.state.consumed) {
            left -= 1;
            fence::memory_read();
            let entry = cq.entry(self.state.consumed);
            let (opcode, index) = (entry.op_own() >> 4, entry.user_index() as usize);
            if opcode == CqeOpcode::Send as u64 {
                self.receive(index, u64::from(entry.wqe_counter()), entry.byte_count());
            } else if opcode == CqeOpcode::Requester as u64 {
                self.completed(index, entry.wqe_counter());
            } else {
                self.broken(index, FailureCode::of_syndrome(entry.syndrome()));
            }
            self.state.consumed += 1;
        }
        // No fence: branches up to here depended on all that was read of the entries given back.
        cq.set_consumer(self.state.consumed);
        *budget = left;
        left > 0 || !cq.is_ready(self.state.consumed)
    }

    /// The entry of a peer's send queue with this number, modulo 2^16, and all before it are complete.
    fn completed(&mut self, index: usize, number: u16) {
        let Some(peer) = self.peers.get(index).filter(|peer| peer.broken == 0) else { return };
        let was_full = is_full(peer);
        peer.completed += u64::from(number.wrapping_sub(peer.completed as u16)) + 1;
        if peer.reads_row_until != 0 && peer.reads_row_until <= peer.completed {
            peer.reads_row_until = 0;
            self.state.reading -= 1;
        }
        self.state.full -= u32::from(was_full && !is_full(peer));
        let completed = peer.completed;
        if self.state.follows & LOSSY != 0 && self.reads_over(index) {
            self.reads_completed(completed);
        }
    }

    /// A message has come into receive entry number `counter`.
    fn receive(&mut self, index: usize, counter: u64, bytes: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        let rank = peer.rank;
        let queue = ReceiveQueue::attach(&peer.receive_queue);
        let slot = (peer.first_slot + (counter & (queue.depth() - 1))) * MESSAGE_BYTES;
        peer.received += 1;
        let producer = peer.received + queue.depth();
        if bytes as usize == FIXED_BYTES
            && let Some(words) = self.messages.words(slot)
            && let Some(round) = self.agreed_round(&words)
        {
            // It is out of the slot before the next one may come there.
            fence::memory();
            queue.set_producer(producer);
            if self.participant.handle_agreed(rank, round).is_err() {
                self.distrust(rank);
            }
            return;
        }
        self.receive_other(&queue, producer, (rank, slot, bytes));
    }

    /// The round of a message that is a signal of the barrier under way, of a rank that has called the same.
    #[inline]
    fn agreed_round(&self, words: &[u64; FIXED_WORDS]) -> Option<u8> {
        let differs = |(word, own): (&u64, &u64)| word ^ own;
        let mut all = words.iter().zip(&self.state.signal).map(differs);
        let (head, communicator) = (all.next()?, all.next()?);
        let round = all.next()?;
        let rest = all.fold(head | communicator, |rest, word| rest | word);
        let same = rest == 0 && round & !ROUND == 0 && self.participant.is_in_barrier();
        same.then_some((round >> ROUND_SHIFT) as u8)
    }

    /// Whether signals have to wait. Once all ranks have begun an operation peers write to the rows of the one before
    /// it, which the card must have sent by then.
    #[inline]
    pub(super) fn is_held(&mut self) -> bool {
        if self.state.held == 0 {
            return false;
        }
        self.state.held = u32::from(self.state.reading != 0);
        self.state.held != 0 && self.participant.is_in_barrier()
    }

    /// Keeps a signal of the operation that begins.
    pub(super) fn keep_signal(&mut self, operation: u32, summary: Summary) {
        self.state.held = 1;
        let message = Message { operation, body: Body::Barrier { round: 0, summary } };
        if let Some(words) = self.codec().encode_short(&message) {
            self.state.signal = words;
        }
    }

    /// Sends what signals of the barrier are due. Until it is passed they are all that there is to do; false if there
    /// may be more.
    pub(super) fn signal(&mut self) -> bool {
        if self.state.due != 0 || !self.participant.is_in_barrier() {
            return false;
        }
        while self.state.full == 0 && !self.is_held() {
            let Some(signal) = self.participant.poll_signal() else {
                return !self.participant.is_barrier_passed() || self.release_eager();
            };
            let [header, communicator, first, rest @ ..] = self.state.signal;
            let [second, third, fourth] = rest;
            let first = first | u64::from(signal.round) << ROUND_SHIFT;
            let words = [header, communicator, first, second, third, fourth];
            self.send_signal(signal, &words);
        }
        // The completion that makes room, or reports that a row is sent, wakes the thread.
        true
    }

    /// Sends a signal, and before it the eager data that belongs to it.
    #[inline(never)]
    fn send_signal(&mut self, signal: Signal, words: &[u64; FIXED_WORDS]) {
        let round = usize::from(signal.round);
        let [count, ..] = &mut self.state.report.messages;
        *count = count.wrapping_add(1);
        let index = self.state.partners.get(round).map_or(usize::MAX, |index| usize::from(*index));
        let Some(peer) = self.peers.get(index).filter(|peer| peer.broken == 0) else { return };
        let queue = SendQueue::attach(&peer.send_queue);
        let before = peer.produced;
        // Two rounds are in a word.
        let carried = if self.state.eager != 0 { self.state.carried.get(round / 2).map_or(0, |word| *word) } else { 0 };
        let carried = (carried >> (round % 2 * 32)) as u32;
        if carried != 0 {
            // The signal of round 0 carries the own block and nothing else, in the low half of the first word.
            let own_bytes = self.state.carried[0] & 0xFFFF;
            write_row(peer, &queue, self.set_up, (carried, own_bytes), signal.operation);
        }
        let slot = send_slot(peer, &queue);
        self.messages.write_words(slot, words);
        let lkey = self.set_up.message_lkey;
        let at = self.messages.address().wrapping_add(slot);
        // A row is sent when that is reported, and not before.
        let with_row = peer.produced != before;
        let flags = if with_row { FLAG_SIGNALLED } else { flags_of(before) };
        post(peer, &queue, &self.outbox, flags, (FIXED_BYTES as u32, lkey, at));
        if with_row {
            peer.reads_row_until = peer.produced;
            self.state.reading += 1;
        }
        self.state.full += u32::from(is_full(peer));
    }

    /// Posts an empty write behind what has been sent since the last time, to each peer.
    #[cold]
    #[inline(never)]
    pub(super) fn follow(&mut self) {
        let reads_wait = self.state.reads.waits;
        for peer in self.peers.iter_mut().filter(|peer| peer.broken == 0 && peer.followed != peer.produced as u32) {
            // Full ones have an entry under way whose completion wakes the thread. Behind reads come others, as long as
            // any wait.
            let room = if peer.rank == NOBODY { reads_wait == 0 && has_room(peer) } else { !is_full(peer) };
            if room {
                write_nothing(peer, &self.outbox);
                peer.followed = peer.produced as u32;
                self.state.full += u32::from(is_full(peer));
            }
        }
    }

    /// Posts an empty write to the peer for which this rank waits, unless its queue is full: then something is under
    /// way that shows as much.
    #[cold]
    #[inline(never)]
    pub(super) fn probe_awaited(&mut self) {
        let Some(rank) = self.participant.awaited() else { return };
        let awaited = self.peers.iter_mut().find(|peer| peer.rank == rank && peer.broken == 0 && !is_full(peer));
        if let Some(peer) = awaited {
            write_nothing(peer, &self.outbox);
            self.state.full += u32::from(is_full(peer));
        }
    }

    /// A message has come that is no signal of the barrier under way, or whose sender has called something else.
    #[inline(never)]
    fn receive_other(&mut self, queue: &ReceiveQueue, producer: u64, (rank, slot, bytes): (u32, u64, u32)) {
        let words = if bytes as usize == FIXED_BYTES { self.messages.words(slot) } else { None };
        let short = words.and_then(|words| self.codec().decode_short(&words));
        let Some(message) = short else { return self.receive_long(queue, producer, (rank, slot, bytes)) };
        // It is out of the slot before the next one may come there.
        fence::memory();
        queue.set_producer(producer);
        if self.participant.handle(rank, message).is_err() {
            self.distrust(rank);
        }
    }

    /// A message of `bytes` bytes has come from a rank, into the slot at an offset: one of those that few operations
    /// have.
    #[cold]
    #[inline(never)]
    fn receive_long(&mut self, queue: &ReceiveQueue, producer: u64, (rank, slot, bytes): (u32, u64, u32)) {
        let mut words = [0; WORDS];
        let there = self.messages.read(slot, &mut words);
        // It is out of the slot before the next one may come there.
        fence::memory();
        queue.set_producer(producer);
        let short = if there { self.codec().decode_set(&words, bytes as usize) } else { None };
        let other = || words.as_bytes().get(..bytes as usize).and_then(|message| self.codec().decode(message).ok());
        let Some(control) = short.or_else(other).filter(|_| there) else { return self.distrust(rank) };
        match (control.message.body, control.availability) {
            (Body::Acknowledge { .. }, Some(Availability { address, rkey })) => {
                (self.state.reads.address, self.state.reads.rkey) = (address, rkey);
            }
            (Body::Fetch { last: true, .. }, _) => self.state.report.fetches += 1,
            _ => {}
        }
        if self.participant.handle(rank, control.message).is_err() {
            self.distrust(rank);
        }
    }

    #[cold]
    fn distrust(&mut self, failed_rank: u32) {
        self.participant.fail(Failure {
            failed_rank,
            detecting_rank: self.set_up.rank,
            cause: Cause::Connection(FailureCode::ProtocolViolation),
        });
    }

    /// The connection to a peer is broken: what is sent to it from here on is dropped.
    #[cold]
    fn broken(&mut self, index: usize, code: FailureCode) {
        let Some(peer) = self.peers.get(index).filter(|peer| peer.broken == 0) else { return };
        peer.broken = 1;
        self.state.reading -= u32::from(peer.reads_row_until != 0);
        self.state.full -= u32::from(is_full(peer));
        let failed_rank = peer.rank;
        self.reader_broken(index);
        if failed_rank == NOBODY {
            return;
        }
        let failure = Failure { failed_rank, detecting_rank: self.set_up.rank, cause: Cause::Connection(code) };
        self.participant.fail(failure);
    }

    /// Sends a message. One to a rank without connection, or with a broken one, is dropped: whoever waits for its
    /// answer learns of the break.
    #[inline(never)]
    pub(super) fn send(&mut self, to: u32, message: &Message) {
        let counter = match message.body {
            Body::Barrier { round, .. } => {
                let Some(words) = self.codec().encode_short(message) else { return };
                return self.send_signal(Signal { to, operation: message.operation, round }, &words);
            }
            Body::Activate => 1,
            Body::Fetch { .. } => 2,
            Body::Acknowledge { .. } => 3,
            Body::Final => 4,
            Body::Failed { .. } => 5,
        };
        if let Some(count) = self.state.report.messages.get_mut(counter) {
            *count = count.wrapping_add(1);
        }
        let codec = self.codec();
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.rank == to && peer.broken == 0) else { return };
        let queue = SendQueue::attach(&peer.send_queue);
        let (flags, slot) = (flags_of(peer.produced), send_slot(peer, &queue));
        let bytes = if let Some(words) = codec.encode_short(message) {
            self.messages.write_words(slot, &words);
            FIXED_BYTES as u32
        } else {
            let here = Availability { address: self.state.address, rkey: self.state.rkey };
            write_long(&self.messages, slot, codec, message, here)
        };
        let lkey = self.set_up.message_lkey;
        post(peer, &queue, &self.outbox, flags, (bytes, lkey, self.messages.address().wrapping_add(slot)));
        self.state.full += u32::from(is_full(peer));
    }
}

/// Where the next message to a peer lies while it is sent.
fn send_slot(peer: &ProgressPeer, queue: &SendQueue) -> u64 {
    let receives = 1 << (peer.receive_queue.log_depth() & 63);
    (peer.first_slot + receives + (peer.produced & (queue.depth() - 1))) * MESSAGE_BYTES
}

/// Has the beginning of the own row written to a peer's. The own block ends where peers begin to write.
fn write_row(
    peer: &mut ProgressPeer,
    queue: &SendQueue,
    set_up: &ProgressSetUp,
    (carried, own_bytes): (u32, u64),
    operation: u32,
) {
    let (bytes, offset) = (carried & 0xFFFF, carried >> 16);
    // Rows of odd operations lie behind those of even ones.
    let row = if operation & 1 == 0 { 0 } else { u64::from(set_up.rows_bytes) };
    let address = peer.rows_remote.wrapping_add(row).wrapping_add(offset.into());
    let index = peer.produced;
    let local = set_up.rows_host.wrapping_add(row).wrapping_sub(own_bytes);
    let words = [
        ControlSegment::head(index as u16, WqeOpcode::Write, queue.number(), WriteWqe::SEGMENTS),
        ControlSegment::tail(FLAG_ON_ERROR, 0),
        address,
        u64::from(peer.rows_rkey) << 32,
        u64::from(bytes) << 32 | u64::from(set_up.rows_lkey),
        local,
    ];
    queue.write_words(index, words);
    peer.produced += 1;
}

/// Flags of entry number `index`, unless it is a message behind a row.
const fn flags_of(index: u64) -> u8 {
    if (index + 1).is_multiple_of(SIGNALLED) { FLAG_SIGNALLED } else { FLAG_ON_ERROR }
}

/// Posts a message of `bytes` bytes at an address, and with it what has been written before it.
fn post(
    peer: &mut ProgressPeer,
    queue: &SendQueue,
    outbox: &Outbox,
    flags: u8,
    (bytes, lkey, address): (u32, u32, u64),
) {
    let index = peer.produced;
    let produced = index + 1;
    peer.produced = produced;
    let words = [
        ControlSegment::head(index as u16, WqeOpcode::Send, queue.number(), SendWqe::SEGMENTS),
        ControlSegment::tail(flags, 0),
        u64::from(bytes) << 32 | u64::from(lkey),
        address,
    ];
    queue.write_words(index, words);
    hand_over(queue, outbox, produced);
}

/// Gives the card the entries before number `produced`.
#[inline(always)]
pub(super) fn hand_over(queue: &SendQueue, outbox: &Outbox, produced: u64) {
    fence::memory_write();
    queue.set_producer(produced);
    fence::outbox();
    outbox.ring_sq(queue.number(), produced);
}

/// Posts an RDMA Write of no bytes, or a Read over the connection for reads, which takes nothing else. The peer's card
/// checks neither its address nor its key.
fn write_nothing(peer: &mut ProgressPeer, outbox: &Outbox) {
    /// Control segment and remote address.
    const SEGMENTS: u8 = 2;
    let opcode = if peer.rank == NOBODY { WqeOpcode::Read } else { WqeOpcode::Write };
    let queue = SendQueue::attach(&peer.send_queue);
    let index = peer.produced;
    let produced = index + 1;
    peer.produced = produced;
    let words = [
        ControlSegment::head(index as u16, opcode, queue.number(), SEGMENTS),
        ControlSegment::tail(flags_of(index), 0),
        0,
        0,
    ];
    queue.write_words(index, words);
    hand_over(&queue, outbox, produced);
}

/// Writes a message of a kind that few operations have to its slot. Its bytes.
#[cold]
#[inline(never)]
fn write_long(messages: &Messages<'_>, slot: u64, codec: Codec, message: &Message, here: Availability) -> u32 {
    let encoded = codec.encode(message, here);
    messages.write(slot, encoded.as_bytes());
    encoded.as_bytes().len() as u32
}
