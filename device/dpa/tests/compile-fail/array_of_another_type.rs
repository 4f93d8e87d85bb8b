//! Contexts taken for larger ones.
use dpa::ContextArray;
use dpa::abi::{ProgressThread, LaneThread};

pub fn confuse(thread: &mut LaneThread) {
    let mut lanes: ContextArray<'_, ProgressThread> = ContextArray::attach(&mut thread.contexts); //~ E0308
    let _ = lanes.get(0);
}
