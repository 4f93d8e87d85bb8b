//! A context of zeros, to exchange for the host's.
use dpa::abi::{BitmapMemory, ReceiveContext};

pub fn zeros() -> ReceiveContext {
    ReceiveContext::default() //~ E0599
}

pub fn take(context: &mut ReceiveContext) -> BitmapMemory {
    core::mem::take(&mut context.bitmap) //~ E0277
}
