//! A copy of a context, and with it of all that it leads to.
use dpa::ContextArray;
use dpa::abi::{LaneThread, WorkerContext};

pub fn copy(thread: &mut LaneThread) -> Option<WorkerContext> {
    let mut lanes = ContextArray::attach(&mut thread.contexts);
    lanes.get(0).map(|lane| *lane) //~ E0507
}
