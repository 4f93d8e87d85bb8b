//! Control messages: receiving and sending.

use dpa::abi::progress::MESSAGE_BYTES;
use dpa::hw::wqe::{FLAG_SIGNALLED, SendWqe};
use dpa::hw::{ControlSegment, CqeOpcode, DataSegment, WqeOpcode};
use dpa::proto::wire::{Availability, MAX_BYTES};
use dpa::proto::{Body, Cause, Failure, Message};
use dpa::{ReceiveQueue, SendQueue, fence};
use zerocopy::IntoBytes as _;

use super::ProgressEngine;

/// Code of [`Cause::Connection`] for a peer that does not keep to the protocol.
const PROTOCOL_VIOLATION: u16 = u16::MAX;
/// Words of the longest message.
const WORDS: usize = MAX_BYTES.div_ceil(8);

const _: () = assert!(WORDS as u64 * 8 <= MESSAGE_BYTES);

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
                if let Some(peer) = self.peers.get(index).filter(|peer| peer.broken == 0) {
                    peer.completed += 1;
                }
            } else {
                self.broken(index, status_of(entry.syndrome()));
            }
            self.state.consumed += 1;
            // No fence: branches up to here depended on all that was read of the entry given back.
            self.cq.set_consumer(self.state.consumed);
            self.state.full = 0;
        }
        true
    }

    /// A message has come into receive entry number `counter`.
    fn receive(&mut self, index: usize, counter: u64, bytes: u32) {
        let Some(peer) = self.peers.get(index) else { return };
        let rank = peer.rank;
        let queue = ReceiveQueue::attach(&peer.receive_queue);
        let slot = peer.first_slot + (counter & (queue.depth() - 1));
        let mut words = [0; WORDS];
        let there = self.messages.read(slot * MESSAGE_BYTES, &mut words);
        // It is out of the slot before the next one may come there.
        fence::memory();
        peer.received += 1;
        queue.set_producer(peer.received + queue.depth());
        let message = words.as_bytes().get(..bytes as usize).filter(|_| there);
        let Some(Ok(control)) = message.map(|message| self.codec.decode(message)) else { return self.distrust(rank) };
        match (control.message.body, control.availability) {
            (Body::Acknowledge { .. }, Some(Availability { address, rkey })) => {
                (self.state.report.address, self.state.report.rkey) = (address, rkey);
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
        let failure = Failure { culprit: peer.rank, witness: self.rank, cause: Cause::Connection(status) };
        self.participant.fail(failure);
    }

    /// Whether every peer has room for a message.
    pub(super) fn has_room(&mut self) -> bool {
        self.state.full == 0
            && self
                .peers
                .iter_mut()
                .all(|peer| peer.broken != 0 || peer.produced - peer.completed < peer.send_queue.depth())
    }

    /// Sends a message. One to a rank without connection, or with a broken one, is dropped: whoever waits for its answer learns of the
    /// break.
    pub(super) fn send(&mut self, to: u32, message: &Message) {
        let counter = match message.body {
            Body::Barrier { .. } => 0,
            Body::Activate => 1,
            Body::Fetch { .. } => 2,
            Body::Acknowledge { .. } => 3,
            Body::Final => 4,
            Body::Failed(_) => 5,
        };
        if let Some(count) = self.state.report.messages.get_mut(counter) {
            *count += 1;
        }
        let here = Availability { address: self.state.address, rkey: self.state.rkey };
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.rank == to && peer.broken == 0) else { return };
        let queue = SendQueue::attach(&peer.send_queue);
        let receives = peer.receive_queue.depth();
        let index = peer.produced;
        let slot = (peer.first_slot + receives + (index & (queue.depth() - 1))) * MESSAGE_BYTES;
        let encoded = self.codec.encode(message, here);
        if !self.messages.write(slot, encoded.as_bytes()) {
            return;
        }
        let bytes = encoded.as_bytes().len() as u32;
        queue.write_send(
            index,
            SendWqe {
                control: ControlSegment::new(
                    index as u16,
                    WqeOpcode::Send,
                    queue.number(),
                    SendWqe::SEGMENTS,
                    FLAG_SIGNALLED,
                ),
                data: DataSegment::new(bytes, self.message_lkey, self.messages_at.wrapping_add(slot)),
                padding: [0; 32],
            },
        );
        peer.produced += 1;
        fence::memory_write();
        queue.set_producer(peer.produced);
        fence::outbox();
        self.outbox.ring_sq(queue.number(), peer.produced);
    }
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
