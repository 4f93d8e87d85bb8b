//! A receive queue taken for a send queue, whose entries are four times as long.
use dpa::SendQueue;
use dpa::abi::ReceiveContext;

pub fn confuse(context: &ReceiveContext) {
    SendQueue::attach(&context.receive_queue).slot(15).set_remote(0x4141); //~ E0308
}
