//! RPC `prepare`: checks a context, writes the receive entries and posts them.

use dpa::abi::reference::ReferenceContext;
use dpa::abi::{ContextFault, Layout as _, QueueFault, Transport};
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
    let mut queues = context.receive_cq.check().and(context.receive_queue.check());
    if transport == Transport::Ud {
        queues = queues.and(context.copy_cq.check()).and(context.copy_queue.check());
    }
    queues.map_err(|fault| match fault {
        QueueFault::Address => ContextFault::QueueAddress,
        QueueFault::Depth => ContextFault::QueueDepth,
    })?;
    let depth = context.receive_queue.log_depth();
    if context.receive_cq.log_depth() < depth {
        return Err(ContextFault::QueueDepth);
    }
    if transport == Transport::Ud {
        if context.copy_queue.log_depth() != depth {
            return Err(ContextFault::QueueDepth);
        }
        let stride = context.staging.stride;
        if !stride.is_multiple_of(64) || stride <= GRH_BYTES {
            return Err(ContextFault::Staging);
        }
    }
    if !context.bitmap.is_there(8) || !context.group.is_there() || !context.iteration.is_there() {
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
