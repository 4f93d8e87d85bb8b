//! A context of zeros, to exchange for the host's.
use dpa::abi::{BitmapMemory, WorkerContext};

pub fn zeros() -> WorkerContext {
    WorkerContext::default() //~ E0599
}

pub fn take(context: &mut WorkerContext) -> BitmapMemory {
    core::mem::take(&mut context.bitmap) //~ E0277
}
