//! The host's queue, deeper than it is: entries behind its ring.
use dpa::abi::{SendLane, SendQueueMemory};

pub fn resize(lane: &mut SendLane) {
    lane.send_queue = SendQueueMemory { log_depth: 15, ..lane.send_queue }; //~ E0560
}
