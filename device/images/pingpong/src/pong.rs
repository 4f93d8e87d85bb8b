//! Receive into buffer i, answer from buffer i, post receive i again once the answer is out.

use dpa::abi::{ABI_HASH, ContextFault, PingPongContext, QueueFault};
use dpa::hw::wqe::{FLAG_SIGNALLED, SendWqe};
use dpa::hw::{ControlSegment, CqeOpcode, DataSegment, WqeOpcode};
use dpa::{CompletionQueue, Next, Outbox, ReceiveQueue, SendQueue, Thread, error, fatal, fence};

/// Completions of either kind after which an activation lets others run.
const BUDGET: u32 = 4096;

/// Checks the context, writes the receive entries and posts them.
pub(crate) fn prepare(context: &mut PingPongContext) -> Result<(), ContextFault> {
    if context.abi_hash != ABI_HASH {
        return Err(ContextFault::AbiHash);
    }
    let (receive_cq, receive_queue) = (&context.receive_cq, &context.receive_queue);
    let (send_cq, send_queue) = (&context.send_cq, &context.send_queue);
    for verdict in [receive_cq.check(), receive_queue.check(), send_cq.check(), send_queue.check()] {
        verdict.map_err(|fault| match fault {
            QueueFault::Address => ContextFault::QueueAddress,
            QueueFault::Depth => ContextFault::QueueDepth,
        })?;
    }
    let depth = receive_queue.log_depth();
    if [receive_cq.log_depth(), send_cq.log_depth(), send_queue.log_depth()].iter().any(|other| *other < depth) {
        return Err(ContextFault::QueueDepth);
    }
    if context.buffers == 0 || context.buffer_bytes == 0 {
        return Err(ContextFault::Staging);
    }
    let queue = ReceiveQueue::attach(&context.receive_queue);
    for index in 0..queue.depth() {
        queue.write(index, DataSegment::new(context.buffer_bytes, context.lkey, buffer(context, index)));
    }
    fence::memory_write();
    queue.set_producer(queue.depth());
    context.prepared = 1;
    fence::memory();
    Ok(())
}

fn buffer(context: &PingPongContext, index: u64) -> u64 {
    let slot = index & (context.receive_queue.depth() - 1);
    context.buffers.wrapping_add(slot.wrapping_mul(u64::from(context.buffer_bytes)))
}

/// One activation. `RECORDS`: the send word of the doorbell record is kept.
pub(crate) fn pong<const RECORDS: bool>(context: &mut PingPongContext) -> Next {
    if context.prepared == 0 {
        fatal(error::NOT_PREPARED);
    }
    let thread = Thread::current();
    if context.configured == 0 {
        if !Outbox::configure(&thread, context.outbox_id) {
            fatal(error::NO_RESOURCE);
        }
        context.configured = 1;
    }
    let outbox = Outbox::of(&thread);
    let receive_cq = CompletionQueue::attach(&context.receive_cq);
    let receive_queue = ReceiveQueue::attach(&context.receive_queue);
    let send_cq = CompletionQueue::attach(&context.send_cq);
    let send_queue = SendQueue::attach(&context.send_queue);
    for _ in 0..BUDGET {
        if send_cq.is_ready(context.send_consumed) {
            // No fence: of this entry the byte that was tested is all that is read.
            let opcode = send_cq.entry(context.send_consumed).op_own() >> 4;
            context.send_consumed += 1;
            send_cq.set_consumer(context.send_consumed);
            if opcode == CqeOpcode::Requester as u64 {
                context.completed += 1;
                receive_queue.set_producer(context.completed + receive_queue.depth());
            } else {
                context.errors += 1;
            }
            continue;
        }
        if receive_cq.is_ready(context.consumed) {
            fence::memory_read();
            let entry = receive_cq.entry(context.consumed);
            let opcode = entry.op_own() >> 4;
            let is_message = opcode == CqeOpcode::Send as u64 || opcode == CqeOpcode::SendImmediate as u64;
            let bytes = is_message.then(|| entry.byte_count());
            context.errors += u64::from(!is_message);
            answer(context, &send_queue, bytes);
            context.consumed += 1;
            receive_cq.set_consumer(context.consumed);
            if RECORDS {
                fence::memory_write();
                send_queue.set_producer(context.consumed);
            }
            fence::outbox();
            outbox.ring_sq(send_queue.number(), context.consumed);
            continue;
        }
        // No fence, neither before nor after: the doorbells name their indices themselves, the records may follow in
        // their own time, and a queue armed at an index that the card has passed fires at once: what is overlooked here
        // wakes the thread.
        outbox.arm_cq(receive_cq.number(), context.consumed);
        outbox.arm_cq(send_cq.number(), context.send_consumed);
        if !receive_cq.is_ready(context.consumed) && !send_cq.is_ready(context.send_consumed) {
            return Next::Reschedule;
        }
    }
    Next::Retrigger
}

/// Writes the answer to message number `consumed`: a send of its bytes, or a NOP if it was none, so that numbers stay
/// in step.
fn answer(context: &PingPongContext, queue: &SendQueue, bytes: Option<u32>) {
    let index = context.consumed;
    // A length of 0 would mean 2 GiB: an empty message has no data segment.
    let (opcode, segments, bytes) = match bytes {
        Some(0) => (WqeOpcode::Send, 1, 0),
        Some(bytes) => (WqeOpcode::Send, SendWqe::SEGMENTS, bytes),
        None => (WqeOpcode::Nop, 1, 0),
    };
    queue.write_send(
        index,
        SendWqe {
            control: ControlSegment::new(index as u16, opcode, queue.number(), segments, FLAG_SIGNALLED),
            data: DataSegment::new(bytes, context.lkey, buffer(context, index)),
            padding: [0; 32],
        },
    );
}
