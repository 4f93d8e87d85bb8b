//! Checking a context once.

use datapath::{Control, check_queue};
use dpa::abi::progress::{MESSAGE_BYTES, NOBODY};
use dpa::abi::{ABI_HASH, ContextFault, ProgressThread};
use dpa::hw::DataSegment;
use dpa::proto::{MAX_RANKS, Participant, RankInfo};
use dpa::{ContextArray, ReceiveQueue, State, fence};

/// Least depth of a send queue: of eight entries one at least is completed visibly, and in addition there is room for
/// two messages of three entries.
const MIN_SENDS: u64 = 16;

/// RPC `prepare_progress`: checks thread and peers, makes the machine and posts all receives. The fault, and the peer
/// at fault (0 if it is the thread's).
pub(crate) fn prepare(thread: &mut ProgressThread) -> Result<(), (ContextFault, u32)> {
    let whole = |fault| (fault, 0);
    if thread.set_up.abi_hash != ABI_HASH {
        return Err(whole(ContextFault::AbiHash));
    }
    let place = RankInfo::new(thread.set_up.rank, thread.set_up.ranks).map_err(|_| whole(ContextFault::Worker))?;
    if thread.set_up.budget == 0 {
        return Err(whole(ContextFault::Budget));
    }
    if !thread.set_up.report_host.is_multiple_of(64) || thread.set_up.report_host == 0 {
        return Err(whole(ContextFault::HostAddress));
    }
    if !thread.set_up.flag_host.is_multiple_of(64) || thread.set_up.flag_host == 0 {
        return Err(whole(ContextFault::HostAddress));
    }
    if !thread.set_up.signals.is_there() || !thread.set_up.senders.is_there(8) || !thread.set_up.command.is_there() {
        return Err(whole(ContextFault::DeviceMemory));
    }
    Control::check(&thread.set_up.control_cq, &thread.set_up.control_queue).map_err(whole)?;
    check_queue(&thread.set_up.message_cq).map_err(whole)?;
    let (lkey, slots_at) = (thread.set_up.message_lkey, thread.messages.address());
    let (slots, peers) = (u64::from(thread.messages.count()) * 8 / MESSAGE_BYTES, thread.contexts.count());
    let mut contexts = ContextArray::attach(&mut thread.contexts);
    if contexts.len() != peers as usize {
        return Err(whole(ContextFault::Contexts));
    }
    let mut completions = 0;
    for (number, peer) in (0..).zip(contexts.iter_mut()) {
        if peer.rank == NOBODY && number + 1 == peers {
            check_queue(&peer.send_queue).map_err(|fault| (fault, number))?;
            if peer.send_queue.depth() < MIN_SENDS {
                return Err((ContextFault::QueueDepth, number));
            }
            completions += peer.send_queue.depth();
            continue;
        }
        let checked = check_queue(&peer.receive_queue).and_then(|()| check_queue(&peer.send_queue));
        checked.map_err(|fault| (fault, number))?;
        let depth = peer.receive_queue.depth() + peer.send_queue.depth();
        completions += depth;
        if peer.rank >= thread.set_up.ranks || peer.rank == thread.set_up.rank {
            return Err((ContextFault::Worker, number));
        }
        if peer.send_queue.depth() < MIN_SENDS {
            return Err((ContextFault::QueueDepth, number));
        }
        if peer.first_slot > slots || depth > slots - peer.first_slot {
            return Err((ContextFault::Staging, number));
        }
    }
    for view in ContextArray::attach(&mut thread.views).iter_mut() {
        if !view.bitmap.is_there(8)
            || !view.tails.is_there(8)
            || !view.operation.is_there()
            || !view.placement.is_there()
        {
            return Err(whole(ContextFault::DeviceMemory));
        }
    }
    let mut distance = 1;
    for partner in &mut thread.state.partners {
        let to = place.ahead(distance);
        distance = (distance * 2) % (2 * MAX_RANKS);
        *partner = contexts.iter_mut().position(|peer| peer.rank == to).unwrap_or(usize::from(u16::MAX)) as u16;
    }
    if completions > thread.set_up.message_cq.depth() {
        return Err(whole(ContextFault::QueueDepth));
    }
    let Some(mut machine) = State::attach(&mut thread.machine) else {
        return Err(whole(ContextFault::DeviceMemory));
    };
    machine.set(Participant::new(place, thread.set_up.first_operation));
    for peer in contexts.iter_mut().filter(|peer| peer.rank != NOBODY) {
        let queue = ReceiveQueue::attach(&peer.receive_queue);
        for index in 0..queue.depth() {
            let slot = slots_at.wrapping_add((peer.first_slot + index) * MESSAGE_BYTES);
            queue.write(index, DataSegment::new(MESSAGE_BYTES as u32, lkey, slot));
        }
        fence::memory_write();
        queue.set_producer(queue.depth());
    }
    Control::attach(&thread.set_up.control_cq, &thread.set_up.control_queue).post_all();
    thread.state.report.operation = thread.set_up.first_operation;
    thread.state.report.deadline_ps = u64::MAX;
    thread.state.over = thread.set_up.first_operation.wrapping_sub(1);
    thread.state.prepared = 1;
    fence::memory();
    Ok(())
}
