//! A copy of a context, and with it of all that it leads to.
use dpa::ContextArray;
use dpa::abi::{ReceiveThread, ReceiveContext};

pub fn copy(thread: &mut ReceiveThread) -> Option<ReceiveContext> {
    let mut contexts = ContextArray::attach(&mut thread.contexts);
    contexts.get(0).map(|context| *context) //~ E0507
}
