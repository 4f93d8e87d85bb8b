//! Contexts taken for larger ones.
use dpa::ContextArray;
use dpa::abi::{ProgressThread, ReceiveThread};

pub fn confuse(thread: &mut ReceiveThread) {
    let mut contexts: ContextArray<'_, ProgressThread> = ContextArray::attach(&mut thread.contexts); //~ E0308
    let _ = contexts.get(0);
}
