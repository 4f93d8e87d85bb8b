//! Answers: the sums and the next global indices, to all workers of an instance.

use dpa::abi::{SparseElement, SparseInstance, SparsePeer, SparseStatus};
use dpa::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED, SendWqe};
use dpa::hw::{ControlSegment, WqeOpcode};
use dpa::proto::sparse::Answer;
use dpa::{HostLine, SendQueue, fence};

use super::{Fault, Machine, Served, find, kept};

/// Of a worker's answers every so many is completed visibly. A queue without room has such an entry under way.
const SIGNALLED: u64 = 4;

const _: () = assert!(dpa::abi::SPARSE_SENDS >= 2 * SIGNALLED);

/// An answer as the card is told of it.
#[derive(Clone, Copy)]
struct Message {
    bytes: u32,
    lkey: u32,
    address: u64,
}

impl Served<'_> {
    /// Sends the answer of an instance to all its workers: three passes, so that two fences do for all.
    #[inline(never)]
    pub(super) fn answer(&mut self, index: usize, answer: &Answer) {
        let Some(instance) = self.instances.get(index) else { return };
        instance.answers += 1;
        let (first, workers) = (instance.first_peer as usize, instance.workers as usize);
        if answer.is_last() {
            begin_anew(instance);
        } else if answer.iteration == 0 {
            // All workers have voted, and the host had written the operation before its own did.
            let operation = HostLine::attach(&instance.operation).snapshot();
            instance.element = operation.element as u32;
            if SparseElement::from_raw(instance.element).is_err() {
                let last = SparseElement::ALL.len() as u32;
                return self.fail(first, Fault::new(SparseStatus::Element, operation.element, last));
            }
        }
        let message = Self::written(&mut self.spots, instance, answer, self.lkey);
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            write(peer, message);
        }
        // Entries before the records, the records before the doorbells.
        fence::memory_write();
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            SendQueue::attach(&peer.send_queue).set_producer(peer.produced);
        }
        fence::outbox();
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            self.outbox.ring_sq(peer.send_queue.number(), peer.produced);
        }
    }

    /// Writes the indices behind the sums.
    #[inline(always)]
    fn written(spots: &mut dpa::Spots<'_>, instance: &mut SparseInstance, answer: &Answer, lkey: u32) -> Message {
        let spot = instance.first_spot + u64::from(answer.spot) * u64::from(instance.spot_bytes);
        let Machine { parameters, .. } = kept(instance);
        let mut at = spot + u64::from(answer.sums) * u64::from(parameters.block_bytes());
        for index in answer.next.places() {
            spots.set_index(at, *index);
            at += 4;
        }
        Message { bytes: parameters.message_bytes(answer.sums), lkey, address: spots.address() + spot }
    }

    /// The entry of a worker's send queue with this number, modulo 2^16, and all before it are complete.
    pub(super) fn completed(&mut self, number: usize, counter: u16) {
        let Some((instance, peer)) = find(&mut self.instances, &mut self.peers, number) else {
            self.state.strange += 1;
            return;
        };
        peer.completed += u64::from(counter.wrapping_sub(peer.completed as u16)) + 1;
        if peer.owed_bytes != 0 && instance.status == SparseStatus::Running as u32 {
            let message = Message { bytes: peer.owed_bytes, lkey: self.lkey, address: peer.owed_address };
            write(peer, message);
            fence::memory_write();
            let queue = SendQueue::attach(&peer.send_queue);
            queue.set_producer(peer.produced);
            fence::outbox();
            self.outbox.ring_sq(queue.number(), peer.produced);
        }
    }
}

/// Writes the next entry of a worker's send queue, or notes that there is no room for it.
#[inline(always)]
fn write(peer: &mut SparsePeer, message: Message) {
    let queue = SendQueue::attach(&peer.send_queue);
    let number = peer.produced;
    let Message { bytes, lkey, address } = message;
    if number - peer.completed >= queue.depth() {
        (peer.owed_bytes, peer.owed_address) = (bytes, address);
        return;
    }
    peer.owed_bytes = 0;
    let flags = if number % SIGNALLED == SIGNALLED - 1 { FLAG_SIGNALLED } else { FLAG_ON_ERROR };
    let words = [
        ControlSegment::head(number as u16, WqeOpcode::SendImmediate, queue.number(), SendWqe::SEGMENTS),
        ControlSegment::tail(flags, 0),
        u64::from(bytes) << 32 | u64::from(lkey),
        address,
    ];
    queue.write_words(number, words);
    peer.produced = number + 1;
}

/// The operation is over; the next one begins.
#[cold]
#[inline(never)]
fn begin_anew(instance: &mut SparseInstance) {
    instance.operations += 1;
    let machine = kept(instance);
    if let Some(summation) = Machine::summation(machine.parameters) {
        machine.summation = summation;
    }
}
