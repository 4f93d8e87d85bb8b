//! A bitmap taken for the line that threads share.
use dpa::Signals;
use dpa::abi::ReceiveContext;

pub fn confuse(context: &ReceiveContext) {
    let _ = Signals::attach(&context.bitmap); //~ E0308
}
