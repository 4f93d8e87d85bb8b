//! The host's queue, deeper than it is: entries behind its ring.
use dpa::abi::{SendContext, SendQueueMemory};

pub fn resize(context: &mut SendContext) {
    context.send_queue = SendQueueMemory { log_depth: 15, ..context.send_queue }; //~ E0560
}
