//! A reference to what the host rewrites.
use dpa::abi::{Operation, WorkerContext};

pub fn borrow(context: &WorkerContext) -> &Operation {
    &context.operation //~ E0308
}
