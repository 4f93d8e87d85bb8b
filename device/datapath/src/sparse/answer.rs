//! Answers: the sums and the next global indices, to all workers of an instance.

use dpa::abi::{SparseElement, SparseInstance, SparsePeer, SparseStatus};
use dpa::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED, SendWqe};
use dpa::hw::{ControlSegment, WqeOpcode};
use dpa::proto::sparse::SENTINEL;
use dpa::{HostLine, Outbox, ReceiveQueue, SendQueue, Slots, fence};

use super::{Fault, INDEX_BYTES, Served, find};

/// Of a worker's answers every so many is completed visibly, and the last one of an operation. A queue without room has
/// such an entry under way.
const SIGNALLED: u64 = 4;

const _: () = assert!(dpa::abi::SPARSE_SENDS >= 2 * SIGNALLED);

/// An answer as it is posted to the card.
#[derive(Clone, Copy)]
struct Message {
    bytes: u32,
    lkey: u32,
    address: u64,
}

impl Served<'_> {
    /// Sends the answer of an instance to all its workers: three passes, so that two fences do for all.
    #[inline(never)]
    pub(super) fn answer(&mut self, index: usize) {
        let Some(instance) = self.instances.get(index) else { return };
        let message = next_iteration(&mut self.slots, instance, self.lkey);
        let (first, workers) = (instance.first_peer as usize, instance.workers as usize);
        if instance.state.iteration == 1 && !begin_operation(instance) {
            let last = SparseElement::ALL.len() as u32;
            let fault = Fault::new(SparseStatus::Element, instance.state.element, last);
            return self.fail(first, fault);
        }
        let last = instance.state.iteration == 0;
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            write(peer, message, last);
        }
        // Entries and sums before the records, the records before the doorbells. What was loaded from receive slots is
        // in the sums: no load is left when the card may write there again.
        fence::memory_write();
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            ReceiveQueue::attach(&peer.receive_queue).set_producer(peer.received + 1);
            SendQueue::attach(&peer.send_queue).set_producer(peer.produced);
        }
        fence::outbox();
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            self.outbox.ring_sq(peer.send_queue.number(), peer.produced);
        }
    }

    /// Notifies a worker whose message has come that its instance has stopped: a message without bytes, with the failed
    /// rank in the immediate. One without room for it is not notified.
    #[cold]
    #[inline(never)]
    pub(super) fn give_up(&mut self, number: usize) {
        let Some((instance, peer)) = find(&mut self.instances, &mut self.peers, number) else { return };
        let queue = SendQueue::attach(&peer.send_queue);
        if peer.produced - peer.completed >= queue.depth() {
            return;
        }
        // Its completion would carry no information.
        let words = [
            ControlSegment::head(peer.produced as u16, WqeOpcode::SendImmediate, queue.number(), 1),
            ControlSegment::tail(FLAG_ON_ERROR, instance.state.culprit),
        ];
        queue.write_words(peer.produced, words);
        peer.produced += 1;
        hand_over(peer, &self.outbox);
    }

    /// The entry of a worker's send queue with this number, modulo 2^16, and all before it are complete.
    pub(super) fn completed(&mut self, number: usize, counter: u16) {
        let Some((instance, peer)) = find(&mut self.instances, &mut self.peers, number) else {
            self.state.strange += 1;
            return;
        };
        peer.completed += u64::from(counter.wrapping_sub(peer.completed as u16)) + 1;
        if peer.owed_bytes != 0 && instance.state.status == SparseStatus::Running as u32 {
            let message = Message { bytes: peer.owed_bytes, lkey: self.lkey, address: peer.owed_address };
            write(peer, message, instance.state.iteration == 0);
            hand_over(peer, &self.outbox);
        }
    }
}

/// Announces a worker's entries to the card.
fn hand_over(peer: &SparsePeer, outbox: &Outbox) {
    let queue = SendQueue::attach(&peer.send_queue);
    fence::memory_write();
    queue.set_producer(peer.produced);
    fence::outbox();
    outbox.ring_sq(queue.number(), peer.produced);
}

/// Writes the next entry of a worker's send queue, or notes that there is no room for it. The `last` answer of an
/// operation is completed visibly: so the host can find out whether the worker has it.
#[inline(always)]
fn write(peer: &mut SparsePeer, message: Message, last: bool) {
    let queue = SendQueue::attach(&peer.send_queue);
    let number = peer.produced;
    let Message { bytes, lkey, address } = message;
    if number - peer.completed >= queue.depth() {
        (peer.owed_bytes, peer.owed_address) = (bytes, address);
        return;
    }
    peer.owed_bytes = 0;
    let flags = if last || number % SIGNALLED == SIGNALLED - 1 { FLAG_SIGNALLED } else { FLAG_ON_ERROR };
    let words = [
        ControlSegment::head(number as u16, WqeOpcode::SendImmediate, queue.number(), SendWqe::SEGMENTS),
        ControlSegment::tail(flags, 0),
        u64::from(bytes) << 32 | u64::from(lkey),
        address,
    ];
    queue.write_words(number, words);
    peer.produced = number + 1;
}

/// Writes the next global indices behind the sums, and goes on to the next iteration, or to the next operation if there
/// are none.
#[inline(always)]
fn next_iteration(slots: &mut Slots<'_>, instance: &mut SparseInstance, lkey: u32) -> Message {
    let (width, slot_bytes) = (instance.blocks_per_message, u64::from(instance.spot_bytes));
    let state = &mut instance.state;
    let slot = instance.first_spot + u64::from(state.iteration & 1) * slot_bytes;
    let sums_bytes = u64::from(state.blocks) * u64::from(instance.block_bytes);
    let mut at = slot + sums_bytes;
    (state.blocks, state.floor) = (0, 0);
    for index in state.lists[state.list as usize & 1].iter().take(width as usize) {
        slots.set_index(at, *index);
        at += INDEX_BYTES;
        if *index != SENTINEL {
            state.blocks += 1;
            state.floor = u64::from(*index) + 1;
        }
    }
    state.arrived = 0;
    state.answers += 1;
    if state.blocks == 0 {
        state.operations += 1;
        state.iteration = 0;
    } else {
        state.iteration += 1;
    }
    Message { bytes: (at - slot) as u32, lkey, address: slots.address() + slot }
}

/// Takes the operation over: all workers have voted, and the host had written it before its own did. Whether it can be.
#[cold]
#[inline(never)]
fn begin_operation(instance: &mut SparseInstance) -> bool {
    let operation = HostLine::attach(&instance.operation).snapshot();
    instance.state.element = operation.element as u32;
    SparseElement::from_raw(instance.state.element).is_ok()
}
