//! A reference to what the host rewrites.
use dpa::abi::{Operation, ReceiveContext};

pub fn borrow(context: &ReceiveContext) -> &Operation {
    &context.operation //~ E0308
}
