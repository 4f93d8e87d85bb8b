//! Contexts taken for larger ones.
use dpa::ContextArray;
use dpa::abi::{ConductorThread, LaneThread};

pub fn confuse(thread: &mut LaneThread) {
    let mut lanes: ContextArray<'_, ConductorThread> = ContextArray::attach(&mut thread.contexts); //~ E0308
    let _ = lanes.get(0);
}
