//! RPC `prepare`: checks a context, writes the receive entries and posts them.

use dpa::abi::reference::ReferenceContext;
use dpa::abi::{ContextFault, Layout as _, QueueDescriptor, Transport};
use dpa::hw::{DataSegment, GRH_BYTES, INVALID_LKEY};
use dpa::{ReceiveQueue, fence};

/// Whether the context can be worked with; then its receives are posted.
pub(crate) fn prepare(context: &mut ReferenceContext) -> Result<(), ContextFault> {
    if context.layout_hash != ReferenceContext::HASH {
        return Err(ContextFault::AbiHash);
    }
    let transport = Transport::from_raw(context.transport).map_err(|_| ContextFault::Transport)?;
    if context.workers == 0 {
        return Err(ContextFault::Worker);
    }
    check_queue(&context.receive_cq, 64)?;
    check_queue(&context.receive_queue, 16)?;
    if context.receive_cq.log_depth < context.receive_queue.log_depth {
        return Err(ContextFault::QueueDepth);
    }
    if transport == Transport::Ud {
        check_queue(&context.copy_cq, 64)?;
        check_queue(&context.copy_queue, 64)?;
        if context.copy_queue.log_depth != context.receive_queue.log_depth {
            return Err(ContextFault::QueueDepth);
        }
        let stride = context.staging.stride;
        if !stride.is_multiple_of(64) || stride <= GRH_BYTES {
            return Err(ContextFault::Staging);
        }
    }
    let memory = [(context.bitmap, 8), (context.group, 64)];
    if context.bitmap_words == 0 || memory.iter().any(|(at, align)| at.is_null() || !at.is_aligned_to(*align)) {
        return Err(ContextFault::DeviceMemory);
    }
    if [context.flag_host, context.report_host].iter().any(|at| *at == 0 || !at.is_multiple_of(64)) {
        return Err(ContextFault::HostAddress);
    }
    let queue = ReceiveQueue::attach(&context.receive_queue);
    for index in 0..queue.depth() {
        queue.write(
            index,
            match transport {
                // Writes with immediate scatter nothing: the entry is only there to be consumed.
                Transport::Uc => DataSegment::new(0, INVALID_LKEY, 0),
                Transport::Ud => {
                    let slot = index.wrapping_mul(u64::from(context.staging.stride));
                    DataSegment::new(
                        context.staging.stride,
                        context.staging.lkey,
                        context.staging.address.wrapping_add(slot),
                    )
                }
            },
        );
    }
    fence::memory_write();
    queue.set_producer(queue.depth());
    fence::memory();
    Ok(())
}

fn check_queue(queue: &QueueDescriptor, entry_bytes: u64) -> Result<(), ContextFault> {
    let memory = [(queue.ring, entry_bytes), (queue.doorbell_record, 8)];
    if memory.iter().any(|(at, align)| at.is_null() || !at.is_aligned_to(*align)) {
        return Err(ContextFault::QueueAddress);
    }
    if !(1..=15).contains(&queue.log_depth) { Err(ContextFault::QueueDepth) } else { Ok(()) }
}
