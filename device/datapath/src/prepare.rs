//! Checking a context once, so that the datapath need not.

use dpa::abi::memory::{Queue, QueueKind};
use dpa::abi::{ABI_HASH, ContextFault, Operation, QueueFault, ReceiveContext, Transport};
use dpa::hw::wqe::{FLAG_ON_ERROR, FLAG_SIGNALLED};
use dpa::hw::{
    Be32, Be64, ControlSegment, DataSegment, GRH_BYTES, INVALID_LKEY, RemoteAddressSegment, WqeOpcode, WriteWqe,
};
use dpa::{ReceiveQueue, SendQueue, fence};

/// Writes the receive entries of a context that was checked, and posts them.
pub(crate) fn prepare_receives(context: &ReceiveContext, transport: Transport) {
    let queue = ReceiveQueue::attach(&context.receive_queue);
    for index in 0..queue.depth() {
        queue.write(index, receive_entry(context, transport, index));
    }
    fence::memory_write();
    queue.set_producer(queue.depth());
}

fn receive_entry(context: &ReceiveContext, transport: Transport, index: u64) -> DataSegment {
    match transport {
        // Write with immediate scatters nothing: the entry is only there to be consumed.
        Transport::Uc => DataSegment::new(0, INVALID_LKEY, 0),
        Transport::Ud => DataSegment::new(context.staging.stride, context.staging.lkey, slot_address(context, index)),
    }
}

fn slot_address(context: &ReceiveContext, index: u64) -> u64 {
    context.staging.address.wrapping_add(index.wrapping_mul(u64::from(context.staging.stride)))
}

/// Builds every copy entry for the armed operation's chunk size and key; per chunk only head and remote address change.
#[cold]
pub(crate) fn build_copies(context: &ReceiveContext) {
    let (operation, queue) = (&context.state.armed, SendQueue::attach(&context.send_queue));
    let segment = u64::from(context.batch);
    for index in 0..queue.depth() {
        let last_of_segment = (index + 1) & (segment - 1) == 0;
        let flags = if last_of_segment { FLAG_SIGNALLED } else { FLAG_ON_ERROR };
        queue.slot(index).write(WriteWqe {
            control: ControlSegment::new(index as u16, WqeOpcode::Write, queue.number(), WriteWqe::SEGMENTS, flags),
            remote: RemoteAddressSegment { address: Be64::new(0), rkey: Be32::new(operation.rkey), reserved: [0; 4] },
            data: DataSegment::new(
                operation.chunk_bytes,
                context.staging.lkey,
                slot_address(context, index).wrapping_add(u64::from(GRH_BYTES)),
            ),
            padding: [0; 16],
        });
    }
}

/// Everything about the context that does not depend on the operation.
pub(crate) fn check(context: &ReceiveContext) -> Result<Transport, ContextFault> {
    if context.abi_hash != ABI_HASH {
        return Err(ContextFault::AbiHash);
    }
    let transport = Transport::from_raw(context.transport).map_err(|_| ContextFault::Transport)?;
    if context.worker >= context.workers {
        return Err(ContextFault::Worker);
    }
    if !(1..=31).contains(&context.psn_bits) {
        return Err(ContextFault::PsnBits);
    }
    if context.budget == 0 {
        return Err(ContextFault::Budget);
    }
    check_queue(&context.receive_cq)?;
    check_queue(&context.receive_queue)?;
    let depth = context.receive_queue.log_depth();
    if context.receive_cq.log_depth() < depth {
        return Err(ContextFault::QueueDepth);
    }
    let batch = context.batch;
    if !batch.is_power_of_two() || batch < 2 || batch > 1 << (depth - 1) {
        return Err(ContextFault::Batch);
    }
    if transport == Transport::Ud {
        check_queue(&context.send_cq)?;
        check_queue(&context.send_queue)?;
        if context.send_queue.log_depth() != depth || context.send_cq.log_depth() < depth {
            return Err(ContextFault::QueueDepth);
        }
        let stride = context.staging.stride;
        if !stride.is_multiple_of(64) || stride <= GRH_BYTES {
            return Err(ContextFault::Staging);
        }
    }
    if !context.bitmap.is_there(8)
        || !context.group.is_there()
        || !context.operation.is_there()
        || !context.placement.is_there()
    {
        return Err(ContextFault::DeviceMemory);
    }
    let host = [context.flag_host, context.report_host];
    if host.contains(&0) || host.iter().chain([&context.bitmap_host]).any(|address| !address.is_multiple_of(64)) {
        return Err(ContextFault::HostAddress);
    }
    Ok(transport)
}

/// Whether there can be a queue of this kind.
pub fn check_queue<K: QueueKind>(queue: &Queue<K>) -> Result<(), ContextFault> {
    queue.check().map_err(|fault| match fault {
        QueueFault::Address => ContextFault::QueueAddress,
        QueueFault::Depth => ContextFault::QueueDepth,
    })
}

/// Whether the operation fits the context, with last chunks of so many bytes.
pub(crate) fn check_operation(
    context: &ReceiveContext,
    operation: &Operation,
    last_chunk_bytes: u32,
    transport: Transport,
) -> Result<(), ContextFault> {
    let chunks = u64::from(operation.chunks);
    if chunks > u64::from(context.bitmap.count()) * 64 || chunks > 1 << context.psn_bits {
        return Err(ContextFault::Chunks);
    }
    if u64::from(operation.collective_id) >> (32 - context.psn_bits) != 0 {
        return Err(ContextFault::CollectiveId);
    }
    let largest = match transport {
        Transport::Uc => i32::MAX as u32,
        Transport::Ud => context.staging.stride - GRH_BYTES,
    };
    let lengths_fit =
        (1..=largest).contains(&operation.chunk_bytes) && (1..=operation.chunk_bytes).contains(&last_chunk_bytes);
    if chunks > 0 && !lengths_fit {
        return Err(ContextFault::ChunkBytes);
    }
    Ok(())
}
