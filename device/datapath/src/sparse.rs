//! Aggregator of sparse AllReduce: a thread that serves instances, each of which sums up one shard.
//!
//! All queue pairs of a thread complete on one queue. A message is checked and its votes are merged (module `votes`) as
//! it comes; its blocks stay in the worker's receive slot. When the last one of an iteration is there, blocks are
//! summed up from the receive slots straight into the transmit slot: a load for each word that has come, and a store
//! for each of the sum. Adding each message as it comes would take twice as long, since it loads and stores the sum
//! every time, and messages of an iteration come together. Then receives are posted again, and the answer is sent to
//! all workers.
//!
//! A worker that sends a second message before the answer finds no receive: its card waits, and the message is judged
//! as one of the next iteration.
//!
//! Between operations there is no host: with the answer that has no index an instance begins anew. What it cannot take
//! ends the instance, and only it: the thread reports it to the host ([`SparseReport`]) and, instead of an answer, to
//! the workers, and takes nothing more. A host that asks how far a thread is (module `inquiry`) wakes it: a thread that
//! finds nothing to do checks for the question.

mod answer;
mod inquiry;
mod prepare;
mod votes;

use dpa::abi::{
    SparseElement, SparseInstance, SparsePeer, SparseReport, SparseStatus, SparseThread, SparseThreadState,
};
use dpa::hw::CqeOpcode;
use dpa::slots::SOURCES;
use dpa::{CompletionQueue, ContextArray, Counters, Next, Outbox, Slots, Window, WindowCell, error, fatal, fence};

pub use prepare::prepare_sparse;

use crate::receive::resources;

/// Transmit slots of an instance; receive slots follow them.
const TRANSMIT_SLOTS: u64 = 2;
const INDEX_BYTES: u64 = dpa::proto::sparse::INDEX_BYTES as u64;

/// Why an instance stops.
#[derive(Clone, Copy)]
struct Fault {
    status: SparseStatus,
    found: u64,
    limit: u64,
}

impl Fault {
    fn new(status: SparseStatus, found: impl Into<u64>, limit: impl Into<u64>) -> Self {
        Self { status, found: found.into(), limit: limit.into() }
    }
}

/// The thread of the running activation.
struct Served<'c> {
    cq: CompletionQueue,
    instances: ContextArray<'c, SparseInstance>,
    peers: ContextArray<'c, SparsePeer>,
    slots: Slots<'c>,
    state: &'c mut SparseThreadState,
    outbox: Outbox,
    window: Window,
    report_host: u64,
    lkey: u32,
}

/// Body of the event handler.
pub fn aggregate(thread: &mut SparseThread) -> Next {
    let entered = Counters::read();
    let SparseThread { cq, instances, peers, spots, state, .. } = thread;
    if state.prepared == 0 {
        fatal(error::NOT_PREPARED);
    }
    let ids = (thread.outbox_id, thread.window_id, thread.window_mkey);
    let (running, window) = resources(&mut state.configured, ids.0, ids.1, ids.2);
    state.activations += 1;
    let mut served = Served {
        cq: CompletionQueue::attach(cq),
        instances: ContextArray::attach(instances),
        peers: ContextArray::attach(peers),
        slots: Slots::attach(spots),
        state,
        outbox: Outbox::of(&running),
        window,
        report_host: thread.report_host,
        lkey: thread.lkey,
    };
    let next = served.serve(u64::from(thread.budget));
    served.state.instructions += Counters::read().since(entered).instructions;
    next
}

impl Served<'_> {
    fn serve(&mut self, budget: u64) -> Next {
        let consumed = self.state.consumed;
        for _ in 0..budget {
            if !self.cq.is_ready(self.state.consumed) {
                // A queue armed at an index that the card has passed fires at once: what is overlooked here wakes the
                // thread.
                self.outbox.arm_cq(self.cq.number(), self.state.consumed);
                if !self.cq.is_ready(self.state.consumed) {
                    if self.state.consumed == consumed {
                        self.answer_inquiry();
                    }
                    return Next::Reschedule;
                }
            }
            fence::memory_read();
            self.take();
        }
        Next::Retrigger
    }

    /// Takes the next completion.
    #[inline(always)]
    fn take(&mut self) {
        let entry = self.cq.entry(self.state.consumed);
        let (op_own, named) = (entry.op_own(), entry.user_index_and_immediate());
        let number = (named >> 32) as usize & 0xFF_FFFF;
        if op_own >> 4 == CqeOpcode::SendImmediate as u64 {
            let bytes = entry.byte_count();
            self.consume();
            self.message(number, named as u32, bytes);
        } else {
            self.other(number, op_own);
        }
    }

    /// A completion that is no message of a worker.
    #[inline(never)]
    fn other(&mut self, number: usize, op_own: u64) {
        let entry = self.cq.entry(self.state.consumed);
        let (counter, syndrome) = (entry.wqe_counter(), entry.syndrome());
        self.consume();
        let opcode = op_own >> 4;
        if opcode == CqeOpcode::Requester as u64 {
            self.completed(number, counter);
        } else if opcode == CqeOpcode::ResponderError as u64 || opcode == CqeOpcode::RequesterError as u64 {
            self.fail(number, Fault::new(SparseStatus::Connection, syndrome, 0u32));
        } else {
            self.fail(number, Fault::new(SparseStatus::Opcode, op_own, 0u32));
        }
    }

    /// Gives the entry back. No fence: branches depend on all that was read of it.
    #[inline(always)]
    fn consume(&mut self) {
        self.state.consumed += 1;
        self.cq.set_consumer(self.state.consumed);
    }

    /// A worker's message has come.
    fn message(&mut self, number: usize, displacement: u32, bytes: u32) {
        let Some((instance, peer)) = find(&mut self.instances, &mut self.peers, number) else {
            self.state.strange += 1;
            return;
        };
        if instance.state.status != SparseStatus::Running as u32 {
            peer.received += 1;
            return self.give_up(number);
        }
        self.state.messages += 1;
        match take(&self.slots, instance, peer, number, (displacement, bytes)) {
            Ok(false) => {}
            Ok(true) => {
                let index = peer.instance as usize;
                self.complete(index);
            }
            Err(fault) => self.fail(number, fault),
        }
    }

    /// All messages of an iteration are there: sums them up, and answers.
    #[inline(never)]
    fn complete(&mut self, index: usize) {
        let Some(instance) = self.instances.get(index) else { return };
        let (first, workers) = (instance.first_peer as usize, instance.workers as usize);
        let to = instance.first_spot + u64::from(instance.state.iteration & 1) * u64::from(instance.spot_bytes);
        let wide = instance.state.element == SparseElement::I64 as u32;
        let (blocks, block_bytes) = (instance.state.blocks, u64::from(instance.block_bytes));
        let mut place = 0;
        while place < blocks {
            // Neighbours that the same workers have are one block.
            let mut run = blocks - place;
            for peer in self.peers.iter_mut().skip(first).take(workers) {
                let here = peer.present >> place;
                run = run.min(if here & 1 == 1 { (!here).trailing_zeros() } else { here.trailing_zeros() });
            }
            let at = to + u64::from(place) * block_bytes;
            self.sum_run((first, workers), place, at, u64::from(run) * block_bytes, wide);
            place += run;
        }
        self.answer(index);
    }

    /// Sums up neighbours that the same workers have.
    #[inline(always)]
    fn sum_run(&mut self, (first, workers): (usize, usize), place: u32, to: u64, bytes: u64, wide: bool) {
        let (mut from, mut count, mut onto) = ([0; SOURCES], 0, false);
        for peer in self.peers.iter_mut().skip(first).take(workers) {
            if peer.present >> place & 1 == 0 {
                continue;
            }
            if count == SOURCES {
                self.slots.sum(&from, to, bytes, onto, wide);
                (count, onto) = (0, true);
            }
            from[count] = peer.next_block;
            peer.next_block += bytes;
            count += 1;
        }
        self.slots.sum(from.get(..count).unwrap_or(&[]), to, bytes, onto, wide);
    }

    /// Ends a worker's instance, unless it has ended.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, number: usize, fault: Fault) {
        let Some((instance, peer)) = find(&mut self.instances, &mut self.peers, number) else {
            self.state.strange += 1;
            return;
        };
        if instance.state.status != SparseStatus::Running as u32 {
            return;
        }
        let state = &mut instance.state;
        let worker = (number - instance.first_peer as usize) as u32;
        (state.status, state.culprit) = (fault.status as u32, worker + 1);
        let report = SparseReport {
            status: fault.status as u64,
            worker: worker.into(),
            iteration: state.iteration.into(),
            operations: state.operations,
            found: fault.found,
            limit: fault.limit,
            ..SparseReport::default()
        };
        let at = self.report_host + u64::from(peer.instance) * size_of::<SparseReport>() as u64;
        let cell: WindowCell<SparseReport> = self.window.cell(at).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
        cell.store_part::<0, SparseReport>(&report);
        fence::window_writeback();
        let (first, workers, answers) =
            (instance.first_peer as usize, instance.workers as usize, instance.state.answers);
        for waiting in first..first + workers {
            // Others are notified when their messages come. A broken connection carries nothing.
            let waits = self.peers.get(waiting).is_some_and(|peer| peer.received != answers);
            if (waits || waiting == number) && (waiting != number || fault.status != SparseStatus::Connection) {
                self.give_up(waiting);
            }
        }
    }
}

/// The worker with this user index, and its instance.
#[inline(always)]
fn find<'s>(
    instances: &'s mut ContextArray<'_, SparseInstance>,
    peers: &'s mut ContextArray<'_, SparsePeer>,
    number: usize,
) -> Option<(&'s mut SparseInstance, &'s mut SparsePeer)> {
    let peer = peers.get(number)?;
    let instance = instances.get(peer.instance as usize)?;
    Some((instance, peer))
}

/// Checks a message and merges its votes; its blocks stay where they are. Whether it is the last one of its iteration.
#[inline(always)]
fn take(
    slots: &Slots<'_>,
    instance: &mut SparseInstance,
    peer: &mut SparsePeer,
    number: usize,
    (displacement, bytes): (u32, u32),
) -> Result<bool, Fault> {
    let SparseInstance { workers, block_bytes, blocks_per_message: width, first_spot, .. } = *instance;
    let worker = number as u64 - u64::from(instance.first_peer);
    let slot = first_spot + (TRANSMIT_SLOTS + worker) * u64::from(instance.spot_bytes);
    let state = &mut instance.state;
    let all = lowest(state.blocks);
    if displacement & !all != 0 {
        return Err(Fault::new(SparseStatus::Displacement, displacement, state.blocks));
    }
    let present = all & !displacement;
    let blocks_bytes = u64::from(present.count_ones()) * u64::from(block_bytes);
    let expected = blocks_bytes + u64::from(width) * INDEX_BYTES;
    if u64::from(bytes) != expected {
        return Err(Fault::new(SparseStatus::Length, bytes, expected));
    }
    votes::take(state, width, slots.indices(slot + blocks_bytes, width))?;
    state.arrived += 1;
    (peer.present, peer.next_block) = (present, slot);
    peer.received += 1;
    Ok(state.arrived == workers)
}

/// The lowest `count` bits.
#[inline(always)]
const fn lowest(count: u32) -> u32 {
    if count >= u32::BITS { u32::MAX } else { (1 << count) - 1 }
}
