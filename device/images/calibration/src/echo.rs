//! A datagram echo without memory work (Schimmelpfennig et al.): receive, send back, post the receive again once the
//! answer is out.

use dpa::abi::calibration::KernelContext;
use dpa::hw::wqe::FLAG_SIGNALLED;
use dpa::hw::{ControlSegment, CqeOpcode, DataSegment, DatagramSegment, DatagramWqe, GRH_BYTES, WqeOpcode};
use dpa::{CompletionQueue, Next, PostedEntry as _, ReceiveQueue, SendQueue, error, fatal, fence};

use crate::slot::{Begin, Slot};

/// Polls until `count` datagrams have come and their answers are out.
pub(crate) fn run(context: &mut KernelContext) -> Next {
    let slot = Slot::take(context);
    if context.buffers == 0 {
        fatal(error::NOT_PREPARED);
    }
    let receive_cq = CompletionQueue::attach(&context.receive_cq);
    let receive_queue = ReceiveQueue::attach(&context.receive_queue);
    let send_cq = CompletionQueue::attach(&context.send_cq);
    let send_queue = SendQueue::attach(&context.send_queue);
    let datagram = DatagramSegment::from_words(context.address_vector);
    let mut entries = send_queue.entries::<DatagramWqe>(0, send_queue.depth());
    while let Some(slot) = entries.peek() {
        let control = ControlSegment::default();
        slot.write(DatagramWqe { control, datagram, data: DataSegment::default(), padding: [0; 6] });
        entries.advance();
    }
    let (count, depth) = (context.count, receive_queue.depth());
    let tail = ControlSegment::tail(FLAG_SIGNALLED, 0);
    let (mut consumed, mut answered, mut errors) = (0u64, 0u64, 0);
    while !receive_cq.is_ready(0) {}
    let begin = Begin::now();
    while answered != count {
        if consumed != count && receive_cq.is_ready(consumed) {
            fence::memory_read();
            let entry = receive_cq.entry(consumed);
            errors += u64::from(entry.op_own() >> 4 != CqeOpcode::Send as u64);
            let bytes = entry.byte_count().wrapping_sub(GRH_BYTES);
            let buffer = context.buffers + (consumed & (depth - 1)) * u64::from(context.buffer_bytes);
            let block = consumed * DatagramWqe::BLOCKS;
            if let Some(slot) = send_queue.entries::<DatagramWqe>(block, 1).peek() {
                let (qpn, segments) = (send_queue.number(), DatagramWqe::SEGMENTS);
                slot.set_head(ControlSegment::head(block as u16, WqeOpcode::Send, qpn, segments));
                slot.set_tail(tail);
                slot.set_source(buffer + u64::from(GRH_BYTES));
                slot.set_extent(DataSegment::extent(bytes, context.lkey));
            }
            consumed += 1;
            receive_cq.set_consumer(consumed);
            fence::memory_write();
            send_queue.set_producer(consumed * DatagramWqe::BLOCKS);
            fence::outbox();
            slot.outbox.ring_sq(send_queue.number(), consumed * DatagramWqe::BLOCKS);
        }
        if send_cq.is_ready(answered) {
            fence::memory_read();
            errors += u64::from(send_cq.entry(answered).op_own() >> 4 != CqeOpcode::Requester as u64);
            answered += 1;
            send_cq.set_consumer(answered);
            receive_queue.set_producer(answered + depth);
        }
    }
    let span = begin.end();
    slot.report(context, &span, errors, consumed);
    Next::Finish
}
