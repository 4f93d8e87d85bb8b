//! The send queue of a send context: building entries, posting batches, consuming completions.

use dpa::abi::{SendContext, SendOperation, SendStatus};
use dpa::hw::wqe::{FLAG_ON_ERROR, HEAD_INDEX_STEP};
use dpa::hw::{Be32, ControlSegment, CqeOpcode, DataSegment, DatagramSegment, DatagramWqe, WqeOpcode, WriteWqe};
use dpa::{CompletionQueue, Outbox, PostedEntry, SendQueue, fence, shared};

/// An entry that carries a chunk.
pub(crate) trait Chunk: PostedEntry {
    const OPCODE: WqeOpcode;
    const SEGMENTS: u8;

    /// What is the same for every chunk of a send context.
    fn build(context: &SendContext) -> Self;

    /// [`post`], a symbol for each kind of entry.
    fn post_batch(context: &mut SendContext, outbox: &Outbox, armed: &SendOperation, psn_bits: u32, count: u32);
}

impl Chunk for DatagramWqe {
    const OPCODE: WqeOpcode = WqeOpcode::SendImmediate;
    const SEGMENTS: u8 = Self::SEGMENTS;

    fn build(context: &SendContext) -> Self {
        let datagram = DatagramSegment::from_words(context.address_vector);
        Self { control: ControlSegment::default(), datagram, data: DataSegment::default(), padding: [0; 6] }
    }

    fn post_batch(context: &mut SendContext, outbox: &Outbox, armed: &SendOperation, psn_bits: u32, count: u32) {
        post_datagrams(context, outbox, armed, psn_bits, count);
    }
}

impl Chunk for WriteWqe {
    const OPCODE: WqeOpcode = WqeOpcode::WriteImmediate;
    const SEGMENTS: u8 = Self::SEGMENTS;

    fn build(_: &SendContext) -> Self {
        Self::default()
    }

    fn post_batch(context: &mut SendContext, outbox: &Outbox, armed: &SendOperation, psn_bits: u32, count: u32) {
        post_writes(context, outbox, armed, psn_bits, count);
    }
}

/// Entries that may be written: their predecessors in the ring are known to be complete.
#[inline(always)]
pub(crate) fn room<W: Chunk>(context: &SendContext) -> u64 {
    let depth = context.send_queue.depth();
    (depth - (context.state.produced - context.state.completed)) / W::BLOCKS
}

/// Builds all entries of a send context.
pub(crate) fn build<W: Chunk>(context: &SendContext) {
    let queue = SendQueue::attach(&context.send_queue);
    let mut entries = queue.entries::<W>(0, queue.depth());
    while let Some(slot) = entries.peek() {
        slot.write(W::build(context));
        entries.advance();
    }
}

#[inline(never)]
fn post_datagrams(context: &mut SendContext, outbox: &Outbox, armed: &SendOperation, psn_bits: u32, count: u32) {
    post::<DatagramWqe>(context, outbox, armed, psn_bits, count);
}

#[inline(never)]
fn post_writes(context: &mut SendContext, outbox: &Outbox, armed: &SendOperation, psn_bits: u32, count: u32) {
    post::<WriteWqe>(context, outbox, armed, psn_bits, count);
}

/// Posts the next `count` chunks of a send context, for which there is room: one doorbell, the last signalled.
#[inline(always)]
fn post<W: Chunk>(context: &mut SendContext, outbox: &Outbox, armed: &SendOperation, psn_bits: u32, count: u32) {
    let queue = SendQueue::attach(&context.send_queue);
    let state = &mut context.state;
    let chunk_bytes = u64::from(armed.chunk_bytes);
    let (mut source, mut remote) = (state.source, state.remote_address);
    let immediate = armed.collective_id << psn_bits | state.psn;
    let mut tail = ControlSegment::tail(FLAG_ON_ERROR, immediate);
    let extent = DataSegment::extent(armed.chunk_bytes, armed.lkey);
    let rkey = Be32::new(state.rkey);
    let head_step = shared::in_register(HEAD_INDEX_STEP * W::BLOCKS);
    let mut left = u64::from(count);
    while left != 0 {
        let mut entries = queue.entries::<W>(state.produced, left);
        let here = entries.remaining();
        // Entries up to the ring's end have indices without a carry out of their 16 bits.
        let mut head = ControlSegment::head(state.produced as u16, W::OPCODE, queue.number(), W::SEGMENTS);
        while let Some(slot) = entries.peek() {
            slot.set_head(head);
            slot.set_tail(tail);
            slot.set_extent(extent);
            slot.set_source(source);
            if W::REMOTE.is_some() {
                slot.set_remote(remote);
                slot.set_remote_key(rkey);
                remote = remote.wrapping_add(chunk_bytes);
            }
            head = head.wrapping_add(head_step);
            tail = tail.wrapping_add(1);
            source = source.wrapping_add(chunk_bytes);
            entries.advance();
        }
        state.produced += here * W::BLOCKS;
        left -= here;
    }
    state.source = source;
    state.psn += count;
    if W::REMOTE.is_some() {
        state.remote_address = remote;
    }
    state.left -= count;
    if let Some(last) = queue.entries::<W>(state.produced - W::BLOCKS, 1).peek() {
        last.set_signalled();
        if state.left == 0 && state.last_chunk_bytes != armed.chunk_bytes {
            last.set_byte_count(state.last_chunk_bytes);
        }
    }
    // Entries before the record, the record before the doorbell.
    fence::memory_write();
    queue.set_producer(state.produced);
    fence::outbox();
    outbox.ring_sq(queue.number(), state.produced);
}

/// Consumes a send context's send completions; the failure, if one reports it for the first time.
pub(crate) fn reap<W: Chunk>(context: &mut SendContext) -> Option<(SendStatus, u32)> {
    let cq = CompletionQueue::attach(&context.send_cq);
    let state = &mut context.state;
    let first = state.consumed;
    let mut failure = None;
    while cq.is_ready(state.consumed) {
        fence::memory_read();
        let entry = cq.entry(state.consumed);
        state.consumed += 1;
        let opcode = entry.op_own() >> 4;
        if opcode == CqeOpcode::Requester as u64 && state.dead == 0 {
            let end = entry.wqe_counter().wrapping_add(W::BLOCKS as u16);
            state.completed += u64::from(end.wrapping_sub(state.completed as u16));
        } else if state.dead == 0 {
            // The queue is in error: the card carries out nothing more of it.
            state.dead = 1;
            state.completed = state.produced;
            failure = Some(if opcode == CqeOpcode::RequesterError as u64 {
                (SendStatus::SendError, u32::from(entry.syndrome()))
            } else {
                (SendStatus::UnexpectedOpcode, entry.op_own() as u32)
            });
        }
    }
    if state.consumed != first {
        // No fence: branches up to here depended on all that was read of the entries given back.
        cq.set_consumer(state.consumed);
    }
    failure
}
