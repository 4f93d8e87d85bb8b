//! Control messages: receiving and sending.

use dpa::abi::ProgressPeer;
use dpa::abi::progress::MESSAGE_BYTES;
use dpa::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED, SendWqe, WriteWqe};
use dpa::hw::{Be32, Be64, ControlSegment, CqeOpcode, DataSegment, RemoteAddressSegment, WqeOpcode};
use dpa::proto::wire::{Availability, FIXED_BYTES, FIXED_WORDS, MAX_BYTES};
use dpa::proto::{Body, Cause, Codec, Failure, Message};
use dpa::{Messages, ReceiveQueue, SendQueue, fence};
use zerocopy::IntoBytes as _;

use super::ProgressEngine;

/// Code of [`Cause::Connection`] for a peer that does not keep to the protocol.
const PROTOCOL_VIOLATION: u16 = u16::MAX;
/// Words of the longest message.
const WORDS: usize = MAX_BYTES.div_ceil(8);

const _: () = assert!(WORDS as u64 * 8 <= MESSAGE_BYTES);

/// Most entries of a message: its eager data and itself.
const MESSAGE_ENTRIES: u64 = 2;
/// Every so many entries of a send queue one is completed visibly. A queue without room has such an entry under way.
const SIGNALLED: u64 = 4;

/// Whether a peer's send queue has no room for a message.
const fn is_full(peer: &ProgressPeer) -> bool {
    peer.produced - peer.completed > (1 << peer.send_queue.log_depth()) - MESSAGE_ENTRIES
}

impl ProgressEngine<'_> {
    /// Consumes completions until none is left (true) or the budget is used up (false).
    pub(super) fn take_messages(&mut self, budget: &mut u64) -> bool {
        while self.cq.is_ready(self.state.consumed) {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            fence::memory_read();
            let entry = self.cq.entry(self.state.consumed);
            let (opcode, index) = (entry.op_own() >> 4, entry.user_index() as usize);
            if opcode == CqeOpcode::Send as u64 {
                self.receive(index, u64::from(entry.wqe_counter()), entry.byte_count());
            } else if opcode == CqeOpcode::Requester as u64 {
                self.completed(index, entry.wqe_counter());
            } else {
                self.broken(index, status_of(entry.syndrome()));
            }
            self.state.consumed += 1;
            // No fence: branches up to here depended on all that was read of the entry given back.
            self.cq.set_consumer(self.state.consumed);
        }
        true
    }

    /// The entry of a peer's send queue with this number, modulo 2^16, and all before it are complete.
    fn completed(&mut self, index: usize, number: u16) {
        let Some(peer) = self.peers.get(index).filter(|peer| peer.broken == 0) else { return };
        let was_full = is_full(peer);
        peer.completed += u64::from(number.wrapping_sub(peer.completed as u16)) + 1;
        self.state.full -= u32::from(was_full && !is_full(peer));
    }

    /// A message has come into receive entry number `counter`.
    fn receive(&mut self, index: usize, counter: u64, bytes: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        let rank = peer.rank;
        let queue = ReceiveQueue::attach(&peer.receive_queue);
        let slot = (peer.first_slot + (counter & (queue.depth() - 1))) * MESSAGE_BYTES;
        peer.received += 1;
        let producer = peer.received + queue.depth();
        let mut words = [0; FIXED_WORDS];
        let there = bytes as usize == FIXED_BYTES && self.messages.read(slot, &mut words);
        let short = if there { self.codec.decode_short(&words) } else { None };
        let Some(message) = short else { return self.receive_long(&queue, producer, (rank, slot, bytes)) };
        // It is out of the slot before the next one may come there.
        fence::memory();
        queue.set_producer(producer);
        if self.participant.handle(rank, message).is_err() {
            self.distrust(rank);
        }
    }

    /// A message of `bytes` bytes has come from a rank, into the slot at an offset: one of those that few operations have.
    #[cold]
    #[inline(never)]
    fn receive_long(&mut self, queue: &ReceiveQueue, producer: u64, (rank, slot, bytes): (u32, u64, u32)) {
        let mut words = [0; WORDS];
        let there = self.messages.read(slot, &mut words);
        // It is out of the slot before the next one may come there.
        fence::memory();
        queue.set_producer(producer);
        let message = words.as_bytes().get(..bytes as usize).filter(|_| there);
        let Some(Ok(control)) = message.map(|message| self.codec.decode(message)) else { return self.distrust(rank) };
        match (control.message.body, control.availability) {
            (Body::Acknowledge { .. }, Some(Availability { address, rkey })) => {
                (self.state.detail.address, self.state.detail.rkey) = (address, rkey);
            }
            (Body::Fetch { .. }, _) => self.state.report.fetches += 1,
            _ => {}
        }
        if self.participant.handle(rank, control.message).is_err() {
            self.distrust(rank);
        }
    }

    #[cold]
    fn distrust(&mut self, culprit: u32) {
        self.participant.fail(Failure { culprit, witness: self.rank, cause: Cause::Connection(PROTOCOL_VIOLATION) });
    }

    /// The connection to a peer is broken: what is sent to it from here on is dropped.
    #[cold]
    fn broken(&mut self, index: usize, status: u16) {
        let Some(peer) = self.peers.get(index).filter(|peer| peer.broken == 0) else { return };
        peer.broken = 1;
        self.state.full -= u32::from(is_full(peer));
        let failure = Failure { culprit: peer.rank, witness: self.rank, cause: Cause::Connection(status) };
        self.participant.fail(failure);
    }

    /// Sends a message, and before it the eager data that belongs to it. One to a rank without connection, or with a broken one, is dropped: whoever
    /// waits for its answer learns of the break.
    pub(super) fn send(&mut self, to: u32, message: &Message) {
        let (counter, round) = match message.body {
            Body::Barrier { round, .. } => (0, Some(round).filter(|_| self.state.eager != 0)),
            Body::Activate => (1, None),
            Body::Fetch { .. } => (2, None),
            Body::Acknowledge { .. } => (3, None),
            Body::Final => (4, None),
            Body::Failed(_) => (5, None),
        };
        if let Some(count) = self.state.report.messages.get_mut(counter) {
            *count = count.wrapping_add(1);
        }
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.rank == to && peer.broken == 0) else { return };
        let queue = SendQueue::attach(&peer.send_queue);
        let before = peer.produced;
        let carried = round.and_then(|round| self.state.carried.get(usize::from(round)));
        if let Some(&carried) = carried.filter(|carried| **carried as u32 != 0) {
            let (bytes, offset) = (carried as u32, carried >> 32);
            let control = ControlSegment::new(
                peer.produced as u16,
                WqeOpcode::Write,
                queue.number(),
                WriteWqe::SEGMENTS,
                FLAG_ON_ERROR,
            );
            let address = self.rows.of(peer.rows_remote, message.operation).wrapping_add(offset);
            let remote =
                RemoteAddressSegment { address: Be64::new(address), rkey: Be32::new(peer.rows_rkey), reserved: [0; 4] };
            let row = self.rows.of(self.rows.host, message.operation);
            queue.write_write(peer.produced, control, remote, DataSegment::new(bytes, self.rows.lkey, row));
            peer.produced += 1;
        }
        let index = peer.produced;
        let slot = (peer.first_slot + (1 << peer.receive_queue.log_depth()) + (index & (queue.depth() - 1))) * MESSAGE_BYTES;
        let bytes = if let Some(words) = self.codec.encode_short(message) {
            self.messages.write_words(slot, &words);
            FIXED_BYTES as u32
        } else {
            let here = Availability { address: self.state.address, rkey: self.state.rkey };
            write_long(&self.messages, slot, self.codec, message, here)
        };
        peer.produced += 1;
        let signalled = peer.produced / SIGNALLED != before / SIGNALLED;
        let flags = if signalled { FLAG_SIGNALLED } else { FLAG_ON_ERROR };
        let control = ControlSegment::new(index as u16, WqeOpcode::Send, queue.number(), SendWqe::SEGMENTS, flags);
        let at = self.messages_at.wrapping_add(slot);
        queue.write_send(index, control, DataSegment::new(bytes, self.message_lkey, at));
        fence::memory_write();
        queue.set_producer(peer.produced);
        fence::outbox();
        self.outbox.ring_sq(queue.number(), peer.produced);
        self.state.full += u32::from(is_full(peer));
    }
}

/// Writes a message of a kind that few operations have to its slot. Its bytes.
#[cold]
#[inline(never)]
fn write_long(messages: &Messages<'_>, slot: u64, codec: Codec, message: &Message, here: Availability) -> u32 {
    let encoded = codec.encode(message, here);
    messages.write(slot, encoded.as_bytes());
    encoded.as_bytes().len() as u32
}

/// The status of a work completion that verbs give for a syndrome (rdma-core, `mlx5_handle_error_cqe`), so that failures have the same codes
/// wherever the protocol runs.
const fn status_of(syndrome: u8) -> u16 {
    match syndrome {
        0x01 => 1,
        0x02 => 2,
        0x04 => 4,
        0x05 => 5,
        0x06 => 6,
        0x10 => 7,
        0x11 => 8,
        0x12 => 9,
        0x13 => 10,
        0x14 => 11,
        0x15 => 12,
        0x16 => 13,
        0x22 => 16,
        _ => 21,
    }
}
