//! A bitmap taken for the line that threads share.
use dpa::Signals;
use dpa::abi::WorkerContext;

pub fn confuse(context: &WorkerContext) {
    let _ = Signals::attach(&context.bitmap); //~ E0308
}
