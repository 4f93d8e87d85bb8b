//! Checking a thread's context once, so that the datapath need not, and posting the first receives.

use dpa::abi::{
    ContextFault, Layout, SPARSE_SENDS, SparseElement, SparseInstance, SparsePeer, SparseStatus, SparseThread,
};
use dpa::hw::DataSegment;
use dpa::proto::sparse::Parameters;
use dpa::slots::STRIDE;
use dpa::{ContextArray, ReceiveQueue, fence};

use super::TRANSMIT_SLOTS;
use crate::prepare::check_queue;

/// Completions of a worker that are to be had room for: of all its sends, and of its receive and one that is flushed.
const RECEIVES: u64 = 2;

/// RPC `prepare`: checks thread, instances and workers, and posts a receive for each worker. The fault, and the
/// instance or worker at fault (0 if it is the thread's).
pub fn prepare_sparse(thread: &mut SparseThread) -> Result<(), (ContextFault, u32)> {
    let whole = |fault| (fault, 0);
    if thread.layout_hash != SparseThread::HASH {
        return Err(whole(ContextFault::AbiHash));
    }
    if thread.budget == 0 {
        return Err(whole(ContextFault::Budget));
    }
    if thread.report_host == 0 || !thread.report_host.is_multiple_of(64) {
        return Err(whole(ContextFault::HostAddress));
    }
    if !thread.spots.is_there(64) {
        return Err(whole(ContextFault::Staging));
    }
    check_queue(&thread.cq).map_err(whole)?;
    let SparseThread { cq, instances, peers, spots, state, lkey, .. } = thread;
    let (spots_at, spots_bytes) = (spots.address(), u64::from(spots.count()) * 8);
    let (mut instances, mut peers) = (ContextArray::attach(instances), ContextArray::attach(peers));
    if instances.is_empty() || peers.is_empty() {
        return Err(whole(ContextFault::Contexts));
    }
    // All are checked before the first receive is posted.
    let (mut next_peer, mut next_slot, mut completions) = (0u64, 0u64, 0u64);
    for (number, instance) in (0..).zip(instances.iter_mut()) {
        let fault = |fault| Err((fault, number));
        if u64::from(instance.first_peer) != next_peer || instance.workers == 0 {
            return fault(ContextFault::Worker);
        }
        let first = next_peer;
        next_peer += u64::from(instance.workers);
        let SparseInstance { workers, block_bytes, blocks_per_message, .. } = *instance;
        let parameters = Parameters::new(workers, block_bytes, blocks_per_message, STRIDE as u32);
        let Ok(parameters) = parameters else { return fault(ContextFault::ChunkBytes) };
        let slot_bytes = u64::from(instance.spot_bytes);
        let all = slot_bytes * (TRANSMIT_SLOTS + u64::from(instance.workers));
        let fits = slot_bytes >= u64::from(parameters.slot_bytes()) && slot_bytes.is_multiple_of(64);
        // Slots of different instances do not overlap, and lie inside.
        if !fits || instance.first_spot != next_slot || all > spots_bytes - next_slot {
            return fault(ContextFault::Staging);
        }
        next_slot += all;
        if !instance.operation.is_there() {
            return fault(ContextFault::DeviceMemory);
        }
        let state = &mut instance.state;
        (state.status, state.element) = (SparseStatus::Running as u32, SparseElement::I32 as u32);
        for worker in first..next_peer {
            let fault = |fault| (fault, worker as u32);
            let peer = peers.get(worker as usize).ok_or_else(|| fault(ContextFault::Worker))?;
            check(peer, number).map_err(fault)?;
            completions += peer.send_queue.depth() + RECEIVES;
        }
    }
    if next_peer != peers.len() as u64 {
        return Err(whole(ContextFault::Worker));
    }
    if completions > cq.depth() {
        return Err(whole(ContextFault::QueueDepth));
    }
    for instance in instances.iter_mut() {
        post(instance, &mut peers, spots_at, *lkey);
    }
    state.prepared = 1;
    fence::memory();
    Ok(())
}

/// What is to be checked of a worker of instance number `number`.
fn check(peer: &SparsePeer, number: u32) -> Result<(), ContextFault> {
    check_queue(&peer.receive_queue)?;
    check_queue(&peer.send_queue)?;
    if peer.send_queue.depth() < SPARSE_SENDS {
        return Err(ContextFault::QueueDepth);
    }
    if peer.instance == number { Ok(()) } else { Err(ContextFault::Worker) }
}

/// Writes the receive entries of an instance's workers, each into the worker's slot, and posts one of each.
fn post(instance: &SparseInstance, peers: &mut ContextArray<'_, SparsePeer>, spots: u64, lkey: u32) {
    let slot_bytes = u64::from(instance.spot_bytes);
    for worker in 0..u64::from(instance.workers) {
        let Some(peer) = peers.get((u64::from(instance.first_peer) + worker) as usize) else { return };
        let queue = ReceiveQueue::attach(&peer.receive_queue);
        let slot = spots + instance.first_spot + (TRANSMIT_SLOTS + worker) * slot_bytes;
        for index in 0..queue.depth() {
            queue.write(index, DataSegment::new(instance.spot_bytes, lkey, slot));
        }
        fence::memory_write();
        queue.set_producer(1);
    }
}
