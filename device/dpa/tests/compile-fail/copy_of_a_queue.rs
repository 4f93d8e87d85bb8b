//! A copy of what leads to memory, to keep beside the context.
use dpa::abi::{SendLane, SendQueueMemory};

pub fn copy(lane: &SendLane) -> SendQueueMemory {
    lane.send_queue //~ E0507
}
