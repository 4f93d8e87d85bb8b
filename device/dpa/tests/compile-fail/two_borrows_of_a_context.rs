//! Two exclusive borrows of one context.
use dpa::ContextArray;
use dpa::abi::ReceiveThread;

pub fn twice(thread: &mut ReceiveThread) {
    let mut one = ContextArray::attach(&mut thread.contexts);
    let mut other = ContextArray::attach(&mut thread.contexts); //~ E0499
    if let (Some(one), Some(other)) = (one.get(0), other.get(0)) {
        core::mem::swap(&mut one.state, &mut other.state);
    }
}
