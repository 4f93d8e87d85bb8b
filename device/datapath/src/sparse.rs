//! Aggregator of sparse AllReduce: a thread that serves instances, each of which sums up one shard.
//!
//! All queue pairs of a thread complete on one queue. A message is checked, its votes are merged ([`Summation`]) and its blocks added from the receive
//! spot into the transmit spot, before the next one is looked at. Then its receive is posted again, so that a second message before the answer is seen
//! as what it is; a worker's next message comes after the answer. The last message of an iteration is followed by the answer to all workers.
//!
//! Between operations there is no host: with the answer that has no index an instance begins anew. What it cannot take ends the instance, and only it:
//! it tells the host ([`SparseReport`]), and takes nothing more.

mod answer;
mod prepare;

use dpa::abi::{SparseElement, SparseInstance, SparsePeer, SparseReport, SparseStatus, SparseThread, SparseThreadState};
use dpa::hw::CqeOpcode;
use dpa::proto::sparse::{
    Added, Answer, Incoming, MAX_BLOCKS, Parameters, PartialSums, Summation, SummationError, Votes, VotesError,
};
use dpa::{
    CompletionQueue, ContextArray, Counters, Kept, Next, Outbox, ReceiveQueue, Spots, Window, WindowCell,
    error, fatal, fence,
};

pub use prepare::prepare_sparse;

use crate::receive::resources;

/// What an instance keeps of its shard. Indices lead nowhere here, so that the number of blocks need not be known.
#[derive(Clone, Copy)]
struct Machine {
    parameters: Parameters,
    summation: Summation,
}

impl Machine {
    fn new(instance: &SparseInstance) -> Option<Self> {
        let SparseInstance { workers, block_bytes, blocks_per_message, .. } = *instance;
        let parameters = Parameters::new(workers, block_bytes, blocks_per_message, size_of::<u64>() as u32).ok()?;
        Some(Self { parameters, summation: Self::summation(parameters)? })
    }

    fn summation(parameters: Parameters) -> Option<Summation> {
        Summation::new(parameters, MAX_BLOCKS as u32).ok()
    }
}

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
    spots: Spots<'c>,
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
        spots: Spots::attach(spots),
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
        for _ in 0..budget {
            if !self.cq.is_ready(self.state.consumed) {
                // A queue armed at an index that the card has passed fires at once: what is overlooked here wakes the thread.
                self.outbox.arm_cq(self.cq.number(), self.state.consumed);
                if !self.cq.is_ready(self.state.consumed) {
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
        if instance.status != SparseStatus::Running as u32 {
            return;
        }
        self.state.messages += 1;
        match add(&mut self.spots, instance, peer, number, (displacement, bytes)) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                let index = peer.instance as usize;
                self.answer(index, &answer);
            }
            Err(fault) => self.fail(number, fault),
        }
    }

    /// Ends a worker's instance, unless it has ended.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, number: usize, fault: Fault) {
        let Some((instance, peer)) = find(&mut self.instances, &mut self.peers, number) else {
            self.state.strange += 1;
            return;
        };
        if instance.status != SparseStatus::Running as u32 {
            return;
        }
        instance.status = fault.status as u32;
        let iteration = kept(instance).summation.iteration();
        let report = SparseReport {
            status: fault.status as u64,
            worker: (number - instance.first_peer as usize) as u64,
            iteration: iteration.into(),
            operations: instance.operations,
            found: fault.found,
            limit: fault.limit,
            reserved: [0; 2],
        };
        let at = self.report_host + u64::from(peer.instance) * size_of::<SparseReport>() as u64;
        let cell: WindowCell<SparseReport> = self.window.cell(at).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
        cell.store_part::<0, SparseReport>(&report);
        fence::window_writeback();
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

/// What an instance keeps.
#[inline(always)]
fn kept(instance: &mut SparseInstance) -> &mut Machine {
    Kept::attach(&mut instance.machine).and_then(Kept::get).unwrap_or_else(|| fatal(error::NOT_PREPARED))
}

/// Checks a message, merges its votes, adds its blocks, and posts its receive again.
#[inline(never)]
fn add(
    spots: &mut Spots<'_>,
    instance: &mut SparseInstance,
    peer: &mut SparsePeer,
    number: usize,
    (displacement, bytes): (u32, u32),
) -> Result<Option<Answer>, Fault> {
    if peer.received != instance.answers {
        return Err(Fault::new(SparseStatus::Repeated, bytes, 0u32));
    }
    let transmit = instance.first_spot;
    let spot_bytes = u64::from(instance.spot_bytes);
    let spot = transmit + (2 + (number as u64 - u64::from(instance.first_peer))) * spot_bytes;
    let wide = instance.element == SparseElement::I64 as u32;
    let Machine { parameters, summation } = kept(instance);
    let blocks = summation
        .blocks_of(displacement)
        .map_err(|error| Fault::new(SparseStatus::Displacement, error.bits, error.blocks))?;
    let expected = parameters.message_bytes(blocks);
    if bytes != expected {
        return Err(Fault::new(SparseStatus::Length, bytes, expected));
    }
    let block_bytes = u64::from(parameters.block_bytes());
    let indices = spots.indices(spot + u64::from(blocks) * block_bytes, parameters.blocks_per_message());
    let votes = Votes::read(*parameters, indices).map_err(refused_votes)?;
    let Added { additions, answer } =
        summation.add(&Incoming { displacement, blocks, votes }).map_err(|error| match error {
            SummationError::Votes(error) => refused_votes(error),
            SummationError::Displacement(error) => Fault::new(SparseStatus::Displacement, error.bits, error.blocks),
            SummationError::Blocks { found, expected } => Fault::new(SparseStatus::Length, found, expected),
            SummationError::Complete => Fault::new(SparseStatus::Repeated, bytes, 0u32),
        })?;
    let to = transmit + u64::from(additions.spot) * spot_bytes;
    let mut sums = Sums { spots, from: spot, to, block_bytes, wide };
    additions.apply(&mut sums);
    peer.received += 1;
    // All is read of the spot before the card may write there again.
    fence::memory();
    let queue = ReceiveQueue::attach(&peer.receive_queue);
    queue.set_producer(peer.received + 1);
    Ok(answer)
}

#[cold]
fn refused_votes(error: VotesError) -> Fault {
    match error {
        VotesError::Count { found, expected } => Fault::new(SparseStatus::Length, found, expected),
        VotesError::Order { index, before, .. } => Fault::new(SparseStatus::Order, index, before),
        VotesError::Beyond { index, blocks } => Fault::new(SparseStatus::Beyond, index, blocks),
        VotesError::Behind { index, global } => Fault::new(SparseStatus::Behind, index, global),
        VotesError::AfterEnd { index } => Fault::new(SparseStatus::AfterEnd, index, 0u32),
    }
}

/// The blocks of a message and a transmit spot.
struct Sums<'s, 'c> {
    spots: &'s mut Spots<'c>,
    from: u64,
    to: u64,
    block_bytes: u64,
    wide: bool,
}

impl Sums<'_, '_> {
    #[inline(always)]
    fn places(&self, place: u32, packed: u32) -> (u64, u64) {
        (self.from + u64::from(packed) * self.block_bytes, self.to + u64::from(place) * self.block_bytes)
    }
}

impl PartialSums for Sums<'_, '_> {
    #[inline(always)]
    fn copy(&mut self, _: u32, place: u32, packed: u32) {
        let (from, to) = self.places(place, packed);
        self.spots.copy(from, to, self.block_bytes);
    }

    #[inline(always)]
    fn add(&mut self, _: u32, place: u32, packed: u32) {
        let (from, to) = self.places(place, packed);
        if self.wide {
            self.spots.add_i64(from, to, self.block_bytes);
        } else {
            self.spots.add_i32(from, to, self.block_bytes);
        }
    }

    #[inline(always)]
    fn clear(&mut self, _: u32, place: u32) {
        self.spots.clear(self.to + u64::from(place) * self.block_bytes, self.block_bytes);
    }
}
