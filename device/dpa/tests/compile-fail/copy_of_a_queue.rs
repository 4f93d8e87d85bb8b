//! A copy of what leads to memory, to keep next to the context.
use dpa::abi::{SendContext, SendQueueMemory};

pub fn copy(context: &SendContext) -> SendQueueMemory {
    context.send_queue //~ E0507
}
